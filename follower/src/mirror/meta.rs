//! Our own tables in the mirror file: whose file it is, the cursor, and the sidecars that tell readers the exact
//! Postgres type of each column.
//!
//! | table | one row for | written |
//! |---|---|---|
//! | `_rindle_state` | `cursor`, `schema`: a JSON document each | every commit; every schema change |
//! | `_rindle_source_offsets` | the source: position in text form, for readers | every commit |
//! | `_rindle_tables` | a shown table | with the change |
//! | `_rindle_columns` | a column of one | with the change |
//! | `_rindle_pending` | an operation that waits for a copy | with its transaction, see [`super::pending`] |

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use rindle_proto::schema::{Schema, Table, TableId};
use rusqlite::{Connection, OptionalExtension, params};

use super::cursor::{Cursor, CursorDoc};
use super::error::MirrorError;

/// `RNDL`: tells our files from any other SQLite file.
const APPLICATION_ID: i32 = 0x524e_444c;

/// How every SQLite file begins, and where its header keeps the application id.
const SQLITE_MAGIC: &[u8] = b"SQLite format 3\0";
const APPLICATION_ID_AT: usize = 68;

/// Version of everything in this file; a reader of another version refuses.
const FORMAT: i32 = 1;

const TABLES: &str = "
    CREATE TABLE _rindle_state (name TEXT PRIMARY KEY, value TEXT NOT NULL);
    CREATE TABLE _rindle_source_offsets (
        source TEXT PRIMARY KEY, offset TEXT NOT NULL,
        chunk_seq INTEGER NOT NULL DEFAULT 9223372036854775807,
        run_id TEXT, batch_hash TEXT, run_rows INTEGER, rows_cum INTEGER, committed_at INTEGER);
    CREATE TABLE _rindle_tables (
        table_name TEXT PRIMARY KEY, pg_schema TEXT NOT NULL, pg_table TEXT NOT NULL, relid INTEGER NOT NULL,
        state TEXT NOT NULL, key_columns TEXT NOT NULL);
    CREATE TABLE _rindle_columns (
        table_name TEXT NOT NULL, column_name TEXT NOT NULL, ordinal INTEGER NOT NULL, pg_type TEXT NOT NULL,
        pg_type_oid INTEGER NOT NULL, pg_typmod INTEGER NOT NULL, rindle_type TEXT NOT NULL,
        nullable INTEGER NOT NULL, key_ordinal INTEGER, hidden INTEGER NOT NULL,
        PRIMARY KEY (table_name, column_name));
    CREATE TABLE _rindle_pending (
        id INTEGER PRIMARY KEY, target INTEGER NOT NULL, final_lsn INTEGER NOT NULL, op BLOB NOT NULL);
    CREATE INDEX _rindle_pending_target ON _rindle_pending (target);";

/// What a mirror file says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Where it stands.
    pub cursor: Cursor,
    /// Its tables; none before the first copy is complete.
    pub schema: Schema,
}

/// True when there is a file at `path` with something in it.
pub(super) fn holds_bytes(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|file| !file.is_file() || file.len() > 0)
}

/// Refuses a file that does not carry our mark: it may be anything, and whoever made it wants to keep it. Looks at
/// the bytes, for SQLite calls a file of another program damaged.
///
/// # Errors
/// When it is none of ours, or cannot be read.
pub fn check_mark(path: &Path) -> Result<(), MirrorError> {
    let foreign = |reason: String| MirrorError::Foreign {
        path: path.to_path_buf(),
        reason: format!("{reason}; move it away, or set another path"),
    };
    let mut header = [0; APPLICATION_ID_AT + 4];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut header));
    match read {
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
            return Err(foreign("it is no SQLite file".to_owned()));
        }
        Err(error) => return Err(foreign(format!("it cannot be read ({error})"))),
        Ok(()) => {}
    }
    if !header.starts_with(SQLITE_MAGIC) {
        return Err(foreign("it is no SQLite file".to_owned()));
    }
    match header.ends_with(&APPLICATION_ID.to_be_bytes()) {
        true => Ok(()),
        false => Err(foreign("another program made it".to_owned())),
    }
}

/// Makes a mirror at `path`, where nothing is: under another name first, so that a kill leaves a whole one or none.
#[expect(
    clippy::disallowed_methods,
    reason = "SQLite has synced the content; a name that a power loss takes back is made anew"
)]
pub(super) fn create(path: &Path) -> Result<(), MirrorError> {
    let fresh = beside(path, ".rindle-fresh");
    let file_failed = |source| MirrorError::Create {
        path: path.to_path_buf(),
        source,
    };
    // A log beside `path` would be replayed into what is put there.
    let left = ["", "-wal", "-shm", "-journal"].map(|ending| beside(&fresh, ending));
    let stale = ["-wal", "-shm", "-journal"].map(|ending| beside(path, ending));
    for file in left.iter().chain(&stale) {
        match std::fs::remove_file(file) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(file_failed(error));
            }
            Ok(()) | Err(_) => {}
        }
    }
    let failed = MirrorError::sqlite("make a new mirror file");
    let conn = Connection::open(&fresh).map_err(&failed)?;
    let marks = format!(
        "PRAGMA journal_mode = WAL; BEGIN; PRAGMA application_id = {APPLICATION_ID};
         PRAGMA user_version = {FORMAT}; {TABLES} COMMIT;"
    );
    conn.execute_batch(&marks).map_err(&failed)?;
    // Closing moves the log into the file and removes it.
    conn.close().map_err(|(_conn, error)| failed(error))?;
    std::fs::rename(&fresh, path).map_err(file_failed)
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

pub(super) fn check_format(conn: &Connection, path: &Path) -> Result<(), MirrorError> {
    let foreign = |reason: String| MirrorError::Foreign {
        path: path.to_path_buf(),
        reason,
    };
    if pragma(conn, "application_id")? != APPLICATION_ID {
        return Err(foreign("another program made it".to_owned()));
    }
    match pragma(conn, "user_version")? {
        FORMAT => Ok(()),
        other => Err(foreign(format!(
            "its format is {other}, this program knows {FORMAT}"
        ))),
    }
}

fn pragma(conn: &Connection, name: &str) -> Result<i32, MirrorError> {
    conn.pragma_query_value(None, name, |row| row.get(0))
        .map_err(MirrorError::sqlite("read the mirror file's header"))
}

/// What the mirror file of `conn` says about itself; `None` for one that follows no generation yet. `path`
/// stands in errors only.
///
/// # Errors
/// When it is no mirror, or its documents do not parse.
pub fn read(conn: &Connection, path: &Path) -> Result<Option<Stored>, MirrorError> {
    check_format(conn, path)?;
    let damaged = |what: &str, error: serde_json::Error| MirrorError::Damaged {
        path: path.to_path_buf(),
        reason: format!("its {what} does not parse: {error}"),
    };
    let Some(cursor) = state(conn, "cursor")? else {
        return Ok(None);
    };
    let cursor: CursorDoc =
        serde_json::from_str(&cursor).map_err(|error| damaged("cursor", error))?;
    let schema = match state(conn, "schema")? {
        Some(json) => serde_json::from_str(&json).map_err(|error| damaged("schema", error))?,
        None => Schema::default(),
    };
    Ok(Some(Stored {
        cursor: cursor.into(),
        schema,
    }))
}

fn state(conn: &Connection, name: &str) -> Result<Option<String>, MirrorError> {
    conn.query_row(
        "SELECT value FROM _rindle_state WHERE name = ?1",
        [name],
        |row| row.get(0),
    )
    .optional()
    .map_err(MirrorError::sqlite("read the mirror's state"))
}

pub(super) fn write_cursor(
    conn: &Connection,
    source: &str,
    cursor: &Cursor,
) -> Result<(), MirrorError> {
    let document = serde_json::to_string(&CursorDoc::from(cursor))
        .expect("a document of numbers and strings is JSON");
    put_document(conn, "cursor", &document)?;
    let sql = "INSERT INTO _rindle_source_offsets (source, offset, batch_hash, committed_at)
               VALUES (?1, ?2, ?3, ?4) ON CONFLICT (source) DO UPDATE SET
               offset = excluded.offset, batch_hash = excluded.batch_hash, committed_at = excluded.committed_at";
    let values = params![
        source,
        cursor.offset(),
        cursor.position.chain.to_hex(),
        cursor.commit_time.map(|time| time.unix_ms()),
    ];
    conn.prepare_cached(sql)
        .and_then(|mut statement| statement.execute(values))
        .map_err(MirrorError::sqlite("write the cursor"))?;
    Ok(())
}

pub(super) fn write_schema(conn: &Connection, schema: &Schema) -> Result<(), MirrorError> {
    let document =
        serde_json::to_string(schema).expect("a document of numbers and strings is JSON");
    put_document(conn, "schema", &document)
}

fn put_document(conn: &Connection, name: &str, value: &str) -> Result<(), MirrorError> {
    let sql = "INSERT INTO _rindle_state (name, value) VALUES (?1, ?2)
               ON CONFLICT (name) DO UPDATE SET value = excluded.value";
    conn.prepare_cached(sql)
        .and_then(|mut statement| statement.execute([name, value]))
        .map_err(MirrorError::sqlite("write the mirror's state"))?;
    Ok(())
}

/// Writes the sidecar rows of a shown table of `schema`, in place of those under `old_name`.
pub(super) fn put_table(
    conn: &Connection,
    old_name: &str,
    schema: &Schema,
    table: &Table,
) -> Result<(), MirrorError> {
    remove_table(conn, old_name)?;
    let name = table.mirror_name();
    let failed = MirrorError::sqlite("write the column sidecar");
    let keys: Vec<&str> = table
        .key
        .iter()
        .map(|at| table.columns[*at].name.as_str())
        .collect();
    let keys = serde_json::to_string(&keys).expect("strings are JSON");
    let state = state_of(schema, table.id);
    let values = params![name, table.schema, table.name, table.oid.0, state, keys];
    conn.prepare_cached("INSERT INTO _rindle_tables VALUES (?1, ?2, ?3, ?4, ?5, ?6)")
        .and_then(|mut insert| insert.execute(values))
        .map_err(&failed)?;
    let mut insert = conn
        .prepare_cached("INSERT INTO _rindle_columns VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,0)")
        .map_err(&failed)?;
    for (at, column) in table.columns.iter().enumerate() {
        let key_ordinal = table.key.iter().position(|key| *key == at).map(number);
        let values = params![
            name,
            column.name,
            number(at),
            column.type_name,
            column.type_oid.0,
            column.typmod,
            column.kind.wire(),
            !column.not_null,
            key_ordinal,
        ];
        insert.execute(values).map_err(&failed)?;
    }
    Ok(())
}

/// Writes the state of a shown table, when there still is one.
pub(super) fn put_state(
    conn: &Connection,
    schema: &Schema,
    id: TableId,
) -> Result<(), MirrorError> {
    let Some(table) = schema.table(id) else {
        return Ok(());
    };
    let sql = "UPDATE _rindle_tables SET state = ?2 WHERE table_name = ?1";
    conn.prepare_cached(sql)
        .and_then(|mut update| update.execute([&table.mirror_name(), state_of(schema, id)]))
        .map_err(MirrorError::sqlite("write the state of a table"))?;
    Ok(())
}

/// `frozen`: the table stands still until another takes its place.
fn state_of(schema: &Schema, id: TableId) -> &'static str {
    let successor = schema.successor(id).and_then(|table| table.waiting);
    match successor.is_some_and(|waiting| !waiting.live) {
        true => "frozen",
        false => "ready",
    }
}

/// Columns and key columns are counted from 1, as Postgres does.
fn number(at: usize) -> i64 {
    at as i64 + 1
}

pub(super) fn remove_table(conn: &Connection, name: &str) -> Result<(), MirrorError> {
    for sql in [
        "DELETE FROM _rindle_tables WHERE table_name = ?1",
        "DELETE FROM _rindle_columns WHERE table_name = ?1",
    ] {
        conn.prepare_cached(sql)
            .and_then(|mut delete| delete.execute([name]))
            .map_err(MirrorError::sqlite("write the column sidecar"))?;
    }
    Ok(())
}
