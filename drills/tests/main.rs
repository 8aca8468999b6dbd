//! Drills: each module keeps one promise of the product against the real programs.

// Helpers of tests may unwrap as the tests themselves may.
#![allow(clippy::unwrap_used)]

mod archive;
mod backfills;
mod bucket;
mod cases;
mod degraded;
mod end_to_end;
mod facts;
mod failover;
mod failpoints;
mod gateways;
mod kills;
mod leaves;
mod lifecycle;
mod oracle;
mod pressure;
mod property;
mod random_schema;
mod reconnect;
mod refusals;
mod restore;
mod retention;
mod schema;
mod status;
mod tidy;
mod tls;
mod tools;
mod verify;
