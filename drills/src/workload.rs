//! Seeded writes as an application makes them: transactions of several tables, savepoints and rollbacks, key changes,
//! values too large for their row, now and then a TRUNCATE. What they leave is whatever Postgres says it is.

use std::time::Duration;

use anyhow::{Context, Result};
use tokio::{sync::watch, task::JoinSet};

use crate::{
    postgres::{Server, Session},
    rng::Rng,
};

/// Tables with each kind of row key and replica identity.
pub const SCHEMA: &str = "
create table item(id bigint primary key, grp int, note text, body text, amount numeric(12,2), tags text[]);
alter table item alter body set storage external;
create table pair(a text, b int, v jsonb, at timestamptz, primary key (a, b));
create table whole(id int primary key, x float8, big text);
alter table whole replica identity full;
alter table whole alter big set storage external;
create table chosen(code text not null, n int not null, t text);
create unique index chosen_key on chosen(code, n);
alter table chosen replica identity using index chosen_key;
create table wiped(id int primary key, v text);
";

/// The names of [`SCHEMA`]'s tables, as `prepare` takes them.
pub const TABLES: [&str; 5] = [
    "public.item",
    "public.pair",
    "public.whole",
    "public.chosen",
    "public.wiped",
];

/// Keys are drawn from this many, so that updates and deletes meet rows.
const KEYS: u64 = 400;

/// What a writer did.
#[derive(Debug, Default, Clone, Copy)]
pub struct Done {
    pub committed: u64,
    pub rolled_back: u64,
    /// Transactions that Postgres refused (two writers met).
    pub failed: u64,
    pub statements: u64,
}

/// One writer: its statements depend on its seed alone.
#[derive(Debug)]
pub struct Writer {
    rng: Rng,
    truncates: bool,
    pub done: Done,
}

impl Writer {
    pub fn new(rng: Rng) -> Self {
        Self {
            rng,
            truncates: true,
            done: Done::default(),
        }
    }

    /// One transaction of one to eight steps, committed most of the time.
    pub async fn transact(&mut self, session: &Session) -> Result<()> {
        let mut sql = String::from("begin;");
        let mut open_savepoints = 0;
        for step in 0..=self.rng.below(8) {
            match self.rng.below(12) {
                0 => {
                    sql.push_str(&format!("savepoint s{step};"));
                    open_savepoints += 1;
                }
                1 if open_savepoints > 0 => {
                    // The newest savepoint of that name; it stays, so more steps may be undone to it.
                    let name = sql.rfind("savepoint s").map_or("", |at| {
                        sql[at + "savepoint ".len()..]
                            .split(';')
                            .next()
                            .unwrap_or_default()
                    });
                    sql.push_str(&format!("rollback to {};", name.to_owned()));
                }
                _ => {
                    sql.push_str(&self.statement());
                    self.done.statements += 1;
                }
            }
        }
        let commits = !self.rng.one_in(8);
        sql.push_str(if commits { "commit" } else { "rollback" });
        match session.run(&sql).await {
            Ok(()) if commits => self.done.committed += 1,
            Ok(()) => self.done.rolled_back += 1,
            Err(err) => {
                // A connection that is gone is an error; a transaction that met another writer's is not.
                session
                    .run("rollback")
                    .await
                    .with_context(|| format!("{err:#}"))?;
                self.done.failed += 1;
            }
        }
        Ok(())
    }

    fn statement(&mut self) -> String {
        let (key, other) = (self.rng.below(KEYS), self.rng.below(KEYS));
        let rng = &mut self.rng;
        match rng.below(20) {
            0..=4 => {
                let body = large(rng);
                let (grp, cents, word) = (rng.below(9), rng.between(-99_999, 99_999), rng.hex(6));
                format!(
                    "insert into item values ({key}, {grp}, '{word}', {body}, {cents} / 100.0, '{{{word},NULL}}')
                     on conflict (id) do update set note = excluded.note, amount = excluded.amount;"
                )
            }
            5..=7 => format!("update item set amount = amount + 1, note = note || '+' where id = {key};"),
            8 => format!("update item set body = {} where grp = {};", large(rng), rng.below(9)),
            9 => format!(
                "update item set id = {other} where id = {key}
                 and not exists (select from item where id = {other});"
            ),
            10 => format!("delete from item where id = {key};"),
            11..=12 => format!(
                "insert into pair values ('{}', {}, '{{\"k\": {key}}}', 'epoch'::timestamptz + {other} * interval '1 min')
                 on conflict (a, b) do update set v = excluded.v, b = excluded.b;",
                key % 20,
                other % 20
            ),
            13 => format!("update pair set a = a || 'x' where a = '{}' and length(a) < 9;", key % 20),
            14 => format!("delete from pair where b = {};", key % 20),
            15 => format!(
                "insert into whole values ({key}, {key} / 7.0, {}) on conflict (id) do update set x = whole.x + 1;",
                large(rng)
            ),
            16 => format!("update whole set x = -x where id between {key} and {key} + 3;"),
            17 => format!(
                "insert into chosen values ('{}', {}, 't') on conflict (code, n) do update set t = 'u' || {other};",
                key % 30,
                other % 30
            ),
            18 => format!(
                "delete from chosen where code = '{}' and n < 9; delete from whole where id = {key};",
                key % 30
            ),
            _ if self.truncates && rng.one_in(6) => "truncate wiped, chosen;".to_owned(),
            _ => format!("insert into wiped values ({key}, '{other}') on conflict (id) do nothing;"),
        }
    }
}

/// Half of the values are small; the others do not compress and are stored outside their row.
fn large(rng: &mut Rng) -> String {
    match rng.below(6) {
        0 => "null".to_owned(),
        1..=3 => format!("'{}'", rng.hex(20)),
        _ => {
            let digits = 2500 + rng.below(6000) as usize;
            format!("'{}'", rng.hex(digits))
        }
    }
}

/// Writers that go on until they are told to stop.
#[derive(Debug)]
pub struct Load {
    stop: watch::Sender<bool>,
    writers: JoinSet<Result<Done>>,
}

impl Load {
    /// Starts `writers` sessions that write with `pause` between transactions.
    pub async fn start(
        server: &Server,
        database: &str,
        writers: usize,
        pause: Duration,
        rng: &mut Rng,
    ) -> Result<Self> {
        let writers = (0..writers).map(|_| Writer::new(rng.fork())).collect();
        Self::of(server, database, writers, pause).await
    }

    /// As [`Load::start`], for a first copy: a TRUNCATE voids an attempt, and one that comes more often than a copy
    /// lasts would keep it from ever ending.
    pub async fn beside_a_copy(
        server: &Server,
        database: &str,
        writers: usize,
        pause: Duration,
        rng: &mut Rng,
    ) -> Result<Self> {
        let writer = |_| Writer {
            truncates: false,
            ..Writer::new(rng.fork())
        };
        let writers = (0..writers).map(writer).collect();
        Self::of(server, database, writers, pause).await
    }

    async fn of(
        server: &Server,
        database: &str,
        writers: Vec<Writer>,
        pause: Duration,
    ) -> Result<Self> {
        let (stop, stopped) = watch::channel(false);
        let mut tasks = JoinSet::new();
        for mut writer in writers {
            let session = server.session(database).await?;
            let stopped = stopped.clone();
            tasks.spawn(async move {
                while !*stopped.borrow() {
                    writer.transact(&session).await?;
                    tokio::time::sleep(pause).await;
                }
                Ok(writer.done)
            });
        }
        Ok(Self {
            stop,
            writers: tasks,
        })
    }

    /// Waits for the transactions in hand, and adds up.
    pub async fn finish(mut self) -> Result<Done> {
        self.stop.send(true)?;
        let mut all = Done::default();
        while let Some(done) = self.writers.join_next().await {
            let done = done??;
            all.committed += done.committed;
            all.rolled_back += done.rolled_back;
            all.failed += done.failed;
            all.statements += done.statements;
        }
        Ok(all)
    }
}
