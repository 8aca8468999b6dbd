//! Images: a mirror as one compact file at rest, and the proof that such a file is whole.

use std::path::Path;

use rindle_proto::schema::Schema;
use rusqlite::Connection;

use super::cursor::Cursor;
use super::ddl::quote;
use super::error::MirrorError;
use super::{Mirror, discard, meta, open_reader};

/// What a proved image holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageFacts {
    /// Where it stands.
    pub cursor: Cursor,
    /// Its tables.
    pub schema: Schema,
    /// Rows of each shown table, in the schema's order.
    pub rows: Vec<u64>,
}

/// Writes the mirror as of its last commit to `dest`, which must not exist. The file is compact, needs no
/// side file, and is on disk when this returns.
///
/// # Errors
/// When an incomplete transaction is open, or SQLite refuses.
pub fn write(mirror: &mut Mirror, dest: &Path) -> Result<(), MirrorError> {
    mirror.commit()?;
    if mirror.has_open_txn() {
        mirror.discard()?;
    }
    mirror.drop_ahead()?;
    discard::clear(&mirror.conn)?;
    let failed = MirrorError::sqlite("write an image");
    let name = dest.to_str().ok_or_else(|| MirrorError::Foreign {
        path: dest.to_path_buf(),
        reason: "its name is not UTF-8".to_owned(),
    })?;
    let conn = mirror.connection();
    conn.execute("VACUUM INTO ?1", [name]).map_err(failed)?;
    std::fs::File::open(dest)
        .and_then(|file| file.sync_all())
        .map_err(|error| MirrorError::Damaged {
            path: dest.to_path_buf(),
            reason: format!("it cannot be synced: {error}"),
        })
}

/// Opens an image and shows that it is whole: SQLite's own check, cursor and schema, a count of every row.
///
/// # Errors
/// When it is not an image of a complete mirror.
pub fn prove(path: &Path) -> Result<ImageFacts, MirrorError> {
    let conn = open_reader(path)?;
    check_integrity(&conn, path)?;
    let damaged = |reason: &str| MirrorError::Damaged {
        path: path.to_path_buf(),
        reason: reason.to_owned(),
    };
    let stored = meta::read(&conn, path)?.ok_or_else(|| damaged("it follows no generation"))?;
    if !stored.cursor.complete {
        return Err(damaged("its first copy is not complete"));
    }
    let count = |name: &String| {
        conn.query_row(
            &format!("SELECT count(*) FROM {}", quote(name)),
            [],
            |row| row.get::<_, i64>(0),
        )
    };
    let names = stored.schema.shown().map(|table| table.mirror_name());
    let rows: Result<Vec<i64>, _> = names.map(|name| count(&name)).collect();
    let rows = rows.map_err(MirrorError::sqlite("count the rows of an image"))?;
    Ok(ImageFacts {
        cursor: stored.cursor,
        schema: stored.schema,
        rows: rows.into_iter().map(i64::cast_unsigned).collect(),
    })
}

fn check_integrity(conn: &Connection, path: &Path) -> Result<(), MirrorError> {
    let verdict: String = conn
        .query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))
        .map_err(MirrorError::sqlite("check an image"))?;
    match verdict.as_str() {
        "ok" => Ok(()),
        _ => Err(MirrorError::Damaged {
            path: path.to_path_buf(),
            reason: verdict,
        }),
    }
}
