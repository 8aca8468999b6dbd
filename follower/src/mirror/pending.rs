//! What waits for a copy: changes of tables and partitions whose rows are not all there, in the order of the stream.
//! Written in the commit of the transaction they are of, read once, when the copy is complete.

use rindle_proto::ids::{FinalLsn, Lsn};
use rindle_proto::schema::TableId;
use rusqlite::{Connection, params};

use super::error::MirrorError;

/// Most bytes of operations in memory at once, beside one that is longer by itself.
const READ_BYTES: usize = 1 << 20;

/// One operation that waits.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) id: i64,
    pub(super) final_lsn: FinalLsn,
    /// As the frame carried it.
    pub(super) op: Vec<u8>,
}

/// Keeps an operation for `target`: the waiting table, or the waiting partition of a shown one.
pub(super) fn put(
    conn: &Connection,
    target: TableId,
    final_lsn: FinalLsn,
    op: &[u8],
) -> Result<(), MirrorError> {
    let sql = "INSERT INTO _rindle_pending (target, final_lsn, op) VALUES (?1, ?2, ?3)";
    let lsn = final_lsn.0.0.cast_signed();
    conn.prepare_cached(sql)
        .and_then(|mut insert| insert.execute(params![target.0, lsn, op]))
        .map_err(MirrorError::sqlite("keep an operation that waits"))?;
    Ok(())
}

/// What comes after entry `after`, up to a megabyte of it. No statement is left open: what is replayed may change
/// the schema.
pub(super) fn after(
    conn: &Connection,
    target: TableId,
    after: i64,
) -> Result<Vec<Entry>, MirrorError> {
    let failed = MirrorError::sqlite("read operations that wait");
    let sql =
        "SELECT id, final_lsn, op FROM _rindle_pending WHERE target = ?1 AND id > ?2 ORDER BY id";
    let mut select = conn.prepare_cached(sql).map_err(&failed)?;
    let mut rows = select.query(params![target.0, after]).map_err(&failed)?;
    let (mut entries, mut bytes) = (Vec::new(), 0);
    while bytes < READ_BYTES
        && let Some(row) = rows.next().map_err(&failed)?
    {
        let entry = Entry {
            id: row.get(0).map_err(&failed)?,
            final_lsn: FinalLsn(Lsn(row.get::<_, i64>(1).map_err(&failed)?.cast_unsigned())),
            op: row.get(2).map_err(&failed)?,
        };
        bytes += entry.op.len() + size_of::<Entry>();
        entries.push(entry);
    }
    Ok(entries)
}

/// Drops what waits for `target`.
pub(super) fn forget(conn: &Connection, target: TableId) -> Result<(), MirrorError> {
    conn.prepare_cached("DELETE FROM _rindle_pending WHERE target = ?1")
        .and_then(|mut delete| delete.execute([target.0]))
        .map_err(MirrorError::sqlite("drop operations that wait"))?;
    Ok(())
}
