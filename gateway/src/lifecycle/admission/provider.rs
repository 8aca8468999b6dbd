//! Managed Postgres: which provider it is, by what its catalog holds, and what is known to matter there. A host name is
//! a hint only. None of it replaces the provider's own documentation.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use super::facts::{Fingerprints, SessionFacts};
use super::{Finding, Level};

/// A provider of managed Postgres.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Provider {
    /// Neon.
    Neon,
    /// Supabase.
    Supabase,
    /// Amazon RDS.
    Rds,
    /// Amazon Aurora.
    Aurora,
    /// Google Cloud SQL and AlloyDB.
    CloudSql,
    /// Azure Database for PostgreSQL, flexible server.
    Azure,
    /// PlanetScale for Postgres; nothing in its catalog shows it.
    PlanetScale,
}

const ALL: [Provider; 7] = [
    Provider::Neon,
    Provider::Supabase,
    Provider::Rds,
    Provider::Aurora,
    Provider::CloudSql,
    Provider::Azure,
    Provider::PlanetScale,
];

impl Provider {
    fn word(self) -> &'static str {
        match self {
            Provider::Neon => "neon",
            Provider::Supabase => "supabase",
            Provider::Rds => "rds",
            Provider::Aurora => "aurora",
            Provider::CloudSql => "cloudsql",
            Provider::Azure => "azure",
            Provider::PlanetScale => "planetscale",
        }
    }
}

impl fmt::Display for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Provider::Neon => "Neon",
            Provider::Supabase => "Supabase",
            Provider::Rds => "Amazon RDS",
            Provider::Aurora => "Amazon Aurora",
            Provider::CloudSql => "Cloud SQL",
            Provider::Azure => "Azure Database for PostgreSQL",
            Provider::PlanetScale => "PlanetScale for Postgres",
        })
    }
}

impl FromStr for Provider {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = ALL.into_iter().find(|provider| provider.word() == text);
        found.ok_or_else(|| {
            let known: Vec<&str> = ALL.into_iter().map(Provider::word).collect();
            format!("{text:?} is none of {}", known.join(", "))
        })
    }
}

/// The names that tell providers apart, looked up in the catalog.
pub(super) const ROLES: [&str; 6] = [
    "neon_superuser",
    "supabase_admin",
    "rds_superuser",
    "cloudsqlsuperuser",
    "alloydbsuperuser",
    "azure_pg_admin",
];
pub(super) const SETTINGS: [&str; 4] = [
    "rds.logical_replication",
    "cloudsql.logical_decoding",
    "alloydb.logical_decoding",
    "azure.extensions",
];
pub(super) const FUNCTIONS: [&str; 1] = ["aurora_version"];
pub(super) const EXTENSIONS: [&str; 2] = ["neon", "supautils"];

/// The provider that the catalog shows.
pub fn detect(found: &Fingerprints) -> Option<Provider> {
    let any = |list: &[String], names: &[&str]| list.iter().any(|one| names.contains(&&**one));
    let role = |names: &[&str]| any(&found.roles, names);
    let setting = |names: &[&str]| any(&found.settings, names);
    let extension = |names: &[&str]| any(&found.extensions, names);
    if role(&["neon_superuser"]) || extension(&["neon"]) {
        return Some(Provider::Neon);
    }
    if role(&["supabase_admin"]) || extension(&["supautils"]) {
        return Some(Provider::Supabase);
    }
    // Aurora has the roles of RDS too.
    if any(&found.functions, &["aurora_version"]) {
        return Some(Provider::Aurora);
    }
    if role(&["rds_superuser"]) || setting(&["rds.logical_replication"]) {
        return Some(Provider::Rds);
    }
    let google = ["cloudsql.logical_decoding", "alloydb.logical_decoding"];
    if role(&["cloudsqlsuperuser", "alloydbsuperuser"]) || setting(&google) {
        return Some(Provider::CloudSql);
    }
    if role(&["azure_pg_admin"]) || setting(&["azure.extensions"]) {
        return Some(Provider::Azure);
    }
    None
}

/// How `wal_level` becomes logical where `ALTER SYSTEM` is the provider's.
pub(super) fn wal_level_mend(provider: Option<Provider>) -> &'static str {
    match provider {
        Some(Provider::Neon) => {
            "turn logical replication on in the project's settings; it cannot be turned off again"
        }
        Some(Provider::Supabase) => {
            "it is logical on Supabase; ask their support why it is not here"
        }
        Some(Provider::Rds | Provider::Aurora) => {
            "set rds.logical_replication = 1 in the (cluster) parameter group, then reboot the writer"
        }
        Some(Provider::CloudSql) => {
            "set the flag cloudsql.logical_decoding (AlloyDB: alloydb.logical_decoding) to on; it restarts"
        }
        Some(Provider::Azure) => {
            "set the server parameter wal_level to LOGICAL, then restart the server"
        }
        Some(Provider::PlanetScale) => "set wal_level to logical in the cluster's parameters",
        None => "ALTER SYSTEM SET wal_level = 'logical', then restart the server",
    }
}

/// How a role gets the right to replicate.
pub(super) fn replication_mend(provider: Option<Provider>, role: &str) -> String {
    match provider {
        Some(Provider::Rds | Provider::Aurora) => format!("GRANT rds_replication TO {role}"),
        Some(Provider::Neon) => format!(
            "use a role made in Neon's console, CLI or API (these replicate), or ALTER ROLE {role} REPLICATION as one of them"
        ),
        _ => format!("ALTER ROLE {role} REPLICATION"),
    }
}

/// What is to be known of a provider.
pub(super) fn check(
    server: &SessionFacts,
    detected: Option<Provider>,
    declared: Option<Provider>,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let (Some(detected), Some(declared)) = (detected, declared)
        && detected != declared
    {
        let seen = format!("--provider says {declared}, the catalog shows {detected}");
        let why = "the advice of another provider would be wrong here";
        findings.push(Finding::fatal(
            "ProviderDiffers",
            seen,
            why,
            "leave --provider out",
        ));
    }
    findings.extend(detected.or(declared).map(|provider| {
        let (level, why, mend) = advice(provider, server.replication_right);
        let seen = format!("the server is {provider}");
        Finding {
            level,
            ..Finding::fatal("Provider", seen, why, mend)
        }
    }));
    findings
}

/// What matters at a provider: how much, why, and what to do.
fn advice(provider: Provider, may_replicate: bool) -> (Level, &'static str, &'static str) {
    match provider {
        Provider::Neon => (
            Level::Warning,
            "Neon removes a slot whose reader was away for long, and a compute that is read from does not suspend",
            "keep the gateway running; watch rindle pg status; expect the compute to stay on",
        ),
        Provider::Supabase => (
            Level::Note,
            "row-level security is on by default, and the direct host has an IPv6 address only unless the add-on is bought",
            "ALTER ROLE … BYPASSRLS for the gateway's role; run the gateway where IPv6 works, or buy the add-on",
        ),
        Provider::Rds => (
            Level::Note,
            "a Multi-AZ instance keeps its slots when it fails over, a promoted read replica has none",
            "after a promotion of a read replica mint a new generation",
        ),
        Provider::Aurora => (
            Level::Note,
            "the slot lies in the cluster's storage; the reader endpoint gives no replication session",
            "name the cluster's writer endpoint; after a failover check rindle pg status",
        ),
        Provider::CloudSql => (
            Level::Note,
            "a regional instance keeps its slots when it fails over, a promoted read replica has none",
            "after a promotion of a read replica mint a new generation",
        ),
        Provider::Azure => (
            Level::Warning,
            "below PostgreSQL 17 a zone-redundant failover loses slots unless the PG Failover Slots extension keeps them",
            "load pg_failover_slots, or mint a new generation after a failover",
        ),
        Provider::PlanetScale if !may_replicate => (
            Level::Fatal,
            "only a role with the replication attribute may make the slot that is then registered with the cluster",
            "use the default postgres role, or one that inherits it with REPLICATION",
        ),
        Provider::PlanetScale => (
            Level::Note,
            "a slot that is not registered with the cluster is lost when it fails over",
            "rindle pg mint --failover provider-managed prints the registration",
        ),
    }
}

/// What the operator does so that the provider carries a slot over a failover; none where nothing is to be done.
pub fn registration(provider: Option<Provider>, slot: &str) -> String {
    match provider {
        Some(Provider::PlanetScale) => format!(
            "in the cluster's configuration add {slot} to the logical replication slots that survive a failover \
             (Clusters, Parameters, Failover slots), and save it before the gateway first starts"
        ),
        _ => format!(
            "register slot {slot} with the provider as one that survives a failover, before the gateway first starts"
        ),
    }
}
