//! `rindle pg mint`: a generation of an admitted source, written to the archive. Nothing is made in Postgres: the
//! gateway that finds the generation creates its slot and copies.

use std::time::{SystemTime, UNIX_EPOCH};

use rindle_archive::generation::FORMAT;
use rindle_archive::{Archive, ArchiveError, GenerationRecord};
use rindle_proto::ids::{Generation, SourceName};

use super::admission::{self, Finding, facts};
use super::error::{LifecycleError, Refusal};
use super::names::{TableName, publication_name};
use crate::pg::catalog::{CatalogView, Unfit};
use crate::pg::conn::{self, ConnectError};
use crate::pg::endpoint::Endpoint;
use crate::pg::walsender::{SystemIdentity, WalStream};

/// What a generation survives: a failover of the source needs a new one.
const POSTURE: &str = "fencing";

/// Server errors that say that the role may not replicate.
const NO_RIGHT: &str = "42501";
/// Server error when every WAL sender is in use.
const TOO_MANY: &str = "53300";

/// What to mint.
#[derive(Clone, Debug)]
pub struct MintRequest {
    /// Where Postgres is, as the role that the gateway will use.
    pub endpoint: Endpoint,
    /// The source.
    pub source: SourceName,
    /// The publication; `rindle_<source>` by default.
    pub publication: Option<String>,
    /// Tables that the publication must carry.
    pub tables: Vec<TableName>,
}

/// A new generation.
#[derive(Clone, Debug)]
pub struct Minted {
    /// Its record in the archive.
    pub record: GenerationRecord,
    /// The generation that the source's pointer names now: this one when there was none.
    pub current: Generation,
}

/// Mints a generation, and makes it the source's current one when there is none yet.
///
/// # Errors
/// With everything that is wrong when the source cannot be mirrored exactly; when Postgres or the archive fails.
pub async fn mint(archive: &Archive, request: &MintRequest) -> Result<Minted, LifecycleError> {
    // First, so that an archive that is not there is told before Postgres is asked.
    let current = archive.current().await?;
    let admitted = admit(request).await?;
    let Admitted {
        view,
        identity,
        publication,
    } = admitted;
    let schema = view.schema().map_err(unfit)?;
    let generation = Generation(ulid::Ulid::generate());
    let record = GenerationRecord {
        generation,
        source: request.source.clone(),
        system_identifier: identity.systemid,
        timeline: identity.timeline,
        database: identity.dbname,
        slot: request.source.slot_name(generation),
        publication,
        posture: POSTURE.to_owned(),
        minted_at_ms: now_ms(),
        schema,
        format: FORMAT,
    };
    archive.create_generation(&record).await?;
    let current = match current {
        Some(current) => current.generation,
        None => set_first(archive, generation).await?,
    };
    Ok(Minted { record, current })
}

/// Something that no check named.
#[expect(clippy::needless_pass_by_value, reason = "used with map_err")]
pub(super) fn unfit(unfit: Unfit) -> LifecycleError {
    let why = "the mirror could not equal the source";
    Finding::fatal("Unfit", unfit.to_string(), why, "see what was seen").into()
}

/// What admission leaves behind.
struct Admitted {
    view: CatalogView,
    identity: SystemIdentity,
    publication: String,
}

async fn admit(request: &MintRequest) -> Result<Admitted, LifecycleError> {
    let application_name = format!("rindle-mint {}", request.source);
    let client = conn::connect(&request.endpoint, &application_name)
        .await
        .map_err(|error| match error.is_standby() {
            true => admission::standby().into(),
            false => LifecycleError::from(error),
        })?;
    let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";
    client
        .batch_execute(begin)
        .await
        .map_err(LifecycleError::postgres("begin"))?;
    let default = || publication_name(&request.source);
    let publication = request.publication.clone().unwrap_or_else(default);
    let source = facts::read(&client, &publication).await?;
    client
        .batch_execute("COMMIT")
        .await
        .map_err(LifecycleError::postgres("commit"))?;
    let mut findings = admission::check(&source, &request.tables);
    let identity = match identify(request, &application_name).await? {
        Ok(identity) => Some(identity),
        Err(finding) => {
            // A full server is told once.
            let known = finding.filter(|new| findings.iter().all(|old| old.id != new.id));
            findings.extend(known);
            None
        }
    };
    match (source.view, identity) {
        (Some(view), Some(identity)) if !findings.iter().any(Finding::is_fatal) => Ok(Admitted {
            view,
            identity,
            publication,
        }),
        _ => Err(Refusal { findings }.into()),
    }
}

/// Opens a replication session and asks who the server is: only this shows that the role may stream.
async fn identify(
    request: &MintRequest,
    application_name: &str,
) -> Result<Result<SystemIdentity, Option<Finding>>, LifecycleError> {
    let mut session = match WalStream::connect(&request.endpoint, application_name).await {
        Ok(session) => session,
        Err(error) => return refused_session(error, &request.endpoint.user).map(Err),
    };
    let doing = "identify the server";
    let identity = session.identify_system().await;
    let identity = identity.map_err(|source| LifecycleError::Session { doing, source })?;
    session.close().await;
    Ok(Ok(identity))
}

fn refused_session(error: ConnectError, role: &str) -> Result<Option<Finding>, LifecycleError> {
    match error.sqlstate() {
        Some(NO_RIGHT) => Ok(Some(admission::no_replication_right(
            role,
            &error.to_string(),
        ))),
        Some(TOO_MANY) => Ok(Some(admission::no_free_sender(&error.to_string()))),
        _ => Err(error.into()),
    }
}

/// Sets the pointer of a source that had none. Somebody else may have been first; theirs stands then.
async fn set_first(
    archive: &Archive,
    generation: Generation,
) -> Result<Generation, LifecycleError> {
    match archive.set_current(None, generation).await {
        Ok(current) => Ok(current.generation),
        Err(moved @ ArchiveError::CurrentMoved { .. }) => match archive.current().await? {
            Some(current) => Ok(current.generation),
            None => Err(moved.into()),
        },
        Err(error) => Err(error.into()),
    }
}

/// Told to people, decides nothing.
fn now_ms() -> i64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
