//! Finds what no message announced: at start and every minute the catalog is read, and compared with what is believed
//! once the stream has passed the position at which it was read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use rindle_proto::ids::{Lsn, Oid};
use tokio::sync::mpsc;
use tokio_postgres::Client;

use crate::ddl::believed::{Believed, Difference};
use crate::halt::HaltReason;
use crate::lifecycle::capture;
use crate::live::{Belief, Live};
use crate::pg::catalog::{self, Facts, RelationFacts, quote_ident};
use crate::pg::conn;
use crate::pg::endpoint::Endpoint;
use crate::pg::snapshot;
use crate::pg::visibility::Snapshot;
use crate::session::Sessions;
use crate::ship::chain;

/// How often the catalog is read.
const INTERVAL: Duration = Duration::from_secs(60);

/// A difference is looked at again after this long: a transaction that was just committing shows either way.
const AGAIN: Duration = Duration::from_secs(2);

/// Position and facts of one snapshot.
const BEGIN: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";
const POSITION: &str = "SELECT pg_catalog.pg_current_wal_insert_lsn()::text";

/// Audits until dropped, or until something is found that nothing announced.
pub(super) async fn run(
    sessions: Sessions,
    endpoint: Endpoint,
    live: Arc<Live>,
    halts: mpsc::Sender<HaltReason>,
) {
    let mut timer = tokio::time::interval(INTERVAL);
    timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut old = Old::default();
    let mut capture = Capture::Whole;
    loop {
        timer.tick().await;
        match look_after(&sessions, &endpoint, &live, &mut old).await {
            Ok(found) => capture = found,
            Err(error) => tracing::debug!(error, "the capture of schema changes was not looked at"),
        }
        match audit(&sessions, &endpoint, &live, capture).await {
            Ok(None) => {}
            Ok(Some(Found::Unannounced(Difference { object, detail, .. }))) => {
                let reason = HaltReason::SchemaChanged {
                    table: object,
                    detail,
                };
                // The pump is gone when nobody listens.
                let _gone = halts.send(reason).await;
                return;
            }
            Ok(Some(Found::Untold(why, relations))) => retell(&endpoint, why, &relations).await,
            Err(error) => tracing::debug!(error, "no audit of the catalog"),
        }
    }
}

/// What the catalog shows and the stream did not tell.
#[derive(Debug, PartialEq)]
enum Found {
    /// A schema change.
    Unannounced(Difference),
    /// Relations of which it must still tell, and their names; their tables must be copied.
    Untold(Why, BTreeMap<Oid, String>),
}

/// Why tables must be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    /// They have another file, of which the stream may not have told why.
    Refiled,
    /// Made, altered or dropped while somebody else was publishing their schema: neither saw the other.
    Unseen,
}

impl Why {
    fn words(self) -> &'static str {
        match self {
            Why::Refiled => {
                "the table, or a partition that is sent as its root, has another file, and the stream does not tell why"
            }
            Why::Unseen => "the table was never shown, and nothing announced it, or what it is now",
        }
    }
}

/// What captures schema changes in the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Capture {
    /// As it was made: rewrites are told.
    Whole,
    /// Something is missing or changed: they may not be.
    Wanting,
}

impl Found {
    fn between(believed: &Believed, facts: &Facts, capture: Capture) -> Option<Found> {
        let untold = |why: Why, relations: BTreeSet<Oid>| {
            let named = |oid: Oid| (oid, name_of([facts, &believed.facts], oid));
            let relations: BTreeMap<Oid, String> = relations.into_iter().map(named).collect();
            (!relations.is_empty()).then_some(Found::Untold(why, relations))
        };
        let mut unseen = believed.facts.newcomers(facts);
        for difference in believed.differences(&facts.without(&unseen)) {
            match difference.table.filter(|table| believed.is_young(*table)) {
                // Whatever else differs is told first.
                None => return Some(Found::Unannounced(difference)),
                Some(table) => {
                    let trees = [facts, &believed.facts].map(|it| it.only(&[table]));
                    let relations = trees.into_iter().flat_map(|it| it.relations.into_keys());
                    unseen.extend(relations);
                }
            }
        }
        untold(Why::Unseen, unseen).or_else(|| {
            let all = capture == Capture::Wanting;
            untold(Why::Refiled, believed.facts.refiled(facts, all))
        })
    }
}

fn name_of<const N: usize>(known: [&Facts; N], oid: Oid) -> String {
    let relation = known.iter().find_map(|facts| facts.relations.get(&oid));
    relation.map(RelationFacts::full_name).unwrap_or_default()
}

/// Has relations told, and their tables copied anew, by an announcement in the stream like any other.
async fn retell(endpoint: &Endpoint, why: Why, relations: &BTreeMap<Oid, String>) {
    let oids: Vec<u32> = relations.keys().map(|oid| oid.0).collect();
    let names: Vec<&String> = relations.values().collect();
    let asked = async {
        let client = conn::connect(endpoint, "rindle-gateway audit")
            .await
            .map_err(|error| chain(&error))?;
        client
            .query_one("SELECT rindle.retell($1::oid[])", &[&oids])
            .await
            .map_err(|error| chain(&error))
            .map(drop)
    };
    match asked.await {
        Ok(()) => tracing::info!(tables = ?names, "{}: it is copied anew", why.words()),
        Err(error) => tracing::warn!(
            tables = ?names,
            error,
            "{}, and it cannot be copied anew; it is tried again in a minute: look at the error, and at rindle pg preflight",
            why.words()
        ),
    }
}

/// At most so many partitions are named.
const NAMED: usize = 20;

/// Partitions whose TRUNCATE the stream does not tell, in words.
fn uncovered(facts: &Facts) -> Vec<String> {
    let tell = |(top, leaves): (Oid, Vec<&RelationFacts>)| {
        let named: Vec<String> = leaves.iter().take(NAMED).map(|it| it.full_name()).collect();
        let more = match leaves.len().saturating_sub(NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        format!(
            "PartitionTruncate: publication {publication} sends the partitions of {table} as {table} itself; a TRUNCATE of one \
             of them alone is not in the stream: {named}{more}; it is found within a minute, and the table copied anew; \
             ALTER PUBLICATION {publication} SET (publish_via_partition_root = false) sends each by itself",
            publication = quote_ident(&facts.publication.name),
            table = name_of([facts], top),
            named = named.join(", "),
        )
    };
    facts.sent_through_root().into_iter().map(tell).collect()
}

/// The oldest transaction that was open when the WAL ended there: announcements of those before it may go once every slot is
/// past that.
#[derive(Debug, Default)]
struct Old(Option<(i64, String)>);

/// Whether there are announcements, and then the oldest transaction that is open and where the WAL ends.
const OPEN: &str = "SELECT CASE WHEN EXISTS (SELECT FROM rindle.published_schema) \
    THEN pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot())::text::int8 END, \
    pg_catalog.pg_current_wal_insert_lsn()::text";

/// Every source's slots: each may still have to read what an announcement says.
const PASSED: &str = "SELECT coalesce(bool_and(confirmed_flush_lsn >= $1::text::pg_lsn), false) \
    FROM pg_catalog.pg_replication_slots WHERE database = pg_catalog.current_database() AND slot_type = 'logical' \
    AND NOT temporary AND pg_catalog.starts_with(slot_name, 'rindle_')";

/// Tells what happened to the recipe in the source, and lets go of announcements that nobody reads any more.
async fn look_after(
    sessions: &Sessions,
    endpoint: &Endpoint,
    live: &Live,
    old: &mut Old,
) -> Result<Capture, String> {
    let client = conn::connect(endpoint, "rindle-gateway audit")
        .await
        .map_err(|error| chain(&error))?;
    let found = capture::check(&client)
        .await
        .map_err(|error| chain(&error))?;
    let capture = match found.is_empty() {
        true => Capture::Whole,
        false => Capture::Wanting,
    };
    let told = found
        .iter()
        .map(|it| format!("{}: {}; {}: {}", it.id, it.seen, it.why, it.mend));
    let belief = live.beliefs().borrow().clone();
    let uncovered = belief.map(|belief| uncovered(&belief.believed.facts));
    let told = told.chain(uncovered.unwrap_or_default());
    sessions.state.set_capture(told.collect());
    let failed = |error: tokio_postgres::Error| chain(&error);
    if let Some((xid, at)) = &old.0 {
        let passed = client.query_one(PASSED, &[at]).await.map_err(failed)?;
        if passed.try_get(0).map_err(failed)? {
            client
                .query_one("SELECT rindle.forget($1)", &[xid])
                .await
                .map_err(failed)?;
            old.0 = None;
        }
    }
    if old.0.is_none() {
        let open = client.query_one(OPEN, &[]).await.map_err(failed)?;
        let xid: Option<i64> = open.try_get(0).map_err(failed)?;
        let at = open.try_get(1).map_err(failed)?;
        old.0 = xid.map(|xid| (xid, at));
    }
    Ok(capture)
}

/// What two readings show that the stream did not tell, if anything is.
async fn audit(
    sessions: &Sessions,
    endpoint: &Endpoint,
    live: &Live,
    capture: Capture,
) -> Result<Option<Found>, String> {
    let client = conn::connect(endpoint, "rindle-gateway audit")
        .await
        .map_err(|error| chain(&error))?;
    let Some((found, belief)) = compare(sessions, &client, live, capture).await? else {
        return Ok(None);
    };
    tokio::time::sleep(AGAIN).await;
    let again = compare(sessions, &client, live, capture).await?;
    // Whatever was announced meanwhile is believed by now.
    Ok(again
        .filter(|(again, later)| *again == found && Arc::ptr_eq(&belief.believed, &later.believed))
        .map(|(found, _)| found))
}

async fn compare(
    sessions: &Sessions,
    client: &Client,
    live: &Live,
    capture: Capture,
) -> Result<Option<(Found, Belief)>, String> {
    let Shown {
        facts,
        at,
        snapshot,
    } = read(sessions, client).await?;
    let mut visible = live.visible();
    let passed = visible.wait_for(|visible| visible.through >= at).await;
    passed.map_err(|_closed| "the session ended".to_owned())?;
    let Some(belief) = live.beliefs().borrow().clone() else {
        return Ok(None);
    };
    // Something later was announced: the next audit sees it too.
    if belief.end_lsn > at || belief.believed.is_ahead_of(&snapshot) {
        return Ok(None);
    }
    Ok(Found::between(&belief.believed, &facts, capture).map(|found| (found, belief)))
}

/// What the catalog shows.
struct Shown {
    facts: Facts,
    /// The WAL had come to here, or farther: what was committed may be shown.
    at: Lsn,
    snapshot: Snapshot,
}

async fn read(sessions: &Sessions, client: &Client) -> Result<Shown, String> {
    client
        .batch_execute(BEGIN)
        .await
        .map_err(|error| chain(&error))?;
    let row = client
        .query_one(POSITION, &[])
        .await
        .map_err(|error| chain(&error))?;
    let at: String = row.try_get(0).map_err(|error| chain(&error))?;
    let at = at
        .parse()
        .map_err(|error: rindle_proto::ids::ParseError| chain(&error))?;
    let snapshot = snapshot::shown(client)
        .await
        .map_err(|error| chain(&error))?;
    let facts = catalog::read_facts(client, &sessions.record.publication)
        .await
        .map_err(|error| chain(&error))?;
    client
        .batch_execute("COMMIT")
        .await
        .map_err(|error| chain(&error))?;
    Ok(Shown {
        facts,
        at,
        snapshot,
    })
}
