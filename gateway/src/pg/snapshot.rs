//! Snapshots that a replication slot exports: how they are kept and shared.

use std::time::{Duration, Instant};

use tokio_postgres::{Client, Error};

use super::visibility::{Snapshot, SnapshotError};

/// Transactions that the snapshot of this session holds to be over, and that have not ended. Locks tell the id in 32 bits;
/// the rest is that of the snapshot's next id, from which none is farther than half of them.
const ENDING: &str = "
SELECT coalesce(pg_catalog.string_agg(full_id::text, ', '), '')
FROM pg_catalog.pg_current_snapshot() AS own,
    LATERAL (SELECT pg_catalog.pg_snapshot_xmax(own)::text::int8 AS next) AS bound,
    pg_catalog.pg_locks AS held,
    LATERAL (SELECT next + (transactionid::text::int8 - next % 4294967296 + 6442450944) % 4294967296 - 2147483648 AS full_id) AS id
WHERE held.locktype = 'transactionid' AND held.mode = 'ExclusiveLock' AND held.granted
    AND full_id > 0 AND full_id < next AND pg_catalog.pg_visible_in_snapshot(full_id::text::xid8, own)";

const SHOWN: &str = "SELECT pg_catalog.pg_current_snapshot()::text";

/// Between the first two looks, and at most for a copy.
const PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// After so long it is told what is waited for.
const TOLD_AFTER: Duration = Duration::from_secs(5);

/// Why it is not known what a session sees.
#[derive(Debug, thiserror::Error)]
pub enum ShownError {
    /// The query failed: it is asked again.
    #[error("read what a session sees")]
    Query(#[from] Error),
    /// Not as Postgres prints it.
    #[error(transparent)]
    Strange(#[from] SnapshotError),
}

/// What a copy waits for, in words.
pub fn waits(transactions: &str) -> String {
    format!(
        "waiting for transactions whose commit is written and that do not end ({transactions}): look for the synchronous \
         standby; with '*' in synchronous_standby_names this gateway may be taken for one: name the standbys there"
    )
}

/// SQL that begins a transaction under an exported snapshot.
pub fn import(name: &str) -> String {
    format!(
        "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET TRANSACTION SNAPSHOT '{}'",
        name.replace('\'', "''")
    )
}

/// Imports the snapshot that a slot exported into this session, which keeps it from then on, and gives the name under which
/// others import it.
///
/// A commit is in the WAL, and so in such a snapshot, a moment before the server counts its transaction as committed. Rows
/// that are read in that moment are taken for those of a transaction that failed, by us and by whoever believes the hint
/// that reading leaves on them. So nothing is read under the snapshot before every such transaction has ended.
///
/// When that takes long, `tell` is told which they are.
///
/// # Errors
/// When Postgres refuses.
pub async fn keep(client: &Client, exported: &str, tell: impl Fn(&str)) -> Result<String, Error> {
    client.batch_execute(&import(exported)).await?;
    until_ended(client, tell).await?;
    let shared = client.query_one("SELECT pg_catalog.pg_export_snapshot()", &[]);
    shared.await?.try_get(0)
}

/// What this session's transaction, or a statement that is just beginning, sees.
///
/// # Errors
/// When Postgres cannot be asked, or names its snapshots in another way.
pub async fn shown(client: &Client) -> Result<Snapshot, ShownError> {
    let text: String = client.query_one(SHOWN, &[]).await?.try_get(0)?;
    Ok(text.parse()?)
}

async fn until_ended(client: &Client, tell: impl Fn(&str)) -> Result<(), Error> {
    let mut patience = Patience::new(LONGEST_PAUSE);
    loop {
        let ending: String = client.query_one(ENDING, &[]).await?.try_get(0)?;
        if ending.is_empty() {
            return Ok(());
        }
        let told = || {
            tracing::warn!("a copy is {}", waits(&ending));
            tell(&ending);
        };
        patience.pause(told).await;
    }
}

/// Waits between looks at something that ends by itself, and has it told once when that takes long.
#[derive(Debug)]
pub(crate) struct Patience {
    begun: Instant,
    pause: Duration,
    longest: Duration,
    is_told: bool,
}

impl Patience {
    /// The first pause is short; each is twice as long as the one before, up to `longest`.
    pub(crate) fn new(longest: Duration) -> Self {
        Self {
            begun: Instant::now(),
            pause: PAUSE,
            longest,
            is_told: false,
        }
    }

    pub(crate) async fn pause(&mut self, tell: impl FnOnce()) {
        if !self.is_told && self.begun.elapsed() >= TOLD_AFTER {
            self.is_told = true;
            tell();
        }
        tokio::time::sleep(self.pause).await;
        self.pause = (self.pause * 2).min(self.longest);
    }
}
