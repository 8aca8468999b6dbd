//! Appending to a log that was taken over: one object at a time, its bytes fixed before the first attempt
//! (rule 12, I2).

use bytes::Bytes;
use rindle_proto::ids::{Epoch, Lsn, Position, SegmentNo, Seq, Timeline};
use ulid::Ulid;

use crate::error::Kind;
use crate::log::Log;
use crate::objects::{Stands, busy, now_ms};
use crate::segment::{
    self, Commit, Flaw, LastCommit, MAX_OBJECT_BYTES, Scan, Sealed, SegmentHeader,
};
use crate::store::StoreError;

/// The only writer of a generation, until it is fenced.
///
/// After [`AppendError::Unavailable`] the object is kept as it is: call [`Writer::retry`] until it stands.
#[derive(Debug)]
pub struct Writer {
    log: Log,
    epoch: Epoch,
    timeline: Timeline,
    /// Last object that stands.
    segment: SegmentNo,
    previous: rindle_proto::ids::Digest,
    position: Position,
    last_commit: Option<LastCommit>,
    /// Of this session only; never inherited (rule 3).
    through_lsn: Option<Lsn>,
    scan: Scan,
    pending: Option<Pending>,
    /// A later session or a conflict ended this writer.
    ended: Option<Ended>,
}

/// What goes into one object.
#[derive(Clone, Debug)]
pub struct NewSegment {
    /// Whole frames; none for a tick.
    pub frames: Bytes,
    /// Number of the first frame: the one after the last append.
    pub first_seq: Seq,
    /// After the last frame; the same as before when there is none.
    pub last: Position,
    /// The last commit among these frames, if any commits.
    pub last_commit: Option<Commit>,
    /// Everything the source committed up to here is in the log with this object (rule 3).
    pub through_lsn: Lsn,
    /// `through_lsn` was raised by a keepalive.
    pub tick: bool,
}

/// An object that stands for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Confirmed {
    /// Its number.
    pub segment: SegmentNo,
    /// Its length.
    pub stored_bytes: u64,
}

/// Why an object does not stand.
#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    /// A later session has the log. This writer is of no use any more.
    #[error("epoch {mine} is fenced by epoch {by} at segment {segment}; close this session")]
    Fenced {
        /// This writer's.
        mine: Epoch,
        /// Who has it.
        by: Epoch,
        /// Where.
        segment: SegmentNo,
    },
    /// Something stands there that no protocol puts there. This writer is of no use any more.
    #[error("{key} holds an object that nobody may have written; keep a copy and report it")]
    Conflict {
        /// Its key.
        key: String,
    },
    /// The store did not answer, or could not write. The bytes are kept: call [`Writer::retry`].
    #[error(transparent)]
    Unavailable(StoreError),
    /// The frames are not the next ones, or not what is said about them.
    #[error("segment {segment} cannot be appended")]
    Invalid {
        /// The number it would have had.
        segment: SegmentNo,
        /// What is wrong.
        #[source]
        what: Flaw,
    },
    /// An append while another one is not confirmed.
    #[error("segment {0} is not confirmed yet; retry it first")]
    Pending(SegmentNo),
    /// A retry without anything to retry.
    #[error("nothing is to be retried")]
    NothingPending,
}

impl AppendError {
    /// What the caller does about it.
    pub fn kind(&self) -> Kind {
        match self {
            AppendError::Fenced { .. } | AppendError::Conflict { .. } => Kind::Halt,
            AppendError::Unavailable(error) => error.kind(),
            AppendError::Invalid { .. } | AppendError::Pending(_) | AppendError::NothingPending => {
                Kind::Bug
            }
        }
    }
}

#[derive(Debug)]
struct Pending {
    sealed: Sealed,
    scan: Scan,
}

#[derive(Clone, Debug)]
enum Ended {
    Fenced { by: Epoch, segment: SegmentNo },
    Conflict { key: String },
}

impl Ended {
    fn error(&self, mine: Epoch) -> AppendError {
        match self {
            Ended::Conflict { key } => AppendError::Conflict { key: key.clone() },
            Ended::Fenced { by, segment } => AppendError::Fenced {
                mine,
                by: *by,
                segment: *segment,
            },
        }
    }
}

impl Writer {
    pub(crate) fn new(log: Log, epoch: Epoch, timeline: Timeline, fence: &Sealed) -> Self {
        let last_commit = fence.header.last_commit;
        Self {
            log,
            epoch,
            timeline,
            segment: fence.header.segment,
            previous: fence.digest,
            position: fence.header.end,
            last_commit,
            through_lsn: None,
            scan: Scan {
                committed: last_commit.is_some(),
                ..Scan::default()
            },
            pending: None,
            ended: None,
        }
    }

    /// The session's epoch.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// After the last frame that stands in the log.
    pub fn position(&self) -> Position {
        self.position
    }

    /// The last commit that stands in the log.
    pub fn last_commit(&self) -> Option<LastCommit> {
        self.last_commit
    }

    /// The last object that stands.
    pub fn segment(&self) -> SegmentNo {
        self.segment
    }

    /// Tells whether [`Writer::retry`] has something to do.
    pub fn is_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// Appends one object. When this future is dropped, the object is either not begun, or kept for
    /// [`Writer::retry`]: see [`Writer::is_pending`].
    ///
    /// # Errors
    /// Why it does not stand; see [`AppendError`].
    pub async fn append(&mut self, new: NewSegment) -> Result<Confirmed, AppendError> {
        self.check_alive()?;
        let segment = self.segment.next();
        if self.pending.is_some() {
            return Err(AppendError::Pending(segment));
        }
        let invalid = |what| AppendError::Invalid { segment, what };
        let header = self.header(&new, segment).map_err(invalid)?;
        let mut scan = Scan {
            last: None,
            ..self.scan
        };
        let sealed = busy(move || {
            let sealed = segment::seal_scanning(header, &new.frames, &mut scan)?;
            let declared = new.last_commit.map(|commit| commit.position);
            match declared == scan.last {
                true => Ok(Pending { sealed, scan }),
                false => Err(Flaw::Commit {
                    told: declared.unwrap_or_default().seq,
                }),
            }
        })
        .await;
        self.pending = Some(sealed.map_err(invalid)?);
        self.put().await
    }

    /// Tries the same object again.
    ///
    /// # Errors
    /// Why it does not stand; see [`AppendError`].
    pub async fn retry(&mut self) -> Result<Confirmed, AppendError> {
        self.check_alive()?;
        self.put().await
    }

    fn check_alive(&self) -> Result<(), AppendError> {
        self.ended
            .as_ref()
            .map_or(Ok(()), |ended| Err(ended.error(self.epoch)))
    }

    fn header(&self, new: &NewSegment, segment: SegmentNo) -> Result<SegmentHeader, Flaw> {
        if new.first_seq != self.position.seq.next() {
            return Err(Flaw::Sequence("its first frame is not the next one"));
        }
        if self
            .through_lsn
            .is_some_and(|through| new.through_lsn < through)
        {
            return Err(Flaw::Sequence("its through_lsn is lower"));
        }
        let frames = new.last.seq.0.checked_sub(self.position.seq.0);
        let frames = frames.and_then(|frames| u32::try_from(frames).ok());
        let own = new
            .last_commit
            .map(|commit| commit.archived(self.timeline, segment));
        Ok(SegmentHeader {
            generation: self.log.generation,
            segment,
            epoch: self.epoch,
            put_id: Ulid::generate(),
            timeline: self.timeline,
            fence: false,
            tick: new.tick,
            seal: false,
            through_lsn: new.through_lsn,
            through_timeline: self.timeline,
            start: self.position,
            end: new.last,
            previous: self.previous,
            frames: frames.ok_or(Flaw::Sequence("its last frame lies before its first"))?,
            last_commit: own.or(self.last_commit),
            raw_bytes: 0,
            body_bytes: 0,
            made_at_ms: now_ms(),
        })
    }

    /// Puts the pending object; on any doubt the store is asked what stands there.
    async fn put(&mut self) -> Result<Confirmed, AppendError> {
        let Some(pending) = &self.pending else {
            return Err(AppendError::NothingPending);
        };
        let segment = pending.sealed.header.segment;
        let key = self.log.keys.segment(segment);
        let stands = self
            .log
            .objects
            .create(&key, &pending.sealed.bytes, MAX_OBJECT_BYTES)
            .await;
        let taken = match stands.map_err(AppendError::Unavailable)? {
            Stands::Mine => return Ok(self.confirm()),
            Stands::Other(taken) => taken,
        };
        let by = segment::open_header(&taken, self.log.generation, segment)
            .ok()
            .map(|header| header.epoch)
            .filter(|by| *by > self.epoch);
        let ended = match by {
            Some(by) => Ended::Fenced { by, segment },
            None => Ended::Conflict {
                key: key.to_string(),
            },
        };
        let error = ended.error(self.epoch);
        self.ended = Some(ended);
        Err(error)
    }

    fn confirm(&mut self) -> Confirmed {
        let pending = self.pending.take().expect("put has a pending object");
        let Sealed {
            header,
            bytes,
            digest,
        } = pending.sealed;
        self.segment = header.segment;
        self.previous = digest;
        self.position = header.end;
        self.last_commit = header.last_commit;
        self.through_lsn = Some(header.through_lsn);
        self.scan = pending.scan;
        self.log.saw(header.segment);
        Confirmed {
            segment: header.segment,
            stored_bytes: bytes.len() as u64,
        }
    }
}
