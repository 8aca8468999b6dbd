//! Starts a Postgres in a temporary directory. `RINDLE_PG_BIN` names the binaries, else the newest under
//! `/usr/lib/postgresql` are taken.

use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rindle_gateway::pg::conn;
use rindle_gateway::pg::endpoint::{Endpoint, Host, Password, Secret, SslMode, TlsSettings};
use tempfile::TempDir;
use tokio_postgres::Client;

use crate::ports::free_port;

const STARTS_WITHIN: Duration = Duration::from_secs(30);

/// A server that ends with this value.
pub(crate) struct Server {
    child: Child,
    port: u16,
    dir: TempDir,
}

impl Server {
    /// A server with logical decoding, trusted on its socket, and `settings` (`name=value`).
    pub(crate) async fn start(settings: &[&str]) -> Server {
        Server::with_files(settings, |_dir| {}).await
    }

    /// As [`Server::start`]; `prepare` may change the data directory before.
    pub(crate) async fn with_files(settings: &[&str], prepare: impl FnOnce(&Path)) -> Server {
        let dir = TempDir::new().unwrap();
        give_away(dir.path());
        let data = dir.path().join("data");
        let initdb = [
            "-A",
            "trust",
            "-U",
            "postgres",
            "-E",
            "UTF8",
            "--locale=C",
            "--no-sync",
        ];
        let made = as_postgres("initdb")
            .arg("-D")
            .arg(&data)
            .args(initdb)
            .output()
            .unwrap();
        assert!(
            made.status.success(),
            "{}",
            String::from_utf8_lossy(&made.stderr)
        );
        // In the file, where ALTER SYSTEM has the last word.
        let mut conf = std::fs::read_to_string(data.join("postgresql.conf")).unwrap();
        let base = [
            "listen_addresses=127.0.0.1",
            "wal_level=logical",
            "fsync=off",
            "max_wal_senders=20",
        ];
        for setting in base.iter().chain(settings) {
            let (name, value) = setting.split_once('=').unwrap();
            conf.push_str(&format!("{name} = '{value}'\n"));
        }
        std::fs::write(data.join("postgresql.conf"), conf).unwrap();
        prepare(&data);
        let port = free_port().unwrap();
        let server = Server {
            child: spawn(dir.path(), port),
            port,
            dir,
        };
        server.wait_until_up().await;
        server
    }

    /// Stops it cleanly and starts it again.
    pub(crate) async fn restart(mut self) -> Server {
        let pid = self.child.id().to_string();
        let stopped = Command::new("kill").args(["-INT", &pid]).status();
        assert!(stopped.unwrap().success());
        self.child.wait().unwrap();
        self.child = spawn(self.dir.path(), self.port);
        self.wait_until_up().await;
        self
    }

    async fn wait_until_up(&self) {
        let up = async {
            let endpoint = self.endpoint();
            // A standby counts too.
            while conn::connect_host(&endpoint, &endpoint.hosts[0], "wait")
                .await
                .is_err()
            {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        if tokio::time::timeout(STARTS_WITHIN, up).await.is_err() {
            let log = std::fs::read_to_string(self.dir.path().join("log"));
            panic!("postgres does not start: {log:?}");
        }
    }

    /// The superuser on the Unix socket.
    pub(crate) fn endpoint(&self) -> Endpoint {
        Endpoint {
            hosts: vec![Host {
                name: self.dir.path().display().to_string(),
                port: self.port,
            }],
            user: "postgres".to_owned(),
            database: "postgres".to_owned(),
            password: None,
            tls: TlsSettings {
                mode: SslMode::Disable,
                ..TlsSettings::default()
            },
        }
    }

    /// A user on TCP.
    pub(crate) fn tcp(&self, host: &str, user: &str, password: &str, mode: SslMode) -> Endpoint {
        Endpoint {
            hosts: vec![Host {
                name: host.to_owned(),
                port: self.port,
            }],
            user: user.to_owned(),
            password: Some(Password::Given(Secret::new(password))),
            tls: TlsSettings {
                mode,
                ..TlsSettings::default()
            },
            ..self.endpoint()
        }
    }

    /// A session of the superuser with nothing changed.
    pub(crate) async fn plain_session(&self) -> Client {
        conn::connect(&self.endpoint(), "test").await.unwrap()
    }

    /// A session of the superuser in schema public that has run `sql`.
    pub(crate) async fn session(&self, sql: &str) -> Client {
        let client = self.plain_session().await;
        client
            .batch_execute(&format!("SET search_path = public; {sql}"))
            .await
            .unwrap();
        client
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // An immediate shutdown: nothing in the directory is needed any more.
        let pid = self.child.id().to_string();
        let _ = Command::new("kill").args(["-QUIT", &pid]).status();
        let _ = self.child.wait();
    }
}

/// PgBouncer before a server; it ends with this value.
pub(crate) struct Pooler {
    child: Child,
    port: u16,
    _dir: TempDir,
}

impl Pooler {
    /// Lends sessions for a transaction, of `size` server processes; `more` are lines of its configuration.
    pub(crate) async fn start(server: &Server, size: u32, more: &str) -> Pooler {
        let dir = TempDir::new().unwrap();
        give_away(dir.path());
        let port = free_port().unwrap();
        let conf = format!(
            "[databases]\n* = host={} port={} user=postgres\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
             unix_socket_dir =\nauth_type = any\npool_mode = transaction\ndefault_pool_size = {size}\n{more}\n",
            server.dir.path().display(),
            server.port
        );
        let file = dir.path().join("pgbouncer.ini");
        std::fs::write(&file, conf).unwrap();
        let mut command = as_server("/usr/sbin/pgbouncer".as_ref());
        let child = command.arg("-q").arg(&file).spawn().unwrap();
        let pooler = Pooler {
            child,
            port,
            _dir: dir,
        };
        let up = async {
            while tokio::net::TcpStream::connect(("127.0.0.1", port))
                .await
                .is_err()
            {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(STARTS_WITHIN, up).await.unwrap();
        pooler
    }

    /// Its address.
    pub(crate) fn endpoint(&self, server: &Server) -> Endpoint {
        Endpoint {
            hosts: vec![Host {
                name: "127.0.0.1".to_owned(),
                port: self.port,
            }],
            ..server.endpoint()
        }
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(dir: &Path, port: u16) -> Child {
    let mut command = as_postgres("postgres");
    command.arg("-D").arg(dir.join("data"));
    command.args(["-p", &port.to_string(), "-k"]).arg(dir);
    command.stderr(std::fs::File::create(dir.join("log")).unwrap());
    command.spawn().unwrap()
}

/// A command of the Postgres under test, as a user who may run it.
fn as_postgres(program: &str) -> Command {
    as_server(&binaries().join(program))
}

fn as_server(program: &Path) -> Command {
    let mut command = match user_id() {
        0 => {
            let mut command = Command::new("setpriv");
            command
                .args(["--reuid=postgres", "--regid=postgres", "--clear-groups"])
                .arg(program);
            command
        }
        _ => Command::new(program),
    };
    command
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .stdin(Stdio::null());
    command
}

fn binaries() -> PathBuf {
    if let Ok(named) = std::env::var("RINDLE_PG_BIN") {
        return named.into();
    }
    let versions = std::fs::read_dir("/usr/lib/postgresql").expect("postgres is installed");
    let newest = versions.filter_map(|entry| {
        let path = entry.ok()?.path();
        Some((path.file_name()?.to_str()?.parse::<u32>().ok()?, path))
    });
    newest.max().expect("postgres is installed").1.join("bin")
}

fn user_id() -> u32 {
    let out = Command::new("id").arg("-u").output().unwrap();
    String::from_utf8(out.stdout)
        .unwrap()
        .trim()
        .parse()
        .unwrap()
}

/// Makes `path` the property of the server's user.
pub(crate) fn give_away(path: &Path) {
    if user_id() == 0 {
        let out = Command::new("id")
            .args(["-u", "postgres"])
            .output()
            .unwrap();
        let owner = String::from_utf8(out.stdout)
            .unwrap()
            .trim()
            .parse()
            .unwrap();
        chown(path, Some(owner), None).unwrap();
    }
}
