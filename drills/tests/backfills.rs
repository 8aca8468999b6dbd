//! Copies beside the stream, against transactions that do not end and writers that do not stop.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use rindle_drills::{
    cluster::Cluster,
    http,
    postgres::{Server, Session},
    wait,
};
use rusqlite::{Connection, OpenFlags};
use serde_json::Value;
use tokio::task::JoinHandle;

/// One wait for older transactions is 5 s long; then they are told.
const TOLD_WITHIN: Duration = Duration::from_secs(30);
/// What has nothing to do with a backfill is not held up by it.
const STREAMS_WITHIN: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(10);
const COPIED_WITHIN: Duration = Duration::from_secs(90);

async fn laid_out(server: &Server, name: &str, setup: &str) -> Cluster {
    server.create_database(name, "").await.unwrap();
    let mut cluster = Cluster::new(server, name, name).await.unwrap();
    cluster.session.run(setup).await.unwrap();
    cluster.publication = "own".to_owned();
    cluster.add_marker(Some("own")).await.unwrap();
    cluster.prepare_as_it_is().await.unwrap();
    cluster.mint().await.unwrap();
    cluster
}

/// Counts in a mirror's file; none while there is no such table.
fn count(mirror: &Path, sql: &str) -> Option<i64> {
    let sqlite = Connection::open_with_flags(mirror, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
    sqlite.busy_timeout(STREAMS_WITHIN).unwrap();
    sqlite.query_row(sql, [], |row| row.get(0)).ok()
}

/// Waits until the gateway names a transaction as what it waits for.
async fn blocked_by(cluster: &Cluster, words: &[&str]) {
    let mut last = Value::Null;
    let told = wait::until_true("the blocker to be named", TOLD_WITHIN, async || {
        let Ok(status) = cluster.gateway_status().await else {
            return Ok(false);
        };
        last = status;
        assert!(last["phase"] != "halted", "{last}");
        let said = format!("{}{}", last["backfills"], last["reason"]);
        Ok(words.iter().all(|words| said.contains(words)))
    });
    assert!(told.await.is_ok(), "{words:?}: {last}");
}

async fn pid(session: &Session) -> String {
    session.text("select pg_backend_pid()").await.unwrap()
}

#[tokio::test]
async fn a7_an_open_transaction_holds_up_the_new_table_and_nothing_else() {
    let server = Server::start().await.unwrap();
    let setup = "create table early(id int primary key); create table newcomer(id int primary key, v text); \
         insert into newcomer values (1, 'before'); create publication own for table early";
    let mut cluster = laid_out(&server, "blocked", setup).await;
    cluster.start_gateway().await.unwrap();
    cluster.add_follower().await.unwrap();
    cluster.must_be_equal(0).await.unwrap();

    let blocker = server.session("blocked").await.unwrap();
    let query = "select 'a report of the whole year', txid_current()";
    let pid = blocker.text("select pg_backend_pid()").await.unwrap();
    blocker.run("begin").await.unwrap();
    blocker.run(query).await.unwrap();
    let words = format!("pid {pid} (postgres in blocked");
    let meanwhile = "alter publication own add table newcomer; insert into early select generate_series(1, 50); \
         insert into newcomer values (2, 'during')";
    for statement in meanwhile.split("; ") {
        cluster.session.run(statement).await.unwrap();
    }
    streams_on(&mut cluster).await;
    blocked_by(&cluster, &[&words, "a report of the whole year"]).await;
    in_status(&mut cluster, &words).await;

    cluster.gateway().unwrap().kill().await.unwrap();
    cluster.start_gateway().await.unwrap();
    cluster
        .session
        .run("insert into early values (51)")
        .await
        .unwrap();
    let mark = cluster.mark().await.unwrap();
    cluster.until_marked(0, mark, TOLD_WITHIN).await.unwrap();
    blocked_by(&cluster, &[&words, "a report of the whole year"]).await;
    streams_on(&mut cluster).await;

    blocker.run("commit").await.unwrap();
    cluster.must_follow(0).await.unwrap();
    let all = "select count(*) from newcomer where (id, v) in ((1, 'before'), (2, 'during'))";
    assert_eq!(count(&cluster.mirror(0), all), Some(2));
    assert_eq!(
        count(&cluster.mirror(0), "select count(*) from early"),
        Some(51)
    );
    let slots = "select count(*) from pg_replication_slots";
    wait::until_true("one slot to be left", TOLD_WITHIN, async || {
        Ok(cluster.session.text(slots).await? == "1")
    })
    .await
    .unwrap();
    cluster.produce().await.unwrap();
    let second = cluster.add_follower_from_image().await.unwrap();
    cluster.must_be_equal(second).await.unwrap();
}

/// What is committed comes soon and is acknowledged, and the new table is not seen.
async fn streams_on(cluster: &mut Cluster) {
    let mark = cluster.mark().await.unwrap();
    let position = cluster
        .session
        .text("select pg_current_wal_lsn()")
        .await
        .unwrap();
    cluster.until_marked(0, mark, STREAMS_WITHIN).await.unwrap();
    let acked = format!(
        "select bool_and(confirmed_flush_lsn >= '{position}') from pg_replication_slots where not temporary"
    );
    wait::until_true("the slot to be acknowledged", STREAMS_WITHIN, async || {
        Ok(cluster.session.text(&acked).await? == "t")
    })
    .await
    .unwrap();
    let seen = "select count(*) from sqlite_schema where name = 'newcomer'";
    assert_eq!(count(&cluster.mirror(0), seen), Some(0));
    let status = cluster.gateway_status().await.unwrap();
    assert!(
        status["waiting"].to_string().contains("newcomer"),
        "{status}"
    );
}

/// `rindle pg status` says it too.
async fn in_status(cluster: &mut Cluster, words: &str) {
    let port = cluster.gateway().unwrap().port("httpPort").unwrap();
    let (url, archive) = (
        format!("http://127.0.0.1:{port}"),
        cluster.archive().display().to_string(),
    );
    let args = [
        "--json",
        "--gateway",
        &url,
        "--store",
        "filesystem",
        "--path",
        &archive,
    ];
    let status = cluster.pg("status", &args).await.unwrap().json().unwrap();
    assert!(status["backfills"].to_string().contains(words), "{status}");
    let metrics = http::get(port, "/metrics").await.unwrap();
    assert_eq!(metrics.status, 200);
}

const LATE: &str = "create table base(id int primary key); create table late(id int primary key, v text, pad text); \
     insert into late select g, 'old', repeat('p', 300) from generate_series(1, 100000) g";
/// With the three rows that transactions around the publication add.
const ROWS: i64 = 100_003;

/// Moves keys across the front of the copy in both directions, and lets some die and come back.
fn write(session: Session, stop: Arc<AtomicBool>) -> JoinHandle<u64> {
    tokio::spawn(async move {
        let mut rounds = 0;
        while !stop.load(Relaxed) {
            for sql in [
                "update late set id = -id where id = (select max(id) from late)",
                "update late set v = v || '+' where id = (select max(id) from late)",
                "begin; delete from late where id = 50000; insert into late values (50000, 'reborn', ''); commit",
                "update late set id = id + 1000000 where id = (select min(id) from late where id > 100)",
                "insert into base select coalesce(max(id), 0) + 1 from base",
            ] {
                session.run(sql).await.unwrap();
            }
            rounds += 1;
        }
        rounds
    })
}

/// Whenever the table is seen it is whole.
fn watch(mirror: std::path::PathBuf, stop: Arc<AtomicBool>) -> JoinHandle<u64> {
    tokio::spawn(async move {
        let mut seen = 0;
        while !stop.load(Relaxed) {
            if let Some(rows) = count(&mirror, "select count(*) from late") {
                assert_eq!(rows, ROWS);
                seen += 1;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        seen
    })
}

async fn ends_whole(cluster: &mut Cluster, number: usize) {
    let mirror = cluster.mirror(number);
    assert_eq!(count(&mirror, "select count(*) from late"), Some(ROWS));
    for (sql, rows) in [
        (
            "select count(*) from late where id in (-1, -2, -3) and pad = ''",
            3,
        ),
        (
            "select count(*) from late where id = 1 and v = 'touched'",
            1,
        ),
        (
            "select count(*) from late where id = 50000 and v = 'reborn'",
            1,
        ),
    ] {
        assert_eq!(count(&mirror, sql), Some(rows), "{sql}");
    }
}

#[tokio::test]
async fn a12_a_big_table_is_published_under_writers_and_an_open_transaction() {
    let server = Server::start().await.unwrap();
    let setup = format!("{LATE}; create publication own for table base");
    let mut cluster = laid_out(&server, "late", &setup).await;
    cluster.start_gateway().await.unwrap();
    cluster.add_follower().await.unwrap();
    cluster.must_be_equal(0).await.unwrap();

    let open = server.session("late").await.unwrap();
    open.run("begin; insert into late values (-1, 'before', '')")
        .await
        .unwrap();
    cluster
        .session
        .run("alter publication own add table late")
        .await
        .unwrap();
    cluster
        .session
        .run("insert into late values (-3, 'own', '')")
        .await
        .unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let writer = write(server.session("late").await.unwrap(), Arc::clone(&stop));
    let watcher = watch(cluster.mirror(0), Arc::clone(&stop));
    open.run(
        "insert into late values (-2, 'after', ''); update late set v = 'touched' where id = 1",
    )
    .await
    .unwrap();
    blocked_by(&cluster, &[&format!("pid {} ", pid(&open).await)]).await;
    open.run("commit").await.unwrap();
    let mirror = cluster.mirror(0);
    let shown = wait::until_true("the table to be shown", COPIED_WITHIN, async || {
        Ok(count(&mirror, "select count(*) from late").is_some())
    });
    if let Err(error) = shown.await {
        panic!("{error}: {}", cluster.state().await);
    }
    stop.store(true, Relaxed);
    println!("{} rounds of writes", writer.await.unwrap());
    cluster.must_follow(0).await.unwrap();
    watcher.await.unwrap();
    ends_whole(&mut cluster, 0).await;
    cluster.produce().await.unwrap();
    let second = cluster.add_follower_from_image().await.unwrap();
    cluster.must_be_equal(second).await.unwrap();
    ends_whole(&mut cluster, second).await;
}

/// The same table and writers, and the first copy brings it.
#[tokio::test]
async fn a12_a_big_table_is_first_copied_under_writers_and_an_open_transaction() {
    let server = Server::start().await.unwrap();
    let setup = format!("{LATE}; create publication own for table base, late");
    let mut cluster = laid_out(&server, "firstly", &setup).await;
    let open = server.session("firstly").await.unwrap();
    open.run("begin; insert into late values (-1, 'before', '')")
        .await
        .unwrap();
    cluster
        .session
        .run("insert into late values (-3, 'own', '')")
        .await
        .unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let writer = write(server.session("firstly").await.unwrap(), Arc::clone(&stop));
    cluster.start_gateway().await.unwrap();
    open.run(
        "insert into late values (-2, 'after', ''); update late set v = 'touched' where id = 1",
    )
    .await
    .unwrap();
    blocked_by(&cluster, &[&format!("pid {} ", pid(&open).await)]).await;
    open.run("commit").await.unwrap();
    cluster.add_follower().await.unwrap();
    let follower = cluster.follower(0).unwrap();
    follower.until_ready(COPIED_WITHIN).await.unwrap();
    stop.store(true, Relaxed);
    println!("{} rounds of writes", writer.await.unwrap());
    cluster.must_be_equal(0).await.unwrap();
    ends_whole(&mut cluster, 0).await;
}

/// Its rows are in the archive by then, and are not read again.
#[tokio::test]
async fn a_backfill_whose_session_ends_while_followers_load_is_not_made_again() {
    let server = Server::start().await.unwrap();
    let setup = format!("{LATE}; create publication own for table base");
    let mut cluster = laid_out(&server, "broken", &setup).await;
    cluster.start_gateway().await.unwrap();
    cluster.add_follower().await.unwrap();
    cluster.must_be_equal(0).await.unwrap();
    cluster
        .session
        .run("alter publication own add table late")
        .await
        .unwrap();
    blocked_by(&cluster, &["followers load it"]).await;
    let ended = "select count(*) filter (where pg_terminate_backend(pid)) from pg_stat_activity \
         where application_name like 'rindle-backfill%'";
    assert_ne!(cluster.session.text(ended).await.unwrap(), "0");
    let mirror = cluster.mirror(0);
    wait::until_true("the table to be shown", COPIED_WITHIN, async || {
        Ok(count(&mirror, "select count(*) from late").is_some())
    })
    .await
    .unwrap();
    let log = cluster.gateway().unwrap().log();
    assert!(log.contains("could not be said"), "{log}");
    assert!(!log.contains("it is made again"), "{log}");
    cluster.must_follow(0).await.unwrap();
}
