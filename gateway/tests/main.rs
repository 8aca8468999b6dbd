//! The Postgres side of the gateway against a real server, started here and gone with the test.

mod auth;
mod catalog;
mod postgres;
mod stream;
