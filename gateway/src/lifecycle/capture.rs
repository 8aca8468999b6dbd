//! Whether the capture of schema changes is in the source as it was made. For a gateway's start: it finds there what
//! happened to the recipe since the generation was minted.

use tokio_postgres::Client;

use super::admission::{self, Finding};
use super::error::LifecycleError;
use crate::ddl;

/// What is wrong with the recipe; nothing when it is whole. Fatal: what it says of a schema change may be wrong or
/// missing although it should not be. Warning: there is none, or none that announces by itself, or one of another
/// version. Takes no lock; any role may ask, and one that may not read the ledger is told nothing of versions.
///
/// # Errors
/// When a query fails.
pub async fn check(client: &Client) -> Result<Vec<Finding>, LifecycleError> {
    let found = ddl::read(client).await?;
    Ok(admission::capture::check(&found))
}

/// Server errors when there is no such schema, or no such function.
const NOT_PREPARED: [&str; 2] = ["3F000", "42883"];

/// Why a function of ours could not be called.
pub(super) fn not_called(function: &str, error: tokio_postgres::Error) -> LifecycleError {
    match error.code().map(|code| code.code()) {
        Some(code) if NOT_PREPARED.contains(&code) => {
            let seen = format!("there is no {function} in this database");
            let why = "only what it writes is believed";
            Finding::fatal("CaptureMissing", seen, why, "run rindle pg prepare").into()
        }
        _ => LifecycleError::postgres(&format!("call {function}"))(error),
    }
}
