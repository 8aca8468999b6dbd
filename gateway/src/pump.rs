//! The pump: the walsender's messages into the log, and positions back to the walsender.
//!
//! - [`core`]: the decisions, pure
//! - [`drive`]: the socket, the log and the timers

pub mod core;
pub mod drive;
