//! The slots of a source in Postgres, by their names: `rindle_<name>_<last 16 characters of the generation>`, and
//! `_b<n>` behind it for a backfill's.

use std::time::{Duration, Instant};

use rindle_proto::ids::SourceName;
use tokio_postgres::Client;

use super::admission::Finding;
use super::error::LifecycleError;

/// The server keeps a lock for a moment after its session was left.
const PATIENCE: Duration = Duration::from_secs(2);

/// Characters of a generation in a slot's name.
const SUFFIX: usize = 16;

/// The alphabet of a generation's id, in order.
const CROCKFORD: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

const LIST: &str = "
SELECT slot_name::text, active_pid FROM pg_catalog.pg_replication_slots
WHERE slot_type = 'logical' AND database = pg_catalog.current_database() AND pg_catalog.starts_with(slot_name, $1)
ORDER BY slot_name";

/// A slot that carries a generation's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OwnSlot {
    pub(super) name: String,
    /// Who reads it.
    pub(super) active_pid: Option<i32>,
    pub(super) lock_key: i64,
}

impl OwnSlot {
    /// True for a generation's slot and those of its backfills.
    pub(super) fn is_of(&self, generation_slot: &str) -> bool {
        let rest = self.name.strip_prefix(generation_slot);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("_b"))
    }
}

/// A slot that cannot be dropped now.
pub(super) fn in_use(slot: &OwnSlot) -> Option<Finding> {
    slot.active_pid.map(|pid| {
        let seen = format!("slot {:?} is in use by process {pid}", slot.name);
        let why = "a gateway streams from it";
        Finding::fatal(
            "SlotInUse",
            seen,
            why,
            "stop the gateway, then run this again",
        )
    })
}

/// The slots of a source, of all its generations.
pub(super) async fn of_source(
    client: &Client,
    source: &SourceName,
) -> Result<Vec<OwnSlot>, LifecycleError> {
    let prefix = format!("rindle_{}_", source.as_str().replace('-', "_"));
    let failed = LifecycleError::postgres("list the replication slots");
    let rows = client.query(LIST, &[&prefix]).await.map_err(&failed)?;
    let mut slots = Vec::new();
    for row in rows {
        let name: String = row.try_get(0).map_err(&failed)?;
        let active_pid = row.try_get(1).map_err(&failed)?;
        // A source whose name begins as this one's has longer names.
        if let Some(lock_key) = name.strip_prefix(&prefix).and_then(lock_key) {
            slots.push(OwnSlot {
                name,
                active_pid,
                lock_key,
            });
        }
    }
    Ok(slots)
}

/// Takes a generation's advisory lock, which ends with the session: no gateway makes or reads its slot meanwhile.
pub(super) async fn lock(client: &Client, key: i64) -> Result<(), LifecycleError> {
    let failed = LifecycleError::postgres("take the generation's lock");
    let deadline = Instant::now() + PATIENCE;
    let locked = loop {
        let row = client
            .query_one("SELECT pg_catalog.pg_try_advisory_lock($1)", &[&key])
            .await;
        let locked: bool = row.and_then(|row| row.try_get(0)).map_err(&failed)?;
        if locked || Instant::now() > deadline {
            break locked;
        }
        tokio::time::sleep(PATIENCE / 20).await;
    };
    match locked {
        true => Ok(()),
        false => {
            let seen = "a gateway of the generation is at work";
            let why = "it would make the slot again, or lose it while it reads";
            Err(Finding::fatal(
                "GatewayAtWork",
                seen,
                why,
                "stop the gateway, then run this again",
            )
            .into())
        }
    }
}

/// Drops a slot; one that is gone already is no error. The generation's lock must be held.
pub(super) async fn drop(client: &Client, slot: &OwnSlot) -> Result<(), LifecycleError> {
    let doing = format!("drop slot {}", slot.name);
    let dropped = crate::pg::slot::drop(client, &slot.name).await;
    dropped
        .map(|_there| ())
        .map_err(LifecycleError::postgres(&doing))
}

/// The key of a generation's advisory lock, from what its slot's name holds of the id: the last 64 of 80 bits.
fn lock_key(ending: &str) -> Option<i64> {
    let (suffix, rest) = ending.split_at_checked(SUFFIX)?;
    let backfill = |rest: &str| {
        rest.strip_prefix("_b")
            .is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
    };
    if !rest.is_empty() && !backfill(rest) {
        return None;
    }
    let mut bits = 0u64;
    for byte in suffix.bytes() {
        let value = CROCKFORD.iter().position(|known| *known == byte)?;
        bits = bits << 5 | value as u64;
    }
    Some(bits.cast_signed())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rindle_proto::ids::Generation;

    #[test]
    fn the_name_of_a_slot_holds_its_lock() {
        let source: SourceName = "my-app".parse().unwrap();
        for id in [
            "01ARZ3NDEKTSV4RRFFQ69G5FAV",
            "7ZZZZZZZZZZZZZZZZZZZZZZZZZ",
            "00000000000000000000000001",
        ] {
            let generation: Generation = id.parse().unwrap();
            let name = source.slot_name(generation);
            let ending = name.strip_prefix("rindle_my_app_").unwrap();
            let wanted = Some(crate::session::open::lock_key(generation));
            assert_eq!(lock_key(ending), wanted, "{id}");
            assert_eq!(lock_key(&format!("{ending}_b2")), wanted);
        }
        for other in [
            "",
            "short",
            "0000000000000000x",
            "0000000000000000_b",
            "000000000000000u",
            "two_0000000000000000",
        ] {
            assert_eq!(lock_key(other), None, "{other}");
        }
    }
}
