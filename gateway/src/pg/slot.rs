//! What Postgres says about a replication slot. Slots are created on a replication session
//! ([`super::walsender`]), since only there the snapshot is exported.

use rindle_proto::ids::Lsn;
use serde::Deserialize;
use tokio_postgres::{Client, Error};

use super::walsender::{WalError, WalStream};

/// One row of `pg_replication_slots`. Facts that the server's version does not have are `None`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct SlotState {
    /// Name.
    #[serde(rename = "slot_name")]
    pub name: String,
    /// Output plugin.
    pub plugin: Option<String>,
    /// Database.
    pub database: Option<String>,
    /// Gone with its session.
    pub temporary: bool,
    /// A session uses it.
    pub active: bool,
    /// That session's process.
    pub active_pid: Option<i32>,
    /// What was acknowledged.
    #[serde(rename = "confirmed_flush_lsn")]
    pub confirmed_flush: Option<Lsn>,
    /// Oldest WAL that it keeps.
    pub restart_lsn: Option<Lsn>,
    /// `reserved`, `extended`, `unreserved` or `lost`.
    pub wal_status: Option<String>,
    /// Bytes of WAL that can still be written before the slot may be lost.
    pub safe_wal_size: Option<i64>,
    /// Why it was invalidated (17 and later).
    pub invalidation_reason: Option<String>,
    /// It invalidated itself on a standby (16).
    pub conflicting: Option<bool>,
    /// Synchronised to standbys (17 and later).
    pub failover: Option<bool>,
    /// A synchronised copy on a standby (17 and later).
    pub synced: Option<bool>,
    /// Set when nothing can be read from it any more: why, in Postgres' words.
    #[serde(skip)]
    pub lost: Option<String>,
}

/// The slot of this name; none when there is none.
///
/// # Errors
/// When the query fails.
pub async fn inspect(client: &Client, name: &str) -> Result<Option<SlotState>, Error> {
    let row = client.query_opt(&format!("{SLOT} $1"), &[&name]).await?;
    let document = row.map(|row| row.try_get::<_, String>(0)).transpose()?;
    Ok(document.map(|document| SlotState::read(&document)))
}

/// The same on a replication session that does not stream yet.
///
/// # Errors
/// When the query fails.
pub async fn inspect_on(stream: &mut WalStream, name: &str) -> Result<Option<SlotState>, WalError> {
    let rows = stream
        .query(&format!("{SLOT} '{}'", name.replace('\'', "''")))
        .await?;
    let document = rows.into_iter().flatten().flatten().next();
    Ok(document.map(|document| SlotState::read(&document)))
}

/// Drops the slot; false when there was none. Fails with SQLSTATE 55006 while a session uses it.
///
/// # Errors
/// When the server refuses.
pub async fn drop(client: &Client, name: &str) -> Result<bool, Error> {
    let sql = "SELECT pg_catalog.pg_drop_replication_slot(s.slot_name) \
               FROM pg_catalog.pg_replication_slots s WHERE s.slot_name = $1";
    client
        .query(sql, &[&name])
        .await
        .map(|rows| !rows.is_empty())
}

// The whole row as JSON: columns come and go with versions.
const SLOT: &str = "SELECT pg_catalog.to_jsonb(s)::text FROM pg_catalog.pg_replication_slots s WHERE s.slot_name =";

impl SlotState {
    fn read(document: &str) -> Self {
        let slot: SlotState = serde_json::from_str(document)
            .expect("the columns read here are in pg_replication_slots of every version");
        let lost = slot.why_lost();
        Self { lost, ..slot }
    }

    fn why_lost(&self) -> Option<String> {
        match (
            &self.invalidation_reason,
            self.wal_status.as_deref(),
            self.conflicting,
        ) {
            (Some(reason), _, _) => Some(reason.clone()),
            (None, Some("lost"), _) => Some("wal_status is lost".to_owned()),
            (None, _, Some(true)) => Some("it conflicts with recovery".to_owned()),
            (None, _, _) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_of_every_version_are_read() {
        let common = r#""slot_name":"s","plugin":"pgoutput","slot_type":"logical","datoid":5,
            "database":"d","temporary":false,"active":false,"active_pid":null,"xmin":null,
            "catalog_xmin":"740","restart_lsn":"0/1","confirmed_flush_lsn":"16/AB",
            "safe_wal_size":null,"two_phase":false"#;
        let table = [
            (r#""wal_status":"reserved""#, None),
            (r#""wal_status":"lost""#, Some("wal_status is lost")),
            (
                r#""wal_status":"reserved","conflicting":true"#,
                Some("it conflicts with recovery"),
            ),
            (
                r#""wal_status":"lost","invalidation_reason":"idle_timeout","failover":true"#,
                Some("idle_timeout"),
            ),
        ];
        for (more, lost) in table {
            let slot: SlotState = serde_json::from_str(&format!("{{{common},{more}}}")).unwrap();
            assert_eq!(slot.why_lost().as_deref(), lost);
            assert_eq!(slot.confirmed_flush, Some(Lsn(0x16_0000_00AB)));
        }
    }
}
