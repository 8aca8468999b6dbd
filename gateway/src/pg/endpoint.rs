//! Where Postgres is and who we are there: plain settings, validated when they are made.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// A Postgres cluster as it is configured.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// Tried in this order for the primary of the cluster. Never empty.
    pub hosts: Vec<Host>,
    /// Role.
    pub user: String,
    /// Database.
    pub database: String,
    /// Password; none for trust, peer and certificate authentication.
    pub password: Option<Password>,
    /// How the connection is protected.
    pub tls: TlsSettings,
}

impl Endpoint {
    /// The same with one host: whoever goes on with what a session there began must not end up elsewhere.
    pub fn at(&self, host: &Host) -> Endpoint {
        Endpoint {
            hosts: vec![host.clone()],
            ..self.clone()
        }
    }
}

/// One address of a cluster. A name that starts with `/` is a directory with a Unix socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// DNS name, IP address (without brackets) or socket directory.
    pub name: String,
    /// TCP port, or the number in the socket's name.
    pub port: u16,
}

/// How the connection is protected.
#[derive(Clone, Debug, Default)]
pub struct TlsSettings {
    /// What is demanded of the connection.
    pub mode: SslMode,
    /// PEM file of the authorities that may sign the server's certificate; the word `system` means those of
    /// the operating system. A certificate in the file that is the server's own is accepted as it is.
    pub root_cert: Option<PathBuf>,
    /// PEM file of our certificate and its chain, where the server asks for one.
    pub cert: Option<PathBuf>,
    /// PEM file of our private key.
    pub key: Option<PathBuf>,
}

/// What is demanded of the connection. Unix sockets are never encrypted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SslMode {
    /// Plain text.
    Disable,
    /// Encrypted when the server offers it, else plain text. Also meant by `allow`, which in libpq would try
    /// plain text first; no source that offers encryption should be read without.
    Prefer,
    /// Encrypted; the chain is checked when `root_cert` is given.
    #[default]
    Require,
    /// Encrypted, chain checked (against the system's authorities without `root_cert`).
    VerifyCa,
    /// As `VerifyCa`, and the certificate's alternative names (not its common name) hold the host.
    VerifyFull,
}

/// Where the password comes from.
#[derive(Clone, Debug)]
pub enum Password {
    /// It was given.
    Given(Secret),
    /// It is the first line of a file, which is read for every connection: passwords are changed under a running
    /// gateway.
    File(PathBuf),
}

/// A password file that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("read the password file {}: {source}", path.display())]
pub struct PasswordError {
    path: PathBuf,
    source: std::io::Error,
}

impl Password {
    /// The password as it is now.
    ///
    /// # Errors
    /// When its file cannot be read.
    pub fn read(&self) -> Result<Secret, PasswordError> {
        let path = match self {
            Password::Given(secret) => return Ok(secret.clone()),
            Password::File(path) => path,
        };
        match std::fs::read_to_string(path) {
            Ok(text) => Ok(Secret::new(text.trim_end_matches(['\r', '\n']))),
            Err(source) => Err(PasswordError {
                path: path.clone(),
                source,
            }),
        }
    }
}

/// A password. Debug prints nothing of it.
#[derive(Clone)]
pub struct Secret(String);

/// A setting that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} {text:?} is not valid: {expected}")]
pub struct SettingError {
    what: &'static str,
    text: String,
    expected: &'static str,
}

impl Host {
    /// Reads `name`, `name:port`, `[::1]:port` or a socket directory.
    ///
    /// # Errors
    /// When the name is empty or the port is none.
    pub fn parse(text: &str, default_port: u16) -> Result<Host, SettingError> {
        let bad = |expected| SettingError {
            what: "host",
            text: text.to_owned(),
            expected,
        };
        let host = |name: &str, port| Host {
            name: name.to_owned(),
            port,
        };
        if text.starts_with('/') {
            return Ok(host(text, default_port));
        }
        let (name, port) = match text.strip_prefix('[') {
            Some(rest) => rest
                .split_once(']')
                .ok_or_else(|| bad("expected a closing bracket"))?,
            // More than one colon without brackets is an IPv6 address without a port.
            None if text.matches(':').count() > 1 => (text, ""),
            None => text.find(':').map_or((text, ""), |at| text.split_at(at)),
        };
        if name.is_empty() {
            return Err(bad("expected a name before the port"));
        }
        match port.strip_prefix(':') {
            None if port.is_empty() => Ok(host(name, default_port)),
            None => Err(bad("expected : and a port behind the bracket")),
            Some(port) => match port.parse() {
                Ok(port) if port > 0 => Ok(host(name, port)),
                _ => Err(bad("expected a port from 1 to 65535")),
            },
        }
    }

    /// Reads hosts between commas.
    ///
    /// # Errors
    /// When there is none, or one of them does not parse.
    pub fn parse_list(text: &str, default_port: u16) -> Result<Vec<Host>, SettingError> {
        text.split(',')
            .map(|part| Host::parse(part.trim(), default_port))
            .collect()
    }

    /// True for a directory with a Unix socket.
    pub fn is_socket(&self) -> bool {
        self.name.starts_with('/')
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name.contains(':') {
            true => write!(f, "[{}]:{}", self.name, self.port),
            false => write!(f, "{}:{}", self.name, self.port),
        }
    }
}

impl FromStr for SslMode {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        match text {
            "disable" => Ok(SslMode::Disable),
            "allow" | "prefer" => Ok(SslMode::Prefer),
            "require" => Ok(SslMode::Require),
            "verify-ca" => Ok(SslMode::VerifyCa),
            "verify-full" => Ok(SslMode::VerifyFull),
            _ => Err(SettingError {
                what: "sslMode",
                text: text.to_owned(),
                expected: "expected disable, allow, prefer, require, verify-ca or verify-full",
            }),
        }
    }
}

impl Secret {
    /// Keeps a password.
    pub fn new(password: impl Into<String>) -> Self {
        Self(password.into())
    }

    /// The password itself, for whoever sends it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_may_carry_their_own_port() {
        let table = [
            ("db", "db", 5432),
            ("db:6000", "db", 6000),
            ("10.0.0.1", "10.0.0.1", 5432),
            ("::1", "::1", 5432),
            ("[::1]", "::1", 5432),
            ("[::1]:6000", "::1", 6000),
            ("/run/postgresql", "/run/postgresql", 5432),
        ];
        for (text, name, port) in table {
            let wanted = Host {
                name: name.to_owned(),
                port,
            };
            assert_eq!(Host::parse(text, 5432), Ok(wanted), "{text}");
        }
        for bad in [
            "",
            ":5432",
            "db:",
            "db:0",
            "db:65536",
            "[::1",
            "[::1]6000",
            "[]:1",
        ] {
            assert!(Host::parse(bad, 5432).is_err(), "{bad}");
        }
        let list = Host::parse_list("a, b:1", 5432).unwrap();
        assert_eq!(
            list.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["a:5432", "b:1"]
        );
    }

    #[test]
    fn secrets_are_not_printed() {
        let endpoint = Endpoint {
            hosts: vec![],
            user: "u".to_owned(),
            database: "d".to_owned(),
            password: Some(Password::Given(Secret::new("hunter2"))),
            tls: TlsSettings::default(),
        };
        assert!(!format!("{endpoint:?}").contains("hunter2"));
    }

    #[test]
    fn modes_are_those_of_libpq() {
        assert_eq!("allow".parse(), Ok(SslMode::Prefer));
        assert_eq!("verify-full".parse(), Ok(SslMode::VerifyFull));
        assert!("on".parse::<SslMode>().is_err());
    }
}
