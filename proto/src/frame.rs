//! Frames: the unit that is numbered, checksummed and chained. The same bytes stand in the local log, in the
//! archive (inside compressed segments) and on the wire (I3). See `proto/README.md`, "Frame".
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 4 | magic `RNDF` |
//! | 4 | 1 | version, 1 |
//! | 5 | 1 | kind: 1 transaction part, 2 copy begin, 3 copy done |
//! | 6 | 1 | flags: 1 first part, 2 last part |
//! | 7 | 1 | zero |
//! | 8 | 4 | payload length |
//! | 12 | 4 | CRC-32 of bytes 0..12, 16..32 and the payload |
//! | 16 | 8 | sequence number |
//! | 24 | 8 | LSN |
//! | 32 | | payload |

use bytes::{Buf, Bytes, BytesMut};
use sha2::{Digest as _, Sha256};

use crate::error::DecodeError;
use crate::ids::{Digest, Generation, Lsn, Position, Seq};

/// Bytes before the payload.
pub const HEADER_BYTES: usize = 32;

/// Longest payload: one value of Postgres' greatest length with room for its row.
pub const MAX_PAYLOAD_BYTES: usize = (1 << 30) + (16 << 20);

/// A transaction part is closed before the operation that would start beyond this many payload bytes.
pub const PART_BYTES: usize = 1 << 20;

const MAGIC: [u8; 4] = *b"RNDF";
const VERSION: u8 = 1;

/// What a frame carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FrameKind {
    /// A part of one source transaction.
    Txn,
    /// A copy begins: what is hidden, attempt, snapshot position.
    CopyBegin,
    /// A copy is complete: its parts and digests.
    CopyDone,
}

/// Which end of its transaction a part is. Copy frames are both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FrameFlags {
    /// The transaction starts here.
    pub first: bool,
    /// The transaction commits here.
    pub last: bool,
}

impl FrameFlags {
    /// A transaction of one part.
    pub const WHOLE: FrameFlags = FrameFlags {
        first: true,
        last: true,
    };

    fn to_byte(self) -> u8 {
        u8::from(self.first) | u8::from(self.last) << 1
    }

    fn from_byte(byte: u8) -> Option<Self> {
        (byte < 4).then_some(Self {
            first: byte & 1 != 0,
            last: byte & 2 != 0,
        })
    }
}

impl FrameKind {
    fn to_byte(self) -> u8 {
        match self {
            FrameKind::Txn => 1,
            FrameKind::CopyBegin => 2,
            FrameKind::CopyDone => 3,
        }
    }

    fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(FrameKind::Txn),
            2 => Some(FrameKind::CopyBegin),
            3 => Some(FrameKind::CopyDone),
            _ => None,
        }
    }
}

/// One decoded frame; its checksum was right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// What it carries.
    pub kind: FrameKind,
    /// Which end of the transaction it is.
    pub flags: FrameFlags,
    /// Its number.
    pub seq: Seq,
    /// `final_lsn` of the transaction, or the snapshot position of a copy.
    pub lsn: Lsn,
    /// The body; see [`crate::body`].
    pub payload: Bytes,
}

impl Position {
    /// Where a reader of nothing stands: the chain is seeded with the generation, so frames of two never mix.
    pub fn start(generation: Generation) -> Self {
        let mut hash = Sha256::new();
        hash.update(b"rindle chain 1\0");
        hash.update(generation.to_bytes());
        Self {
            seq: Seq(0),
            chain: Digest(hash.finalize().into()),
        }
    }

    /// The position after `frame`.
    ///
    /// # Errors
    /// When the frame is not the next one (I5).
    pub fn after(self, frame: &Frame) -> Result<Self, SeqGap> {
        if frame.seq != self.seq.next() {
            return Err(SeqGap {
                expected: self.seq.next(),
                found: frame.seq,
            });
        }
        let len = frame.payload.len() as u32;
        Ok(Self {
            seq: frame.seq,
            chain: link(
                self.chain,
                frame.seq,
                frame.lsn,
                frame.kind,
                frame.flags,
                len,
                &frame.payload,
            ),
        })
    }
}

/// A frame that is not the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected frame {expected}, found frame {found}")]
pub struct SeqGap {
    /// The number that had to come.
    pub expected: Seq,
    /// The number that came.
    pub found: Seq,
}

/// `chain(n) = SHA-256(chain(n-1) ‖ seq ‖ lsn ‖ kind ‖ flags ‖ length ‖ payload)`: no epoch, clock or batching.
fn link(
    chain: Digest,
    seq: Seq,
    lsn: Lsn,
    kind: FrameKind,
    flags: FrameFlags,
    len: u32,
    payload: &[u8],
) -> Digest {
    let mut head = [0u8; 32 + 22];
    head[..32].copy_from_slice(&chain.0);
    head[32..40].copy_from_slice(&seq.0.to_le_bytes());
    head[40..48].copy_from_slice(&lsn.0.to_le_bytes());
    head[48] = kind.to_byte();
    head[49] = flags.to_byte();
    head[50..54].copy_from_slice(&len.to_le_bytes());
    let mut hash = Sha256::new();
    hash.update(head);
    hash.update(payload);
    Digest(hash.finalize().into())
}

/// Encodes frames one after the other into one buffer, in place: a payload is never copied.
#[derive(Debug)]
pub struct FrameWriter {
    buffer: Vec<u8>,
    /// Start of the frame that is open.
    open_at: Option<usize>,
    position: Position,
}

impl FrameWriter {
    /// Writes the frames after `position`.
    pub fn new(position: Position) -> Self {
        Self {
            buffer: Vec::new(),
            open_at: None,
            position,
        }
    }

    /// Position of the last finished frame.
    pub fn position(&self) -> Position {
        self.position
    }

    /// Opens a frame and gives the buffer to append its payload to (only append).
    ///
    /// # Panics
    /// When a frame is open already.
    pub fn open(&mut self) -> &mut Vec<u8> {
        assert!(self.open_at.is_none(), "one frame is open at a time");
        self.open_at = Some(self.buffer.len());
        self.buffer.resize(self.buffer.len() + HEADER_BYTES, 0);
        &mut self.buffer
    }

    /// The buffer of the open frame, if one is open: append only.
    pub fn payload(&mut self) -> Option<&mut Vec<u8>> {
        self.open_at.is_some().then_some(&mut self.buffer)
    }

    /// Payload bytes of the open frame so far; 0 when none is open.
    pub fn payload_len(&self) -> usize {
        self.open_at
            .map_or(0, |at| self.buffer.len() - at - HEADER_BYTES)
    }

    /// Finishes the open frame.
    ///
    /// # Errors
    /// When its payload is longer than [`MAX_PAYLOAD_BYTES`].
    ///
    /// # Panics
    /// When none is open.
    pub fn finish(
        &mut self,
        kind: FrameKind,
        flags: FrameFlags,
        lsn: Lsn,
    ) -> Result<Position, TooLong> {
        self.finish_within(MAX_PAYLOAD_BYTES, kind, flags, lsn)
    }

    fn finish_within(
        &mut self,
        most_bytes: usize,
        kind: FrameKind,
        flags: FrameFlags,
        lsn: Lsn,
    ) -> Result<Position, TooLong> {
        let at = self.open_at.take().expect("a frame is open");
        let len = self.buffer.len() - at - HEADER_BYTES;
        if len > most_bytes {
            // What is left must hold finished frames alone: they are still good.
            self.buffer.truncate(at);
            return Err(TooLong { bytes: len });
        }
        let seq = self.position.seq.next();
        let (header, payload) = self.buffer[at..].split_at_mut(HEADER_BYTES);
        header[..4].copy_from_slice(&MAGIC);
        header[4] = VERSION;
        header[5] = kind.to_byte();
        header[6] = flags.to_byte();
        header[8..12].copy_from_slice(&(len as u32).to_le_bytes());
        header[16..24].copy_from_slice(&seq.0.to_le_bytes());
        header[24..32].copy_from_slice(&lsn.0.to_le_bytes());
        let crc = checksum(header, payload);
        header[12..16].copy_from_slice(&crc.to_le_bytes());
        let chain = link(
            self.position.chain,
            seq,
            lsn,
            kind,
            flags,
            len as u32,
            payload,
        );
        self.position = Position { seq, chain };
        Ok(self.position)
    }

    /// Bytes of finished frames not yet taken.
    pub fn finished_len(&self) -> usize {
        self.open_at.unwrap_or(self.buffer.len())
    }

    /// Takes the finished frames out; an open one stays.
    pub fn take(&mut self) -> Vec<u8> {
        let rest = self.buffer.split_off(self.finished_len());
        if let Some(at) = &mut self.open_at {
            *at = 0;
        }
        std::mem::replace(&mut self.buffer, rest)
    }
}

/// A frame whose payload is longer than a reader would accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a frame of {bytes} bytes is longer than the format allows ({MAX_PAYLOAD_BYTES})")]
pub struct TooLong {
    /// Length of the payload.
    pub bytes: usize,
}

fn checksum(header: &[u8], payload: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&header[..12]);
    crc.update(&header[16..HEADER_BYTES]);
    crc.update(payload);
    crc.finalize()
}

/// Cuts a stream of bytes, given in pieces of any size, into frames.
#[derive(Debug, Default)]
pub struct FrameReader {
    buffer: BytesMut,
    /// A piece that is still whole; most pieces hold whole frames and are never copied.
    piece: Bytes,
}

impl FrameReader {
    /// A reader that was given nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Gives the next piece of the stream.
    pub fn push(&mut self, piece: Bytes) {
        if self.buffer.is_empty() && self.piece.is_empty() {
            self.piece = piece;
            return;
        }
        let rest = std::mem::take(&mut self.piece);
        self.buffer.extend_from_slice(&rest);
        self.buffer.extend_from_slice(&piece);
    }

    /// True when no part of a frame is waiting.
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty() && self.piece.is_empty()
    }

    /// The next whole frame, or `None` when more bytes are needed.
    ///
    /// # Errors
    /// When the bytes are not a frame. The reader is of no use afterwards.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, DecodeError> {
        let waiting: &[u8] = if self.buffer.is_empty() {
            &self.piece
        } else {
            &self.buffer
        };
        let Some(header) = waiting.get(..HEADER_BYTES) else {
            return Ok(None);
        };
        let header = Header::decode(header)?;
        let len = HEADER_BYTES + header.payload_len;
        if waiting.len() < len {
            self.reserve(len);
            return Ok(None);
        }
        let mut bytes = match self.buffer.is_empty() {
            true => self.piece.split_to(len),
            false => self.buffer.split_to(len).freeze(),
        };
        if checksum(&bytes[..HEADER_BYTES], &bytes[HEADER_BYTES..]) != header.crc {
            return Err(DecodeError::new("frame", 12, "a matching CRC-32"));
        }
        bytes.advance(HEADER_BYTES);
        Ok(Some(header.with(bytes)))
    }

    /// A long frame grows the buffer once; what is reserved is bounded by the header's checked length, and
    /// grows only as bytes really come.
    fn reserve(&mut self, len: usize) {
        if self.buffer.is_empty() {
            let piece = std::mem::take(&mut self.piece);
            self.buffer.extend_from_slice(&piece);
        }
        let missing = len.saturating_sub(self.buffer.len());
        self.buffer
            .reserve(missing.min(self.buffer.len().max(64 << 10)));
    }
}

struct Header {
    kind: FrameKind,
    flags: FrameFlags,
    payload_len: usize,
    crc: u32,
    seq: Seq,
    lsn: Lsn,
}

impl Header {
    fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut input = crate::codec::Input::new("frame header", bytes);
        if input.array::<4>("32 bytes")? != MAGIC {
            return Err(DecodeError::new("frame header", 0, "the magic RNDF"));
        }
        if input.u8("32 bytes")? != VERSION {
            return Err(DecodeError::new(
                "frame header",
                4,
                "version 1; a newer reader is needed",
            ));
        }
        let kind = FrameKind::from_byte(input.u8("32 bytes")?);
        let flags = FrameFlags::from_byte(input.u8("32 bytes")?);
        if input.u8("32 bytes")? != 0 {
            return Err(DecodeError::new("frame header", 7, "a zero byte"));
        }
        let payload_len = input.u32("32 bytes")? as usize;
        if payload_len > MAX_PAYLOAD_BYTES {
            return Err(DecodeError::new(
                "frame header",
                8,
                "a payload length within the limit",
            ));
        }
        Ok(Self {
            kind: kind
                .ok_or_else(|| DecodeError::new("frame header", 5, "a frame kind of 1 to 3"))?,
            flags: flags.ok_or_else(|| DecodeError::new("frame header", 6, "flags of 0 to 3"))?,
            payload_len,
            crc: input.u32("32 bytes")?,
            seq: Seq(input.u64("32 bytes")?),
            lsn: Lsn(input.u64("32 bytes")?),
        })
    }

    fn with(self, payload: Bytes) -> Frame {
        Frame {
            kind: self.kind,
            flags: self.flags,
            seq: self.seq,
            lsn: self.lsn,
            payload,
        }
    }
}

#[cfg(test)]
mod tests;
