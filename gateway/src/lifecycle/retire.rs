//! `rindle pg retire`: ends a generation that is not served any more. Its log is sealed, so that no gateway ever takes
//! it over again, and its slot is dropped, so that Postgres keeps no WAL for it.

use rindle_archive::{Archive, GenerationRecord, History};
use rindle_proto::ids::{Generation, SourceName};
use serde::Serialize;
use tokio_postgres::Client;

use super::admission::Finding;
use super::error::LifecycleError;
use super::slots::{self, OwnSlot};
use crate::pg::conn;
use crate::pg::endpoint::Endpoint;
use crate::pg::walsender::WalStream;
use crate::session::open::lock_key;

/// What to end.
#[derive(Clone, Debug)]
pub struct RetireRequest {
    /// Where Postgres is.
    pub endpoint: Endpoint,
    /// The source.
    pub source: SourceName,
    /// The generation.
    pub generation: Generation,
}

/// What was ended.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Retired {
    /// The generation.
    pub generation: Generation,
    /// The slot that was dropped; none when there was none any more.
    pub slot: Option<String>,
}

/// Retires a generation. Safe to run twice.
///
/// # Errors
/// When it is the current one, or a gateway is at work on it.
pub async fn retire(archive: &Archive, request: &RetireRequest) -> Result<Retired, LifecycleError> {
    let generation = request.generation;
    let records = archive.generations().await?;
    let Some(record) = records
        .iter()
        .find(|record| record.generation == generation)
    else {
        return Err(super::cutover::unknown(generation, &records).into());
    };
    let current = archive.current().await?;
    if current.is_some_and(|current| current.generation == generation) {
        let seen = format!(
            "generation {generation} is the current one of source {}",
            request.source
        );
        let why = "followers read it";
        let mend = "rindle pg cutover --generation to another one first";
        return Err(Finding::fatal("IsCurrent", seen, why, mend).into());
    }
    let application_name = format!("rindle-retire {}", request.source);
    let history = history(request, &application_name, record).await?;
    let client = conn::connect(&request.endpoint, &application_name).await?;
    // Says who reads it, if somebody does.
    free_slots(&client, request, &record.slot).await?;
    // Before anything that cannot be undone: a gateway that starts just now holds it, or finds it taken.
    slots::lock(&client, lock_key(generation)).await?;
    let own = free_slots(&client, request, &record.slot).await?;
    let log = archive.log(generation);
    log.seal(history).await.map_err(LifecycleError::Seal)?;
    for slot in &own {
        slots::drop(&client, slot).await?;
    }
    let dropped = own.iter().any(|slot| slot.name == record.slot);
    Ok(Retired {
        generation,
        slot: dropped.then(|| record.slot.clone()),
    })
}

/// The generation's slots, none of them in use.
async fn free_slots(
    client: &Client,
    request: &RetireRequest,
    generation_slot: &str,
) -> Result<Vec<OwnSlot>, LifecycleError> {
    let mut own = slots::of_source(client, &request.source).await?;
    own.retain(|slot| slot.is_of(generation_slot));
    match own.iter().find_map(slots::in_use) {
        Some(busy) => Err(busy.into()),
        None => Ok(own),
    }
}

/// Who the server is, and where its earlier timelines ended: what a seal says of the source must be true.
async fn history(
    request: &RetireRequest,
    application_name: &str,
    record: &GenerationRecord,
) -> Result<History, LifecycleError> {
    let failed = |doing| move |source| LifecycleError::Session { doing, source };
    let mut stream = WalStream::connect(&request.endpoint, application_name).await?;
    let identity = stream
        .identify_system()
        .await
        .map_err(failed("identify the server"))?;
    let minted_on = &record.system_identifier;
    if identity.systemid != *minted_on {
        let seen = format!(
            "the server's system identifier is {}, the generation was minted on {minted_on}",
            identity.systemid
        );
        let why = "its slot is on another cluster";
        return Err(Finding::fatal(
            "OtherCluster",
            seen,
            why,
            "name the server that it was minted on",
        )
        .into());
    }
    if identity.dbname != record.database {
        let seen = format!(
            "the database is {:?}, the generation was minted in {:?}",
            identity.dbname, record.database
        );
        let why = "its slot is of that database, and would stay behind";
        let mend = format!("--pg-database {}", record.database);
        return Err(Finding::fatal("OtherDatabase", seen, why, mend).into());
    }
    let switches = stream.timeline_history(identity.timeline).await;
    let switches = switches.map_err(failed("read the server's timeline history"))?;
    stream.close().await;
    Ok(History {
        timeline: identity.timeline,
        switches,
    })
}
