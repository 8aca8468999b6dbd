//! What a gateway finds when it connects again: it goes on, waits, or halts by name, and nothing is lost or doubled.

use std::time::Duration;

use rindle_drills::{
    cluster::Cluster,
    postgres::{Options, Server, Stop, version_from_env},
    wait,
};
use serde_json::json;

const WITHIN: Duration = Duration::from_secs(60);
const SETUP: &str =
    "create table note(id bigint generated always as identity primary key, words text)";

/// A gateway and a follower that are level.
async fn level(server: &Server, name: &str) -> Cluster {
    server.create_database(name, "").await.unwrap();
    let mut cluster = Cluster::new(server, name, name).await.unwrap();
    cluster.session.run(SETUP).await.unwrap();
    cluster.prepare(&["public.note"]).await.unwrap();
    cluster.mint().await.unwrap();
    cluster.start_gateway().await.unwrap();
    cluster.add_follower().await.unwrap();
    write(&cluster, 5).await;
    cluster.must_be_equal(0).await.unwrap();
    until_archived(&cluster).await;
    cluster
}

async fn write(cluster: &Cluster, rows: u32) {
    let sql = format!("insert into note(words) select 'w' || n from generate_series(1, {rows}) n");
    cluster.session.run(&sql).await.unwrap();
}

/// Waits until the slot is acknowledged up to what is committed now.
async fn until_archived(cluster: &Cluster) {
    let at = cluster.source_position().await.unwrap();
    wait::until_true("the archive to hold everything", WITHIN, async || {
        Ok(cluster.archived()? >= at)
    })
    .await
    .unwrap();
}

async fn until_says(cluster: &mut Cluster, words: &str) {
    let gateway = cluster.gateway().unwrap();
    let what = format!("the gateway to say {words}");
    let mut last = String::new();
    let waited = wait::until_true(&what, WITHIN, async || {
        let Some(answer) = gateway.readyz().await else {
            return Ok(false);
        };
        last = answer.body;
        Ok(answer.status == 503 && last.contains(words))
    })
    .await;
    assert!(waited.is_ok(), "{waited:?}; it says {last}");
}

/// What was committed meanwhile arrives, once.
async fn goes_on(cluster: &mut Cluster, server: &Server) {
    cluster.session = server.session(&cluster.database).await.unwrap();
    write(cluster, 5).await;
    cluster.must_be_equal(0).await.unwrap();
    cluster
        .gateway()
        .unwrap()
        .until_ready(WITHIN)
        .await
        .unwrap();
}

/// Halted means: the slot is not acknowledged any further, and what there is is served.
async fn stays_halted(cluster: &mut Cluster, words: &str) {
    until_says(cluster, words).await;
    let status = cluster.gateway_status().await.unwrap();
    assert_eq!(
        (&status["phase"], &status["ready"]),
        (&json!("halted"), &json!(false)),
        "{status}"
    );
    let follower = cluster.follower(0).unwrap();
    follower.until_ready(WITHIN).await.unwrap();
}

#[tokio::test]
async fn a_restarted_and_a_crashed_server_are_gone_on_with() {
    let server = Server::start().await.unwrap();
    let mut cluster = level(&server, "again").await;
    for how in [Stop::Fast, Stop::Immediate] {
        let begun = std::time::Instant::now();
        server.stop(how).unwrap();
        // Postgres does not go before everything is acknowledged: it is not kept waiting for the next tick.
        let took = begun.elapsed();
        assert!(took < Duration::from_secs(5), "{how:?} took {took:?}");
        server.start_again().await.unwrap();
        goes_on(&mut cluster, &server).await;
    }
}

#[tokio::test]
async fn another_cluster_on_the_same_address_is_refused() {
    let server = Server::start().await.unwrap();
    let mut cluster = level(&server, "other").await;
    cluster.announce("OtherCluster");
    server.stop(Stop::Fast).unwrap();
    server.set_aside("own").unwrap();
    server.init_again().unwrap();
    server.start_again().await.unwrap();
    server.create_database("other", "").await.unwrap();
    stays_halted(&mut cluster, "OtherCluster").await;
    // The right one back, an operator's restart ends the halt.
    server.stop(Stop::Fast).unwrap();
    server.put_back("own").unwrap();
    server.start_again().await.unwrap();
    cluster.gateway().unwrap().stop().await.unwrap();
    cluster.start_gateway().await.unwrap();
    goes_on(&mut cluster, &server).await;
}

#[tokio::test]
async fn a_disk_snapshot_of_the_server_is_told_from_the_server() {
    let server = Server::start().await.unwrap();
    let mut cluster = level(&server, "disk").await;
    cluster.announce("SourceHistoryDiffers");
    server.stop(Stop::Fast).unwrap();
    server.copy_aside("snapshot").unwrap();
    server.start_again().await.unwrap();
    goes_on(&mut cluster, &server).await;
    until_archived(&cluster).await;
    // Same identifier, timeline and slot; another history, and a longer one.
    server.stop(Stop::Fast).unwrap();
    server.put_back("snapshot").unwrap();
    server.start_again().await.unwrap();
    cluster.session = server.session("disk").await.unwrap();
    write(&cluster, 200).await;
    stays_halted(&mut cluster, "SourceHistoryDiffers").await;
}

#[tokio::test]
async fn a_base_backup_has_no_slot_and_is_refused() {
    let server = Server::start().await.unwrap();
    let mut cluster = level(&server, "base").await;
    cluster.announce("SlotMissing");
    server.base_backup("backup").unwrap();
    server.stop(Stop::Fast).unwrap();
    server.put_back("backup").unwrap();
    server.start_again().await.unwrap();
    stays_halted(&mut cluster, "SlotMissing").await;
}

#[tokio::test]
async fn a_promoted_standby_without_the_slot_is_refused() {
    let server = Server::start().await.unwrap();
    let mut cluster = level(&server, "promoted").await;
    cluster.announce("SlotMissing");
    server.base_backup("standby").unwrap();
    server.stop(Stop::Immediate).unwrap();
    server.put_back("standby").unwrap();
    server.make_standby().unwrap();
    server.start_again().await.unwrap();
    // A standby is waited for.
    until_says(&mut cluster, "standby").await;
    let session = server.session("promoted").await.unwrap();
    assert_eq!(session.text("select pg_promote()").await.unwrap(), "t");
    stays_halted(&mut cluster, "SlotMissing").await;
}

#[tokio::test]
async fn a_dropped_slot_is_never_made_again() {
    let server = Server::start().await.unwrap();
    let mut cluster = level(&server, "dropped").await;
    cluster.announce("SlotMissing");
    let end = "select pg_terminate_backend(active_pid) from pg_replication_slots";
    let drop =
        "select pg_drop_replication_slot(slot_name) from pg_replication_slots where not active";
    wait::until_true("the slot to be dropped", WITHIN, async || {
        cluster.session.run(end).await?;
        // It is free for a moment only.
        let _busy = cluster.session.run(drop).await;
        Ok(cluster
            .session
            .text("select count(*) from pg_replication_slots")
            .await?
            == "0")
    })
    .await
    .unwrap();
    stays_halted(&mut cluster, "SlotMissing").await;
    assert_eq!(
        cluster
            .session
            .text("select count(*) from pg_replication_slots")
            .await
            .unwrap(),
        "0"
    );
}

#[tokio::test]
async fn a_slot_that_postgres_invalidated_is_told_with_its_reason() {
    let options = Options {
        conf: [
            "max_slot_wal_keep_size = '2MB'",
            "min_wal_size = '32MB'",
            "max_wal_size = '32MB'",
        ]
        .map(str::to_owned)
        .to_vec(),
        fresh: false,
    };
    let server = Server::start_with(version_from_env(), options)
        .await
        .unwrap();
    let mut cluster = level(&server, "lost").await;
    cluster.announce("SlotLost");
    cluster.gateway().unwrap().stop().await.unwrap();
    let lost = "select coalesce(max(wal_status), 'none') from pg_replication_slots";
    let filler = "create table if not exists filler(v text); insert into filler select repeat('x', 500) from generate_series(1, 20000); \
                  select pg_switch_wal(); checkpoint";
    wait::until_true("Postgres to give the slot up", WITHIN, async || {
        for statement in filler.split("; ") {
            cluster.session.run(statement).await?;
        }
        Ok(cluster.session.text(lost).await? == "lost")
    })
    .await
    .unwrap();
    cluster.start_gateway().await.unwrap();
    stays_halted(&mut cluster, "SlotLost").await;
}

#[tokio::test]
async fn a_slot_that_somebody_holds_is_waited_for() {
    let server = Server::start().await.unwrap();
    let mut cluster = level(&server, "held").await;
    cluster.gateway().unwrap().stop().await.unwrap();
    let slot = cluster
        .session
        .text("select slot_name from pg_replication_slots")
        .await
        .unwrap();
    // The server ends the gateway's session a moment after the gateway.
    let free = "select active_pid is null from pg_replication_slots";
    wait::until_true("the slot to be free", WITHIN, async || {
        Ok(cluster.session.text(free).await? == "t")
    })
    .await
    .unwrap();
    let mut thief = server
        .receive(&cluster.database, &slot, &cluster.publication)
        .unwrap();
    let pid = wait::until("somebody to hold the slot", WITHIN, async || {
        cluster
            .session
            .maybe_text("select active_pid from pg_replication_slots")
            .await
    })
    .await
    .unwrap();
    cluster.start_gateway().await.unwrap();
    until_says(&mut cluster, &format!("in use by process {pid}")).await;
    thief.kill().unwrap();
    thief.wait().unwrap();
    goes_on(&mut cluster, &server).await;
}

#[tokio::test]
async fn a_renamed_database_and_a_lost_right_are_waited_out() {
    let server = Server::start().await.unwrap();
    let mut cluster = level(&server, "named").await;
    let admin = server.session("postgres").await.unwrap();
    let end =
        "select count(pg_terminate_backend(pid)) from pg_stat_activity where datname = 'named'";
    cluster.gateway().unwrap().stop().await.unwrap();
    cluster.start_gateway().await.unwrap();
    wait::until_true("the database to be renamed", WITHIN, async || {
        admin.run(end).await?;
        Ok(admin
            .run("alter database named rename to renamed")
            .await
            .is_ok())
    })
    .await
    .unwrap();
    until_says(&mut cluster, "\\\"named\\\" does not exist").await;
    admin
        .run("alter database renamed rename to named")
        .await
        .unwrap();
    goes_on(&mut cluster, &server).await;

    admin
        .run("create role gate login replication; grant pg_read_all_data to gate")
        .await
        .unwrap();
    cluster.gateway().unwrap().stop().await.unwrap();
    cluster.gateway_config = json!({"postgres": {"user": "gate"}});
    cluster.start_gateway().await.unwrap();
    goes_on(&mut cluster, &server).await;
    admin.run("alter role gate noreplication").await.unwrap();
    admin
        .run("select pg_terminate_backend(pid) from pg_stat_replication")
        .await
        .unwrap();
    until_says(&mut cluster, "replication").await;
    admin.run("alter role gate replication").await.unwrap();
    goes_on(&mut cluster, &server).await;
}

#[tokio::test]
async fn a7_what_blocks_the_first_copy_is_named_and_waited_out() {
    let options = Options {
        conf: vec!["max_prepared_transactions = 5".to_owned()],
        fresh: false,
    };
    let server = Server::start_with(version_from_env(), options)
        .await
        .unwrap();
    server.create_database("blocked", "").await.unwrap();
    server.create_database("elsewhere", "").await.unwrap();
    let mut cluster = Cluster::new(&server, "blocked", "blocked").await.unwrap();
    cluster.session.run(SETUP).await.unwrap();
    cluster.prepare(&["public.note"]).await.unwrap();
    // A role that may not look into other sessions names their processes all the same.
    let role = "create role gate login replication; grant pg_read_all_data to gate";
    cluster.session.run(role).await.unwrap();
    cluster.gateway_config = json!({"postgres": {"user": "gate"}});
    cluster.mint().await.unwrap();
    let here = server.session("blocked").await.unwrap();
    here.run("begin; insert into note(words) values ('open')")
        .await
        .unwrap();
    let there = server.session("elsewhere").await.unwrap();
    there.run("begin; create table held(id int)").await.unwrap();
    let pids = [
        here.text("select pg_backend_pid()").await.unwrap(),
        there.text("select pg_backend_pid()").await.unwrap(),
    ];
    let prepared = server.session("elsewhere").await.unwrap();
    for statement in [
        "begin",
        "create table kept(id int)",
        "prepare transaction 'left behind'",
    ] {
        prepared.run(statement).await.unwrap();
    }
    cluster.start_gateway().await.unwrap();
    for words in [
        &*format!("pid {}", pids[0]),
        &format!("pid {} ", pids[1]),
        "left behind",
        "ROLLBACK PREPARED",
    ] {
        until_says(&mut cluster, words).await;
    }
    // Killed while it waits, it leaves nothing behind.
    cluster.gateway().unwrap().kill().await.unwrap();
    here.run("rollback").await.unwrap();
    there.run("rollback").await.unwrap();
    prepared
        .run("rollback prepared 'left behind'")
        .await
        .unwrap();
    wait::until_true("the dead gateway's slot to go", WITHIN, async || {
        let slots = "select count(*) from pg_replication_slots where active";
        Ok(cluster.session.text(slots).await? == "0")
    })
    .await
    .unwrap();
    // Blocked again, this time it goes on by itself.
    here.run("begin; insert into note(words) values ('open')")
        .await
        .unwrap();
    cluster.start_gateway().await.unwrap();
    until_says(&mut cluster, &format!("pid {}", pids[0])).await;
    here.run("commit").await.unwrap();
    cluster.add_follower().await.unwrap();
    goes_on(&mut cluster, &server).await;
    let slots = "select count(*) from pg_replication_slots";
    assert_eq!(cluster.session.text(slots).await.unwrap(), "1");
}

#[tokio::test]
async fn a_password_that_is_changed_under_a_running_gateway_is_picked_up() {
    let server = Server::start().await.unwrap();
    let mut cluster = level(&server, "secret").await;
    let admin = server.session("postgres").await.unwrap();
    let role = "create role gate login replication password 'one'; grant pg_read_all_data to gate";
    admin.run(role).await.unwrap();
    server.require_password("gate").unwrap();
    admin.run("select pg_reload_conf()").await.unwrap();
    let file = cluster.dir.join("password");
    std::fs::write(&file, "one\n").unwrap();
    cluster.gateway().unwrap().stop().await.unwrap();
    cluster.gateway_config = json!({"postgres": {"user": "gate", "passwordFile": file}});
    cluster.start_gateway().await.unwrap();
    goes_on(&mut cluster, &server).await;
    let rotate = "alter role gate password 'two'";
    admin.run(rotate).await.unwrap();
    let end = "select pg_terminate_backend(pid) from pg_stat_activity where usename = 'gate'";
    admin.run(end).await.unwrap();
    until_says(&mut cluster, "password authentication failed").await;
    std::fs::write(&file, "two\n").unwrap();
    goes_on(&mut cluster, &server).await;
}
