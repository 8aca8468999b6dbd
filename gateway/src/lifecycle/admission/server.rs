//! Checks of the server, the role and the publication.

use super::Finding;
use super::facts::{SessionFacts, UnsentTable};
use super::provider::{Provider, replication_mend, wal_level_mend};
use crate::lifecycle::names::TableName;
use crate::pg::catalog::{CatalogView, TableFacts, quote_ident};

/// First major version with everything that is relied on.
const OLDEST_VERSION: u32 = 150_000;

/// Slots and WAL senders that a generation may use at once: the stream, a backfill, a verify.
const HEADROOM: u32 = 3;

/// Checks of the server.
pub(super) fn check(server: &SessionFacts, provider: Option<Provider>) -> Vec<Finding> {
    let checks = [in_recovery, encoding, slots, senders];
    let old = too_old(server.version_num, &server.version);
    old.into_iter()
        .chain(wal_level(server, provider))
        .chain(checks.iter().filter_map(|check| check(server)))
        .collect()
}

/// The server is older than what is relied on.
pub(in crate::lifecycle) fn too_old(version_num: u32, version: &str) -> Option<Finding> {
    (version_num < OLDEST_VERSION).then(|| {
        let seen = format!("the server is PostgreSQL {version}");
        let why = "logical decoding before 15 lacks column lists, row filters and the skipping of empty transactions";
        Finding::fatal("ServerTooOld", seen, why, "upgrade the server to PostgreSQL 15 or later")
    })
}

fn wal_level(server: &SessionFacts, provider: Option<Provider>) -> Option<Finding> {
    (server.wal_level != "logical").then(|| {
        let seen = format!("wal_level is {}", server.wal_level);
        let why = "only with wal_level logical does the WAL hold what a mirror needs";
        Finding::fatal("WalLevel", seen, why, wal_level_mend(provider))
    })
}

fn in_recovery(server: &SessionFacts) -> Option<Finding> {
    server.in_recovery.then(standby)
}

/// The server is a standby.
pub(in crate::lifecycle) fn standby() -> Finding {
    let why =
        "a generation is bound to the primary's slot, and its first copy reads from the primary";
    let mend = "name the primary with --pg-host, or list it among the hosts";
    Finding::fatal(
        "InRecovery",
        "the server is a standby in recovery",
        why,
        mend,
    )
}

fn encoding(server: &SessionFacts) -> Option<Finding> {
    (!server.reads_as_utf8).then(|| {
        let seen = format!("the database's encoding is {}", server.encoding);
        let why = "its bytes cannot be read as UTF-8 without loss, and a mirror holds UTF-8";
        let mend = "CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0, and move the data there";
        Finding::fatal("Encoding", seen, why, mend)
    })
}

fn slots(server: &SessionFacts) -> Option<Finding> {
    let SessionFacts {
        slots, slots_max, ..
    } = server;
    let free = slots_max.saturating_sub(*slots);
    let seen = format!("{slots} of max_replication_slots {slots_max} are in use");
    let mend = "drop a slot that nobody needs (SELECT * FROM pg_replication_slots), or raise max_replication_slots and \
                restart the server";
    match free {
        0 => {
            let why = "each generation needs a replication slot of its own";
            Some(Finding::fatal("NoFreeSlot", seen, why, mend))
        }
        1..HEADROOM => {
            let why =
                "beside the generation's slot a backfill needs one, and so does rindle pg verify";
            Some(Finding::fatal("FewFreeSlots", seen, why, mend).warning())
        }
        _ => None,
    }
}

fn senders(server: &SessionFacts) -> Option<Finding> {
    let SessionFacts {
        senders,
        senders_max,
        ..
    } = server;
    let free = senders_max.saturating_sub(*senders);
    let seen = format!("{senders} of max_wal_senders {senders_max} are in use");
    match free {
        0 => Some(no_free_sender(&seen)),
        1..HEADROOM => {
            let why = "beside the gateway's WAL sender a backfill needs one, and so does rindle pg verify";
            let mend = "raise max_wal_senders and restart the server";
            Some(Finding::fatal("FewFreeSenders", seen, why, mend).warning())
        }
        _ => None,
    }
}

/// No WAL sender is free.
pub(in crate::lifecycle) fn no_free_sender(seen: &str) -> Finding {
    let why = "the gateway streams through a WAL sender";
    let mend = "end a client that nobody needs (SELECT * FROM pg_stat_replication), or raise max_wal_senders and \
                restart the server";
    Finding::fatal("NoFreeSender", seen, why, mend)
}

/// The role may not replicate.
pub(in crate::lifecycle) fn no_replication_right(
    role: &str,
    said: &str,
    provider: Option<Provider>,
) -> Finding {
    let seen = format!("role {role:?} gets no replication session: {said}");
    let why = "the stream of changes is read through a replication session";
    let mend = replication_mend(provider, &quote_ident(role));
    Finding::fatal("NoReplicationRight", seen, why, mend)
}

/// There is no such publication.
pub(super) fn no_publication(name: &str) -> Finding {
    let seen = format!("publication {name:?} does not exist");
    let why = "the publication says which tables and columns are mirrored";
    let mend =
        "rindle pg prepare --tables schema.table,…, or --publication NAME for one that exists";
    Finding::fatal("PublicationMissing", seen, why, mend)
}

/// Tables that `prepare` will publish.
pub(super) fn not_prepared(publication: &str, tables: &[TableFacts]) -> Finding {
    let names: Vec<String> = tables
        .iter()
        .map(|table| table.relation.full_name())
        .collect();
    let names = names.join(",");
    let seen = format!("publication {publication:?} does not carry {names} yet");
    let why = "they are looked at as they would be published";
    let mend = format!("rindle pg prepare --tables {names}");
    Finding::fatal("NotPrepared", seen, why, mend).note()
}

/// Checks of the publication itself.
pub(super) fn check_publication(view: &CatalogView, wanted: &[&TableName]) -> Vec<Finding> {
    let publication = &view.publication;
    let operations = [
        ("insert", publication.insert),
        ("update", publication.update),
        ("delete", publication.delete),
        ("truncate", publication.truncate),
    ];
    let missing: Vec<&str> = operations
        .iter()
        .filter(|(_, sent)| !sent)
        .map(|(name, _)| *name)
        .collect();
    let mut findings = Vec::new();
    let name = quote_ident(&publication.name);
    if !missing.is_empty() {
        let seen = format!(
            "publication {:?} leaves out {}",
            publication.name,
            missing.join(", ")
        );
        let why = "what is not sent would be missing in every mirror without a word";
        let mend =
            format!("ALTER PUBLICATION {name} SET (publish = 'insert, update, delete, truncate')");
        findings.push(Finding::fatal("PublicationOperations", seen, why, mend));
    }
    let carried = carried(view);
    let lacking = wanted.iter().filter(|wanted| !carried.contains(*wanted));
    findings.extend(lacking.map(|table| not_published(&publication.name, table, &carried)));
    findings
}

/// A table that was named and does not exist. `view` is the publication, when there is one.
pub(super) fn unknown_table(table: &TableName, view: Option<&CatalogView>) -> Finding {
    let seen = match view.map(carried) {
        Some(carried) if !carried.is_empty() => {
            format!(
                "there is no such table; the publication carries {}",
                list(&carried)
            )
        }
        _ => "there is no such table".to_owned(),
    };
    let why = "only a table that is there can be mirrored";
    let mend = "name it as schema.table, in the case in which it was created";
    Finding::fatal("TableMissing", seen, why, mend).about(table.to_string())
}

/// The tables that a publication carries.
fn carried(view: &CatalogView) -> Vec<TableName> {
    let name = |table: &TableFacts| TableName::new(&*table.relation.schema, &*table.relation.name);
    view.tables.iter().map(name).collect()
}

fn list(tables: &[TableName]) -> String {
    let names: Vec<String> = tables.iter().map(ToString::to_string).collect();
    names.join(", ")
}

/// A table that stands in a published schema and is never sent.
pub(super) fn unsent_table(table: &UnsentTable) -> Finding {
    let name = TableName::new(&*table.schema, &*table.name);
    let (seen, mend) = match table.foreign {
        true => (
            "it is a foreign table",
            "mirror it from the server that holds its rows".to_owned(),
        ),
        false => (
            "it is unlogged",
            format!("ALTER TABLE {} SET LOGGED", name.quoted()),
        ),
    };
    let why =
        "the publication covers its schema and cannot send its rows: the mirror does not have it";
    Finding::fatal("NotMirrored", seen, why, mend)
        .warning()
        .about(name.to_string())
}

/// A table that was named and that the publication does not carry.
pub(in crate::lifecycle) fn not_published(
    publication: &str,
    table: &TableName,
    carried: &[TableName],
) -> Finding {
    let seen = match carried.is_empty() {
        true => format!("publication {publication:?} does not carry it; it carries no table"),
        false => format!(
            "publication {publication:?} does not carry it; it carries {}",
            list(carried)
        ),
    };
    let why = "a table that is not published sends no changes";
    let mend = format!(
        "ALTER PUBLICATION {} ADD TABLE {}",
        quote_ident(publication),
        table.quoted()
    );
    Finding::fatal("TableNotPublished", seen, why, mend).about(table.to_string())
}
