//! `rindle pg verify` says exactly which table of a mirror is not the source's.

use std::{path::Path, time::Duration};

use rindle_drills::{cluster::Cluster, postgres::Server};
use rusqlite::Connection;
use serde_json::Value;

const READY_WITHIN: Duration = Duration::from_secs(60);

const SETUP: &str = "
create table person(id int primary key, name text, height float8, photo bytea);
insert into person select n, 'p' || n, n / 7.0, decode(md5(n::text), 'hex') from generate_series(1, 5000) n;
create table ledger(account text, day date, cents numeric, primary key (account, day));
insert into ledger select 'a' || n % 50, date '2024-01-01' + n / 50, n * 1.10 from generate_series(1, 5000) n;
create table calm(id int primary key);
insert into calm select generate_series(1, 10)";

/// One cell, or one row, that is not the source's; the statement that plants it, and the one that takes it out.
const PLANTED: [(&str, &str, &str); 6] = [
    (
        "person",
        "update person set name = 'P2500' where id = 2500",
        "update person set name = 'p2500' where id = 2500",
    ),
    (
        "person",
        "update person set name = null where id = 1",
        "update person set name = 'p1' where id = 1",
    ),
    (
        "person",
        "update person set height = height + 1e-13 where id = 7",
        "update person set height = 1.0 where id = 7",
    ),
    (
        "ledger",
        "update ledger set cents = '1.1' where cents = '1.10'",
        "update ledger set cents = '1.10' where cents = '1.1'",
    ),
    (
        "calm",
        "delete from calm where id = 10",
        "insert into calm values (10)",
    ),
    (
        "calm",
        "insert into calm values (11)",
        "delete from calm where id = 11",
    ),
];

async fn mirrored(server: &Server, source: &str) -> Cluster {
    let mut cluster = Cluster::new(server, "postgres", source).await.unwrap();
    cluster.session.run(SETUP).await.unwrap();
    let tables = ["public.person", "public.ledger", "public.calm"];
    cluster.prepare(&tables).await.unwrap();
    cluster.mint().await.unwrap();
    cluster.start_gateway().await.unwrap();
    let follower = cluster.add_follower().await.unwrap();
    let program = cluster.follower(follower).unwrap();
    program.until_ready(READY_WITHIN).await.unwrap();
    cluster.must_be_equal(follower).await.unwrap();
    cluster
}

/// Runs verify; gives its exit status and the tables that it calls different.
async fn verify(cluster: &Cluster, mirror: &[&str]) -> (Option<i32>, Vec<String>, usize) {
    let args = [mirror, &["--json"]].concat();
    let outcome = cluster.pg("verify", &args).await.unwrap();
    let told: Value = outcome
        .json()
        .unwrap_or_else(|err| panic!("{err:#}: {}", outcome.stderr));
    let tables = told["tables"].as_array().unwrap();
    let different = tables.iter().filter(|table| table["equal"] != true);
    let names: Vec<String> = different
        .map(|table| table["table"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(told["equal"], names.is_empty(), "{told}");
    (outcome.status.code(), names, tables.len())
}

fn change(db: &Path, sql: &str) {
    let sqlite = Connection::open(db).unwrap();
    sqlite.busy_timeout(READY_WITHIN).unwrap();
    assert_eq!(sqlite.execute(sql, []).unwrap(), 1, "{sql}");
}

/// Plants each difference, one at a time, and asks.
async fn finds_all(cluster: &Cluster, mirror: &[&str], db: &Path) {
    let equal = (Some(0), Vec::new(), 4);
    assert_eq!(verify(cluster, mirror).await, equal);
    for (table, plant, mend) in PLANTED {
        change(db, plant);
        let (status, different, _) = verify(cluster, mirror).await;
        assert_eq!(
            (status, different),
            (Some(1), vec![table.to_owned()]),
            "{plant}"
        );
        change(db, mend);
    }
    change(db, PLANTED[0].1);
    change(db, PLANTED[3].1);
    let (status, different, _) = verify(cluster, mirror).await;
    let two = vec!["ledger".to_owned(), "person".to_owned()];
    assert_eq!((status, different), (Some(1), two));
    change(db, PLANTED[0].2);
    change(db, PLANTED[3].2);
    assert_eq!(verify(cluster, mirror).await, equal);
}

#[tokio::test]
async fn finds_one_cell_in_a_running_follower() {
    let server = Server::start().await.unwrap();
    let mut cluster = mirrored(&server, "live").await;
    let port = cluster.follower(0).unwrap().port("httpPort").unwrap();
    let url = format!("http://127.0.0.1:{port}");
    let db = cluster.followers[0].db.clone();
    finds_all(&cluster, &["--follower", &url], &db).await;
    // It was held for the comparison, and goes on.
    cluster
        .session
        .run("insert into calm values (20)")
        .await
        .unwrap();
    cluster.must_be_equal(0).await.unwrap();
}

#[tokio::test]
async fn finds_one_cell_in_a_file_that_is_behind() {
    let server = Server::start().await.unwrap();
    let mut cluster = mirrored(&server, "file").await;
    cluster.follower(0).unwrap().stop().await.unwrap();
    // The file is brought to the source's position from the archive.
    cluster
        .session
        .run("insert into calm values (20)")
        .await
        .unwrap();
    let archive = cluster.archive().display().to_string();
    let db = cluster.followers[0].db.clone();
    let file = db.display().to_string();
    let mirror = ["--db", &file, "--store", "filesystem", "--path", &archive];
    finds_all(&cluster, &mirror, &db).await;
}
