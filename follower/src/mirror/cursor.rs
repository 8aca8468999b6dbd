//! Where a mirror stands, and the document in which the file keeps it.

use rindle_proto::body::PgMicros;
use rindle_proto::ids::{Digest, EndLsn, Epoch, Generation, Position, SegmentNo, Seq};
use serde::{Deserialize, Serialize};

/// Where a mirror stands: written in the same commit as the rows it speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// Generation it follows.
    pub generation: Generation,
    /// Last frame in it, always the end of a transaction or copy; the start before the first copy is complete.
    pub position: Position,
    /// End of the last transaction in it; the snapshot position right after a first copy.
    pub end_lsn: EndLsn,
    /// When that transaction committed in Postgres; none right after a first copy.
    pub commit_time: Option<PgMicros>,
    /// Highest epoch seen, from streams, log objects and images.
    pub epoch: Epoch,
    /// The first copy is complete and shown.
    pub complete: bool,
    /// The log object that holds the last frame, where it was read from an archive.
    pub segment: Option<SegmentNo>,
}

/// The cursor as `_rindle_state` holds it.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CursorDoc {
    generation: Generation,
    seq: Seq,
    chain: Digest,
    end_lsn: EndLsn,
    commit_time: Option<PgMicros>,
    epoch: Epoch,
    complete: bool,
    segment: Option<SegmentNo>,
}

impl Cursor {
    /// A mirror of nothing.
    pub fn start(generation: Generation) -> Self {
        Self {
            generation,
            position: Position::start(generation),
            end_lsn: EndLsn::default(),
            commit_time: None,
            epoch: Epoch::default(),
            complete: false,
            segment: None,
        }
    }

    /// The sortable text form of `_rindle_source_offsets`: `<generation>:<seq in 16 hex digits>`.
    pub fn offset(&self) -> String {
        format!("{}:{:016x}", self.generation, self.position.seq.0)
    }
}

impl From<&Cursor> for CursorDoc {
    fn from(cursor: &Cursor) -> Self {
        Self {
            generation: cursor.generation,
            seq: cursor.position.seq,
            chain: cursor.position.chain,
            end_lsn: cursor.end_lsn,
            commit_time: cursor.commit_time,
            epoch: cursor.epoch,
            complete: cursor.complete,
            segment: cursor.segment,
        }
    }
}

impl From<CursorDoc> for Cursor {
    fn from(doc: CursorDoc) -> Self {
        Self {
            generation: doc.generation,
            position: Position {
                seq: doc.seq,
                chain: doc.chain,
            },
            end_lsn: doc.end_lsn,
            commit_time: doc.commit_time,
            epoch: doc.epoch,
            complete: doc.complete,
            segment: doc.segment,
        }
    }
}
