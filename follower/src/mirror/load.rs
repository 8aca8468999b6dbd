//! Bulk rows of a copy. They go into `_rindle_load_<id>` tables in SQLite transactions of bounded size, their
//! indexes follow; who asked for them then gives the tables their names, in one commit. A crash in between leaves
//! nothing that counts: the next start clears it, and the load begins afresh.

use bytes::Bytes;
use rindle_proto::body::{Attempt, BulkPart};
use rindle_proto::codec::Input;
use rindle_proto::error::DecodeError;
use rindle_proto::row::Row;
use rindle_proto::schema::{Table, TableId};
use rusqlite::Connection;
use sha2::{Digest as _, Sha256};

use super::ddl::{self, quote, run};
use super::error::MirrorError;
use super::rows::{self, Plan, RowError};
use super::wal::Wal;
use super::{BulkSource, Copying};

const PREFIX: &str = "_rindle_load_";

/// Row bytes in one SQLite transaction.
const COMMIT_BYTES: usize = 64 << 20;

/// One table to be loaded.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Load {
    /// What it is for: a table, or one partition.
    pub(super) target: TableId,
    /// What its rows hold. Of a partition: the table that it is of, with it as its only one.
    pub(super) shape: Table,
}

/// The parts of a copy, and where they come from.
pub(super) struct Parts<'p> {
    pub(super) what: Copying,
    pub(super) attempt: Attempt,
    pub(super) parts: &'p [BulkPart],
    pub(super) bulk: &'p mut dyn BulkSource,
}

impl Load {
    pub(super) fn table(table: &Table) -> Self {
        Self {
            target: table.id,
            shape: table.clone(),
        }
    }

    /// Name in the file.
    pub(super) fn name(&self) -> String {
        name(self.target)
    }

    pub(super) fn is_leaf(&self) -> bool {
        self.target != self.shape.id
    }

    /// True for the parts that hold its rows: those of its partitions, where they are told apart.
    fn takes(&self, part: &BulkPart) -> bool {
        let leaves = &self.shape.leaves;
        let own = leaves.is_empty() && part.table == self.target;
        let of = |leaf: &rindle_proto::schema::Leaf| leaf.id == part.table && !leaf.waiting;
        own || leaves.iter().any(of)
    }

    /// For the rows of one of its parts.
    pub(super) fn plan(&self, part: &BulkPart) -> Result<Plan, MirrorError> {
        let leaf = (!self.shape.leaves.is_empty()).then_some(part.table);
        let plan = Plan::new(&self.shape, &self.name(), leaf);
        plan.map_err(|error| bad_part(part, &error.to_string()))
    }

    pub(super) fn indexes(&self) -> Vec<String> {
        let name = self.name();
        if self.is_leaf() {
            // Its rows move into the root's table, whose index has the other name.
            let index = format!("_rindle_load_key_{}", self.target.0);
            return vec![ddl::create_key_named(&index, &self.shape, &name)];
        }
        let indexes = self.shape.indexes.iter();
        let carried = indexes.map(|index| ddl::create_index(&self.shape, index, &name));
        let key = ddl::create_key(&self.shape, &name);
        std::iter::once(key).chain(carried).collect()
    }
}

/// The parts of `loads`, each with the number of its own, in the order of row ids.
pub(super) fn in_order<'p>(loads: &[Load], parts: &'p [BulkPart]) -> Vec<(usize, &'p BulkPart)> {
    let parts_of = |(at, load): (usize, &Load)| {
        let mut parts: Vec<_> = parts.iter().filter(|part| load.takes(part)).collect();
        parts.sort_by_key(|part| (part.table, part.number));
        parts.into_iter().map(move |part| (at, part))
    };
    loads.iter().enumerate().flat_map(parts_of).collect()
}

/// Loads every part of a copy into hidden tables. Gives the number of rows.
pub(super) fn parts(
    conn: &Connection,
    wal: &mut Wal,
    loads: &[Load],
    parts: &mut Parts<'_>,
) -> Result<u64, MirrorError> {
    let mut targets = loads.iter();
    targets.try_for_each(|load| drop_of(conn, load.target))?;
    let all = parts.parts;
    let taken = |part: &&BulkPart| loads.iter().any(|load| load.takes(part));
    if let Some(stray) = all.iter().find(|part| !taken(part)) {
        return Err(bad_part(stray, "its table is not in the copy"));
    }
    let in_order = in_order(loads, all);
    let expected: Vec<&BulkPart> = in_order.iter().map(|(_, part)| *part).collect();
    parts.bulk.expect(parts.attempt, &expected);
    let mut rows = 0;
    for (at, load) in loads.iter().enumerate() {
        parts.bulk.progress(parts.what, at, loads.len());
        run(conn, &ddl::create_table(&load.shape, &load.name()))?;
        let own = in_order.iter().filter(|(of, _)| *of == at);
        for (_, part) in own {
            let bytes = parts.bulk.rows(parts.attempt, part);
            let bytes = bytes.map_err(|source| MirrorError::Bulk {
                number: part.number,
                source,
            })?;
            check(part, &bytes)?;
            rows += load_part(conn, wal, load.plan(part)?, part, &bytes)?;
        }
        for sql in load.indexes() {
            run(conn, &sql)?;
            wal.after_commit(conn)?;
        }
    }
    parts.bulk.progress(parts.what, loads.len(), loads.len());
    Ok(rows)
}

fn name(target: TableId) -> String {
    format!("{PREFIX}{}", target.0)
}

/// Drops what was loaded for `target`, if anything was.
pub(super) fn drop_of(conn: &Connection, target: TableId) -> Result<(), MirrorError> {
    run(
        conn,
        &format!("DROP TABLE IF EXISTS {}", quote(&name(target))),
    )
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
        return Err(bad_part(part, "its length is not what the log says"));
    }
    match Sha256::digest(bytes)[..] == part.rows_digest.0 {
        true => Ok(()),
        false => Err(bad_part(part, "its digest is not what the log says")),
    }
}

fn load_part(
    conn: &Connection,
    wal: &mut Wal,
    mut plan: Plan,
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
                rows::insert(conn, &mut insert, &mut plan, &row)
                    .map_err(|error| load_error(part, error))?;
                rows += 1;
            }
        }
        commit(conn)?;
        wal.after_commit(conn)?;
    }
    match rows == part.rows {
        true => Ok(rows),
        false => Err(bad_part(part, "its row count is not what the log says")),
    }
}

pub(super) fn begin(conn: &Connection) -> Result<(), MirrorError> {
    conn.execute_batch("BEGIN IMMEDIATE")
        .map_err(MirrorError::sqlite("begin a transaction"))
}

pub(super) fn commit(conn: &Connection) -> Result<(), MirrorError> {
    conn.execute_batch("COMMIT")
        .map_err(MirrorError::sqlite("commit loaded rows"))
}

pub(super) fn load_error(part: &BulkPart, error: RowError) -> MirrorError {
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

pub(super) fn bad_row(part: &BulkPart, error: &DecodeError) -> MirrorError {
    bad_part(part, &error.to_string())
}

pub(super) fn bad_part(part: &BulkPart, reason: &str) -> MirrorError {
    MirrorError::BadPart {
        number: part.number,
        reason: reason.to_owned(),
    }
}
