//! `rindle pg schema-hook`: announces by hand what the publications of a source are now, where no event trigger does.
//! A migration calls the same function itself, inside its own transaction.

use rindle_proto::ids::SourceName;
use serde::Serialize;

use super::admission::{self, Finding};
use super::capture;
use super::error::LifecycleError;
use super::names::publication_name;
use crate::pg::catalog::quote_ident;
use crate::pg::conn;
use crate::pg::endpoint::Endpoint;

/// What to announce.
#[derive(Clone, Debug)]
pub struct SchemaHookRequest {
    /// Where Postgres is; the role owns a published table or the publication, or may create in the database.
    pub endpoint: Endpoint,
    /// The source.
    pub source: SourceName,
    /// The publication; `rindle_<source>` by default.
    pub publication: Option<String>,
    /// Only say what a migration runs itself.
    pub dry_run: bool,
}

/// What was announced, or how to.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Announced {
    /// The source.
    pub source: SourceName,
    /// The publication.
    pub publication: String,
    /// Each says the same; the second only where event triggers are.
    pub statements: [String; 2],
    /// The row that proves it, in `rindle.published_schema`; none after a dry run.
    pub id: Option<i64>,
}

/// Announces, in a transaction of its own.
///
/// # Errors
/// When the source was not prepared, nobody follows it, the role may not, or Postgres cannot be asked.
pub async fn schema_hook(request: &SchemaHookRequest) -> Result<Announced, LifecycleError> {
    let default = || publication_name(&request.source);
    let publication = request.publication.clone().unwrap_or_else(default);
    let comment = format!(
        "COMMENT ON PUBLICATION {} IS 'sync'",
        quote_ident(&publication)
    );
    let mut announced = Announced {
        source: request.source.clone(),
        publication,
        statements: ["SELECT rindle.schema_hook()".to_owned(), comment],
        id: None,
    };
    if request.dry_run {
        return Ok(announced);
    }
    let application_name = format!("rindle-schema-hook {}", request.source);
    let connected = conn::connect(&request.endpoint, &application_name).await;
    let client = connected.map_err(|error| match error.is_standby() {
        true => admission::standby().into(),
        false => LifecycleError::from(error),
    })?;
    let called = client
        .query_one("SELECT rindle.schema_hook($1)", &[&announced.publication])
        .await;
    let row = called.map_err(|error| capture::not_called("rindle.schema_hook", error))?;
    let failed = LifecycleError::postgres("call rindle.schema_hook");
    announced.id = row.try_get(0).map_err(failed)?;
    match announced.id {
        Some(_) => Ok(announced),
        None => Err(nobody_follows().into()),
    }
}

fn nobody_follows() -> Finding {
    let seen = "nothing was announced: this database is a copy of one that was prepared, or wal_level is not logical";
    let why = "no gateway follows it";
    Finding::fatal(
        "NotAnnounced",
        seen,
        why,
        "run rindle pg prepare, and rindle pg preflight to see what is wrong",
    )
}
