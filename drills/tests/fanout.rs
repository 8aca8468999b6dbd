//! Many followers, one of which stands still: the others do not notice, and it catches up. It measures delays, so it is
//! an executable of its own: cargo runs it before the other drills, not beside them.
//!
//! `RINDLE_FULL` makes it stand still for a minute; else 20 s.

#![allow(clippy::unwrap_used)]

use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicI64, Ordering},
    time::{Duration, Instant},
};

use rindle_drills::{
    beat::{Watcher, Writer},
    cluster::{CATCHES_UP_WITHIN, Cluster},
    postgres::Server,
    wait,
};
use rustix::process::Signal;
use serde_json::json;

const READY_WITHIN: Duration = Duration::from_secs(90);
const FOLLOWERS: usize = 32;
/// Followers whose delay is measured: each costs a look a millisecond.
const MEASURED: usize = 8;
const EVERY: Duration = Duration::from_millis(40);
/// Delays are taken in windows, and windows compared by their median, so that a moment in which the machine was busy
/// with something else does not decide.
const WINDOW: Duration = Duration::from_secs(4);
const WINDOWS_BEFORE: usize = 4;
/// What one look and one turn of the scheduler may add, whatever the follower that stands still does.
const SLACK: Duration = Duration::from_millis(2);
/// On a machine with two cores and 32 followers a whole round can be spoilt by a neighbour; a follower that slows the
/// others slows them in each round.
const ROUNDS: usize = 3;
const MIB: u64 = 1 << 20;

fn stands_still() -> Duration {
    let full = std::env::var_os("RINDLE_FULL").is_some();
    Duration::from_secs(if full { 60 } else { 20 })
}

/// The delays of the rows committed in a window, over all measured followers: the 99th of 100.
fn p99(commits: &[Instant], watchers: &[Watcher], from: Instant, to: Instant) -> Duration {
    let mut delays = Vec::new();
    for watcher in watchers {
        for (committed, seen) in commits.iter().zip(watcher.seen()) {
            if (from..to).contains(committed) {
                delays.push(seen.saturating_duration_since(*committed));
            }
        }
    }
    delays.sort_unstable();
    assert!(delays.len() > 200, "only {} delays", delays.len());
    delays[delays.len() * 99 / 100]
}

/// The median of the windows' p99.
async fn measured(writer: &Writer, watchers: &[Watcher], windows: usize) -> Duration {
    let mut found = Vec::new();
    for _ in 0..windows {
        let from = Instant::now();
        tokio::time::sleep(WINDOW).await;
        let to = Instant::now();
        let commits = writer.committed();
        let committed = commits.len();
        wait::until_true(
            "every row of the window to be seen",
            READY_WITHIN,
            async || {
                let all = watchers.iter();
                Ok(all.map(|w| w.seen().len()).min() >= Some(committed))
            },
        )
        .await
        .unwrap();
        found.push(p99(&commits, watchers, from, to));
    }
    found.sort_unstable();
    println!("p99 of the windows: {found:?}");
    found[found.len() / 2]
}

async fn attached(server: &Server) -> Cluster {
    let mut cluster = Cluster::new(server, "postgres", "many").await.unwrap();
    cluster.gateway_config = json!({"backup": {"retainBytes": MIB}});
    let setup = "create table beat(n bigint primary key, pad text);
                 create table bulk(id bigint primary key, body text);
                 alter table bulk alter body set storage external";
    cluster.session.run(setup).await.unwrap();
    cluster
        .prepare(&["public.beat", "public.bulk"])
        .await
        .unwrap();
    cluster.mint().await.unwrap();
    cluster.start_gateway().await.unwrap();
    for _ in 0..FOLLOWERS {
        cluster.add_follower().await.unwrap();
    }
    for number in 0..FOLLOWERS {
        let follower = cluster.follower(number).unwrap();
        follower.until_ready(READY_WITHIN).await.unwrap();
    }
    wait::until_true("all to be attached", READY_WITHIN, async || {
        let status = cluster.gateway_status().await?;
        Ok(status["followers"].as_array().map(Vec::len) == Some(FOLLOWERS))
    })
    .await
    .unwrap();
    cluster
}

#[tokio::test]
async fn one_that_stands_still_does_not_slow_the_others() {
    let server = Server::start().await.unwrap();
    let mut cluster = attached(&server).await;
    let write = |n: u64| format!("insert into beat values ({n}, repeat('b', 200))");
    let writer = Writer::start(server.session("postgres").await.unwrap(), EVERY, write);
    let dbs: Vec<PathBuf> = cluster.followers[..MEASURED]
        .iter()
        .map(|f| f.db.clone())
        .collect();
    let watchers: Vec<Watcher> = dbs.iter().map(|db| Watcher::start(db).unwrap()).collect();
    let still = FOLLOWERS - 1;
    let windows = (stands_still().as_secs() / WINDOW.as_secs()) as usize;
    let mut rounds = Vec::new();
    for round in 0..ROUNDS {
        let before = measured(&writer, &watchers, WINDOWS_BEFORE).await;
        cluster
            .follower(still)
            .unwrap()
            .signal(Signal::STOP)
            .unwrap();
        let during = measured(&writer, &watchers, windows).await;
        // More than the local log keeps and sockets hold, so that the way back leads through the archive.
        fill(&cluster, round as i64).await;
        cluster
            .follower(still)
            .unwrap()
            .signal(Signal::CONT)
            .unwrap();
        let mark = cluster.mark().await.unwrap();
        for number in 0..FOLLOWERS {
            cluster
                .until_marked(number, mark, CATCHES_UP_WITHIN)
                .await
                .unwrap();
        }
        println!("p99 before {before:?}, while one stood still {during:?}");
        rounds.push((before, during));
        if during <= before * 6 / 5 + SLACK {
            break;
        }
    }
    let rows = writer.finish().await.unwrap();
    for watcher in watchers {
        watcher.finish().unwrap();
    }
    println!("{rows} rows, {FOLLOWERS} followers");
    let kept_up = |(before, during): &(Duration, Duration)| *during <= *before * 6 / 5 + SLACK;
    assert!(rounds.iter().any(kept_up), "{rounds:?}");
    for number in [still, 0] {
        cluster.must_be_equal(number).await.unwrap();
    }
    assert_eq!(
        cluster.followers[still].restored(),
        0,
        "it restored an image"
    );
}

/// Writes 48 MiB and waits until the local log holds less than half of it.
async fn fill(cluster: &Cluster, round: i64) {
    static NEXT: AtomicI64 = AtomicI64::new(0);
    for _ in 0..48 {
        let id = NEXT.fetch_add(1000, Ordering::Relaxed);
        let write = format!(
            "insert into bulk select {id} + n, repeat(md5((n + {round})::text), 1024) from generate_series(1, 32) n"
        );
        cluster.session.run(&write).await.unwrap();
    }
    let written = cluster.source_position().await.unwrap();
    wait::until_true("the local log to let go of it", READY_WITHIN, async || {
        Ok(cluster.archived()? >= written && size_of(&cluster.data_dir()) < 24 * MIB)
    })
    .await
    .unwrap();
}

fn size_of(path: &Path) -> u64 {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    let sizes = entries.map(|entry| match entry.metadata() {
        Ok(found) if found.is_dir() => size_of(&entry.path()),
        Ok(found) => found.len(),
        Err(_) => 0,
    });
    sizes.sum()
}
