//! Random schema changes among random writes: statements for several sessions whose transactions interleave.
//!
//! One task drives all sessions, so a seed gives the same statements in the same order. Each statement is made from what
//! its session sees. What Postgres refuses (a lock that another session has, a value of a type that just changed) is part
//! of the drill; what no mirror follows (another row key, no identity) is never asked for.

mod changes;
mod rows;
mod state;

use std::time::Duration;

use anyhow::{Result, bail};

pub use self::state::State;
use crate::{
    postgres::{Server, Session},
    rng::Rng,
};

/// Tables and types that are there before the first copy.
pub const SETUP: &str = "
    create schema other;
    create type public.mood as enum ('low', 'mid', 'high');
    create type public.pair as (a int, b int);
    create domain public.small as int default 3 check (value < 1000000);
    create table public.t_one(id bigint primary key, a text, b int, m mood, p pair);
    create table public.t_two(id bigint primary key, v varchar(60), n numeric(20,2), ts timestamp, big text);
    create table other.t_three(id int primary key, s small, j jsonb, hist mood[]);
    create table public.t_four(id bigint primary key, v text);
    create table public.parted(id int, k int, v text, m mood, primary key (id, k)) partition by list (k);
    create table public.parted_1 partition of parted for values in (1);
    create table public.parted_2 partition of parted for values in (2);
    create table public.parted_3 partition of parted for values in (3);
    alter table public.t_two alter big set storage external;
    insert into t_one select n, 'a' || n, n, 'low', row(n, n)::pair from generate_series(1, 200) n;
    insert into t_two select n, 'v' || n, n / 7.0, timestamp '2024-01-01', repeat(md5(n::text), 100) from generate_series(1, 60) n;
    insert into other.t_three select n, n, jsonb '{\"a\": 1}', '{low,mid}'::mood[] from generate_series(1, 100) n;
    insert into t_four select n, 'v' || n from generate_series(1, 100) n;
    insert into parted select n, 1 + n % 3, 'v' || n, mood 'mid' from generate_series(1, 150) n";

/// What of it is published from the start.
pub const TABLES: [&str; 4] = [
    "public.t_one",
    "public.t_two",
    "other.t_three",
    "public.parted",
];

/// Nobody but us can let a lock go, so waiting longer than a backfill or a vacuum takes helps nobody.
const LOCK_TIMEOUT: &str = "set lock_timeout = '150ms'; set timezone = 'UTC'";

/// How a session stands.
struct Writer {
    session: Session,
    open: bool,
    savepoints: usize,
}

/// The sessions, and what they did.
pub struct Writers {
    rng: Rng,
    publication: String,
    writers: Vec<Writer>,
    /// For names that nobody has yet.
    names: u64,
    /// Everything that was said, with what came of it.
    pub said: Vec<String>,
    pub refused: usize,
}

impl Writers {
    pub async fn start(
        server: &Server,
        database: &str,
        publication: &str,
        rng: Rng,
    ) -> Result<Self> {
        let mut writers = Vec::new();
        for _ in 0..3 {
            let session = server.session(database).await?;
            session.run(LOCK_TIMEOUT).await?;
            writers.push(Writer {
                session,
                open: false,
                savepoints: 0,
            });
        }
        Ok(Self {
            rng,
            publication: publication.to_owned(),
            writers,
            names: 0,
            said: Vec::new(),
            refused: 0,
        })
    }

    /// One statement of one session, or a few that belong together.
    pub async fn step(&mut self) -> Result<()> {
        let at = self.rng.below(self.writers.len() as u64) as usize;
        if !self.writers[at].open {
            // A third is done outside of transactions.
            if self.rng.one_in(3) {
                let made = self.make(at).await;
                return self.say(at, &made).await.map(drop);
            }
            let level = match self.rng.below(8) {
                0 => " isolation level repeatable read",
                1 => " isolation level serializable",
                _ => "",
            };
            self.writers[at].open = true;
            self.writers[at].savepoints = 0;
            return self.say(at, &[format!("begin{level}")]).await.map(drop);
        }
        match self.rng.below(16) {
            0..=3 => self.end(at, "commit").await,
            4 if self.rng.one_in(2) => self.end(at, "rollback").await,
            5 | 6 => {
                let sql = self.savepoint(at);
                self.say(at, &[sql]).await.map(drop)
            }
            _ => self.guarded(at).await,
        }
    }

    /// Ends every transaction.
    pub async fn finish(&mut self) -> Result<()> {
        for at in 0..self.writers.len() {
            if self.writers[at].open {
                self.end(at, "commit").await?;
            }
        }
        Ok(())
    }

    async fn end(&mut self, at: usize, how: &str) -> Result<()> {
        self.writers[at].open = false;
        let done = self.say(at, &[how.to_owned()]).await?;
        if !done {
            self.say(at, &["rollback".to_owned()]).await?;
        }
        Ok(())
    }

    fn savepoint(&mut self, at: usize) -> String {
        let writer = &mut self.writers[at];
        let depth = writer.savepoints;
        if depth == 0 || self.rng.one_in(2) {
            writer.savepoints += 1;
            return format!("savepoint s{depth}");
        }
        let back = self.rng.below(depth as u64) as usize;
        writer.savepoints = back;
        match self.rng.one_in(2) {
            true => format!("release s{back}"),
            false => format!("rollback to s{back}; release s{back}"),
        }
    }

    /// Statements of an open transaction; one that is refused is taken back, so that the transaction can go on.
    async fn guarded(&mut self, at: usize) -> Result<()> {
        self.say(at, &["savepoint guard".to_owned()]).await?;
        let made = self.make(at).await;
        let after = match !made.is_empty() && self.say(at, &made).await? {
            true => "release guard",
            false => "rollback to guard; release guard",
        };
        if self.say(at, &[after.to_owned()]).await? {
            return Ok(());
        }
        // A serializable transaction may be lost as a whole.
        self.end(at, "rollback").await
    }

    /// What to say next; nothing where another session holds what this one would have to look at.
    async fn make(&mut self, at: usize) -> Vec<String> {
        let read = State::read(&self.writers[at].session, &self.publication).await;
        let state = match read {
            Ok(state) => state,
            Err(error) => {
                self.said
                    .push(format!("-- {at} sees nothing: {}", error.root_cause()));
                return Vec::new();
            }
        };
        self.names += 1;
        let mut maker = Maker {
            rng: &mut self.rng,
            state: &state,
            publication: &self.publication,
            alone: !self.writers[at].open,
            number: self.names,
        };
        maker.statements()
    }

    /// Runs statements until one is refused; true when none was.
    async fn say(&mut self, at: usize, statements: &[String]) -> Result<bool> {
        for sql in statements {
            let begun = self.said.len();
            self.said.push(format!("{at}: {sql};"));
            let run = tokio::time::timeout(
                Duration::from_secs(30),
                self.writers[at].session.client().batch_execute(sql),
            );
            let Ok(run) = run.await else {
                bail!("session {at} waits for 30 s: {sql}");
            };
            let Err(error) = run else { continue };
            let Some(refusal) = error.as_db_error() else {
                bail!("session {at}: {sql}: {error:?}");
            };
            let inside = refusal.where_().unwrap_or_default();
            if inside.contains("rindle") || refusal.message().contains("rindle.") {
                bail!(
                    "our capture refused a statement of session {at}: {sql}: {refusal}: {inside}"
                );
            }
            self.refused += 1;
            self.said[begun].push_str(&format!(" -- {}", refusal.message()));
            return Ok(false);
        }
        Ok(true)
    }
}

/// Makes the statements of one step.
struct Maker<'a> {
    rng: &'a mut Rng,
    state: &'a State,
    publication: &'a str,
    /// Outside of a transaction.
    alone: bool,
    /// Of the step: part of names that nobody has yet.
    number: u64,
}

impl Maker<'_> {
    fn statements(&mut self) -> Vec<String> {
        for _ in 0..20 {
            let made = match self.rng.below(5) {
                0..=1 => self.change(),
                _ => self.write(),
            };
            if let Some(made) = made {
                return made;
            }
        }
        vec!["select 1".to_owned()]
    }

    fn name(&self, what: &str) -> String {
        format!("{what}_{}", self.number)
    }
}
