//! What can go wrong with a replication session.

use std::fmt;
use std::io;

/// SQLSTATEs that callers tell apart.
pub mod sqlstate {
    /// Another session uses the slot: wait.
    pub const SLOT_IN_USE: &str = "55006";
    /// From `start`: there is no such slot. From the stream: there is no such publication.
    pub const NOT_FOUND: &str = "42704";
    /// The slot was invalidated, or `wal_level` is not logical.
    pub const NOT_IN_STATE: &str = "55000";
    /// From `create_slot`: the slot exists.
    pub const EXISTS: &str = "42710";
    /// `lock_timeout` passed.
    pub const LOCK_TIMEOUT: &str = "55P03";
}

/// Why a replication session does not go on.
#[derive(Debug, thiserror::Error)]
pub enum WalError {
    /// The socket failed.
    #[error("{doing}")]
    Io {
        /// What was being done.
        doing: &'static str,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The server closed the connection without a word.
    #[error("postgres closed the connection")]
    Closed,
    /// The server ended the stream in good order, as it does when it shuts down.
    #[error("postgres ended the stream")]
    StreamEnded,
    /// The server reported an error.
    #[error("postgres: {0}")]
    Server(Box<ServerError>),
    /// The server's bytes make no sense.
    #[error("postgres protocol: expected {expected}")]
    Protocol {
        /// What was expected.
        expected: &'static str,
    },
    /// The server offers no TLS and the settings demand it.
    #[error("postgres offers no TLS: set ssl = on there, or sslMode to disable")]
    NoTls,
    /// The TLS handshake failed.
    #[error("TLS with postgres: {0}")]
    Tls(#[source] io::Error),
    /// The server wants a password and none is configured.
    #[error("postgres asks for a password: set passwordFile or RINDLE_PG_PASSWORD")]
    NoPassword,
    /// The server wants a way to authenticate that is not spoken here.
    #[error("postgres asks for {method}: use scram-sha-256, md5, password, cert or trust")]
    Authentication {
        /// What it asks for.
        method: String,
    },
    /// The method does not fit what the session is doing: a bug of the caller.
    #[error("the replication session is in another phase")]
    WrongPhase,
}

/// An error as the server reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerError {
    /// `ERROR`, `FATAL` or `PANIC`.
    pub severity: String,
    /// SQLSTATE.
    pub code: String,
    /// Primary message.
    pub message: String,
    /// More of it.
    pub detail: Option<String>,
    /// What to do about it.
    pub hint: Option<String>,
}

impl ServerError {
    /// True when the server ends the session with this error.
    pub fn is_fatal(&self) -> bool {
        self.severity != "ERROR"
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.message, self.code)?;
        for more in [&self.detail, &self.hint].into_iter().flatten() {
            write!(f, "; {more}")?;
        }
        Ok(())
    }
}

impl WalError {
    /// SQLSTATE of the server's error.
    pub fn sqlstate(&self) -> Option<&str> {
        match self {
            WalError::Server(error) => Some(&error.code),
            _ => None,
        }
    }

    pub(super) fn io(doing: &'static str) -> impl FnOnce(io::Error) -> WalError {
        move |source| WalError::Io { doing, source }
    }

    pub(super) fn unexpected(expected: &'static str) -> WalError {
        WalError::Protocol { expected }
    }

    pub(super) fn not_utf8(_error: std::string::FromUtf8Error) -> WalError {
        WalError::Protocol {
            expected: "a reply in UTF-8",
        }
    }
}
