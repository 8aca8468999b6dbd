//! Drills start the real programs as processes, beside a real Postgres, break things and compare.
//!
//! What may be wrong here must not be wrong in the same way elsewhere: the oracle, the type table behind it and the
//! archive reader of the watcher are written apart from the crates that they judge.
//!
//! - [`wait`]: wait on a condition with a deadline
//! - [`rng`]: seeded numbers, so that a failed run can be had again
//! - [`run_dir`]: the folder of one drill, and the ends of processes that a killed drill left
//! - [`postgres`]: throw-away Postgres servers of a version
//! - [`http`]: `GET` and `POST` on a local port
//! - [`program`]: one program of ours as a child process
//! - [`cluster`]: a source with its gateway, followers and producer
//! - [`failpoint`]: moments at which a program is told to die
//! - [`outage`]: an archive out of reach
//! - [`oracle`]: rows of Postgres = rows of the mirror, value by value
//! - [`cases`]: SQL case files
//! - [`samples`]: values of every type
//! - [`stop`]: a gateway that halts by name, and the way on
//! - [`watch`]: the slot is never acknowledged past the archive
//! - [`random_schema`]: random schema changes among random writes
//! - [`workload`]: seeded writes

pub mod beat;
pub mod cases;
pub mod cluster;
pub mod failpoint;
pub mod http;
pub mod migrations;
pub mod oracle;
pub mod outage;
pub mod ports;
pub mod postgres;
pub mod program;
pub mod random_schema;
pub mod rng;
pub mod run_dir;
pub mod samples;
pub mod stop;
pub mod wait;
pub mod watch;
pub mod workload;
