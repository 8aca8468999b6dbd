//! The pump's decisions, pure: what may be acknowledged, when to stop reading, when the archive should tick.

use rindle_proto::ids::{EndLsn, Lsn};

/// State of one session. Nothing here does I/O or reads a clock.
#[derive(Debug)]
pub struct Core {
    /// With more than this many bytes not archived, reading stops (I9).
    max_unshipped_bytes: u64,
    /// Highest position received on this session; acks never exceed it (I1).
    received: Lsn,
    /// What the archive allows to acknowledge.
    archived_through: Lsn,
    /// Last position sent as flushed; never moves back (I1).
    acked: Lsn,
    head_offset: u64,
    durable_offset: u64,
    /// Everything that commits at or below this is in the log.
    logged_through: Lsn,
}

/// What to report to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Received position.
    pub received: Lsn,
    /// Acknowledged position: Postgres may forget everything below.
    pub acked: Lsn,
}

impl Core {
    /// A session started at `start`, of which `through` may be acknowledged at once (protocol rule 13). Its log
    /// holds `logged` bytes already, all archived: those of a first copy.
    pub fn new(start: Lsn, through: Lsn, logged: u64, max_unshipped_bytes: u64) -> Self {
        let received = start.max(through);
        Self {
            max_unshipped_bytes,
            received,
            archived_through: through,
            acked: Lsn(0),
            head_offset: logged,
            durable_offset: logged,
            logged_through: through,
        }
    }

    /// A transaction was received whole.
    pub fn committed(&mut self, end_lsn: EndLsn) {
        self.received = self.received.max(end_lsn.0);
        self.logged_through = self.logged_through.max(end_lsn.0);
    }

    /// A keepalive came. Inside a transaction its position is worth nothing; outside, everything before it was
    /// received.
    pub fn keepalive(&mut self, wal_end: Lsn, in_txn: bool) {
        if !in_txn {
            self.received = self.received.max(wal_end);
            self.logged_through = self.logged_through.max(wal_end);
        }
    }

    /// The log ends at this offset.
    pub fn appended(&mut self, offset: u64) {
        self.head_offset = offset;
    }

    /// The archive confirmed the log up to `offset`, and may be acknowledged up to `through`.
    pub fn archived(&mut self, offset: u64, through: Lsn) {
        self.durable_offset = self.durable_offset.max(offset);
        self.archived_through = self.archived_through.max(through);
    }

    /// True while too much is not archived: Postgres keeps the rest.
    pub fn must_stop_reading(&self) -> bool {
        self.head_offset.saturating_sub(self.durable_offset) > self.max_unshipped_bytes
    }

    /// Every transaction that ends at or below this is in the log.
    pub fn logged_through(&self) -> Lsn {
        self.logged_through
    }

    /// True when the log is further than what may be acknowledged.
    pub fn lags(&self) -> bool {
        self.logged_through > self.archived_through
    }

    /// What to tell the server now.
    pub fn report(&mut self) -> Report {
        // I1: never above what the archive holds, never above what this session received, never back.
        self.acked = self.acked.max(self.archived_through.min(self.received));
        Report {
            received: self.received,
            acked: self.acked,
        }
    }

    /// True when [`Core::report`] would acknowledge more than it last did.
    pub fn can_ack_more(&self) -> bool {
        self.archived_through.min(self.received) > self.acked
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn acks_only_what_is_archived() {
        let mut core = Core::new(Lsn(100), Lsn(100), 0, 1000);
        core.committed(EndLsn(Lsn(200)));
        core.appended(50);
        assert_eq!(
            core.report(),
            Report {
                received: Lsn(200),
                acked: Lsn(100)
            }
        );
        core.archived(50, Lsn(200));
        assert_eq!(core.report().acked, Lsn(200));
    }

    #[test]
    fn never_acks_beyond_what_this_session_received() {
        let mut core = Core::new(Lsn(100), Lsn(100), 0, 1000);
        core.archived(0, Lsn(500));
        assert_eq!(core.report().acked, Lsn(100));
        core.keepalive(Lsn(300), false);
        assert_eq!(core.report().acked, Lsn(300));
    }

    #[test]
    fn a_keepalive_inside_a_transaction_counts_for_nothing() {
        let mut core = Core::new(Lsn(100), Lsn(100), 0, 1000);
        core.keepalive(Lsn(300), true);
        core.archived(0, Lsn(300));
        assert_eq!(
            core.report(),
            Report {
                received: Lsn(100),
                acked: Lsn(100)
            }
        );
        assert_eq!(core.logged_through(), Lsn(100));
    }

    #[test]
    fn stops_reading_one_append_beyond_the_limit() {
        let mut core = Core::new(Lsn(1), Lsn(1), 0, 100);
        core.appended(100);
        assert!(!core.must_stop_reading());
        core.appended(101);
        assert!(core.must_stop_reading());
        core.archived(1, Lsn(1));
        assert!(!core.must_stop_reading());
    }

    #[test]
    fn a_tick_before_the_first_append_after_a_copy_stops_nothing() {
        let mut core = Core::new(Lsn(1), Lsn(1), 5000, 100);
        core.archived(5000, Lsn(9));
        assert!(!core.must_stop_reading());
        core.appended(5101);
        assert!(core.must_stop_reading());
    }

    #[derive(Clone, Debug)]
    enum Event {
        Commit(u64),
        Keepalive(u64, bool),
        Archive(u64),
        Report,
    }

    fn events() -> impl Strategy<Value = Vec<Event>> {
        let event = prop_oneof![
            (0u64..1000).prop_map(Event::Commit),
            (0u64..1000, any::<bool>()).prop_map(|(lsn, in_txn)| Event::Keepalive(lsn, in_txn)),
            (0u64..1000).prop_map(Event::Archive),
            Just(Event::Report),
        ];
        prop::collection::vec(event, 0..60)
    }

    proptest! {
        #[test]
        fn acked_never_moves_back_or_passes_archive_and_stream(events in events()) {
            let mut core = Core::new(Lsn(10), Lsn(10), 0, 100);
            let (mut archived, mut received, mut acked) = (10, 10, 0);
            for event in events {
                match event {
                    Event::Commit(lsn) => {
                        core.committed(EndLsn(Lsn(lsn)));
                        received = received.max(lsn);
                    }
                    Event::Keepalive(lsn, in_txn) => {
                        core.keepalive(Lsn(lsn), in_txn);
                        received = if in_txn { received } else { received.max(lsn) };
                    }
                    Event::Archive(lsn) => {
                        core.archived(0, Lsn(lsn));
                        archived = archived.max(lsn);
                    }
                    Event::Report => {
                        let report = core.report();
                        prop_assert!(report.acked.0 <= archived && report.acked.0 <= received);
                        prop_assert!(report.acked.0 >= acked);
                        acked = report.acked.0;
                    }
                }
            }
        }
    }
}
