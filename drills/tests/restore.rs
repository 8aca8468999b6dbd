//! The archive is a way back: at any moment it shows what the source showed then.

use std::{collections::BTreeSet, path::Path, time::Duration};

use rindle_drills::{
    cluster::Cluster,
    postgres::{Server, Session},
    program::Outcome,
    rng::Rng,
};
use rusqlite::{Connection, OpenFlags};

const READY_WITHIN: Duration = Duration::from_secs(60);
const SETUP: &str = "create table entry(id int primary key, n bigint, v text); \
     insert into entry select n, n, 'first ' || n from generate_series(1, 200) n";

/// What the source showed at one moment.
struct Moment {
    lsn: String,
    time: String,
    rows: String,
    columns: i64,
}

async fn moment(source: &Session) -> Moment {
    let text = async |sql: &str| source.text(sql).await.unwrap();
    let rows =
        "select coalesce(string_agg(format('%s|%s|%s', id, n, v), ',' order by id), '') from entry";
    let columns = "select count(*) from information_schema.columns where table_name = 'entry'";
    Moment {
        lsn: text("select pg_current_wal_lsn()").await,
        rows: text(rows).await,
        columns: text(columns).await.parse().unwrap(),
        time: text("select to_char(clock_timestamp() at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')").await,
    }
}

/// Some transactions, now and then one that is large, rolled back, or changes the table.
async fn work(source: &Session, rng: &mut Rng, nth: usize) {
    for _ in 0..=rng.below(3) {
        let (id, n) = (rng.between(1, 300), rng.between(-9, 9));
        let write = match rng.below(6) {
            0 => format!("delete from entry where id between {id} and {id} + 5"),
            1 => format!("update entry set id = id + 1000 where id = {id}"),
            2 => format!("begin; insert into entry values ({id} + 5000, 0, 'undone'); rollback"),
            3 => format!(
                "update entry set v = v || repeat('x', 2000) where id % 7 = {}",
                n.abs() % 7
            ),
            _ => format!(
                "insert into entry values ({id}, {n}, 'row {nth}') on conflict (id) do update set n = {n}, v = 'again'"
            ),
        };
        source.run(&write).await.unwrap();
    }
    if nth == 8 {
        source
            .run("alter table entry add w int default 7")
            .await
            .unwrap();
    }
}

fn shown(file: &Path) -> (String, i64) {
    let file = Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
    let mut select = file
        .prepare("select id || '|' || n || '|' || v from entry order by id")
        .unwrap();
    let rows = select.query_map([], |row| row.get::<_, String>(0)).unwrap();
    let rows: Vec<String> = rows.map(Result::unwrap).collect();
    let columns = "select count(*) from pragma_table_info('entry')";
    (
        rows.join(","),
        file.query_row(columns, [], |row| row.get(0)).unwrap(),
    )
}

/// 20 moments on the way to three images, and the archive that holds them.
async fn history(cluster: &mut Cluster, rng: &mut Rng) -> Vec<Moment> {
    cluster.session.run(SETUP).await.unwrap();
    cluster.prepare(&["public.entry"]).await.unwrap();
    cluster.mint().await.unwrap();
    cluster.start_gateway().await.unwrap();
    let follower = cluster.add_follower().await.unwrap();
    let follower = cluster.follower(follower).unwrap();
    follower.until_ready(READY_WITHIN).await.unwrap();
    let mut moments = Vec::new();
    for nth in 0..20 {
        work(&cluster.session, rng, nth).await;
        moments.push(moment(&cluster.session).await);
        if [6, 13, 19].contains(&nth) {
            cluster.must_be_equal(0).await.unwrap();
            cluster.produce().await.unwrap();
        }
    }
    // Not only the last image.
    cluster.session.run("delete from entry").await.unwrap();
    cluster.must_be_equal(0).await.unwrap();
    moments
}

/// Runs `rindle backup` on the cluster's archive.
async fn backup(cluster: &Cluster, args: &[&str]) -> Outcome {
    let archive = cluster.archive().display().to_string();
    let place = [
        "--source",
        "restore",
        "--store",
        "filesystem",
        "--path",
        &archive,
    ];
    let all = [&["backup"], args, &place].concat();
    cluster.rindle(&all).await.unwrap()
}

#[tokio::test]
async fn restore_at_shows_what_the_source_showed_then() {
    let server = Server::start().await.unwrap();
    let mut rng = Rng::from_env("restore");
    let mut cluster = Cluster::new(&server, "postgres", "restore").await.unwrap();
    let moments = history(&mut cluster, &mut rng).await;
    let out = cluster.archive().with_file_name("restored.db");
    let file = out.display().to_string();
    let mut images = BTreeSet::new();
    for (nth, moment) in moments.iter().enumerate() {
        for at in [&moment.lsn, &moment.time] {
            let restore = ["restore", "--json", "--at", at, "--out", &file];
            let restored = backup(&cluster, &restore).await.must_succeed().unwrap();
            let (rows, columns) = shown(&out);
            assert_eq!(columns, moment.columns, "moment {nth} at {at}");
            assert!(
                rows == moment.rows,
                "moment {nth} at {at}: {rows} is not {}",
                moment.rows
            );
            images.insert(restored.json().unwrap()["image"].to_string());
            std::fs::remove_file(&out).unwrap();
        }
    }
    // How many there are of use depends on how far the archive was when they were made.
    assert!(images.len() >= 2, "{images:?}");
    damage_is_named(&cluster, &out).await;
}

/// By the look through the archive, and by a restore that would need what is damaged.
async fn damage_is_named(cluster: &Cluster, out: &Path) {
    let whole = backup(cluster, &["verify", "--deep", "--json"]).await;
    let whole = whole.must_succeed().unwrap();
    assert_eq!(whole.json().unwrap()["ok"], true, "{}", whole.stdout);
    let log = std::fs::read_dir(cluster.log_dir().unwrap()).unwrap();
    let log = log.map(|entry| entry.unwrap().path());
    let last = log.filter(|it| it.extension().is_some()).max().unwrap();
    let mut bytes = std::fs::read(&last).unwrap();
    bytes[100] ^= 1;
    std::fs::write(&last, bytes).unwrap();
    let name = last.file_name().unwrap().to_str().unwrap();
    let verified = backup(cluster, &["verify", "--deep"]).await;
    assert_eq!(verified.status.code(), Some(1));
    assert!(verified.stdout.contains(name), "{}", verified.stdout);
    let file = out.display().to_string();
    let refused = backup(cluster, &["restore", "--out", &file]).await;
    assert_eq!(refused.status.code(), Some(1), "{}", refused.stderr);
    assert!(refused.stderr.contains(name), "{}", refused.stderr);
    assert!(!out.exists());
}
