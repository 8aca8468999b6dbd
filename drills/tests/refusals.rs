//! Schema changes that no mirror follows: each stops the stream before its commit, by name, while followers go on serving;
//! the way on is a new generation.

use std::time::Duration;

use rindle_drills::{
    cluster::{Cluster, newest_mark},
    postgres::Server,
};

const STOPS_WITHIN: Duration = Duration::from_secs(30);

const SETUP: &str = "create table kept(id int primary key, v text not null, other int not null unique); \
     insert into kept select n, 'v' || n, n from generate_series(1, 20) n";

/// One such change, and the words of the reason, of which the first is its name.
struct Refusal {
    name: &'static str,
    migration: &'static str,
    words: &'static [&'static str],
}

const REFUSALS: &[Refusal] = &[
    Refusal {
        name: "rekeyed",
        migration: "alter table kept drop constraint kept_pkey, add constraint kept_pkey primary key (id, other)",
        words: &[
            "SchemaRefused",
            "public.kept",
            "its row key is another one now",
        ],
    },
    Refusal {
        name: "uncovered",
        migration: "alter table kept replica identity using index kept_other_key; update kept set v = 'w' where id = 3",
        words: &[
            "SchemaRefused",
            "public.kept",
            "its replica identity does not hold column \"id\"",
        ],
    },
    Refusal {
        name: "unidentified",
        migration: "insert into kept values (100, 'x', 100); alter table kept replica identity nothing",
        words: &[
            "SchemaRefused",
            "public.kept",
            "its replica identity does not hold column \"id\"",
        ],
    },
    Refusal {
        name: "column-case",
        migration: "alter table kept add column \"V\" text default 'upper'",
        words: &["SchemaRefused", "kept", "column \"V\""],
    },
    Refusal {
        name: "table-case",
        migration: "create table \"Kept\"(id int primary key); alter publication {pub} add table \"Kept\"",
        words: &["SchemaRefused", "Kept"],
    },
    Refusal {
        name: "reserved",
        migration: "alter table kept rename to _rindle_kept",
        words: &["SchemaRefused", "_rindle_kept", "reserved"],
    },
    Refusal {
        name: "no-deletes",
        migration: "alter publication {pub} set (publish = 'insert, update, truncate'); delete from kept where id = 5",
        words: &["SchemaRefused", "publication {pub}", "no longer publishes"],
    },
    Refusal {
        name: "unpublished",
        migration: "drop publication {pub}",
        words: &["SchemaRefused", "{pub}", "it was dropped"],
    },
];

async fn running(server: &Server, name: &str) -> Cluster {
    server.create_database(name, "").await.unwrap();
    let mut cluster = Cluster::new(server, name, name).await.unwrap();
    cluster.session.run(SETUP).await.unwrap();
    // A name that needs no quotes in the reasons.
    cluster.publication = format!("of_{}", name.replace('-', "_"));
    cluster.add_marker(None).await.unwrap();
    prepare(&cluster).await;
    cluster.mint().await.unwrap();
    cluster.start_gateway().await.unwrap();
    cluster.know_the_next_gateway();
    let first = cluster.add_follower().await.unwrap();
    cluster.must_be_equal(first).await.unwrap();
    cluster
}

async fn prepare(cluster: &Cluster) {
    let tables = ["--tables", "public.kept,public.drill_marker"];
    let publication = ["--publication", &cluster.publication];
    let args = [publication, tables].concat();
    let prepared = cluster.pg("prepare", &args).await.unwrap();
    prepared.must_succeed().unwrap();
}

/// Runs the change, and sees the stop from all sides. Gives the reason and a position above the commit.
async fn stop(cluster: &mut Cluster, refusal: &Refusal) -> (String, String) {
    let before = cluster.mark().await.unwrap();
    let here = |text: &str| text.replace("{pub}", &cluster.publication);
    let words: Vec<String> = refusal.words.iter().map(|words| here(words)).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let commit = cluster.commit(&here(refusal.migration)).await.unwrap();
    cluster.mark().await.unwrap();
    let stopped = cluster.must_stop(&words, &commit, STOPS_WITHIN).await;
    let reason = stopped.unwrap_or_else(|error| panic!("{}: {error:#}", refusal.name));
    cluster.until_marked(0, before, STOPS_WITHIN).await.unwrap();
    assert_eq!(newest_mark(&cluster.mirror(0)), Some(before), "{reason}");
    println!("{}: {reason}", refusal.name);
    (reason, commit)
}

#[tokio::test]
async fn each_refusal_stops_before_its_commit_and_names_its_object() {
    let server = Server::start().await.unwrap();
    for refusal in REFUSALS {
        let mut cluster = running(&server, refusal.name).await;
        let (reason, commit) = stop(&mut cluster, refusal).await;
        if refusal.name == "unpublished" {
            // What a start looks at first is not there; and another of its name is not the one that the stream is of.
            cluster.gateway().unwrap().kill().await.unwrap();
            cluster.start_gateway().await.unwrap();
            let publication = cluster.publication.clone();
            let words = ["SourceRefused", &publication, "does not exist"];
            let stopped = cluster.must_stop(&words, &commit, STOPS_WITHIN).await;
            stopped.unwrap();
            cluster.gateway().unwrap().kill().await.unwrap();
            prepare(&cluster).await;
            cluster.start_gateway().await.unwrap();
            let words = ["SchemaRefused", &publication, "it was dropped"];
            let stopped = cluster.must_stop(&words, &commit, STOPS_WITHIN).await;
            stopped.unwrap();
            cluster.move_on(0).await.unwrap();
            continue;
        }
        let again = cluster.must_stop_again(&reason, &commit).await;
        again.unwrap_or_else(|error| panic!("{}: {error:#}", refusal.name));
    }
}

/// Changes that come close, and are followed.
const FOLLOWED: &[&str] = &[
    "alter table kept drop constraint kept_pkey, add constraint kept_key primary key (id)",
    "create unique index concurrently kept_again on kept(id)",
    "alter table kept drop constraint kept_key, add constraint kept_pkey primary key using index kept_again",
    "alter table kept replica identity full",
    "alter table kept drop constraint kept_other_key",
    "alter table kept replica identity using index kept_pkey",
    "alter table kept alter id type bigint",
    "begin; alter table kept rename id to number; alter table kept rename v to id; alter table kept rename id to v; \
     alter table kept rename number to id; commit",
    "alter table kept replica identity default",
];

#[tokio::test]
async fn h5_a_key_that_is_made_anew_over_the_same_columns_is_the_same() {
    let server = Server::start().await.unwrap();
    let mut cluster = running(&server, "rebuilt").await;
    for (n, change) in FOLLOWED.iter().enumerate() {
        cluster.session.run(change).await.unwrap();
        let rows = format!(
            "insert into kept values ({n} + 100, 'n', {n} + 100); update kept set v = v || '!' where id = {n} + 1; \
             update kept set id = -id where id = {n} + 10"
        );
        cluster.session.run(&rows).await.unwrap();
        let followed = cluster.must_follow(0).await;
        followed.unwrap_or_else(|error| panic!("{change}: {error:#}"));
    }
}

#[tokio::test]
async fn a_new_generation_and_a_cutover_are_the_way_on() {
    let server = Server::start().await.unwrap();
    let mut cluster = running(&server, "moves-on").await;
    stop(&mut cluster, &REFUSALS[0]).await;
    // More that only the new generation knows.
    let later = "update kept set v = 'later' where id < 5; alter table kept add w int default 9";
    cluster.session.run(later).await.unwrap();
    cluster.move_on(0).await.unwrap();
    // It follows what comes now, too.
    let then = "alter table kept rename w to x; insert into kept values (200, 'then', 200, 1)";
    cluster.session.run(then).await.unwrap();
    cluster.must_follow(0).await.unwrap();
    let second = cluster.add_follower_from_image().await.unwrap();
    cluster.must_be_equal(second).await.unwrap();
}
