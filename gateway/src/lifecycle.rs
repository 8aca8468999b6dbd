//! A source's way in: what `rindle pg` does to Postgres and to the archive, apart from the gateway's own work.
//!
//! - [`prepare`]: the publication, and the ledger of everything that was made
//! - [`capture`]: whether the capture of schema changes is as it was made
//! - [`schema_hook`]: announces schema changes by hand
//! - [`admission`]: what a source must be to be mirrored exactly; pure checks that give findings
//! - [`examine`]: looks at a source as the gateway will see it
//! - [`preflight`]: tells everything that is wrong with it
//! - [`mint`]: a new generation of an admitted source
//! - [`cutover`]: which generation is served
//! - [`retire`]: the end of a generation
//! - [`deprovision`]: the way out
//! - [`verify`]: every row of the source at one position, for the comparison with a mirror
//! - [`status`]: what is known of a source on one screen, and what is wrong with it
//! - [`names`]: tables as operators name them
//! - [`error`]: why a command did not do its work

pub mod admission;
pub mod capture;
pub mod cutover;
pub mod deprovision;
pub mod error;
pub mod examine;
pub mod mint;
pub mod names;
pub mod preflight;
pub mod prepare;
pub mod resync;
pub mod retire;
pub mod schema_hook;
mod slots;
pub mod status;
pub mod verify;

pub use admission::{Finding, Level};
pub use error::{LifecycleError, Refusal};
pub use names::{TableName, publication_name};
