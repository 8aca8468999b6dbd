//! Transactions that would keep a replication slot from being created: Postgres waits for every one that was running.

use std::time::Duration;

use super::Finding;
use super::facts::{OpenTransaction, PreparedTransaction};
use crate::lifecycle::names::quote_literal;

/// A transaction younger than this is part of ordinary work.
const OLD: Duration = Duration::from_secs(5);

const WHY: &str = "a generation's slot is created once every transaction has ended that was writing before, in any \
                   database of the server; the first copy waits for it";

pub(super) fn check(open: &[OpenTransaction], prepared: &[PreparedTransaction]) -> Vec<Finding> {
    let old = open
        .iter()
        .filter(|one| one.seconds >= OLD.as_secs() as i64);
    old.map(old_transaction)
        .chain(prepared.iter().map(prepared_transaction))
        .collect()
}

fn old_transaction(one: &OpenTransaction) -> Finding {
    let unknown = || "unknown (the role may not see it)".to_owned();
    let seen = format!(
        "process {} of user {} in database {} has written and is open for {} s, {}; its query: {}",
        one.pid,
        one.user.clone().unwrap_or_else(unknown),
        one.database.clone().unwrap_or_else(unknown),
        one.seconds,
        one.state.clone().unwrap_or_else(unknown),
        one.query.clone().unwrap_or_else(unknown),
    );
    let mend = format!(
        "let it end, or SELECT pg_terminate_backend({}); the gateway waits for it and says so in /readyz",
        one.pid
    );
    Finding::fatal("OldTransaction", seen, WHY, mend).warning()
}

fn prepared_transaction(one: &PreparedTransaction) -> Finding {
    let seen = format!(
        "transaction {:?} of user {} in database {} is prepared since {}",
        one.gid, one.owner, one.database, one.prepared
    );
    let gid = quote_literal(&one.gid);
    let mend = format!(
        "COMMIT PREPARED {gid} or ROLLBACK PREPARED {gid}, in database {}",
        one.database
    );
    Finding::fatal("PreparedTransaction", seen, WHY, mend).warning()
}
