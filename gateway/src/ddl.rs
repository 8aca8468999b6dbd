//! Schema changes: how they are captured in Postgres (designs/006), what is believed of the catalog, and what of the
//! mirror follows from it.
//!
//! - [`recipe`], [`found`]: the objects that `prepare` installs, and what a database has of them; the SQL lies in files,
//!   and the queries over the catalog are the very ones the gateway runs
//! - [`announce`]: reads what a message of the stream announces
//! - [`introduce`]: reads what a relation is that sends rows and that no message named
//! - [`believed`]: what is believed at one commit; pure, as is all below it

pub mod announce;
pub mod believed;
mod difference;
mod former;
pub(crate) mod found;
pub mod introduce;
mod plan;
pub(crate) mod recipe;
mod shape;
#[cfg(test)]
mod tests;

pub use self::believed::{Believed, Learned};
pub(crate) use self::found::{Found, read};
pub(crate) use self::recipe::VERSION;
