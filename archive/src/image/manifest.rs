//! The record that makes an image exist.

use rindle_proto::ids::{Digest, EndLsn, Epoch, Generation, Position, SegmentNo, Seq};
use serde::{Deserialize, Serialize};

use super::{ImageBase, ImageInfo, SLICE_BYTES, TableRows};

const FORMAT: u32 = 1;

/// Content of `manifest.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Manifest {
    format: u32,
    generation: Generation,
    segment: SegmentNo,
    seq: Seq,
    chain: Digest,
    epoch: Epoch,
    end_lsn: EndLsn,
    tables: Vec<TableRows>,
    file_bytes: u64,
    slice_bytes: u64,
    parts: Vec<Part>,
    created_at_ms: i64,
}

/// One slice of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Part {
    /// From 0.
    pub(super) number: u32,
    /// Length of the slice.
    pub(super) bytes: u64,
    /// Length of its object.
    pub(super) stored_bytes: u64,
    /// SHA-256 of the slice.
    pub(super) sha256: Digest,
}

impl Manifest {
    pub(super) fn new(
        generation: Generation,
        base: ImageBase,
        parts: Vec<Part>,
        created_at_ms: i64,
    ) -> Self {
        Self {
            format: FORMAT,
            generation,
            segment: base.segment,
            seq: base.position.seq,
            chain: base.position.chain,
            epoch: base.epoch,
            end_lsn: base.end_lsn,
            tables: base.tables,
            file_bytes: parts.iter().map(|part| part.bytes).sum(),
            slice_bytes: SLICE_BYTES,
            parts,
            created_at_ms,
        }
    }

    pub(super) fn check(&self, generation: Generation) -> Result<(), &'static str> {
        let numbered = self
            .parts
            .iter()
            .enumerate()
            .all(|(at, part)| part.number as usize == at);
        let last = self.parts.len().saturating_sub(1);
        let sliced = self
            .parts
            .iter()
            .enumerate()
            .all(|(at, part)| match at == last {
                true => (1..=SLICE_BYTES).contains(&part.bytes),
                false => part.bytes == SLICE_BYTES,
            });
        let whole = self.parts.iter().map(|part| part.bytes).sum::<u64>() == self.file_bytes;
        if self.format != FORMAT || self.slice_bytes != SLICE_BYTES {
            Err("is of a format that this build does not read")
        } else if self.generation != generation {
            Err("belongs to another generation")
        } else if !numbered || !sliced || !whole {
            Err("does not list every slice of the file")
        } else {
            Ok(())
        }
    }

    pub(super) fn info(self, id: &str, verified: bool) -> ImageInfo {
        let base = ImageBase {
            segment: self.segment,
            position: Position {
                seq: self.seq,
                chain: self.chain,
            },
            epoch: self.epoch,
            end_lsn: self.end_lsn,
            tables: self.tables,
        };
        ImageInfo {
            id: id.to_owned(),
            base,
            file_bytes: self.file_bytes,
            stored_bytes: self.parts.iter().map(|part| part.stored_bytes).sum(),
            created_at_ms: self.created_at_ms,
            verified,
            parts: self.parts,
        }
    }
}
