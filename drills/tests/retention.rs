//! Retention with the real programs: what goes is what nobody needs, and whoever needed it is told.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use rindle_drills::{cluster::Cluster, postgres::Server, program::Outcome, wait};
use serde_json::{Value, json};

const READY_WITHIN: Duration = Duration::from_secs(60);

/// All files of a folder, so much older: the store's clock is that of its files.
fn age(directory: &Path, by: Duration) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            age(&path, by);
            continue;
        }
        // Somebody may write and delete meanwhile.
        let Ok(file) = File::options().write(true).open(&path) else {
            continue;
        };
        let then = file.metadata().unwrap().modified().unwrap();
        file.set_modified(then - by).unwrap();
    }
}

fn segments(cluster: &Cluster) -> usize {
    std::fs::read_dir(cluster.log_dir().unwrap())
        .unwrap()
        .count()
}

/// Parts of copies.
fn parts(bulk: &Path) -> usize {
    let attempts = std::fs::read_dir(bulk).unwrap();
    let parts = attempts.map(|it| std::fs::read_dir(it.unwrap().path()).unwrap().count());
    parts.sum()
}

async fn prune(cluster: &Cluster, more: &[&str]) -> Outcome {
    let store = cluster.store();
    let mut args = vec!["--json", "backup", "prune", "--source", &cluster.source];
    args.extend(["--keep", "1", "--keep-days", "0"]);
    args.extend(more);
    args.extend(store.iter().map(String::as_str));
    cluster.rindle(&args).await.unwrap().must_succeed().unwrap()
}

fn told(outcome: &Outcome) -> Value {
    let told: Value = serde_json::from_str(&outcome.stdout).unwrap();
    told["generations"][0].clone()
}

/// Transactions, a migration, and an image of them.
async fn write_a_round(cluster: &mut Cluster, round: u32) {
    for n in 0..10 {
        let id = round * 10_000 + n;
        let insert =
            format!("insert into t values ({id}, 'x'); update t set v = 'y' where id = {n}");
        cluster.session.run(&insert).await.unwrap();
    }
    // What is believed is kept with each change of the schema, and every hour.
    let migration = format!("alter table t add c{round} int");
    cluster.session.run(&migration).await.unwrap();
    let end = cluster.source_position().await.unwrap();
    let mark = cluster.mark().await.unwrap();
    cluster.until_marked(0, mark, READY_WITHIN).await.unwrap();
    wait::until_true("the archive", READY_WITHIN, async || {
        Ok(cluster.archived()? >= end)
    })
    .await
    .unwrap();
    cluster.produce().await.unwrap();
}

async fn everybody_goes_on(cluster: &mut Cluster, ahead: usize, behind: usize) {
    // Whoever is near the head notices nothing; a new gateway host starts from what is left.
    cluster.gateway().unwrap().kill().await.unwrap();
    std::fs::remove_dir_all(cluster.data_dir()).unwrap();
    cluster.start_gateway().await.unwrap();
    cluster
        .session
        .run("alter table t add w int default 7")
        .await
        .unwrap();
    cluster.must_follow(ahead).await.unwrap();
    // The one that was away takes an image, and so does a new one that has the archive alone.
    cluster.start_follower(behind).await.unwrap();
    cluster.must_be_equal(behind).await.unwrap();
    let fresh = cluster.add_follower_from_image().await.unwrap();
    cluster.must_be_equal(fresh).await.unwrap();
    let store = cluster.store();
    let mut verify = vec!["backup", "verify", "--deep", "--source", "retention"];
    verify.extend(store.iter().map(String::as_str));
    cluster
        .rindle(&verify)
        .await
        .unwrap()
        .must_succeed()
        .unwrap();
    let out = cluster.dir.join("restored.db").display().to_string();
    let mut restore = vec!["backup", "restore", "--source", "retention", "--out", &out];
    restore.extend(store.iter().map(String::as_str));
    cluster
        .rindle(&restore)
        .await
        .unwrap()
        .must_succeed()
        .unwrap();
    // And the producer goes on.
    cluster.produce().await.unwrap();
}

/// The first copy's rows, the log and the older images go; followers, new ones, a new gateway host and every restore go on.
#[tokio::test]
async fn what_goes_is_missed_by_nobody() {
    let server = Server::start().await.unwrap();
    let mut cluster = Cluster::new(&server, "postgres", "retention")
        .await
        .unwrap();
    let setup = "create table t(id int primary key, v text); insert into t select n, n from generate_series(1, 2000) n";
    cluster.session.run(setup).await.unwrap();
    cluster.prepare(&["public.t"]).await.unwrap();
    cluster.mint().await.unwrap();
    cluster.gateway_config = json!({"backup": {"minPutIntervalMs": 1}});
    cluster.start_gateway().await.unwrap();
    let ahead = cluster.add_follower().await.unwrap();
    let behind = cluster.add_follower().await.unwrap();
    for follower in [ahead, behind] {
        cluster.must_be_equal(follower).await.unwrap();
    }
    // This one stays where it is.
    cluster.follower(behind).unwrap().kill().await.unwrap();
    let bulk = cluster.log_dir().unwrap().with_file_name("bulk");
    // A start needs the end of the first copy yet: it stays, whatever images there are.
    cluster.produce().await.unwrap();
    age(&cluster.archive(), Duration::from_secs(2 * 3600));
    prune(&cluster, &[]).await;
    assert!(parts(&bulk) > 0);
    for round in 1..=4 {
        write_a_round(&mut cluster, round).await;
    }
    let before = segments(&cluster);
    // Nothing goes within the hour.
    let early = told(&prune(&cluster, &[]).await);
    assert_eq!(early["segments"], 0, "{early}");
    age(&cluster.archive(), Duration::from_secs(2 * 3600));
    let dry = told(&prune(&cluster, &["--dry-run"]).await);
    assert!(segments(&cluster) >= before, "nothing went");
    let done = told(&prune(&cluster, &[]).await);
    assert_eq!(
        (&dry["images"], &dry["boundary"]),
        (&done["images"], &done["boundary"])
    );
    assert_eq!(done["images"].as_array().unwrap().len(), 3, "{done}");
    assert!(done["segments"].as_u64().unwrap() > 2, "{done}");
    // By this pass or by one of the producer's.
    assert_eq!(parts(&bulk), 0);
    assert!(segments(&cluster) < before);
    println!("{before} log objects, {} left; {done}", segments(&cluster));

    everybody_goes_on(&mut cluster, ahead, behind).await;
}
