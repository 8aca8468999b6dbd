//! `rindle pg cutover`: moves a source's `current` pointer to a generation that followers can start from, and back.
//! The archive decides alone; Postgres and gateways are not asked.

use rindle_archive::{Archive, ArchiveError, GenerationRecord, ImageError, ImageInfo};
use rindle_proto::ids::Generation;
use serde::Serialize;

use super::admission::Finding;
use super::error::{LifecycleError, Refusal};

/// Where to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// This generation.
    Generation(Generation),
    /// The one that was current before.
    Rollback,
}

/// The pointer after the move.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CutOver {
    /// Served from now on.
    pub current: Generation,
    /// Served until now; where a rollback goes.
    pub previous: Option<Generation>,
    /// False when it was current already.
    pub moved: bool,
    /// The image that followers start from.
    pub image: String,
}

/// Moves the pointer.
///
/// # Errors
/// When the generation has nothing that a follower could start from, or somebody else moved the pointer meanwhile.
pub async fn cut_over(archive: &Archive, target: Target) -> Result<CutOver, LifecycleError> {
    let records = archive.generations().await?;
    let current = archive.current().await?;
    let wanted = match target {
        Target::Generation(wanted) => wanted,
        Target::Rollback => match current.as_ref().and_then(|current| current.previous) {
            Some(previous) => previous,
            None => return Err(no_previous().into()),
        },
    };
    if !records.iter().any(|record| record.generation == wanted) {
        return Err(unknown(wanted, &records).into());
    }
    refuse_retired(archive, wanted).await?;
    let image = usable_image(archive, wanted).await?;
    if let Some(current) = current
        .as_ref()
        .filter(|current| current.generation == wanted)
    {
        return Ok(CutOver {
            current: wanted,
            previous: current.previous,
            moved: false,
            image: image.id,
        });
    }
    let moved = archive.set_current(current.as_ref(), wanted).await;
    let now = moved.map_err(|error| match error {
        ArchiveError::CurrentMoved { .. } => moved_by_another().into(),
        error => LifecycleError::from(error),
    })?;
    Ok(CutOver {
        current: now.generation,
        previous: now.previous,
        moved: true,
        image: image.id,
    })
}

async fn refuse_retired(archive: &Archive, generation: Generation) -> Result<(), LifecycleError> {
    let head = archive.log(generation).head().await?;
    if !head.is_some_and(|head| head.seal) {
        return Ok(());
    }
    let seen = format!("generation {generation} was retired");
    let why = "no gateway streams it any more, so its followers would stand still";
    Err(Finding::fatal(
        "Retired",
        seen,
        why,
        "name another generation, or run rindle pg mint",
    )
    .into())
}

/// The newest proved image, or what is missing for one.
async fn usable_image(
    archive: &Archive,
    generation: Generation,
) -> Result<ImageInfo, LifecycleError> {
    let images = archive.images(generation).list().await.map_err(failed)?;
    if let Some(proved) = images.iter().find(|image| image.verified) {
        return Ok(proved.clone());
    }
    let head = archive.log(generation).head().await?;
    let copied = head.is_some_and(|head| head.last_commit.is_some());
    let (missing, mend) = match (copied, images.is_empty()) {
        (false, _) => (
            "its first copy is not complete in the archive",
            "run the gateway of this generation until its /readyz is 200, then rindle backup producer",
        ),
        (true, true) => ("it has no image", "run rindle backup producer"),
        (true, false) => (
            "none of its images is proved",
            "run rindle backup producer, which proves what it finds",
        ),
    };
    let why = "followers start from an image of the generation that they move to; until then they would serve the old one";
    let seen = format!("generation {generation} cannot be served: {missing}");
    Err(Finding::fatal("NoUsableImage", seen, why, mend).into())
}

fn failed(error: ImageError) -> LifecycleError {
    LifecycleError::Image(error)
}

fn no_previous() -> Finding {
    let why = "a rollback goes to the generation that was current before";
    Finding::fatal(
        "NoPrevious",
        "the pointer was never moved",
        why,
        "name a generation with --generation",
    )
}

pub(super) fn unknown(wanted: Generation, records: &[GenerationRecord]) -> Refusal {
    let known: Vec<String> = records
        .iter()
        .map(|record| record.generation.to_string())
        .collect();
    let seen = format!(
        "generation {wanted} is not in the archive, which holds [{}]",
        known.join(", ")
    );
    let why = "only a minted generation has a log";
    let finding = Finding::fatal(
        "NoGeneration",
        seen,
        why,
        "name one of these, or run rindle pg mint",
    );
    Refusal {
        findings: vec![finding],
    }
}

fn moved_by_another() -> Finding {
    let why = "whoever did it may have meant another generation";
    let mend = "look at rindle pg status, then run this again";
    Finding::fatal(
        "CurrentMoved",
        "somebody else moved the pointer meanwhile",
        why,
        mend,
    )
}
