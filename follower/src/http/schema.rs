//! `GET /schema`: the mirrored tables, as clients' type generators read them.

use std::path::Path;

use axum::extract::State as Shared;
use axum::response::Json;
use rindle_proto::schema::Table;
use serde_json::{Value, json};

use super::{Failure, Http};
use crate::gateway::sentence;
use crate::mirror::{self, Stored};

pub(super) async fn schema(Shared(http): Shared<Http>) -> Result<Json<Value>, Failure> {
    let path = served(&http)?;
    let stored = blocking(move || read(&path)).await?;
    let mut tables: Vec<&Table> = stored.schema.shown().collect();
    tables.sort_by_key(|table| table.mirror_name());
    let tables: Vec<Value> = tables
        .into_iter()
        .filter(|table| !is_ours(&table.mirror_name()))
        .map(document)
        .collect();
    Ok(Json(json!({"tables": tables})))
}

/// The file that queries read.
pub(super) fn served(http: &Http) -> Result<std::path::PathBuf, Failure> {
    http.state.serving().ok_or_else(|| {
        let reason = http.state.view().reason;
        Failure::unavailable(reason.unwrap_or_else(|| "starting".to_owned()))
    })
}

/// Runs what blocks on a thread for it.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_cancelled) => Err(Failure::unavailable("stopping")),
    }
}

fn read(path: &Path) -> Result<Stored, Failure> {
    let read = mirror::open_reader(path).and_then(|conn| mirror::stored(&conn, path));
    match read {
        Ok(Some(stored)) => Ok(stored),
        Ok(None) => Err(Failure::unavailable("the mirror is empty")),
        Err(error) => Err(Failure::unavailable(sentence(&error))),
    }
}

/// Tables of the machinery, which clients never see.
fn is_ours(name: &str) -> bool {
    name.starts_with("_rindle_") || name.starts_with("__")
}

fn document(table: &Table) -> Value {
    let column = |(at, column): (usize, &rindle_proto::schema::Column)| {
        json!({
            "name": column.name,
            "nullable": !column.not_null && !table.key.contains(&at),
            "type": column.kind.wire(),
        })
    };
    let columns: Vec<Value> = table.columns.iter().enumerate().map(column).collect();
    let key: Vec<&str> = table
        .key
        .iter()
        .map(|at| table.columns[*at].name.as_str())
        .collect();
    json!({"name": table.mirror_name(), "columns": columns, "primaryKey": key})
}
