//! The header of a log object. `proto/README.md`, "Segment", has the table.

use rindle_proto::body::PgMicros;
use rindle_proto::codec::Input;
use rindle_proto::error::DecodeError;
use rindle_proto::ids::{
    Digest, EndLsn, Epoch, FinalLsn, Generation, Lsn, Position, SegmentNo, Seq, Timeline,
};
use ulid::Ulid;

use super::commit::{CommitKind, LastCommit};
use super::{MAX_BODY_BYTES, MAX_RAW_BYTES};

/// Bytes of the header.
pub const HEADER_BYTES: usize = 384;

const MAGIC: [u8; 4] = *b"RNDS";
const VERSION: u16 = 1;
const FENCE: u16 = 1;
const TICK: u16 = 2;
const SEAL: u16 = 4;
const ALL_FLAGS: u16 = FENCE | TICK | SEAL;

/// What a log object says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// Its generation.
    pub generation: Generation,
    /// Its number.
    pub segment: SegmentNo,
    /// Session that wrote it.
    pub epoch: Epoch,
    /// Names this attempt at writing it: whose the object is, is read from here.
    pub put_id: Ulid,
    /// Timeline of the server that session streams from.
    pub timeline: Timeline,
    /// A takeover: no frames, and those after the last commit are discarded.
    pub fence: bool,
    /// `through_lsn` was raised by an idle source.
    pub tick: bool,
    /// A fence behind which nothing ever comes: the generation was retired.
    pub seal: bool,
    /// Everything the source committed up to here is in the log.
    pub through_lsn: Lsn,
    /// Timeline of `through_lsn`.
    pub through_timeline: Timeline,
    /// Before its first frame.
    pub start: Position,
    /// After its last frame; after the last commit for a fence.
    pub end: Position,
    /// SHA-256 of the object before it; zeros before the first.
    pub previous: Digest,
    /// Frames in it.
    pub frames: u32,
    /// Last commit at its end; `None` before the first copy is complete.
    pub last_commit: Option<LastCommit>,
    /// Length of its frames.
    pub raw_bytes: u64,
    /// Length of its frames, compressed.
    pub body_bytes: u64,
    /// When it was made, milliseconds since 1970: for people only.
    pub made_at_ms: i64,
}

impl SegmentHeader {
    /// The header's bytes.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = Vec::with_capacity(HEADER_BYTES);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        let fence = if self.fence { FENCE } else { 0 };
        let tick = if self.tick { TICK } else { 0 };
        let seal = if self.seal { SEAL } else { 0 };
        out.extend_from_slice(&(fence | tick | seal).to_le_bytes());
        put_u32(&mut out, HEADER_BYTES as u32);
        put_u32(&mut out, 0);
        out.extend_from_slice(&self.generation.to_bytes());
        out.extend_from_slice(&self.put_id.to_bytes());
        put_u64(&mut out, self.segment.0);
        put_u64(&mut out, self.epoch.0);
        put_u32(&mut out, self.timeline.0);
        put_u32(&mut out, self.through_timeline.0);
        put_u64(&mut out, self.through_lsn.0);
        put_position(&mut out, self.start);
        put_position(&mut out, self.end);
        out.extend_from_slice(&self.previous.0);
        put_u64(&mut out, self.raw_bytes);
        put_u64(&mut out, self.body_bytes);
        put_u64(&mut out, self.made_at_ms as u64);
        put_u32(&mut out, self.frames);
        put_commit(&mut out, self.last_commit);
        let mut bytes = [0; HEADER_BYTES];
        bytes[..out.len()].copy_from_slice(&out);
        let crc = checksum(&bytes);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Reads the header at the start of `bytes`.
    ///
    /// # Errors
    /// When it is cut, of an unknown version, or says what cannot be.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut input = Input::new("segment header", bytes);
        if input.array(CUT)? != MAGIC {
            return Err(Input::new("segment header", bytes).error("the magic RNDS"));
        }
        if input.u16(CUT)? != VERSION {
            return Err(input.error("version 1 before it; a newer reader is needed"));
        }
        let flags = input.u16(CUT)?;
        if flags & !ALL_FLAGS != 0 {
            return Err(input.error("known flags before it; a newer reader is needed"));
        }
        if input.u32(CUT)? as usize != HEADER_BYTES {
            return Err(input.error("a header length of 384 before it"));
        }
        let whole = bytes.get(..HEADER_BYTES).ok_or_else(|| input.error(CUT))?;
        if input.u32(CUT)? != checksum(whole) {
            return Err(input.error("a matching CRC-32 before it"));
        }
        let header = Self {
            fence: flags & FENCE != 0,
            tick: flags & TICK != 0,
            seal: flags & SEAL != 0,
            generation: Generation::from_bytes(input.array(CUT)?),
            put_id: Ulid::from_bytes(input.array(CUT)?),
            segment: SegmentNo(input.u64(CUT)?),
            epoch: Epoch(input.u64(CUT)?),
            timeline: Timeline(input.u32(CUT)?),
            through_timeline: Timeline(input.u32(CUT)?),
            through_lsn: Lsn(input.u64(CUT)?),
            start: take_position(&mut input)?,
            end: take_position(&mut input)?,
            previous: Digest(input.array(CUT)?),
            raw_bytes: input.u64(CUT)?,
            body_bytes: input.u64(CUT)?,
            made_at_ms: input.u64(CUT)? as i64,
            frames: input.u32(CUT)?,
            last_commit: take_commit(&mut input)?,
        };
        match header.flaw() {
            Some(expected) => Err(input.error(expected)),
            None => Ok(header),
        }
    }

    /// Where readers stand after this object when they drop what no commit completed.
    pub fn committed(&self) -> Position {
        let start = Position::start(self.generation);
        self.last_commit.map_or(start, |commit| commit.position)
    }

    /// What the fields say that cannot be, checked when writing and when reading.
    pub(super) fn flaw(&self) -> Option<&'static str> {
        let frames = self.end.seq.0.wrapping_sub(self.start.seq.0);
        let later = self.last_commit.is_some_and(|commit| {
            commit.position.seq > self.end.seq || commit.segment > self.segment
        });
        if self.segment.0 == 0 || self.epoch.0 == 0 {
            Some("a segment number and an epoch from 1")
        } else if self.raw_bytes > MAX_RAW_BYTES || self.body_bytes > MAX_BODY_BYTES {
            Some("lengths within the limits")
        } else if later {
            Some("a last commit that does not lie beyond the end")
        } else if self.fence && (self.frames, self.raw_bytes, self.body_bytes) != (0, 0, 0) {
            Some("a fence without frames")
        } else if self.seal && !self.fence {
            Some("a seal that is a fence")
        } else if self.fence && self.end != self.committed() {
            Some("a fence that ends at the last commit")
        } else if !self.fence && frames != u64::from(self.frames) {
            Some("as many frames as its positions tell")
        } else {
            None
        }
    }
}

const CUT: &str = "384 bytes";

fn checksum(header: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&header[..12]);
    crc.update(&header[16..HEADER_BYTES]);
    crc.finalize()
}

fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn put_position(out: &mut Vec<u8>, position: Position) {
    put_u64(out, position.seq.0);
    out.extend_from_slice(&position.chain.0);
}

fn take_position(input: &mut Input<'_>) -> Result<Position, DecodeError> {
    Ok(Position {
        seq: Seq(input.u64(CUT)?),
        chain: Digest(input.array(CUT)?),
    })
}

/// 0 none, 1 transaction, 2 copy done; then the fields, zeros for none.
fn put_commit(out: &mut Vec<u8>, commit: Option<LastCommit>) {
    let Some(commit) = commit else { return };
    put_u32(
        out,
        match commit.kind {
            CommitKind::Txn => 1,
            CommitKind::CopyDone => 2,
        },
    );
    put_position(out, commit.position);
    put_position(out, commit.before);
    put_u64(out, commit.final_lsn.0.0);
    put_u64(out, commit.end_lsn.0.0);
    put_u64(out, commit.commit_time.0 as u64);
    put_u64(out, commit.segment.0);
    put_u32(out, commit.xid);
    put_u32(out, commit.timeline.0);
}

fn take_commit(input: &mut Input<'_>) -> Result<Option<LastCommit>, DecodeError> {
    let kind = match input.u32(CUT)? {
        0 => return Ok(None),
        1 => CommitKind::Txn,
        2 => CommitKind::CopyDone,
        _ => return Err(input.error("a commit kind of 0 to 2 before it")),
    };
    Ok(Some(LastCommit {
        kind,
        position: take_position(input)?,
        before: take_position(input)?,
        final_lsn: FinalLsn(Lsn(input.u64(CUT)?)),
        end_lsn: EndLsn(Lsn(input.u64(CUT)?)),
        commit_time: PgMicros(input.u64(CUT)? as i64),
        segment: SegmentNo(input.u64(CUT)?),
        xid: input.u32(CUT)?,
        timeline: Timeline(input.u32(CUT)?),
    }))
}
