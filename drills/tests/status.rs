//! `rindle pg status`: what an on-call engineer sees of a source that runs, and of one that is about to lose its slot.

use std::time::Duration;

use rindle_drills::{
    cluster::Cluster,
    http,
    postgres::{Options, Server, Session, version_from_env},
    wait,
};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

const WITHIN: Duration = Duration::from_secs(60);
const WRITE: &str = "insert into wide select string_agg(md5(random()::text), '') from generate_series(1, 32768) g \
     group by g / 32";

async fn running() -> (Server, Cluster) {
    let conf = [
        "max_slot_wal_keep_size = '2GB'",
        "max_wal_size = '32MB'",
        "min_wal_size = '32MB'",
    ];
    let options = Options {
        conf: conf.map(str::to_owned).to_vec(),
        fresh: false,
    };
    let server = Server::start_with(version_from_env(), options)
        .await
        .unwrap();
    server.create_database("seen", "").await.unwrap();
    let mut cluster = Cluster::new(&server, "seen", "seen").await.unwrap();
    let table = "create table wide(body text, id bigint generated always as identity primary key)";
    cluster.session.run(table).await.unwrap();
    cluster.prepare(&["public.wide"]).await.unwrap();
    cluster.mint().await.unwrap();
    cluster.start_gateway().await.unwrap();
    for number in 0..2 {
        cluster.add_follower().await.unwrap();
        cluster.must_be_equal(number).await.unwrap();
    }
    (server, cluster)
}

/// What `rindle pg status --json` says with these flags, and whether it called that well.
async fn status(cluster: &Cluster, more: &[&str]) -> (Value, bool) {
    let archive = cluster.archive().display().to_string();
    let store = ["--json", "--store", "filesystem", "--path", &archive];
    let args = [&store[..], more].concat();
    let outcome = cluster.pg("status", &args).await.unwrap();
    let document = outcome.json().unwrap();
    assert_eq!(document["verdict"]["ok"], outcome.status.success());
    (document, outcome.status.success())
}

#[tokio::test]
async fn every_hop_and_every_follower_is_told() {
    let (_server, mut cluster) = running().await;
    let port = cluster.gateway().unwrap().port("httpPort").unwrap();
    let gateway = ["--gateway", &format!("http://127.0.0.1:{port}")];
    cluster.produce().await.unwrap();

    let mut last = Value::Null;
    let quiet = wait::until_true("all to be sent and archived", WITHIN, async || {
        let (document, ok) = status(&cluster, &gateway).await;
        last = document;
        let hops = ["received", "archived", "acked"].map(|hop| &last["gateway"]["lag"][hop]);
        let followers = last["followers"].as_array().cloned().unwrap_or_default();
        let waits = hops
            .into_iter()
            .chain(followers.iter().map(|one| &one["lag"]));
        let head = &last["gateway"]["headSeq"];
        Ok(ok
            && followers.len() == 2
            && followers
                .iter()
                .all(|one| one["seq"] == *head && one["through"].is_string())
            && waits
                .into_iter()
                .all(|lag| *lag == json!({"bytes": 0, "seconds": 0.0})))
    });
    assert!(quiet.await.is_ok(), "{last}");
    fields_and_screen(&cluster, &last, &gateway).await;

    // One stands still: it alone is behind, in bytes and in seconds.
    cluster.follower(1).unwrap().signal(Signal::STOP).unwrap();
    for _ in 0..24 {
        cluster.session.run(WRITE).await.unwrap();
    }
    let behind = wait::until_true("the one to fall behind", WITHIN, async || {
        last = cluster.gateway_status().await?;
        let lag = |follower: usize| &last["followers"][follower]["lag"];
        Ok(lag(0)["bytes"] == 0
            && lag(1)["bytes"].as_u64() > Some(1 << 20)
            && lag(1)["seconds"].as_f64() > Some(2.0))
    });
    assert!(behind.await.is_ok(), "{last}");
    let metrics = http::get(port, "/metrics").await.unwrap().body;
    let sent = metrics
        .lines()
        .find(|line| line.starts_with("rindle_gateway_lag_seconds{hop=\"sent\"}"));
    let seconds = sent.and_then(|line| line.rsplit(' ').next()?.parse().ok());
    assert!(seconds > Some(2.0), "{metrics}");
    // Anybody may ask this, so nobody is named.
    let open = http::get(port, "/readyz").await.unwrap().json().unwrap();
    assert!(open.get("followers").is_none(), "{open}");
    cluster.follower(1).unwrap().signal(Signal::CONT).unwrap();
    cluster.must_be_equal(1).await.unwrap();
}

/// What is known is there, what is not has a why, and the screen shows it.
async fn fields_and_screen(cluster: &Cluster, last: &Value, gateway: &[&str]) {
    for (field, known) in [
        ("/archive/segments", true),
        ("/archive/ageSeconds", true),
        ("/archive/verification", false),
        ("/images/0/ageSeconds", true),
        ("/slot/walBytesPerSecond", true),
    ] {
        let found = last.pointer(field).unwrap();
        assert_eq!(found.is_number(), known, "{field}: {last}");
    }
    assert_eq!(last["images"][0]["verified"], true, "{last}");
    assert!(last["why"]["archive.verification"].is_string(), "{last}");

    let archive = cluster.archive().display().to_string();
    let store = ["--store", "filesystem", "--path", &archive];
    let screen = cluster.pg("status", &[&store[..], gateway].concat()).await;
    let screen = screen.unwrap().must_succeed().unwrap().stdout;
    for words in [
        "2 attached",
        "was sent frame",
        "0 B and 0.0 s behind",
        "newest proved",
    ] {
        assert!(screen.contains(words), "{words}: {screen}");
    }
    println!("{screen}");
}

/// Writes until it is told to stop.
fn write(session: Session) -> JoinHandle<()> {
    tokio::spawn(async move {
        loop {
            session.run(WRITE).await.unwrap();
        }
    })
}

#[tokio::test]
async fn a_slot_that_nobody_reads_comes_with_the_time_that_is_left() {
    let (server, mut cluster) = running().await;
    cluster.gateway().unwrap().stop().await.unwrap();
    let (quiet, ok) = status(&cluster, &[]).await;
    assert!(!ok && quiet["slot"]["secondsLeft"].is_null(), "{quiet}");
    assert!(quiet["why"]["slot.secondsLeft"].is_string(), "{quiet}");

    let writer = write(server.session("seen").await.unwrap());
    let mut last = Value::Null;
    let extended = wait::until_true("the slot to keep more than usual", WITHIN, async || {
        last = status(&cluster, &[]).await.0;
        Ok(last["slot"]["walStatus"] == "extended")
    });
    assert!(extended.await.is_ok(), "{last}");
    writer.abort();
    let sentence = last["verdict"]["sentence"].as_str().unwrap();
    assert_eq!(last["verdict"]["reason"], "NoGateway", "{last}");
    assert!(
        sentence.contains("at the present rate Postgres drops the slot in about"),
        "{last}"
    );
    let left = last["slot"]["secondsLeft"].as_u64().unwrap();
    let by_hand = last["slot"]["safeWalBytes"].as_u64().unwrap()
        / last["slot"]["walBytesPerSecond"].as_u64().unwrap();
    assert_eq!(left, by_hand, "{last}");

    cluster.start_gateway().await.unwrap();
    cluster.must_be_equal(0).await.unwrap();
}
