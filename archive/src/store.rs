//! What the archive asks of a store: a directory, or a bucket with conditional writes, where any call may have taken
//! effect although its answer was lost.
//!
//! No backend retries by itself: who calls knows what a second attempt may do.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::SystemTime;

use bytes::Bytes;

use crate::error::Kind;
use crate::layout::Key;

/// What every call gives back.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// A store of objects.
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// Creates an object that must not exist. An error leaves open whether it exists now: whoever gets anything
    /// but [`Create::Created`] reads back.
    fn create(&self, key: &Key, bytes: Bytes) -> StoreFuture<'_, Create>;

    /// Makes an object durable that a read found, but whose [`Store::create`] did not end well.
    fn settle(&self, key: &Key) -> StoreFuture<'_, ()>;

    /// The whole object, or `None`. An object longer than `limit` is an error.
    fn get(&self, key: &Key, limit: u64) -> StoreFuture<'_, Option<Bytes>>;

    /// The first `len` bytes of an object, fewer if it is shorter.
    fn get_start(&self, key: &Key, len: usize) -> StoreFuture<'_, Option<Bytes>>;

    /// The names directly under a directory that sort after `after`, in order. Never decides anything: only
    /// a hint where to look, and a second line against holes.
    fn list(&self, directory: &Key, after: Option<&str>) -> StoreFuture<'_, Vec<String>>;

    /// Length in bytes of the objects directly under a directory whose names sort after `after`; decides nothing.
    fn weigh(&self, directory: &Key, after: Option<&str>) -> StoreFuture<'_, u64>;

    /// An object that changes, with its version.
    fn get_versioned(&self, key: &Key, limit: u64) -> StoreFuture<'_, Option<Versioned>>;

    /// Replaces an object if its version still is `expected`; `None` expects no object. An error leaves open
    /// whether it was replaced.
    fn compare_and_set(
        &self,
        key: &Key,
        expected: Option<&Version>,
        bytes: Bytes,
    ) -> StoreFuture<'_, Swap>;

    /// When an object was last written, by the store's clock: to the second, or finer.
    fn modified(&self, key: &Key) -> StoreFuture<'_, Option<SystemTime>>;

    /// Which bucket this is; none for a directory.
    fn place(&self) -> Option<String> {
        None
    }

    /// Deletes an object; one that is not there is no error.
    fn delete(&self, key: &Key) -> StoreFuture<'_, ()>;
}

/// Answer of a store that was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Create {
    /// It did not exist and is durable now.
    Created,
    /// Something has this name: perhaps our own earlier attempt.
    Exists,
}

/// Answer to a compare-and-set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Swap {
    /// Replaced, and durable.
    Done(Version),
    /// The version was another one.
    Lost,
}

/// Names one content of a key that changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version(pub String);

/// Content and version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versioned {
    /// The content.
    pub bytes: Bytes,
    /// What to expect when replacing it.
    pub version: Version,
}

/// A call that did not end well.
#[derive(Debug, thiserror::Error)]
#[error("{action} {key}: {problem}")]
pub struct StoreError {
    /// What was tried, such as `create`.
    pub action: &'static str,
    /// On which object.
    pub key: String,
    /// What kind of problem it is.
    pub problem: Problem,
    /// What the system said.
    #[source]
    pub source: Option<std::io::Error>,
}

/// Why a store did not do what it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Problem {
    /// Not reachable, not writable, full: all the same to a caller, who waits.
    Unavailable,
    /// The directory was here and is gone: not mounted, or moved away. It is not made anew.
    Vanished,
    /// The object is longer than anything that may have this name.
    TooLong,
    /// The bucket does not know us, or does not let us.
    Unauthorized,
    /// There is no such bucket.
    NoBucket,
    /// The bucket lies in another region.
    OtherRegion,
    /// The store's clock and ours are too far apart for a signature.
    ClockSkewed,
    /// Somebody else is writing the same object; nothing was stored.
    Conflict,
    /// The object lies where it cannot be read at once.
    Frozen,
    /// The object is there and empty.
    Empty,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Problem::Unavailable => "archive unavailable",
            Problem::Vanished => "the directory was here and is gone; mount or move it back",
            Problem::TooLong => "longer than the format allows",
            Problem::Unauthorized => {
                "the archive refuses our credentials, or they may not do this; give them s3:GetObject, s3:PutObject, \
                 s3:DeleteObject and s3:ListBucket; it is tried again"
            }
            Problem::NoBucket => {
                "there is no such bucket; make it, or mend bucket, endpoint and region; it is tried again"
            }
            Problem::OtherRegion => "the bucket lies in another region; set region",
            Problem::Conflict => "somebody else is writing it",
            Problem::Frozen => {
                "a rule of the bucket moved it to cold storage; thaw it, and leave the archive's prefix out of such rules"
            }
            Problem::Empty => "is empty",
            Problem::ClockSkewed => "the store's clock and this machine's differ; set the clock",
        })
    }
}

impl StoreError {
    /// An error of the operating system.
    pub(crate) fn io(action: &'static str, key: &Key, source: std::io::Error) -> Self {
        Self::new(action, key, Problem::Unavailable, Some(source))
    }

    pub(crate) fn new(
        action: &'static str,
        key: &Key,
        problem: Problem,
        source: Option<std::io::Error>,
    ) -> Self {
        Self {
            action,
            key: key.to_string(),
            problem,
            source,
        }
    }

    /// What the caller does about it.
    pub fn kind(&self) -> Kind {
        match self.problem {
            Problem::Unavailable
            | Problem::Vanished
            | Problem::Unauthorized
            | Problem::NoBucket
            | Problem::OtherRegion
            | Problem::ClockSkewed
            | Problem::Conflict
            | Problem::Frozen => Kind::Retry,
            Problem::TooLong | Problem::Empty => Kind::Corrupt,
        }
    }
}
