//! Log to archive: groups what has come into one segment, writes it, and says how far the archive reaches.
//!
//! One write is in flight at a time (protocol rule 12). While one is, more comes together: a write starts when the
//! last one is done and either a full segment waits or the shortest interval has passed, so cost has a ceiling and
//! a quiet source has the latency of one write.

use std::sync::Arc;
use std::time::Duration;

use rindle_archive::failpoint;
use rindle_archive::{AppendError, CommitKind, Confirmed, Kind, NewSegment, Writer};
use rindle_proto::ids::Lsn;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::config::Limits;
use crate::halt::HaltReason;
use crate::live::{Live, Visible};
use crate::log::{Mark, Run};
use crate::session::Ended;
use crate::state::State;

/// A segment is full at this many bytes of frames.
const SEGMENT_BYTES: u64 = 8 << 20;

/// An idle source still moves the acknowledged position this often.
const TICK_INTERVAL: Duration = Duration::from_secs(10);

/// Shortest and longest pause between attempts of one write.
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(5);

/// An archive that takes longer than this to answer is told.
const SLOW: Duration = Duration::from_secs(10);

/// Ships one session.
#[derive(Debug)]
pub struct Ship {
    live: Arc<Live>,
    writer: Writer,
    limits: Limits,
    state: State,
    /// The session's `through_lsn`: only raised, only here (protocol rule 3).
    through: Lsn,
    last_put: Option<Instant>,
}

impl Ship {
    /// Ships what comes into the session's log; `through` is the session's starting value.
    pub fn new(
        live: Arc<Live>,
        writer: Writer,
        limits: Limits,
        state: State,
        through: Lsn,
    ) -> Self {
        Self {
            live,
            writer,
            limits,
            state,
            through,
            last_put: None,
        }
    }

    /// Runs until told to stop, or until the archive refuses this session for good.
    ///
    /// # Errors
    /// Fenced, or an archive object that is not what it must be.
    pub async fn run(mut self, stop: CancellationToken) -> Result<(), Ended> {
        let mut head = self.live.head();
        let mut visible = self.live.visible();
        let mut tick_at = Instant::now() + TICK_INTERVAL;
        loop {
            match self.live.log.next_run(SEGMENT_BYTES) {
                Some(run) => {
                    self.wait_for_turn(&run, &mut head, &stop).await;
                    let Some(run) = self.live.log.next_run(SEGMENT_BYTES) else {
                        continue;
                    };
                    if !self.ship(&run, &stop).await? {
                        return Ok(());
                    }
                    tick_at = Instant::now() + TICK_INTERVAL;
                }
                None if stop.is_cancelled() => return Ok(()),
                None => {
                    tokio::select! {
                        () = stop.cancelled() => {}
                        _ = head.changed() => {}
                        () = self.live.hurried() => tick_at = tick_at.min(self.next_turn()),
                        () = tokio::time::sleep_until(tick_at) => {
                            let seen = *visible.borrow_and_update();
                            if !self.tick(seen, &stop).await? {
                                return Ok(());
                            }
                            tick_at = Instant::now() + TICK_INTERVAL;
                        }
                    }
                }
            }
        }
    }

    /// When the next write may start.
    fn next_turn(&self) -> Instant {
        let next = self
            .last_put
            .map(|last| last + self.limits.min_put_interval);
        next.unwrap_or_else(Instant::now)
    }

    /// Waits until the shortest interval since the last write has passed, or a full segment waits.
    async fn wait_for_turn(
        &self,
        run: &Run,
        head: &mut watch::Receiver<Mark>,
        stop: &CancellationToken,
    ) {
        if self.last_put.is_none() {
            return;
        }
        let full = run.from_offset + SEGMENT_BYTES;
        let full = head.wait_for(|mark| mark.offset >= full || is_copy(mark));
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep_until(self.next_turn()) => {}
            _ = full => {}
        }
    }

    /// Writes one run; false when told to stop first.
    async fn ship(&mut self, run: &Run, stop: &CancellationToken) -> Result<bool, Ended> {
        let frames = self.live.log.read_run(run.from_offset, run.end.offset);
        // The log is a cache: a new session fills it again.
        let frames = frames.map_err(|error| Ended::Retry(format!("local log: {error}")))?;
        let Some(frames) = frames else {
            return Err(archive_damaged(
                &"unarchived frames left the local log; this is a bug",
            ));
        };
        if let Some(commit) = &run.last_commit {
            self.through = self.through.max(commit.end_lsn.0);
        }
        let segment = NewSegment {
            frames,
            first_seq: run.from.seq.next(),
            last: run.end.position,
            last_commit: run.last_commit,
            through_lsn: self.through,
            tick: false,
        };
        if self.put(segment, stop).await?.is_none() {
            return Ok(false);
        }
        self.live
            .archived(run.end, self.through, self.limits.retain_bytes);
        Ok(true)
    }

    /// Moves the acknowledged position of an idle source: everything up to `seen.through` is archived already.
    async fn tick(&mut self, seen: Visible, stop: &CancellationToken) -> Result<bool, Ended> {
        let durable = *self.live.durable().borrow();
        let everything_archived = self.live.head().borrow().offset == durable.mark.offset;
        if !everything_archived
            || seen.offset != durable.mark.offset
            || seen.through <= self.through
        {
            return Ok(true);
        }
        self.through = seen.through;
        let segment = NewSegment {
            frames: bytes::Bytes::new(),
            first_seq: durable.mark.position.seq.next(),
            last: durable.mark.position,
            last_commit: None,
            through_lsn: self.through,
            tick: true,
        };
        if self.put(segment, stop).await?.is_none() {
            return Ok(false);
        }
        self.live
            .archived(durable.mark, self.through, self.limits.retain_bytes);
        Ok(true)
    }

    /// Writes until the archive has the bytes. The bytes stay the same over all attempts.
    async fn put(
        &mut self,
        segment: NewSegment,
        stop: &CancellationToken,
    ) -> Result<Option<Confirmed>, Ended> {
        let started = Instant::now();
        self.last_put = Some(started);
        let mut pause = RETRY_MIN;
        failpoint::reach(failpoint::GATEWAY_PUT);
        let mut outcome = told(&self.state, self.writer.append(segment)).await;
        loop {
            match outcome {
                Ok(confirmed) => {
                    failpoint::reach(failpoint::GATEWAY_STORED);
                    self.state.set_archive_problem(None);
                    metrics::histogram!("rindle_gateway_put_seconds").record(started.elapsed());
                    metrics::counter!("rindle_gateway_archived_bytes_total")
                        .increment(confirmed.stored_bytes);
                    return Ok(Some(confirmed));
                }
                Err(AppendError::Fenced { mine, by, .. }) => {
                    return Err(Ended::Halt(HaltReason::Fenced { mine, newer: by }));
                }
                Err(error) if error.kind() == Kind::Retry => {
                    self.state.set_archive_problem(Some(chain(&error)));
                    metrics::counter!("rindle_gateway_put_failures_total").increment(1);
                }
                Err(error) => return Err(archive_damaged(&chain(&error))),
            }
            tokio::select! {
                () = stop.cancelled() => return Ok(None),
                () = tokio::time::sleep(pause) => {}
            }
            pause = (pause * 2).min(RETRY_MAX);
            outcome = told(&self.state, self.writer.retry()).await;
        }
    }
}

/// Waits for an archive operation and says so when it takes long: a store that hangs reports no error.
pub(crate) async fn told<T>(state: &State, operation: impl Future<Output = T>) -> T {
    let started = Instant::now();
    tokio::pin!(operation);
    loop {
        tokio::select! {
            done = &mut operation => return done,
            () = tokio::time::sleep(SLOW) => {
                let seconds = started.elapsed().as_secs();
                state.set_archive_problem(Some(format!("no answer to a write for {seconds} s")));
            }
        }
    }
}

fn is_copy(mark: &Mark) -> bool {
    mark.last_commit
        .is_some_and(|commit| commit.kind == CommitKind::CopyDone)
}

fn archive_damaged(detail: &dyn std::fmt::Display) -> Ended {
    Ended::Halt(HaltReason::ArchiveDamaged {
        detail: detail.to_string(),
    })
}

/// An error and its causes in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(": ")
}
