//! Bulk rows of a copy. They go into `_rindle_load_<id>` tables in SQLite transactions of bounded size, their
//! indexes follow, and one last commit gives the tables their names. A crash in between leaves nothing that
//! counts: the next start clears it and loads afresh.

use bytes::Bytes;
use rindle_proto::body::{BulkPart, CopyDone};
use rindle_proto::codec::Input;
use rindle_proto::error::DecodeError;
use rindle_proto::row::Row;
use rindle_proto::schema::{Schema, Table};
use rusqlite::Connection;
use sha2::{Digest as _, Sha256};

use super::ddl::{self, quote, run};
use super::error::MirrorError;
use super::rows::{self, Plan, RowError};
use super::wal::Wal;
use super::{BulkSource, meta};

const PREFIX: &str = "_rindle_load_";

/// Row bytes in one SQLite transaction.
const COMMIT_BYTES: usize = 64 << 20;

fn load_name(table: &Table) -> String {
    format!("{PREFIX}{}", table.id.0)
}

/// Loads every part of a copy into hidden tables. Gives the number of rows.
pub(super) fn parts(
    conn: &mut Connection,
    wal: &mut Wal,
    schema: &Schema,
    done: &CopyDone,
    bulk: &mut dyn BulkSource,
) -> Result<u64, MirrorError> {
    clear(conn)?;
    for table in &schema.tables {
        run(conn, &ddl::create_table(table, &load_name(table)))?;
    }
    let parts_of = |table: &Table| {
        let id = table.id;
        done.parts.iter().filter(move |part| part.table == id)
    };
    let in_order: Vec<&BulkPart> = schema.tables.iter().flat_map(parts_of).collect();
    bulk.expect(done.attempt, &in_order);
    let mut rows = 0;
    for (at, table) in schema.tables.iter().enumerate() {
        bulk.progress(at, schema.tables.len());
        let plan = Plan::new(table, &load_name(table));
        for part in parts_of(table) {
            let bytes = bulk
                .rows(done.attempt, part)
                .map_err(|source| MirrorError::Bulk {
                    number: part.number,
                    source,
                })?;
            check(part, &bytes)?;
            rows += load_part(conn, wal, &plan, part, &bytes)?;
        }
        build_indexes(conn, wal, table)?;
    }
    if let Some(stray) = done
        .parts
        .iter()
        .find(|part| schema.table(part.table).is_none())
    {
        return Err(bad_part(stray, "its table is not in the copy"));
    }
    bulk.progress(schema.tables.len(), schema.tables.len());
    Ok(rows)
}

/// Gives the loaded tables their names; the caller commits.
pub(super) fn reveal(conn: &Connection, schema: &Schema) -> Result<(), MirrorError> {
    for table in &schema.tables {
        let name = table.mirror_name();
        ddl::rename_table(conn, &load_name(table), &name)?;
        meta::put_table(conn, &name, table)?;
    }
    Ok(())
}

/// Drops what an unfinished load left.
pub(super) fn clear(conn: &Connection) -> Result<(), MirrorError> {
    let failed = MirrorError::sqlite("drop an unfinished copy");
    let names: Vec<String> = conn
        .prepare("SELECT name FROM sqlite_schema WHERE type = 'table' AND substr(name, 1, 13) = ?1")
        .and_then(|mut select| select.query_map([PREFIX], |row| row.get(0))?.collect())
        .map_err(failed)?;
    names
        .iter()
        .try_for_each(|name| run(conn, &format!("DROP TABLE {}", quote(name))))
}

fn check(part: &BulkPart, bytes: &Bytes) -> Result<(), MirrorError> {
    if bytes.len() as u64 != part.raw_bytes {
        return Err(bad_part(part, "its length is not that of the Done frame"));
    }
    match Sha256::digest(bytes)[..] == part.rows_digest.0 {
        true => Ok(()),
        false => Err(bad_part(part, "its digest is not that of the Done frame")),
    }
}

fn load_part(
    conn: &Connection,
    wal: &mut Wal,
    plan: &Plan,
    part: &BulkPart,
    bytes: &Bytes,
) -> Result<u64, MirrorError> {
    let mut input = Input::new("bulk rows", bytes);
    let mut rows = 0;
    while !input.is_empty() {
        let from = input.offset();
        begin(conn)?;
        {
            let mut insert = conn
                .prepare_cached(plan.insert())
                .map_err(MirrorError::sqlite("prepare an insert"))?;
            while !input.is_empty() && input.offset() - from < COMMIT_BYTES {
                let row = Row::take(&mut input).map_err(|error| bad_row(part, &error))?;
                rows::insert(&mut insert, plan, &row).map_err(|error| load_error(part, error))?;
                rows += 1;
            }
        }
        commit(conn)?;
        wal.after_commit(conn)?;
    }
    match rows == part.rows {
        true => Ok(rows),
        false => Err(bad_part(
            part,
            "its row count is not that of the Done frame",
        )),
    }
}

fn build_indexes(conn: &Connection, wal: &mut Wal, table: &Table) -> Result<(), MirrorError> {
    let name = load_name(table);
    let carried = table
        .indexes
        .iter()
        .map(|index| ddl::create_index(table, index, &name));
    for sql in std::iter::once(ddl::create_key(table, &name)).chain(carried) {
        run(conn, &sql)?;
        wal.after_commit(conn)?;
    }
    Ok(())
}

fn begin(conn: &Connection) -> Result<(), MirrorError> {
    conn.execute_batch("BEGIN IMMEDIATE")
        .map_err(MirrorError::sqlite("begin a transaction"))
}

fn commit(conn: &Connection) -> Result<(), MirrorError> {
    conn.execute_batch("COMMIT")
        .map_err(MirrorError::sqlite("commit loaded rows"))
}

fn load_error(part: &BulkPart, error: RowError) -> MirrorError {
    match error {
        RowError::Decode(error) => bad_row(part, &error),
        RowError::Sqlite(source) => MirrorError::Sqlite {
            doing: "load a row",
            source,
        },
        RowError::Bad(reason) => bad_part(part, reason),
        RowError::Duplicate => bad_part(part, "it holds a row key twice"),
        RowError::Missing => bad_part(part, "a row was not inserted"),
    }
}

fn bad_row(part: &BulkPart, error: &DecodeError) -> MirrorError {
    bad_part(part, &error.to_string())
}

fn bad_part(part: &BulkPart, reason: &str) -> MirrorError {
    MirrorError::BadPart {
        number: part.number,
        reason: reason.to_owned(),
    }
}
