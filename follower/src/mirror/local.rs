//! Indexes that a follower's own configuration asks for. Never unique, never part of an image's meaning.

use std::collections::BTreeSet;

use rindle_proto::schema::Schema;
use rusqlite::Connection;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::ddl::{create_index_sql, quote, run};
use super::error::MirrorError;

const PREFIX: &str = "_rindle_local_";

/// One local index, by mirror names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LocalIndex {
    /// Mirror name of the table.
    pub table: String,
    /// Its columns, in index order.
    pub columns: Vec<String>,
}

impl LocalIndex {
    /// Name in SQLite: the same for the same table and columns.
    fn name(&self) -> String {
        let identity = serde_json::to_vec(&(&self.table, &self.columns)).expect("strings are JSON");
        let hash = Sha256::digest(identity);
        let digits: String = hash[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{PREFIX}{digits}")
    }

    pub(super) fn fits(&self, schema: &Schema) -> bool {
        let table = schema
            .shown()
            .find(|table| table.mirror_name() == self.table);
        let has = |name: &String| {
            table.is_some_and(|table| table.columns.iter().any(|column| column.name == *name))
        };
        !self.columns.is_empty() && self.columns.iter().all(has)
    }
}

/// Creates what is missing and can be created, and drops what is asked for no more.
pub(super) fn ensure(
    conn: &Connection,
    schema: &Schema,
    wanted: &[LocalIndex],
) -> Result<(), MirrorError> {
    let mut present = existing(conn, None)?;
    for index in wanted.iter().filter(|index| index.fits(schema)) {
        let name = index.name();
        if present.remove(&name) {
            continue;
        }
        let columns: Vec<&str> = index.columns.iter().map(String::as_str).collect();
        run(
            conn,
            &create_index_sql("INDEX", &name, &index.table, &columns),
        )?;
    }
    drop_all(conn, &present)
}

/// Drops the local indexes of one table.
pub(super) fn drop_on(conn: &Connection, table: &str) -> Result<(), MirrorError> {
    drop_all(conn, &existing(conn, Some(table))?)
}

fn existing(conn: &Connection, table: Option<&str>) -> Result<BTreeSet<String>, MirrorError> {
    let failed = MirrorError::sqlite("read the mirror's indexes");
    let sql = "SELECT name FROM sqlite_schema WHERE type = 'index' AND substr(name, 1, 14) = ?1
               AND (?2 IS NULL OR tbl_name = ?2)";
    let mut statement = conn.prepare_cached(sql).map_err(&failed)?;
    let rows = statement.query_map((PREFIX, table), |row| row.get(0));
    rows.and_then(Iterator::collect).map_err(failed)
}

fn drop_all(conn: &Connection, names: &BTreeSet<String>) -> Result<(), MirrorError> {
    names
        .iter()
        .try_for_each(|name| run(conn, &format!("DROP INDEX {}", quote(name))))
}
