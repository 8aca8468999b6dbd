//! The replication session: slots, snapshots, the stream, status, back-pressure.

use std::time::Duration;

use rindle_gateway::pg::pgoutput::{self, Cell, Message};
use rindle_gateway::pg::walsender::{WalError, WalMessage, WalStream, sqlstate};
use rindle_proto::ids::{EndLsn, Lsn, Timeline};
use tokio_postgres::Client;

use crate::postgres::Server;

const WITHIN: Duration = Duration::from_secs(30);

/// What the first test's changes look like in the stream.
const THREE_TRANSACTIONS: [&str; 14] = [
    "begin",
    "insert 2,after",
    "commit",
    "begin",
    "update Key 2,null to 3,after",
    "insert 4,5000 bytes",
    "insert 5,null",
    "message rindle hello",
    "commit",
    "begin",
    "update Key 4,null to 6,unchanged",
    "delete Key 5,null",
    "truncate 1",
    "commit",
];

/// What a test looks at: a line for each message but keepalives and relations.
async fn lines_until(stream: &mut WalStream, commits: usize) -> (Vec<String>, EndLsn) {
    let mut lines = Vec::new();
    let mut left = commits;
    let reading = async {
        loop {
            while let Some(message) = stream.next().unwrap() {
                let WalMessage::Data { payload, .. } = message else {
                    continue;
                };
                match pgoutput::decode(payload).unwrap() {
                    Message::Begin { .. } => lines.push("begin".to_owned()),
                    Message::Insert { new, .. } => lines.push(format!("insert {}", cells(new))),
                    Message::Update { old, new, .. } => {
                        let old = old.map_or(String::new(), |(kind, row)| {
                            format!("{kind:?} {} ", cells(row))
                        });
                        lines.push(format!("update {old}to {}", cells(new)));
                    }
                    Message::Delete { kind, old, .. } => {
                        lines.push(format!("delete {kind:?} {}", cells(old)))
                    }
                    Message::Truncate { rels, .. } => {
                        lines.push(format!("truncate {}", rels.len()))
                    }
                    Message::Logical {
                        prefix, content, ..
                    } => {
                        lines.push(format!(
                            "message {prefix} {}",
                            String::from_utf8_lossy(content)
                        ));
                    }
                    Message::Commit { end_lsn, .. } => {
                        lines.push("commit".to_owned());
                        left -= 1;
                        if left == 0 {
                            return end_lsn;
                        }
                    }
                    Message::Relation(_) | Message::Origin { .. } | Message::Type { .. } => {}
                }
            }
            stream.fill().await.unwrap();
        }
    };
    let end = tokio::time::timeout(WITHIN, reading)
        .await
        .expect("the transactions come");
    (lines, end)
}

fn cells(row: pgoutput::Tuple<'_>) -> String {
    let text = |cell| match cell {
        Cell::Null => "null".to_owned(),
        Cell::Unchanged => "unchanged".to_owned(),
        Cell::Text(text) if text.len() > 20 => format!("{} bytes", text.len()),
        Cell::Text(text) => String::from_utf8_lossy(text).into_owned(),
    };
    row.iter().map(text).collect::<Vec<_>>().join(",")
}

async fn confirmed(client: &Client, slot: &str) -> Lsn {
    let sql = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = $1";
    client
        .query_one(sql, &[&slot])
        .await
        .unwrap()
        .get::<_, &str>(0)
        .parse()
        .unwrap()
}

async fn wait_for(client: &Client, slot: &str, wanted: Lsn) {
    let reached = async {
        while confirmed(client, slot).await < wanted {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(WITHIN, reached)
        .await
        .expect("the slot moves");
}

#[tokio::test]
async fn slot_snapshot_and_stream_meet_without_a_gap() {
    let server = Server::start(&[]).await;
    let sql = server
        .session(
            "CREATE TABLE t(id int PRIMARY KEY, v text); ALTER TABLE t ALTER v SET STORAGE EXTERNAL;
             INSERT INTO t VALUES (1, 'before'); CREATE PUBLICATION \"odd ' \"\" name\" FOR TABLE t;",
        )
        .await;
    let mut stream = WalStream::connect(&server.endpoint(), "test")
        .await
        .unwrap();
    let identity = stream.identify_system().await.unwrap();
    assert_eq!(
        (identity.timeline, &*identity.dbname),
        (Timeline(1), "postgres")
    );
    assert_eq!(stream.timeline_history(Timeline(1)).await.unwrap(), []);
    let missing = stream.timeline_history(Timeline(9)).await.unwrap_err();
    assert_eq!(missing.sqlstate(), Some("58P01"));
    assert_eq!(
        stream.query("SELECT NULL, 'x'").await.unwrap(),
        [[None, Some("x".to_owned())]]
    );

    let slot = stream.create_slot("s", false, false).await.unwrap();
    assert!(slot.consistent_point >= identity.xlogpos);
    sql.batch_execute("INSERT INTO t VALUES (2, 'after')")
        .await
        .unwrap();
    let copy = server
        .session(&format!(
            "BEGIN ISOLATION LEVEL REPEATABLE READ; SET TRANSACTION SNAPSHOT '{}'",
            slot.snapshot_name
        ))
        .await;
    assert_eq!(
        copy.query_one("SELECT count(*) FROM t", &[])
            .await
            .unwrap()
            .get::<_, i64>(0),
        1
    );
    copy.batch_execute("COMMIT").await.unwrap();
    let twice = stream.create_slot("s", false, false).await.unwrap_err();
    assert_eq!(twice.sqlstate(), Some(sqlstate::EXISTS));

    stream
        .start("s", slot.consistent_point, "odd ' \" name")
        .await
        .unwrap();
    sql.batch_execute(
        "BEGIN; UPDATE t SET id = 3 WHERE id = 2; INSERT INTO t VALUES (4, repeat('x', 5000)), (5, NULL);
         SELECT pg_logical_emit_message(true, 'rindle', 'hello'); COMMIT;
         BEGIN; UPDATE t SET id = 6 WHERE id = 4; DELETE FROM t WHERE id = 5; TRUNCATE t; COMMIT",
    )
    .await
    .unwrap();
    let (lines, end) = lines_until(&mut stream, 3).await;
    assert_eq!(lines, THREE_TRANSACTIONS);
    stream.status(end.0, end.0, end.0, false).await.unwrap();
    wait_for(&sql, "s", end.0).await;
    assert!(!stream.has_unsent());
    assert!(matches!(
        stream.query("SELECT 1").await,
        Err(WalError::WrongPhase)
    ));
}

#[tokio::test]
async fn refusals_of_the_server_keep_the_session_usable() {
    let server = Server::start(&[]).await;
    let sql = server.session("CREATE PUBLICATION p").await;
    let mut first = WalStream::connect(&server.endpoint(), "test")
        .await
        .unwrap();
    let mut second = WalStream::connect(&server.endpoint(), "test")
        .await
        .unwrap();
    let absent = first.start("absent", Lsn(0), "p").await.unwrap_err();
    assert_eq!(absent.sqlstate(), Some(sqlstate::NOT_FOUND));
    first.create_slot("s", false, false).await.unwrap();
    first.start("s", Lsn(0), "p").await.unwrap();
    let held = second.start("s", Lsn(0), "p").await.unwrap_err();
    assert_eq!(held.sqlstate(), Some(sqlstate::SLOT_IN_USE));

    // An open transaction with an id holds up the creation of a slot; the bound ends the wait.
    let open = server.session("BEGIN; SELECT txid_current()").await;
    second.query("SET lock_timeout = 200").await.unwrap();
    let waited = second.create_slot("late", true, false).await.unwrap_err();
    assert_eq!(waited.sqlstate(), Some(sqlstate::LOCK_TIMEOUT));
    let left = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'late'";
    assert_eq!(sql.query_one(left, &[]).await.unwrap().get::<_, i64>(0), 0);
    open.batch_execute("COMMIT").await.unwrap();
    second.create_slot("late", true, false).await.unwrap();

    // Goodbye lets go of the slot at once; the server's end of a session is told with its reason.
    first.close().await;
    let takes_over = async {
        while second.start("s", Lsn(0), "p").await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(WITHIN, takes_over)
        .await
        .expect("the slot is free");
    sql.execute("SELECT pg_terminate_backend($1)", &[&second.backend_pid()])
        .await
        .unwrap();
    let end = async {
        loop {
            while let Some(_message) = second.next()? {}
            second.fill().await?;
        }
    };
    let end: Result<(), WalError> = tokio::time::timeout(WITHIN, end).await.unwrap();
    assert_eq!(end.unwrap_err().sqlstate(), Some("57P01"));
    assert!(matches!(second.next(), Err(WalError::WrongPhase)));
}

#[tokio::test]
async fn status_goes_out_while_nobody_reads() {
    let server = Server::start(&["wal_sender_timeout=2s"]).await;
    let sql = server
        .session("CREATE TABLE t(id int PRIMARY KEY, v text); CREATE PUBLICATION p FOR TABLE t")
        .await;
    let mut stream = WalStream::connect(&server.endpoint(), "test")
        .await
        .unwrap();
    let slot = stream.create_slot("s", false, false).await.unwrap();
    stream.start("s", slot.consistent_point, "p").await.unwrap();
    let fill = "INSERT INTO t SELECT g, repeat('x', 1000) FROM generate_series(1, 30000) g";
    sql.execute(fill, &[]).await.unwrap();
    // Longer than the server waits for a sign of life, while its socket is full.
    for _ in 0..25 {
        let at = slot.consistent_point;
        stream.status(at, at, at, true).await.unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let (lines, end) = lines_until(&mut stream, 1).await;
    assert_eq!(lines.len(), 30_002);
    stream.status(end.0, end.0, end.0, false).await.unwrap();
    wait_for(&sql, "s", end.0).await;
}

#[tokio::test]
async fn giant_values_pass() {
    let server = Server::start(&[]).await;
    let sql = server
        .session("CREATE TABLE t(id int PRIMARY KEY, v text); CREATE PUBLICATION p FOR TABLE t")
        .await;
    let mut stream = WalStream::connect(&server.endpoint(), "test")
        .await
        .unwrap();
    let slot = stream.create_slot("s", false, false).await.unwrap();
    stream.start("s", slot.consistent_point, "p").await.unwrap();
    sql.execute("INSERT INTO t VALUES (1, repeat('x', 100000000))", &[])
        .await
        .unwrap();
    sql.execute("INSERT INTO t VALUES (2, 'small')", &[])
        .await
        .unwrap();
    let (lines, _) = lines_until(&mut stream, 2).await;
    assert_eq!(
        lines,
        [
            "begin",
            "insert 1,100000000 bytes",
            "commit",
            "begin",
            "insert 2,small",
            "commit"
        ]
    );
}
