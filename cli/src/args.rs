//! Flags that several commands share.

mod postgres;
mod store;

pub(crate) use postgres::PgArgs;
pub(crate) use store::StoreArgs;

use rindle_gateway::lifecycle::TableName;
use rindle_proto::ids::SourceName;

/// Flags that make no sense together.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct UsageError(pub(crate) String);

/// Which source.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct SourceArgs {
    /// Name of the source: 1 to 32 of a-z, 0-9 and -.
    #[arg(long, env = "RINDLE_SOURCE")]
    pub(crate) source: SourceName,
}

/// What of the source.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct PublicationArgs {
    /// Publication; one that exists and is not ours is used as it is and never altered [default: rindle_<source>].
    #[arg(long, value_name = "NAME")]
    pub(crate) publication: Option<String>,
    /// Tables, `schema.table` between commas; may be left out when the publication exists.
    #[arg(long, value_name = "TABLES")]
    tables: Option<String>,
}

impl PublicationArgs {
    /// The tables that were named.
    pub(crate) fn tables(&self) -> anyhow::Result<Vec<TableName>> {
        let Some(text) = &self.tables else {
            return Ok(Vec::new());
        };
        TableName::parse_list(text).map_err(|error| UsageError(format!("--tables: {error}")).into())
    }
}
