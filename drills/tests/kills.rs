//! `kill -9` of each program under load, at any moment: nothing is lost, nothing is acknowledged too early.
//!
//! `RINDLE_KILLS` (10) is how often each program is killed.

use std::time::Duration;

use rindle_drills::{
    cluster::{CATCHES_UP_WITHIN, Cluster, newest_mark},
    postgres::Server,
    program,
    rng::Rng,
    wait,
    workload::{self, Load},
};

const READY_WITHIN: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(4);

fn kills() -> usize {
    std::env::var("RINDLE_KILLS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(10)
}

/// A source with the workload's tables, a gateway and a follower that is level.
async fn running(server: &Server, source: &str) -> Cluster {
    let mut cluster = Cluster::new(server, "postgres", source).await.unwrap();
    cluster.session.run(workload::SCHEMA).await.unwrap();
    cluster.prepare(&workload::TABLES).await.unwrap();
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

async fn some_moments(rng: &mut Rng, most: u64) {
    tokio::time::sleep(Duration::from_millis(rng.below(most))).await;
}

/// Most kills must have met work in flight, or the drill showed little.
fn must_be_most(in_flight: usize, of: usize) {
    println!("{in_flight} of {of} kills met work in flight");
    assert!(
        in_flight * 2 > of,
        "only {in_flight} of {of} kills met work in flight"
    );
}

/// The load stops; the old follower and one from a new image are equal to the source.
async fn all_is_equal(cluster: &mut Cluster, load: Load) {
    let done = load.finish().await.unwrap();
    println!("load: {done:?}");
    assert!(done.committed > 20, "{done:?}");
    let report = cluster.must_be_equal(0).await.unwrap();
    println!("follower: {report}");
    cluster.produce().await.unwrap();
    let imaged = cluster.add_follower_from_image().await.unwrap();
    cluster.must_be_equal(imaged).await.unwrap();
}

#[tokio::test]
async fn of_the_gateway() {
    let server = Server::start().await.unwrap();
    let mut rng = Rng::from_env("kills of the gateway");
    let mut cluster = running(&server, "kg").await;
    let watch = cluster.watch();
    let load = Load::start(&server, "postgres", 2, PAUSE, &mut rng)
        .await
        .unwrap();
    let mut in_flight = 0;
    for _ in 0..kills() {
        // Every other time it may finish its start; else it is killed in it.
        if rng.one_in(2) {
            cluster
                .gateway()
                .unwrap()
                .until_ready(READY_WITHIN)
                .await
                .unwrap();
        }
        some_moments(&mut rng, 900).await;
        // A commit after this position that the archive does not hold when the gateway is gone was in flight.
        let before = cluster.source_position().await.unwrap();
        cluster.mark().await.unwrap();
        cluster.gateway().unwrap().kill().await.unwrap();
        in_flight += usize::from(cluster.archived().unwrap() <= before);
        cluster.start_gateway().await.unwrap();
    }
    all_is_equal(&mut cluster, load).await;
    println!("watch: {:?}", watch.finish().await.unwrap());
    must_be_most(in_flight, kills());
}

#[tokio::test]
async fn of_the_follower() {
    let server = Server::start().await.unwrap();
    let mut rng = Rng::from_env("kills of the follower");
    let mut cluster = running(&server, "kf").await;
    let load = Load::start(&server, "postgres", 2, PAUSE, &mut rng)
        .await
        .unwrap();
    let mut in_flight = 0;
    for _ in 0..kills() {
        some_moments(&mut rng, 900).await;
        let mark = cluster.mark().await.unwrap();
        cluster.follower(0).unwrap().kill().await.unwrap();
        in_flight += usize::from(newest_mark(&cluster.followers[0].db) < Some(mark));
        cluster.start_follower(0).await.unwrap();
    }
    all_is_equal(&mut cluster, load).await;
    must_be_most(in_flight, kills());
}

#[tokio::test]
async fn of_the_producer() {
    let server = Server::start().await.unwrap();
    let mut rng = Rng::from_env("kills of the producer");
    let mut cluster = running(&server, "kp").await;
    let load = Load::start(&server, "postgres", 2, PAUSE, &mut rng)
        .await
        .unwrap();
    // As long as a run takes that goes on from the last one's scratch file; most moments before that are in the
    // middle of one. A run that was quicker than the kill says that they take less by now.
    cluster.produce().await.unwrap();
    let begun = std::time::Instant::now();
    cluster.produce().await.unwrap();
    let mut whole = begun.elapsed().as_millis() as u64;
    let mut in_flight = 0;
    for _ in 0..kills() {
        // Something new for it to replay.
        some_moments(&mut rng, 600).await;
        let mut producer = program::spawn(&cluster.dir, &cluster.producer()).unwrap();
        some_moments(&mut rng, whole).await;
        if producer.try_wait().unwrap().is_none() {
            in_flight += 1;
        } else {
            whole = whole * 2 / 3;
        }
        producer.kill().await.unwrap();
    }
    all_is_equal(&mut cluster, load).await;
    must_be_most(in_flight, kills());
}

#[tokio::test]
async fn of_the_gateway_while_it_copies() {
    let server = Server::start().await.unwrap();
    let mut rng = Rng::from_env("kills during the first copy");
    let mut cluster = Cluster::new(&server, "postgres", "kc").await.unwrap();
    cluster.session.run(workload::SCHEMA).await.unwrap();
    let fill = "insert into whole select n, n / 3.0, md5(n::text) from generate_series(1000, 300000) n;
                insert into pair select md5(n::text), n, jsonb_build_object('n', n), now() from generate_series(1, 60000) n";
    cluster.session.run(fill).await.unwrap();
    cluster.prepare(&workload::TABLES).await.unwrap();
    cluster.mint().await.unwrap();
    let watch = cluster.watch();
    let load = Load::beside_a_copy(&server, "postgres", 1, PAUSE, &mut rng)
        .await
        .unwrap();
    let (mut in_flight, mut streaming) = (0, 0);
    for _ in 0..kills() {
        cluster.start_gateway().await.unwrap();
        // Now and then it dies on its way to the copy, else a moment after it began. Once a copy is whole there is no
        // other, so the moment is short beside what is to be copied.
        if !rng.one_in(4) {
            wait::until_true("the copy to begin", READY_WITHIN, async || {
                let phase = cluster.gateway_status().await?["phase"].clone();
                Ok(phase == "copying" || phase == "streaming")
            })
            .await
            .unwrap();
        }
        some_moments(&mut rng, 150).await;
        let phase = cluster.gateway_status().await.unwrap()["phase"].clone();
        in_flight += usize::from(phase == "copying");
        streaming += usize::from(phase == "streaming");
        cluster.gateway().unwrap().kill().await.unwrap();
    }
    cluster.start_gateway().await.unwrap();
    let follower = cluster.add_follower().await.unwrap();
    cluster
        .follower(follower)
        .unwrap()
        .until_ready(CATCHES_UP_WITHIN)
        .await
        .unwrap();
    all_is_equal(&mut cluster, load).await;
    println!("watch: {:?}", watch.finish().await.unwrap());
    println!("{streaming} kills came after the copy");
    must_be_most(in_flight, kills());

    // What dead attempts left behind: the one slot, and nothing temporary.
    wait::until_true("one slot to be left", READY_WITHIN, async || {
        let slots = cluster
            .session
            .text("select count(*) from pg_replication_slots")
            .await?;
        Ok(slots == "1")
    })
    .await
    .unwrap();
}
