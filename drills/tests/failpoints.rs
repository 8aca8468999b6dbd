//! Each program dies at each named moment, under load; the next start goes on, nothing is lost and nothing was
//! acknowledged too early.

use std::time::Duration;

use rindle_drills::{
    cluster::{CATCHES_UP_WITHIN, Cluster},
    failpoint::{all, armed, must_have_died},
    postgres::Server,
    program,
    rng::Rng,
    workload::{self, Load},
};

const READY_WITHIN: Duration = Duration::from_secs(60);
const DIES_WITHIN: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(5);

/// Moments of a first copy, with how often each is reached before the program dies there.
const COPY: [(&str, u32); 5] = [
    ("gateway.session.fenced", 1),
    ("gateway.genesis.slot_created", 1),
    ("gateway.copy.part_durable", 3),
    ("gateway.genesis.copied", 1),
    ("gateway.genesis.done_durable", 1),
];
const STREAM: [(&str, u32); 5] = [
    ("gateway.session.fenced", 1),
    ("gateway.pump.appended", 20),
    ("gateway.ship.put", 4),
    ("gateway.ship.stored", 4),
    ("gateway.pump.archived", 4),
];
const FOLLOWER: [(&str, u32); 3] = [
    ("follower.apply.received", 10),
    ("follower.apply.applied", 10),
    ("follower.apply.committed", 10),
];
const RESTORE: &str = "follower.bootstrap.image_fetched";
const PRODUCER: [&str; 3] = [
    "producer.cycle.replayed",
    "producer.cycle.image_made",
    "producer.cycle.published",
];

#[test]
fn every_moment_is_drilled() {
    let mut drilled: Vec<&str> = COPY
        .iter()
        .chain(&STREAM)
        .chain(&FOLLOWER)
        .map(|(name, _)| *name)
        .collect();
    drilled.extend(PRODUCER);
    drilled.push(RESTORE);
    drilled.sort_unstable();
    drilled.dedup();
    let mut all = all().unwrap();
    all.sort_unstable();
    assert_eq!(all, drilled);
}

/// A source with the workload's tables and some rows to copy, minted.
async fn minted(server: &Server, source: &str) -> Cluster {
    let cluster = Cluster::new(server, "postgres", source).await.unwrap();
    cluster.session.run(workload::SCHEMA).await.unwrap();
    let fill =
        "insert into whole select n, n / 3.0, md5(n::text) from generate_series(1000, 50000) n";
    cluster.session.run(fill).await.unwrap();
    cluster.prepare(&workload::TABLES).await.unwrap();
    cluster.mint().await.unwrap();
    cluster
}

async fn load(server: &Server, rng: &mut Rng) -> Load {
    Load::start(server, "postgres", 2, PAUSE, rng)
        .await
        .unwrap()
}

async fn attach(cluster: &mut Cluster) {
    let follower = cluster.add_follower().await.unwrap();
    cluster
        .follower(follower)
        .unwrap()
        .until_ready(CATCHES_UP_WITHIN)
        .await
        .unwrap();
}

async fn gateway_dies_at(cluster: &mut Cluster, name: &str, nth: u32) {
    cluster
        .start_gateway_armed(&armed(name, nth))
        .await
        .unwrap();
    let gateway = cluster.gateway().unwrap();
    let status = gateway.ended(DIES_WITHIN).await.unwrap();
    must_have_died(name, status, &gateway.log()).unwrap();
}

#[tokio::test]
async fn of_the_first_copy() {
    let server = Server::start().await.unwrap();
    let mut rng = Rng::from_env("failpoints of the first copy");
    let mut cluster = minted(&server, "fc").await;
    let watch = cluster.watch();
    let load = Load::beside_a_copy(&server, "postgres", 2, PAUSE, &mut rng)
        .await
        .unwrap();
    for (name, nth) in COPY {
        gateway_dies_at(&mut cluster, name, nth).await;
    }
    cluster.start_gateway().await.unwrap();
    attach(&mut cluster).await;
    let done = load.finish().await.unwrap();
    assert!(done.committed > 20, "{done:?}");
    println!("{}", cluster.must_be_equal(0).await.unwrap());
    println!("watch: {:?}", watch.finish().await.unwrap());
    let slots = "select count(*) from pg_replication_slots";
    assert_eq!(cluster.session.text(slots).await.unwrap(), "1");
}

#[tokio::test]
async fn of_the_stream() {
    let server = Server::start().await.unwrap();
    let mut rng = Rng::from_env("failpoints of the stream");
    let mut cluster = minted(&server, "fs").await;
    cluster.start_gateway().await.unwrap();
    attach(&mut cluster).await;
    let watch = cluster.watch();
    for (name, nth) in STREAM {
        let load = load(&server, &mut rng).await;
        cluster.gateway().unwrap().kill().await.unwrap();
        gateway_dies_at(&mut cluster, name, nth).await;
        cluster.start_gateway().await.unwrap();
        cluster
            .gateway()
            .unwrap()
            .until_ready(READY_WITHIN)
            .await
            .unwrap();
        let done = load.finish().await.unwrap();
        let report = cluster.must_be_equal(0).await.unwrap();
        println!("{name}: {done:?}, {report}");
    }
    println!("watch: {:?}", watch.finish().await.unwrap());
    cluster.produce().await.unwrap();
    let imaged = cluster.add_follower_from_image().await.unwrap();
    cluster.must_be_equal(imaged).await.unwrap();
}

#[tokio::test]
async fn of_the_follower() {
    let server = Server::start().await.unwrap();
    let mut rng = Rng::from_env("failpoints of the follower");
    let mut cluster = minted(&server, "ff").await;
    cluster.start_gateway().await.unwrap();
    attach(&mut cluster).await;
    for (name, nth) in FOLLOWER {
        let load = load(&server, &mut rng).await;
        cluster.follower(0).unwrap().kill().await.unwrap();
        cluster
            .start_follower_armed(0, &armed(name, nth))
            .await
            .unwrap();
        follower_died_at(&mut cluster, 0, name).await;
        cluster.start_follower(0).await.unwrap();
        let done = load.finish().await.unwrap();
        let report = cluster.must_be_equal(0).await.unwrap();
        println!("{name}: {done:?}, {report}");
    }
    cluster.produce().await.unwrap();
    let second = cluster.add_follower_armed(&armed(RESTORE, 1)).await;
    let second = second.unwrap();
    follower_died_at(&mut cluster, second, RESTORE).await;
    assert!(
        !cluster.followers[second].db.exists(),
        "half a restore is in place"
    );
    cluster.start_follower(second).await.unwrap();
    let follower = cluster.follower(second).unwrap();
    follower.until_ready(READY_WITHIN).await.unwrap();
    assert_eq!(cluster.followers[second].restored(), 1);
    cluster.must_be_equal(second).await.unwrap();
}

async fn follower_died_at(cluster: &mut Cluster, number: usize, name: &str) {
    let follower = cluster.follower(number).unwrap();
    let status = follower.ended(DIES_WITHIN).await.unwrap();
    must_have_died(name, status, &follower.log()).unwrap();
}

#[tokio::test]
async fn of_the_producer() {
    let server = Server::start().await.unwrap();
    let mut rng = Rng::from_env("failpoints of the producer");
    let mut cluster = minted(&server, "fp").await;
    cluster.start_gateway().await.unwrap();
    attach(&mut cluster).await;
    for name in PRODUCER {
        let load = load(&server, &mut rng).await;
        let mut start = cluster.producer();
        start.env = armed(name, 1);
        let outcome = program::run(&cluster.dir, &start, DIES_WITHIN).await;
        let outcome = outcome.unwrap();
        must_have_died(name, outcome.status, &outcome.stderr).unwrap();
        load.finish().await.unwrap();
        cluster.produce().await.unwrap();
        let imaged = cluster.add_follower_from_image().await.unwrap();
        let report = cluster.must_be_equal(imaged).await.unwrap();
        println!("{name}: {report}");
        cluster.follower(imaged).unwrap().stop().await.unwrap();
    }
}

/// Rows and changes of the schema by turns, in one transaction and in several; `{n}` is the number of the round.
const MIGRATION: [&str; 6] = [
    "begin; insert into changing(id, v) values ({n}, 'before'); alter table changing add a{n} int default {n}; \
     insert into changing(id, v) values (-{n}, 'between'); alter table changing rename v to v{n}; \
     update changing set v{n} = 'after' where id < 0; commit",
    "insert into changing(id, v{n}) values (1000 + {n}, 'row')",
    "alter table changing rename v{n} to v",
    "alter table changing add u{n} float default random()",
    "update changing set v = 'changed' where id % 7 = 0; delete from changing where id % 11 = 0",
    "alter table changing drop column a{n}",
];

/// Nothing of it was acknowledged when the gateway dies, so all of it comes again.
#[tokio::test]
async fn a_migration_comes_again_after_each_moment_before_its_acknowledgement() {
    let server = Server::start().await.unwrap();
    let mut cluster = Cluster::new(&server, "postgres", "fm").await.unwrap();
    let setup = "create table changing(id int primary key, v text); \
         insert into changing select n, 'v' from generate_series(100, 600) n";
    cluster.session.run(setup).await.unwrap();
    cluster.prepare(&["public.changing"]).await.unwrap();
    cluster.mint().await.unwrap();
    cluster.start_gateway().await.unwrap();
    attach(&mut cluster).await;
    let of_a_backfill = "gateway.copy.part_durable";
    let moments = STREAM.iter().map(|(name, _)| *name).chain([of_a_backfill]);
    for (number, name) in (1..).zip(moments) {
        cluster.gateway().unwrap().kill().await.unwrap();
        for sql in MIGRATION {
            let sql = sql.replace("{n}", &number.to_string());
            cluster.session.run(&sql).await.unwrap();
        }
        gateway_dies_at(&mut cluster, name, 1).await;
        cluster.start_gateway().await.unwrap();
        let followed = cluster.must_follow(0).await;
        followed.unwrap_or_else(|error| panic!("{name}: {error:#}"));
    }
}
