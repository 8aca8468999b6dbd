//! How fast a mirror loads and applies, without network and archive:
//! `cargo run --release -p rindle-follower --example mirror_bench -- [rows] [updates] [int|text] [ops a transaction]`

use std::time::Instant;

use anyhow::Context as _;
use bytes::Bytes;
use rindle_follower::mirror::{BulkError, BulkSource, Mirror, MirrorOptions};
use rindle_proto::body::*;
use rindle_proto::change::SchemaChange;
use rindle_proto::frame::*;
use rindle_proto::ids::*;
use rindle_proto::op::{put_copied, put_insert, put_schema, put_update};
use rindle_proto::pgtype::Kind;
use rindle_proto::row::{put_cell, put_row_head};
use rindle_proto::schema::{Column, Schema, Table, TableId, Waiting};
use rindle_proto::value::ValueRef;
use sha2::{Digest as _, Sha256};

const GROUP: u64 = 100_000;

struct Parts(Vec<Bytes>);

impl BulkSource for Parts {
    fn rows(&mut self, _attempt: Attempt, part: &BulkPart) -> Result<Bytes, BulkError> {
        Ok(self.0[part.number as usize].clone())
    }
}

/// What is asked for on the command line.
struct Plan {
    rows: u64,
    updates: u64,
    text_key: bool,
    /// Operations a transaction.
    batch: u64,
    random: u64,
}

impl Plan {
    fn from_args() -> anyhow::Result<Self> {
        let args: Vec<String> = std::env::args().skip(1).collect();
        let number = |at: usize, default| args.get(at).map_or(Ok(default), |a| a.parse::<u64>());
        Ok(Self {
            rows: number(0, 800_000)?,
            updates: number(1, 400_000)?,
            text_key: args.get(2).is_some_and(|key| key == "text"),
            batch: number(3, 1)?,
            random: 88_172_645_463_325_252,
        })
    }

    fn next(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    fn frames(&mut self, writer: &mut FrameWriter, insert: bool) -> anyhow::Result<Vec<Frame>> {
        for txn in 0..self.updates / self.batch {
            let out = writer.open();
            put_txn_start(
                out,
                TxnStart {
                    xid: 1,
                    commit_time: PgMicros(0),
                },
            );
            for op in 0..self.batch {
                let salt = self.next();
                match insert {
                    true => {
                        put_insert(out, TableId(1));
                        put_row(out, self.rows + txn * self.batch + op, salt, self.text_key);
                    }
                    false => {
                        put_update(out, TableId(1));
                        put_row(out, self.next() % self.rows, salt, self.text_key);
                    }
                }
            }
            put_txn_end(out, EndLsn(Lsn(100 + txn)));
            writer.finish(FrameKind::Txn, FrameFlags::WHOLE, Lsn(99 + txn))?;
        }
        let mut reader = FrameReader::new();
        reader.push(writer.take().into());
        let mut frames = Vec::new();
        while let Some(frame) = reader.next_frame()? {
            frames.push(frame);
        }
        Ok(frames)
    }
}

fn main() -> anyhow::Result<()> {
    let mut plan = Plan::from_args()?;
    let dir = tempfile::tempdir_in(std::env::var("BENCH_DIR").unwrap_or("/tmp".into()))?;
    let mut mirror = Mirror::open(dir.path().join("m.db"), options()?)?;
    let generation = Generation::from_bytes([7; 16]);
    mirror.start(generation)?;
    let mut writer = FrameWriter::new(Position::start(generation));
    let mut parts = load(&mut mirror, &mut writer, plan.rows, plan.text_key)?;
    for (name, insert) in [("update", false), ("insert", true)] {
        let frames = plan.frames(&mut writer, insert)?;
        let watch = Watch::start();
        for frame in &frames {
            mirror.apply(frame, &mut parts)?;
            if mirror.pending().ops >= GROUP {
                mirror.commit()?;
            }
        }
        mirror.commit()?;
        watch.report(name, plan.updates);
    }
    let frames = plan.frames(&mut writer, false)?;
    let watch = Watch::start();
    let mut slowest = std::time::Duration::ZERO;
    let singles = frames.len().min(20_000);
    for frame in &frames[..singles] {
        let one = Instant::now();
        mirror.apply(frame, &mut parts)?;
        mirror.commit()?;
        slowest = slowest.max(one.elapsed());
    }
    watch.report("update, a commit each", singles as u64 * plan.batch);
    println!("slowest commit {slowest:?}");
    backfill(&mut mirror, &mut parts, plan.rows, plan.text_key)
}

/// The table is copied anew: how long its swap holds everything else up; and how much of that is dropping the old one.
fn backfill(mirror: &mut Mirror, parts: &mut Parts, rows: u64, text: bool) -> anyhow::Result<()> {
    let position = mirror.position().context("the mirror has begun")?;
    let mut writer = FrameWriter::new(position);
    let waiting = Waiting {
        replaces: Some(TableId(1)),
        live: false,
    };
    let next = Table {
        id: TableId(2),
        waiting: Some(waiting),
        ..table(text)
    };
    let create = SchemaChange::CreateTable {
        table: next.clone(),
    };
    let parts_of_next = parts.0.iter().enumerate().map(|(number, bytes)| BulkPart {
        number: number as u32,
        table: TableId(2),
        rows: 100_000.min(rows - number as u64 * 100_000),
        raw_bytes: bytes.len() as u64,
        stored_bytes: 0,
        rows_digest: Digest(Sha256::digest(bytes).into()),
    });
    let copied = Copied {
        attempt: Attempt {
            epoch: Epoch(1),
            number: 1,
        },
        snapshot: Lsn(1 << 40),
        targets: vec![CopyTarget {
            target: TableId(2),
            shape: next,
        }],
        parts: parts_of_next.collect(),
    };
    let drop = SchemaChange::DropTable { table: TableId(2) };
    let mut ops = [Vec::new(), Vec::new(), Vec::new()];
    put_schema(&mut ops[0], &create)?;
    put_copied(&mut ops[1], &copied)?;
    put_schema(&mut ops[2], &drop)?;
    for (ops, name) in ops.iter().zip(["begin a backfill", "end it", "drop it"]) {
        let frame = transaction(&mut writer, ops)?;
        let watch = Watch::start();
        mirror.apply(&frame, parts)?;
        mirror.commit()?;
        watch.report(name, rows);
    }
    Ok(())
}

fn transaction(writer: &mut FrameWriter, ops: &[u8]) -> anyhow::Result<Frame> {
    let (xid, commit_time) = (1, PgMicros(0));
    let out = writer.open();
    put_txn_start(out, TxnStart { xid, commit_time });
    out.extend_from_slice(ops);
    put_txn_end(out, EndLsn(Lsn((1 << 40) + 9)));
    writer.finish(FrameKind::Txn, FrameFlags::WHOLE, Lsn((1 << 40) + 1))?;
    let mut reader = FrameReader::new();
    reader.push(writer.take().into());
    reader.next_frame()?.context("it was written whole")
}

fn options() -> anyhow::Result<MirrorOptions> {
    let cache = std::env::var("CACHE_MB")
        .unwrap_or("64".into())
        .parse::<usize>()?;
    Ok(MirrorOptions {
        cache_bytes: cache << 20,
        ..MirrorOptions::default()
    })
}

fn load(
    mirror: &mut Mirror,
    writer: &mut FrameWriter,
    rows: u64,
    text_key: bool,
) -> anyhow::Result<Parts> {
    let attempt = Attempt {
        epoch: Epoch(1),
        number: 0,
    };
    let (mut parts, mut described) = (Parts(Vec::new()), Vec::new());
    for from in (0..rows).step_by(100_000) {
        let mut out = Vec::new();
        let to = rows.min(from + 100_000);
        (from..to).for_each(|id| put_row(&mut out, id, id, text_key));
        described.push(BulkPart {
            number: described.len() as u32,
            table: TableId(1),
            rows: to - from,
            raw_bytes: out.len() as u64,
            stored_bytes: 0,
            rows_digest: Digest(Sha256::digest(&out).into()),
        });
        parts.0.push(out.into());
    }
    let scope = CopyScope::Genesis(Schema {
        tables: vec![table(text_key)],
    });
    let begin = CopyBegin {
        attempt,
        snapshot: Lsn(50),
        scope,
        facts: serde_json::Value::Null,
    };
    let done = CopyDone {
        attempt,
        snapshot: Lsn(50),
        parts: described,
    };
    writer.open().extend(serde_json::to_vec(&begin)?);
    writer.finish(FrameKind::CopyBegin, FrameFlags::WHOLE, Lsn(50))?;
    writer.open().extend(serde_json::to_vec(&done)?);
    writer.finish(FrameKind::CopyDone, FrameFlags::WHOLE, Lsn(50))?;
    let mut reader = FrameReader::new();
    reader.push(writer.take().into());
    let watch = Watch::start();
    while let Some(frame) = reader.next_frame()? {
        mirror.apply(&frame, &mut parts)?;
    }
    watch.report("load", rows);
    let size = std::fs::metadata(mirror.path())?.len();
    println!("file {} MB, {} bytes a row", size >> 20, size / rows.max(1));
    Ok(parts)
}

/// Wall clock, and the seconds this thread was on a core: on a busy machine only the latter compares.
struct Watch(Instant, f64);

impl Watch {
    fn start() -> Self {
        Self(Instant::now(), cpu_seconds())
    }

    fn report(&self, what: &str, count: u64) {
        let (wall, cpu) = (self.0.elapsed().as_secs_f64(), cpu_seconds() - self.1);
        let rate = |seconds: f64| count as f64 / seconds;
        println!(
            "{what}: {count}, {wall:.2} s = {:.0}/s, cpu {cpu:.2} s = {:.0}/s",
            rate(wall),
            rate(cpu)
        );
    }
}

fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = stat.split(' ').next().and_then(|n| n.parse::<f64>().ok());
    nanos.unwrap_or(0.0) / 1e9
}

fn table(text_key: bool) -> Table {
    let kinds = [
        if text_key { Kind::Text } else { Kind::Int },
        Kind::Int,
        Kind::Int,
        Kind::Float,
        Kind::Bool,
        Kind::Text,
        Kind::Text,
        Kind::Text,
        Kind::Text,
        Kind::Text,
    ];
    let column = |(at, kind): (usize, &Kind)| Column {
        attnum: at as i16 + 1,
        name: format!("column_{at}"),
        type_name: "text".into(),
        type_oid: Oid(25),
        typmod: -1,
        kind: *kind,
        not_null: at == 0,
    };
    Table {
        id: TableId(1),
        oid: Oid(16_400),
        schema: "public".into(),
        name: "bench".into(),
        columns: kinds.iter().enumerate().map(column).collect(),
        key: vec![0],
        indexes: Vec::new(),
        leaves: Vec::new(),
        waiting: None,
    }
}

fn put_row(out: &mut Vec<u8>, id: u64, salt: u64, text_key: bool) {
    let texts = [
        format!("{salt:032x}"),
        format!("status {}", salt % 7),
        "2024-01-02 03:04:05.678901+00".to_owned(),
        format!("{salt:040}"),
        format!("{}.{:02}", salt % 100_000, salt % 100),
    ];
    put_row_head(out, 10);
    match text_key {
        true => {
            let hash = id.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let key = format!("{hash:016x}-{id:08x}-4abc-9def");
            put_cell(out, ValueRef::Text(&key));
        }
        false => put_cell(out, ValueRef::Int(id as i64)),
    }
    put_cell(out, ValueRef::Int((salt >> 1) as i64));
    put_cell(out, ValueRef::Int((salt % 1000) as i64));
    put_cell(out, ValueRef::Real(salt as f64 / 3.0));
    put_cell(out, ValueRef::Int((salt % 2) as i64));
    texts
        .iter()
        .for_each(|text| put_cell(out, ValueRef::Text(text)));
}
