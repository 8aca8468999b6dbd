//! What the archive is for: the slot is acknowledged behind it and never past it, an idle source does not hold WAL, a
//! lost gateway host costs nothing, and nothing damaged is ever applied.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use rindle_drills::{
    cluster::Cluster,
    outage::Outage,
    postgres::{Options, Server, version_from_env},
    wait,
};
use rusqlite::{Connection, OpenFlags};
use serde_json::json;

const READY_WITHIN: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;

async fn started(server: &Server, source: &str, setup: &str, tables: &[&str]) -> Cluster {
    let mut cluster = Cluster::new(server, "postgres", source).await.unwrap();
    cluster.session.run(setup).await.unwrap();
    cluster.prepare(tables).await.unwrap();
    cluster.mint().await.unwrap();
    cluster.start_gateway().await.unwrap();
    let follower = cluster.add_follower().await.unwrap();
    cluster
        .follower(follower)
        .unwrap()
        .until_ready(READY_WITHIN)
        .await
        .unwrap();
    cluster
}

/// An unpublished table is written by the gigabyte (a part of it in CI) while the published one is quiet.
#[tokio::test]
async fn a_quiet_table_beside_a_busy_one_holds_no_wal() {
    let server = Server::start().await.unwrap();
    let setup = "create table still(id int primary key); insert into still values (1);
                 create table busy(id bigserial primary key, p text)";
    let mut cluster = started(&server, "quiet", setup, &["public.still"]).await;
    let watch = cluster.watch();
    let rounds = if std::env::var_os("RINDLE_FULL").is_some() {
        20
    } else {
        4
    };
    for _ in 0..rounds {
        let write = "insert into busy(p) select repeat('y', 500) from generate_series(1, 100000)";
        cluster.session.run(write).await.unwrap();
    }
    let end = cluster.source_position().await.unwrap();
    let lag = "select pg_current_wal_lsn() - confirmed_flush_lsn from pg_replication_slots";
    wait::until_true(
        "the slot to follow an idle source",
        Duration::from_secs(60),
        async || {
            let behind: u64 = cluster.session.text(lag).await?.parse()?;
            Ok(behind < 16 * MIB)
        },
    )
    .await
    .unwrap();
    assert!(
        cluster.archived().unwrap() + 16 * MIB > end,
        "the archive does not tell how far it goes"
    );
    cluster
        .session
        .run("insert into still values (2)")
        .await
        .unwrap();
    cluster.must_be_equal(0).await.unwrap();
    println!("watch: {:?}", watch.finish().await.unwrap());
    from_an_image(&mut cluster).await;
}

/// Small transactions while the archive is away, keepalives in between, then the gateway and its local log are lost.
#[tokio::test]
async fn nothing_is_acknowledged_that_the_archive_does_not_hold() {
    let options = Options {
        conf: vec!["wal_sender_timeout = '4s'".to_owned()],
        fresh: false,
    };
    let server = Server::start_with(version_from_env(), options)
        .await
        .unwrap();
    let setup = "create table receipt(id int primary key, v text); create table noise(id serial primary key)";
    let mut cluster = started(&server, "behind", setup, &["public.receipt"]).await;
    cluster.must_be_equal(0).await.unwrap();
    let watch = cluster.watch();

    let outage = Outage::begin(&cluster.archive()).await.unwrap();
    let before = cluster.source_position().await.unwrap();
    for (id, v) in [(1, "a"), (2, "b"), (3, "c")] {
        cluster
            .session
            .run(&format!("insert into receipt values ({id}, '{v}')"))
            .await
            .unwrap();
    }
    cluster
        .session
        .run("insert into noise default values")
        .await
        .unwrap();
    cluster
        .session
        .text("select pg_switch_wal()")
        .await
        .unwrap();
    keepalives_answered(&cluster).await;
    let confirmed = "select confirmed_flush_lsn - '0/0'::pg_lsn from pg_replication_slots";
    let confirmed: u64 = cluster
        .session
        .text(confirmed)
        .await
        .unwrap()
        .parse()
        .unwrap();
    assert!(
        confirmed <= before,
        "{confirmed:X} is acknowledged, the first row came after {before:X}"
    );

    cluster.gateway().unwrap().kill().await.unwrap();
    tokio::fs::remove_dir_all(cluster.data_dir()).await.unwrap();
    outage.end().await.unwrap();
    cluster.start_gateway().await.unwrap();
    cluster
        .session
        .run("insert into receipt values (4, 'd')")
        .await
        .unwrap();
    let report = cluster.must_be_equal(0).await.unwrap();
    wait::until_true("acknowledging to go on", READY_WITHIN, async || {
        let now = "select confirmed_flush_lsn - '0/0'::pg_lsn from pg_replication_slots";
        Ok(cluster.session.text(now).await?.parse::<u64>()? > confirmed)
    })
    .await
    .unwrap();
    println!("{report}; watch: {:?}", watch.finish().await.unwrap());
    let rows = "select string_agg(id || v, ' ' order by id) from receipt";
    assert_eq!(cluster.session.text(rows).await.unwrap(), "1a 2b 3c 4d");
    from_an_image(&mut cluster).await;
}

/// Waits for more than two keepalives, by Postgres' own clock and only as long as the connection lives.
async fn keepalives_answered(cluster: &Cluster) {
    let since = cluster.session.text("select now()").await.unwrap();
    let replied = format!(
        "select coalesce(max(reply_time) > '{since}'::timestamptz + interval '6 s', false) from pg_stat_replication"
    );
    wait::until_true(
        "keepalives to be answered",
        Duration::from_secs(40),
        async || Ok(cluster.session.text(&replied).await? == "t"),
    )
    .await
    .unwrap();
}

/// As after every case: the same end state in a follower that began with an image.
async fn from_an_image(cluster: &mut Cluster) {
    cluster.produce().await.unwrap();
    let imaged = cluster.add_follower_from_image().await.unwrap();
    cluster.must_be_equal(imaged).await.unwrap();
}

/// A follower got rows that the archive did not; then the gateway's host is lost. Its chain is the one that the stream
/// brings again, so it goes on with the file that it has.
#[tokio::test]
async fn a_follower_ahead_of_the_archive_goes_on_without_a_restore() {
    let server = Server::start().await.unwrap();
    let setup =
        "create table ahead(id int primary key, v text); insert into ahead values (0, 'copied')";
    let mut cluster = started(&server, "ahead", setup, &["public.ahead"]).await;
    cluster.must_be_equal(0).await.unwrap();
    // An image is there to be restored, if anybody thought it must be.
    cluster.produce().await.unwrap();
    let watch = cluster.watch();
    let file = inode(&cluster.followers[0].db);
    let pid = cluster.follower(0).unwrap().pid();

    let outage = Outage::begin(&cluster.archive()).await.unwrap();
    for id in 1..=50 {
        let write = format!("insert into ahead values ({id}, 'not archived')");
        cluster.session.run(&write).await.unwrap();
    }
    let mark = cluster.mark().await.unwrap();
    cluster.until_marked(0, mark, READY_WITHIN).await.unwrap();
    let ahead = applied_seq(&cluster).await;
    cluster.gateway().unwrap().kill().await.unwrap();
    tokio::fs::remove_dir_all(cluster.data_dir()).await.unwrap();
    outage.end().await.unwrap();
    cluster.start_gateway().await.unwrap();
    let gateway = cluster.gateway().unwrap();
    gateway.until_ready(READY_WITHIN).await.unwrap();
    cluster
        .session
        .run("update ahead set v = 'after' where id = 7")
        .await
        .unwrap();
    println!("{}", cluster.must_be_equal(0).await.unwrap());

    assert!(applied_seq(&cluster).await > ahead);
    assert_eq!(cluster.followers[0].restored(), 0, "it restored an image");
    assert_eq!(inode(&cluster.followers[0].db), file, "another file");
    let follower = cluster.follower(0).unwrap();
    assert_eq!(follower.pid(), pid);
    let log = follower.log();
    assert!(!log.contains("asks for a restore"), "{log}");
    let status = cluster.gateway_status().await.unwrap();
    assert!(status["headSeq"].as_u64() > Some(ahead), "{status}");
    println!("watch: {:?}", watch.finish().await.unwrap());
}

fn inode(file: &Path) -> u64 {
    std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(file).unwrap())
}

async fn applied_seq(cluster: &Cluster) -> u64 {
    let program = cluster.followers[0].program.as_ref().unwrap();
    let answer = program.readyz().await.unwrap().json().unwrap();
    answer["appliedSeq"].as_u64().unwrap()
}

/// A gateway host is lost with its folder; a fresh one goes on without a copy, and the follower without a restore.
#[tokio::test]
async fn a_fresh_gateway_host_goes_on_from_archive_and_slot() {
    let server = Server::start().await.unwrap();
    let setup = "create table kept(id int primary key, v text); insert into kept select n, 'v' from generate_series(1, 1000) n";
    let mut cluster = started(&server, "lost", setup, &["public.kept"]).await;
    let watch = cluster.watch();
    for round in 0..3 {
        let write = format!(
            "insert into kept select n, 'w' from generate_series({0}, {0} + 99) n",
            2000 + round * 100
        );
        cluster.session.run(&write).await.unwrap();
        cluster.must_be_equal(0).await.unwrap();
        cluster.gateway().unwrap().kill().await.unwrap();
        tokio::fs::remove_dir_all(cluster.data_dir()).await.unwrap();
        cluster
            .session
            .run(&format!(
                "update kept set v = 'while it was away' where id = {round}"
            ))
            .await
            .unwrap();
        cluster.start_gateway().await.unwrap();
        cluster.must_be_equal(0).await.unwrap();
    }
    // Without a second copy: the archive holds bulk objects of one attempt only.
    let bulk = cluster.log_dir().unwrap().with_file_name("bulk");
    assert_eq!(std::fs::read_dir(bulk).unwrap().count(), 1);
    println!("watch: {:?}", watch.finish().await.unwrap());
}

/// A chain of 200 rows in many objects, an image early in it, and the gateway stopped.
async fn chained(server: &Server) -> Cluster {
    let setup =
        "create table chain(id int primary key, before text); insert into chain values (0, 'root')";
    let mut cluster = Cluster::new(server, "postgres", "damage").await.unwrap();
    cluster.gateway_config = json!({"backup": {"minPutIntervalMs": 1}});
    cluster.session.run(setup).await.unwrap();
    cluster.prepare(&["public.chain"]).await.unwrap();
    cluster.mint().await.unwrap();
    cluster.start_gateway().await.unwrap();
    for n in 0..200 {
        let link = "insert into chain select max(id) + 1, md5(max(id)::text) from chain";
        cluster.session.run(link).await.unwrap();
        let written = cluster.source_position().await.unwrap();
        // Ten rows an object at most, so that there is a tail to damage.
        if n % 10 == 9 {
            wait::until_true("the archive to hold the rows", READY_WITHIN, async || {
                Ok(cluster.archived()? >= written)
            })
            .await
            .unwrap();
        }
        if n == 50 {
            cluster.produce().await.unwrap();
        }
    }
    cluster.mark().await.unwrap();
    let written = cluster.source_position().await.unwrap();
    wait::until_true("the archive to hold all", READY_WITHIN, async || {
        Ok(cluster.archived()? >= written)
    })
    .await
    .unwrap();
    cluster.gateway().unwrap().stop().await.unwrap();
    cluster
}

/// A hole, a cut and a flipped byte: a fresh follower stops before the damage, names the object, and is never ready.
#[tokio::test]
async fn nothing_damaged_is_applied() {
    let server = Server::start().await.unwrap();
    let mut cluster = chained(&server).await;
    let objects = objects(&cluster.log_dir().unwrap());
    assert!(objects.len() > 15, "{} objects", objects.len());
    // Its damage is what the drill is about.
    cluster.announce("is damaged; bring it back");
    cluster.announce("is missing although later objects exist");
    let whole = cluster.add_follower_from_image().await.unwrap();
    wait::until_true("the whole chain", READY_WITHIN, async || {
        Ok(links(&cluster.followers[whole].db) == Some(200))
    })
    .await
    .unwrap();
    cluster.compare(whole).await.unwrap();

    let damages: [(&str, usize); 3] = [("hole", 6), ("cut", 5), ("flip", 4)];
    for (kind, from_end) in damages {
        let copy = cluster.dir.join(&format!("archive-{kind}"));
        let copied = Command::new("cp")
            .arg("-a")
            .arg(cluster.archive())
            .arg(&copy)
            .status()
            .unwrap();
        assert!(copied.success());
        let object = &objects[objects.len() - from_end];
        damage(
            kind,
            &copy.join(object.strip_prefix(cluster.archive()).unwrap()),
        );
        cluster.follower_config = json!({"sources": [{"url": null, "backup": {"path": copy}}]});
        let follower = cluster.add_follower().await.unwrap();
        let name = object.file_stem().unwrap().to_string_lossy().into_owned();
        let what = format!("the {kind} in object {name} to be named");
        wait::until_true(&what, READY_WITHIN, async || {
            let answer = cluster.follower(follower)?.readyz().await;
            let Some(answer) = answer else {
                return Ok(false);
            };
            assert_ne!(
                answer.status, 200,
                "{kind}: ready on a damaged archive: {}",
                answer.body
            );
            Ok(answer.body.contains(&name))
        })
        .await
        .unwrap();
        let shown = links(&cluster.followers[follower].db).unwrap_or(0);
        assert!(shown < 200, "{kind}: rows past the damage are served");
    }
}

fn objects(log: &Path) -> Vec<PathBuf> {
    let mut objects: Vec<PathBuf> = std::fs::read_dir(log)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    objects.retain(|path| path.extension().is_some_and(|ext| ext == "seg"));
    objects.sort();
    objects
}

fn damage(kind: &str, object: &Path) {
    let mut bytes = std::fs::read(object).unwrap();
    match kind {
        "hole" => return std::fs::remove_file(object).unwrap(),
        "cut" => bytes.truncate(bytes.len() - 10),
        _ => {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
        }
    }
    std::fs::write(object, bytes).unwrap();
}

fn links(db: &Path) -> Option<i64> {
    let sqlite = Connection::open_with_flags(db, OpenFlags::SQLITE_OPEN_READ_ONLY).ok()?;
    sqlite
        .query_row("select max(id) from chain", [], |row| row.get(0))
        .ok()
}
