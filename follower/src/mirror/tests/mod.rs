//! Tests of the mirror: a hand that writes logs as a gateway would, and an eye that reads the file with a
//! connection of its own.

mod ahead;
mod copy;
mod faults;
mod files;
mod leaves;
mod model;
mod model_waiting;
mod schema;
mod values;
mod waiting;
mod world;

use bytes::Bytes;
use rindle_proto::body::*;
use rindle_proto::change::SchemaChange;
use rindle_proto::frame::{Frame, FrameFlags, FrameKind, FrameReader, FrameWriter};
use rindle_proto::ids::*;
use rindle_proto::op;
use rindle_proto::pgtype::Kind;
use rindle_proto::row::{put_cell, put_row_head};
use rindle_proto::schema::{Column, Schema, Table, TableId};
use rindle_proto::value::ValueRef;
use rusqlite::types::Value;
use sha2::{Digest as _, Sha256};

use super::*;

/// A cell that owns its text. `Same` is a cell left unchanged.
#[derive(Clone, Debug, PartialEq, PartialOrd)]
pub(crate) enum V {
    Null,
    Same,
    Int(i64),
    Real(f64),
    Text(String),
}

pub(crate) fn text(value: &str) -> V {
    V::Text(value.to_owned())
}

impl V {
    fn as_cell(&self) -> ValueRef<'_> {
        match self {
            V::Null => ValueRef::Null,
            V::Same => ValueRef::Unchanged,
            V::Int(number) => ValueRef::Int(*number),
            V::Real(number) => ValueRef::Real(*number),
            V::Text(text) => ValueRef::Text(text),
        }
    }
}

/// One operation, as a test writes it.
#[derive(Clone, Debug)]
pub(crate) enum O {
    Insert(u32, Vec<V>),
    Update(u32, Vec<V>),
    Rekey(u32, Vec<V>, Vec<V>),
    Delete(u32, Vec<V>),
    Truncate(Vec<u32>),
    Schema(SchemaChange),
    Copied(Copied),
    Copying(Copied),
    Facts(Vec<u8>),
}

fn put(out: &mut Vec<u8>, cells: &[V]) {
    put_row_head(out, cells.len());
    cells.iter().for_each(|cell| put_cell(out, cell.as_cell()));
}

fn put_op(out: &mut Vec<u8>, operation: &O) {
    match operation {
        O::Insert(table, row) => {
            op::put_insert(out, TableId(*table));
            put(out, row);
        }
        O::Update(table, row) => {
            op::put_update(out, TableId(*table));
            put(out, row);
        }
        O::Rekey(table, key, row) => {
            op::put_rekey(out, TableId(*table));
            put(out, key);
            put(out, row);
        }
        O::Delete(table, key) => {
            op::put_delete(out, TableId(*table));
            put(out, key);
        }
        O::Truncate(tables) => {
            let tables: Vec<_> = tables.iter().map(|id| TableId(*id)).collect();
            op::put_truncate(out, &tables);
        }
        O::Schema(change) => op::put_schema(out, change).unwrap(),
        O::Copied(copied) => op::put_copied(out, copied).unwrap(),
        O::Copying(copied) => op::put_copying(out, copied).unwrap(),
        O::Facts(json) => op::put_facts(out, json),
    }
}

/// Writes a log, and gives its bulk parts.
pub(crate) struct Log {
    pub(crate) writer: FrameWriter,
    /// `final_lsn` of the last transaction; each one adds 10.
    pub(crate) lsn: u64,
    pub(crate) parts: Vec<Bytes>,
    /// All frames written, as bytes.
    pub(crate) raw: Vec<Bytes>,
}

impl BulkSource for Log {
    fn rows(&mut self, _attempt: Attempt, part: &BulkPart) -> Result<Bytes, BulkError> {
        Ok(self.parts[part.number as usize].clone())
    }
}

/// For logs without bulk parts.
pub(crate) struct NoBulk;

impl BulkSource for NoBulk {
    fn rows(&mut self, _attempt: Attempt, _part: &BulkPart) -> Result<Bytes, BulkError> {
        Err(BulkError::Unavailable("there are no parts".into()))
    }
}

pub(crate) const ATTEMPT: Attempt = Attempt {
    epoch: Epoch(1),
    number: 0,
};

pub(crate) fn generation() -> Generation {
    Generation::from_bytes([9; 16])
}

impl Log {
    pub(crate) fn new() -> Self {
        Self::of(generation())
    }

    pub(crate) fn of(generation: Generation) -> Self {
        Self {
            writer: FrameWriter::new(Position::start(generation)),
            lsn: 1000,
            parts: Vec::new(),
            raw: Vec::new(),
        }
    }

    fn frame(&mut self, kind: FrameKind, flags: FrameFlags, payload: &[u8]) -> Frame {
        self.writer.open().extend_from_slice(payload);
        self.writer.finish(kind, flags, Lsn(self.lsn)).unwrap();
        let bytes = Bytes::from(self.writer.take());
        self.raw.push(bytes.clone());
        let mut reader = FrameReader::new();
        reader.push(bytes);
        reader.next_frame().unwrap().unwrap()
    }

    /// Begin and Done of a first copy with these rows.
    pub(crate) fn genesis(&mut self, schema: &Schema, rows: &[(u32, Vec<V>)]) -> [Frame; 2] {
        let parts = self.put_parts(schema, rows);
        self.genesis_of(schema, parts)
    }

    /// The same with parts that are there already.
    pub(crate) fn genesis_of(&mut self, schema: &Schema, parts: Vec<BulkPart>) -> [Frame; 2] {
        let attempt = ATTEMPT;
        let snapshot = Lsn(self.lsn);
        let begin = CopyBegin {
            attempt,
            snapshot,
            scope: CopyScope::Genesis(schema.clone()),
            facts: serde_json::Value::Null,
        };
        let done = CopyDone {
            attempt,
            snapshot,
            parts,
        };
        let json = |value: serde_json::Result<Vec<u8>>| value.unwrap();
        let begin = json(serde_json::to_vec(&begin));
        let done = json(serde_json::to_vec(&done));
        [
            self.frame(FrameKind::CopyBegin, FrameFlags::WHOLE, &begin),
            self.frame(FrameKind::CopyDone, FrameFlags::WHOLE, &done),
        ]
    }

    /// The end of a backfill of these targets, in these shapes, with the rows of its parts.
    pub(crate) fn copied(
        &mut self,
        snapshot: u64,
        targets: &[(u32, &Table)],
        rows: &[(u32, Vec<V>)],
    ) -> Copied {
        let mut ids: Vec<u32> = rows.iter().map(|(id, _)| *id).collect();
        ids.dedup();
        let parts = self.parts_of(ids, rows);
        let targets = targets.iter().map(|(id, shape)| CopyTarget {
            target: TableId(*id),
            shape: (*shape).clone(),
        });
        Copied {
            attempt: ATTEMPT,
            snapshot: Lsn(snapshot),
            targets: targets.collect(),
            parts,
        }
    }

    pub(crate) fn put_parts(&mut self, schema: &Schema, rows: &[(u32, Vec<V>)]) -> Vec<BulkPart> {
        let leaves = |table: &Table| {
            table
                .leaves
                .iter()
                .map(|leaf| leaf.id.0)
                .collect::<Vec<_>>()
        };
        let ids = schema.tables.iter().flat_map(|table| {
            let own = std::iter::once(table.id.0);
            own.chain(leaves(table))
        });
        self.parts_of(ids.collect(), rows)
    }

    fn parts_of(&mut self, ids: Vec<u32>, rows: &[(u32, Vec<V>)]) -> Vec<BulkPart> {
        let mut parts = Vec::new();
        for table in ids {
            let mine: Vec<_> = rows.iter().filter(|(id, _)| *id == table).collect();
            for chunk in mine.chunks(3) {
                let mut bytes = Vec::new();
                chunk.iter().for_each(|(_, row)| put(&mut bytes, row));
                parts.push(BulkPart {
                    number: self.parts.len() as u32,
                    table: TableId(table),
                    rows: chunk.len() as u64,
                    raw_bytes: bytes.len() as u64,
                    stored_bytes: 1,
                    rows_digest: Digest(Sha256::digest(&bytes).into()),
                });
                self.parts.push(bytes.into());
            }
        }
        parts
    }

    /// A transaction, cut into parts before the operations at `cuts`.
    pub(crate) fn parts(&mut self, ops: &[O], cuts: &[usize]) -> Vec<Frame> {
        self.lsn += 10;
        let mut payloads = vec![Vec::new()];
        let start = TxnStart {
            xid: 7,
            commit_time: PgMicros(self.lsn as i64),
        };
        put_txn_start(&mut payloads[0], start);
        for (at, operation) in ops.iter().enumerate() {
            if at > 0 && cuts.contains(&at) {
                payloads.push(Vec::new());
            }
            put_op(payloads.last_mut().unwrap(), operation);
        }
        let last = payloads.len() - 1;
        put_txn_end(&mut payloads[last], EndLsn(Lsn(self.lsn + 8)));
        let payloads: Vec<_> = payloads.into_iter().enumerate().collect();
        payloads
            .iter()
            .map(|(at, payload)| {
                let flags = FrameFlags {
                    first: *at == 0,
                    last: *at == last,
                };
                self.frame(FrameKind::Txn, flags, payload)
            })
            .collect()
    }

    pub(crate) fn txn(&mut self, ops: &[O]) -> Frame {
        self.parts(ops, &[]).remove(0)
    }
}

pub(crate) fn column(at: usize, name: &str, kind: Kind) -> Column {
    Column {
        attnum: at as i16 + 1,
        name: name.to_owned(),
        type_name: format!("type of {name}"),
        type_oid: Oid(20 + at as u32),
        typmod: -1,
        kind,
        not_null: at == 0,
    }
}

/// A table in `public` with columns named and typed, keyed by `key`.
pub(crate) fn table(id: u32, name: &str, columns: &[(&str, Kind)], key: &[usize]) -> Table {
    let columns = columns.iter().enumerate();
    Table {
        id: TableId(id),
        oid: Oid(16_000 + id),
        schema: "public".to_owned(),
        name: name.to_owned(),
        columns: columns
            .map(|(at, (name, kind))| column(at, name, *kind))
            .collect(),
        key: key.to_vec(),
        indexes: Vec::new(),
        leaves: Vec::new(),
        waiting: None,
    }
}

/// An int-keyed table 1 `t` and a table 2 `pair` with a key of text and int.
pub(crate) fn two_tables() -> Schema {
    Schema {
        tables: vec![
            table(
                1,
                "t",
                &[
                    ("id", Kind::Int),
                    ("a", Kind::Text),
                    ("b", Kind::Float),
                    ("c", Kind::Bool),
                ],
                &[0],
            ),
            table(
                2,
                "pair",
                &[("x", Kind::Text), ("y", Kind::Int), ("z", Kind::Json)],
                &[1, 0],
            ),
        ],
    }
}

pub(crate) fn row(id: i64, a: &str) -> Vec<V> {
    vec![V::Int(id), text(a), V::Real(0.5), V::Int(1)]
}

/// A mirror in a directory of its own.
pub(crate) struct Env {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) mirror: Mirror,
    pub(crate) log: Log,
}

impl Env {
    pub(crate) fn empty() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut mirror = Mirror::open(dir.path().join("m.db"), MirrorOptions::default()).unwrap();
        mirror.start(generation()).unwrap();
        Self {
            dir,
            mirror,
            log: Log::new(),
        }
    }

    /// With a first copy of `rows`.
    pub(crate) fn with(schema: &Schema, rows: &[(u32, Vec<V>)]) -> Self {
        let mut env = Self::empty();
        for frame in env.log.genesis(schema, rows) {
            env.mirror.apply(&frame, &mut env.log).unwrap();
        }
        env
    }

    pub(crate) fn apply(&mut self, ops: &[O]) -> Result<Applied, MirrorError> {
        let frame = self.log.txn(ops);
        self.mirror.apply(&frame, &mut NoBulk)
    }

    /// Applies and commits.
    pub(crate) fn run(&mut self, ops: &[O]) {
        self.apply(ops).unwrap();
        assert!(self.mirror.commit().unwrap());
    }

    /// Opens the file again, as after a crash: nothing of the old mirror's memory is left.
    pub(crate) fn reopen(self) -> Self {
        let Env { dir, mirror, log } = self;
        drop(mirror);
        let mirror = Mirror::open(dir.path().join("m.db"), MirrorOptions::default()).unwrap();
        Self { dir, mirror, log }
    }

    pub(crate) fn reader(&self) -> Connection {
        open_reader(self.mirror.path()).unwrap()
    }

    pub(crate) fn rows(&self, sql: &str) -> Vec<Vec<V>> {
        select(&self.reader(), sql)
    }
}

/// All rows of a query.
pub(crate) fn select(conn: &Connection, sql: &str) -> Vec<Vec<V>> {
    let mut statement = conn.prepare(sql).unwrap();
    let width = statement.column_count();
    let read = |row: &rusqlite::Row<'_>| (0..width).map(|at| Ok(own(row.get(at)?))).collect();
    let rows = statement.query_map([], read).unwrap();
    rows.collect::<Result<_, _>>().unwrap()
}

fn own(value: Value) -> V {
    match value {
        Value::Null => V::Null,
        Value::Integer(number) => V::Int(number),
        Value::Real(number) => V::Real(number),
        Value::Text(text) => V::Text(text),
        Value::Blob(_) => panic!("no mirror holds a blob"),
    }
}

/// Tables that stock `sqlite3` would show besides ours.
pub(crate) fn shown(conn: &Connection) -> Vec<V> {
    let sql = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE '\\_rindle\\_%' ESCAPE '\\'
               ORDER BY name";
    select(conn, sql)
        .into_iter()
        .map(|mut row| row.remove(0))
        .collect()
}
