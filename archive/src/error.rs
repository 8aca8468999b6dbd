//! What callers do about an error, and the error of everything that is not the log itself.

use std::fmt;

use crate::store::StoreError;

/// An error with its causes, each that says something new.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        let cause = error.to_string();
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
        next = error.source();
    }
    text
}

/// What the caller does about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Wait and try again; nothing is lost.
    Retry,
    /// An operator must act.
    Halt,
    /// What was asked for is wrong.
    Refused,
    /// Bytes are not what they must be.
    Corrupt,
    /// A mistake of this program.
    Bug,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Retry => "retry",
            Kind::Halt => "halt",
            Kind::Refused => "refused",
            Kind::Corrupt => "corrupt",
            Kind::Bug => "bug",
        })
    }
}

/// An error of opening an archive, or of its records.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The store did not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// This build cannot use what is configured.
    #[error("{what}; {next}")]
    Unsupported {
        /// What is configured.
        what: String,
        /// What to do.
        next: &'static str,
    },
    /// A record does not parse.
    #[error("{key} is not a valid record; restore it from a copy, or look who wrote it")]
    Record {
        /// Its key.
        key: String,
        /// What is wrong.
        #[source]
        source: serde_json::Error,
    },
    /// The generation was created before with another record.
    #[error("{key} exists with another content; mint a new generation")]
    GenerationExists {
        /// Key of the record.
        key: String,
    },
    /// Somebody else moved the pointer.
    #[error("{key} was changed by another process; read it again and decide anew")]
    CurrentMoved {
        /// Key of the pointer.
        key: String,
    },
}

impl ArchiveError {
    /// What the caller does about it.
    pub fn kind(&self) -> Kind {
        match self {
            ArchiveError::Store(error) => error.kind(),
            ArchiveError::Unsupported { .. }
            | ArchiveError::GenerationExists { .. }
            | ArchiveError::CurrentMoved { .. } => Kind::Refused,
            ArchiveError::Record { .. } => Kind::Corrupt,
        }
    }
}
