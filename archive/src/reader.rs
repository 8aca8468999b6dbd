//! Frames in order, each object verified against the one before it (rule 18, I5).
//!
//! The next object is fetched and verified while the caller works on the last one. A fence shows as
//! [`ReadStep::Discard`] only when frames were given that it discards.

mod error;
mod seek;

use bytes::Bytes;
use rindle_proto::ids::{Epoch, Lsn, Position, SegmentNo};
use tokio::task::JoinHandle;

use crate::log::Log;
use crate::segment::{LastCommit, Predecessor, Segment};

pub use error::ReadError;

/// A listing, which would show a hole, is made at the first look beyond the head and then each so many.
const LOOKS_A_LISTING: u32 = 64;

/// Where to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadFrom {
    /// At the first frame of the generation.
    Start,
    /// After the last commit that the caller applied.
    Position {
        /// That commit.
        position: Position,
    },
    /// After an image's base (rule 20).
    Image {
        /// Object that holds the base's commit.
        segment: SegmentNo,
        /// The base.
        position: Position,
    },
}

/// What comes next.
#[derive(Clone, Debug)]
pub enum ReadStep {
    /// Frames after all those given before.
    Frames {
        /// Whole frames.
        bytes: Bytes,
        /// Object that holds them.
        segment: SegmentNo,
        /// Session that wrote them; to be kept with the cursor (rule 16).
        epoch: Epoch,
        /// After the last of them.
        end: Position,
        /// The last commit among them, or in the log before them.
        last_commit: Option<LastCommit>,
        /// Everything the source committed up to here is in the log up to these frames.
        through_lsn: Lsn,
    },
    /// Drop every frame after `to` that was given: its transaction, or the first copy, was cut off. Their
    /// numbers come again.
    Discard {
        /// The last commit, or the start: then the mirror is empty again.
        to: Position,
        /// Session that cut them off.
        epoch: Epoch,
    },
    /// The source was idle.
    Tick {
        /// Everything the source committed up to here was given.
        through_lsn: Lsn,
        /// Session that wrote it.
        epoch: Epoch,
    },
    /// Nothing more for now; ask again later.
    End,
}

/// Reads a log. After an error it is of no use, except after one of kind `Retry`.
#[derive(Debug)]
pub struct Reader {
    log: Log,
    state: State,
    /// The object after the next one to give, being fetched.
    ahead: Option<Ahead>,
    /// Looks beyond the head since something was there.
    looks: u32,
}

#[derive(Debug)]
enum State {
    /// Nothing was looked up yet.
    Begin(ReadFrom),
    /// Standing in a log.
    At(Cursor),
}

#[derive(Clone, Debug)]
struct Cursor {
    /// Object to take next.
    next: SegmentNo,
    /// What it must follow; unknown before the first object that is read.
    before: Option<Predecessor>,
    /// The last frame the caller has.
    given: Position,
}

#[derive(Debug)]
struct Ahead {
    segment: SegmentNo,
    task: JoinHandle<Result<Option<Segment>, ReadError>>,
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Reader {
    pub(crate) fn new(log: Log, from: ReadFrom) -> Self {
        Self {
            log,
            state: State::Begin(from),
            ahead: None,
            looks: 0,
        }
    }

    /// The last frame that was given; where the reader began before the first.
    pub fn position(&self) -> Position {
        match &self.state {
            State::At(cursor) => cursor.given,
            State::Begin(ReadFrom::Start) => Position::start(self.log.generation),
            State::Begin(ReadFrom::Position { position } | ReadFrom::Image { position, .. }) => {
                *position
            }
        }
    }

    /// The next step. Dropping the future loses nothing.
    ///
    /// # Errors
    /// Why there is none; see [`ReadError`].
    pub async fn next(&mut self) -> Result<ReadStep, ReadError> {
        let mut cursor = match &self.state {
            State::At(cursor) => cursor.clone(),
            State::Begin(from) => self.log.seek(*from).await?,
        };
        loop {
            let object = self.fetch(cursor.next).await?;
            // Rule 18: the boundary is read after the object, or a stray one below it would be taken.
            let boundary = self.log.boundary().await?;
            if cursor.next <= boundary {
                return Err(ReadError::Trimmed {
                    segment: cursor.next,
                    boundary,
                });
            }
            let Some(object) = object else {
                self.state = State::At(cursor);
                return self.beyond_head().await;
            };
            self.looks = 0;
            let step = cursor.take(&object).map_err(|what| match what {
                Refused::Flaw(what) => ReadError::Corrupt {
                    key: self.log.keys.segment(object.header.segment).to_string(),
                    what,
                },
                Refused::ChainDiffers(seq) => ReadError::ChainDiffers { seq },
            })?;
            self.state = State::At(cursor.clone());
            self.fetch_ahead(cursor.next);
            if let Some(step) = step {
                return Ok(step);
            }
        }
    }

    async fn fetch(&mut self, segment: SegmentNo) -> Result<Option<Segment>, ReadError> {
        if let Some(mut ahead) = self.ahead.take().filter(|ahead| ahead.segment == segment)
            && let Ok(Ok(Some(object))) = (&mut ahead.task).await
        {
            return Ok(Some(object));
        }
        self.log.segment(segment).await
    }

    fn fetch_ahead(&mut self, segment: SegmentNo) {
        let log = self.log.clone();
        let task = tokio::spawn(async move { log.segment(segment).await });
        self.ahead = Some(Ahead { segment, task });
    }

    /// Nothing has the next number: the end, unless a listing shows an object behind it.
    async fn beyond_head(&mut self) -> Result<ReadStep, ReadError> {
        let State::At(cursor) = &self.state else {
            return Ok(ReadStep::End);
        };
        let look = self.looks;
        self.looks = look.wrapping_add(1);
        if !look.is_multiple_of(LOOKS_A_LISTING) {
            return Ok(ReadStep::End);
        }
        let listed = self.log.listed_after(cursor.next).await?;
        // Written in between, most likely; only if the next one still is absent is there a hole.
        match listed.is_some() && self.log.header(cursor.next).await?.is_none() {
            true => Err(self.log.absent(cursor.next).await?),
            false => Ok(ReadStep::End),
        }
    }
}

enum Refused {
    Flaw(crate::segment::Flaw),
    ChainDiffers(rindle_proto::ids::Seq),
}

impl From<crate::segment::Flaw> for Refused {
    fn from(flaw: crate::segment::Flaw) -> Self {
        Refused::Flaw(flaw)
    }
}

impl Cursor {
    /// Moves over one object.
    fn take(&mut self, object: &Segment) -> Result<Option<ReadStep>, Refused> {
        let header = &object.header;
        match &self.before {
            Some(before) => object.follows(Some(before))?,
            None if header.segment.0 == 1 => object.follows(None)?,
            // The first object that is read is trusted for what is before it; the caller's chain decides.
            None => {}
        }
        let step = match header.fence {
            true => self.take_fence(object)?,
            false => self.take_frames(object)?,
        };
        self.before = Some(object.predecessor());
        self.next = self.next.next();
        Ok(step)
    }

    fn take_fence(&mut self, object: &Segment) -> Result<Option<ReadStep>, Refused> {
        let to = object.header.end;
        if self.before.is_none() && self.given != to && object.header.segment.0 > 1 {
            return Err(Refused::ChainDiffers(self.given.seq));
        }
        if self.given == to {
            return Ok(None);
        }
        self.given = to;
        Ok(Some(ReadStep::Discard {
            to,
            epoch: object.header.epoch,
        }))
    }

    fn take_frames(&mut self, object: &Segment) -> Result<Option<ReadStep>, Refused> {
        let header = &object.header;
        let bytes = match self.given.seq > header.start.seq {
            // Only the first object can hold frames that the caller has.
            true if self.given.seq <= header.end.seq => {
                let (bytes, chain) = object.after(self.given.seq)?;
                if chain != self.given.chain {
                    return Err(Refused::ChainDiffers(self.given.seq));
                }
                bytes
            }
            true => return Err(Refused::ChainDiffers(self.given.seq)),
            false if self.given == header.start => object.frames.clone(),
            false => return Err(Refused::ChainDiffers(self.given.seq)),
        };
        let (through_lsn, epoch) = (header.through_lsn, header.epoch);
        if bytes.is_empty() {
            return Ok(header.tick.then_some(ReadStep::Tick { through_lsn, epoch }));
        }
        self.given = header.end;
        Ok(Some(ReadStep::Frames {
            bytes,
            segment: header.segment,
            epoch,
            end: header.end,
            last_commit: header.last_commit,
            through_lsn,
        }))
    }
}
