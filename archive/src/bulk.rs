//! Rows of a copy, beside the log: created once under the attempt's name, listed with their digests by the
//! attempt's CopyDone (rule 19). `proto/README.md`, "Bulk object", is the byte table.

use bytes::Bytes;
use rindle_proto::body::{Attempt, BulkPart, CopyDone, TxnPart};
use rindle_proto::codec::Input;
use rindle_proto::error::DecodeError;
use rindle_proto::frame::{Frame, FrameKind};
use rindle_proto::ids::{Digest, Epoch, Generation};
use rindle_proto::op::{Op, Ops};
use rindle_proto::schema::TableId;
use sha2::{Digest as _, Sha256};

use crate::compress;
use crate::error::Kind;
use crate::log::Log;
use crate::objects::{Stands, busy};
use crate::segment::{MAX_BODY_BYTES, MAX_RAW_BYTES};
use crate::store::StoreError;

/// Bytes before the compressed rows.
pub const HEADER_BYTES: usize = 128;

/// Longest object.
pub const MAX_OBJECT_BYTES: u64 = HEADER_BYTES as u64 + MAX_BODY_BYTES;

const MAGIC: [u8; 4] = *b"RNDB";
const VERSION: u16 = 1;
const CUT: &str = "128 bytes";

/// Why rows were not put or got.
#[derive(Debug, thiserror::Error)]
pub enum BulkError {
    /// The store did not answer. Put the same rows again, or get them later.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Other rows have this name: an attempt's parts are numbered once.
    #[error("{key} holds other rows; begin a new attempt")]
    Exists {
        /// Its key.
        key: String,
    },
    /// A part that its CopyDone lists is not there.
    #[error("{key} is missing; bring it back from a copy or version")]
    Missing {
        /// Its key.
        key: String,
    },
    /// A part is not what its CopyDone lists.
    #[error("{key} is damaged; bring it back from a copy or version")]
    Corrupt {
        /// Its key.
        key: String,
        /// What is wrong with it.
        #[source]
        what: BulkFlaw,
    },
    /// More rows than a part may hold.
    #[error("a part of {bytes} bytes is longer than {MAX_RAW_BYTES}; cut it")]
    TooLong {
        /// Length of the rows.
        bytes: u64,
    },
}

impl BulkError {
    /// What the caller does about it.
    pub fn kind(&self) -> Kind {
        match self {
            BulkError::Store(error) => error.kind(),
            BulkError::Exists { .. } => Kind::Halt,
            BulkError::Missing { .. } | BulkError::Corrupt { .. } => Kind::Corrupt,
            BulkError::TooLong { .. } => Kind::Bug,
        }
    }
}

/// What is wrong with a bulk object.
#[derive(Debug, thiserror::Error)]
pub enum BulkFlaw {
    /// The header does not decode.
    #[error(transparent)]
    Header(DecodeError),
    /// It is another part, or another attempt's.
    #[error("its header differs from the part that is listed")]
    Other,
    /// The rows do not compress or expand to what the header says.
    #[error("its rows are not as long as told, or not valid zstd")]
    Body(#[source] std::io::Error),
    /// The rows are not those that were listed.
    #[error("its rows have another digest than the one listed")]
    Digest,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Header {
    generation: Generation,
    attempt: Attempt,
    number: u32,
    table: TableId,
    rows: u64,
    raw_bytes: u64,
    body_bytes: u64,
    digest: Digest,
}

impl Log {
    /// Puts the rows of one part: concatenated row encodings. On an error of kind `Retry` call it again with the
    /// same rows; a part that stands already is no error.
    ///
    /// # Errors
    /// Why the part does not stand; see [`BulkError`].
    pub async fn put_bulk(
        &self,
        attempt: Attempt,
        number: u32,
        table: TableId,
        rows_count: u64,
        rows: impl Into<Bytes>,
    ) -> Result<BulkPart, BulkError> {
        let rows: Bytes = rows.into();
        if rows.len() as u64 > MAX_RAW_BYTES {
            return Err(BulkError::TooLong {
                bytes: rows.len() as u64,
            });
        }
        let generation = self.generation;
        let key = self.keys.bulk(attempt, number);
        let encoded = busy(move || {
            let digest = Digest(Sha256::digest(&rows).into());
            let raw_bytes = rows.len() as u64;
            let header = Header {
                generation,
                attempt,
                number,
                table,
                rows: rows_count,
                raw_bytes,
                body_bytes: 0,
                digest,
            };
            encode(header, &rows)
        })
        .await;
        let (header, object) = encoded.map_err(|error| StoreError::io("compress", &key, error))?;
        match self.objects.create(&key, &object, MAX_OBJECT_BYTES).await? {
            Stands::Mine => Ok(header.part(object.len() as u64)),
            Stands::Other(_) => Err(BulkError::Exists {
                key: key.to_string(),
            }),
        }
    }

    /// The rows of one part that a CopyDone lists, verified.
    ///
    /// # Errors
    /// Why not; see [`BulkError`].
    pub async fn fetch_bulk(&self, attempt: Attempt, part: &BulkPart) -> Result<Bytes, BulkError> {
        let stored = self.fetch_bulk_stored(attempt, part.number).await?;
        let key = self.keys.bulk(attempt, part.number);
        let (generation, part) = (self.generation, part.clone());
        busy(move || decode(&stored, generation, attempt, &part))
            .await
            .map_err(|what| BulkError::Corrupt {
                key: key.to_string(),
                what,
            })
    }

    /// One part as it is stored, for a follower that verifies it itself with [`decode`].
    ///
    /// # Errors
    /// When it is missing, or of the store.
    pub async fn fetch_bulk_stored(
        &self,
        attempt: Attempt,
        number: u32,
    ) -> Result<Bytes, BulkError> {
        let key = self.keys.bulk(attempt, number);
        let stored = self.objects.0.get(&key, MAX_OBJECT_BYTES).await?;
        stored.ok_or_else(|| BulkError::Missing {
            key: key.to_string(),
        })
    }
}

/// The rows in a stored object, when they are the ones that `part` of `attempt` lists. Keeps a processor busy.
///
/// # Errors
/// What is wrong with it.
pub fn decode(
    stored: &Bytes,
    generation: Generation,
    attempt: Attempt,
    part: &BulkPart,
) -> Result<Bytes, BulkFlaw> {
    let header = Header::decode(stored).map_err(BulkFlaw::Header)?;
    let listed = header.part(stored.len() as u64) == *part;
    let whole = stored.len() as u64 == HEADER_BYTES as u64 + header.body_bytes;
    if !listed || !whole || header.generation != generation || header.attempt != attempt {
        return Err(BulkFlaw::Other);
    }
    let rows = compress::expand(&stored[HEADER_BYTES..], header.raw_bytes as usize);
    let rows = rows.map_err(BulkFlaw::Body)?;
    match Digest(Sha256::digest(&rows).into()) == part.rows_digest {
        true => Ok(rows),
        false => Err(BulkFlaw::Digest),
    }
}

fn encode(mut header: Header, rows: &[u8]) -> std::io::Result<(Header, Bytes)> {
    let object = compress::behind(rows, |body_bytes| {
        header.body_bytes = body_bytes;
        header.encode()
    })?;
    Ok((header, object))
}

impl Header {
    fn part(&self, stored_bytes: u64) -> BulkPart {
        BulkPart {
            number: self.number,
            table: self.table,
            rows: self.rows,
            raw_bytes: self.raw_bytes,
            stored_bytes,
            rows_digest: self.digest,
        }
    }

    fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        bytes[8..12].copy_from_slice(&(HEADER_BYTES as u32).to_le_bytes());
        bytes[16..32].copy_from_slice(&self.generation.to_bytes());
        bytes[32..40].copy_from_slice(&self.attempt.epoch.0.to_le_bytes());
        bytes[40..44].copy_from_slice(&self.attempt.number.to_le_bytes());
        bytes[44..48].copy_from_slice(&self.number.to_le_bytes());
        bytes[48..52].copy_from_slice(&self.table.0.to_le_bytes());
        bytes[56..64].copy_from_slice(&self.rows.to_le_bytes());
        bytes[64..72].copy_from_slice(&self.raw_bytes.to_le_bytes());
        bytes[72..80].copy_from_slice(&self.body_bytes.to_le_bytes());
        bytes[80..112].copy_from_slice(&self.digest.0);
        let crc = checksum(&bytes);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut input = Input::new("bulk header", bytes);
        let whole = bytes.get(..HEADER_BYTES).ok_or_else(|| input.error(CUT))?;
        if input.array(CUT)? != MAGIC {
            return Err(Input::new("bulk header", bytes).error("the magic RNDB"));
        }
        if (input.u16(CUT)?, input.u16(CUT)?) != (VERSION, 0) {
            return Err(input.error("version 1 before it; a newer reader is needed"));
        }
        if input.u32(CUT)? as usize != HEADER_BYTES {
            return Err(input.error("a header length of 128 before it"));
        }
        if input.u32(CUT)? != checksum(whole) {
            return Err(input.error("a matching CRC-32 before it"));
        }
        let generation = Generation::from_bytes(input.array(CUT)?);
        let attempt = Attempt {
            epoch: Epoch(input.u64(CUT)?),
            number: input.u32(CUT)?,
        };
        let number = input.u32(CUT)?;
        let table = TableId(input.u32(CUT)?);
        input.u32(CUT)?;
        let header = Self {
            generation,
            attempt,
            number,
            table,
            rows: input.u64(CUT)?,
            raw_bytes: input.u64(CUT)?,
            body_bytes: input.u64(CUT)?,
            digest: Digest(input.array(CUT)?),
        };
        match header.raw_bytes <= MAX_RAW_BYTES && header.body_bytes <= MAX_BODY_BYTES {
            true => Ok(header),
            false => Err(input.error("lengths within the limits before it")),
        }
    }
}

fn checksum(header: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&header[..12]);
    crc.update(&header[16..HEADER_BYTES]);
    crc.finalize()
}
/// The parts that a frame lists, if it ends a copy.
pub(crate) fn parts_of(frame: &Frame) -> Result<Option<(Attempt, Vec<BulkPart>)>, String> {
    let text = |error: DecodeError| error.to_string();
    match frame.kind {
        FrameKind::CopyBegin => Ok(None),
        FrameKind::CopyDone => {
            let done = CopyDone::decode(&frame.payload).map_err(text)?;
            Ok(Some((done.attempt, done.parts)))
        }
        FrameKind::Txn => {
            let part = TxnPart::decode(frame).map_err(text)?;
            match Ops::new(part.ops).next() {
                Some(Ok(Op::Copied(copied))) => Ok(Some((copied.attempt, copied.parts))),
                Some(Err(error)) => Err(error.to_string()),
                Some(Ok(_)) | None => Ok(None),
            }
        }
    }
}
