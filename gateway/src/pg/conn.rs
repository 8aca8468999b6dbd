//! Ordinary connections: catalog, COPY, plain SQL. Also what both kinds of connection have in common: the
//! pinned settings, the timeouts and the search for the primary.

use std::time::Duration;

use tokio_postgres::config::SslMode as WireSslMode;
use tokio_postgres::{Client, Config, NoTls};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::endpoint::{Endpoint, Host, PasswordError, SslMode};
use super::tls::{self, TlsError};
use super::walsender::WalError;

/// How long one host may take from the first packet to a session that answers.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Silence after which the kernel asks whether the other side is there, and between its questions.
pub(super) const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
pub(super) const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
pub(super) const KEEPALIVE_RETRIES: u32 = 3;
/// How long sent bytes may go unconfirmed by the other kernel before the connection counts as broken.
pub(super) const SEND_TIMEOUT: Duration = Duration::from_secs(60);

/// Settings that every session pins in its startup packet, where they outrank those of role and database.
/// The first group decides the text of values; the second keeps the server from ending a quiet session; the
/// third makes our own SQL mean one thing, and an error out of rows that a policy would hide.
pub(super) const PINNED: &str = "\
    -c datestyle=ISO,MDY -c intervalstyle=postgres -c timezone=UTC -c extra_float_digits=3 \
    -c bytea_output=hex -c client_encoding=UTF8 -c lc_monetary=C \
    -c statement_timeout=0 -c lock_timeout=0 -c idle_in_transaction_session_timeout=0 \
    -c idle_session_timeout=0 -c wal_sender_timeout=60s \
    -c tcp_keepalives_idle=30 -c tcp_keepalives_interval=10 -c tcp_keepalives_count=3 \
    -c search_path=pg_catalog -c quote_all_identifiers=off -c standard_conforming_strings=on \
    -c row_security=off";
/// Pinned after the start, since servers before 17 do not know it.
pub(super) const UNPIN_TRANSACTION_TIMEOUT: &str = "SET transaction_timeout = 0";
/// First major version with `transaction_timeout`.
pub(super) const TRANSACTION_TIMEOUT_SINCE: u32 = 17;
/// Asks whether the server is a standby.
pub(super) const IN_RECOVERY: &str = "SELECT pg_catalog.pg_is_in_recovery()";

/// Why no session came about.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The settings cannot be used.
    #[error("TLS settings for Postgres")]
    Tls(#[from] TlsError),
    /// No host of the list gave a session on the primary.
    #[error("no primary among the configured hosts: {}", list(.0))]
    NoPrimary(Vec<HostFailure>),
}

/// What one host answered.
#[derive(Debug)]
pub struct HostFailure {
    /// The host.
    pub host: Host,
    /// Why it is of no use.
    pub reason: Reason,
}

/// Why a host is of no use.
#[derive(Debug, thiserror::Error)]
pub enum Reason {
    /// It is a standby.
    #[error("it is a standby")]
    Standby,
    /// It did not answer in time.
    #[error("no answer within {} s", CONNECT_TIMEOUT.as_secs())]
    Timeout,
    /// Its password file cannot be read.
    #[error(transparent)]
    Password(#[from] PasswordError),
    /// An ordinary connection failed.
    #[error("{}", describe(.0))]
    Sql(#[source] tokio_postgres::Error),
    /// A replication connection failed.
    #[error(transparent)]
    Session(#[from] WalError),
}

impl ConnectError {
    /// SQLSTATE of the first host that a server refused: wrong password, no such database, too many
    /// connections; none when no server spoke.
    pub fn sqlstate(&self) -> Option<&str> {
        match self {
            ConnectError::Tls(_) => None,
            ConnectError::NoPrimary(failures) => failures
                .iter()
                .find_map(|failure| failure.reason.sqlstate()),
        }
    }

    /// True when at least one host is a standby and no server refused us.
    pub fn is_standby(&self) -> bool {
        match self {
            ConnectError::Tls(_) => false,
            ConnectError::NoPrimary(failures) => {
                let standby = |failure: &HostFailure| matches!(failure.reason, Reason::Standby);
                failures.iter().any(standby) && self.sqlstate().is_none()
            }
        }
    }
}

impl Reason {
    fn sqlstate(&self) -> Option<&str> {
        match self {
            Reason::Standby | Reason::Timeout | Reason::Password(_) => None,
            Reason::Sql(error) => error.code().map(tokio_postgres::error::SqlState::code),
            Reason::Session(error) => error.sqlstate(),
        }
    }
}

fn list(failures: &[HostFailure]) -> String {
    let each = failures
        .iter()
        .map(|failure| format!("{}: {}", failure.host, failure.reason));
    each.collect::<Vec<_>>().join("; ")
}

/// tokio-postgres prints only "db error"; people need the server's own words.
fn describe(error: &tokio_postgres::Error) -> String {
    match (error.as_db_error(), std::error::Error::source(error)) {
        (Some(db), _) if db.message().contains("idle_session_timeout") => {
            format!(
                "{} (the server is older than 15, which is not supported)",
                db.message()
            )
        }
        (Some(db), _) => format!("{} ({})", db.message(), db.code().code()),
        (None, Some(source)) => format!("{error}: {source}"),
        (None, None) => error.to_string(),
    }
}

/// A session on the primary of the cluster, with every setting pinned. Its connection task ends with the
/// client.
///
/// # Errors
/// When no host gives a session on a primary.
pub async fn connect(endpoint: &Endpoint, application_name: &str) -> Result<Client, ConnectError> {
    let mut failures = Vec::new();
    for host in &endpoint.hosts {
        let reason = match connect_host(endpoint, host, application_name).await {
            Err(HostError::Tls(error)) => return Err(error.into()),
            Err(HostError::Failed(reason)) => reason,
            Ok(client) => match in_recovery(&client).await {
                Ok(false) => return Ok(client),
                Ok(true) => Reason::Standby,
                Err(error) => Reason::Sql(error),
            },
        };
        failures.push(HostFailure {
            host: host.clone(),
            reason,
        });
    }
    Err(ConnectError::NoPrimary(failures))
}

/// Why one host gave no session.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The settings cannot be used, whatever the host.
    #[error("TLS settings for Postgres")]
    Tls(#[from] TlsError),
    /// The host is of no use.
    #[error(transparent)]
    Failed(#[from] Reason),
}

/// A session on one host, primary or standby, with every setting pinned.
///
/// # Errors
/// When the host gives no session.
pub async fn connect_host(
    endpoint: &Endpoint,
    host: &Host,
    application_name: &str,
) -> Result<Client, HostError> {
    let opening = open(endpoint, host, application_name);
    match tokio::time::timeout(CONNECT_TIMEOUT, opening).await {
        Ok(opened) => opened,
        Err(_elapsed) => Err(Reason::Timeout.into()),
    }
}

async fn open(endpoint: &Endpoint, host: &Host, name: &str) -> Result<Client, HostError> {
    let config = settings(endpoint, host, name)?;
    let tls = if host.is_socket() {
        None
    } else {
        tls::client_config(&endpoint.tls)?
    };
    let client = match tls {
        None => {
            let (client, connection) = config.connect(NoTls).await.map_err(Reason::Sql)?;
            spawn(connection);
            client
        }
        Some(tls) => {
            let tls = MakeRustlsConnect::new(tls.as_ref().clone());
            let (client, connection) = config.connect(tls).await.map_err(Reason::Sql)?;
            spawn(connection);
            client
        }
    };
    if major_version(&client).await.map_err(Reason::Sql)? >= TRANSACTION_TIMEOUT_SINCE {
        client
            .batch_execute(UNPIN_TRANSACTION_TIMEOUT)
            .await
            .map_err(Reason::Sql)?;
    }
    Ok(client)
}

fn settings(endpoint: &Endpoint, host: &Host, application_name: &str) -> Result<Config, Reason> {
    let mut config = Config::new();
    config
        .host(&host.name)
        .port(host.port)
        .user(&endpoint.user)
        .dbname(&endpoint.database)
        .application_name(application_name)
        .options(PINNED)
        .keepalives_idle(KEEPALIVE_IDLE)
        .keepalives_interval(KEEPALIVE_INTERVAL)
        .keepalives_retries(KEEPALIVE_RETRIES)
        .tcp_user_timeout(SEND_TIMEOUT)
        .ssl_mode(match endpoint.tls.mode {
            _ if host.is_socket() => WireSslMode::Disable,
            SslMode::Disable => WireSslMode::Disable,
            SslMode::Prefer => WireSslMode::Prefer,
            SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull => WireSslMode::Require,
        });
    if let Some(password) = &endpoint.password {
        config.password(password.read()?.expose());
    }
    Ok(config)
}

fn spawn<S, T>(connection: tokio_postgres::Connection<S, T>)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    tokio::spawn(async move {
        // Whoever uses the client sees the same end as an error of its own.
        if let Err(error) = connection.await {
            tracing::debug!(error = describe(&error), "postgres connection ended");
        }
    });
}

async fn major_version(client: &Client) -> Result<u32, tokio_postgres::Error> {
    let row = client
        .query_one("SELECT current_setting('server_version_num')::int", &[])
        .await?;
    row.try_get::<_, i32>(0)
        .map(|number| number.unsigned_abs() / 10_000)
}

async fn in_recovery(client: &Client) -> Result<bool, tokio_postgres::Error> {
    client.query_one(IN_RECOVERY, &[]).await?.try_get(0)
}
