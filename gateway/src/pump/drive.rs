//! The only owner of the stream while it runs. One thread reads the socket, decodes, builds frames and appends
//! them to the log; nothing is handed from thread to thread a message at a time.

use std::sync::Arc;
use std::time::Duration;

use rindle_archive::{Commit, failpoint};
use rindle_proto::ids::Lsn;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;

use super::core::Core;
use crate::assemble::{Assembled, Assembler};
use crate::halt::HaltReason;
use crate::live::Live;
use crate::pg::pgoutput;
use crate::pg::walsender::{WalError, WalMessage, WalStream};
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

struct Pump<'a> {
    stream: WalStream,
    assembler: Assembler,
    core: Core,
    live: &'a Arc<Live>,
    state: &'a State,
    /// The newest commit whose frames are not in the log yet.
    last_commit: Option<Commit>,
    source_end: Lsn,
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
    let mut pump = Pump {
        stream,
        assembler: started.assembler,
        core,
        live,
        state: &sessions.state,
        last_commit: None,
        source_end: Lsn(0),
        report_asked: true,
        last_report: Instant::now(),
    };
    let ended = pump.run(stop).await;
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

impl Pump<'_> {
    async fn run(&mut self, stop: &CancellationToken) -> Result<(), Ended> {
        let mut durable = self.live.durable();
        let mut timer = tokio::time::interval(REPORT_INTERVAL);
        timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let drained = self.drain();
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

    /// Takes in what was read, until too much waits for the archive.
    fn drain(&mut self) -> Result<(), Ended> {
        while !self.core.must_stop_reading() {
            let Some(message) = self.stream.next().map_err(ended)? else {
                return Ok(());
            };
            match message {
                WalMessage::Data { payload, .. } => {
                    let message =
                        pgoutput::decode(payload).map_err(|error| HaltReason::StreamDamaged {
                            detail: error.to_string(),
                        })?;
                    if let Assembled::Committed { end_lsn, commit } =
                        self.assembler.take(message)?
                    {
                        self.core.committed(end_lsn);
                        self.last_commit = commit.or(self.last_commit);
                    }
                }
                WalMessage::Keepalive { wal_end, reply } => {
                    self.core.keepalive(wal_end, self.assembler.in_txn());
                    self.source_end = self.source_end.max(wal_end);
                    self.report_asked |= reply;
                }
            }
            if self.assembler.writer().finished_len() >= APPEND_BYTES {
                self.hand_on()?;
            }
        }
        Ok(())
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
        self.live
            .show(&self.live.log.head(), self.core.logged_through());
        Ok(())
    }

    fn ack_is_due(&self) -> bool {
        self.core.can_ack_more() && self.last_report.elapsed() >= ACK_INTERVAL
    }

    async fn report(&mut self, ask: bool) -> Result<(), Ended> {
        let report = self.core.report();
        self.state
            .set_positions(report.received, report.acked, self.source_end);
        self.report_asked = false;
        self.last_report = Instant::now();
        let sent = self
            .stream
            .status(report.received, report.acked, report.acked, ask)
            .await;
        sent.map_err(ended)
    }
}

/// A stream that breaks is opened again.
#[expect(clippy::needless_pass_by_value, reason = "used with map_err")]
fn ended(error: WalError) -> Ended {
    Ended::Retry(chain(&error))
}
