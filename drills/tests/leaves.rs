//! Dropping, truncating or detaching one of many partitions copies none of the others, and is found where partitions are
//! sent as their root.
//!
//! `RINDLE_FULL` makes the table ten times as long.

use std::{path::Path, time::Duration};

use rindle_drills::{cluster::Cluster, postgres::Server, wait};

const READY_WITHIN: Duration = Duration::from_secs(300);
const TOLD_WITHIN: Duration = Duration::from_secs(90);
/// Once a minute, and the copy.
const AUDITED_WITHIN: Duration = Duration::from_secs(90);
const LEAVES: u64 = 50;

fn rows() -> u64 {
    match std::env::var_os("RINDLE_FULL") {
        Some(_) => 2_000_000,
        None => 200_000,
    }
}

/// Objects with rows of copies, anywhere in the archive.
fn bulk_objects(folder: &Path, inside: bool) -> usize {
    let entries = std::fs::read_dir(folder).unwrap().map(Result::unwrap);
    let counts = entries.map(|entry| match entry.file_type().unwrap().is_dir() {
        true => bulk_objects(&entry.path(), inside || entry.file_name() == "bulk"),
        false => usize::from(inside),
    });
    counts.sum()
}

#[tokio::test]
async fn c2_one_of_fifty_leaves_goes_and_none_of_the_others_is_copied() {
    let server = Server::start().await.unwrap();
    let mut cluster = Cluster::new(&server, "postgres", "fifty").await.unwrap();
    let each = rows() / LEAVES;
    let mut setup =
        "create table root(id bigint primary key, body text) partition by range (id);".to_owned();
    for leaf in 0..LEAVES {
        let (from, to) = (leaf * each, (leaf + 1) * each);
        setup += &format!(
            "create table leaf{leaf} partition of root for values from ({from}) to ({to});"
        );
    }
    let last = LEAVES * each - 1;
    setup += &format!("insert into root select n, md5(n::text) from generate_series(0, {last}) n");
    cluster.session.run(&setup).await.unwrap();
    cluster.prepare(&["public.root"]).await.unwrap();
    cluster.mint().await.unwrap();
    cluster.start_gateway().await.unwrap();
    let follower = cluster.add_follower().await.unwrap();
    let program = cluster.follower(follower).unwrap();
    program.until_ready(READY_WITHIN).await.unwrap();
    cluster.must_be_equal(follower).await.unwrap();
    let before = bulk_objects(&cluster.archive(), false);
    assert!(before > 0, "the first copy has objects");
    let sqlite = rusqlite::Connection::open(cluster.mirror(follower)).unwrap();
    let changes = [
        "drop table leaf7",
        "truncate leaf20",
        "alter table root detach partition leaf33",
        "delete from root where id % 1000 = 0",
    ];
    for change in changes {
        cluster.session.run(change).await.unwrap();
        cluster.must_be_equal(follower).await.unwrap();
        let there: i64 = sqlite
            .query_row("select count(*) from root", [], |row| row.get(0))
            .unwrap();
        println!("{change}: {there} rows are left");
    }
    // A copy would begin within a second.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(bulk_objects(&cluster.archive(), false), before);
    let status = cluster.gateway_status().await.unwrap();
    assert_eq!(status["waiting"], serde_json::json!([]), "{status}");
}

/// A publication of the user's own that sends partitions as their root: no TRUNCATE of one is in the stream.
#[tokio::test]
async fn c1_a_partition_that_is_sent_as_its_root_is_truncated() {
    let server = Server::start().await.unwrap();
    let mut cluster = Cluster::new(&server, "postgres", "asroot").await.unwrap();
    cluster.publication = "own".to_owned();
    let setup = "create table root(id int, k int, primary key (id, k)) partition by list (k); \
        create table one partition of root for values in (1); create table two partition of root for values in (2); \
        insert into root select n, 1 + n % 2 from generate_series(1, 1000) n; \
        create publication own for table root with (publish_via_partition_root = true)";
    cluster.session.run(setup).await.unwrap();
    cluster.add_marker(Some("own")).await.unwrap();
    cluster.prepare_as_it_is().await.unwrap();
    cluster.mint().await.unwrap();
    cluster.start_gateway().await.unwrap();
    let follower = cluster.add_follower().await.unwrap();
    let program = cluster.follower(follower).unwrap();
    program.until_ready(READY_WITHIN).await.unwrap();
    cluster.must_follow(follower).await.unwrap();
    wait::until_true("status to name the partitions", TOLD_WITHIN, async || {
        let capture = cluster.gateway_status().await?["capture"].to_string();
        Ok(
            ["PartitionTruncate", "public.root", "public.one, public.two"]
                .iter()
                .all(|words| capture.contains(words)),
        )
    })
    .await
    .unwrap();

    cluster.session.run("truncate one").await.unwrap();
    let sqlite = rusqlite::Connection::open(cluster.mirror(follower)).unwrap();
    let mark = cluster.mark().await.unwrap();
    cluster
        .until_marked(follower, mark, TOLD_WITHIN)
        .await
        .unwrap();
    let count = || {
        let count = sqlite.query_row("select count(*) from root", [], |row| row.get::<_, i64>(0));
        count.unwrap()
    };
    assert_eq!(count(), 1000, "the stream tells nothing of it");
    wait::until_true("the audit to find it", AUDITED_WITHIN, async || {
        Ok(count() == 500)
    })
    .await
    .unwrap();
    cluster.must_follow(follower).await.unwrap();

    // One that nobody found yet is not forgotten because a migration tells what the partition is now.
    let both = "truncate two; alter table root add v text default 'v'";
    cluster.session.run(both).await.unwrap();
    cluster.must_follow(follower).await.unwrap();
    assert_eq!(count(), 0);
}
