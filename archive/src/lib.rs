//! The archive: a log of segments, bulk objects and images in a directory or a bucket, and everything that
//! knows an object's name. The protocol is `designs/003-archive-and-fencing.md`, the bytes are
//! `proto/README.md`.
//!
//! Start at [`Archive::open`]; [`Archive::log`] is one generation's log, [`Log::take_over`] makes a process
//! its only writer, [`Log::reader`] reads it.
//!
//! - [`generation`], [`current`]: records created at mint, and the pointer that cutover moves
//! - [`log`]: one generation's log: head, epochs, reading headers
//! - [`takeover`], [`writer`]: becoming the writer, and appending
//! - [`reader`]: frames in order, verified
//! - [`bulk`]: rows of a copy, beside the log
//! - [`checkpoint`]: what was believed of the source at a commit
//! - [`image`]: SQLite files in slices
//! - [`segment`]: the bytes of one log object; pure
//! - [`scrub`]: looking through all of it
//! - [`layout`]: every key
//! - [`buffer`]: large buffers that live for a moment
//! - [`store`], [`fs`]: what is asked of a store; the directory backend
//! - [`error`]: what callers do about errors

#![warn(missing_docs)]

mod archive;
mod boundary;
#[cfg(any(test, feature = "bucket-server"))]
pub mod bucket_server;
pub mod buffer;
pub mod bulk;
pub mod checkpoint;
mod compress;
pub mod current;
pub mod error;
pub mod failpoint;
pub mod freshness;
pub mod fs;
pub mod generation;
pub mod image;
pub mod layout;
pub mod log;
mod objects;
pub mod probe;
pub mod prune;
pub mod reader;
pub mod s3;
pub mod scrub;
pub mod segment;
pub mod store;
pub mod takeover;
#[cfg(any(test, feature = "testkit"))]
pub mod testkit;
pub mod writer;

pub use archive::{Archive, BackupConfig};
pub use bulk::BulkError;
pub use checkpoint::Checkpoint;
pub use current::Current;
pub use error::{ArchiveError, Kind};
pub use generation::GenerationRecord;
pub use image::{ImageBase, ImageError, ImageInfo, Images};
pub use log::Log;
pub use reader::{ReadError, ReadFrom, ReadStep, Reader};
pub use s3::{S3Settings, S3Store};
pub use segment::{Commit, CommitKind, LastCommit, SegmentHeader};
pub use takeover::{History, Tail, TakeOverError, Taken};
pub use writer::{AppendError, Confirmed, NewSegment, Writer};

#[cfg(test)]
mod tests;
