//! The pump: the walsender's messages into the log, and positions back to the walsender.
//!
//! - [`core`]: the decisions, pure
//! - [`drive`]: the socket, the log and the timers
//! - [`heart`]: keeps a quiet source ready for a failover

mod audit;
mod checkpoints;
pub mod core;
pub mod drive;
mod heart;
