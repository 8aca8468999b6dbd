//! Whether a standby could take the source's place now: asked before a promotion, on the standby itself.

use std::time::{Duration, Instant};

use rindle_proto::ids::Lsn;
use serde::Serialize;
use tokio_postgres::Client;

use super::super::admission::posture::Posture;
use super::{ArchiveStatus, GenerationStatus};
use crate::pg::conn;
use crate::pg::endpoint::Endpoint;
use crate::pg::slot::{self, SlotState};
use crate::ship::chain;

/// How long its copy of the slot may take to come to where the archive was.
const PATIENCE: Duration = Duration::from_secs(5);
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// What it received it replays before it is promoted.
const POSITION: &str = "SELECT pg_catalog.pg_is_in_recovery(), coalesce(greatest( \
    pg_catalog.pg_last_wal_receive_lsn(), pg_catalog.pg_last_wal_replay_lsn()), '0/0')::text";

/// A standby.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StandbyStatus {
    /// Its address.
    pub host: String,
    /// It may be promoted: the gateway would go on.
    pub ready: bool,
    /// How far it has the source's WAL.
    pub received: Option<Lsn>,
    /// How far its copy of the slot is; none without one.
    pub slot_confirmed: Option<Lsn>,
    /// What is so, in one sentence.
    pub sentence: String,
    /// What to do first; none when it is ready.
    pub next_step: Option<String>,
}

/// What a standby said.
struct Said {
    in_recovery: bool,
    received: Lsn,
    slot: Option<SlotState>,
}

/// Asks the standby.
pub(super) async fn look(
    endpoint: &Endpoint,
    generation: Option<&GenerationStatus>,
    archive: Option<&ArchiveStatus>,
) -> StandbyStatus {
    let host = endpoint
        .hosts
        .first()
        .map_or_else(String::new, ToString::to_string);
    let (Some(generation), Some(archive)) = (generation, archive) else {
        return not_ready(
            &host,
            None,
            "nothing is known of the generation",
            "mend what status says of the archive",
        );
    };
    let deadline = Instant::now() + PATIENCE;
    loop {
        let found = match ask(endpoint, &generation.slot).await {
            Ok(said) => judge(&host, &said, &generation.posture, archive.through_lsn),
            Err(why) => not_ready(
                &host,
                None,
                &format!("it does not answer: {why}"),
                "look at the standby",
            ),
        };
        // Its copy of the slot follows the source's by moments: a busy source is ready all the same.
        if found.ready || found.slot_confirmed.is_none() || Instant::now() > deadline {
            return found;
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

async fn ask(endpoint: &Endpoint, slot_name: &str) -> Result<Said, String> {
    let host = endpoint.hosts.first().ok_or("no host was named")?;
    let client = conn::connect_host(endpoint, host, "rindle-status").await;
    let client: Client = client.map_err(|error| chain(&error))?;
    let row = client
        .query_one(POSITION, &[])
        .await
        .map_err(|error| chain(&error))?;
    let received: String = row.try_get(1).map_err(|error| chain(&error))?;
    Ok(Said {
        in_recovery: row.try_get(0).map_err(|error| chain(&error))?,
        received: received.parse().map_err(|error| chain(&error))?,
        slot: slot::inspect(&client, slot_name)
            .await
            .map_err(|error| chain(&error))?,
    })
}

/// Pure: `archived` is how far the archive is, which a promoted server must hold.
fn judge(host: &str, said: &Said, posture: &str, archived: Lsn) -> StandbyStatus {
    let no = |sentence: &str, next: &str| not_ready(host, Some(said), sentence, next);
    if !said.in_recovery {
        return no("it is no standby", "name the standby with --standby-host");
    }
    if posture == Posture::Fencing.word() {
        return no(
            "the generation's posture is fencing: a failover needs a new generation",
            "after the promotion run rindle pg mint",
        );
    }
    let Some(slot) = &said.slot else {
        return no(
            "it has no copy of the generation's slot",
            "set sync_replication_slots = on and hot_standby_feedback = on there, and a dbname in primary_conninfo",
        );
    };
    if let Some(why) = &slot.lost {
        return no(
            &format!("its copy of the slot was invalidated ({why})"),
            "after the promotion run rindle pg mint",
        );
    }
    if slot.synced != Some(true) || slot.temporary {
        return no(
            "its copy of the slot is not synchronized yet",
            "wait; on a quiet source run SELECT pg_log_standby_snapshot() on the primary",
        );
    }
    let confirmed = slot.confirmed_flush.unwrap_or_default();
    if said.received < archived {
        let sentence = format!(
            "it has received up to {}, the archive reaches {archived}",
            said.received
        );
        return no(&sentence, "wait until it has caught up");
    }
    if confirmed < archived {
        let sentence =
            format!("its copy of the slot stands at {confirmed}, the archive reaches {archived}");
        return no(
            &sentence,
            "wait; on a quiet source run SELECT pg_log_standby_snapshot() on the primary",
        );
    }
    StandbyStatus {
        host: host.to_owned(),
        ready: true,
        received: Some(said.received),
        slot_confirmed: Some(confirmed),
        sentence: format!(
            "standby {host} may be promoted: it holds everything up to {archived}, and the slot"
        ),
        next_step: None,
    }
}

fn not_ready(host: &str, said: Option<&Said>, sentence: &str, next: &str) -> StandbyStatus {
    let slot = said.and_then(|said| said.slot.as_ref());
    StandbyStatus {
        ready: false,
        received: said.map(|said| said.received),
        slot_confirmed: slot.and_then(|slot| slot.confirmed_flush),
        sentence: format!("standby {host} is not ready for a promotion: {sentence}"),
        next_step: Some(next.to_owned()),
        host: host.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(confirmed: u64) -> Said {
        let slot = format!(
            r#"{{"slot_name":"s","plugin":"pgoutput","database":"d","temporary":false,"active":false,"active_pid":null,
            "confirmed_flush_lsn":"0/{confirmed:X}","restart_lsn":"0/1","wal_status":"reserved","safe_wal_size":null,
            "failover":true,"synced":true}}"#
        );
        Said {
            in_recovery: true,
            received: Lsn(200),
            slot: Some(serde_json::from_str(&slot).unwrap()),
        }
    }

    #[test]
    fn a_standby_is_ready_only_with_slot_and_wal() {
        let posture = Posture::FailoverSlot.word();
        let judged = |said: &Said, archived| judge("db2:5432", said, posture, Lsn(archived));
        assert!(judged(&said(100), 100).ready);
        type Change = fn(&mut Said);
        let cases: [(&str, Change); 6] = [
            ("it is no standby", |said| said.in_recovery = false),
            ("no copy", |said| said.slot = None),
            ("not synchronized", |said| {
                said.slot.as_mut().unwrap().synced = Some(false)
            }),
            ("not synchronized", |said| {
                said.slot.as_mut().unwrap().temporary = true
            }),
            ("invalidated", |said| {
                said.slot.as_mut().unwrap().lost = Some("wal_removed".to_owned())
            }),
            ("has received up to", |said| said.received = Lsn(50)),
        ];
        for (words, change) in cases {
            let mut worse = said(100);
            change(&mut worse);
            let found = judged(&worse, 100);
            assert!(!found.ready && found.sentence.contains(words), "{found:?}");
            assert!(found.next_step.is_some());
        }
        assert!(judged(&said(99), 100).sentence.contains("stands at"));
        let fencing = judge("db2:5432", &said(100), "fencing", Lsn(100));
        assert!(!fencing.ready && fencing.sentence.contains("fencing"));
    }
}
