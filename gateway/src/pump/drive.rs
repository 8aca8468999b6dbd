//! The only owner of the stream while it runs. One thread reads the socket, decodes, builds frames and appends
//! them to the log; nothing is handed from thread to thread a message at a time.

use std::sync::Arc;
use std::time::Duration;

use rindle_archive::{Commit, failpoint};
use rindle_proto::ids::{EndLsn, Lsn};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::core::Core;
use super::{audit, checkpoints, heart};
use crate::assemble::{Assembled, Assembler};
use crate::backfill;
use crate::ddl::Believed;
use crate::ddl::announce::{self, AnnounceError, Asked};
use crate::ddl::introduce::{self, Unknown};
use crate::halt::HaltReason;
use crate::lifecycle::admission::posture::Posture;
use crate::live::{Belief, Live};
use crate::pg::endpoint::Endpoint;
use crate::pg::pgoutput;
use crate::pg::walsender::{WalError, WalMessage, WalStream, sqlstate};
use crate::session::start::unread;
use crate::session::{Ended, Sessions};
use crate::ship::chain;
use crate::state::State;

/// Frames are handed on at the latest when this many bytes of them wait.
const APPEND_BYTES: usize = 256 << 10;

/// Positions are reported at least this often; the server is asked for its own as well, since a server that has
/// nothing to send says nothing by itself.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// Acknowledgements alone are reported at most this often.
const ACK_INTERVAL: Duration = Duration::from_millis(100);

/// A stream that runs: what the pump goes on with.
#[derive(Debug)]
pub struct Started {
    /// Stands at the archive's last commit.
    pub assembler: Assembler,
    /// Everything that commits at or below this is archived.
    pub start: Lsn,
    /// Ordinary connection to the same server, kept for the session's length.
    pub client: Client,
}

/// How long a clean stop waits for the archive.
const SETTLE: Duration = Duration::from_secs(2);

/// What only the catalog tells.
enum Open {
    /// What an announcement says.
    Announcement(Asked),
    /// What relations are that sent rows.
    Strangers(Unknown),
}

struct Pump<'a> {
    stream: WalStream,
    assembler: Assembler,
    core: Core,
    live: &'a Arc<Live>,
    state: &'a State,
    /// Reads what a migration did.
    client: Arc<Client>,
    /// The newest commit whose frames are not in the log yet.
    last_commit: Option<Commit>,
    /// What was believed at the last commit that changed it; none once it was told.
    belief: Option<Belief>,
    told: Arc<Believed>,
    report_asked: bool,
    last_report: Instant,
}

/// Pumps until something ends the session.
pub(crate) async fn run(
    stream: WalStream,
    started: Started,
    live: &Arc<Live>,
    sessions: &Sessions,
    stop: &CancellationToken,
) -> Result<(), Ended> {
    let archived = *live.durable().borrow();
    let core = Core::new(
        started.start,
        archived.through,
        archived.mark.offset,
        sessions.limits.max_unshipped_bytes,
    );
    let mut assembler = started.assembler;
    let told = Arc::clone(assembler.believed());
    live.believe(Belief::new(
        Arc::clone(&told),
        assembler.writer().position(),
        started.start,
        live.log.head().offset,
    ));
    let client = Arc::new(started.client);
    let mut pump = Pump {
        stream,
        assembler,
        client: Arc::clone(&client),
        belief: None,
        told,
        core,
        live,
        state: &sessions.state,
        last_commit: None,
        report_asked: true,
        last_report: Instant::now(),
    };
    let at = sessions.endpoint.at(pump.stream.host());
    let (halts, halted) = mpsc::channel(1);
    let _beside = beside(sessions, live, &at, client, halts);
    let ended = pump.run(stop, halted).await;
    match ended {
        Ok(()) => {
            pump.settle().await;
            pump.report(false).await?;
            pump.stream.close().await;
            Ok(())
        }
        // Closing lets go of lock and slot at once, so that another gateway need not wait.
        Err(ended) => {
            pump.stream.close().await;
            Err(ended)
        }
    }
}

/// What runs beside the pump for as long as it does.
fn beside(
    sessions: &Sessions,
    live: &Arc<Live>,
    at: &Endpoint,
    client: Arc<Client>,
    halts: mpsc::Sender<HaltReason>,
) -> Vec<AbortOnDropHandle<()>> {
    let spawn = |task| AbortOnDropHandle::new(task);
    let mut tasks = vec![
        spawn(sessions.runtime.spawn(audit::run(
            sessions.clone(),
            at.clone(),
            Arc::clone(live),
            halts,
        ))),
        spawn(
            sessions
                .runtime
                .spawn(checkpoints::run(sessions.archive.clone(), Arc::clone(live))),
        ),
        spawn(sessions.runtime.spawn(backfill::run(
            sessions.clone(),
            at.clone(),
            Arc::clone(live),
        ))),
    ];
    if sessions.record.posture != Posture::Fencing.word() {
        tasks.push(spawn(tokio::spawn(heart::beat(
            client,
            at.clone(),
            Arc::clone(live),
        ))));
    }
    tasks
}

impl Pump<'_> {
    async fn run(
        &mut self,
        stop: &CancellationToken,
        mut halted: mpsc::Receiver<HaltReason>,
    ) -> Result<(), Ended> {
        let mut durable = self.live.durable();
        let mut timer = tokio::time::interval(REPORT_INTERVAL);
        timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let drained = self.drain_announced(stop).await;
            // What came before a bad message is good: it is archived and served.
            self.hand_on()?;
            drained?;
            if self.report_asked || self.ack_is_due() {
                self.report(false).await?;
            }
            let blocked = self.core.must_stop_reading();
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                Some(reason) = halted.recv() => return Err(Ended::Halt(reason)),
                _ = durable.changed() => {
                    let now = *durable.borrow_and_update();
                    failpoint::reach(failpoint::GATEWAY_ARCHIVED);
                    self.core.archived(now.mark.offset, now.through);
                }
                filled = self.stream.fill(), if !blocked => filled.map_err(ended)?,
                _ = timer.tick() => {
                    // Asking is of use only when we would listen.
                    self.report(!blocked).await?;
                    let rest = self.live.durable().borrow().mark.offset;
                    metrics::gauge!("rindle_gateway_unshipped_bytes")
                        .set(self.live.log.head().offset.saturating_sub(rest) as f64);
                }
            }
        }
    }

    /// Gives the archive a moment to take what was read, so that the last report acknowledges it.
    async fn settle(&mut self) {
        let head = self.live.log.head().offset;
        let mut durable = self.live.durable();
        let archived = durable.wait_for(|durable| durable.mark.offset >= head);
        if let Ok(Ok(now)) = tokio::time::timeout(SETTLE, archived).await {
            self.core.archived(now.mark.offset, now.through);
        }
    }

    /// Takes in what was read, and what its announcements say.
    async fn drain_announced(&mut self, stop: &CancellationToken) -> Result<(), Ended> {
        while let Some(open) = self.drain()? {
            let client = Arc::clone(&self.client);
            let believed = Arc::clone(self.assembler.believed());
            match open {
                Open::Announcement(asked) => {
                    let reading = announce::read(&client, asked, &believed);
                    let Some(row) = self.reporting(reading, stop).await? else {
                        return Ok(());
                    };
                    self.assembler.announced(asked.id, row)?;
                }
                Open::Strangers(unknown) => {
                    // Seldom, and large.
                    let reading = Box::pin(introduce::read(&client, &unknown, &believed));
                    let Some(found) = self.reporting(reading, stop).await? else {
                        return Ok(());
                    };
                    if let Assembled::Committed { end_lsn, commit } =
                        self.assembler.introduced(found)?
                    {
                        self.committed(end_lsn, commit);
                    }
                }
            }
        }
        Ok(())
    }

    /// Tells the server that we are there while the catalog is read; nothing when the session ends.
    async fn reporting<T>(
        &mut self,
        reading: impl Future<Output = Result<T, AnnounceError>>,
        stop: &CancellationToken,
    ) -> Result<Option<T>, Ended> {
        let mut timer = tokio::time::interval(REPORT_INTERVAL);
        tokio::pin!(reading);
        loop {
            tokio::select! {
                () = stop.cancelled() => return Ok(None),
                read = &mut reading => return read.map(Some).map_err(|error| unread(&error)),
                _ = timer.tick() => self.report(false).await?,
            }
        }
    }

    /// Takes in what was read, until too much waits for the archive, or up to something that only the catalog tells.
    fn drain(&mut self) -> Result<Option<Open>, Ended> {
        while !self.core.must_stop_reading() {
            let Some(message) = self.stream.next().map_err(ended)? else {
                return Ok(None);
            };
            match message {
                WalMessage::Data { payload, .. } => {
                    let message =
                        pgoutput::decode(payload).map_err(|error| HaltReason::StreamDamaged {
                            detail: error.to_string(),
                        })?;
                    match self.assembler.take(message)? {
                        Assembled::Quiet => {}
                        Assembled::Announced(asked) => {
                            return Ok(Some(Open::Announcement(asked)));
                        }
                        Assembled::Strange(unknown) => return Ok(Some(Open::Strangers(unknown))),
                        Assembled::Committed { end_lsn, commit } => self.committed(end_lsn, commit),
                    }
                }
                WalMessage::Keepalive { wal_end, reply } => {
                    self.core.keepalive(wal_end, self.assembler.in_txn());
                    self.state.set_source_end(wal_end);
                    self.report_asked |= reply;
                    if reply && self.core.lags() {
                        self.live.hurry();
                    }
                }
            }
            if self.assembler.writer().finished_len() >= APPEND_BYTES {
                self.hand_on()?;
            }
        }
        Ok(None)
    }

    fn committed(&mut self, end_lsn: EndLsn, commit: Option<Commit>) {
        self.core.committed(end_lsn);
        self.last_commit = commit.or(self.last_commit);
        if !Arc::ptr_eq(&self.told, self.assembler.believed()) {
            self.told = Arc::clone(self.assembler.believed());
            let position = self.assembler.writer().position();
            let believed = Arc::clone(&self.told);
            // Where it lies is known once it is handed on.
            self.belief = Some(Belief::new(believed, position, end_lsn.0, u64::MAX));
        }
    }

    /// Finished frames go into the log, and followers are told.
    fn hand_on(&mut self) -> Result<(), Ended> {
        let writer = self.assembler.writer();
        if writer.finished_len() > 0 {
            let end = writer.position();
            let frames = writer.take();
            let commit = self.last_commit.take();
            metrics::counter!("rindle_gateway_frames_bytes_total").increment(frames.len() as u64);
            let mark = self.live.append(&frames, end, commit);
            let mark = mark.map_err(|error| Ended::Retry(format!("local log: {error}")))?;
            failpoint::reach(failpoint::GATEWAY_APPENDED);
            self.core.appended(mark.offset);
        }
        if let Some(belief) = self.belief.take() {
            let offset = self.live.log.head().offset;
            self.live.believe(Belief { offset, ..belief });
        }
        self.live
            .show(&self.live.log.head(), self.core.logged_through());
        Ok(())
    }

    fn ack_is_due(&self) -> bool {
        self.core.can_ack_more() && self.last_report.elapsed() >= ACK_INTERVAL
    }

    async fn report(&mut self, ask: bool) -> Result<(), Ended> {
        let report = self.core.report();
        self.state.set_positions(report.received, report.acked);
        self.report_asked = false;
        self.last_report = Instant::now();
        let sent = self
            .stream
            .status(report.received, report.acked, report.acked, ask)
            .await;
        sent.map_err(ended)
    }
}

/// A stream that breaks is opened again. Up to 17 it never goes past the transaction that dropped its publication, not
/// even when another of that name is made.
#[expect(clippy::needless_pass_by_value, reason = "used with map_err")]
fn ended(error: WalError) -> Ended {
    match error.sqlstate() {
        Some(sqlstate::NOT_FOUND) => Ended::Halt(HaltReason::SchemaRefused {
            object: "the publication".to_owned(),
            detail: format!("it was dropped ({error})"),
        }),
        _ => Ended::Retry(chain(&error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pg::walsender::ServerError;

    #[test]
    fn a_stream_without_its_publication_is_not_tried_again() {
        let failed = |code: &str| {
            let error = ServerError {
                code: code.to_owned(),
                ..ServerError::default()
            };
            ended(WalError::Server(Box::new(error)))
        };
        assert!(matches!(
            failed(sqlstate::NOT_FOUND),
            Ended::Halt(HaltReason::SchemaRefused { .. })
        ));
        assert!(matches!(failed("57P01"), Ended::Retry(_)));
    }
}
