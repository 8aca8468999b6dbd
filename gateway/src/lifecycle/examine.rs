//! Looks at a source as the gateway will see it: whether it is the server itself that answers, what its catalog
//! says, whether the role may stream. `preflight` tells it; `mint` acts on it.

use std::time::Duration;

use rindle_proto::ids::SourceName;
use tokio_postgres::{Client, SimpleQueryMessage};

use super::admission::facts::{self, SourceFacts};
use super::admission::posture::{self, Posture};
use super::admission::provider::{self, Provider};
use super::admission::{self, Asked, Finding};
use super::error::{LifecycleError, Refusal};
use super::names::{TableName, publication_name};
use crate::pg::conn::{self, ConnectError};
use crate::pg::endpoint::Endpoint;
use crate::pg::walsender::{SystemIdentity, WalStream};

/// Server errors that say that the role may not replicate, or may not make an event trigger.
const NO_RIGHT: &str = "42501";
/// Server error when every WAL sender is in use.
const TOO_MANY: &str = "53300";
/// How a server shows that does not know the settings we pin.
const TOO_OLD_SAYS: &str = "the server is older than 15";
/// A question that reads nothing is answered at once; a pooler may have no server process left for it.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// What PgBouncer says of a session that it cannot lend.
const POOLER_SAYS: &str = "unsupported startup parameter";

/// A source to look at.
#[derive(Clone, Debug)]
pub struct SourceRequest {
    /// Where Postgres is, as the role that the gateway will use.
    pub endpoint: Endpoint,
    /// The source.
    pub source: SourceName,
    /// The publication; `rindle_<source>` by default.
    pub publication: Option<String>,
    /// Tables that the publication must carry.
    pub tables: Vec<TableName>,
    /// Whose server it is said to be.
    pub provider: Option<Provider>,
    /// The provider is to carry the slot over a failover.
    pub provider_managed: bool,
}

/// What was seen.
#[derive(Clone, Debug)]
pub struct Examined {
    /// Settings, catalog and rights.
    pub facts: SourceFacts,
    /// Who the server is; none when the role gets no replication session.
    pub identity: Option<SystemIdentity>,
    /// Whose server it is.
    pub provider: Option<Provider>,
    /// The posture of a generation minted now.
    pub posture: Posture,
    /// Everything that is wrong, and what an operator should know.
    pub findings: Vec<Finding>,
}

/// Looks at a source. `command` stands in the sessions' names; `before_prepare` takes what `prepare` would make as made.
///
/// # Errors
/// When Postgres cannot be asked, or lends its sessions: nothing else that it says counts then.
pub async fn examine(
    request: &SourceRequest,
    command: &str,
    before_prepare: bool,
) -> Result<Examined, LifecycleError> {
    let application_name = format!("rindle-{command} {}", request.source);
    let asked = Asked {
        tables: &request.tables,
        hosts: &request.endpoint.hosts,
        provider: request.provider,
        provider_managed: request.provider_managed,
        before_prepare,
    };
    let client = connect(request, &application_name).await?;
    if let Some(seen) = lends_sessions(request, &client, &application_name).await? {
        return Err(admission::pooler_by_behaviour(seen).into());
    }
    let facts = read(&client, request).await?;
    let mut findings = admission::check(&facts, &asked);
    let provider = provider::detect(&facts.fingerprints).or(request.provider);
    findings.extend(capture_right(&client).await);
    let identity = match identify(request, &application_name, provider).await? {
        Ok(identity) => Some(identity),
        Err(finding) => {
            // A full server is told once.
            let known = finding.filter(|new| findings.iter().all(|old| old.id != new.id));
            findings.extend(known);
            None
        }
    };
    findings.sort_by_key(|finding| finding.level);
    let (posture, _) = posture::decide(&facts.session, &facts.failover, request.provider_managed);
    Ok(Examined {
        facts,
        identity,
        provider,
        posture,
        findings,
    })
}

async fn connect(
    request: &SourceRequest,
    application_name: &str,
) -> Result<Client, LifecycleError> {
    let connecting = conn::connect(&request.endpoint, application_name).await;
    connecting.map_err(|error| not_connected(error, &request.endpoint))
}

/// What this very session prepared is not there: another server session answers.
const STATEMENT_GONE: &str = "26000";

/// A standby and a pooler say so in their own way.
fn not_connected(error: ConnectError, endpoint: &Endpoint) -> LifecycleError {
    if error.is_standby() {
        return admission::standby().into();
    }
    let findings = admission::poolers_by_name(&endpoint.hosts);
    let said = crate::ship::chain(&error);
    if said.contains(POOLER_SAYS) || error.sqlstate() == Some(STATEMENT_GONE) {
        return admission::pooler_by_behaviour(format!(
            "the session was refused as a pooler does it: {said}"
        ))
        .into();
    }
    if said.contains(TOO_OLD_SAYS)
        && let Some(finding) = admission::too_old(0, "older than 15")
    {
        return finding.into();
    }
    match findings.is_empty() {
        true => error.into(),
        false => Refusal { findings }.into(),
    }
}

/// Two sessions of one server are two processes, and each stays what it is. What was seen instead, if anything.
async fn lends_sessions(
    request: &SourceRequest,
    first: &Client,
    application_name: &str,
) -> Result<Option<String>, LifecycleError> {
    let second = connect(request, application_name).await?;
    let before = process(first, "").await?;
    let other = process(&second, "BEGIN;").await?;
    let Ok(after) = tokio::time::timeout(ANSWER_WITHIN, process(first, "")).await else {
        let seen = "one session was not answered while another was in a transaction";
        return Ok(Some(seen.to_owned()));
    };
    let after = after?;
    process(&second, "ROLLBACK;").await?;
    Ok(if before == other {
        Some(format!(
            "two sessions at once were given one server process, {other}"
        ))
    } else if before != after {
        Some(format!(
            "one session was given two server processes, {before} and {after}"
        ))
    } else {
        None
    })
}

/// In the simple protocol: a pooler may not know the prepared statements of the other one.
async fn process(client: &Client, before: &str) -> Result<String, LifecycleError> {
    let sql = format!("{before} SELECT pg_catalog.pg_backend_pid()");
    let answers = client.simple_query(&sql).await;
    let answers = answers.map_err(LifecycleError::postgres("ask for the session's process"))?;
    let pid = answers.iter().find_map(|answer| match answer {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    });
    pid.ok_or_else(|| LifecycleError::Changed {
        what: "the session".to_owned(),
    })
}

async fn read(client: &Client, request: &SourceRequest) -> Result<SourceFacts, LifecycleError> {
    let default = || publication_name(&request.source);
    let publication = request.publication.clone().unwrap_or_else(default);
    let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";
    let begun = client.batch_execute(begin).await;
    begun.map_err(LifecycleError::postgres("begin"))?;
    let facts = facts::read(client, &publication, &request.tables).await?;
    let ended = client.batch_execute("COMMIT").await;
    ended.map_err(LifecycleError::postgres("commit"))?;
    Ok(facts)
}

/// Makes an event trigger and takes it back.
async fn capture_right(client: &Client) -> Option<Finding> {
    let begin = "BEGIN READ WRITE; SET LOCAL lock_timeout = '2s'";
    let tried = client
        .batch_execute(&format!("{begin}; {}", admission::capture::TRY_TRIGGER))
        .await;
    // The session ends with it in any case.
    if let Err(error) = client.batch_execute("ROLLBACK").await {
        tracing::debug!(%error, "take the probe back");
    }
    Some(admission::capture::no_right(&tried.err()?))
}

/// Opens a replication session and asks who the server is: only this shows that the role may stream.
async fn identify(
    request: &SourceRequest,
    application_name: &str,
    provider: Option<Provider>,
) -> Result<Result<SystemIdentity, Option<Finding>>, LifecycleError> {
    let mut session = match WalStream::connect(&request.endpoint, application_name).await {
        Ok(session) => session,
        Err(error) => return refused_session(error, &request.endpoint, provider).map(Err),
    };
    let failed = |doing| move |source| LifecycleError::Session { doing, source };
    let own = session.query("SELECT pg_catalog.pg_backend_pid()").await;
    let own = own.map_err(failed("ask for the session's process"))?;
    let own = own
        .first()
        .and_then(|row| row.first()?.as_deref()?.parse().ok());
    if own != Some(session.backend_pid()) {
        let seen = "one replication session was given two server processes".to_owned();
        return Ok(Err(Some(admission::pooler_by_behaviour(seen))));
    }
    let identity = session.identify_system().await;
    let identity = identity.map_err(failed("identify the server"))?;
    session.close().await;
    Ok(Ok(identity))
}

fn refused_session(
    error: ConnectError,
    endpoint: &Endpoint,
    provider: Option<Provider>,
) -> Result<Option<Finding>, LifecycleError> {
    match error.sqlstate() {
        Some(NO_RIGHT) => Ok(Some(admission::no_replication_right(
            &endpoint.user,
            &error.to_string(),
            provider,
        ))),
        Some(TOO_MANY) => Ok(Some(admission::no_free_sender(&error.to_string()))),
        _ => Err(not_connected(error, endpoint)),
    }
}
