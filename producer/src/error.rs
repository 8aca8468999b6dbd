//! Why there is no image.

use std::path::{Path, PathBuf};

use rindle_archive::{ArchiveError, ImageError, Kind, ReadError};
use rindle_follower::mirror::{ErrorKind, MirrorError};
use rindle_proto::error::DecodeError;
use rindle_proto::ids::{Generation, Lsn, Position, SourceName};

/// Why there is no image.
#[derive(Debug, thiserror::Error)]
pub enum ProducerError {
    /// The archive has no such generation.
    #[error(
        "generation {generation} of source {source_name} is not in the archive; it holds [{known}]"
    )]
    NoGeneration {
        /// The one asked for.
        generation: Generation,
        /// The source.
        source_name: SourceName,
        /// What there is.
        known: String,
    },
    /// Nothing says which generation is meant.
    #[error(
        "source {source_name} has no current generation in the archive, which holds [{known}]; run rindle pg mint, or name one with --generation"
    )]
    NoCurrent {
        /// The source.
        source_name: SourceName,
        /// What there is.
        known: String,
    },
    /// Another run has the scratch file.
    #[error("{path} is in use by another run; wait for it, or give this one another --scratch")]
    Busy {
        /// The lock file.
        path: PathBuf,
    },
    /// A file of somebody else stands where the scratch mirror would be.
    #[error("{path} is not a mirror of this program's; name another --scratch, or remove it")]
    ForeignScratch {
        /// The file.
        path: PathBuf,
        /// How it shows.
        #[source]
        source: MirrorError,
    },
    /// A file here cannot be read or written.
    #[error("{action} {path}")]
    File {
        /// What was tried.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// The archive's records could not be read.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// The log could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// An image could not be moved.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The mirror did not take what came.
    #[error(transparent)]
    Mirror(#[from] MirrorError),
    /// The log holds bytes that are no frame.
    #[error("the log holds bytes that are no frame; run `rindle backup verify`")]
    Frames(#[from] DecodeError),
    /// A fence discards to a place where the mirror does not stand.
    #[error("a fence discards to frame {}, the mirror stands at {at}; remove the scratch file", to.seq)]
    Discard {
        /// Where the log goes on.
        to: Position,
        /// Where the mirror stands.
        at: String,
    },
    /// The image that was restored is not the one that was published.
    #[error("image {image} was restored and differs: {what}; it is not marked as proved")]
    Unproved {
        /// Its name.
        image: String,
        /// What differs.
        what: String,
    },
    /// The archive did not come as far in time.
    #[error(
        "the archive has not reached {wanted} in time; is the gateway at work, and does the archive take writes?"
    )]
    NotReached {
        /// Where it should have come.
        wanted: Lsn,
    },
    /// The mirror holds more than was asked for.
    #[error("the mirror stands at {at}, after {wanted}")]
    Ahead {
        /// Where it stands.
        at: Lsn,
        /// Where it should stand at most.
        wanted: Lsn,
    },
    /// What was asked for would take the place of something.
    #[error("{path} exists; name another --out, or move it away")]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// There is no whole mirror yet.
    #[error(
        "the first copy of generation {generation} is not complete; nothing can be restored of it yet"
    )]
    NotComplete {
        /// The generation.
        generation: Generation,
    },
    /// The moment lies before everything that is kept.
    #[error(
        "generation {generation} does not reach back that far; rindle backup list shows what there is, and --generation names an older one"
    )]
    TooOld {
        /// The generation.
        generation: Generation,
    },
    /// Told to stop.
    #[error("stopped")]
    Stopped,
}

impl ProducerError {
    /// What the caller does about it.
    pub fn kind(&self) -> Kind {
        match self {
            ProducerError::NoGeneration { .. }
            | ProducerError::NoCurrent { .. }
            | ProducerError::Busy { .. }
            | ProducerError::Exists { .. }
            | ProducerError::TooOld { .. }
            | ProducerError::ForeignScratch { .. } => Kind::Refused,
            ProducerError::File { .. }
            | ProducerError::NotComplete { .. }
            | ProducerError::NotReached { .. }
            | ProducerError::Stopped => Kind::Retry,
            ProducerError::Archive(error) => error.kind(),
            ProducerError::Read(error) => error.kind(),
            ProducerError::Image(error) => error.kind(),
            ProducerError::Mirror(error) => match error.kind() {
                ErrorKind::Retry => Kind::Retry,
                ErrorKind::Halt => Kind::Halt,
                ErrorKind::Corrupt => Kind::Corrupt,
                ErrorKind::Bug => Kind::Bug,
            },
            ProducerError::Frames(_) | ProducerError::Unproved { .. } => Kind::Corrupt,
            ProducerError::Discard { .. } | ProducerError::Ahead { .. } => Kind::Halt,
        }
    }

    /// For `map_err` on a call of the file system.
    pub(crate) fn file(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::File {
            action,
            path,
            source,
        }
    }
}
