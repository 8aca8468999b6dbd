//! Starts a Postgres in a temporary directory. `RINDLE_PG_BIN` names the binaries, else the newest under
//! `/usr/lib/postgresql` are taken.

use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rindle_gateway::pg::conn;
use rindle_gateway::pg::endpoint::{Endpoint, Host, Secret, SslMode, TlsSettings};
use tempfile::TempDir;
use tokio_postgres::Client;

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
        prepare(&data);
        let port = free_port();
        let child = as_postgres("postgres")
            .arg("-D")
            .arg(&data)
            .args(["-p", &port.to_string(), "-c", "listen_addresses=127.0.0.1"])
            .args([
                "-c",
                "wal_level=logical",
                "-c",
                "fsync=off",
                "-c",
                "max_wal_senders=20",
            ])
            .args([
                "-c",
                &format!("unix_socket_directories={}", dir.path().display()),
            ])
            .args(settings.iter().flat_map(|setting| ["-c", setting]))
            .stderr(std::fs::File::create(dir.path().join("log")).unwrap())
            .spawn()
            .unwrap();
        let server = Server { child, port, dir };
        server.wait_until_up().await;
        server
    }

    async fn wait_until_up(&self) {
        let up = async {
            while conn::connect(&self.endpoint(), "wait").await.is_err() {
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
            password: Some(Secret::new(password)),
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

/// A command of the Postgres under test, as a user who may run it.
fn as_postgres(program: &str) -> Command {
    let program = binaries().join(program);
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

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}
