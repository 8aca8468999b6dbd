//! Everything that speaks to Postgres.
//!
//! - [`endpoint`]: where Postgres is and who we are there
//! - [`tls`]: which server certificates are believed
//! - [`conn`]: ordinary sessions with pinned settings
//! - [`walsender`]: the replication session
//! - [`pgoutput`], [`copytext`]: bytes of the stream and of COPY to typed values; pure
//! - [`snapshot`], [`visibility`]: snapshots that a slot exports, and which transactions a snapshot sees
//! - [`slot`], [`catalog`]: what Postgres says about a slot, and about a publication and its tables

pub mod catalog;
pub mod conn;
pub mod copytext;
pub mod endpoint;
pub mod pgoutput;
pub mod slot;
pub mod snapshot;
pub mod tls;
pub mod visibility;
pub mod walsender;
