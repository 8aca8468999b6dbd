//! A source's way in and out: cutover between generations and back, the end of a generation, the removal of everything.

use std::time::Duration;

use rindle_drills::{
    cluster::{Cluster, newest_mark},
    postgres::{Options, Server},
    program::Program,
    rng::Rng,
    wait,
    workload::{self, Load},
};
use serde_json::json;

const READY_WITHIN: Duration = Duration::from_secs(60);
/// A follower looks at the pointer every 5 s; the rest is for a restore on a busy machine.
const MOVES_WITHIN: Duration = Duration::from_secs(60);

async fn minted(server: &Server, name: &str) -> Cluster {
    server.create_database(name, "").await.unwrap();
    let mut cluster = Cluster::new(server, name, name).await.unwrap();
    cluster.session.run(workload::SCHEMA).await.unwrap();
    cluster.prepare(&workload::TABLES).await.unwrap();
    let minted = cluster.mint().await.unwrap();
    let first = generation(&minted.stdout);
    cluster.gateway_config = json!({"generation": first});
    cluster.start_gateway().await.unwrap();
    let gateway = cluster.gateway().unwrap();
    gateway.until_ready(READY_WITHIN).await.unwrap();
    cluster
}

/// The id in `minted generation ID of …`.
fn generation(words: &str) -> String {
    let (_, rest) = words.split_once("minted generation ").unwrap();
    rest.split_whitespace().next().unwrap().to_owned()
}

/// What a command refuses to do, with the words that must stand in it.
#[track_caller]
fn refused(outcome: &rindle_drills::program::Outcome, words: &str) {
    assert_eq!(outcome.status.code(), Some(2), "{outcome:?}");
    assert!(outcome.stderr.contains(words), "{outcome:?}");
}

/// The generation that a follower serves.
async fn served(follower: &Program) -> Option<String> {
    let answer = follower.readyz().await?;
    let body = answer.json().ok()?;
    (answer.status == 200).then(|| body["generation"].as_str().map(str::to_owned))?
}

/// A reader that never may see a mark go back.
struct Reader {
    stop: tokio::sync::oneshot::Sender<()>,
    task: tokio::task::JoinHandle<(u64, i64)>,
}

impl Reader {
    fn start(db: std::path::PathBuf) -> Self {
        let (stop, mut stopped) = tokio::sync::oneshot::channel();
        let task = tokio::spawn(async move {
            let (mut reads, mut last) = (0, 0);
            while stopped.try_recv().is_err() {
                if let Some(seen) = newest_mark(&db) {
                    assert!(seen >= last, "mark {seen} after mark {last}");
                    (reads, last) = (reads + 1, seen);
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            (reads, last)
        });
        Self { stop, task }
    }

    async fn finish(self) -> (u64, i64) {
        self.stop.send(()).unwrap();
        self.task.await.unwrap()
    }
}

#[tokio::test]
async fn cutover_and_rollback_under_load_show_no_wrong_read() {
    let server = Server::start().await.unwrap();
    let mut cluster = minted(&server, "moves").await;
    let first = cluster.gateway_config["generation"]
        .as_str()
        .unwrap()
        .to_owned();
    let second = generation(&cluster.mint().await.unwrap().stdout);
    assert_ne!(first, second);

    // The new generation's gateway beside the old one's; followers know both.
    let own = std::mem::replace(&mut cluster.gateway_config, json!({"generation": second}));
    let (mut other, other_port) = cluster.start_other_gateway().await.unwrap();
    other.until_ready(READY_WITHIN).await.unwrap();
    cluster.gateway_config = own;
    let urls = [cluster.grpc_port(), other_port].map(|port| format!("http://127.0.0.1:{port}"));
    cluster.follower_config = json!({"sources": [{"url": urls}]});
    for number in 0..2 {
        cluster.add_follower().await.unwrap();
        let follower = cluster.follower(number).unwrap();
        follower.until_ready(READY_WITHIN).await.unwrap();
    }
    let mut rng = Rng::from_env("cutover");
    let load = Load::start(&server, "moves", 2, Duration::from_millis(20), &mut rng)
        .await
        .unwrap();
    let readers: Vec<Reader> = (0..2)
        .map(|number| Reader::start(cluster.mirror(number)))
        .collect();

    // Without a proved image nobody could move: said by name, and nothing moves.
    let archive = cluster.archive().display().to_string();
    let store = ["--store", "filesystem", "--path", &archive];
    let source = ["pg", "cutover", "--source", "moves"];
    let to = |generation: &str| {
        let words = source.iter().chain(&store).chain(&["--generation"]);
        words
            .map(|word| (*word).to_owned())
            .chain([generation.to_owned()])
            .collect::<Vec<_>>()
    };
    let args = to(&second);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    refused(&cluster.rindle(&args).await.unwrap(), "it has no image");
    let mark = cluster.mark().await.unwrap();
    for number in 0..2 {
        cluster
            .until_marked(number, mark, READY_WITHIN)
            .await
            .unwrap();
        assert_eq!(
            served(cluster.follower(number).unwrap()).await.as_ref(),
            Some(&first)
        );
    }

    cluster.produce().await.unwrap();
    cluster.rindle(&args).await.unwrap().must_succeed().unwrap();
    moved(&mut cluster, &second).await;
    let back: Vec<&str> = source
        .iter()
        .chain(&store)
        .copied()
        .chain(["--rollback"])
        .collect();
    cluster.rindle(&back).await.unwrap().must_succeed().unwrap();
    moved(&mut cluster, &first).await;

    let done = load.finish().await.unwrap();
    for number in 0..2 {
        println!("{done:?}, {}", cluster.must_be_equal(number).await.unwrap());
    }
    for reader in readers {
        let (reads, last) = reader.finish().await;
        assert!(reads > 100 && last > 0, "{reads} reads up to mark {last}");
    }
}

/// Waits until both followers serve a generation and show what is committed now.
async fn moved(cluster: &mut Cluster, generation: &str) {
    for number in 0..2 {
        let what = format!("follower {number} to serve {generation}");
        wait::until_true(&what, MOVES_WITHIN, async || {
            // A mark between any two looks, so that a reader has something that could go back.
            cluster.mark().await?;
            let now = served(cluster.follower(number)?).await;
            Ok(now.as_deref() == Some(generation))
        })
        .await
        .unwrap();
        let mark = cluster.mark().await.unwrap();
        cluster
            .until_marked(number, mark, READY_WITHIN)
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn a_retired_generation_is_served_by_nobody_again() {
    let server = Server::start().await.unwrap();
    let mut cluster = minted(&server, "ends").await;
    let first = cluster.gateway_config["generation"]
        .as_str()
        .unwrap()
        .to_owned();
    let second = generation(&cluster.mint().await.unwrap().stdout);
    let archive = cluster.archive().display().to_string();
    let store = ["--store", "filesystem", "--path", &archive];
    let retire = |generation: &'_ str| -> Vec<String> {
        let words = store
            .iter()
            .chain(&["--generation"])
            .map(|word| (*word).to_owned());
        words.chain([generation.to_owned()]).collect()
    };
    let (of_first, of_second) = (retire(&first), retire(&second));
    let of_first: Vec<&str> = of_first.iter().map(String::as_str).collect();
    let of_second: Vec<&str> = of_second.iter().map(String::as_str).collect();
    let slots = "select count(*) from pg_replication_slots";

    refused(&cluster.pg("retire", &of_first).await.unwrap(), "IsCurrent");
    let own = std::mem::replace(&mut cluster.gateway_config, json!({"generation": second}));
    let (mut other, _) = cluster.start_other_gateway().await.unwrap();
    other.until_ready(READY_WITHIN).await.unwrap();
    refused(
        &cluster.pg("retire", &of_second).await.unwrap(),
        "SlotInUse",
    );
    assert_eq!(cluster.session.text(slots).await.unwrap(), "2");

    other.stop().await.unwrap();
    for _ in 0..2 {
        cluster
            .pg("retire", &of_second)
            .await
            .unwrap()
            .must_succeed()
            .unwrap();
        assert_eq!(cluster.session.text(slots).await.unwrap(), "1");
    }
    cluster.announce("GenerationRetired");
    let (again, _) = cluster.start_other_gateway().await.unwrap();
    wait::until_true("the gateway to halt", READY_WITHIN, async || {
        let answer = again.readyz().await;
        Ok(answer.is_some_and(|a| a.status == 503 && a.body.contains("GenerationRetired")))
    })
    .await
    .unwrap();
    cluster.gateway_config = own;
    let cutover = ["pg", "cutover", "--source", "ends"];
    let args: Vec<&str> = cutover
        .into_iter()
        .chain(of_second.iter().copied())
        .collect();
    refused(&cluster.rindle(&args).await.unwrap(), "was retired");
    // The one that is served knows nothing of it.
    cluster.add_follower().await.unwrap();
    cluster.must_be_equal(0).await.unwrap();
}

#[tokio::test]
async fn deprovision_leaves_the_database_as_it_was() {
    let server = Server::start().await.unwrap();
    server.create_database("leaves", "").await.unwrap();
    let mut cluster = Cluster::new(&server, "leaves", "leaves").await.unwrap();
    cluster
        .session
        .run("create table kept(id int primary key)")
        .await
        .unwrap();
    cluster.add_marker(None).await.unwrap();
    let role = "create role gate login replication; create schema own; create table own.deep(id int primary key)";
    cluster.session.run(role).await.unwrap();
    let before = server.dump("leaves").unwrap();
    let tables = "public.kept,public.drill_marker,own.deep";
    let tables = ["--tables", tables, "--client-mutations", "--role", "gate"];
    cluster
        .pg("prepare", &tables)
        .await
        .unwrap()
        .must_succeed()
        .unwrap();
    assert_ne!(server.dump("leaves").unwrap(), before);
    // What was given is all that is needed.
    cluster.pg_user = "gate".to_owned();
    cluster.gateway_config = json!({"postgres": {"user": "gate"}});
    cluster.mint().await.unwrap();
    cluster.start_gateway().await.unwrap();
    cluster.add_follower().await.unwrap();
    cluster.must_be_equal(0).await.unwrap();
    cluster.pg_user = "postgres".to_owned();
    let gateway = cluster.gateway().unwrap();
    gateway.until_ready(READY_WITHIN).await.unwrap();

    let made = server.dump("leaves").unwrap();
    refused(
        &cluster.pg("deprovision", &["--yes"]).await.unwrap(),
        "SlotInUse",
    );
    cluster.gateway().unwrap().stop().await.unwrap();
    let view = "create view mine as select client_id from _rindle_client_mutations";
    cluster.session.run(view).await.unwrap();
    refused(
        &cluster.pg("deprovision", &["--yes"]).await.unwrap(),
        "view public.mine depends",
    );
    cluster
        .session
        .run("drop view mine; create publication theirs for table _rindle_client_mutations")
        .await
        .unwrap();
    refused(
        &cluster.pg("deprovision", &["--yes"]).await.unwrap(),
        "publication theirs sends",
    );
    cluster
        .session
        .run("drop publication theirs")
        .await
        .unwrap();
    only_what_was_made_goes(&server, &mut cluster, &before, &made).await;
}

async fn only_what_was_made_goes(server: &Server, cluster: &mut Cluster, before: &str, made: &str) {
    // The plan alone changes nothing.
    let plan = cluster
        .pg("deprovision", &[])
        .await
        .unwrap()
        .must_succeed()
        .unwrap();
    assert!(plan.stdout.contains("drop slot rindle_leaves_"), "{plan:?}");
    assert_eq!(server.dump("leaves").unwrap(), made);
    cluster
        .pg("deprovision", &["--yes"])
        .await
        .unwrap()
        .must_succeed()
        .unwrap();
    assert_eq!(server.dump("leaves").unwrap(), before);
    let slots = "select count(*) from pg_replication_slots";
    assert_eq!(cluster.session.text(slots).await.unwrap(), "0");
    let again = cluster
        .pg("deprovision", &["--yes"])
        .await
        .unwrap()
        .must_succeed()
        .unwrap();
    assert!(
        again.stdout.contains("nothing of source leaves"),
        "{again:?}"
    );
}

#[tokio::test]
async fn preflight_tells_everything_and_its_status_says_whether_it_is_fatal() {
    let server = Server::start().await.unwrap();
    server.create_database("looks", "").await.unwrap();
    let cluster = Cluster::new(&server, "looks", "looks").await.unwrap();
    cluster
        .session
        .run("create table fit(id int primary key); create table keyless(id int)")
        .await
        .unwrap();
    let found = cluster
        .pg("preflight", &["--tables", "public.fit"])
        .await
        .unwrap();
    assert_eq!(found.status.code(), Some(0), "{found:?}");
    assert!(found.stdout.contains("admitted"), "{found:?}");
    let found = cluster
        .pg("preflight", &["--tables", "public.fit,public.keyless"])
        .await
        .unwrap();
    assert_eq!(found.status.code(), Some(2), "{found:?}");
    assert!(
        found.stdout.contains("NoRowKey public.keyless:"),
        "{found:?}"
    );
    let found = cluster
        .pg("preflight", &["--tables", "public.keyless", "--json"])
        .await
        .unwrap();
    let document = found.json().unwrap();
    assert_eq!(
        (found.status.code(), &document["admitted"]),
        (Some(2), &json!(false))
    );
    let ids: Vec<_> = document["findings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| &one["id"])
        .collect();
    assert!(ids.contains(&&json!("NoRowKey")), "{document}");
}

/// A setting that only 18 has: absent, present, and gone once the mend was run.
#[tokio::test]
async fn a6_a_timeout_of_idle_slots_is_told() {
    let server = Server::start_with(18, Options::default()).await.unwrap();
    server.create_database("idle", "").await.unwrap();
    let cluster = Cluster::new(&server, "idle", "idle").await.unwrap();
    let table = "create table fit(id int primary key)";
    cluster.session.run(table).await.unwrap();
    let args = ["--tables", "public.fit"];
    let told = async |set: &str| {
        let set = format!("alter system set idle_replication_slot_timeout = {set}");
        cluster.session.run(&set).await.unwrap();
        cluster
            .session
            .run("select pg_reload_conf()")
            .await
            .unwrap();
        cluster.pg("preflight", &args).await.unwrap()
    };
    for (set, found) in [("0", false), ("'1h'", true), ("0", false)] {
        wait::until_true(
            "the setting to reach every session",
            READY_WITHIN,
            async || {
                let outcome = told(set).await;
                assert_eq!(outcome.status.code(), Some(0), "{outcome:?}");
                Ok(outcome.stdout.contains("SlotIdleTimeout") == found)
            },
        )
        .await
        .unwrap();
    }
}
