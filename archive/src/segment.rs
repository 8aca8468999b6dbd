//! The bytes of one log object: a header, then the frames of one append, compressed. Pure: no store, no clock.
//! `proto/README.md`, "Segment", is the byte table.
//!
//! Both ways check the same things: frames are whole, numbered on, their checksums are right, their chain leads
//! from the header's start to its end, and the last commit is a frame that commits.

mod commit;
mod header;

use bytes::Bytes;
use rindle_proto::error::DecodeError;
use rindle_proto::frame::{self, Frame, FrameKind, FrameReader, MAX_PAYLOAD_BYTES, SeqGap};
use rindle_proto::ids::{Digest, Generation, Position, SegmentNo, Seq};
use sha2::{Digest as _, Sha256};

pub use commit::{Commit, CommitKind, LastCommit};
pub use header::{HEADER_BYTES, SegmentHeader};

use crate::compress;

/// Longest frames of one object: one frame of greatest length and as much as a writer gathers before it.
pub const MAX_RAW_BYTES: u64 = MAX_PAYLOAD_BYTES as u64 + (64 << 20);

/// Longest body: what does not compress grows a little.
pub const MAX_BODY_BYTES: u64 = MAX_RAW_BYTES + (16 << 20);

/// Longest object.
pub const MAX_OBJECT_BYTES: u64 = HEADER_BYTES as u64 + MAX_BODY_BYTES;

/// One log object, verified.
#[derive(Clone, Debug)]
pub struct Segment {
    /// What it says about itself.
    pub header: SegmentHeader,
    /// SHA-256 over the object as stored: what its successor must name.
    pub digest: Digest,
    /// Its frames.
    pub frames: Bytes,
}

/// An object ready to be stored.
#[derive(Clone, Debug)]
pub struct Sealed {
    /// Its header.
    pub header: SegmentHeader,
    /// Its bytes, frozen: every attempt sends these.
    pub bytes: Bytes,
    /// SHA-256 over them.
    pub digest: Digest,
}

/// What is wrong with a log object.
#[derive(Debug, thiserror::Error)]
pub enum Flaw {
    /// The header does not decode.
    #[error(transparent)]
    Header(DecodeError),
    /// The object is that of another generation.
    #[error("it belongs to generation {0}")]
    Generation(Generation),
    /// The object has another number than its name.
    #[error("it has number {0}")]
    Number(SegmentNo),
    /// The object is cut, or has bytes behind its end.
    #[error("it has {found} bytes instead of {expected}")]
    Length {
        /// What the header says.
        expected: u64,
        /// What is there.
        found: u64,
    },
    /// The body does not compress or expand to what the header says.
    #[error("its body is not as long as told, or not valid zstd")]
    Body(#[source] std::io::Error),
    /// A frame does not decode.
    #[error("the frame after {after} is bad")]
    Frame {
        /// The last good one.
        after: Seq,
        /// What is wrong with it.
        #[source]
        source: DecodeError,
    },
    /// A frame is not the next one.
    #[error(transparent)]
    Order(SeqGap),
    /// The last frame is cut.
    #[error("the frame after {0} is cut")]
    Cut(Seq),
    /// The frames do not lead to the header's end.
    #[error("its frames end at {found} instead of {expected}, or with another chain")]
    End {
        /// What the header says.
        expected: Seq,
        /// Where they end.
        found: Seq,
    },
    /// The last commit is not where the header says.
    #[error("its last commit is told to be frame {told}, which does not commit there")]
    Commit {
        /// What the header says.
        told: Seq,
    },
    /// It does not follow the object before it.
    #[error("it does not follow the object before it: {0}")]
    Sequence(&'static str),
    /// The header's fields contradict each other.
    #[error("its header must have {0}")]
    Fields(&'static str),
}

/// Compresses verified `frames` behind their header. The lengths in `header` are filled in.
///
/// # Errors
/// When the frames are not those the header tells: a mistake of the caller.
pub fn seal(header: SegmentHeader, frames: &Bytes) -> Result<Sealed, Flaw> {
    seal_scanning(header, frames, &mut Scan::default())
}

pub(crate) fn seal_scanning(
    mut header: SegmentHeader,
    frames: &Bytes,
    scan: &mut Scan,
) -> Result<Sealed, Flaw> {
    header.raw_bytes = frames.len() as u64;
    if header.raw_bytes > MAX_RAW_BYTES {
        return Err(Flaw::Length {
            expected: MAX_RAW_BYTES,
            found: header.raw_bytes,
        });
    }
    verify(&header, frames, scan)?;
    let object = compress::behind(frames, |body_bytes| {
        header.body_bytes = body_bytes;
        header.encode()
    });
    let object = object.map_err(Flaw::Body)?;
    if let Some(expected) = header.flaw() {
        return Err(Flaw::Fields(expected));
    }
    Ok(Sealed {
        header,
        digest: digest(&object),
        bytes: object,
    })
}

/// Reads and verifies a whole object that has number `segment` in `generation`.
///
/// # Errors
/// What is wrong with it.
pub fn open(stored: &Bytes, generation: Generation, segment: SegmentNo) -> Result<Segment, Flaw> {
    let header = open_header(stored, generation, segment)?;
    let expected = HEADER_BYTES as u64 + header.body_bytes;
    if stored.len() as u64 != expected {
        return Err(Flaw::Length {
            expected,
            found: stored.len() as u64,
        });
    }
    let raw = compress::expand(&stored[HEADER_BYTES..], header.raw_bytes as usize);
    let frames = raw.map_err(Flaw::Body)?;
    verify(&header, &frames, &mut Scan::default())?;
    Ok(Segment {
        header,
        digest: digest(stored),
        frames,
    })
}

/// Reads the header of an object that has number `segment` in `generation`.
///
/// # Errors
/// What is wrong with it.
pub fn open_header(
    start: &[u8],
    generation: Generation,
    segment: SegmentNo,
) -> Result<SegmentHeader, Flaw> {
    let header = SegmentHeader::decode(start).map_err(Flaw::Header)?;
    if header.generation != generation {
        return Err(Flaw::Generation(header.generation));
    }
    match header.segment == segment {
        true => Ok(header),
        false => Err(Flaw::Number(header.segment)),
    }
}

impl Segment {
    /// Tells whether this object may stand after `previous` (`None`: it must be the first).
    ///
    /// # Errors
    /// What does not fit.
    pub fn follows(&self, previous: Option<&Predecessor>) -> Result<(), Flaw> {
        let start = Predecessor::none(self.header.generation);
        let previous = previous.unwrap_or(&start);
        let header = &self.header;
        let inherited = header.last_commit == previous.last_commit;
        let own = header
            .last_commit
            .is_some_and(|commit| commit.segment == header.segment);
        let flaw = if header.previous != previous.digest {
            Some("it names another object as the one before it")
        } else if header.epoch < previous.epoch {
            Some("its epoch is lower")
        } else if header.start != previous.end {
            Some("it starts elsewhere")
        } else if !inherited && (header.fence || !own) {
            Some("its last commit is neither its own nor the one before")
        } else {
            None
        };
        flaw.map_or(Ok(()), |flaw| Err(Flaw::Sequence(flaw)))
    }

    /// What the next object must follow.
    pub fn predecessor(&self) -> Predecessor {
        Predecessor {
            digest: self.digest,
            epoch: self.header.epoch,
            end: self.header.end,
            last_commit: self.header.last_commit,
        }
    }

    /// The frames after number `seq`, and the chain there.
    ///
    /// # Errors
    /// When `seq` does not lie in this object.
    pub fn after(&self, seq: Seq) -> Result<(Bytes, Digest), Flaw> {
        let missing = Flaw::End {
            expected: seq,
            found: self.header.end.seq,
        };
        if seq == self.header.start.seq {
            return Ok((self.frames.clone(), self.header.start.chain));
        }
        let mut found = None;
        let mut offset = 0;
        walk(self.header.start, &self.frames, |at, frame| {
            offset += frame::HEADER_BYTES + frame.payload.len();
            if at.seq == seq {
                found = Some((offset, at.chain));
            }
        })?;
        let (offset, chain) = found.ok_or(missing)?;
        Ok((self.frames.slice(offset..), chain))
    }
}

/// What the object after this one must agree with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Predecessor {
    pub(crate) digest: Digest,
    pub(crate) epoch: rindle_proto::ids::Epoch,
    pub(crate) end: Position,
    pub(crate) last_commit: Option<LastCommit>,
}

impl Predecessor {
    /// Before the first object.
    pub fn none(generation: Generation) -> Self {
        Self {
            digest: Digest::default(),
            epoch: rindle_proto::ids::Epoch(0),
            end: Position::start(generation),
            last_commit: None,
        }
    }
}

fn digest(bytes: &[u8]) -> Digest {
    Digest(Sha256::digest(bytes).into())
}

/// Checks frames against their header.
fn verify(header: &SegmentHeader, frames: &Bytes, scan: &mut Scan) -> Result<(), Flaw> {
    if header.fence {
        return Ok(());
    }
    let told = header
        .last_commit
        .filter(|commit| commit.segment == header.segment);
    let mut stands = told.is_none();
    let end = walk(header.start, frames, |at, frame| {
        stands |= told.is_some_and(|commit| commits_at(&commit, at, frame));
        scan.see(at, frame);
    })?;
    if end != header.end {
        return Err(Flaw::End {
            expected: header.end.seq,
            found: end.seq,
        });
    }
    match told {
        Some(commit) if !stands => Err(Flaw::Commit {
            told: commit.position.seq,
        }),
        _ => Ok(()),
    }
}

fn commits_at(commit: &LastCommit, at: Position, frame: &Frame) -> bool {
    let lsn_is_told = commit.kind == CommitKind::CopyDone || frame.lsn == commit.final_lsn.0;
    let kind_is_told = CommitKind::of(frame.kind) == Some(commit.kind);
    commit.position == at && frame.flags.last && kind_is_told && lsn_is_told
}

/// Follows which frames commit, over the objects of one writer: until the first copy of a generation is done,
/// transactions do not.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Scan {
    /// Something committed before.
    pub(crate) committed: bool,
    /// The first copy has begun and is not done.
    pub(crate) copying: bool,
    /// The last frame that committed.
    pub(crate) last: Option<Position>,
}

impl Scan {
    fn see(&mut self, at: Position, frame: &Frame) {
        match frame.kind {
            FrameKind::CopyBegin => self.copying = !self.committed,
            FrameKind::Txn if self.copying || !frame.flags.last => {}
            FrameKind::Txn | FrameKind::CopyDone => {
                self.copying = false;
                self.committed = true;
                self.last = Some(at);
            }
        }
    }
}

/// Decodes every frame, checks that each is the next one, and gives the position at the end.
fn walk(
    start: Position,
    frames: &Bytes,
    mut visit: impl FnMut(Position, &Frame),
) -> Result<Position, Flaw> {
    let mut reader = FrameReader::new();
    reader.push(frames.clone());
    let mut at = start;
    loop {
        let next = reader.next_frame();
        match next.map_err(|source| Flaw::Frame {
            after: at.seq,
            source,
        })? {
            Some(frame) => {
                at = at.after(&frame).map_err(Flaw::Order)?;
                visit(at, &frame);
            }
            None if reader.is_empty() => return Ok(at),
            None => return Err(Flaw::Cut(at.seq)),
        }
    }
}

#[cfg(test)]
mod tests;
