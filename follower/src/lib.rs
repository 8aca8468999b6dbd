//! Follower of a source: keeps an exact read-only SQLite mirror and serves it.
//!
//! - [`mirror`]: the SQLite file; applies frames. Synchronous, uses no sibling module, so the producer and the
//!   command line stand on it too

pub mod mirror;
