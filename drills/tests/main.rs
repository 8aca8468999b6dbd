//! Drills: each module keeps one promise of the product against the real programs.

// Helpers of tests may unwrap as the tests themselves may.
#![allow(clippy::unwrap_used)]

mod archive;
mod cases;
mod end_to_end;
mod failpoints;
mod gateways;
mod kills;
mod oracle;
mod pressure;
mod property;
mod tidy;
mod verify;
