//! Why a follower stopped following. `/readyz`, documents and drills print these words. Halted means: nothing more is
//! applied, what there is is still served, and only an operator, or another generation, ends it (I10).

use crate::gateway::sentence;
use crate::mirror::{ErrorKind, MirrorError};

/// Why a follower stopped following.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HaltReason {
    /// An object of the archive, or a part of a copy, is not what was written. It is read again every 30 s.
    #[error("ArchiveDamaged: {detail}")]
    ArchiveDamaged {
        /// Which one, and what is wrong.
        detail: String,
    },
    /// Frames came whose content makes no sense although their checksums are right.
    #[error("StreamDamaged: {detail}")]
    StreamDamaged {
        /// Which frame, and what is wrong.
        detail: String,
    },
    /// The mirror does not hold what the source held.
    #[error("Diverged: {detail}")]
    Diverged {
        /// Table, frame, and what to do.
        detail: String,
    },
    /// A schema change that does not fit the mirror.
    #[error("SchemaChangeRefused: {detail}")]
    SchemaChangeRefused {
        /// Frame, what does not fit, and what to do.
        detail: String,
    },
    /// The configured path holds a file that is no mirror of ours. It is not touched.
    #[error("ForeignFile: {detail}")]
    ForeignFile {
        /// Which file.
        detail: String,
    },
    /// The mirror file is damaged while it is written to.
    #[error("MirrorDamaged: {detail}")]
    MirrorDamaged {
        /// What SQLite says.
        detail: String,
    },
    /// The log no longer reaches back to the mirror, and no image does.
    #[error("LogTrimmed: {detail}")]
    LogTrimmed {
        /// Where the mirror stands, and what to do.
        detail: String,
    },
    /// A mistake of this program.
    #[error("Bug: {detail}; report this")]
    Bug {
        /// What happened.
        detail: String,
    },
}

impl HaltReason {
    /// The reason behind an error of the mirror; none for one that waiting may end.
    pub(crate) fn of(error: &MirrorError) -> Option<Self> {
        let detail = sentence(error);
        let reason = match (error, error.kind()) {
            (_, ErrorKind::Retry) => return None,
            (MirrorError::BadPart { .. } | MirrorError::Bulk { .. }, _) => {
                Self::ArchiveDamaged { detail }
            }
            (MirrorError::BadFrame { .. } | MirrorError::Decode { .. }, _) => {
                Self::StreamDamaged { detail }
            }
            (MirrorError::Divergence { .. }, _) => Self::Diverged { detail },
            (MirrorError::Schema { .. }, _) => Self::SchemaChangeRefused { detail },
            (MirrorError::Foreign { .. }, _) => Self::ForeignFile { detail },
            (_, ErrorKind::Corrupt) => Self::MirrorDamaged { detail },
            (_, ErrorKind::Halt | ErrorKind::Bug) => Self::Bug { detail },
        };
        Some(reason)
    }

    /// True where what is damaged may be brought back without telling this program.
    pub(crate) fn is_looked_at_again(&self) -> bool {
        match self {
            Self::ArchiveDamaged { .. }
            | Self::StreamDamaged { .. }
            | Self::MirrorDamaged { .. }
            | Self::ForeignFile { .. }
            | Self::LogTrimmed { .. } => true,
            Self::Diverged { .. } | Self::SchemaChangeRefused { .. } | Self::Bug { .. } => false,
        }
    }
}
