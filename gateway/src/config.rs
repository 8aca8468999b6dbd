//! `gateway.json` and the environment to [`Settings`]. Nothing else sees the raw form.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rindle_archive::BackupConfig;
use rindle_proto::ids::{Generation, SourceName};
use rindle_serve::ServerTls;
use serde::Deserialize;

use crate::pg::endpoint::{Endpoint, Host, Password, Secret, SslMode, TlsSettings};

/// Checked settings of a gateway.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The source's name.
    pub name: SourceName,
    /// The generation asked for; else the archive's current one, read once at start.
    pub generation: Option<Generation>,
    /// Directory of the local log: a cache.
    pub data_dir: PathBuf,
    /// Where gRPC listens.
    pub grpc: SocketAddr,
    /// Where HTTP listens.
    pub http: SocketAddr,
    /// What followers must show as `Authorization: Bearer`.
    pub auth_token: Option<Secret>,
    /// Certificates of both services.
    pub tls: Option<ServerTls>,
    /// The source.
    pub endpoint: Endpoint,
    /// The archive.
    pub backup: BackupConfig,
    /// Limits of the log.
    pub limits: Limits,
}

/// Limits of the log and its archive.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Archived frames the local log keeps for followers, in bytes.
    pub retain_bytes: u64,
    /// With more than this not archived the gateway stops reading, in bytes.
    pub max_unshipped_bytes: u64,
    /// Longest archived tail a follower is sent, in bytes; 0 sends none where an image will do.
    pub archive_catch_up_max_bytes: u64,
    /// Shortest time between the starts of two archive writes that are not full.
    pub min_put_interval: Duration,
}

/// What is wrong with the configuration.
#[derive(Debug, thiserror::Error)]
#[error("{place}: {problem}")]
pub struct ConfigError {
    place: String,
    problem: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Raw {
    name: SourceName,
    generation: Option<Generation>,
    #[serde(default = "default_data_dir")]
    data_dir: PathBuf,
    #[serde(default = "default_bind_host")]
    bind_host: String,
    #[serde(default = "default_grpc_port")]
    grpc_port: u16,
    #[serde(default = "default_http_port")]
    http_port: u16,
    auth_token: Option<String>,
    tls: Option<ServerTls>,
    postgres: RawPostgres,
    backup: serde_json::Map<String, serde_json::Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawPostgres {
    host: OneOrMany,
    #[serde(default = "default_pg_port")]
    port: u16,
    user: String,
    database: String,
    password_file: Option<PathBuf>,
    #[serde(default = "default_ssl_mode")]
    ssl_mode: String,
    ssl_root_cert: Option<PathBuf>,
    ssl_cert: Option<PathBuf>,
    ssl_key: Option<PathBuf>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct RawLimits {
    retain_bytes: u64,
    max_unshipped_bytes: u64,
    archive_catch_up_max_bytes: u64,
    min_put_interval_ms: u64,
}

impl Default for RawLimits {
    fn default() -> Self {
        Self {
            retain_bytes: 50_331_648,
            max_unshipped_bytes: 83_886_080,
            archive_catch_up_max_bytes: 1_073_741_824,
            min_put_interval_ms: 200,
        }
    }
}

/// The names of [`RawLimits`]' keys, which stand beside the store's in `backup`.
const LIMIT_KEYS: [&str; 4] = [
    "retainBytes",
    "maxUnshippedBytes",
    "archiveCatchUpMaxBytes",
    "minPutIntervalMs",
];

fn default_data_dir() -> PathBuf {
    PathBuf::from("rindle-gateway-data")
}

fn default_bind_host() -> String {
    "127.0.0.1".to_owned()
}

fn default_grpc_port() -> u16 {
    7610
}

fn default_http_port() -> u16 {
    7611
}

fn default_pg_port() -> u16 {
    5432
}

fn default_ssl_mode() -> String {
    "require".to_owned()
}

impl Settings {
    /// Reads a configuration file; `env` looks up environment variables (file keys win).
    ///
    /// # Errors
    /// When the file cannot be read or says something that makes no sense; the error names the key.
    pub fn load(path: &Path, env: &dyn Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        let place = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|error| problem(&place, &error))?;
        Self::parse(&text, &place, env)
    }

    fn parse(
        text: &str,
        place: &str,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, ConfigError> {
        let raw: Raw =
            rindle_proto::settings::from_json(text).map_err(|error| problem(place, &error))?;
        let (backup, limits) = split_backup(raw.backup, place)?;
        let ip = bind_address(&raw.bind_host, place)?;
        let token = raw
            .auth_token
            .or_else(|| env("RINDLE_TOKEN"))
            .filter(|token| !token.is_empty());
        let protected =
            token.is_some() || raw.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
        if !ip.is_loopback() && !protected {
            let text =
                format!("bindHost {ip} is reachable from outside: set authToken or tls.clientCa");
            return Err(problem(place, &text));
        }
        Ok(Self {
            name: raw.name,
            generation: raw.generation,
            data_dir: raw.data_dir,
            grpc: SocketAddr::new(ip, raw.grpc_port),
            http: SocketAddr::new(ip, raw.http_port),
            auth_token: token.map(Secret::new),
            tls: raw.tls,
            endpoint: endpoint(raw.postgres, place, env)?,
            backup,
            limits,
        })
    }
}

fn bind_address(host: &str, place: &str) -> Result<IpAddr, ConfigError> {
    match host {
        "localhost" => Ok(IpAddr::from([127, 0, 0, 1])),
        host => host
            .parse()
            .map_err(|_no_address| problem(place, &format!("bindHost {host:?} is no IP address"))),
    }
}

fn split_backup(
    mut backup: serde_json::Map<String, serde_json::Value>,
    place: &str,
) -> Result<(BackupConfig, Limits), ConfigError> {
    let limits: serde_json::Map<_, _> = LIMIT_KEYS
        .iter()
        .filter_map(|key| backup.remove_entry(*key))
        .collect();
    let in_backup = |error: String| problem(place, &format!("backup: {error}"));
    let to_text = |map: &serde_json::Map<String, serde_json::Value>| {
        serde_json::Value::Object(map.clone()).to_string()
    };
    let limits: RawLimits =
        rindle_proto::settings::from_json(&to_text(&limits)).map_err(in_backup)?;
    let store: BackupConfig =
        rindle_proto::settings::from_json(&to_text(&backup)).map_err(in_backup)?;
    let limits = Limits {
        retain_bytes: limits.retain_bytes,
        max_unshipped_bytes: limits.max_unshipped_bytes,
        archive_catch_up_max_bytes: limits.archive_catch_up_max_bytes,
        min_put_interval: Duration::from_millis(limits.min_put_interval_ms),
    };
    Ok((store, limits))
}

fn endpoint(
    raw: RawPostgres,
    place: &str,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Endpoint, ConfigError> {
    let hosts = match raw.host {
        OneOrMany::One(host) => Host::parse_list(&host, raw.port),
        OneOrMany::Many(hosts) => hosts
            .iter()
            .map(|host| Host::parse(host, raw.port))
            .collect(),
    };
    let hosts = hosts.map_err(|error| problem(place, &format!("postgres.host: {error}")))?;
    if hosts.is_empty() {
        return Err(problem(place, &"postgres.host: names no host"));
    }
    let password = match &raw.password_file {
        Some(file) => Some(Password::File(file.clone())),
        None => env("RINDLE_PG_PASSWORD").map(|given| Password::Given(Secret::new(given))),
    };
    // A file that is not there now is a mistake; later it is waited for.
    if let Some(Err(error)) = password.as_ref().map(Password::read) {
        return Err(problem(place, &format!("postgres.passwordFile: {error}")));
    }
    let mode: SslMode = raw
        .ssl_mode
        .parse()
        .map_err(|error| problem(place, &format!("postgres: {error}")))?;
    Ok(Endpoint {
        hosts,
        user: raw.user,
        database: raw.database,
        password,
        tls: TlsSettings {
            mode,
            root_cert: raw.ssl_root_cert,
            cert: raw.ssl_cert,
            key: raw.ssl_key,
        },
    })
}

fn problem(place: &str, problem: &dyn std::fmt::Display) -> ConfigError {
    ConfigError {
        place: place.to_owned(),
        problem: problem.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINIMAL: &str = r#"{"name":"app","postgres":{"host":"db","user":"u","database":"d"},
        "backup":{"type":"filesystem","path":"archive"}}"#;

    fn parse(text: &str) -> Result<Settings, ConfigError> {
        Settings::parse(text, "gateway.json", &|_| None)
    }

    #[test]
    fn defaults_are_those_of_the_contract() {
        let settings = parse(MINIMAL).unwrap();
        assert_eq!(settings.grpc.to_string(), "127.0.0.1:7610");
        assert_eq!(settings.http.to_string(), "127.0.0.1:7611");
        assert_eq!(settings.endpoint.tls.mode, SslMode::Require);
        assert_eq!(settings.limits.retain_bytes, 48 << 20);
        assert_eq!(settings.limits.max_unshipped_bytes, 80 << 20);
        assert_eq!(settings.limits.min_put_interval, Duration::from_millis(200));
    }

    #[test]
    fn the_example_file_is_right() {
        let settings = parse(include_str!("../../infra/gateway.json")).unwrap();
        assert_eq!(settings.endpoint.tls.mode, SslMode::VerifyFull);
        assert_eq!(settings.limits.max_unshipped_bytes, 80 << 20);
    }

    #[test]
    fn unknown_keys_are_told_with_the_nearest() {
        let table = [
            (r#""grpcprt":1"#, "grpcPort"),
            (
                r#""backup":{"type":"filesystem","path":"a","retainByte":1}"#,
                "path",
            ),
        ];
        for (key, near) in table {
            let text = MINIMAL.replacen('{', &format!("{{{key},"), 1);
            let text = match key.contains("backup") {
                true => text.replace(
                    r#""backup":{"type":"filesystem","path":"archive"}"#,
                    r#""dataDir":"x""#,
                ),
                false => text,
            };
            let error = parse(&text).unwrap_err().to_string();
            assert!(error.contains(near), "{error}");
        }
    }

    #[test]
    fn an_open_address_needs_a_token() {
        let text = MINIMAL.replacen('{', r#"{"bindHost":"0.0.0.0","#, 1);
        assert!(parse(&text).unwrap_err().to_string().contains("authToken"));
        let text = text.replacen('{', r#"{"authToken":"t","#, 1);
        assert!(parse(&text).is_ok());
    }
}
