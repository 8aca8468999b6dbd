//! The source fails over: with every part of the recipe the same generation goes on at the promoted standby.

use std::time::Duration;

use rindle_drills::{
    cluster::Cluster,
    postgres::{Options, Server, Stop},
    wait,
};
use serde_json::json;

/// The oldest version with slots that a standby keeps.
const VERSION: u16 = 17;
const WITHIN: Duration = Duration::from_secs(60);
/// A quiet source's slot is kept moving by the gateway's beat, every 10 s.
const READY_WITHIN: Duration = Duration::from_secs(120);

#[tokio::test]
async fn with_the_whole_recipe_the_generation_goes_on_at_the_promoted_standby() {
    let conf = [
        "synchronized_standby_slots = 'sb1'",
        "synchronous_commit = remote_apply",
    ];
    let options = Options {
        conf: conf.map(str::to_owned).to_vec(),
        fresh: false,
    };
    let primary = Server::start_with(VERSION, options).await.unwrap();
    primary.create_database("moves", "").await.unwrap();
    let mut cluster = Cluster::new(&primary, "moves", "moves").await.unwrap();
    cluster
        .session
        .run("create table t(id int primary key, v text)")
        .await
        .unwrap();
    cluster.prepare(&["public.t"]).await.unwrap();

    // One part is missing: told by name, and a generation minted now would not survive.
    let found = cluster
        .pg("preflight", &[])
        .await
        .unwrap()
        .must_succeed()
        .unwrap();
    assert!(found.stdout.contains("FailoverPosture"), "{found:?}");
    assert!(
        found.stdout.contains("synchronous_standby_names is empty"),
        "{found:?}"
    );
    let standby = primary.standby("sb1", "moves").await.unwrap();
    let admin = primary.session("postgres").await.unwrap();
    admin
        .run("alter system set synchronous_standby_names = 'FIRST 1 (sb1)'")
        .await
        .unwrap();
    admin.run("select pg_reload_conf()").await.unwrap();
    wait::until_true("the recipe to hold", WITHIN, async || {
        let found = cluster.pg("preflight", &[]).await?.must_succeed()?;
        Ok(found.stdout.contains("posture     failover-slot"))
    })
    .await
    .unwrap();
    let minted = cluster.mint().await.unwrap();
    assert!(
        minted.stdout.contains("posture     failover-slot"),
        "{minted:?}"
    );

    goes_on_at_the_standby(&mut cluster, &primary, &standby).await;
}

async fn goes_on_at_the_standby(cluster: &mut Cluster, primary: &Server, standby: &Server) {
    let hosts = [primary, standby].map(|server| format!("127.0.0.1:{}", server.port()));
    cluster.gateway_config = json!({"postgres": {"host": hosts}});
    cluster.start_gateway().await.unwrap();
    cluster.add_follower().await.unwrap();
    cluster
        .session
        .run("insert into t select n, 'before' from generate_series(1, 100) n")
        .await
        .unwrap();
    cluster.must_be_equal(0).await.unwrap();
    let archive = cluster.archive().display().to_string();
    let of_standby = [
        "--store",
        "filesystem",
        "--path",
        &archive,
        "--standby-host",
        &hosts[1],
    ];
    // The source is quiet from here on.
    let mut last = String::new();
    let waited = wait::until_true("the standby to be ready", READY_WITHIN, async || {
        let status = cluster.pg("status", &of_standby).await?;
        last = format!("{status:?}");
        Ok(status.status.success())
    })
    .await;
    assert!(waited.is_ok(), "{last}");
    assert!(last.contains("may be promoted"), "{last}");

    primary.stop(Stop::Immediate).unwrap();
    let promoted = standby.session("moves").await.unwrap();
    assert_eq!(promoted.text("select pg_promote()").await.unwrap(), "t");
    cluster.session = promoted;
    cluster
        .session
        .run("insert into t values (1000, 'after')")
        .await
        .unwrap();
    cluster.must_be_equal(0).await.unwrap();
    let gateway = cluster.gateway().unwrap();
    gateway.until_ready(WITHIN).await.unwrap();
    let slots = "select count(*) from pg_replication_slots where slot_type = 'logical' and active";
    assert_eq!(cluster.session.text(slots).await.unwrap(), "1");
}

/// What the provider does with the slot is its own affair; what is ours is that it is made to be carried over, that the
/// provider's part is told, and that it moves while the source is quiet.
#[tokio::test]
async fn a_slot_that_the_provider_carries_is_told_and_kept_moving() {
    let options = Options {
        // Nothing but a heartbeat may take a transaction id.
        conf: vec!["autovacuum = off".to_owned()],
        fresh: false,
    };
    let server = Server::start_with(VERSION, options).await.unwrap();
    server.create_database("managed", "").await.unwrap();
    let mut cluster = Cluster::new(&server, "managed", "managed").await.unwrap();
    cluster
        .session
        .run("create table t(id int primary key)")
        .await
        .unwrap();
    cluster.prepare(&["public.t"]).await.unwrap();
    let archive = cluster.archive().display().to_string();
    let store = ["--store", "filesystem", "--path", &archive];
    let args = [&store[..], &["--failover", "provider-managed"]].concat();
    let minted = cluster.pg("mint", &args).await.unwrap();
    let minted = minted.must_succeed().unwrap();
    for told in [
        "posture     provider-managed",
        "register slot rindle_managed_",
    ] {
        assert!(minted.stdout.contains(told), "{told}: {minted:?}");
    }
    cluster.start_gateway().await.unwrap();
    cluster.add_follower().await.unwrap();
    cluster.must_be_equal(0).await.unwrap();
    let slot = "select failover from pg_replication_slots where slot_type = 'logical'";
    assert_eq!(cluster.session.text(slot).await.unwrap(), "t");

    // The source is quiet from here on: each transaction is a heartbeat, and the slot gets past it.
    for _ in 0..2 {
        let next = "select pg_snapshot_xmax(pg_current_snapshot())";
        let before = cluster.session.text(next).await.unwrap();
        wait::until_true("a heartbeat", WITHIN, async || {
            Ok(cluster.session.text(next).await? != before)
        })
        .await
        .unwrap();
        let end = "select pg_current_wal_insert_lsn()";
        let end = cluster.session.text(end).await.unwrap();
        let passed = format!(
            "select confirmed_flush_lsn >= '{end}' from pg_replication_slots where slot_type = 'logical'"
        );
        wait::until_true("the slot to pass it", WITHIN, async || {
            Ok(cluster.session.text(&passed).await? == "t")
        })
        .await
        .unwrap();
    }
}
