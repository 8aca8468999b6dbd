//! A backfill of a big table holds nobody up: the delay of all other tables stays within twice that beside a plain copy
//! of the same table. It measures delays, so it is an executable of its own: cargo runs it before the other drills.
//!
//! `RINDLE_FULL` makes the tables ten times as long.

#![allow(clippy::unwrap_used)]

use std::{
    path::Path,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use rindle_drills::{
    beat::{Watcher, Writer},
    cluster::Cluster,
    postgres::{Server, Session},
    wait,
};
use rusqlite::{Connection, OpenFlags};

const READY_WITHIN: Duration = Duration::from_secs(180);
const BACKFILLED_WITHIN: Duration = Duration::from_secs(900);
const EVERY: Duration = Duration::from_micros(3333);
/// How fast the plain copy of the control window is read; the same as a backfill may.
const COPY_BYTES_PER_SECOND: f64 = (16 << 20) as f64;
const CONTROL: Duration = Duration::from_secs(15);
/// The acknowledged position must move at least so often.
const STANDS_STILL_AT_MOST: Duration = Duration::from_secs(5);
/// On a machine with two cores a whole round can be spoilt by a neighbour; a backfill that holds others up does in each.
const ROUNDS: usize = 3;

fn rows() -> u64 {
    if is_long() { 5_000_000 } else { 500_000 }
}

#[expect(
    clippy::disallowed_methods,
    reason = "another process is watched, by a thread"
)]
fn pause(time: Duration) {
    std::thread::sleep(time);
}

fn stock(db: &Path) -> Connection {
    Connection::open_with_flags(db, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap()
}

/// Something that is done over and over beside the drill until it is finished.
struct Beside<T> {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<T>,
}

impl<T: Send + 'static> Beside<T> {
    fn start(work: impl FnOnce(&AtomicBool) -> T + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || work(&stopped));
        Self { stop, thread }
    }

    fn finish(self) -> T {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

/// psql copies the table over and over, and is read no faster than so many bytes a second.
fn plain_copies(port: u16) -> Beside<()> {
    Beside::start(move |stop| {
        while !stop.load(Ordering::Relaxed) {
            let port = port.to_string();
            let mut psql = Command::new("psql")
                .args(["-X", "-q", "-h", "127.0.0.1", "-U", "postgres", "-p", &port])
                .args(["-d", "postgres", "-c", "copy big to stdout"])
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut out = psql.stdout.take().unwrap();
            let (began, mut bytes, mut buffer) = (Instant::now(), 0, vec![0; 64 << 10]);
            while !stop.load(Ordering::Relaxed) {
                let read = std::io::Read::read(&mut out, &mut buffer).unwrap();
                if read == 0 {
                    break;
                }
                bytes += read;
                let due = Duration::from_secs_f64(bytes as f64 / COPY_BYTES_PER_SECOND);
                pause(due.saturating_sub(began.elapsed()));
            }
            drop(out);
            psql.kill().unwrap();
            psql.wait().unwrap();
        }
    })
}

/// The longest time in which the acknowledged position did not move.
async fn longest_stand(session: Session, slot: String, stop: Arc<AtomicBool>) -> Duration {
    let look = format!(
        "select confirmed_flush_lsn::text from pg_replication_slots where slot_name = '{slot}'"
    );
    let (mut last, mut since, mut longest) = (String::new(), Instant::now(), Duration::ZERO);
    while !stop.load(Ordering::Relaxed) {
        let now = session.text(&look).await.unwrap();
        if now != last {
            (last, since) = (now, Instant::now());
        }
        longest = longest.max(since.elapsed());
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    longest
}

struct Drill {
    server: Server,
    cluster: Cluster,
    writer: Writer,
    watcher: Watcher,
}

/// What a window showed.
struct Window {
    p99: Duration,
    most: Duration,
    /// When the row with the longest delay was committed, since the window began.
    worst_at: Duration,
    took: Duration,
    /// CPU seconds of the gateway and the follower.
    cpu: [f64; 2],
}

impl Window {
    fn told(self, what: &str) -> Self {
        let Self {
            p99,
            most,
            worst_at,
            took,
            cpu: [gateway, follower],
        } = &self;
        println!(
            "{what}: p99 {p99:?}, most {most:?} at {worst_at:?}, in {took:?}; CPU s: gateway {gateway:.1}, follower {follower:.1}"
        );
        self
    }
}

/// The 99th of 100 delays in a control window, and in one of ours.
#[derive(Debug)]
struct Pair(Duration, Duration);

impl Pair {
    fn is_near(&self) -> bool {
        self.1 <= self.0 * 2 + SLACK
    }
}

/// What one look and one turn of the scheduler may add.
const SLACK: Duration = Duration::from_millis(2);

fn is_long() -> bool {
    std::env::var_os("RINDLE_FULL").is_some()
}

impl Drill {
    async fn start() -> Self {
        let server = Server::start().await.unwrap();
        let mut cluster = Cluster::new(&server, "postgres", "backfill").await.unwrap();
        let rows = rows();
        let setup = format!(
            "create table beat(n bigint primary key, pad text);
             create table other(id bigint primary key, n bigint);
             create table big(id bigint primary key, body text, at timestamptz default now());
             insert into big select n, md5(n::text) || md5((n + 1)::text) from generate_series(1, {rows}) n;
             vacuum analyze big"
        );
        for statement in setup.split(';') {
            cluster.session.run(statement).await.unwrap();
        }
        let tables = ["public.beat", "public.other", "public.big"];
        cluster.prepare(&tables).await.unwrap();
        cluster.mint().await.unwrap();
        cluster.start_gateway().await.unwrap();
        let follower = cluster.add_follower().await.unwrap();
        let follower = cluster.follower(follower).unwrap();
        follower.until_ready(READY_WITHIN).await.unwrap();
        let write = |n: u64| {
            let other = n % 100;
            format!(
                "begin; insert into beat values ({n}, repeat('b', 100)); \
                 insert into other values ({other}, {n}) on conflict (id) do update set n = {n}; commit"
            )
        };
        let writer = Writer::start(server.session("postgres").await.unwrap(), EVERY, write);
        Self {
            watcher: Watcher::start(&cluster.mirror(0)).unwrap(),
            server,
            cluster,
            writer,
        }
    }

    /// CPU seconds so far.
    fn cpu(&mut self) -> [f64; 2] {
        let follower = self.cluster.follower(0).unwrap().pid();
        let gateway = self.cluster.gateway().unwrap().pid();
        [gateway, follower].map(|pid| {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.unwrap())).unwrap();
            let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split(' ').collect();
            let ticks = |at: usize| fields[at].parse::<f64>().unwrap();
            (ticks(12) + ticks(13)) / 100.0
        })
    }

    /// The delays of what is committed while `work` runs.
    async fn window(&mut self, work: impl AsyncFnOnce(&mut Cluster)) -> Window {
        let before = self.cpu();
        let from = Instant::now();
        work(&mut self.cluster).await;
        let to = Instant::now();
        let after = self.cpu();
        let committed = self.writer.committed();
        let all = async || Ok(self.watcher.seen().len() >= committed.len());
        wait::until_true("every row of the window to be seen", READY_WITHIN, all)
            .await
            .unwrap();
        let seen = self.watcher.seen();
        let mut delays: Vec<(Duration, Duration)> = (committed.iter().zip(&seen))
            .filter(|(committed, _)| (from..to).contains(*committed))
            .map(|(committed, seen)| {
                (
                    seen.saturating_duration_since(*committed),
                    *committed - from,
                )
            })
            .collect();
        delays.sort_unstable();
        assert!(delays.len() > 500, "only {} delays", delays.len());
        Window {
            p99: delays[delays.len() * 99 / 100].0,
            most: delays[delays.len() - 1].0,
            worst_at: delays[delays.len() - 1].1,
            took: to - from,
            cpu: [after[0] - before[0], after[1] - before[1]],
        }
    }

    /// As [`Drill::window`], and the acknowledged position moves meanwhile.
    async fn moving_window(&mut self, work: impl AsyncFnOnce(&mut Cluster)) -> Window {
        let stop = Arc::new(AtomicBool::new(false));
        let session = self.server.session("postgres").await.unwrap();
        let slot = "select slot_name from pg_replication_slots where not temporary";
        let slot = self.cluster.session.text(slot).await.unwrap();
        let standing = tokio::spawn(longest_stand(session, slot, Arc::clone(&stop)));
        let window = self.window(work).await;
        stop.store(true, Ordering::Relaxed);
        let longest = standing.await.unwrap();
        assert!(
            longest < STANDS_STILL_AT_MOST,
            "the acknowledged position stood still for {longest:?}"
        );
        window
    }

    /// Windows, each with the one that it is held against.
    async fn round(&mut self, round: usize) -> [Pair; 3] {
        // A table that nobody publishes: what Postgres itself takes.
        let make = |name: &str| {
            format!("create table {name} as table big; alter table {name} add primary key (id)")
        };
        let column = format!("add u{round} uuid not null default gen_random_uuid()");
        self.cluster
            .session
            .run(&make(&format!("alone{round}")))
            .await
            .unwrap();
        self.cluster
            .session
            .run(&make(&format!("more{round}")))
            .await
            .unwrap();
        Self::level(&mut self.cluster).await;
        let alone = self
            .migrate(format!("alter table alone{round} {column}"))
            .await;
        let alone = alone.told("a table that is not published is rewritten");
        let copies = plain_copies(self.server.port());
        let control = self
            .window(async |_| tokio::time::sleep(CONTROL).await)
            .await;
        let control = control.told("beside a plain copy");
        copies.finish();
        let rewritten = self.migrate(format!("alter table big {column}")).await;
        let rewritten = rewritten.told("one that is published is rewritten");
        let whole = format!("select count(*), count(u{round}) from big");
        let column = self.backfill(None, whole).await;
        let column = column.told("its backfill");
        let publication = &self.cluster.publication;
        let publish = format!("alter publication {publication} add table more{round}");
        let whole = format!("select count(*), count(body) from more{round}");
        let table = self.backfill(Some(publish), whole).await;
        let table = table.told("a table is published");
        [
            Pair(alone.p99, rewritten.p99),
            Pair(control.p99, column.p99),
            Pair(control.p99, table.p99),
        ]
    }

    /// Waits until the mirror has all that was committed so far.
    async fn level(cluster: &mut Cluster) {
        let mark = cluster.mark().await.unwrap();
        cluster.until_marked(0, mark, READY_WITHIN).await.unwrap();
    }

    /// A change of a whole table, until the stream is past it: Postgres decodes all rows of a rewrite, to send none.
    async fn migrate(&mut self, change: String) -> Window {
        let window = self.window(async move |cluster| {
            cluster.session.run(&change).await.unwrap();
            Self::level(cluster).await;
        });
        window.await
    }

    /// Until a mirror shows all that a statement counts, and nothing of it before.
    async fn backfill(&mut self, change: Option<String>, whole: String) -> Window {
        self.moving_window(async move |cluster| {
            if let Some(change) = change {
                cluster.session.run(&change).await.unwrap();
            }
            until_whole(&cluster.mirror(0), &whole).await;
        })
        .await
    }
}

/// Waits until the statement gives something, and what it gives first must be all.
async fn until_whole(db: &Path, sql: &str) {
    let sqlite = stock(db);
    let counts = wait::until("the mirror to show it", BACKFILLED_WITHIN, async || {
        let Ok(mut select) = sqlite.prepare(sql) else {
            return Ok(None);
        };
        let counts = select.query_row([], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?)));
        Ok(Some(counts?))
    })
    .await
    .unwrap();
    let all = rows().cast_signed();
    assert_eq!(counts, (all, all), "it was shown before it was whole");
}

#[tokio::test]
async fn a4_backfill_of_a_big_table_holds_nobody_up() {
    let mut drill = Drill::start().await;
    let mut rounds = Vec::new();
    for round in 0..if is_long() { ROUNDS } else { 1 } {
        let found = drill.round(round).await;
        let is_ok = found.iter().all(Pair::is_near);
        rounds.push(found);
        if is_ok {
            break;
        }
    }
    let Drill {
        mut cluster,
        writer,
        watcher,
        ..
    } = drill;
    writer.finish().await.unwrap();
    watcher.finish().unwrap();
    cluster.must_be_equal(0).await.unwrap();
    // Each by itself: what a neighbour of the machine spoils in one round it need not spoil in another.
    for at in 0..rounds[0].len() {
        let near = rounds.iter().any(|round| round[at].is_near());
        // Where the disk is busy with others' writes, what has to be read of the replaced table waits for it. The short form
        // prints, and holds to what must never be: rows that are not equal, a position that stands still, a part that shows.
        assert!(near || !is_long(), "{rounds:?}");
        println!("pair {at}: {}", if near { "near" } else { "MISSED" });
    }
}
