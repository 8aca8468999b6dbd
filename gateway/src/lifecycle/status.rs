//! `rindle pg status`: what archive, Postgres and gateway say of a source, as one document, and one sentence about
//! what is wrong. Each part may be unknown; then it is null, and `why` says why. [`verdict`] is pure.

mod archive;
mod postgres;
mod standby;
#[cfg(test)]
mod tests;
mod verdict;

use std::collections::BTreeMap;

use rindle_archive::Archive;
use rindle_proto::ids::{Generation, SourceName};
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use self::archive::{ArchiveStatus, GenerationStatus, ImageStatus};
pub use self::postgres::{PostgresStatus, SlotStatus};
pub use self::standby::StandbyStatus;
pub use self::verdict::Verdict;
use crate::fanout::FollowerView;
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
    /// A standby of it, when a promotion is thought of.
    pub standby: Option<&'a Endpoint>,
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
    pub followers: Option<Vec<FollowerView>>,
    /// Copies that run beside the stream.
    pub backfills: Option<Vec<Value>>,
    /// The standby that was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub standby: Option<StandbyStatus>,
    /// For each part that is null, and each field of one that is, as in `slot.secondsLeft`: why. What the gateway does not
    /// know it tells itself, in `gateway.lag.why` and beside a follower's `lag`.
    pub why: BTreeMap<&'static str, String>,
    /// One sentence.
    pub verdict: Verdict,
}

impl Status {
    fn why(&self, part: &str) -> &str {
        self.why.get(part).map(String::as_str).unwrap_or_default()
    }
}

/// Looks at everything. What cannot be reached is told in the document.
pub async fn status(request: StatusRequest<'_>) -> Status {
    let mut why = BTreeMap::new();
    let generation = keep(
        &mut why,
        "generation",
        archive::generation(request.archive).await,
    );
    // Before the archive: what is acknowledged later is in the archive by then, so a busy source never seems to be
    // acknowledged past it.
    let slot_name = generation.as_ref().map(|generation| &*generation.slot);
    let (postgres, slot) = postgres::look(request.endpoint, slot_name, &mut why).await;
    let (log, images) = match &generation {
        Some(generation) => {
            let log = look_at_log(request.archive, generation.id, &mut why).await;
            let images = archive::images(request.archive, generation, log.as_ref()).await;
            (log, keep(&mut why, "images", images))
        }
        None => {
            why.insert("archive", NOT_MINTED.to_owned());
            why.insert("images", NOT_MINTED.to_owned());
            (None, None)
        }
    };
    let gateway = match request.gateway {
        Some(said) => keep(&mut why, "gateway", said),
        None => keep(&mut why, "gateway", Err(GATEWAY_NOT_ASKED.to_owned())),
    };
    let followers = keep(&mut why, "followers", followers(gateway.as_ref()));
    let standby = match request.standby {
        Some(endpoint) => Some(standby::look(endpoint, generation.as_ref(), log.as_ref()).await),
        None => None,
    };
    let backfills = gateway.as_ref().map(backfills);
    if backfills.is_none() {
        why.insert(
            "backfills",
            "only the gateway knows what it copies".to_owned(),
        );
    }
    let (images, stale) = images.map_or((None, None), |(images, stale)| (Some(images), stale));
    let mut status = Status {
        source: request.source.clone(),
        generation,
        postgres,
        slot,
        gateway,
        archive: log,
        images,
        followers,
        backfills,
        standby,
        why,
        verdict: Verdict::default(),
    };
    status.verdict = verdict::verdict(&status, stale.as_ref());
    status
}

async fn look_at_log(
    archive: &Archive,
    generation: Generation,
    why: &mut BTreeMap<&'static str, String>,
) -> Option<ArchiveStatus> {
    let log = archive::log(archive, generation, why).await;
    keep(why, "archive", log)
}

/// Those that the gateway told of.
fn followers(gateway: Option<&Value>) -> Result<Vec<FollowerView>, String> {
    let Some(said) = gateway else {
        return Err("only the gateway knows its followers".to_owned());
    };
    let told = Vec::<FollowerView>::deserialize(&said["followers"]);
    told.map_err(|error| {
        format!("the gateway tells of them in other words ({error}): is it of this version?")
    })
}

/// Copies that run, and what waits for one.
fn backfills(gateway: &Value) -> Vec<Value> {
    let running = gateway["backfills"].as_array().cloned().unwrap_or_default();
    let told = |name: &Value| {
        let tables = running.iter().filter_map(|one| one["tables"].as_array());
        tables.flatten().any(|table| table == name)
    };
    let waiting = gateway["waiting"].as_array().into_iter().flatten();
    let others = waiting.filter(|name| !told(name));
    let others = others.map(|name| serde_json::json!({"tables": [name], "rows": 0, "bytes": 0}));
    running.iter().cloned().chain(others).collect()
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
