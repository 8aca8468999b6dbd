//! The program against a gateway that says what a test wants.

mod archive;
mod backfill;
mod env;
mod file;
mod stream;
mod verify;
