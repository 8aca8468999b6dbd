//! Random migrations among random writes, and programs that are killed: whatever happened, mirror, a mirror made from an
//! image, and source are equal.
//!
//! `RINDLE_SEEDS` (20) is how many; half of them are always the same. `SEED=n` runs one again.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use rindle_drills::{
    cluster::Cluster,
    postgres::{Options, Server, version_from_env},
    random_schema::{SETUP, TABLES, Writers},
    rng::Rng,
    wait,
};
use rusqlite::{Connection, OpenFlags};

const READY_WITHIN: Duration = Duration::from_secs(60);
const STEPS: usize = 130;

/// Half of the seeds are fixed, so that what was mended once is looked at again; the others are new in each run.
fn seeds() -> Vec<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    if let Some(seed) = number("SEED") {
        return vec![seed];
    }
    let count = number("RINDLE_SEEDS").unwrap_or(20);
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let fresh = now.map_or(1, |now| now.as_secs() * 1000);
    (1..=count.div_ceil(2))
        .chain(fresh..fresh + count / 2)
        .collect()
}

/// A mirror of everything that the drill begins with.
async fn started(server: &Server, name: &str) -> Result<Cluster> {
    server.create_database(name, "").await?;
    let mut cluster = Cluster::new(server, name, name).await?;
    cluster.session.run(SETUP).await?;
    cluster.prepare(&TABLES).await?;
    cluster.mint().await?;
    cluster.start_gateway().await?;
    let first = cluster.add_follower().await?;
    cluster.follower(first)?.until_ready(READY_WITHIN).await?;
    Ok(cluster)
}

async fn must_not_be_halted(cluster: &Cluster) -> Result<serde_json::Value> {
    let status = cluster.gateway_status().await?;
    ensure!(status["phase"] != "halted", "the gateway halted: {status}");
    Ok(status)
}

/// Something happens to the programs, now and then.
async fn disturb(cluster: &mut Cluster, rng: &mut Rng, said: &mut Vec<String>) -> Result<()> {
    match rng.below(36) {
        0 => {
            said.push("-- the gateway is killed".to_owned());
            must_not_be_halted(cluster).await?;
            cluster.gateway()?.kill().await?;
            cluster.start_gateway().await?;
        }
        1 => {
            said.push("-- the follower is killed".to_owned());
            cluster.follower(0)?.kill().await?;
            cluster.start_follower(0).await?;
        }
        2 if rng.one_in(3) => {
            said.push("-- an image is made".to_owned());
            cluster.produce().await?;
        }
        // What runs beside gets time to be in the middle of something.
        3..=12 => tokio::time::sleep(Duration::from_millis(rng.below(120))).await,
        _ => {}
    }
    Ok(())
}

fn must_be_whole(cluster: &Cluster, number: usize) -> Result<()> {
    let mirror =
        Connection::open_with_flags(cluster.mirror(number), OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    let found: String = mirror.query_row("pragma integrity_check", [], |row| row.get(0))?;
    ensure!(found == "ok", "integrity_check of mirror {number}: {found}");
    Ok(())
}

async fn played(cluster: &mut Cluster, writers: &mut Writers, rng: &mut Rng) -> Result<()> {
    for _ in 0..STEPS {
        writers.step().await?;
        disturb(cluster, rng, &mut writers.said).await?;
    }
    writers.finish().await?;
    cluster.must_follow(0).await.context("the follower")?;
    must_be_whole(cluster, 0)?;
    cluster.produce().await?;
    let second = cluster.add_follower_from_image().await?;
    cluster
        .must_be_equal(second)
        .await
        .context("a follower from an image")?;
    must_be_whole(cluster, second)
}

/// One seed, in a database of its own.
async fn run(server: &Server, seed: u64) {
    println!("random migrations: SEED={seed}");
    let name = format!("r{seed}");
    let mut rng = Rng::new(seed);
    let mut cluster = started(server, &name).await.unwrap();
    let mut writers = Writers::start(server, &name, &cluster.publication, rng.fork())
        .await
        .unwrap();
    if let Err(error) = played(&mut cluster, &mut writers, &mut rng).await {
        let (said, state) = (writers.said.join("\n"), cluster.state().await);
        panic!("{said}\n{state}\nSEED={seed}: {error:#}");
    }
    println!(
        "SEED={seed}: {} lines, {} refused",
        writers.said.len(),
        writers.refused
    );
    ensure_room(server, &mut cluster, &name).await.unwrap();
}

/// A slot that nobody needs any more keeps the WAL of all the others.
async fn ensure_room(server: &Server, cluster: &mut Cluster, name: &str) -> Result<()> {
    cluster.gateway()?.kill().await?;
    let admin = server.session("postgres").await?;
    wait::until_true("the slots to be free", READY_WITHIN, async || {
        let active = format!(
            "select count(*) from pg_replication_slots where database = '{name}' and active"
        );
        Ok(admin.text(&active).await? == "0")
    })
    .await?;
    admin
        .run(&format!("select pg_drop_replication_slot(slot_name) from pg_replication_slots where database = '{name}'"))
        .await?;
    admin
        .run(&format!("drop database {name} with (force)"))
        .await
}

#[tokio::test]
async fn random_migrations_end_equal() {
    let options = Options {
        conf: vec![
            "max_connections = 200".to_owned(),
            "wal_sender_timeout = '20s'".to_owned(),
        ],
        fresh: false,
    };
    let server = Server::start_with(version_from_env(), options)
        .await
        .unwrap();
    let seeds = seeds();
    // Two at a time: one waits for its programs while the other works.
    let (left, right) = seeds.split_at(seeds.len().div_ceil(2));
    let all = async |seeds: &[u64]| {
        for seed in seeds {
            run(&server, *seed).await;
        }
    };
    tokio::join!(all(left), all(right));
}
