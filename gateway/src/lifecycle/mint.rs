//! `rindle pg mint`: a generation of an admitted source, written to the archive. Nothing is made in Postgres: the
//! gateway that finds the generation creates its slot and copies.

use std::time::{SystemTime, UNIX_EPOCH};

use rindle_archive::generation::FORMAT;
use rindle_archive::{Archive, ArchiveError, GenerationRecord};
use rindle_proto::ids::Generation;

use super::admission::Finding;
use super::admission::posture::Posture;
use super::admission::provider;
use super::error::{LifecycleError, Refusal};
use super::examine::{SourceRequest, examine};
use crate::pg::catalog::Unfit;

/// A new generation.
#[derive(Clone, Debug)]
pub struct Minted {
    /// Its record in the archive.
    pub record: GenerationRecord,
    /// The generation that the source's pointer names now: this one when there was none.
    pub current: Generation,
    /// Where the provider carries the slot: what the operator does before the gateway first starts.
    pub registration: Option<String>,
    /// What an operator should know.
    pub findings: Vec<Finding>,
}

/// Mints a generation, and makes it the source's current one when there is none yet.
///
/// # Errors
/// With everything that is wrong when the source cannot be mirrored exactly; when Postgres or the archive fails.
pub async fn mint(archive: &Archive, request: &SourceRequest) -> Result<Minted, LifecycleError> {
    // First, so that an archive that is not there is told before Postgres is asked.
    let current = archive.current().await?;
    let examined = examine(request, "mint", false).await?;
    let findings = examined.findings;
    let (Some(view), Some(identity), false) = (
        examined.facts.view,
        examined.identity,
        findings.iter().any(Finding::is_fatal),
    ) else {
        return Err(Refusal { findings }.into());
    };
    let schema = view.schema().map_err(unfit)?;
    let generation = Generation(ulid::Ulid::generate());
    let record = GenerationRecord {
        generation,
        source: request.source.clone(),
        system_identifier: identity.systemid,
        timeline: identity.timeline,
        database: identity.dbname,
        slot: request.source.slot_name(generation),
        publication: examined.facts.publication,
        posture: examined.posture.word().to_owned(),
        minted_at_ms: now_ms(),
        schema,
        format: FORMAT,
        proved: archive.prove_store().await?,
    };
    archive.create_generation(&record).await?;
    let current = match current {
        Some(current) => current.generation,
        None => set_first(archive, generation).await?,
    };
    let registers = examined.posture == Posture::ProviderManaged;
    Ok(Minted {
        registration: registers.then(|| provider::registration(examined.provider, &record.slot)),
        record,
        current,
        findings,
    })
}

/// Something that no check named.
#[expect(clippy::needless_pass_by_value, reason = "used with map_err")]
pub(super) fn unfit(unfit: Unfit) -> LifecycleError {
    let why = "the mirror could not equal the source";
    Finding::fatal("Unfit", unfit.to_string(), why, "see what was seen").into()
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
pub(super) fn now_ms() -> i64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
