//! `rindled.json` and the environment to [`Settings`]. Nothing else sees the raw form.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rindle_archive::BackupConfig;
use rindle_proto::ids::SourceName;
use rindle_serve::ServerTls;
use serde::Deserialize;

use crate::mirror::LocalIndex;

/// Checked settings of a follower.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The mirror file.
    pub db: PathBuf,
    /// Where HTTP listens.
    pub http: SocketAddr,
    /// Port of live queries. Nothing listens there yet.
    pub ws_port: u16,
    /// What callers must show as `Authorization: Bearer`.
    pub auth_token: Option<Secret>,
    /// Certificates of the HTTP service.
    pub tls: Option<ServerTls>,
    /// What is mirrored.
    pub source: SourceSettings,
    /// Indexes besides those carried from Postgres.
    pub indexes: Vec<LocalIndex>,
}

/// Where the source's frames come from.
#[derive(Clone, Debug)]
pub struct SourceSettings {
    /// Its name.
    pub name: SourceName,
    /// Gateways, tried in turn. Empty: the archive is tailed.
    pub urls: Vec<String>,
    /// The gateway's token.
    pub auth_token: Option<Secret>,
    /// How a gateway is known, and knows this follower.
    pub tls: Option<ClientTls>,
    /// The archive.
    pub backup: Option<BackupConfig>,
    /// How often the archive is looked at when it is tailed.
    pub poll_interval: Duration,
}

/// A token. Its debug form shows nothing.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Keeps `text`.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The token itself: never for a log.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Certificates towards a gateway.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClientTls {
    /// PEM file with the gateway's authorities; those of the system by default.
    pub ca: Option<PathBuf>,
    /// PEM file with this follower's certificate.
    pub cert: Option<PathBuf>,
    /// PEM file with its private key.
    pub key: Option<PathBuf>,
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
    #[serde(default = "default_db")]
    db: PathBuf,
    #[serde(default = "default_bind_host")]
    bind_host: String,
    #[serde(default = "default_http_port")]
    http_port: u16,
    #[serde(default = "default_ws_port")]
    ws_port: u16,
    auth_token: Option<String>,
    tls: Option<ServerTls>,
    sources: Vec<serde_json::Value>,
    #[serde(default)]
    indexes: Vec<LocalIndex>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawSource {
    kind: String,
    name: SourceName,
    #[serde(default)]
    url: Urls,
    auth_token: Option<String>,
    tls: Option<ClientTls>,
    backup: Option<BackupConfig>,
    #[serde(default = "default_poll_interval_ms")]
    poll_interval_ms: u64,
}

#[derive(Deserialize, Default)]
#[serde(untagged)]
enum Urls {
    #[default]
    None,
    One(String),
    Many(Vec<String>),
}

fn default_db() -> PathBuf {
    PathBuf::from("rindle.db")
}

fn default_bind_host() -> String {
    "127.0.0.1".to_owned()
}

fn default_http_port() -> u16 {
    7600
}

fn default_ws_port() -> u16 {
    7601
}

fn default_poll_interval_ms() -> u64 {
    1000
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
        let ip = bind_address(&raw.bind_host, place)?;
        let token = secret(raw.auth_token, env("RINDLE_TOKEN"));
        let protected =
            token.is_some() || raw.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
        if !ip.is_loopback() && !protected {
            let text =
                format!("bindHost {ip} is reachable from outside: set authToken or tls.clientCa");
            return Err(problem(place, &text));
        }
        Ok(Self {
            db: raw.db,
            http: SocketAddr::new(ip, raw.http_port),
            ws_port: raw.ws_port,
            auth_token: token,
            tls: raw.tls,
            source: source(&raw.sources, place, env)?,
            indexes: raw.indexes,
        })
    }
}

fn source(
    sources: &[serde_json::Value],
    place: &str,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<SourceSettings, ConfigError> {
    let [one] = sources else {
        let text = format!(
            "sources: exactly one is needed, {} are given",
            sources.len()
        );
        return Err(problem(place, &text));
    };
    let place = format!("{place}: sources[0]");
    let raw: RawSource = rindle_proto::settings::from_json(&one.to_string())
        .map_err(|error| problem(&place, &error))?;
    if raw.kind != "pg-gateway" {
        let text = format!(
            "kind {:?} is unknown; \"pg-gateway\" is the only one",
            raw.kind
        );
        return Err(problem(&place, &text));
    }
    let urls = match raw.url {
        Urls::None => Vec::new(),
        Urls::One(url) => vec![url],
        Urls::Many(urls) => urls,
    };
    if let Some(bad) = urls.iter().find(|url| !is_url(url)) {
        let text = format!("url {bad:?} is none of http://host:port or https://host:port");
        return Err(problem(&place, &text));
    }
    if urls.is_empty() && raw.backup.is_none() {
        return Err(problem(
            &place,
            &"url and backup are both left out; set one",
        ));
    }
    Ok(SourceSettings {
        name: raw.name,
        urls,
        auth_token: secret(raw.auth_token, env("RINDLE_GATEWAY_TOKEN")),
        tls: raw.tls,
        backup: raw.backup,
        poll_interval: Duration::from_millis(raw.poll_interval_ms.max(10)),
    })
}

fn is_url(url: &str) -> bool {
    let rest = url
        .strip_prefix("http://")
        .or_else(|| url.strip_prefix("https://"));
    rest.is_some_and(|rest| !rest.is_empty()) && url.parse::<axum::http::Uri>().is_ok()
}

fn secret(file: Option<String>, env: Option<String>) -> Option<Secret> {
    file.or(env)
        .filter(|token| !token.is_empty())
        .map(Secret::new)
}

fn bind_address(host: &str, place: &str) -> Result<IpAddr, ConfigError> {
    match host {
        "localhost" => Ok(IpAddr::from([127, 0, 0, 1])),
        host => host
            .parse()
            .map_err(|_no_address| problem(place, &format!("bindHost {host:?} is no IP address"))),
    }
}

fn problem(place: &str, problem: &dyn fmt::Display) -> ConfigError {
    ConfigError {
        place: place.to_owned(),
        problem: problem.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINIMAL: &str =
        r#"{"sources":[{"kind":"pg-gateway","name":"app","url":"http://127.0.0.1:7610"}]}"#;

    fn parse(text: &str) -> Result<Settings, String> {
        Settings::parse(text, "rindled.json", &|_| None).map_err(|error| error.to_string())
    }

    #[test]
    fn defaults_are_those_of_the_contract() {
        let settings = parse(MINIMAL).unwrap();
        assert_eq!(settings.http.to_string(), "127.0.0.1:7600");
        assert_eq!(
            (settings.ws_port, settings.db.to_str()),
            (7601, Some("rindle.db"))
        );
        assert_eq!(settings.source.poll_interval, Duration::from_secs(1));
        assert_eq!(settings.source.urls, ["http://127.0.0.1:7610"]);
    }

    #[test]
    fn the_example_file_is_right() {
        let settings = parse(include_str!("../../infra/rindled.json")).unwrap();
        assert!(settings.source.backup.is_some());
    }

    #[test]
    fn what_makes_no_sense_is_told_by_key() {
        for (from, to, told) in [
            ("\"sources\"", "\"source\"", "did you mean \"sources\"?"),
            ("\"url\"", "\"ulr\"", "did you mean \"url\"?"),
            ("pg-gateway", "replicator", "kind \"replicator\" is unknown"),
            ("http://127", "ftp://127", "is none of http"),
            ("app", "App", "expected 1 to 32 characters"),
            (
                ",\"url\":\"http://127.0.0.1:7610\"",
                "",
                "url and backup are both left out",
            ),
            (
                "{\"sources\"",
                "{\"bindHost\":\"0.0.0.0\",\"sources\"",
                "set authToken",
            ),
            (
                "{\"sources\"",
                "{\"bindHost\":\"db\",\"sources\"",
                "no IP address",
            ),
            ("[{", "[{},{", "exactly one is needed, 2 are given"),
        ] {
            let text = MINIMAL.replacen(from, to, 1);
            let error = parse(&text).unwrap_err();
            assert!(error.contains(told), "{text}: {error}");
        }
    }

    #[test]
    fn tokens_come_from_the_environment_and_the_file_wins() {
        let env = |name: &str| Some(format!("from {name}"));
        let settings = Settings::parse(MINIMAL, "x", &env).unwrap();
        assert_eq!(settings.auth_token.unwrap().expose(), "from RINDLE_TOKEN");
        let source = settings.source;
        assert_eq!(
            source.auth_token.clone().unwrap().expose(),
            "from RINDLE_GATEWAY_TOKEN"
        );
        assert!(!format!("{source:?}").contains("from RINDLE"));
        let text = MINIMAL.replacen('{', r#"{"authToken":"mine","#, 1);
        let settings = Settings::parse(&text, "x", &env).unwrap();
        assert_eq!(settings.auth_token.unwrap().expose(), "mine");
    }

    #[test]
    fn several_urls_and_none_are_fine() {
        let many = MINIMAL.replace(
            "\"http://127.0.0.1:7610\"",
            r#"["http://a:1","https://b:2"]"#,
        );
        assert_eq!(parse(&many).unwrap().source.urls.len(), 2);
        let none = MINIMAL.replace(
            "\"url\":\"http://127.0.0.1:7610\"",
            r#""backup":{"type":"filesystem","path":"a"}"#,
        );
        assert!(parse(&none).unwrap().source.urls.is_empty());
    }
}
