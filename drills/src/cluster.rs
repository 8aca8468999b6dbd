//! A source with everything behind it: Postgres, an archive folder, a gateway, followers, a producer. The files that the
//! programs are configured with are written here, as a user would write them.
//!
//! A marker table is published with the tables of a drill. Its newest row in a mirror says that everything committed
//! before it must be there too, so that comparing needs no second try.

mod store;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use rindle_archive::bucket_server::{BucketServer, Manners};
use rusqlite::{Connection, OpenFlags};
use serde_json::{Value, json};

use crate::{
    http,
    oracle::{self, Report},
    ports::free_port,
    postgres::{Server, Session, quote_name},
    program::{self, Outcome, Program, Start, read_log},
    run_dir::RunDir,
    wait,
    watch::{self, Watch},
};

/// Published with every drill's tables; holds the drill's marks.
pub const MARKER: &str = "drill_marker";

/// Long enough for a first copy on a busy machine.
pub const CATCHES_UP_WITHIN: Duration = Duration::from_secs(90);
const COMMAND_WITHIN: Duration = Duration::from_secs(120);

/// One source and its programs; everything ends with the value.
#[derive(Debug)]
pub struct Cluster {
    pub dir: RunDir,
    pub source: String,
    pub database: String,
    pub publication: String,
    /// Who `rindle pg` is towards Postgres.
    pub pg_user: String,
    /// A session for the drill's own SQL, with pinned settings.
    pub session: Session,
    pub gateway: Option<Program>,
    pub followers: Vec<Follower>,
    /// Keys that replace or join those of gateway.json; `null` takes one out.
    pub gateway_config: Value,
    /// The same for rindled.json.
    pub follower_config: Value,
    /// The archive lies in this bucket, and not in a folder.
    pub bucket: Option<BucketServer>,
    pg_port: u16,
    grpc_port: u16,
    http_port: u16,
    other_ports: (u16, u16),
    marks: i64,
    announced: Vec<String>,
}

#[derive(Debug)]
pub struct Follower {
    pub db: PathBuf,
    pub program: Option<Program>,
    start: Start,
}

impl Follower {
    /// How often it took an image, by its log.
    pub fn restored(&self) -> usize {
        let log = self.program.as_ref().map(Program::log);
        let log = log.unwrap_or_default();
        log.lines()
            .filter(|line| line.contains("rindle_follower::bootstrap: restored image="))
            .count()
    }
}

impl Cluster {
    /// A source in a database that exists. Nothing of ours runs yet. Its archive is a folder, or a bucket where
    /// `RINDLE_DRILL_STORE` is `bucket`.
    pub async fn new(server: &Server, database: &str, source: &str) -> Result<Self> {
        if std::env::var("RINDLE_DRILL_STORE").is_ok_and(|it| it == "bucket") {
            return Self::in_bucket(server, database, source, Manners::Careful).await;
        }
        Self::with_archive(server, database, source, None).await
    }

    /// The same, with the archive in a bucket.
    pub async fn in_bucket(
        server: &Server,
        database: &str,
        source: &str,
        manners: Manners,
    ) -> Result<Self> {
        let bucket = BucketServer::start(manners)?;
        Self::with_archive(server, database, source, Some(bucket)).await
    }

    async fn with_archive(
        server: &Server,
        database: &str,
        source: &str,
        bucket: Option<BucketServer>,
    ) -> Result<Self> {
        let dir = RunDir::new(source)?;
        std::fs::create_dir(dir.join("archive"))?;
        Ok(Self {
            source: source.to_owned(),
            database: database.to_owned(),
            publication: format!("rindle_{source}"),
            pg_user: "postgres".to_owned(),
            session: server.session(database).await?,
            gateway: None,
            followers: Vec::new(),
            gateway_config: json!({}),
            follower_config: json!({}),
            bucket,
            pg_port: server.port(),
            grpc_port: free_port()?,
            http_port: free_port()?,
            other_ports: (free_port()?, free_port()?),
            marks: 0,
            announced: Vec::new(),
            dir,
        })
    }

    /// ERROR lines with these words belong to the drill; any other fails it when the value goes.
    pub fn announce(&mut self, words: &str) {
        self.announced.push(words.to_owned());
    }

    /// The mirror file of a follower.
    pub fn mirror(&self, number: usize) -> PathBuf {
        self.followers[number].db.clone()
    }

    /// The gateway's local log: a cache, which a lost host takes along.
    pub fn data_dir(&self) -> PathBuf {
        self.dir.join("gateway")
    }

    /// Starts a watcher of the slot and the archive.
    pub fn watch(&self) -> Watch {
        Watch::start(self.pg_port, &self.database, &self.source, &self.archive())
    }

    /// The log folder of the one generation.
    pub fn log_dir(&self) -> Result<PathBuf> {
        let generations = self.archive().join(&self.source).join("g");
        let first = std::fs::read_dir(&generations)?
            .next()
            .context("no generation yet")??;
        Ok(first.path().join("log"))
    }

    /// How far the archive goes, as a plain number.
    pub fn archived(&self) -> Result<u64> {
        watch::archived(&self.log_dir()?)?.context("the archive is out of reach")
    }

    /// Where the source's WAL is written to, as a plain number.
    pub async fn source_position(&self) -> Result<u64> {
        Ok(self
            .session
            .text("select pg_current_wal_lsn() - '0/0'::pg_lsn")
            .await?
            .parse()?)
    }

    /// Makes the marker table; an existing publication gets it as one more table, unless it has every table.
    pub async fn add_marker(&self, publication: Option<&str>) -> Result<()> {
        self.session
            .run(&format!(
                "create table if not exists {MARKER}(n bigint primary key)"
            ))
            .await?;
        let Some(publication) = publication else {
            return Ok(());
        };
        let has = format!(
            "select count(*) from pg_publication_tables where pubname = '{publication}' and tablename = '{MARKER}'"
        );
        if self.session.text(&has).await? == "0" {
            let publication = quote_name(publication);
            self.session
                .run(&format!(
                    "alter publication {publication} add table {MARKER}"
                ))
                .await?;
        }
        Ok(())
    }

    /// `rindle pg prepare` for these tables and the marker.
    pub async fn prepare(&self, tables: &[&str]) -> Result<Outcome> {
        self.add_marker(None).await?;
        let marker = format!("public.{MARKER}");
        let all = [tables, &[&*marker]].concat().join(",");
        self.pg("prepare", &["--tables", &all])
            .await?
            .must_succeed()
    }

    /// `rindle pg prepare` for a publication of the user's own: used as it is; schema changes are captured from now on.
    pub async fn prepare_as_it_is(&self) -> Result<Outcome> {
        self.pg("prepare", &["--publication", &self.publication])
            .await?
            .must_succeed()
    }

    /// `rindle pg mint`; the caller looks at how it ended.
    pub async fn try_mint(&self) -> Result<Outcome> {
        let store = self.store();
        let mut args: Vec<&str> = store.iter().map(String::as_str).collect();
        args.extend(["--publication", &self.publication]);
        self.pg("mint", &args).await
    }

    pub async fn mint(&self) -> Result<Outcome> {
        self.try_mint().await?.must_succeed()
    }

    /// Runs `rindle pg COMMAND` with the flags that all of them take.
    pub async fn pg(&self, command: &str, args: &[&str]) -> Result<Outcome> {
        let port = self.pg_port.to_string();
        let mut all = vec!["pg", command, "--pg-host", "127.0.0.1", "--pg-port", &port];
        all.extend(["--pg-user", &self.pg_user, "--pg-database", &self.database]);
        all.extend(["--pg-sslmode", "disable", "--source", &self.source]);
        all.extend(args);
        self.rindle(&all).await
    }

    /// Runs `rindle` to its end.
    pub async fn rindle(&self, args: &[&str]) -> Result<Outcome> {
        self.rindle_with(args, &[]).await
    }

    /// As [`Cluster::rindle`], with an environment.
    pub async fn rindle_with(&self, args: &[&str], env: &[(String, String)]) -> Result<Outcome> {
        let start = Start {
            name: "rindle".to_owned(),
            binary: "rindle",
            args: args.iter().map(|arg| (*arg).to_owned()).collect(),
            env: self.env(env),
        };
        program::run(&self.dir, &start, COMMAND_WITHIN).await
    }

    /// Starts the gateway, on the ports that it had before if it ran already.
    pub async fn start_gateway(&mut self) -> Result<()> {
        self.start_gateway_armed(&[]).await
    }

    /// As [`Cluster::start_gateway`], with the environment that makes it die at a failpoint.
    pub async fn start_gateway_armed(&mut self, env: &[(String, String)]) -> Result<()> {
        let ports = (self.grpc_port, self.http_port);
        let start = self.gateway_start("gateway", ports, env)?;
        self.gateway = Some(Program::start(&self.dir, &start).await?);
        Ok(())
    }

    /// From now on the log of the program of this name takes not one line: its disk is full.
    pub fn fill_log(&self, name: &str) -> Result<()> {
        let log = self.dir.join(&format!("{name}.log"));
        std::os::unix::fs::symlink("/dev/full", &log)?;
        let refused = std::fs::OpenOptions::new()
            .append(true)
            .open(&log)
            .and_then(|mut file| std::io::Write::write_all(&mut file, b"x"));
        ensure!(refused.is_err(), "{} takes lines", log.display());
        Ok(())
    }

    /// A second gateway of the same generation, with folder and ports of its own; and its gRPC port.
    pub async fn start_other_gateway(&mut self) -> Result<(Program, u16)> {
        let start = self.gateway_start("other", self.other_ports, &[])?;
        Ok((Program::start(&self.dir, &start).await?, self.other_ports.0))
    }

    /// Where a second gateway listens once it is started.
    pub fn other_grpc_port(&self) -> u16 {
        self.other_ports.0
    }

    fn gateway_start(
        &self,
        name: &str,
        (grpc_port, http_port): (u16, u16),
        env: &[(String, String)],
    ) -> Result<Start> {
        let mut config = json!({
            "name": self.source,
            "dataDir": self.dir.join(name),
            "grpcPort": grpc_port,
            "httpPort": http_port,
            "postgres": {
                "host": "127.0.0.1", "port": self.pg_port, "user": "postgres",
                "database": self.database, "sslMode": "disable",
            },
            "backup": self.backup(),
        });
        merge(&mut config, &self.gateway_config);
        let file = self.dir.join(&format!("{name}.json"));
        std::fs::write(&file, config.to_string())?;
        Ok(Start {
            name: name.to_owned(),
            binary: "rindle-pg-gateway",
            args: vec!["--config".to_owned(), file.display().to_string()],
            env: self.env(env),
        })
    }

    /// The gateway's `/status`.
    pub async fn gateway_status(&self) -> Result<Value> {
        let gateway = self
            .gateway
            .as_ref()
            .context("the gateway was not started")?;
        http::get(gateway.port("httpPort")?, "/status")
            .await?
            .json()
    }

    pub fn grpc_port(&self) -> u16 {
        self.grpc_port
    }

    pub fn gateway(&mut self) -> Result<&mut Program> {
        self.gateway.as_mut().context("the gateway was not started")
    }

    /// Starts a new follower that has only the archive, waits for it, and sees that an image was its start.
    pub async fn add_follower_from_image(&mut self) -> Result<usize> {
        let config = std::mem::replace(
            &mut self.follower_config,
            json!({"sources": [{"url": null}]}),
        );
        let added = self.add_follower().await;
        self.follower_config = config;
        let number = added?;
        self.follower(number)?
            .until_ready(CATCHES_UP_WITHIN)
            .await?;
        let restored = self.followers[number].restored();
        ensure!(
            restored == 1,
            "an image was restored {restored} times: {}",
            self.follower(number)?.log()
        );
        Ok(number)
    }

    /// Starts a new follower with an empty folder; gives its number.
    pub async fn add_follower(&mut self) -> Result<usize> {
        self.add_follower_armed(&[]).await
    }

    /// As [`Cluster::add_follower`], with an environment for its first start.
    pub async fn add_follower_armed(&mut self, env: &[(String, String)]) -> Result<usize> {
        let number = self.followers.len();
        let name = format!("follower-{number}");
        let folder = self.dir.join(&name);
        std::fs::create_dir(&folder)?;
        let db = folder.join("mirror.db");
        let mut config = json!({
            "db": db, "httpPort": 0, "wsPort": 0,
            "sources": [{
                "kind": "pg-gateway", "name": self.source,
                "url": format!("http://127.0.0.1:{}", self.grpc_port),
                "backup": self.backup(),
            }],
        });
        merge(&mut config, &self.follower_config);
        let file = folder.join("rindled.json");
        std::fs::write(&file, config.to_string())?;
        let args = vec!["--config".to_owned(), file.display().to_string()];
        let start = Start {
            name,
            binary: "rindled",
            args,
            env: Vec::new(),
        };
        self.followers.push(Follower {
            db,
            program: None,
            start,
        });
        self.start_follower_armed(number, env).await?;
        Ok(number)
    }

    /// Starts a follower again on the file that it has.
    pub async fn start_follower(&mut self, number: usize) -> Result<()> {
        self.start_follower_armed(number, &[]).await
    }

    /// As [`Cluster::start_follower`], with an environment for this start.
    pub async fn start_follower_armed(
        &mut self,
        number: usize,
        env: &[(String, String)],
    ) -> Result<()> {
        let mut start = self.followers[number].start.clone();
        start.env = self.env(env);
        let program = Program::start(&self.dir, &start).await?;
        self.followers[number].program = Some(program);
        Ok(())
    }

    pub fn follower(&mut self, number: usize) -> Result<&mut Program> {
        self.followers[number]
            .program
            .as_mut()
            .context("the follower was not started")
    }

    /// What the producer is started with; `spawn` it to kill it, or take [`Cluster::produce`].
    pub fn producer(&self) -> Start {
        let scratch = self.dir.join("scratch.db").display().to_string();
        let args = ["backup", "producer", "--source", &self.source, "--scratch"];
        let mut args: Vec<String> = args.map(str::to_owned).to_vec();
        args.push(scratch);
        args.extend(self.store());
        Start {
            name: "producer".to_owned(),
            binary: "rindle",
            args,
            env: self.env(&[]),
        }
    }

    /// One run of the producer.
    pub async fn produce(&self) -> Result<Outcome> {
        program::run(&self.dir, &self.producer(), COMMAND_WITHIN)
            .await?
            .must_succeed()
    }

    /// Commits a mark; whoever shows it has everything before it.
    pub async fn mark(&mut self) -> Result<i64> {
        self.marks += 1;
        self.session
            .run(&format!("insert into {MARKER} values ({})", self.marks))
            .await?;
        Ok(self.marks)
    }

    /// Waits until a follower's file shows a mark.
    pub async fn until_marked(&mut self, number: usize, mark: i64, limit: Duration) -> Result<()> {
        let db = self.followers[number].db.clone();
        let what = format!("mark {mark} in the mirror of follower {number}");
        let waited =
            wait::until_true(&what, limit, async || Ok(newest_mark(&db) >= Some(mark))).await;
        if let Err(err) = waited {
            return Err(err.context(self.state().await));
        }
        Ok(())
    }

    /// Marks, waits for one follower, compares. The source must be quiet.
    pub async fn must_be_equal(&mut self, number: usize) -> Result<Report> {
        let mark = self.mark().await?;
        self.until_marked(number, mark, CATCHES_UP_WITHIN).await?;
        self.compare(number).await
    }

    /// Compares without a mark, for a follower that is level by other proof.
    pub async fn compare(&self, number: usize) -> Result<Report> {
        let db = &self.followers[number].db;
        oracle::compare(&self.session, &self.publication, db)
            .await?
            .must_be_equal()
    }

    /// What each program says of itself, for the message of a failed wait.
    pub async fn state(&mut self) -> String {
        let mut words = String::new();
        let programs = self
            .gateway
            .iter()
            .chain(self.followers.iter().filter_map(|f| f.program.as_ref()));
        for (n, program) in programs.enumerate() {
            let answer = program
                .readyz()
                .await
                .map(|a| format!("{} {}", a.status, a.body));
            let log = program.log();
            let lines: Vec<&str> = log.lines().collect();
            let log = lines[lines.len().saturating_sub(15)..].join("\n    ");
            words.push_str(&format!("\n  program {n}: /readyz {answer:?}\n    {log}"));
        }
        words
    }
}

impl Drop for Cluster {
    /// An ERROR line that the drill did not announce fails it, and so does a panic of a program.
    fn drop(&mut self) {
        let found = unannounced(self.dir.path(), &self.announced);
        if !found.is_empty() && !std::thread::panicking() {
            panic!("errors that were not announced:\n{}", found.join("\n"));
        }
    }
}

/// ERROR lines and panics in the logs of a folder that hold none of the announced words.
fn unannounced(dir: &Path, announced: &[String]) -> Vec<String> {
    let mut found = Vec::new();
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    for path in entries.map(|entry| entry.path()) {
        if path.extension().is_none_or(|ext| ext != "log") {
            continue;
        }
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        for line in read_log(&path).lines() {
            let is_error = line.contains(" ERROR ") || line.contains("panicked at");
            if is_error && !announced.iter().any(|words| line.contains(words)) {
                found.push(format!("{name}: {line}"));
            }
        }
    }
    found
}

/// The newest mark in a mirror; `None` before the file or the table is there.
pub fn newest_mark(db: &Path) -> Option<i64> {
    let sqlite = Connection::open_with_flags(db, OpenFlags::SQLITE_OPEN_READ_ONLY).ok()?;
    sqlite.busy_timeout(Duration::from_secs(5)).ok()?;
    sqlite
        .query_row(&format!("select max(n) from {MARKER}"), [], |row| {
            row.get(0)
        })
        .ok()?
}

fn merge(into: &mut Value, from: &Value) {
    let (Some(target), Some(keys)) = (into.as_object_mut(), from.as_object()) else {
        return;
    };
    for (key, value) in keys {
        match (target.get_mut(key), value) {
            (_, Value::Null) => drop(target.remove(key)),
            (Some(old), Value::Object(_)) => merge(old, value),
            // Keys of the one source stand in a list.
            (Some(Value::Array(old)), Value::Array(new)) if old.len() == 1 && new.len() == 1 => {
                merge(&mut old[0], &new[0]);
            }
            (_, value) => drop(target.insert(key.clone(), value.clone())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_that_was_not_announced_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let log = "2026-01-01T00:00:00Z  INFO x: fine\n2026-01-01T00:00:00Z ERROR x: halted reason=Fenced: y\n";
        std::fs::write(dir.path().join("gateway.log"), log).unwrap();
        assert_eq!(unannounced(dir.path(), &[]).len(), 1);
        assert!(unannounced(dir.path(), &["Fenced".to_owned()]).is_empty());
        let log = "thread 'pump' panicked at gateway/src/x.rs:1:1:\n";
        std::fs::write(dir.path().join("other.log"), log).unwrap();
        assert_eq!(unannounced(dir.path(), &["Fenced".to_owned()]).len(), 1);
    }
}
