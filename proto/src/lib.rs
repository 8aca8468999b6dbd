//! The words and bytes that all programs agree on. No socket, file, clock or runtime: bytes in, values out.
//! `README.md` beside this crate is the byte specification.
//!
//! - [`ids`]: newtypes for positions, numbers and names
//! - [`value`], [`row`]: one cell, one row
//! - [`pgtype`]: the type table, Postgres text to mirror value
//! - [`schema`], [`change`]: tables, and typed changes between schemas
//! - [`op`]: operations of a transaction
//! - [`frame`]: numbered, checksummed, chained frames
//! - [`body`]: what each kind of frame carries
//! - [`settings`]: what is wrong with a configuration file
//! - [`verify`]: the canonical digest of a table
//! - [`rpc`]: the gRPC service
//! - [`codec`], [`error`]: integers, and what is wrong with bytes

#![warn(missing_docs)]

pub mod body;
pub mod change;
pub mod codec;
pub mod error;
pub mod frame;
pub mod ids;
pub mod op;
pub mod pgtype;
pub mod row;
pub mod rpc;
pub mod schema;
pub mod settings;
pub mod value;
pub mod verify;
