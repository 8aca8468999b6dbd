//! Why a log cannot be read on.

use rindle_proto::ids::{SegmentNo, Seq};

use crate::error::{ArchiveError, Kind};
use crate::segment::Flaw;
use crate::store::StoreError;

/// Why a log cannot be read on.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// What is asked for was given up: images are the way on.
    #[error("segment {segment} was trimmed (up to {boundary}); restore the newest image")]
    Trimmed {
        /// The object that was to be read.
        segment: SegmentNo,
        /// What was given up.
        boundary: SegmentNo,
    },
    /// The position is not in this log: another history, or a transaction that never was archived.
    #[error("frame {seq} has another chain in the archive; restore the newest image")]
    ChainDiffers {
        /// The caller's frame.
        seq: Seq,
    },
    /// The caller has frames that the log does not have yet.
    #[error("frame {wanted} is not in the archive yet, its last commit is frame {last_commit}")]
    NotYet {
        /// The caller's frame.
        wanted: Seq,
        /// The last one that is there.
        last_commit: Seq,
    },
    /// An object is missing though later ones are there.
    #[error("{key} is missing although later objects exist; bring it back from a copy or version")]
    Gap {
        /// Its key.
        key: String,
    },
    /// An object is not what was written.
    #[error("{key} is damaged; bring it back from a copy or version")]
    Corrupt {
        /// Its key.
        key: String,
        /// What is wrong with it.
        #[source]
        what: Flaw,
    },
    /// The store did not answer, or a record is damaged.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
}

impl ReadError {
    /// What the caller does about it.
    pub fn kind(&self) -> Kind {
        match self {
            ReadError::Trimmed { .. } | ReadError::ChainDiffers { .. } => Kind::Refused,
            ReadError::NotYet { .. } => Kind::Retry,
            ReadError::Gap { .. } | ReadError::Corrupt { .. } => Kind::Corrupt,
            ReadError::Archive(error) => error.kind(),
        }
    }
}

impl From<StoreError> for ReadError {
    fn from(error: StoreError) -> Self {
        ReadError::Archive(error.into())
    }
}
