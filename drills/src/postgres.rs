//! Throw-away Postgres servers. A data folder is made once a version by initdb and copied for each server, which costs
//! a fraction of a second. Copies share their system identifier; a drill that needs another cluster asks for
//! [`Options::fresh`].
//!
//! The servers run as user `postgres` when the drill is root, on 127.0.0.1 and a free port, with `trust`.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use tokio_postgres::{Client, NoTls, SimpleQueryMessage, SimpleQueryRow};

use crate::{ports::free_port, run_dir::RunDir, wait};

/// What every connection that reads values must pin, so that text does not depend on database or role settings.
pub const PINNED: &str = "set datestyle = 'ISO, YMD'; set intervalstyle = 'postgres'; set timezone = 'UTC'; \
     set extra_float_digits = 3; set bytea_output = 'hex'; set client_encoding = 'UTF8'; set lc_monetary = 'C'; \
     set statement_timeout = 0; set lock_timeout = 0; set idle_in_transaction_session_timeout = 0";

const STARTS_WITHIN: Duration = Duration::from_secs(40);

/// How a server is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// Connections are ended, everything is written out.
    Fast,
    /// As a crash: the next start replays the WAL.
    Immediate,
}

#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Lines added to postgresql.conf.
    pub conf: Vec<String>,
    /// initdb anew, for a system identifier of its own.
    pub fresh: bool,
}

/// One server with a folder and a port of its own; it is killed and removed when the value goes.
#[derive(Debug)]
pub struct Server {
    version: u16,
    bin: PathBuf,
    dir: RunDir,
    port: u16,
}

impl Server {
    /// A server of the version that `RINDLE_PG_VERSION` names (15 when it is unset).
    pub async fn start() -> Result<Self> {
        Self::start_with(version_from_env(), Options::default()).await
    }

    pub async fn start_with(version: u16, options: Options) -> Result<Self> {
        let bin = binaries(version)?;
        let dir = RunDir::new(&format!("pg{version}"))?;
        give_to_postgres(dir.path())?;
        let data = dir.join("data");
        if options.fresh {
            initdb(&bin, &data)?;
        } else {
            let template = template(version, &bin)?;
            run_as_postgres(Command::new("cp").arg("-a").arg(template).arg(&data))?;
        }
        let server = Self {
            version,
            bin,
            dir,
            port: free_port()?,
        };
        server.write_conf(&options.conf)?;
        server.start_again().await?;
        Ok(server)
    }

    pub fn version(&self) -> u16 {
        self.version
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    /// Starts the stopped server on its old port.
    pub async fn start_again(&self) -> Result<()> {
        let data = self.dir.join("data");
        let before = self.log().len();
        let mut command = Command::new(self.bin.join("pg_ctl"));
        command
            .arg("-D")
            .arg(&data)
            .arg("-l")
            .arg(self.dir.join("log"))
            .args(["-W", "start"]);
        run_as_postgres(&mut command)?;
        wait::until("Postgres to answer", STARTS_WITHIN, async || {
            if let Ok(session) = self.session("postgres").await {
                session.text("select 1").await?;
                return Ok(Some(()));
            }
            ensure!(
                data.join("postmaster.pid").exists()
                    || !self
                        .log()
                        .get(before..)
                        .unwrap_or_default()
                        .contains("FATAL"),
                "Postgres did not start: {}",
                self.log()
            );
            Ok(None)
        })
        .await
    }

    pub fn stop(&self, how: Stop) -> Result<()> {
        let mode = match how {
            Stop::Fast => "fast",
            Stop::Immediate => "immediate",
        };
        let mut command = Command::new(self.bin.join("pg_ctl"));
        command
            .arg("-D")
            .arg(self.dir.join("data"))
            .args(["-m", mode, "-w", "stop"]);
        run_as_postgres(&mut command).map(drop)
    }

    /// Copies the stopped server's data.
    pub fn copy_aside(&self, name: &str) -> Result<()> {
        let (data, to) = (self.dir.join("data"), self.dir.join(name));
        run_as_postgres(Command::new("cp").arg("-a").arg(data).arg(to)).map(drop)
    }

    /// Moves the stopped server's data away.
    pub fn set_aside(&self, name: &str) -> Result<()> {
        let (data, to) = (self.dir.join("data"), self.dir.join(name));
        run_as_postgres(Command::new("mv").arg("-T").arg(data).arg(to)).map(drop)
    }

    /// Puts data of [`Server::copy_aside`], [`Server::set_aside`] or [`Server::base_backup`] in the stopped server's place.
    pub fn put_back(&self, name: &str) -> Result<()> {
        let (data, from) = (self.dir.join("data"), self.dir.join(name));
        run_as_postgres(Command::new("rm").arg("-rf").arg(&data))?;
        run_as_postgres(Command::new("mv").arg("-T").arg(from).arg(data)).map(drop)
    }

    /// A new cluster on the stopped server's port; its data must have been set aside.
    pub fn init_again(&self) -> Result<()> {
        initdb(&self.bin, &self.dir.join("data"))?;
        self.write_conf(&[])
    }

    /// Takes a base backup of the running server.
    pub fn base_backup(&self, name: &str) -> Result<()> {
        let mut command = Command::new(self.bin.join("pg_basebackup"));
        command.args([
            "-h",
            "127.0.0.1",
            "-U",
            "postgres",
            "-X",
            "stream",
            "-c",
            "fast",
        ]);
        command
            .args(["-p", &self.port.to_string(), "-D"])
            .arg(self.dir.join(name));
        run_as_postgres(&mut command).map(drop)
    }

    /// A standby that streams through a physical slot of this name, and keeps its logical slots, on a port of its own.
    pub async fn standby(&self, slot: &str, database: &str) -> Result<Server> {
        let admin = self.session("postgres").await?;
        admin
            .run(&format!(
                "select pg_create_physical_replication_slot('{slot}', true)"
            ))
            .await?;
        let dir = RunDir::new(&format!("pg{}-{slot}", self.version))?;
        give_to_postgres(dir.path())?;
        let data = dir.join("data");
        let from = format!(
            "host=127.0.0.1 port={} user=postgres dbname={database} application_name={slot}",
            self.port
        );
        let mut command = Command::new(self.bin.join("pg_basebackup"));
        command
            .args([
                "-d", &from, "-R", "-S", slot, "-X", "stream", "-c", "fast", "-D",
            ])
            .arg(&data);
        run_as_postgres(&mut command)?;
        let standby = Server {
            version: self.version,
            bin: self.bin.clone(),
            port: free_port()?,
            dir,
        };
        // What comes later in the file counts.
        let file = data.join("postgresql.auto.conf");
        let own = [
            format!("port = {}", standby.port),
            format!(
                "unix_socket_directories = '{}'",
                standby.dir.path().display()
            ),
            "hot_standby_feedback = on".to_owned(),
            "sync_replication_slots = on".to_owned(),
            "synchronized_standby_slots = ''".to_owned(),
        ];
        let lines = fs::read_to_string(&file)? + &own.join("\n") + "\n";
        fs::write(&file, lines)?;
        standby.start_again().await?;
        Ok(standby)
    }

    /// From the next reload on this role shows its password on TCP.
    pub fn require_password(&self, role: &str) -> Result<()> {
        let file = self.dir.join("data/pg_hba.conf");
        let rules = fs::read_to_string(&file)?;
        let own = format!("host all {role} 127.0.0.1/32 scram-sha-256\n");
        fs::write(&file, own + &rules).with_context(|| format!("write {}", file.display()))
    }

    /// Makes the stopped server come up as a standby.
    pub fn make_standby(&self) -> Result<()> {
        let signal = self.dir.join("data").join("standby.signal");
        run_as_postgres(Command::new("touch").arg(signal)).map(drop)
    }

    /// The schema of a database as SQL.
    pub fn dump(&self, database: &str) -> Result<String> {
        let mut command = Command::new(self.bin.join("pg_dump"));
        command.args(["-h", "127.0.0.1", "-U", "postgres", "--schema-only"]);
        command.args(["-p", &self.port.to_string(), database]);
        let text = run_as_postgres(&mut command)?;
        // A random word of each dump.
        let lines = text.lines().filter(|line| !line.contains("restrict "));
        Ok(lines.collect::<Vec<_>>().join("\n"))
    }

    /// Another program that reads a slot.
    pub fn receive(
        &self,
        database: &str,
        slot: &str,
        publication: &str,
    ) -> Result<std::process::Child> {
        let mut command = Command::new(self.bin.join("pg_recvlogical"));
        command.args([
            "-h",
            "127.0.0.1",
            "-U",
            "postgres",
            "-d",
            database,
            "-S",
            slot,
        ]);
        command.args(["-p", &self.port.to_string(), "--start", "-f", "/dev/null"]);
        command
            .args(["-o", "proto_version=1", "-o"])
            .arg(format!("publication_names={publication}"));
        command.stderr(std::process::Stdio::null());
        command.spawn().context("start pg_recvlogical")
    }

    /// A session with pinned settings as the superuser.
    pub async fn session(&self, database: &str) -> Result<Session> {
        Session::open(self.port, database).await
    }

    /// Makes a database; `options` stand after its name (an encoding, say) and may be empty.
    pub async fn create_database(&self, name: &str, options: &str) -> Result<()> {
        let session = self.session("postgres").await?;
        session
            .run(&format!("create database {} {options}", quote_name(name)))
            .await
    }

    /// Runs SQL statement by statement as `psql` does, going on after an error; gives what psql printed on stderr.
    pub fn psql(&self, database: &str, sql: &str) -> Result<String> {
        let file = tempfile::NamedTempFile::new()?;
        fs::write(file.path(), sql)?;
        let output = Command::new("psql")
            .args([
                "-X",
                "-q",
                "-v",
                "ON_ERROR_STOP=0",
                "-h",
                "127.0.0.1",
                "-U",
                "postgres",
            ])
            .args(["-p", &self.port.to_string(), "-d", database, "-f"])
            .arg(file.path())
            .env_remove("PGOPTIONS")
            .env("PGCLIENTENCODING", "UTF8")
            .output()
            .context("run psql (postgresql-client is installed by infra/setup.sh)")?;
        ensure!(
            output.status.success(),
            "psql: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(String::from_utf8_lossy(&output.stderr).into_owned())
    }

    fn write_conf(&self, more: &[String]) -> Result<()> {
        let file = self.dir.join("data/postgresql.auto.conf");
        let mut lines = vec![
            format!("port = {}", self.port),
            "listen_addresses = '127.0.0.1'".to_owned(),
            format!("unix_socket_directories = '{}'", self.dir.path().display()),
            "wal_level = logical".to_owned(),
            "max_wal_senders = 20".to_owned(),
            "max_replication_slots = 20".to_owned(),
            // The machine does not crash under a drill, only processes do.
            "fsync = off".to_owned(),
            "shared_buffers = '32MB'".to_owned(),
            "log_line_prefix = '%m [%p] '".to_owned(),
        ];
        lines.extend_from_slice(more);
        fs::write(&file, lines.join("\n") + "\n")
            .with_context(|| format!("write {}", file.display()))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Not running is as good as stopped.
        let _ = self.stop(Stop::Immediate);
    }
}

/// A connection with the settings of [`PINNED`]; values are read as the text that Postgres prints.
#[derive(Debug)]
pub struct Session {
    client: Client,
}

impl Session {
    pub async fn open(port: u16, database: &str) -> Result<Self> {
        let mut config = tokio_postgres::Config::new();
        config
            .host("127.0.0.1")
            .port(port)
            .user("postgres")
            .dbname(database);
        config.application_name("rindle-drills");
        let (client, connection) = config.connect(NoTls).await.context("connect to Postgres")?;
        tokio::spawn(connection);
        client
            .batch_execute(PINNED)
            .await
            .context("pin the settings of a session")?;
        Ok(Self { client })
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    pub async fn run(&self, sql: &str) -> Result<()> {
        self.client
            .batch_execute(sql)
            .await
            .with_context(|| shortened(sql))
    }

    pub async fn rows(&self, sql: &str) -> Result<Vec<SimpleQueryRow>> {
        let messages = self
            .client
            .simple_query(sql)
            .await
            .with_context(|| shortened(sql))?;
        Ok(messages
            .into_iter()
            .filter_map(|message| match message {
                SimpleQueryMessage::Row(row) => Some(row),
                _ => None,
            })
            .collect())
    }

    /// The first value of the first row; NULL and no row are `None`.
    pub async fn maybe_text(&self, sql: &str) -> Result<Option<String>> {
        Ok(self
            .rows(sql)
            .await?
            .first()
            .and_then(|row| row.get(0).map(str::to_owned)))
    }

    pub async fn text(&self, sql: &str) -> Result<String> {
        self.maybe_text(sql)
            .await?
            .with_context(|| format!("no value came of: {}", shortened(sql)))
    }
}

pub fn quote_name(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

pub fn quote_text(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

pub fn version_from_env() -> u16 {
    std::env::var("RINDLE_PG_VERSION")
        .ok()
        .and_then(|v| v.parse().ok())
        .unwrap_or(15)
}

/// Where the programs of a version are: Debian's for 15, what infra/setup.sh unpacked for the others.
fn binaries(version: u16) -> Result<PathBuf> {
    let bin = if version == 15 {
        PathBuf::from("/usr/lib/postgresql/15/bin")
    } else {
        servers().join(version.to_string()).join("pg/bin")
    };
    ensure!(
        bin.join("initdb").exists(),
        "PostgreSQL {version} is not in {}: run infra/setup.sh with RINDLE_PG_VERSIONS={version}",
        bin.display()
    );
    Ok(bin)
}

fn servers() -> PathBuf {
    std::env::var_os("RINDLE_SERVERS")
        .map_or_else(|| PathBuf::from("/var/cache/rindle-servers"), PathBuf::from)
}

/// Where infra/setup.sh unpacked the migration tools.
pub fn tools() -> Result<PathBuf> {
    let tools = servers().join("tools");
    ensure!(
        tools.join("pin").exists(),
        "no migration tools in {}: run infra/setup.sh",
        tools.display()
    );
    Ok(tools)
}

/// The data folder that servers of a version are copied from. Several test processes may want it at once: each makes
/// its own, and the first to move it into place wins.
fn template(version: u16, bin: &Path) -> Result<PathBuf> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let stamp = output_of(Command::new(bin.join("postgres")).arg("--version"))?;
    let stamp: String = stamp
        .chars()
        .filter(|c| c.is_ascii_digit() || *c == '.')
        .collect();
    let parent = std::env::temp_dir().join(format!("rindle-templates-{}", unprivileged_name()));
    fs::create_dir_all(&parent)?;
    give_to_postgres(&parent)?;
    let done = parent.join(format!("{version}-{stamp}"));
    if !done.exists() {
        let part = parent.join(format!("{version}-{stamp}.{}", std::process::id()));
        initdb(bin, &part)?;
        // -T and -n: the step is one rename, and a folder that is there already stays as it is.
        run_as_postgres(Command::new("mv").arg("-Tn").arg(&part).arg(&done))?;
        let _ = fs::remove_dir_all(&part);
    }
    Ok(done)
}

fn initdb(bin: &Path, data: &Path) -> Result<()> {
    let mut command = Command::new(bin.join("initdb"));
    command
        .arg("-D")
        .arg(data)
        .args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "-N"]);
    command.arg("--locale=C.UTF-8");
    run_as_postgres(&mut command).map(drop)
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn unprivileged_name() -> String {
    if is_root() {
        "postgres".to_owned()
    } else {
        rustix::process::geteuid().as_raw().to_string()
    }
}

fn give_to_postgres(dir: &Path) -> Result<()> {
    if is_root() {
        output_of(Command::new("chown").arg("postgres:").arg(dir))?;
    }
    Ok(())
}

/// Servers refuse to run as root, and their files must be their own.
fn run_as_postgres(command: &mut Command) -> Result<String> {
    if !is_root() {
        return output_of(command);
    }
    let mut wrapped = Command::new("setpriv");
    wrapped.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]);
    wrapped.arg(command.get_program()).args(command.get_args());
    wrapped
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("LC_ALL", "C.UTF-8");
    wrapped.current_dir("/");
    output_of(&mut wrapped)
}

fn output_of(command: &mut Command) -> Result<String> {
    // Files, not pipes: a server that is started this way keeps them open for its whole life.
    let out = tempfile::NamedTempFile::new()?;
    let status = command
        .stdin(std::process::Stdio::null())
        .stdout(out.reopen()?)
        .stderr(out.reopen()?)
        .status()
        .with_context(|| format!("run {:?}", command.get_program()))?;
    let text = String::from_utf8_lossy(&fs::read(out.path())?).into_owned();
    ensure!(status.success(), "{command:?}: {status}: {text}");
    Ok(text)
}

fn shortened(sql: &str) -> String {
    sql.chars().take(300).collect()
}
