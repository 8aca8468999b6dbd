//! Why a command did not do its work.

use rindle_archive::{ArchiveError, ImageError, Kind, ReadError, TakeOverError};

use super::admission::Finding;
use crate::pg::catalog::CatalogError;
use crate::pg::conn::ConnectError;
use crate::pg::walsender::WalError;

/// Why a command did not do its work.
#[derive(Debug, thiserror::Error)]
pub enum LifecycleError {
    /// The source, or what was asked for, is not what it must be. Nothing was changed.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// No session with Postgres.
    #[error("connect to Postgres")]
    Connect(#[from] ConnectError),
    /// Postgres refused a statement, or the connection broke.
    #[error("{doing}")]
    Postgres {
        /// What was being done.
        doing: String,
        /// What Postgres said.
        #[source]
        source: tokio_postgres::Error,
    },
    /// The replication session failed.
    #[error("{doing}")]
    Session {
        /// What was being done.
        doing: &'static str,
        /// What went wrong.
        #[source]
        source: WalError,
    },
    /// The catalog could not be read.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// Old transactions keep a slot from being created.
    #[error(
        "older transactions keep a snapshot from being exported for {waited}; end them (SELECT * FROM pg_stat_activity \
         WHERE backend_xid IS NOT NULL; SELECT * FROM pg_prepared_xacts), or try again later"
    )]
    Blocked {
        /// How long it was waited.
        waited: &'static str,
    },
    /// Something changed its shape while it was read.
    #[error("{what} changed while it was read; run this again")]
    Changed {
        /// What changed.
        what: String,
    },
    /// A row of the source that no mirror could hold.
    #[error("{detail}")]
    Row {
        /// Which, and why.
        detail: String,
    },
    /// The archive did not do what was asked.
    #[error("archive")]
    Archive(#[from] ArchiveError),
    /// The log could not be sealed.
    #[error("seal the log")]
    Seal(#[source] TakeOverError),
    /// The log could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The images could not be read.
    #[error("images")]
    Image(#[source] ImageError),
}

/// Everything that is wrong, told at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What was found; at least one is fatal.
    pub findings: Vec<Finding>,
}

impl std::error::Error for Refusal {}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let fatal = self
            .findings
            .iter()
            .filter(|finding| finding.is_fatal())
            .count();
        write!(
            f,
            "refused for {fatal} reason{}",
            if fatal == 1 { "" } else { "s" }
        )?;
        self.findings
            .iter()
            .try_for_each(|finding| write!(f, "\n{finding}"))
    }
}

impl LifecycleError {
    /// True when trying again changes nothing: what was asked for, or the source, must change first.
    pub fn is_refused(&self) -> bool {
        match self {
            LifecycleError::Refused(_) => true,
            LifecycleError::Archive(error) => error.kind() == Kind::Refused,
            LifecycleError::Catalog(CatalogError::NoPublication { .. }) => true,
            LifecycleError::Connect(_)
            | LifecycleError::Image(_)
            | LifecycleError::Read(_)
            | LifecycleError::Seal(_)
            | LifecycleError::Postgres { .. }
            | LifecycleError::Session { .. }
            | LifecycleError::Blocked { .. }
            | LifecycleError::Changed { .. }
            | LifecycleError::Row { .. }
            | LifecycleError::Catalog(_) => false,
        }
    }

    /// For `map_err` on a query: says what was being done.
    pub(super) fn postgres(doing: &str) -> impl Fn(tokio_postgres::Error) -> Self {
        move |source| Self::Postgres {
            doing: doing.to_owned(),
            source,
        }
    }
}

impl From<Finding> for Refusal {
    fn from(finding: Finding) -> Self {
        Self {
            findings: vec![finding],
        }
    }
}

impl From<Finding> for LifecycleError {
    fn from(finding: Finding) -> Self {
        Self::Refused(Refusal {
            findings: vec![finding],
        })
    }
}
