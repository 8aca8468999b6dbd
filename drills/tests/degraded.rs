//! Where no event trigger tells of a schema change: what is announced by hand is followed, what is not stops the stream by
//! name, at its first row or at the next audit.

use std::time::Duration;

use rindle_drills::{
    cluster::{Cluster, newest_mark},
    postgres::Server,
    wait,
};

const STOPS_WITHIN: Duration = Duration::from_secs(30);
/// The audit reads the catalog every minute, and once more two seconds later.
const AUDITED_WITHIN: Duration = Duration::from_secs(75);

const SETUP: &str = "create table busy(id int primary key, v text, n int); \
     insert into busy select g, 'v' || g, g from generate_series(1, 200) g; \
     create table quiet(id int primary key, v text); insert into quiet values (1, 'a'); \
     create table late(id int primary key, v text); insert into late select g, 'l' from generate_series(1, 50) g";

const DROP_TRIGGERS: &str = "do $$ declare t name; begin \
     for t in select evtname from pg_event_trigger loop execute format('drop event trigger %I', t); end loop; end $$";

const TABLES: [&str; 2] = ["public.busy", "public.quiet"];

async fn laid_out(server: &Server, name: &str) -> Cluster {
    server.create_database(name, "").await.unwrap();
    let cluster = Cluster::new(server, name, name).await.unwrap();
    cluster.session.run(SETUP).await.unwrap();
    cluster
}

async fn start(cluster: &mut Cluster) {
    cluster.mint().await.unwrap();
    cluster.start_gateway().await.unwrap();
    cluster.know_the_next_gateway();
    let first = cluster.add_follower().await.unwrap();
    cluster.must_be_equal(first).await.unwrap();
}

async fn told_by_preflight(cluster: &Cluster, id: &str) {
    let args = ["--json", "--publication", &cluster.publication];
    let outcome = cluster.pg("preflight", &args).await.unwrap();
    assert!(outcome.stdout.contains(id), "{id}: {outcome:?}");
}

async fn equal(cluster: &mut Cluster, what: &str) {
    let followed = cluster.must_follow(0).await;
    followed.unwrap_or_else(|error| panic!("{what}: {error:#}"));
}

/// An un-announced change is found; the mirror shows nothing of its transaction, and a new generation goes on.
async fn found(cluster: &mut Cluster, sql: &str, words: &[&str], limit: Duration) {
    let before = cluster.mark().await.unwrap();
    let commit = cluster.commit(sql).await.unwrap();
    let stopped = cluster.must_stop(words, &commit, limit).await;
    let reason = stopped.unwrap_or_else(|error| panic!("{sql}: {error:#}"));
    println!("{reason}");
    cluster.until_marked(0, before, STOPS_WITHIN).await.unwrap();
    assert_eq!(newest_mark(&cluster.mirror(0)), Some(before), "{reason}");
}

/// Each is one transaction.
const ANNOUNCED: &[&str] = &[
    "insert into busy values (1000, 'before', 1); alter table busy add a int default 5; select rindle.schema_hook(); \
     insert into busy(id, v) values (1001, 'after')",
    "alter table busy rename v to w; select rindle.schema_hook(); update busy set w = 'renamed' where id = 1",
    "alter table quiet rename to silent; select rindle.schema_hook(); insert into silent values (2, 'b')",
    "alter table busy add u uuid default gen_random_uuid(); select rindle.schema_hook()",
    "alter table busy alter n type int using n + 1000; select rindle.schema_hook(); insert into busy(id, n) values (1002, 7)",
    "alter table busy alter n type bigint; select rindle.schema_hook()",
    "alter publication {pub} add table late; select rindle.schema_hook(); insert into late values (100, 'm')",
    "create table newest(id int primary key, v text); insert into newest values (1, 'x'); \
     alter publication {pub} add table newest; select rindle.schema_hook(); insert into newest values (2, 'y')",
    "alter table busy drop column a; select rindle.schema_hook(); delete from busy where id = 1001",
    "drop table late; select rindle.schema_hook()",
    "create index busy_n on busy(n); select rindle.schema_hook()",
];

#[tokio::test]
async fn b9_without_event_triggers_the_hook_announces() {
    let server = Server::start().await.unwrap();
    let mut cluster = laid_out(&server, "hooked").await;
    cluster.prepare(&TABLES).await.unwrap();
    cluster.session.run(DROP_TRIGGERS).await.unwrap();
    told_by_preflight(&cluster, "CaptureByHand").await;
    start(&mut cluster).await;
    for migration in ANNOUNCED {
        let migration = migration.replace("{pub}", &cluster.publication);
        cluster.commit(&migration).await.unwrap();
        equal(&mut cluster, &migration).await;
    }
    // Announced a moment later, by the command, before any row came.
    let alter = "alter table busy add z text default 'z'";
    cluster.session.run(alter).await.unwrap();
    let hook = ["--publication", &cluster.publication];
    let announced = cluster.pg("schema-hook", &hook).await.unwrap();
    announced.must_succeed().unwrap();
    cluster
        .session
        .run("insert into busy(id) values (2000)")
        .await
        .unwrap();
    equal(&mut cluster, alter).await;

    let sql = "alter table busy rename z to y; insert into busy(id) values (2001)";
    found(
        &mut cluster,
        sql,
        &["SchemaChanged", "public.busy"],
        STOPS_WITHIN,
    )
    .await;
    cluster.move_on(0).await.unwrap();

    // A name that is given and taken back in one transaction matters to the rows between, and to no others.
    let back = "alter table busy rename y to passing; alter table busy rename passing to y; insert into busy(id) values (2002)";
    cluster.commit(back).await.unwrap();
    equal(&mut cluster, back).await;
    let between = "alter table busy rename y to passing; insert into busy(id) values (2003); \
         alter table busy rename passing to y";
    found(
        &mut cluster,
        between,
        &["SchemaChanged", "public.busy"],
        STOPS_WITHIN,
    )
    .await;
}

#[tokio::test]
async fn b7_a_quiet_table_is_found_by_the_audit() {
    let server = Server::start().await.unwrap();
    let mut cluster = laid_out(&server, "audited").await;
    cluster.prepare(&TABLES).await.unwrap();
    start(&mut cluster).await;
    cluster.session.run(DROP_TRIGGERS).await.unwrap();
    let before = cluster.mark().await.unwrap();
    let words = ["SchemaChanged", "public.quiet", "\"unseen\""];
    let alter = "alter table quiet add unseen int";
    let commit = cluster.commit(alter).await.unwrap();
    // What comes meanwhile has nothing to do with it, so it is followed.
    cluster
        .session
        .run("update busy set v = 'meanwhile'")
        .await
        .unwrap();
    let mark = cluster.mark().await.unwrap();
    cluster.until_marked(0, mark, STOPS_WITHIN).await.unwrap();
    cluster.announce(words[0]);
    let far = "FFFFFFFF/FFFFFFFF";
    let reason = cluster
        .must_stop(&words, far, AUDITED_WITHIN)
        .await
        .unwrap();
    println!("{reason} (after mark {before}, {commit})");
}

/// The catalog shows no trace of such a change but the table's file.
#[tokio::test]
async fn b7_a_rewrite_that_nobody_announced_is_found_by_the_audit() {
    let server = Server::start().await.unwrap();
    let mut cluster = laid_out(&server, "refiled").await;
    cluster.prepare(&TABLES).await.unwrap();
    cluster.session.run(DROP_TRIGGERS).await.unwrap();
    start(&mut cluster).await;
    let alter = "alter table quiet alter v type text using upper(v)";
    cluster.session.run(alter).await.unwrap();
    let mark = cluster.mark().await.unwrap();
    cluster.until_marked(0, mark, STOPS_WITHIN).await.unwrap();
    let sqlite = rusqlite::Connection::open(cluster.mirror(0)).unwrap();
    let shown = || {
        let v = sqlite.query_row("select v from quiet", [], |row| row.get::<_, String>(0));
        v.unwrap()
    };
    assert_eq!(shown(), "a", "nothing told of it");
    wait::until_true("the audit to find it", AUDITED_WITHIN, async || {
        Ok(shown() == "A")
    })
    .await
    .unwrap();
    equal(&mut cluster, alter).await;
}

/// Triggers that are there and say nothing, in each way that Postgres has.
#[tokio::test]
async fn b7_triggers_that_are_silenced_are_not_missed() {
    let server = Server::start().await.unwrap();
    let silenced = [
        (
            "disabled",
            "alter event trigger {t} disable",
            "alter event trigger {t} enable always",
        ),
        (
            "switchedoff",
            "set event_triggers = off",
            "reset event_triggers",
        ),
    ];
    for (name, off, on) in silenced {
        if name == "switchedoff" && server.version() < 17 {
            continue;
        }
        let mut cluster = laid_out(&server, name).await;
        cluster.prepare(&TABLES).await.unwrap();
        start(&mut cluster).await;
        let all = "select string_agg(evtname, ' ') from pg_event_trigger";
        let triggers = cluster.session.text(all).await.unwrap();
        for trigger in triggers.split(' ') {
            cluster
                .session
                .run(&off.replace("{t}", trigger))
                .await
                .unwrap();
        }
        let hooked =
            "alter table busy rename v to w; select rindle.schema_hook(); update busy set w = 'x'";
        cluster.commit(hooked).await.unwrap();
        equal(&mut cluster, hooked).await;
        let sql = "alter table busy add unseen text default 'u'; insert into busy(id) values (500)";
        let words = ["SchemaChanged", "public.busy", "\"unseen\""];
        found(&mut cluster, sql, &words, STOPS_WITHIN).await;
        for trigger in triggers.split(' ') {
            cluster
                .session
                .run(&on.replace("{t}", trigger))
                .await
                .unwrap();
        }
        cluster.move_on(0).await.unwrap();
        cluster
            .session
            .run("alter table busy rename unseen to seen")
            .await
            .unwrap();
        equal(&mut cluster, "a rename afterwards").await;
    }
}

/// A managed server: nobody who prepares may make event triggers.
#[tokio::test]
async fn b9_who_prepares_without_the_right_announces_by_hand() {
    let server = Server::start().await.unwrap();
    let mut cluster = laid_out(&server, "managed").await;
    let deployer = "create role deployer login replication; alter database managed owner to deployer; \
         alter schema public owner to deployer; alter table busy owner to deployer; \
         alter table quiet owner to deployer; alter table late owner to deployer; \
         create table drill_marker(n bigint primary key); alter table drill_marker owner to deployer";
    cluster.session.run(deployer).await.unwrap();
    cluster.pg_user = "deployer".to_owned();
    let prepared = cluster.prepare(&TABLES).await.unwrap();
    let said = prepared.stdout + &prepared.stderr;
    assert!(said.contains("NoEventTriggerRight"), "{said}");
    told_by_preflight(&cluster, "CaptureByHand").await;
    start(&mut cluster).await;
    // The owner's migration, announced by the owner.
    cluster.session.run("set role deployer").await.unwrap();
    for migration in &ANNOUNCED[..4] {
        cluster.commit(migration).await.unwrap();
        equal(&mut cluster, migration).await;
    }
    let comment = format!("comment on publication {} is 'sync'", cluster.publication);
    cluster.session.run(&comment).await.unwrap();
    let sql = "alter table busy drop column n; insert into busy(id) values (3000)";
    found(
        &mut cluster,
        sql,
        &["SchemaChanged", "public.busy"],
        STOPS_WITHIN,
    )
    .await;
}
