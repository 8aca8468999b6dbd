//! The protocol's tests: whole archives in real directories.

mod bulk;
mod env;
mod faults;
mod images;
mod race;
mod read;
mod takeover;
mod write;
