//! Checks of the server, the role and the publication.

use super::Finding;
use super::facts::SessionFacts;
use crate::lifecycle::names::TableName;
use crate::pg::catalog::{CatalogView, quote_ident};

/// First major version with everything that is relied on.
const OLDEST_VERSION: u32 = 150_000;

/// Checks of the server.
pub(super) fn check(server: &SessionFacts) -> Vec<Finding> {
    let checks = [wal_level, in_recovery, encoding, slots, senders];
    let old = too_old(server.version_num, &server.version);
    old.into_iter()
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

fn wal_level(server: &SessionFacts) -> Option<Finding> {
    (server.wal_level != "logical").then(|| {
        let seen = format!("wal_level is {}", server.wal_level);
        let why = "only with wal_level logical does the WAL hold what a mirror needs";
        let mend = "ALTER SYSTEM SET wal_level = 'logical', then restart the server";
        Finding::fatal("WalLevel", seen, why, mend)
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
    (slots >= slots_max).then(|| {
        let seen = format!("{slots} of max_replication_slots {slots_max} are in use");
        let why = "each generation needs a replication slot of its own";
        let mend = "drop a slot that nobody needs (SELECT * FROM pg_replication_slots), or raise \
                    max_replication_slots and restart the server";
        Finding::fatal("NoFreeSlot", seen, why, mend)
    })
}

fn senders(server: &SessionFacts) -> Option<Finding> {
    let SessionFacts {
        senders,
        senders_max,
        ..
    } = server;
    (senders >= senders_max).then(|| {
        no_free_sender(&format!(
            "{senders} of max_wal_senders {senders_max} are in use"
        ))
    })
}

/// No WAL sender is free.
pub(in crate::lifecycle) fn no_free_sender(seen: &str) -> Finding {
    let why = "the gateway streams through a WAL sender";
    let mend = "end a client that nobody needs (SELECT * FROM pg_stat_replication), or raise max_wal_senders and \
                restart the server";
    Finding::fatal("NoFreeSender", seen, why, mend)
}

/// The role may not replicate.
pub(in crate::lifecycle) fn no_replication_right(role: &str, said: &str) -> Finding {
    let seen = format!("role {role:?} gets no replication session: {said}");
    let why = "the stream of changes is read through a replication session";
    let mend = format!("ALTER ROLE {} REPLICATION", quote_ident(role));
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

/// Checks of the publication itself.
pub(super) fn check_publication(view: &CatalogView, wanted: &[TableName]) -> Vec<Finding> {
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
    let carried: Vec<TableName> = view
        .tables
        .iter()
        .map(|table| TableName::new(&*table.relation.schema, &*table.relation.name))
        .collect();
    let lacking = wanted.iter().filter(|wanted| !carried.contains(wanted));
    findings.extend(lacking.map(|table| not_published(&publication.name, table, &carried)));
    findings
}

/// A table that was named and that the publication does not carry.
pub(in crate::lifecycle) fn not_published(
    publication: &str,
    table: &TableName,
    carried: &[TableName],
) -> Finding {
    let carried: Vec<String> = carried.iter().map(ToString::to_string).collect();
    let seen = match carried.is_empty() {
        true => format!("publication {publication:?} does not carry it; it carries no table"),
        false => format!(
            "publication {publication:?} does not carry it; it carries {}",
            carried.join(", ")
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
