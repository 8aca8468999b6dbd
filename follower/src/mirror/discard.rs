//! Tables that nobody is shown any more. A small one is dropped where its transaction says so. Dropping a big one takes as
//! long as reading it, and every transaction behind it would wait; so it is taken out of sight there, and goes in small
//! slices afterwards, between transactions: its indexes, its rows from the last one on, itself. Each is read first by
//! another thread.

use std::collections::VecDeque;
use std::path::Path;

use rindle_proto::schema::TableId;
use rusqlite::{Connection, OptionalExtension as _};

use super::ahead::Slice;
use super::ddl::{self, quote, run};
use super::error::MirrorError;
use super::warm::{Wanted, Warmer};
use super::{leaf, load, local};

const PREFIX: &str = "_rindle_old_";

/// A table of no more rows than this is small.
const SMALL_ROWS: usize = 200;

/// Rows between two looks at the clock.
const STEP_ROWS: usize = 64;

/// Drops the table `name` of the file, or takes it out of sight.
pub(super) fn put_away(conn: &Connection, name: &str, id: TableId) -> Result<(), MirrorError> {
    let quoted = quote(name);
    let has_more = format!("SELECT 1 FROM {quoted} LIMIT 1 OFFSET {SMALL_ROWS}");
    let is_big = conn.query_row(&has_more, [], |_row| Ok(())).optional();
    match is_big.map_err(MirrorError::sqlite("look how big a table is"))? {
        None => run(conn, &format!("DROP TABLE {quoted}")),
        Some(()) => {
            // What replaces it has the same ones.
            local::drop_on(conn, name)?;
            ddl::rename_table(conn, name, &format!("{PREFIX}{}", id.0))
        }
    }
}

/// Those that are in the file.
pub(super) fn names(conn: &Connection) -> Result<VecDeque<String>, MirrorError> {
    let sql = "SELECT name FROM sqlite_schema WHERE type = 'table' AND substr(name, 1, 12) = ?1";
    let names = conn.prepare_cached(sql).and_then(|mut select| {
        let names = select.query_map([PREFIX], |row| row.get(0))?;
        names.collect()
    });
    names.map_err(MirrorError::sqlite("look for replaced tables"))
}

/// Drops them all at once.
pub(super) fn clear(conn: &Connection) -> Result<(), MirrorError> {
    let drop = |name: &String| run(conn, &format!("DROP TABLE {}", quote(name)));
    names(conn)?.iter().try_for_each(drop)
}

/// The tables of the file that are to go.
#[derive(Debug, Default)]
pub(super) struct Old {
    names: VecDeque<String>,
    warmer: Option<Warmer>,
    /// Rows at the end of the first of them that were read.
    warm: usize,
}

impl Old {
    /// Looks what is in the file.
    pub(super) fn look(&mut self, conn: &Connection) -> Result<(), MirrorError> {
        let names = names(conn)?;
        if names.front() != self.names.front() {
            self.warm = 0;
        }
        self.names = names;
        Ok(())
    }

    /// Leaves them in the file until the next look.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Does away with some of the first table, in a commit of its own.
    pub(super) fn slice(
        &mut self,
        conn: &Connection,
        path: &Path,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Slice, MirrorError> {
        let Some(name) = self.names.front() else {
            self.warmer = None;
            return Ok(Slice::Nothing);
        };
        let warmer = self.warmer.get_or_insert_with(|| Warmer::start(path));
        let index = index_of(conn, name)?;
        let row_id = match &index {
            Some(_) => None,
            None => row_id(conn, name)?,
        };
        let table = name.clone();
        let wanted = match (&index, row_id) {
            (Some(index), _) => Some(Wanted::Index {
                table,
                index: index.clone(),
            }),
            (None, Some(row_id)) if self.warm == 0 => Some(Wanted::LastRows { table, row_id }),
            (None, _) => None,
        };
        if let Some(wanted) = &wanted {
            let Some(rows) = warmer.poll(wanted) else {
                return Ok(Slice::Waits);
            };
            self.warm = if index.is_some() { 0 } else { rows };
        }
        load::begin(conn)?;
        match (index, row_id) {
            (Some(index), _) => run(conn, &format!("DROP INDEX {}", quote(&index)))?,
            (None, Some(row_id)) if !delete(conn, name, row_id, &mut self.warm, go_on)? => {}
            (None, _) => {
                run(conn, &format!("DROP TABLE {}", quote(name)))?;
                self.names.pop_front();
                self.warm = 0;
            }
        }
        load::commit(conn)?;
        Ok(Slice::Some)
    }
}

fn index_of(conn: &Connection, name: &str) -> Result<Option<String>, MirrorError> {
    let sql = "SELECT name FROM sqlite_schema WHERE type = 'index' AND tbl_name = ?1 LIMIT 1";
    let index = conn.query_row(sql, [name], |row| row.get(0)).optional();
    index.map_err(MirrorError::sqlite("look for an index of a replaced table"))
}

/// What the row ids of a table are called; none where they have no name beside its columns.
fn row_id(conn: &Connection, name: &str) -> Result<Option<&'static str>, MirrorError> {
    let columns: Result<Vec<String>, _> = conn
        .prepare_cached("SELECT name FROM pragma_table_info(?1)")
        .and_then(|mut select| select.query_map([name], |row| row.get(0))?.collect());
    let columns = columns.map_err(MirrorError::sqlite("look at a replaced table"))?;
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    Ok(leaf::row_id_beside(&columns))
}

/// Deletes rows that are `warm` from the last one on until `go_on` says no. True when there are none left.
fn delete(
    conn: &Connection,
    name: &str,
    row_id: &str,
    warm: &mut usize,
    go_on: &mut dyn FnMut() -> bool,
) -> Result<bool, MirrorError> {
    let failed = MirrorError::sqlite("delete rows of a replaced table");
    // From the end, pages go whole; from the beginning those that stay would be filled up again and again.
    let table = quote(name);
    let delete = format!(
        "DELETE FROM {table} WHERE {row_id} >= ifnull(
             (SELECT {row_id} FROM {table} ORDER BY {row_id} DESC LIMIT 1 OFFSET ?1), {})",
        i64::MIN
    );
    let mut delete = conn.prepare(&delete).map_err(&failed)?;
    while *warm > 0 {
        let step = STEP_ROWS.min(*warm);
        if delete.execute([step as i64 - 1]).map_err(&failed)? < step {
            return Ok(true);
        }
        *warm -= step;
        if !go_on() {
            break;
        }
    }
    Ok(false)
}
