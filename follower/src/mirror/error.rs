//! What can go wrong with a mirror, and who has to act on it.

use std::error::Error as StdError;
use std::path::PathBuf;

use rindle_proto::error::DecodeError;
use rindle_proto::frame::SeqGap;
use rindle_proto::ids::{Generation, Lsn, Seq};
use rindle_proto::schema::SchemaError;

/// Why a mirror could not do what was asked. After any error of [`super::Mirror::apply`] the mirror stands at
/// its last commit.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MirrorError {
    /// A frame came before [`super::Mirror::start`].
    #[error("the mirror follows no generation yet; start it with one")]
    NotStarted,
    /// A start on a mirror that holds something.
    #[error("the mirror already follows generation {0}; replace the file to follow another")]
    AlreadyStarted(Generation),
    /// A frame that is not the next one (I5).
    #[error("{0}; subscribe again from the mirror's cursor")]
    Gap(#[from] SeqGap),
    /// A frame whose parts or order make no sense: the log was not made by a gateway that keeps its rules.
    #[error("frame {seq} at {lsn}: {reason}; run `rindle backup verify`")]
    BadFrame {
        /// The frame.
        seq: Seq,
        /// Its LSN.
        lsn: Lsn,
        /// What is wrong with it.
        reason: String,
    },
    /// Bytes inside a frame that do not decode.
    #[error("frame {seq} at {lsn} does not decode; run `rindle backup verify`")]
    Decode {
        /// The frame.
        seq: Seq,
        /// Its LSN.
        lsn: Lsn,
        /// Where and what.
        #[source]
        source: DecodeError,
    },
    /// The mirror does not hold what the source held: an update or delete without its row, an insert of a key
    /// that exists. Nothing is repaired by guess.
    #[error(
        "divergence in table {table:?}: {what} (frame {seq} at {lsn}); the mirror is not the source's copy, \
         restore it from an image or mint a new generation"
    )]
    Divergence {
        /// Mirror name of the table.
        table: String,
        /// What was found.
        what: &'static str,
        /// The frame.
        seq: Seq,
        /// Its LSN.
        lsn: Lsn,
    },
    /// A schema change that does not fit the mirror's schema.
    #[error("schema change in frame {seq} at {lsn} does not fit the mirror; mint a new generation")]
    Schema {
        /// The frame.
        seq: Seq,
        /// Its LSN.
        lsn: Lsn,
        /// What does not fit.
        #[source]
        source: SchemaError,
    },
    /// A part of a copy is not what its Done frame says.
    #[error("bulk part {number} is damaged: {reason}; run `rindle backup verify`")]
    BadPart {
        /// Number of the part.
        number: u32,
        /// What is wrong with it.
        reason: String,
    },
    /// A part of a copy could not be fetched.
    #[error("fetch bulk part {number}")]
    Bulk {
        /// Number of the part.
        number: u32,
        /// Why.
        #[source]
        source: BulkError,
    },
    /// The file is not a mirror, or one of a newer format.
    #[error("{path:?} is not a mirror that this program can read: {reason}")]
    Foreign {
        /// The file.
        path: PathBuf,
        /// How it shows.
        reason: String,
    },
    /// A file that should be a whole mirror is not.
    #[error("{path:?} is damaged: {reason}; restore the mirror from an image")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What was found.
        reason: String,
    },
    /// A new file could not be put in its place.
    #[error("make the mirror file {path:?}")]
    Create {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The system gave no thread.
    #[error("start the mirror's checkpoint thread")]
    Thread {
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// SQLite refused: disk full, no rights, another program holds the file.
    #[error("{doing} in SQLite")]
    Sqlite {
        /// What was being done.
        doing: &'static str,
        /// What SQLite says.
        #[source]
        source: rusqlite::Error,
    },
}

/// Who has to act on an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// Waiting and trying again may help.
    Retry,
    /// An operator must act; trying again cannot help.
    Halt,
    /// Bytes lie: another copy of them is needed.
    Corrupt,
    /// The caller broke a rule.
    Bug,
}

impl MirrorError {
    /// Who has to act.
    pub fn kind(&self) -> ErrorKind {
        match self {
            MirrorError::NotStarted | MirrorError::AlreadyStarted(_) => ErrorKind::Bug,
            MirrorError::Gap(_) | MirrorError::Create { .. } | MirrorError::Thread { .. } => {
                ErrorKind::Retry
            }
            MirrorError::BadFrame { .. }
            | MirrorError::Decode { .. }
            | MirrorError::BadPart { .. } => ErrorKind::Corrupt,
            MirrorError::Damaged { .. } => ErrorKind::Corrupt,
            MirrorError::Divergence { .. } | MirrorError::Schema { .. } => ErrorKind::Halt,
            MirrorError::Foreign { .. } => ErrorKind::Halt,
            MirrorError::Bulk { source, .. } => match source {
                BulkError::Unavailable(_) => ErrorKind::Retry,
                BulkError::Corrupt(_) => ErrorKind::Corrupt,
            },
            MirrorError::Sqlite { source, .. } => sqlite_kind(source),
        }
    }

    /// True when the mirror file itself is damaged, whatever was applied: a new file is the remedy.
    pub fn file_is_damaged(&self) -> bool {
        match self {
            MirrorError::Damaged { .. } => true,
            MirrorError::Sqlite { source, .. } => sqlite_kind(source) == ErrorKind::Corrupt,
            _ => false,
        }
    }

    /// For `map_err` on a SQLite call: says what was being done.
    pub(crate) fn sqlite(doing: &'static str) -> impl Fn(rusqlite::Error) -> MirrorError {
        move |source| MirrorError::Sqlite { doing, source }
    }
}

fn sqlite_kind(error: &rusqlite::Error) -> ErrorKind {
    use rusqlite::ErrorCode;
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => ErrorKind::Corrupt,
        _ => ErrorKind::Retry,
    }
}

/// Why the rows of a bulk part could not be had.
#[derive(Debug, thiserror::Error)]
pub enum BulkError {
    /// Not now: network, permissions, a gateway that restarts.
    #[error("the archive or gateway does not give it now")]
    Unavailable(#[source] Box<dyn StdError + Send + Sync>),
    /// What is stored is not what was written.
    #[error("what is stored is not what was written")]
    Corrupt(#[source] Box<dyn StdError + Send + Sync>),
}
