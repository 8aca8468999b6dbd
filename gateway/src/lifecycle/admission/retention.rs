//! What the server does to a slot that stands still, and minors that lose rows.

use std::collections::BTreeMap;

use super::Finding;
use super::facts::SessionFacts;

/// Less WAL than this behind a slot is gone after a short outage of the archive.
const KEEP_MIN_MIB: i64 = 1024;

/// First minor of each major version in which a table that was just added to a publication sends all its rows.
const WHOLE_SINCE: [(u32, u32); 3] = [(15, 14), (16, 10), (17, 6)];

pub(super) fn check(server: &SessionFacts) -> Vec<Finding> {
    let checks = [keep_size, idle_timeout, minor];
    checks.iter().filter_map(|check| check(server)).collect()
}

fn number(settings: &BTreeMap<String, String>, name: &str) -> Option<i64> {
    settings.get(name)?.parse().ok()
}

/// `max_slot_wal_keep_size`, in MiB; -1 for no limit.
fn keep_size(server: &SessionFacts) -> Option<Finding> {
    let limit = number(&server.settings, "max_slot_wal_keep_size")?;
    let (seen, why) = match limit {
        -1 => (
            "max_slot_wal_keep_size is unlimited".to_owned(),
            "while the archive or the gateway is away Postgres keeps WAL for the slot, until its disk is full",
        ),
        limit if limit < KEEP_MIN_MIB => (
            format!("max_slot_wal_keep_size is {limit} MB"),
            "an outage during which the source writes more than that costs the slot, and a new generation",
        ),
        _ => return None,
    };
    let mend = "ALTER SYSTEM SET max_slot_wal_keep_size = '64GB' (the WAL of the longest outage to be borne, and what \
                the disk holds), then SELECT pg_reload_conf()";
    Some(Finding::fatal("SlotWalLimit", seen, why, mend).warning())
}

/// 18 and later; in seconds, 0 for never.
fn idle_timeout(server: &SessionFacts) -> Option<Finding> {
    let seconds = number(&server.settings, "idle_replication_slot_timeout")?;
    (seconds > 0).then(|| {
        let seen = format!("idle_replication_slot_timeout is {seconds} s");
        let why = "a slot whose gateway is away for longer is invalidated at the next checkpoint, which costs a new \
                   generation";
        let mend = "ALTER SYSTEM SET idle_replication_slot_timeout = 0, then SELECT pg_reload_conf()";
        Finding::fatal("SlotIdleTimeout", seen, why, mend).warning()
    })
}

fn minor(server: &SessionFacts) -> Option<Finding> {
    let (major, minor) = (server.version_num / 10_000, server.version_num % 10_000);
    let (_, since) = WHOLE_SINCE.iter().find(|(of, _)| *of == major)?;
    (minor < *since).then(|| {
        let seen = format!("the server is PostgreSQL {}", server.version);
        let why = "it can lose rows that open transactions write into a table while it is added to the publication";
        let mend = format!("upgrade to {major}.{since} or later; until then add tables while nobody writes to them");
        Finding::fatal("ServerMinor", seen, why, mend).warning()
    })
}
