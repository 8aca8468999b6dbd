//! The protocol's tests: whole archives in real directories.

mod bucket;
mod bulk;
mod env;
mod faults;
mod images;
mod prune;
mod race;
mod read;
mod takeover;
mod write;
