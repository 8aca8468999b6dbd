//! One row, through the real programs, from Postgres into SQLite.

use std::time::Duration;

use rindle_drills::{cluster::Cluster, postgres::Server};

const READY_WITHIN: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_row_written_in_postgres_is_in_the_followers_sqlite() {
    let server = Server::start().await.unwrap();
    let mut cluster = Cluster::new(&server, "postgres", "app").await.unwrap();
    cluster
        .session
        .run("create table greeting(id int primary key, words text)")
        .await
        .unwrap();
    cluster
        .session
        .run("insert into greeting values (1, 'before the copy')")
        .await
        .unwrap();
    cluster.prepare(&["public.greeting"]).await.unwrap();
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
        .session
        .run("insert into greeting values (2, 'on the stream')")
        .await
        .unwrap();
    let report = cluster.must_be_equal(follower).await.unwrap();
    assert_eq!((report.tables, report.rows), (2, 3), "{report}");

    cluster
        .gateway()
        .unwrap()
        .until_ready(READY_WITHIN)
        .await
        .unwrap();
    cluster.follower(follower).unwrap().stop().await.unwrap();
    cluster.gateway().unwrap().stop().await.unwrap();
}

/// A line that stderr does not take is lost, and nothing else is.
#[tokio::test]
async fn a_full_disk_under_the_logs_stops_nothing() {
    let server = Server::start().await.unwrap();
    server.create_database("mute", "").await.unwrap();
    let mut cluster = Cluster::new(&server, "mute", "mute").await.unwrap();
    let table = "create table greeting(id int primary key, words text)";
    cluster.session.run(table).await.unwrap();
    cluster.prepare(&["public.greeting"]).await.unwrap();
    cluster.mint().await.unwrap();
    for name in ["gateway", "follower-0"] {
        cluster.fill_log(name).unwrap();
    }
    cluster.start_gateway().await.unwrap();
    let follower = cluster.add_follower().await.unwrap();
    cluster.must_be_equal(follower).await.unwrap();

    // Every program has something to say about this.
    let broken = "select count(pg_terminate_backend(pid)) from pg_stat_replication";
    assert_eq!(cluster.session.text(broken).await.unwrap(), "1");
    let write = "insert into greeting values (1, 'after the break')";
    cluster.session.run(write).await.unwrap();
    cluster.must_be_equal(follower).await.unwrap();
    cluster.follower(follower).unwrap().stop().await.unwrap();
    cluster.gateway().unwrap().stop().await.unwrap();
}
