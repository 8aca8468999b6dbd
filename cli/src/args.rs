//! Flags that several commands share.

mod gateway;
mod postgres;
mod store;

pub(crate) use gateway::TokenArgs;
pub(crate) use postgres::PgArgs;
pub(crate) use store::StoreArgs;

use rindle_gateway::lifecycle::TableName;
use rindle_gateway::lifecycle::admission::provider::Provider;
use rindle_gateway::lifecycle::examine::SourceRequest;
use rindle_proto::ids::SourceName;

/// Flags that make no sense together.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct UsageError(pub(crate) String);

/// A duration such as `90s`, `15m`, `2h` or `1d`.
pub(crate) fn parse_duration(text: &str) -> Result<std::time::Duration, UsageError> {
    let bad = || {
        UsageError(format!(
            "{text:?} is no duration: expected a number and s, m, h or d"
        ))
    };
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let seconds = match &text[digits.len()..] {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86400,
        _ => return Err(bad()),
    };
    let count: u64 = digits.parse().map_err(|_number| bad())?;
    match count.checked_mul(seconds) {
        Some(seconds) if seconds > 0 => Ok(std::time::Duration::from_secs(seconds)),
        Some(_) | None => Err(bad()),
    }
}

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

/// Whose server it is, and what it does when it fails over.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct FailoverArgs {
    /// neon, supabase, rds, aurora, cloudsql, azure or planetscale [default: what the catalog shows].
    #[arg(long, value_name = "NAME")]
    provider: Option<Provider>,
    /// provider-managed: the provider carries the slot over a failover [default: what the server can do].
    #[arg(long, value_name = "POSTURE", value_parser = ["provider-managed"])]
    failover: Option<String>,
}

/// A source to look at, from the flags that say where and what it is.
pub(crate) fn source_request(
    postgres: &PgArgs,
    source: SourceArgs,
    publication: PublicationArgs,
    failover: &FailoverArgs,
) -> anyhow::Result<SourceRequest> {
    Ok(SourceRequest {
        endpoint: postgres.endpoint()?,
        source: source.source,
        tables: publication.tables()?,
        publication: publication.publication,
        provider: failover.provider,
        provider_managed: failover.failover.is_some(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_unit() {
        assert_eq!(parse_duration("15m").unwrap().as_secs(), 900);
        assert_eq!(parse_duration("1d").unwrap().as_secs(), 86400);
        for bad in ["", "15", "m", "0s", "-1m", "1 m", "99999999999999999999d"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
    }
}
