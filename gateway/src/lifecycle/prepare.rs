//! `rindle pg prepare`: what a source needs in Postgres, made in one transaction and written into a ledger.
//!
//! What is there is read first ([`present`]); [`plan`] is pure and says what to run. A publication that is not in
//! the ledger is somebody else's: it is used as it is. Nothing is changed when anything is refused.

mod capture;
mod grants;
mod ledger;
mod plan;
mod present;
#[cfg(test)]
mod tests;

use rindle_proto::ids::SourceName;
use serde::Serialize;
use tokio_postgres::Client;

use super::admission::{self, Asked, Finding, Level, breaks_writes, facts};
use super::error::{LifecycleError, Refusal};
use super::names::{TableName, publication_name};
use crate::pg::conn;
use crate::pg::endpoint::Endpoint;

/// Key of the advisory lock that lets one `prepare` of a database run at a time.
pub(super) const LOCK_KEY: i64 = 0x7269_6e64_6c65_0001;

/// What to prepare.
#[derive(Clone, Debug)]
pub struct PrepareRequest {
    /// Where Postgres is; the role must own the tables and may create in the database.
    pub endpoint: Endpoint,
    /// The source.
    pub source: SourceName,
    /// The publication; `rindle_<source>` by default.
    pub publication: Option<String>,
    /// Tables to publish. None means those of the publication that exists.
    pub tables: Vec<TableName>,
    /// Give this role what the gateway needs.
    pub role: Option<String>,
    /// Make and publish the table through which applications confirm their mutations.
    pub client_mutations: bool,
    /// Take tables out of our publication that are not named.
    pub prune: bool,
    /// Say what would be run, and run nothing.
    pub dry_run: bool,
}

/// What was done, or would be.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Prepared {
    /// The source.
    pub source: SourceName,
    /// The publication.
    pub publication: String,
    /// It is in the ledger: made by us.
    pub ours: bool,
    /// Nothing was run.
    pub dry_run: bool,
    /// Statements in the order in which they run, one transaction.
    pub statements: Vec<String>,
    /// Tables added to the publication.
    pub added_tables: Vec<TableName>,
    /// Tables taken out of it.
    pub removed_tables: Vec<TableName>,
    /// Tables in it that were not named.
    pub extra_tables: Vec<TableName>,
    /// What of the capture of schema changes had been changed since it was made, and is as it was again.
    pub repaired: Vec<String>,
    /// What `mint` would refuse as things are now, and what an operator should know.
    pub findings: Vec<Finding>,
}

/// Prepares a source.
///
/// # Errors
/// When something is refused, by us or by Postgres; nothing was changed then.
pub async fn prepare(request: &PrepareRequest) -> Result<Prepared, LifecycleError> {
    let application_name = format!("rindle-prepare {}", request.source);
    let client = conn::connect(&request.endpoint, &application_name)
        .await
        .map_err(|error| match error.is_standby() {
            true => admission::standby().into(),
            false => LifecycleError::from(error),
        })?;
    let default = || publication_name(&request.source);
    let publication = request.publication.clone().unwrap_or_else(default);
    let begin = format!("BEGIN; SELECT pg_catalog.pg_advisory_xact_lock({LOCK_KEY})");
    client
        .batch_execute(&begin)
        .await
        .map_err(LifecycleError::postgres("begin"))?;
    // Dropping the client before COMMIT rolls everything back.
    let present = present::read(&client, &publication, &request.tables).await?;
    let plan = plan::plan(request, &publication, &present)?;
    let mut prepared = Prepared {
        source: request.source.clone(),
        ours: plan.ours,
        dry_run: request.dry_run,
        statements: plan.statements,
        added_tables: plan.added,
        removed_tables: plan.removed,
        extra_tables: plan.extra,
        repaired: plan.repaired,
        findings: Vec::new(),
        publication,
    };
    if !request.dry_run {
        run(&client, &prepared.statements).await?;
    }
    let mut told = plan.told;
    if let Some(role) = &request.role {
        let there = !request.dry_run || present.server.schema;
        let grants = grants::lacking(&client, request, &prepared.publication, role, there).await?;
        if !request.dry_run {
            run(&client, &grants.statements).await?;
            run(&client, &grants.quiet).await?;
        }
        prepared.statements.extend(grants.statements);
        told.extend(grants.findings);
    }
    if request.dry_run {
        prepared.findings = told;
        return Ok(prepared);
    }
    prepared.findings = check(&client, &prepared, &request.tables).await?;
    prepared.findings.extend(told);
    client
        .batch_execute("COMMIT")
        .await
        .map_err(LifecycleError::postgres("commit"))?;
    Ok(prepared)
}

async fn run(client: &Client, statements: &[String]) -> Result<(), LifecycleError> {
    for statement in statements {
        let doing = format!("run {}", statement.lines().next().unwrap_or_default());
        let done = client.batch_execute(statement).await;
        done.map_err(LifecycleError::postgres(&doing))?;
    }
    Ok(())
}

/// Looks at the publication as it would be after COMMIT. What would break the application's own writes is refused;
/// what only a mirror could not bear is told, for `mint` refuses it.
async fn check(
    client: &Client,
    prepared: &Prepared,
    wanted: &[TableName],
) -> Result<Vec<Finding>, LifecycleError> {
    let source = facts::read(client, &prepared.publication, wanted).await?;
    let asked = Asked {
        tables: wanted,
        ..Asked::default()
    };
    let findings = admission::check(&source, &asked);
    if prepared.ours && findings.iter().any(breaks_writes) {
        let findings = findings.into_iter().filter(breaks_writes).collect();
        return Err(Refusal { findings }.into());
    }
    // What it only is good to know, preflight tells.
    let fatal = findings.into_iter().filter(Finding::is_fatal);
    let mut findings: Vec<Finding> = fatal.map(Finding::warning).collect();
    if prepared.ours && !prepared.extra_tables.is_empty() {
        let names: Vec<String> = prepared
            .extra_tables
            .iter()
            .map(ToString::to_string)
            .collect();
        findings.push(Finding {
            id: "ExtraTables",
            level: Level::Warning,
            object: None,
            seen: format!("the publication also carries {}", names.join(", ")),
            why: "they are mirrored although they were not named now",
            mend: "name them, or run this again with --prune".to_owned(),
        });
    }
    Ok(findings)
}
