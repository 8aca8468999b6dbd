//! `rindle pg resync`: has one table copied anew, without a new generation. It is announced like a schema change, so every
//! mirror does it at the same commit.

use rindle_proto::ids::SourceName;
use serde::Serialize;

use super::admission;
use super::capture;
use super::error::LifecycleError;
use super::names::TableName;
use crate::pg::catalog::quote_ident;
use crate::pg::conn;
use crate::pg::endpoint::Endpoint;

/// What to copy.
#[derive(Clone, Debug)]
pub struct ResyncRequest {
    /// Where Postgres is; the role made what `prepare` made, or was given it with `--role`.
    pub endpoint: Endpoint,
    /// The source.
    pub source: SourceName,
    /// The table.
    pub table: TableName,
}

/// What was asked for.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Resync {
    /// The source.
    pub source: SourceName,
    /// The table.
    pub table: TableName,
    /// The row that proves it, in `rindle.published_schema`.
    pub id: i64,
}

/// Announces that a table is to be copied anew.
///
/// # Errors
/// When the source was not prepared, the table is not published, the role may not, or Postgres cannot be asked.
pub async fn resync(request: &ResyncRequest) -> Result<Resync, LifecycleError> {
    let application_name = format!("rindle-resync {}", request.source);
    let connected = conn::connect(&request.endpoint, &application_name).await;
    let client = connected.map_err(|error| match error.is_standby() {
        true => admission::standby().into(),
        false => LifecycleError::from(error),
    })?;
    let table = &request.table;
    let name = format!(
        "{}.{}",
        quote_ident(&table.schema),
        quote_ident(&table.name)
    );
    let called = client
        .query_one("SELECT rindle.resync($1::text::regclass)", &[&name])
        .await;
    let row = called.map_err(|error| capture::not_called("rindle.resync", error))?;
    Ok(Resync {
        source: request.source.clone(),
        table: request.table.clone(),
        id: row
            .try_get(0)
            .map_err(LifecycleError::postgres("call rindle.resync"))?,
    })
}
