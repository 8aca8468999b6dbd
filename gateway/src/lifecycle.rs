//! A source's way in: what `rindle pg` does to Postgres and to the archive, apart from the gateway's own work.
//!
//! - [`prepare`]: the publication, and the ledger of everything that was made
//! - [`admission`]: what a source must be to be mirrored exactly; pure checks that give findings
//! - [`mint`]: a new generation of an admitted source
//! - [`verify`]: every row of the source at one position, for the comparison with a mirror
//! - [`status`]: what is known of a source on one screen, and what is wrong with it
//! - [`names`]: tables as operators name them
//! - [`error`]: why a command did not do its work

pub mod admission;
pub mod error;
pub mod mint;
pub mod names;
pub mod prepare;
pub mod status;
pub mod verify;

pub use admission::{Finding, Level};
pub use error::{LifecycleError, Refusal};
pub use names::{TableName, publication_name};
