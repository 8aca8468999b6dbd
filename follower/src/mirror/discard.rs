//! Tables that nobody is shown any more. A small one is dropped where its transaction says so. Dropping a big one takes as
//! long as reading it, and every transaction behind it would wait; so it is taken out of sight there, and goes in small
//! slices afterwards, between transactions: its indexes, its rows from the last one on, itself.

use std::collections::VecDeque;

use rindle_proto::schema::TableId;
use rusqlite::{Connection, OptionalExtension as _};

use super::ddl::{self, quote, run};
use super::error::MirrorError;
use super::{leaf, load, local};

const PREFIX: &str = "_rindle_old_";

/// A table of no more rows than this is small.
const SMALL_ROWS: usize = 1000;

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

/// Does away with some of the table `name`, in a commit of its own. True when it is gone.
pub(super) fn slice(
    conn: &Connection,
    name: &str,
    go_on: &mut dyn FnMut() -> bool,
) -> Result<bool, MirrorError> {
    load::begin(conn)?;
    let is_gone = match index_of(conn, name)? {
        Some(index) => {
            run(conn, &format!("DROP INDEX {}", quote(&index)))?;
            false
        }
        None => {
            let is_empty = delete(conn, name, go_on)?;
            if is_empty {
                run(conn, &format!("DROP TABLE {}", quote(name)))?;
            }
            is_empty
        }
    };
    load::commit(conn)?;
    Ok(is_gone)
}

fn index_of(conn: &Connection, name: &str) -> Result<Option<String>, MirrorError> {
    let sql = "SELECT name FROM sqlite_schema WHERE type = 'index' AND tbl_name = ?1 LIMIT 1";
    let index = conn.query_row(sql, [name], |row| row.get(0)).optional();
    index.map_err(MirrorError::sqlite("look for an index of a replaced table"))
}

/// Deletes rows from the last one on until `go_on` says no. True when there are none left, or they cannot be told apart.
fn delete(
    conn: &Connection,
    name: &str,
    go_on: &mut dyn FnMut() -> bool,
) -> Result<bool, MirrorError> {
    let failed = MirrorError::sqlite("delete rows of a replaced table");
    let columns: Result<Vec<String>, _> = conn
        .prepare("SELECT name FROM pragma_table_info(?1)")
        .and_then(|mut select| select.query_map([name], |row| row.get(0))?.collect());
    let columns = columns.map_err(&failed)?;
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    let Some(row_id) = leaf::row_id_beside(&columns) else {
        return Ok(true);
    };
    // From the end, pages go whole; from the beginning those that stay would be filled up again and again.
    let table = quote(name);
    let delete = format!(
        "DELETE FROM {table} WHERE {row_id} >= ifnull(
             (SELECT {row_id} FROM {table} ORDER BY {row_id} DESC LIMIT 1 OFFSET {}), {})",
        STEP_ROWS - 1,
        i64::MIN
    );
    let mut delete = conn.prepare(&delete).map_err(&failed)?;
    loop {
        if delete.execute([]).map_err(&failed)? < STEP_ROWS {
            return Ok(true);
        }
        if !go_on() {
            return Ok(false);
        }
    }
}
