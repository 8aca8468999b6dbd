//! The log of a generation into a mirror, up to a point. Runs on a thread of its own, since SQLite blocks.

use std::time::{Duration, Instant};

use bytes::Bytes;
use rindle_archive::{Kind, Log, ReadError, ReadFrom, ReadStep, Reader};
use rindle_follower::mirror::{Mirror, loads_parts};
use rindle_proto::frame::{Frame, FrameKind, FrameReader};
use rindle_proto::ids::{EndLsn, Epoch, Lsn, Position, SegmentNo, Seq};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use crate::bulk::{BulkAhead, NoBulk};
use crate::error::ProducerError;
use crate::progress::{Progress, Step, Watch};

/// Source transactions share a SQLite commit up to this many operations and bytes.
const GROUP_OPS: u64 = 50_000;
const GROUP_BYTES: u64 = 32 << 20;

/// Attempts at a read that the store did not answer, and the pause before the first of them.
const ATTEMPTS: u32 = 6;
const RETRY_MIN: Duration = Duration::from_millis(200);

/// How often the end of the log is looked at while more is expected.
const POLL: Duration = Duration::from_millis(200);

/// How far to replay.
#[derive(Clone, Copy, Debug)]
pub enum Until {
    /// To the end of the log as it was read at the start. The chain counts too: a fence gives numbers again.
    End(Position),
    /// To before the transaction whose first frame this is.
    Before(Seq),
    /// To the state that a snapshot of the source at this position shows: a transaction is in it exactly when its
    /// `final_lsn` is below (strict).
    Snapshot {
        /// The position.
        lsn: Lsn,
        /// When to give up waiting for the archive.
        deadline: Instant,
    },
}

/// What replaying needs besides the mirror.
#[derive(Clone, Debug)]
pub struct Replay {
    /// The log.
    pub log: Log,
    /// Where asynchronous work runs. The caller must not be one of its worker threads.
    pub runtime: Handle,
    /// Ends it between two frames.
    pub stop: CancellationToken,
    /// Who is told.
    pub watch: Watch,
    /// Last log object that is expected, for progress; 0 when unknown.
    pub last_segment: SegmentNo,
}

/// What was replayed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Bytes of frames and bulk parts.
    pub bytes: u64,
    /// Operations applied and rows loaded.
    pub rows: u64,
}

/// Applies the log to the mirror from `from` on, and leaves the mirror at its last whole transaction.
///
/// # Errors
/// See [`ProducerError`]. The mirror then stands at a commit.
pub fn replay(
    replay: &Replay,
    mirror: &mut Mirror,
    from: ReadFrom,
    until: Until,
) -> Result<Replayed, ProducerError> {
    let mut run = Run {
        replay,
        mirror,
        until,
        done: Replayed::default(),
        segment: SegmentNo(0),
    };
    let mut reader = replay.log.reader(from);
    let result = run.run(&mut reader);
    // What is incomplete at the end is not part of what was asked for; after an error it comes again.
    let discarded = run.mirror.discard();
    result?;
    discarded?;
    Ok(run.done)
}

struct Run<'a> {
    replay: &'a Replay,
    mirror: &'a mut Mirror,
    until: Until,
    done: Replayed,
    /// Log object that the frames came from.
    segment: SegmentNo,
}

impl Run<'_> {
    fn run(&mut self, reader: &mut Reader) -> Result<(), ProducerError> {
        self.check_not_ahead()?;
        while !self.reached(reader.position()) {
            match self.step(reader)? {
                ReadStep::Frames {
                    bytes,
                    segment,
                    epoch,
                    through_lsn,
                    ..
                } => {
                    self.segment = segment;
                    if self.frames(bytes, epoch)? || self.is_through(through_lsn) {
                        return Ok(());
                    }
                    self.tell();
                }
                ReadStep::Discard { to, epoch } => self.discard(to, epoch)?,
                ReadStep::Tick { through_lsn, epoch } => {
                    self.mirror.note_epoch(epoch)?;
                    if self.is_through(through_lsn) {
                        return Ok(());
                    }
                }
                ReadStep::End => match self.until {
                    Until::End(_) | Until::Before(_) => return Ok(()),
                    Until::Snapshot { lsn, deadline } if Instant::now() >= deadline => {
                        return Err(ProducerError::NotReached { wanted: lsn });
                    }
                    Until::Snapshot { .. } => self.wait(tokio::time::sleep(POLL))?,
                },
            }
        }
        Ok(())
    }

    /// A mirror that holds a transaction of after the snapshot cannot show it.
    fn check_not_ahead(&self) -> Result<(), ProducerError> {
        let at = self
            .mirror
            .cursor()
            .map_or(Lsn(0), |cursor| cursor.end_lsn.0);
        match self.until {
            // `end_lsn <= snapshot` is `final_lsn < snapshot`: the snapshot lies between two records.
            Until::Snapshot { lsn, .. } if EndLsn(at) > EndLsn(lsn) => {
                Err(ProducerError::Ahead { at, wanted: lsn })
            }
            Until::Snapshot { .. } | Until::Before(_) | Until::End(_) => Ok(()),
        }
    }

    fn reached(&self, position: Position) -> bool {
        matches!(self.until, Until::End(end) if position == end)
    }

    /// Everything that is below the snapshot was given.
    fn is_through(&self, through: Lsn) -> bool {
        matches!(self.until, Until::Snapshot { lsn, .. } if through >= lsn)
    }

    /// Applies whole frames. True when the first transaction that is not wanted came.
    fn frames(&mut self, bytes: Bytes, epoch: Epoch) -> Result<bool, ProducerError> {
        self.done.bytes += bytes.len() as u64;
        let mut frames = FrameReader::new();
        frames.push(bytes);
        while let Some(frame) = frames.next_frame()? {
            if self.replay.stop.is_cancelled() {
                return Err(ProducerError::Stopped);
            }
            if self.is_beyond(&frame) {
                return Ok(true);
            }
            let applied = self.apply(&frame)?;
            if applied {
                // Of the object that holds the last commit: a reader of an image begins there (rule 20).
                self.mirror.note_segment(self.segment)?;
                self.mirror.note_epoch(epoch)?;
            }
            let pending = self.mirror.pending();
            if pending.ops >= GROUP_OPS || pending.bytes >= GROUP_BYTES {
                self.mirror.commit()?;
            }
        }
        Ok(false)
    }

    fn is_beyond(&self, frame: &Frame) -> bool {
        let first = frame.kind == FrameKind::Txn && frame.flags.first;
        match self.until {
            // A frame's LSN is its transaction's `final_lsn`; `>=`: one that commits exactly at the snapshot is not in it.
            Until::Snapshot { lsn, .. } => first && frame.lsn >= lsn,
            Until::Before(seq) => first && frame.seq >= seq,
            Until::End(_) => false,
        }
    }

    /// True when a transaction or copy is complete with this frame.
    fn apply(&mut self, frame: &Frame) -> Result<bool, ProducerError> {
        if !loads_parts(frame) {
            let applied = self.mirror.apply(frame, &mut NoBulk)?;
            self.done.rows += applied.ops;
            return Ok(applied.committed_txn);
        }
        let (replay, segment, mut done) = (self.replay, self.segment, self.done);
        let mut told = |part: &rindle_proto::body::BulkPart| {
            done.bytes += part.raw_bytes;
            done.rows += part.rows;
            tell(replay, segment, done);
        };
        let (log, runtime) = (replay.log.clone(), replay.runtime.clone());
        let mut bulk = BulkAhead::new(log, runtime, &mut told);
        let applied = self.mirror.apply(frame, &mut bulk)?;
        drop(bulk);
        self.done = done;
        Ok(applied.committed_txn)
    }

    fn discard(&mut self, to: Position, epoch: Epoch) -> Result<(), ProducerError> {
        self.mirror.discard()?;
        let at = self.mirror.position();
        if at != Some(to) {
            let at = at.map_or_else(|| "nothing".to_owned(), |at| format!("frame {}", at.seq));
            return Err(ProducerError::Discard { to, at });
        }
        self.mirror.note_epoch(epoch)?;
        Ok(())
    }

    /// The next step; a store that does not answer is asked again.
    fn step(&self, reader: &mut Reader) -> Result<ReadStep, ProducerError> {
        let mut pause = RETRY_MIN;
        for _ in 1..ATTEMPTS {
            match self.wait(reader.next())? {
                // The mirror came from a follower, who may be ahead of the archive.
                Err(ReadError::NotYet { .. }) if self.may_wait() => return Ok(ReadStep::End),
                Err(error)
                    if error.kind() == Kind::Retry
                        && !matches!(error, ReadError::NotYet { .. }) =>
                {
                    tracing::warn!(%error, "the archive does not answer; asking again");
                    self.wait(tokio::time::sleep(pause))?;
                    pause *= 2;
                }
                step => return Ok(step?),
            }
        }
        Ok(self.wait(reader.next())??)
    }

    fn may_wait(&self) -> bool {
        matches!(self.until, Until::Snapshot { .. })
    }

    fn wait<T>(&self, work: impl Future<Output = T>) -> Result<T, ProducerError> {
        wait(&self.replay.runtime, &self.replay.stop, work)
    }

    fn tell(&self) {
        tell(self.replay, self.segment, self.done);
    }
}

fn tell(replay: &Replay, segment: SegmentNo, done: Replayed) {
    replay.watch.tell(Progress {
        step: Step::Replaying,
        done: segment.0,
        total: replay.last_segment.0,
        bytes: done.bytes,
        rows: done.rows,
    });
}

/// Waits for asynchronous work on a thread that may block, or until told to stop.
pub(crate) fn wait<T>(
    runtime: &Handle,
    stop: &CancellationToken,
    work: impl Future<Output = T>,
) -> Result<T, ProducerError> {
    runtime.block_on(async {
        tokio::select! {
            biased;
            () = stop.cancelled() => Err(ProducerError::Stopped),
            done = work => Ok(done),
        }
    })
}
