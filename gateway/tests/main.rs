//! The Postgres side of the gateway against a real server, started here and gone with the test.
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something unexpected happens"
)]

mod auth;
mod capture;
mod catalog;
mod facts;
mod lifecycle;
#[allow(
    unreachable_pub,
    reason = "the drills, whose file it is, export it to their own tests"
)]
#[path = "../../drills/src/ports.rs"]
mod ports;
mod postgres;
mod preflight;
mod stream;
