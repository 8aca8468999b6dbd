//! Writes an archive as a gateway would: first copy, transactions, fences.

use std::path::PathBuf;

use bytes::Bytes;
use rindle_archive::{
    Archive, BackupConfig, Commit, CommitKind, GenerationRecord, NewSegment, Writer,
};
use rindle_proto::body::{
    Attempt, Copied, CopyBegin, CopyDone, CopyScope, CopyTarget, PgMicros, TxnStart, put_txn_end,
    put_txn_start,
};
use rindle_proto::change::SchemaChange;
use rindle_proto::frame::{FrameFlags, FrameKind, FrameWriter};
use rindle_proto::ids::{EndLsn, FinalLsn, Generation, Lsn, Oid, Position, SourceName, Timeline};
use rindle_proto::op::{put_copied, put_insert, put_schema, put_update};
use rindle_proto::pgtype::Kind;
use rindle_proto::row::{put_cell, put_row_head};
use rindle_proto::schema::{Column, Schema, Table, TableId, Waiting};
use rindle_proto::value::ValueRef;
use tempfile::TempDir;

/// Snapshot position of the first copy.
pub(crate) const SNAPSHOT: u64 = 1000;
const TABLE: TableId = TableId(1);

/// The table that takes its place.
const NEXT: TableId = TableId(2);

/// An archive in a temporary directory and the session that writes it.
pub(crate) struct Gateway {
    pub(crate) dir: TempDir,
    pub(crate) archive: Archive,
    pub(crate) generation: Generation,
    writer: Writer,
    frames: FrameWriter,
    commit: Option<Commit>,
    before: Position,
    through: Lsn,
    /// How far the source's clock is off: a transaction commits when its `final_lsn` says in microseconds, and this.
    pub(crate) clock: i64,
}

/// `t(id bigint primary key, v text)`.
fn schema() -> Schema {
    let column = |attnum, name: &str, type_name: &str, kind| Column {
        attnum,
        name: name.to_owned(),
        type_name: type_name.to_owned(),
        type_oid: Oid(20),
        typmod: -1,
        kind,
        not_null: true,
    };
    let table = Table {
        id: TABLE,
        oid: Oid(500),
        schema: "public".to_owned(),
        name: "t".to_owned(),
        columns: vec![
            column(1, "id", "bigint", Kind::Int),
            column(2, "v", "text", Kind::Text),
        ],
        key: vec![0],
        indexes: vec![],
        leaves: vec![],
        waiting: None,
    };
    Schema {
        tables: vec![table],
    }
}

fn next() -> Table {
    let waiting = Waiting {
        replaces: Some(TABLE),
        live: false,
    };
    Table {
        id: NEXT,
        waiting: Some(waiting),
        ..schema().tables.remove(0)
    }
}

fn record(source: SourceName, generation: Generation) -> GenerationRecord {
    GenerationRecord {
        generation,
        slot: source.slot_name(generation),
        source,
        system_identifier: "1".to_owned(),
        timeline: Timeline(1),
        database: "d".to_owned(),
        publication: "p".to_owned(),
        posture: "fencing".to_owned(),
        minted_at_ms: 0,
        schema: schema(),
        proved: None,
        format: 1,
    }
}

fn put_row(out: &mut Vec<u8>, id: i64, v: &str) {
    put_row_head(out, 2);
    put_cell(out, ValueRef::Int(id));
    put_cell(out, ValueRef::Text(v));
}

impl Gateway {
    /// A generation whose log is taken over and empty.
    pub(crate) async fn minted() -> Self {
        let dir = TempDir::new().unwrap();
        let config = BackupConfig::Filesystem {
            path: dir.path().join("archive"),
        };
        let source: SourceName = "app".parse().unwrap();
        let archive = Archive::open(&config, &source).await.unwrap();
        let generation = Generation::from_bytes([7; 16]);
        let record = record(source, generation);
        archive.create_generation(&record).await.unwrap();
        archive.set_current(None, generation).await.unwrap();
        let taken = archive
            .log(generation)
            .take_over(Timeline(1))
            .await
            .unwrap();
        let position = taken.tail.position;
        Self {
            dir,
            archive,
            generation,
            writer: taken.writer,
            frames: FrameWriter::new(position),
            commit: None,
            before: position,
            through: Lsn(0),
            clock: 0,
        }
    }

    /// A newer generation, of which nothing is copied.
    pub(crate) async fn mint_another(&self) {
        let record = record("app".parse().unwrap(), Generation::from_bytes([8; 16]));
        self.archive.create_generation(&record).await.unwrap();
    }

    /// Turns a bit in the middle of the newest object of the log, which is named.
    pub(crate) fn damage_log(&self) -> PathBuf {
        let mut objects = crate::files(&self.dir.path().join("archive"));
        objects.retain(|path| path.extension().is_some_and(|ending| ending == "seg"));
        objects.sort();
        let newest = objects.pop().unwrap();
        let mut bytes = std::fs::read(&newest).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(&newest, bytes).unwrap();
        newest
    }

    /// A generation with `rows` rows copied.
    pub(crate) async fn copied(rows: i64) -> Self {
        let mut gateway = Self::minted().await;
        gateway.copy(rows).await;
        gateway.flush().await;
        gateway
    }

    async fn copy(&mut self, rows: i64) {
        let attempt = Attempt {
            epoch: self.writer.epoch(),
            number: 0,
        };
        let snapshot = Lsn(SNAPSHOT);
        let scope = CopyScope::Genesis(schema());
        self.copy_frame(
            FrameKind::CopyBegin,
            &CopyBegin {
                attempt,
                snapshot,
                scope,
                facts: serde_json::Value::Null,
            },
        );
        let log = self.archive.log(self.generation);
        let mut parts = Vec::new();
        for (number, ids) in (1..=rows).collect::<Vec<_>>().chunks(40).enumerate() {
            let mut bytes = Vec::new();
            ids.iter().for_each(|id| put_row(&mut bytes, *id, "copied"));
            let (number, count) = (number as u32, ids.len() as u64);
            parts.push(
                log.put_bulk(attempt, number, TABLE, count, bytes)
                    .await
                    .unwrap(),
            );
        }
        self.before = self.frames.position();
        let position = self.copy_frame(
            FrameKind::CopyDone,
            &CopyDone {
                attempt,
                snapshot,
                parts,
            },
        );
        self.through = snapshot;
        self.commit = Some(Commit {
            kind: CommitKind::CopyDone,
            position,
            before: self.before,
            final_lsn: FinalLsn(snapshot),
            end_lsn: EndLsn(snapshot),
            xid: 0,
            commit_time: PgMicros(0),
        });
    }

    fn copy_frame(&mut self, kind: FrameKind, body: &impl serde::Serialize) -> Position {
        let json = serde_json::to_vec(body).unwrap();
        self.frames.open().extend_from_slice(&json);
        self.frames
            .finish(kind, FrameFlags::WHOLE, Lsn(SNAPSHOT))
            .unwrap()
    }

    /// A transaction that inserts one row; it commits at `final_lsn` and ends 8 bytes later.
    pub(crate) fn insert(&mut self, final_lsn: u64, id: i64, v: &str) {
        self.part(final_lsn, true, true, |out| {
            put_insert(out, TABLE);
            put_row(out, id, v);
        });
    }

    pub(crate) fn update(&mut self, final_lsn: u64, id: i64, v: &str) {
        self.part(final_lsn, true, true, |out| {
            put_update(out, TABLE);
            put_row(out, id, v);
        });
    }

    /// The table is to be copied anew, as table 2; until then it stands still.
    pub(crate) fn migrate(&mut self, final_lsn: u64) {
        let create = SchemaChange::CreateTable { table: next() };
        self.part(final_lsn, true, true, |out| {
            put_schema(out, &create).unwrap();
        });
    }

    pub(crate) fn insert_waiting(&mut self, final_lsn: u64, id: i64, v: &str) {
        self.part(final_lsn, true, true, |out| {
            put_insert(out, NEXT);
            put_row(out, id, v);
        });
    }

    /// Its copy of `rows` rows as of `snapshot` is complete; their keys are below 1.
    pub(crate) async fn end_copy(&mut self, final_lsn: u64, snapshot: u64, rows: i64) {
        let attempt = Attempt {
            epoch: self.writer.epoch(),
            number: 1,
        };
        let log = self.archive.log(self.generation);
        let mut parts = Vec::new();
        for (number, ids) in (0..rows).collect::<Vec<_>>().chunks(7).enumerate() {
            let mut bytes = Vec::new();
            ids.iter().for_each(|id| put_row(&mut bytes, -id, "copied"));
            let (number, count) = (number as u32, ids.len() as u64);
            let put = log.put_bulk(attempt, number, NEXT, count, bytes);
            parts.push(put.await.unwrap());
        }
        let copied = Copied {
            attempt,
            snapshot: Lsn(snapshot),
            targets: vec![CopyTarget {
                target: NEXT,
                shape: next(),
            }],
            parts,
        };
        self.part(final_lsn, true, true, |out| {
            put_copied(out, &copied).unwrap();
        });
    }

    /// One part of a transaction that inserts one row in each part.
    pub(crate) fn insert_part(&mut self, final_lsn: u64, id: i64, first: bool, last: bool) {
        self.part(final_lsn, first, last, |out| {
            put_insert(out, TABLE);
            put_row(out, id, "part");
        });
    }

    fn part(&mut self, final_lsn: u64, first: bool, last: bool, ops: impl Fn(&mut Vec<u8>)) {
        let start = TxnStart {
            xid: 9,
            commit_time: PgMicros(final_lsn as i64 + self.clock),
        };
        let end_lsn = EndLsn(Lsn(final_lsn + 8));
        if first {
            self.before = self.frames.position();
        }
        let out = self.frames.open();
        if first {
            put_txn_start(out, start);
        }
        ops(out);
        if last {
            put_txn_end(out, end_lsn);
        }
        let position = self
            .frames
            .finish(FrameKind::Txn, FrameFlags { first, last }, Lsn(final_lsn))
            .unwrap();
        if last {
            self.through = end_lsn.0;
            self.commit = Some(Commit {
                kind: CommitKind::Txn,
                position,
                before: self.before,
                final_lsn: FinalLsn(Lsn(final_lsn)),
                end_lsn,
                xid: start.xid,
                commit_time: start.commit_time,
            });
        }
    }

    /// Puts everything since the last call into one log object.
    pub(crate) async fn flush(&mut self) {
        let first_seq = self.writer.position().seq.next();
        let segment = NewSegment {
            frames: Bytes::from(self.frames.take()),
            first_seq,
            last: self.frames.position(),
            last_commit: self.commit.take(),
            through_lsn: self.through,
            tick: false,
        };
        self.writer.append(segment).await.unwrap();
    }

    /// The source was idle up to `through`.
    pub(crate) async fn tick(&mut self, through: u64) {
        self.through = Lsn(through);
        let position = self.frames.position();
        let segment = NewSegment {
            frames: Bytes::new(),
            first_seq: position.seq.next(),
            last: position,
            last_commit: None,
            through_lsn: self.through,
            tick: true,
        };
        self.writer.append(segment).await.unwrap();
    }

    /// Another session takes the log over: what was not committed is discarded.
    pub(crate) async fn take_over(&mut self) {
        let taken = self
            .archive
            .log(self.generation)
            .take_over(Timeline(1))
            .await
            .unwrap();
        self.frames = FrameWriter::new(taken.tail.position);
        self.writer = taken.writer;
    }
}
