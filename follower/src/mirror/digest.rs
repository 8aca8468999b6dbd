//! The mirror's half of verify: the canonical digest of a table, from the values as SQLite stores them.

use rindle_proto::row::{put_cell, put_row_head};
use rindle_proto::schema::Table;
use rindle_proto::value::ValueRef as Cell;
use rindle_proto::verify::TableDigest;
use rusqlite::Connection;
use rusqlite::types::ValueRef;

use super::ddl::quote;
use super::error::MirrorError;

/// Count and digest of all rows of `table` as `conn` sees them. Within a read transaction, several tables are
/// seen at one commit.
///
/// # Errors
/// When SQLite refuses, or a value has a type that no mirror holds.
pub fn table(conn: &Connection, table: &Table) -> Result<TableDigest, MirrorError> {
    let failed = MirrorError::sqlite("read a table for its digest");
    let columns: Vec<String> = table
        .columns
        .iter()
        .map(|column| quote(&column.name))
        .collect();
    let sql = format!(
        "SELECT {} FROM {}",
        columns.join(", "),
        quote(&table.mirror_name())
    );
    let mut statement = conn.prepare(&sql).map_err(&failed)?;
    let mut rows = statement.query([]).map_err(&failed)?;
    let mut digest = TableDigest::default();
    let mut bytes = Vec::new();
    while let Some(row) = rows.next().map_err(&failed)? {
        bytes.clear();
        put_row_head(&mut bytes, columns.len());
        for at in 0..columns.len() {
            let value = row.get_ref(at).map_err(&failed)?;
            put_cell(&mut bytes, cell(value, table)?);
        }
        digest.add_row(&bytes);
    }
    Ok(digest)
}

fn cell<'v>(value: ValueRef<'v>, table: &Table) -> Result<Cell<'v>, MirrorError> {
    let foreign = |reason: &str| MirrorError::Damaged {
        path: table.mirror_name().into(),
        reason: reason.to_owned(),
    };
    match value {
        ValueRef::Null => Ok(Cell::Null),
        ValueRef::Integer(number) => Ok(Cell::Int(number)),
        ValueRef::Real(number) => Ok(Cell::Real(number)),
        ValueRef::Text(text) => std::str::from_utf8(text)
            .map(Cell::Text)
            .map_err(|_not_utf8| foreign("a text is not UTF-8")),
        ValueRef::Blob(_) => Err(foreign("a value is a blob")),
    }
}
