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
