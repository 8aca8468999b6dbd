//! The Postgres side of the gateway against a real server, started here and gone with the test.
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something unexpected happens"
)]

mod auth;
mod catalog;
mod lifecycle;
mod postgres;
mod stream;
