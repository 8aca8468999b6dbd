//! The archive in a bucket: a whole life of it while the server answers wrongly now and then, the fence, rights that are taken
//! away, and servers that cannot hold an archive.

use std::time::Duration;

use hyper::Method;
use rindle_archive::bucket_server::{BUCKET, Failing, Fault, Manners, Rule};
use rindle_drills::{
    cluster::Cluster,
    postgres::Server,
    rng::Rng,
    wait,
    workload::{self, Load},
};

const READY_WITHIN: Duration = Duration::from_secs(60);

/// What an honest store may do to any request.
const HICCUPS: [Fault; 9] = [
    Fault::Before(500, "InternalError"),
    Fault::Before(503, "SlowDown"),
    Fault::Before(409, "ConditionalRequestConflict"),
    Fault::CutBefore,
    Fault::After(500, "InternalError"),
    Fault::After(503, "SlowDown"),
    Fault::CutAfter,
    Fault::Short,
    Fault::Drip(Duration::from_millis(15)),
];

/// One request fails every now and then, until this is aborted: the first that comes within a moment.
fn hiccups(failing: Failing, mut rng: Rng) -> tokio::task::AbortHandle {
    let task = tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_millis(10 + rng.below(50))).await;
            let fault = *rng.pick(&HICCUPS);
            let method = match fault {
                Fault::Short | Fault::Drip(_) => Method::GET,
                _ if rng.below(3) > 0 => Method::PUT,
                _ => Method::GET,
            };
            failing.fail(Rule::once(method, fault));
            tokio::time::sleep(Duration::from_millis(40)).await;
            failing.mend();
        }
    });
    task.abort_handle()
}

async fn started(server: &Server, source: &str) -> Cluster {
    let mut cluster = Cluster::in_bucket(server, "postgres", source, Manners::Careful)
        .await
        .unwrap();
    cluster.session.run(workload::SCHEMA).await.unwrap();
    cluster.prepare(&workload::TABLES).await.unwrap();
    cluster.mint().await.unwrap();
    cluster.start_gateway().await.unwrap();
    cluster
}

/// First copy, stream, a backfill, a lost gateway host, images, a restore, and every byte looked at again.
#[tokio::test]
async fn a_bucket_that_answers_wrongly_now_and_then_is_an_archive_all_the_same() {
    let server = Server::start().await.unwrap();
    let mut rng = Rng::from_env("a bucket with hiccups");
    let mut cluster = started(&server, "hiccups").await;
    let bucket = cluster.bucket.as_ref().unwrap();
    let failing = hiccups(bucket.failing(), rng.fork());
    let follower = cluster.add_follower().await.unwrap();
    let watch = cluster.watch();
    let mark = cluster.mark().await.unwrap();
    cluster
        .until_marked(follower, mark, READY_WITHIN)
        .await
        .unwrap();
    let load = Load::start(&server, "postgres", 2, Duration::from_millis(5), &mut rng)
        .await
        .unwrap();
    cluster.produce().await.unwrap();
    let migration = "alter table item add made uuid default gen_random_uuid()";
    cluster.session.run(migration).await.unwrap();
    // The host is lost, and its local log with it.
    cluster.gateway().unwrap().kill().await.unwrap();
    std::fs::remove_dir_all(cluster.data_dir()).unwrap();
    cluster.start_gateway().await.unwrap();
    let mark = cluster.mark().await.unwrap();
    cluster
        .until_marked(follower, mark, READY_WITHIN)
        .await
        .unwrap();
    println!("{:?}", load.finish().await.unwrap());
    // The backfill too.
    cluster.must_follow(follower).await.unwrap();
    println!("watch: {:?}", watch.finish().await.unwrap());
    failing.abort();
    let seen = cluster.bucket.as_ref().unwrap().seen();
    assert!(seen.fired > 0, "{seen:?}");
    println!("{} requests went wrong: {:?}", seen.fired, seen.requests);
    assert_eq!(
        seen.checksums,
        seen.requests[&Method::PUT],
        "each PUT told its SHA-256"
    );

    cluster.bucket.as_ref().unwrap().mend();
    cluster.produce().await.unwrap();
    let second = cluster.add_follower_from_image().await.unwrap();
    cluster.must_be_equal(second).await.unwrap();
    let store = cluster.store();
    let mut verify = vec!["backup", "verify", "--deep", "--source", &cluster.source];
    verify.extend(store.iter().map(String::as_str));
    let verified = cluster.rindle(&verify).await.unwrap();
    let verified = verified.must_succeed().unwrap();
    assert!(
        verified.stdout.contains("nothing is wrong"),
        "{}",
        verified.stdout
    );
}

/// Nothing that two writers can both win is ever minted.
#[tokio::test]
async fn a_store_without_conditions_is_refused_at_mint() {
    let server = Server::start().await.unwrap();
    for (source, manners) in [("deaf", Manners::Deaf), ("racing", Manners::Racing)] {
        let cluster = Cluster::in_bucket(&server, "postgres", source, manners)
            .await
            .unwrap();
        let setup = "create table if not exists t(id int primary key)";
        cluster.session.run(setup).await.unwrap();
        cluster.prepare(&["public.t"]).await.unwrap();
        let refused = cluster.try_mint().await.unwrap();
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
        let said = &refused.stderr;
        assert!(said.contains("this store cannot hold an archive"), "{said}");
        assert!(said.contains("there is no override"), "{said}");
        assert!(!cluster.archive().join(source).join("g").exists());
    }
}

/// A wrong bucket, and settings that cannot be, each with the next step.
#[tokio::test]
async fn what_an_operator_gets_wrong_is_named() {
    let server = Server::start().await.unwrap();
    let cluster = started(&server, "named").await;
    let list = ["backup", "list", "--source", "named", "--store", "s3"];
    let with = |name: &str, value: &str| vec![(name.to_owned(), value.to_owned())];
    for (env, words) in [
        (with("AWS_BUCKET", "absent"), "there is no such bucket"),
        (with("AWS_BUCKET", "s3://archive"), "no name of a bucket"),
        (with("AWS_ENDPOINT", "http://s3.example"), "AWS_ALLOW_HTTP"),
        (
            with("AWS_SECRET_ACCESS_KEY", "wrong"),
            "refuses our credentials",
        ),
        (
            with("AWS_ENDPOINT", "http://127.0.0.1:9"),
            "archive unavailable",
        ),
    ] {
        let refused = cluster.rindle_with(&list, &env).await.unwrap();
        assert_ne!(refused.status.code(), Some(0), "{refused:?}");
        assert!(
            refused.stderr.contains(words),
            "{words}: {}",
            refused.stderr
        );
    }
    let listed = cluster.rindle(&list).await.unwrap().must_succeed().unwrap();
    assert!(listed.stdout.contains("(current)"), "{}", listed.stdout);
    assert!(cluster.archive().ends_with(BUCKET));
}

/// Rights are taken away and given back: nothing is acknowledged meanwhile, it is told by name, and all goes on by itself.
#[tokio::test]
async fn rights_that_are_taken_away_are_named_and_waited_for() {
    let server = Server::start().await.unwrap();
    let mut cluster = started(&server, "rights").await;
    let follower = cluster.add_follower().await.unwrap();
    cluster.must_be_equal(follower).await.unwrap();
    let watch = cluster.watch();
    let archived = cluster.archived().unwrap();
    let bucket = cluster.bucket.as_ref().unwrap();
    bucket.fail(Rule::always(
        Method::PUT,
        Fault::Before(403, "AccessDenied"),
    ));
    let mark = cluster.mark().await.unwrap();
    wait::until_true("the gateway to name it", READY_WITHIN, async || {
        let status = cluster.gateway_status().await?.to_string();
        Ok(status.contains("refuses our credentials"))
    })
    .await
    .unwrap();
    // A follower near the head is served all the same.
    cluster
        .until_marked(follower, mark, READY_WITHIN)
        .await
        .unwrap();
    assert!(cluster.bucket.as_ref().unwrap().seen().fired > 0);
    assert_eq!(cluster.archived().unwrap(), archived);
    cluster.bucket.as_ref().unwrap().mend();
    wait::until_true("the archive to go on", READY_WITHIN, async || {
        Ok(cluster.archived()? > archived)
    })
    .await
    .unwrap();
    cluster.must_be_equal(follower).await.unwrap();
    println!("watch: {:?}", watch.finish().await.unwrap());
}
