//! What Postgres says about itself and the slot.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rindle_proto::ids::Lsn;
use serde::Serialize;
use tokio_postgres::Client;

use crate::pg::conn;
use crate::pg::endpoint::Endpoint;
use crate::pg::slot::{self, SlotState};
use crate::ship::chain;

const SERVER: &str = "SELECT pg_catalog.current_setting('server_version'), \
    pg_catalog.pg_current_wal_insert_lsn()::text, pg_catalog.current_database()";

/// How long the source's WAL is watched to tell its rate: WAL comes in bursts.
const WATCHED: Duration = Duration::from_secs(1);

const WAL_END: &str = "SELECT pg_catalog.pg_current_wal_insert_lsn()::text";

/// The server.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PostgresStatus {
    /// Its version.
    pub version: String,
    /// End of its WAL.
    pub wal_end: Lsn,
    /// The database.
    pub database: String,
}

/// A replication slot.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SlotStatus {
    /// Its name.
    pub name: String,
    /// It exists.
    pub exists: bool,
    /// A session uses it.
    pub active: bool,
    /// What was acknowledged.
    pub confirmed_flush: Option<Lsn>,
    /// WAL written since, in bytes.
    pub unacknowledged_bytes: Option<u64>,
    /// WAL that Postgres keeps for it, in bytes.
    pub retained_bytes: Option<u64>,
    /// `reserved`, `extended`, `unreserved` or `lost`.
    pub wal_status: Option<String>,
    /// Bytes of WAL that can still be written before it may be lost; none without a limit.
    pub safe_wal_bytes: Option<i64>,
    /// WAL that the source writes now, in bytes a second; measured when there is a limit.
    pub wal_bytes_per_second: Option<u64>,
    /// Seconds until Postgres may drop it, should nothing be acknowledged and the rate stay.
    pub seconds_left: Option<u64>,
    /// Why nothing can be read from it any more.
    pub lost: Option<String>,
}

/// Asks Postgres, when there is one to ask.
pub(super) async fn look(
    endpoint: Option<&Endpoint>,
    slot_name: Option<&str>,
    why: &mut BTreeMap<&'static str, String>,
) -> (Option<PostgresStatus>, Option<SlotStatus>) {
    let looked = match endpoint {
        None => Err(super::POSTGRES_NOT_ASKED.to_owned()),
        Some(endpoint) => server(endpoint).await,
    };
    let (client, server) = match looked {
        Ok(found) => found,
        Err(reason) => {
            why.insert("postgres", reason.clone());
            why.insert("slot", reason);
            return (None, None);
        }
    };
    let Some(name) = slot_name else {
        why.insert("slot", super::NOT_MINTED.to_owned());
        return (Some(server), None);
    };
    match slot::inspect(&client, name).await {
        Ok(found) => {
            let mut slot = status(name, found.as_ref(), server.wal_end);
            tell_time_left(&client, &mut slot, why).await;
            (Some(server), Some(slot))
        }
        Err(error) => {
            why.insert("slot", chain(&error));
            (Some(server), None)
        }
    }
}

async fn server(endpoint: &Endpoint) -> Result<(Client, PostgresStatus), String> {
    let client = conn::connect(endpoint, "rindle-status")
        .await
        .map_err(|error| chain(&error))?;
    let row = client
        .query_one(SERVER, &[])
        .await
        .map_err(|error| chain(&error))?;
    let text = |at| row.try_get::<_, String>(at).map_err(|error| chain(&error));
    let wal_end = text(1)?.parse().map_err(|error| chain(&error))?;
    Ok((
        client,
        PostgresStatus {
            version: text(0)?,
            wal_end,
            database: text(2)?,
        },
    ))
}

fn status(name: &str, slot: Option<&SlotState>, wal_end: Lsn) -> SlotStatus {
    let behind = |lsn: Option<Lsn>| lsn.map(|lsn| wal_end.bytes_since(lsn));
    SlotStatus {
        name: name.to_owned(),
        exists: slot.is_some(),
        active: slot.is_some_and(|slot| slot.active),
        confirmed_flush: slot.and_then(|slot| slot.confirmed_flush),
        unacknowledged_bytes: behind(slot.and_then(|slot| slot.confirmed_flush)),
        retained_bytes: behind(slot.and_then(|slot| slot.restart_lsn)),
        wal_status: slot.and_then(|slot| slot.wal_status.clone()),
        safe_wal_bytes: slot.and_then(|slot| slot.safe_wal_size),
        wal_bytes_per_second: None,
        seconds_left: None,
        lost: slot.and_then(|slot| slot.lost.clone()),
    }
}

async fn tell_time_left(
    client: &Client,
    slot: &mut SlotStatus,
    why: &mut BTreeMap<&'static str, String>,
) {
    let rate = match slot.safe_wal_bytes {
        Some(_) => wal_bytes_per_second(client).await,
        None if slot.exists && slot.lost.is_none() => {
            Err("max_slot_wal_keep_size sets no limit to what the slot keeps".to_owned())
        }
        None => Err("there is no slot to lose".to_owned()),
    };
    let left = match &rate {
        Ok(rate) => seconds_left(slot.safe_wal_bytes, *rate)
            .ok_or_else(|| "the source writes no WAL now".to_owned()),
        Err(reason) => Err(reason.clone()),
    };
    slot.wal_bytes_per_second = super::keep(why, "slot.walBytesPerSecond", rate);
    slot.seconds_left = super::keep(why, "slot.secondsLeft", left);
}

/// By two readings on one session.
async fn wal_bytes_per_second(client: &Client) -> Result<u64, String> {
    let read = async || -> Result<Lsn, String> {
        let row = client.query_one(WAL_END, &[]).await;
        let row = row.map_err(|error| chain(&error))?;
        let text: String = row.try_get(0).map_err(|error| chain(&error))?;
        text.parse().map_err(|error| chain(&error))
    };
    let (begun, first) = (Instant::now(), read().await?);
    tokio::time::sleep(WATCHED).await;
    let written = read().await?.bytes_since(first);
    Ok((written as f64 / begun.elapsed().as_secs_f64()) as u64)
}

/// None when it never comes to that. A slot beyond its limit has no time left, whatever the rate: the next checkpoint drops it.
fn seconds_left(safe_wal_bytes: Option<i64>, rate: u64) -> Option<u64> {
    let safe = u64::try_from(safe_wal_bytes?).unwrap_or(0);
    match safe {
        0 => Some(0),
        safe => safe.checked_div(rate),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_left_is_what_may_be_written_by_the_rate() {
        for (safe, rate, left) in [
            (Some(1000), 10, Some(100)),
            (Some(1000), 0, None),
            (Some(0), 0, Some(0)),
            (Some(-5), 10, Some(0)),
            (None, 10, None),
        ] {
            assert_eq!(seconds_left(safe, rate), left, "{safe:?} at {rate}");
        }
    }
}
