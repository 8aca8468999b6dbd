//! What the archive says.

use std::collections::BTreeMap;

use rindle_archive::freshness::Stale;
use rindle_archive::{Archive, GenerationRecord};
use rindle_proto::ids::{EndLsn, Epoch, Generation, Lsn, SegmentNo, Seq, Timeline};
use serde::Serialize;
use serde_json::Value;

use super::super::mint::now_ms;
use crate::ship::chain;

/// Why the length of the log is null.
const TOO_MANY: &str =
    "the log has too many objects to be weighed in 5 s; use the store's own tools";

/// `archiveCatchUpMaxBytes` where no gateway says otherwise.
const CATCH_UP_MAX_BYTES: u64 = 1 << 30;

/// Why the verification is null.
const NO_SCRUB: &str =
    "the log was not scrubbed: there is no scrub yet; readers check each object that they read";

/// The generation that a source serves.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GenerationStatus {
    /// Its id.
    pub id: Generation,
    /// The source's pointer names it.
    pub current: bool,
    /// Its slot.
    pub slot: String,
    /// Its publication.
    pub publication: String,
    /// What its slot survives.
    pub posture: String,
    /// When it was minted, milliseconds since 1970.
    pub minted_at_ms: i64,
    /// All generations of the source, oldest first.
    pub all: Vec<Generation>,
}

/// The end of a generation's log.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ArchiveStatus {
    /// Log objects, without those that were trimmed away.
    pub segments: u64,
    /// Bytes they take.
    pub bytes: Option<u64>,
    /// Last log object; 0 when there is none.
    pub segment: SegmentNo,
    /// Session that wrote it.
    pub epoch: Epoch,
    /// Timeline of the source then.
    pub timeline: Timeline,
    /// Last frame.
    pub frame: Seq,
    /// End of the last transaction in it; none before the first copy is complete.
    pub last_commit_lsn: Option<Lsn>,
    /// Everything the source committed up to here is archived.
    pub through_lsn: Lsn,
    /// When the last object was made, milliseconds since 1970.
    pub made_at_ms: Option<i64>,
    /// How long ago that was, in seconds, by this machine's clock.
    pub age_seconds: Option<u64>,
    /// What the last scrub found.
    pub verification: Option<Value>,
}

/// One image.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ImageStatus {
    /// Its name.
    pub id: String,
    /// End of the last transaction in it.
    pub base_lsn: Lsn,
    /// Its last frame.
    pub frame: Seq,
    /// Length of its objects in bytes.
    pub stored_bytes: u64,
    /// It was restored and proved.
    pub verified: bool,
    /// When it was published, milliseconds since 1970.
    pub created_at_ms: i64,
    /// How long ago that was, in seconds, by this machine's clock.
    pub age_seconds: u64,
}

/// The current generation; without a pointer the only one, or the newest.
pub(super) async fn generation(archive: &Archive) -> Result<GenerationStatus, String> {
    let all = archive.generations().await.map_err(|error| chain(&error))?;
    let current = archive.current().await.map_err(|error| chain(&error))?;
    let current = current.map(|current| current.generation);
    let looked_at: Option<&GenerationRecord> = match current {
        Some(id) => all.iter().find(|record| record.generation == id),
        None => all.last(),
    };
    let Some(record) = looked_at else {
        return Err(super::NOT_MINTED.to_owned());
    };
    Ok(GenerationStatus {
        id: record.generation,
        current: current == Some(record.generation),
        slot: record.slot.clone(),
        publication: record.publication.clone(),
        posture: record.posture.clone(),
        minted_at_ms: record.minted_at_ms,
        all: all.iter().map(|record| record.generation).collect(),
    })
}

/// The end of the log.
pub(super) async fn log(
    archive: &Archive,
    generation: Generation,
    why: &mut BTreeMap<&'static str, String>,
) -> Result<ArchiveStatus, String> {
    let log = archive.log(generation);
    let head = log.head().await.map_err(|error| chain(&error))?;
    let last = head.as_ref().map_or(SegmentNo(0), |head| head.segment);
    let segments = log.objects_up_to(last).await;
    let segments = segments.map_err(|error| chain(&error))?;
    let bytes = archive.log_bytes(generation, SegmentNo(0)).await;
    let bytes = bytes.map_err(|error| chain(&error))?;
    if bytes.is_none() {
        why.insert("archive.bytes", TOO_MANY.to_owned());
    }
    why.insert("archive.verification", NO_SCRUB.to_owned());
    Ok(match head {
        Some(head) => ArchiveStatus {
            segments,
            bytes,
            segment: head.segment,
            epoch: head.epoch,
            timeline: head.timeline,
            frame: head.end.seq,
            last_commit_lsn: head.last_commit.map(|commit| commit.end_lsn.0),
            through_lsn: head.through_lsn,
            made_at_ms: Some(head.made_at_ms),
            age_seconds: Some(age_seconds(head.made_at_ms)),
            verification: None,
        },
        None => ArchiveStatus {
            segments,
            bytes,
            segment: SegmentNo(0),
            epoch: Epoch(0),
            timeline: Timeline(0),
            frame: Seq(0),
            last_commit_lsn: None,
            through_lsn: Lsn(0),
            made_at_ms: None,
            age_seconds: None,
            verification: None,
        },
    })
}

/// The images, and what is stale about them.
pub(super) async fn images(
    archive: &Archive,
    of: &GenerationStatus,
    log: Option<&ArchiveStatus>,
) -> Result<(Vec<ImageStatus>, Option<Stale>), String> {
    let images = archive.images(of.id).list().await;
    let images = images.map_err(|error| chain(&error))?;
    let last_commit = log.and_then(|log| log.last_commit_lsn).map(EndLsn);
    let fresh = archive
        .freshness(
            of.id,
            of.minted_at_ms,
            &images,
            last_commit,
            CATCH_UP_MAX_BYTES,
        )
        .await
        .map_err(|error| chain(&error))?;
    let status = |image: rindle_archive::ImageInfo| ImageStatus {
        id: image.id,
        base_lsn: image.base.end_lsn.0,
        frame: image.base.position.seq,
        stored_bytes: image.stored_bytes,
        verified: image.verified,
        created_at_ms: image.created_at_ms,
        age_seconds: age_seconds(image.created_at_ms),
    };
    let listed = images.into_iter().map(status).collect();
    Ok((listed, fresh.stale(now_ms())))
}

/// Nothing for a moment in the future: the clock that wrote it is another machine's.
fn age_seconds(at_ms: i64) -> u64 {
    u64::try_from(now_ms().saturating_sub(at_ms)).unwrap_or(0) / 1000
}
