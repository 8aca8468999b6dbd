//! What Postgres says about itself and the slot.

use std::collections::BTreeMap;

use rindle_proto::ids::Lsn;
use serde::Serialize;
use tokio_postgres::Client;

use crate::pg::conn;
use crate::pg::endpoint::Endpoint;
use crate::pg::slot::{self, SlotState};
use crate::ship::chain;

const SERVER: &str = "SELECT pg_catalog.current_setting('server_version'), \
    pg_catalog.pg_current_wal_insert_lsn()::text, pg_catalog.current_database()";

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
            let slot = status(name, found.as_ref(), server.wal_end);
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
        lost: slot.and_then(|slot| slot.lost.clone()),
    }
}
