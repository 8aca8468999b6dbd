//! Row ids of partitions: where a partition has an id of its own, its rows lie in the root's table under row ids
//! `id << 40 | n`, n from 1. So all of them go with one range delete, and no column tells readers of it.

use std::ops::RangeInclusive;

use rindle_proto::schema::{SchemaError, Table, TableId};
use rusqlite::{Connection, OptionalExtension};

use super::ddl::quote;
use super::rows::RowError;

/// Rows that a partition may have seen inserted since the row ids were last counted: a million million.
const BITS: u32 = 40;

/// Highest id whose row ids SQLite's 63 bits hold.
const MAX_ID: u32 = (1 << (63 - BITS)) - 1;

/// The next row id of one partition. Gaps do no harm: what a rollback took back need not come again.
#[derive(Debug)]
pub(super) struct RowIds {
    range: RangeInclusive<i64>,
    /// None until it was looked up.
    next: Option<i64>,
    newest: String,
}

impl RowIds {
    /// Those of `leaf` in `table`, whose name in the file is `name`.
    pub(super) fn new(table: &Table, name: &str, leaf: TableId) -> Result<Self, SchemaError> {
        let column = column(table)?;
        let range = range(table, leaf)?;
        let newest = format!(
            "SELECT {column} FROM {} WHERE {column} BETWEEN ?1 AND ?2 ORDER BY {column} DESC LIMIT 1",
            quote(name)
        );
        let next = None;
        Ok(Self {
            range,
            next,
            newest,
        })
    }

    pub(super) fn take(&mut self, conn: &Connection) -> Result<i64, RowError> {
        let next = match self.next {
            Some(next) => next,
            None => {
                let bounds = [self.range.start(), self.range.end()];
                let newest = conn.query_row(&self.newest, bounds, |row| row.get::<_, i64>(0));
                newest.optional()?.unwrap_or(*self.range.start()) + 1
            }
        };
        if next > *self.range.end() {
            return Err(RowError::Bad("its partition has no row id left"));
        }
        self.next = Some(next + 1);
        Ok(next)
    }
}

/// The name by which statements reach the row id: one that no column of the table has taken.
pub(super) fn column(table: &Table) -> Result<&'static str, SchemaError> {
    let names = table.columns.iter().map(|column| column.name.as_str());
    row_id_beside(&names.collect::<Vec<_>>()).ok_or_else(|| SchemaError {
        object: table.mirror_name(),
        reason: "columns take every name of SQLite's row id, which tells its partitions apart"
            .to_owned(),
    })
}

/// As [`column`], beside columns of these names; none when they take all three.
pub(super) fn row_id_beside(columns: &[&str]) -> Option<&'static str> {
    let is_taken = |name: &str| columns.iter().any(|it| it.eq_ignore_ascii_case(name));
    ["rowid", "_rowid_", "oid"]
        .into_iter()
        .find(|name| !is_taken(name))
}

/// Says by name when `table` cannot keep the rows of `leaf` apart.
pub(super) fn check(table: &Table, leaf: TableId) -> Result<(), SchemaError> {
    column(table)?;
    range(table, leaf).map(drop)
}

/// Row ids of a partition; the first is never used.
fn range(table: &Table, leaf: TableId) -> Result<RangeInclusive<i64>, SchemaError> {
    if leaf.0 > MAX_ID {
        return Err(SchemaError {
            object: table.mirror_name(),
            reason: format!("partition #{} is beyond #{MAX_ID}", leaf.0),
        });
    }
    let first = i64::from(leaf.0) << BITS;
    Ok(first..=first | ((1 << BITS) - 1))
}

/// The statement that deletes every row of a partition.
pub(super) fn clear_sql(table: &Table, name: &str, leaf: TableId) -> Result<String, SchemaError> {
    let (column, range) = (column(table)?, range(table, leaf)?);
    Ok(format!(
        "DELETE FROM {} WHERE {column} BETWEEN {} AND {}",
        quote(name),
        range.start(),
        range.end()
    ))
}
