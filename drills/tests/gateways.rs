//! Two gateways of one generation: one works, the other waits; one that was overtaken writes nothing more.

use std::time::Duration;

use rindle_drills::{
    cluster::Cluster,
    postgres::{Options, Server, version_from_env},
    program::Program,
    rng::Rng,
    wait, watch,
    workload::{self, Load},
};
use rustix::process::Signal;
use serde_json::json;

const READY_WITHIN: Duration = Duration::from_secs(60);
/// Who is frozen keeps the generation's lock until the server or the other gateway ends its session, after a minute.
const TAKEN_OVER_WITHIN: Duration = Duration::from_secs(150);
const FENCED: i32 = 3;

struct Two {
    cluster: Cluster,
    other: Program,
    load: Load,
}

/// One gateway at work, another at its door, a follower that knows both, and writers.
async fn two(server: &Server, source: &str) -> Two {
    let mut cluster = Cluster::new(server, "postgres", source).await.unwrap();
    cluster.session.run(workload::SCHEMA).await.unwrap();
    cluster.prepare(&workload::TABLES).await.unwrap();
    cluster.mint().await.unwrap();
    cluster.start_gateway().await.unwrap();
    let gateway = cluster.gateway().unwrap();
    gateway.until_ready(READY_WITHIN).await.unwrap();
    let (other, other_port) = cluster.start_other_gateway().await.unwrap();
    wait::until_true("the second to stand by", READY_WITHIN, async || {
        let answer = other.readyz().await;
        Ok(answer.is_some_and(|a| a.status == 503 && a.body.contains("\"phase\":\"standby\"")))
    })
    .await
    .unwrap();
    let urls = [cluster.grpc_port(), other_port].map(|port| format!("http://127.0.0.1:{port}"));
    cluster.follower_config = json!({"sources": [{"url": urls}]});
    let follower = cluster.add_follower().await.unwrap();
    let follower = cluster.follower(follower).unwrap();
    follower.until_ready(READY_WITHIN).await.unwrap();
    let mut rng = Rng::from_env("two gateways");
    let load = Load::start(server, "postgres", 2, Duration::from_millis(5), &mut rng)
        .await
        .unwrap();
    Two {
        cluster,
        other,
        load,
    }
}

#[tokio::test]
async fn the_second_waits_and_takes_over_when_the_first_is_killed() {
    let server = Server::start().await.unwrap();
    let Two {
        mut cluster,
        mut other,
        load,
    } = two(&server, "pair").await;
    let watch = cluster.watch();
    let mark = cluster.mark().await.unwrap();
    cluster.until_marked(0, mark, READY_WITHIN).await.unwrap();
    assert_eq!(other.readyz().await.unwrap().status, 503);

    cluster.gateway().unwrap().kill().await.unwrap();
    other.until_ready(READY_WITHIN).await.unwrap();
    let done = load.finish().await.unwrap();
    println!("{done:?}, {}", cluster.must_be_equal(0).await.unwrap());
    println!("watch: {:?}", watch.finish().await.unwrap());
}

#[tokio::test]
async fn one_that_was_overtaken_writes_nothing_more_and_exits_3() {
    let server = Server::start().await.unwrap();
    let Two {
        mut cluster,
        mut other,
        load,
    } = two(&server, "frozen").await;
    cluster.announce("Fenced");
    let watch = cluster.watch();
    let gateway = cluster.gateway().unwrap();
    gateway.signal(Signal::STOP).unwrap();
    other.until_ready(TAKEN_OVER_WITHIN).await.unwrap();
    let log = cluster.log_dir().unwrap();
    let first = |epochs: &[u64]| epochs.iter().filter(|epoch| **epoch == epochs[0]).count();
    let before = watch::epochs(&log).unwrap();
    let gateway = cluster.gateway().unwrap();
    gateway.signal(Signal::CONT).unwrap();
    let status = gateway.ended(READY_WITHIN).await.unwrap();
    assert_eq!(status.code(), Some(FENCED), "{}", gateway.log());

    let done = load.finish().await.unwrap();
    println!("{done:?}, {}", cluster.must_be_equal(0).await.unwrap());
    let after = watch::epochs(&log).unwrap();
    assert_eq!(first(&before), first(&after), "{after:?}");
    assert!(after.is_sorted(), "{after:?}");
    assert!(after.last() > after.first(), "{after:?}");
    println!("watch: {:?}", watch.finish().await.unwrap());
}

/// What is archived is served, whatever became of the source: to a follower that has nothing but the gateway.
#[tokio::test]
async fn one_that_halts_at_its_start_serves_the_archive() {
    let server = Server::start().await.unwrap();
    server.create_database("gone", "").await.unwrap();
    let mut cluster = Cluster::new(&server, "gone", "gone").await.unwrap();
    cluster.follower_config = json!({"sources": [{"backup": null}]});
    cluster.session.run(workload::SCHEMA).await.unwrap();
    cluster.prepare(&workload::TABLES).await.unwrap();
    cluster.mint().await.unwrap();
    cluster.start_gateway().await.unwrap();
    cluster.add_follower().await.unwrap();
    cluster.must_be_equal(0).await.unwrap();
    let mark = cluster.mark().await.unwrap();
    cluster.until_marked(0, mark, READY_WITHIN).await.unwrap();
    cluster.gateway().unwrap().stop().await.unwrap();
    let drop = "select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name like 'rindle_gone%'";
    cluster.session.run(drop).await.unwrap();

    cluster.announce("SlotMissing");
    cluster.start_gateway().await.unwrap();
    let fresh = cluster.add_follower().await.unwrap();
    cluster
        .until_marked(fresh, mark, READY_WITHIN)
        .await
        .unwrap();
    cluster.compare(fresh).await.unwrap();
    let follower = cluster.follower(fresh).unwrap();
    follower.until_ready(READY_WITHIN).await.unwrap();
    let answer = cluster.gateway().unwrap().readyz().await.unwrap();
    assert_eq!(answer.status, 503, "{}", answer.body);
    assert!(answer.body.contains("SlotMissing"), "{}", answer.body);
}

/// A server of another cluster that stands first in the list of hosts is passed over, not taken for the source.
#[tokio::test]
async fn a_host_of_another_cluster_is_passed_over() {
    let server = Server::start().await.unwrap();
    // A cluster of its own: the others of this binary are made from one template.
    let options = Options {
        conf: Vec::new(),
        fresh: true,
    };
    let stranger = Server::start_with(version_from_env(), options)
        .await
        .unwrap();
    server.create_database("listed", "").await.unwrap();
    stranger.create_database("listed", "").await.unwrap();
    let mut cluster = Cluster::new(&server, "listed", "listed").await.unwrap();
    cluster.session.run(workload::SCHEMA).await.unwrap();
    cluster.prepare(&workload::TABLES).await.unwrap();
    cluster.mint().await.unwrap();
    let hosts = [stranger.port(), server.port()].map(|port| format!("127.0.0.1:{port}"));
    cluster.gateway_config = json!({"postgres": {"host": hosts}});
    cluster.start_gateway().await.unwrap();
    cluster.add_follower().await.unwrap();
    cluster.must_be_equal(0).await.unwrap();

    // Alone it is what it is.
    cluster.gateway().unwrap().stop().await.unwrap();
    cluster.announce("OtherCluster");
    cluster.gateway_config = json!({"postgres": {"host": [hosts[0]]}});
    cluster.start_gateway().await.unwrap();
    let gateway = cluster.gateway().unwrap();
    wait::until_true("the gateway to halt", READY_WITHIN, async || {
        let answer = gateway.readyz().await;
        Ok(answer.is_some_and(|a| a.status == 503 && a.body.contains("OtherCluster")))
    })
    .await
    .unwrap();
}
