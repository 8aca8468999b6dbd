//! `rindle pg status`: what archive, Postgres and gateway say of a source, as one document, and one sentence about
//! what is wrong. Each part may be unknown; then it is null, and `why` says why. [`verdict`] is pure.

mod archive;
mod postgres;
#[cfg(test)]
mod tests;
mod verdict;

use std::collections::BTreeMap;

use rindle_archive::Archive;
use rindle_proto::ids::{Generation, SourceName};
use serde::Serialize;
use serde_json::Value;

pub use self::archive::{ArchiveStatus, GenerationStatus, ImageStatus};
pub use self::postgres::{PostgresStatus, SlotStatus};
pub use self::verdict::Verdict;
use crate::pg::endpoint::Endpoint;

/// Why a part is null.
const GATEWAY_NOT_ASKED: &str = "no --gateway was given";
const POSTGRES_NOT_ASKED: &str = "no --pg-host was given";
const NOT_MINTED: &str = "no generation is minted in this archive";

/// What to look at.
#[derive(Debug)]
pub struct StatusRequest<'a> {
    /// The source.
    pub source: &'a SourceName,
    /// Its archive.
    pub archive: &'a Archive,
    /// Postgres, when it is asked too.
    pub endpoint: Option<&'a Endpoint>,
    /// What the gateway's `/status` said, or why it said nothing; none when it was not asked.
    pub gateway: Option<Result<Value, String>>,
}

/// Everything that is known of a source.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// The source.
    pub source: SourceName,
    /// The generation that is looked at: the current one.
    pub generation: Option<GenerationStatus>,
    /// The server.
    pub postgres: Option<PostgresStatus>,
    /// The generation's replication slot.
    pub slot: Option<SlotStatus>,
    /// What the gateway says of itself.
    pub gateway: Option<Value>,
    /// The generation's log.
    pub archive: Option<ArchiveStatus>,
    /// Its images, newest base first.
    pub images: Option<Vec<ImageStatus>>,
    /// Followers that the gateway has attached.
    pub followers: Option<Followers>,
    /// Copies that run beside the stream.
    pub backfills: Option<Vec<Value>>,
    /// For each part that is null: why.
    pub why: BTreeMap<&'static str, String>,
    /// One sentence.
    pub verdict: Verdict,
}

impl Status {
    fn why(&self, part: &str) -> &str {
        self.why.get(part).map(String::as_str).unwrap_or_default()
    }
}

/// Followers that the gateway has attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Followers {
    /// How many.
    pub attached: u64,
}

/// Looks at everything. What cannot be reached is told in the document.
pub async fn status(request: StatusRequest<'_>) -> Status {
    let mut why = BTreeMap::new();
    let generation = keep(
        &mut why,
        "generation",
        archive::generation(request.archive).await,
    );
    let id: Option<Generation> = generation.as_ref().map(|generation| generation.id);
    let (log, images) = match id {
        Some(id) => (
            keep(&mut why, "archive", archive::log(request.archive, id).await),
            keep(
                &mut why,
                "images",
                archive::images(request.archive, id).await,
            ),
        ),
        None => {
            why.insert("archive", NOT_MINTED.to_owned());
            why.insert("images", NOT_MINTED.to_owned());
            (None, None)
        }
    };
    let slot_name = generation.as_ref().map(|generation| &*generation.slot);
    let (postgres, slot) = postgres::look(request.endpoint, slot_name, &mut why).await;
    let gateway = match request.gateway {
        Some(said) => keep(&mut why, "gateway", said),
        None => keep(&mut why, "gateway", Err(GATEWAY_NOT_ASKED.to_owned())),
    };
    let attached = gateway.as_ref().and_then(|said| said["followers"].as_u64());
    let followers = attached.map(|attached| Followers { attached });
    if followers.is_none() {
        why.insert(
            "followers",
            "only the gateway knows its followers".to_owned(),
        );
    }
    let mut status = Status {
        source: request.source.clone(),
        generation,
        postgres,
        slot,
        gateway,
        archive: log,
        images,
        followers,
        backfills: Some(Vec::new()),
        why,
        verdict: Verdict::default(),
    };
    status.verdict = verdict::verdict(&status);
    status
}

fn keep<T>(
    why: &mut BTreeMap<&'static str, String>,
    part: &'static str,
    found: Result<T, String>,
) -> Option<T> {
    match found {
        Ok(found) => Some(found),
        Err(reason) => {
            why.insert(part, reason);
            None
        }
    }
}
