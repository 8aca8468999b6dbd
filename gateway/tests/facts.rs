//! Where a copy and the stream meet: what Postgres does there, on a real server. Tests are named after their line in
//! designs/002.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rindle_archive::{Archive, BackupConfig, GenerationRecord};
use rindle_gateway::copy::{self, CopyError, Job, Pace, Progress};
use rindle_gateway::lifecycle::examine::SourceRequest;
use rindle_gateway::lifecycle::mint::mint;
use rindle_gateway::lifecycle::prepare::prepare;
use rindle_gateway::pg::catalog;
use rindle_gateway::pg::pgoutput::{self, Cell, Message};
use rindle_gateway::pg::snapshot;
use rindle_gateway::pg::walsender::{CreatedSlot, WalMessage, WalStream};
use rindle_gateway::state::State;
use rindle_proto::body::Attempt;
use rindle_proto::ids::{Epoch, FinalLsn, Lsn, SourceName};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_postgres::Client;

use crate::capture::preparing;
use crate::postgres::Server;

const WITHIN: Duration = Duration::from_secs(60);
const WRITERS: i64 = 4;
const SNAPSHOTS_A_ROUND: usize = 20;
/// One snapshot of a hundred or so has such a commit.
const ROUNDS: usize = 500;

async fn run(client: &Client, sql: &str) {
    let done = client.batch_execute(sql).await;
    done.unwrap_or_else(|error| panic!("{sql}: {:?}", error.as_db_error()));
}

async fn number(client: &Client, sql: &str) -> i64 {
    client.query_one(sql, &[]).await.unwrap().get(0)
}

async fn replication(server: &Server) -> WalStream {
    WalStream::connect(&server.endpoint(), "test")
        .await
        .unwrap()
}

async fn prepared(server: &Server, tables: &str) {
    let request = preparing(server.endpoint(), tables);
    prepare(&request).await.unwrap();
}

/// Transactions of one row each, as many as go.
async fn writers(server: &Server, stop: &Arc<AtomicBool>, round: i64) -> Vec<JoinHandle<()>> {
    let mut writers = Vec::new();
    for writer in 0..WRITERS {
        let client = server.session("").await;
        let stop = Arc::clone(stop);
        writers.push(tokio::spawn(async move {
            let mut id = (round * WRITERS + writer) * 1_000_000;
            while !stop.load(Ordering::Relaxed) {
                run(&client, &format!("INSERT INTO t VALUES ({id})")).await;
                id += 1;
            }
        }));
    }
    writers
}

/// Makes a snapshot; gives its position, and the rows that it shows.
async fn snapshot(exporter: &mut WalStream, reader: &Client) -> (Lsn, Vec<i64>) {
    let slot = exporter.create_slot("shown", true, false).await.unwrap();
    snapshot::keep(reader, &slot.snapshot_name, |_told| {})
        .await
        .unwrap();
    let sql = "SELECT coalesce(array_agg(id), '{}') FROM t";
    let ids = reader.query_one(sql, &[]).await.unwrap().get(0);
    run(reader, "COMMIT").await;
    let dropped = exporter.query("DROP_REPLICATION_SLOT shown").await;
    dropped.unwrap();
    (slot.consistent_point, ids)
}

/// Reads transactions until so many rows are known; gives each row's position.
async fn read_rows(stream: &mut WalStream, known: &mut BTreeMap<i64, FinalLsn>, rows: i64) {
    let mut at = FinalLsn(Lsn(0));
    let reading = async {
        while (known.len() as i64) < rows {
            while let Some(message) = stream.next().unwrap() {
                let WalMessage::Data { payload, .. } = message else {
                    continue;
                };
                match pgoutput::decode(payload).unwrap() {
                    Message::Begin { final_lsn, .. } => at = final_lsn,
                    Message::Insert { new, .. } => {
                        let Some(Cell::Text(id)) = new.iter().next() else {
                            panic!("a row without its id");
                        };
                        let id = std::str::from_utf8(id).unwrap().parse().unwrap();
                        known.insert(id, at);
                    }
                    _ => {}
                }
            }
            if (known.len() as i64) < rows {
                stream.fill().await.unwrap();
            }
        }
    };
    tokio::time::timeout(WITHIN, reading).await.unwrap();
}

/// Waits until a query counts more than nothing.
async fn until(sql: &Client, query: &str) {
    let counting = async { while number(sql, query).await == 0 {} };
    let counted = tokio::time::timeout(WITHIN, counting).await;
    counted.unwrap_or_else(|_elapsed| panic!("{query} stays 0"));
}

/// A commit waits for a standby when its record is in the WAL: decoded it is over, and yet it runs.
#[tokio::test]
async fn a1_a_transaction_that_is_just_ending_is_waited_for_before_its_snapshot_is_read() {
    let settings = [
        "synchronous_standby_names=nobody",
        "synchronous_commit=local",
    ];
    let server = Server::start(&settings).await;
    let sql = server.session("CREATE TABLE t(id int8)").await;
    let begin = "BEGIN; SELECT pg_current_xact_id()";
    let first = server.session(begin).await;
    let mut exporter = replication(&server).await;
    let made = tokio::spawn(async move {
        let slot = exporter.create_slot("shown", true, false).await.unwrap();
        (exporter, slot)
    });
    // It waits twice for all that runs; what begins in between and commits is in the snapshot.
    let waits = |pid: i64| {
        format!("SELECT count(*) FROM pg_stat_activity WHERE {pid} = ANY(pg_blocking_pids(pid))")
    };
    let pid = async |client: &Client| number(client, "SELECT pg_backend_pid()::int8").await;
    until(&sql, &waits(pid(&first).await)).await;
    let second = server.session(begin).await;
    run(&first, "ROLLBACK").await;
    until(&sql, &waits(pid(&second).await)).await;
    let ending = server.session("SET synchronous_commit = on").await;
    let ending = tokio::spawn(async move { run(&ending, "INSERT INTO t VALUES (1)").await });
    until(
        &sql,
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'",
    )
    .await;
    run(&second, "ROLLBACK").await;
    let (exporter, slot) = made.await.unwrap();

    let keeper = server.session("SET application_name = 'keeper'").await;
    let name = slot.snapshot_name.clone();
    let kept = tokio::spawn(async move {
        snapshot::keep(&keeper, &name, |_told| {}).await.unwrap();
        number(&keeper, "SELECT count(*) FROM t").await
    });
    let looks = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'keeper' AND query LIKE '%pg_locks%'";
    until(&sql, looks).await;
    let running = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    assert_eq!(number(&sql, running).await, 1);
    assert!(!kept.is_finished() && !ending.is_finished());
    run(&sql, "ALTER SYSTEM SET synchronous_standby_names = ''").await;
    run(&sql, "SELECT pg_reload_conf()").await;
    ending.await.unwrap();
    let shown = tokio::time::timeout(WITHIN, kept).await.unwrap();
    assert_eq!(shown.unwrap(), 1, "it is in the snapshot");
    drop(exporter);
}

/// The position of a snapshot is where a record ended; the next one may be a commit, which then begins exactly there.
#[tokio::test]
async fn a1_a_commit_that_begins_at_a_snapshots_position_is_not_in_it() {
    let server = Server::start(&["max_replication_slots=20", "wal_sender_timeout=0"]).await;
    let sql = "CREATE TABLE t(id int8); CREATE PUBLICATION p FOR TABLE t";
    let sql = server.session(sql).await;
    let mut stream = replication(&server).await;
    let main = stream.create_slot("main", false, false).await.unwrap();
    stream
        .start("main", main.consistent_point, "p")
        .await
        .unwrap();
    let mut exporter = replication(&server).await;
    let reader = server.session("").await;
    let mut equal = 0;
    for round in 0..ROUNDS {
        let stop = Arc::new(AtomicBool::new(false));
        let writing = writers(&server, &stop, round as i64).await;
        let mut snapshots = Vec::new();
        for _ in 0..SNAPSHOTS_A_ROUND {
            snapshots.push(snapshot(&mut exporter, &reader).await);
        }
        stop.store(true, Ordering::Relaxed);
        for writer in writing {
            writer.await.unwrap();
        }
        let rows = number(&sql, "SELECT count(*) FROM t").await;
        let mut known = BTreeMap::new();
        read_rows(&mut stream, &mut known, rows).await;
        for (position, shown) in snapshots {
            let shown: BTreeSet<i64> = shown.into_iter().collect();
            for (id, final_lsn) in &known {
                let is_below = *final_lsn < FinalLsn(position);
                assert_eq!(shown.contains(id), is_below, "{final_lsn:?} {position}");
                equal += usize::from(*final_lsn == FinalLsn(position));
            }
        }
        run(&sql, "TRUNCATE t").await;
        if equal > 0 {
            println!("round {round}: {equal} rows at a snapshot's own position");
            return;
        }
    }
    panic!("no commit began at the position of a snapshot, so nothing was shown");
}

/// A backfill ends by a transaction of the source, so its end cannot lie below its snapshot.
#[tokio::test]
async fn a3_the_end_of_a_copy_is_a_transaction_above_its_snapshot() {
    let server = Server::start(&[]).await;
    let sql = server.session("CREATE TABLE t(id int PRIMARY KEY)").await;
    prepared(&server, "t").await;
    let mut stream = replication(&server).await;
    let main = stream.create_slot("main", false, false).await.unwrap();
    let mut exporter = replication(&server).await;
    let snapshot = exporter.create_slot("copied", true, false).await.unwrap();
    run(&sql, "INSERT INTO t VALUES (1)").await;
    let id = number(&sql, "SELECT rindle.copied('{\"a\": 1}')").await;
    stream
        .start("main", main.consistent_point, "rindle_app")
        .await
        .unwrap();
    let mut at = FinalLsn(Lsn(0));
    let reading = async {
        loop {
            while let Some(message) = stream.next().unwrap() {
                let WalMessage::Data { payload, .. } = message else {
                    continue;
                };
                match pgoutput::decode(payload).unwrap() {
                    Message::Begin { final_lsn, .. } => at = final_lsn,
                    Message::Logical {
                        transactional,
                        content,
                        ..
                    } => {
                        assert!(transactional);
                        return String::from_utf8_lossy(content).into_owned();
                    }
                    _ => {}
                }
            }
            stream.fill().await.unwrap();
        }
    };
    let said = tokio::time::timeout(WITHIN, reading).await.unwrap();
    assert_eq!(said, id.to_string());
    assert!(at >= FinalLsn(snapshot.consistent_point), "{at:?}");
}

/// A session that keeps the snapshot of a slot that is gone.
async fn keeper(server: &Server) -> (Client, String, CreatedSlot) {
    let mut exporter = replication(server).await;
    let slot = exporter.create_slot("exported", true, false).await.unwrap();
    let import = snapshot::import(&slot.snapshot_name);
    let keeper = server.session(&import).await;
    let again = "SELECT pg_export_snapshot()";
    let again = keeper.query_one(again, &[]).await.unwrap().get(0);
    exporter.close().await;
    let gone = async {
        let slots = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'exported'";
        while number(&keeper, slots).await > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(WITHIN, gone).await.unwrap();
    (keeper, again, slot)
}

#[tokio::test]
async fn a6_a_snapshot_lives_on_without_the_session_that_made_it() {
    let server = Server::start(&[]).await;
    let sql = server
        .session("CREATE TABLE t(id int); INSERT INTO t VALUES (1)")
        .await;
    let (keeper, again, first) = keeper(&server).await;
    run(&sql, "INSERT INTO t VALUES (2)").await;
    let reader = server.session(&snapshot::import(&again)).await;
    assert_eq!(number(&reader, "SELECT count(*) FROM t").await, 1);
    // The first name went with its session, and the second goes with the keeper.
    let import = async |name: &str| {
        let other = server.session("").await;
        let imported = other.batch_execute(&snapshot::import(name)).await;
        imported.is_ok()
    };
    assert!(!import(&first.snapshot_name).await);
    assert!(import(&again).await);
    run(&keeper, "COMMIT").await;
    assert!(!import(&again).await);
}

/// Each is on a table of its own, `{t}`; those of the second list change what the snapshot's rows are read by.
const HARMLESS: [&str; 2] = ["UPDATE {t} SET a = 'later'", "CREATE INDEX ON {t}(a)"];
const CHANGES: [&str; 7] = [
    "ALTER TABLE {t} RENAME a TO c; ALTER TABLE {t} RENAME b TO a; ALTER TABLE {t} RENAME c TO b",
    "ALTER TABLE {t} ADD c text DEFAULT 'x'; ALTER TABLE {t} DROP b",
    "ALTER TABLE {t} ALTER n TYPE bigint",
    "TRUNCATE {t}",
    "VACUUM FULL {t}",
    "CLUSTER {t} USING {t}_pkey",
    "ALTER TABLE {t} RENAME TO {t}_old; CREATE TABLE {t}(id int PRIMARY KEY, a text, b text, n int)",
];

/// An archive with one generation of the source.
async fn minted(server: &Server, dir: &TempDir) -> (Archive, GenerationRecord) {
    let config = BackupConfig::Filesystem {
        path: dir.path().to_owned(),
    };
    let source: SourceName = "app".parse().unwrap();
    let archive = Archive::open(&config, &source).await.unwrap();
    let request = SourceRequest {
        endpoint: server.endpoint(),
        source,
        publication: None,
        tables: vec![],
        provider: None,
        provider_managed: false,
    };
    mint(&archive, &request).await.unwrap();
    let record = archive.generations().await.unwrap().remove(0);
    (archive, record)
}

#[tokio::test]
async fn a5_a_change_between_snapshot_and_lock_voids_the_copy() {
    let server = Server::start(&["max_slot_wal_keep_size=8GB"]).await;
    let sql = server.session("").await;
    let changes: Vec<&str> = HARMLESS.into_iter().chain(CHANGES).collect();
    let names: Vec<String> = (0..changes.len()).map(|n| format!("t{n}")).collect();
    for name in &names {
        let make = "CREATE TABLE {t}(id int PRIMARY KEY, a text, b text, n int); INSERT INTO {t} VALUES (1, 'a1', 'b1', 1)";
        run(&sql, &make.replace("{t}", name)).await;
    }
    prepared(&server, &names.join(",")).await;
    let dir = TempDir::new().unwrap();
    let (archive, record) = minted(&server, &dir).await;
    for (number, (change, name)) in changes.iter().zip(&names).enumerate() {
        let (keeper, snapshot, _) = keeper(&server).await;
        let view = catalog::read_with_sizes(&keeper, "rindle_app").await;
        let view = view.unwrap();
        let mut plan = view.copy_plan(&view.schema_of_fit().unwrap());
        plan.retain(|it| it.table.name == *name);
        assert_eq!(plan.len(), 1);
        // One statement at a time: some run in no transaction.
        for statement in change.split("; ") {
            run(&sql, &statement.replace("{t}", name)).await;
        }
        let job = Job {
            endpoint: server.endpoint(),
            application_name: "test".to_owned(),
            archive: archive.log(record.generation),
            state: State::new(record.clone()),
            snapshot,
            attempt: Attempt {
                epoch: Epoch(1),
                number: number as u32,
            },
            plan,
            progress: Progress::new(drop),
            pace: Pace::Fast,
        };
        let copied = copy::run(job).await;
        match (number < HARMLESS.len(), copied) {
            (true, Ok(parts)) => assert_eq!(parts[0].rows, 1, "{change}"),
            (false, Err(CopyError::Changed { .. })) => {}
            (_, copied) => panic!("{change}: {copied:?}"),
        }
    }
}
