//! What a generation of this source would survive.

use serde::Serialize;

use super::Finding;
use super::facts::{FailoverFacts, SessionFacts};

/// First version with slots that a standby keeps.
const FAILOVER_SINCE: u32 = 170_000;

/// What a generation does when its source fails over. Decided once, at mint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Posture {
    /// A promoted standby carries the slot: the gateway goes on.
    FailoverSlot,
    /// The provider carries the slot; that it keeps every archived transaction is the provider's promise.
    ProviderManaged,
    /// A failover needs a new generation.
    Fencing,
}

impl Posture {
    /// The word in the generation's record.
    pub fn word(self) -> &'static str {
        match self {
            Posture::FailoverSlot => "failover-slot",
            Posture::ProviderManaged => "provider-managed",
            Posture::Fencing => "fencing",
        }
    }
}

/// The posture of a generation minted now, and what is lacking for a better one.
pub fn decide(
    server: &SessionFacts,
    failover: &FailoverFacts,
    provider_managed: bool,
) -> (Posture, Option<Finding>) {
    if provider_managed {
        let old = server.version_num < FAILOVER_SINCE;
        let finding = old.then(|| {
            let seen = format!(
                "--failover provider-managed was asked for, and the server is PostgreSQL {}",
                server.version
            );
            let why = "a slot that a standby keeps exists from PostgreSQL 17 on";
            Finding::fatal(
                "PostureUnavailable",
                seen,
                why,
                "upgrade the server, or leave --failover out",
            )
        });
        return (Posture::ProviderManaged, finding);
    }
    let missing = lacking(server, failover);
    if missing.is_empty() {
        return (Posture::FailoverSlot, None);
    }
    let seen = format!(
        "a generation minted now is of posture fencing: {}",
        missing.join("; ")
    );
    let why = "after a failover of the source the mirror needs a new generation, with a copy of every table";
    let mend = "a synchronous standby with sync_replication_slots, its physical slot in synchronized_standby_slots, and \
                synchronous_commit = remote_apply, on PostgreSQL 17 or later; then mint";
    (
        Posture::Fencing,
        Some(Finding::fatal("FailoverPosture", seen, why, mend).warning()),
    )
}

fn lacking(server: &SessionFacts, failover: &FailoverFacts) -> Vec<String> {
    if server.version_num < FAILOVER_SINCE {
        return vec![format!(
            "PostgreSQL {} has no slots that a standby keeps (17 has)",
            server.version
        )];
    }
    let setting = |name: &str| server.settings.get(name).map_or("", String::as_str);
    let mut missing = Vec::new();
    if failover.synchronous_standbys == 0 && !server.sees_all {
        missing.push(format!(
            "role {:?} cannot see the standbys (GRANT pg_read_all_stats TO it, then mint)",
            server.role
        ));
    } else if failover.synchronous_standbys == 0 {
        missing.push(match setting("synchronous_standby_names") {
            "" => "synchronous_standby_names is empty".to_owned(),
            names => format!("no standby of synchronous_standby_names ({names}) is connected"),
        });
    }
    if setting("synchronous_commit") != "remote_apply" {
        missing.push(format!(
            "synchronous_commit is {}",
            setting("synchronous_commit")
        ));
    }
    match setting("synchronized_standby_slots") {
        "" => missing.push("synchronized_standby_slots is empty".to_owned()),
        slots => {
            let names = slots.split(',').map(|name| name.trim().trim_matches('"'));
            let idle = names.filter(|name| {
                !failover
                    .active_physical_slots
                    .iter()
                    .any(|slot| slot == name)
            });
            missing.extend(idle.map(|name| {
                format!("slot {name:?} of synchronized_standby_slots is not in use by a standby")
            }));
        }
    }
    missing
}
