//! One attempt: a snapshot at S, the rows below it as bulk objects, and a transaction of the source that says so.

use std::sync::Arc;
use std::time::Duration;

use rindle_proto::body::{Attempt, BulkPart, Copied, CopyTarget};
use rindle_proto::ids::{Lsn, Oid};
use rindle_proto::schema::{Leaf, Table, TableId};
use serde_json::{Value, json};
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use crate::assemble::DURABLE;
use crate::copy::{self, CopyError, CopyTable, Progress, RIGHTS};
use crate::ddl::Believed;
use crate::lifecycle::admission::facts;
use crate::lifecycle::error::LifecycleError;
use crate::pg::catalog::{self, CatalogError, CatalogView, Facts};
use crate::pg::conn::{self, ConnectError};
use crate::pg::endpoint::Endpoint;
use crate::pg::snapshot;
use crate::pg::walsender::{WalError, WalStream, sqlstate};
use crate::session::Sessions;
use crate::state::{BackfillView, CopyProgress};

/// Bytes of rows that are read a second: as much as a disk and half a core bear beside what streams.
const BYTES_PER_SECOND: u64 = 16 << 20;

/// Followers are given the time in which they load this many rows a second, between what streams: a quarter of what one
/// does on two quiet cores. One that needs longer holds all up at the end for the rest; waiting costs only time.
const LOADED_PER_SECOND: u64 = 15_000;

/// The longest such time; what is not loaded then is loaded while all else waits.
const LOADED_WITHIN: Duration = Duration::from_secs(300);

/// How long it is tried to say that a copy is complete, and how often.
const SAID_WITHIN: Duration = Duration::from_secs(300);
const SAID_AGAIN: Duration = Duration::from_secs(1);

/// One wait for the transactions that are older than the snapshot.
const SLOT_WAIT: &str = "5s";

/// How long somebody may wait behind the attempt's snapshot or locks.
const PATIENCE: &str = "2 s";

/// How often it is looked who waits.
const LOOK: Duration = Duration::from_secs(1);

/// Says that a copy is complete: a row and a message, in one transaction.
const COPIED: &str = "SELECT rindle.copied($1::text::jsonb)";

/// Asked after that transaction: the stream is past it once it is past this.
const POSITION: &str = "SELECT pg_catalog.pg_current_wal_insert_lsn()::text";

/// Who waits for a session of ours, longer than is fair.
const WAITERS: &str = "SELECT a.pid, coalesce(a.query, '') FROM pg_catalog.pg_stat_activity a \
    WHERE a.wait_event_type = 'Lock' AND a.pid <> pg_catalog.pg_backend_pid() \
    AND a.query_start < pg_catalog.clock_timestamp() - $2::text::interval \
    AND EXISTS (SELECT FROM pg_catalog.pg_stat_activity own WHERE own.application_name = $1 \
        AND own.pid = ANY (pg_catalog.pg_blocking_pids(a.pid)))";

/// What to copy.
pub(super) struct Work {
    pub(super) sessions: Sessions,
    pub(super) endpoint: Endpoint,
    pub(super) believed: Arc<Believed>,
    pub(super) targets: Vec<TableId>,
    pub(super) attempt: Attempt,
}

/// Why an attempt is void.
#[derive(Debug, thiserror::Error)]
pub(super) enum AttemptError {
    #[error("connect")]
    Connect(#[from] ConnectError),
    #[error("make a snapshot")]
    Session(#[from] WalError),
    #[error("ask Postgres")]
    Postgres(#[from] tokio_postgres::Error),
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    #[error(transparent)]
    Asked(#[from] LifecycleError),
    #[error(transparent)]
    Copy(#[from] CopyError),
    #[error("{0}: {RIGHTS}")]
    Refused(String),
    #[error("{0} is not as the stream has shown it so far")]
    Behind(String),
    #[error("{0} changed while it was copied")]
    Changed(String),
    #[error("process {pid} of the source waits for it, and goes first: {query}")]
    InTheWay { pid: i32, query: String },
    #[error(
        "rindle.copied cannot be called ({0}): run rindle pg prepare --role, so that backfills can end"
    )]
    NotPrepared(String),
    #[error("a copy worker died")]
    Died,
    #[error("{0}")]
    Bug(String),
}

impl Work {
    /// Copies, and gives the position of the transaction that says so.
    pub(super) async fn run(self) -> Result<Lsn, AttemptError> {
        self.tell(CopyProgress::default());
        let (keeper, shared, snapshot) = self.snapshot().await?;
        let mut under = catalog::read_facts(&keeper, &self.sessions.record.publication).await?;
        catalog::read_sizes(&keeper, &mut under).await?;
        let (targets, mut plan) = self.plan(&under)?;
        catalog::read_filters(&keeper, under.publication.oid, &mut plan).await?;
        tracing::info!(tables = ?self.believed.names(&self.targets), %snapshot, "a backfill copies");
        let copied = self.copy(plan, shared).await?;
        let now = conn::connect(&self.endpoint, &self.name()).await?;
        let later = catalog::read_facts(&now, &self.sessions.record.publication).await?;
        if let Some(changed) = self.changed(&under, &later) {
            return Err(AttemptError::Changed(changed));
        }
        // The keeper must have lived until here.
        keeper.batch_execute("COMMIT").await?;
        let copied = Copied {
            attempt: self.attempt,
            snapshot,
            targets,
            parts: copied,
        };
        self.say(&now, &json!({ DURABLE: copied })).await?;
        self.let_followers_load(&copied).await;
        self.end(now, &json!(copied)).await
    }

    /// A connection that broke while followers loaded, or an answer that did not come, is no reason to read all rows again.
    /// To say it twice does nothing: after the first time nothing waits.
    async fn end(&self, mut client: Client, document: &Value) -> Result<Lsn, AttemptError> {
        let begun = Instant::now();
        loop {
            let error = match self.say(&client, document).await {
                Err(AttemptError::Postgres(error))
                    if is_broken(&error) && begun.elapsed() < SAID_WITHIN =>
                {
                    error
                }
                said => return said,
            };
            let error = crate::ship::chain(&error);
            tracing::info!(
                error,
                "the end of a backfill could not be said; it is tried again"
            );
            client = loop {
                tokio::time::sleep(SAID_AGAIN).await;
                match conn::connect(&self.endpoint, &self.name()).await {
                    Err(error) if begun.elapsed() >= SAID_WITHIN => return Err(error.into()),
                    Err(_not_yet) => {}
                    Ok(client) => break client,
                }
            };
        }
    }

    /// Nothing is held meanwhile: no snapshot, no lock, no slot. A follower that is slower, or was away, loads the
    /// rest when it meets the end.
    async fn let_followers_load(&self, copied: &Copied) {
        let rows: u64 = copied.parts.iter().map(|part| part.rows).sum();
        let bytes = copied.parts.iter().map(|part| part.raw_bytes).sum();
        let took = Duration::from_millis(rows * 1000 / LOADED_PER_SECOND).min(LOADED_WITHIN);
        self.tell(CopyProgress {
            rows,
            bytes,
            waiting: Some("copied; followers load it before it is shown".to_owned()),
            ..CopyProgress::default()
        });
        tokio::time::sleep(took).await;
    }

    fn name(&self) -> String {
        format!(
            "rindle-backfill {} {}",
            self.sessions.record.source, self.attempt.number
        )
    }

    fn tell(&self, progress: CopyProgress) {
        self.sessions
            .state
            .set_backfill(u64::from(self.attempt.number), Some(self.view(progress)));
    }

    fn view(&self, progress: CopyProgress) -> BackfillView {
        BackfillView {
            tables: self.believed.names(&self.targets),
            rows: progress.rows,
            bytes: progress.bytes,
            waiting: progress.waiting,
        }
    }

    /// A snapshot, shared by a connection that keeps it; the slot that made it is gone, with the WAL that it kept.
    async fn snapshot(&self) -> Result<(Client, String, Lsn), AttemptError> {
        let mut exporter = WalStream::connect(&self.endpoint, &self.name()).await?;
        let slot = format!("{}_b{}", self.sessions.record.slot, self.attempt.number);
        exporter
            .query(&format!("SET lock_timeout = '{SLOT_WAIT}'"))
            .await?;
        let slot = loop {
            match exporter.create_slot(&slot, true, false).await {
                Ok(slot) => break slot,
                Err(WalError::Server(error)) if error.code == sqlstate::LOCK_TIMEOUT => {
                    let client = conn::connect(&self.endpoint, &self.name()).await?;
                    let waiting = Some(facts::blockers(&client).await?);
                    self.tell(CopyProgress {
                        waiting,
                        ..CopyProgress::default()
                    });
                }
                Err(error) => return Err(error.into()),
            }
        };
        let keeper = conn::connect(&self.endpoint, &self.name()).await?;
        let waits = |transactions: &str| {
            self.tell(CopyProgress {
                waiting: Some(snapshot::waits(transactions)),
                ..CopyProgress::default()
            });
        };
        let shared = snapshot::keep(&keeper, &slot.snapshot_name, waits).await?;
        exporter.close().await;
        self.tell(CopyProgress::default());
        Ok((keeper, shared, slot.consistent_point))
    }

    /// What the targets are under the snapshot, and the physical tables to read.
    fn plan(&self, under: &Facts) -> Result<(Vec<CopyTarget>, Vec<CopyTable>), AttemptError> {
        let view = under.view();
        let mut targets = Vec::new();
        let mut plan = Vec::new();
        for target in &self.targets {
            let behind = || AttemptError::Behind(self.believed.names(&[*target]).join(", "));
            let (believed, leaf) = self.believed.schema.owner(*target).ok_or_else(behind)?;
            let shape = shape(&view, believed).ok_or_else(behind)?;
            let read = view.copy_plan_of(&shape).into_iter();
            let wanted = leaf.map(|leaf| leaf.oid);
            let read: Vec<CopyTable> = read
                .filter(|table| wanted.is_none_or(|oid| table.rel == oid))
                .collect();
            if wanted.is_some() && read.is_empty() {
                return Err(behind());
            }
            plan.extend(read);
            targets.push(CopyTarget {
                target: *target,
                shape,
            });
        }
        Ok((targets, plan))
    }

    async fn copy(
        &self,
        plan: Vec<CopyTable>,
        snapshot: String,
    ) -> Result<Vec<BulkPart>, AttemptError> {
        let (state, number, view) = (
            self.sessions.state.clone(),
            self.attempt.number,
            self.view(CopyProgress::default()),
        );
        let progress = Progress::new(move |progress| {
            let view = BackfillView {
                rows: progress.rows,
                bytes: progress.bytes,
                waiting: progress.waiting,
                ..view.clone()
            };
            state.set_backfill(u64::from(number), Some(view));
        });
        let job = copy::Job {
            endpoint: self.endpoint.clone(),
            application_name: self.name(),
            archive: self.sessions.archive.clone(),
            state: self.sessions.state.clone(),
            snapshot,
            attempt: self.attempt,
            plan,
            progress,
            pace: copy::Pace::Gentle(BYTES_PER_SECOND),
        };
        let mut copying = tokio::spawn(copy::run(job));
        // Nobody is told of an attempt that is dropped: its workers go with it.
        let _guard = Abort(copying.abort_handle());
        let watcher = conn::connect(&self.endpoint, "rindle-backfill watch").await?;
        let mut timer = tokio::time::interval(LOOK);
        loop {
            tokio::select! {
                copied = &mut copying => return match copied {
                    Ok(Err(error)) if error.is_refusal() => Err(AttemptError::Refused(crate::ship::chain(&error))),
                    Ok(copied) => Ok(copied?),
                    Err(_died) => Err(AttemptError::Died),
                },
                _ = timer.tick() => self.yield_to_others(&watcher).await?,
            }
        }
    }

    /// A migration or an index build that waits for us goes first.
    async fn yield_to_others(&self, watcher: &Client) -> Result<(), AttemptError> {
        match watcher
            .query_opt(&format!("{WAITERS} LIMIT 1"), &[&self.name(), &PATIENCE])
            .await?
        {
            None => Ok(()),
            Some(row) => Err(AttemptError::InTheWay {
                pid: row.try_get(0)?,
                query: row.try_get(1)?,
            }),
        }
    }

    /// What is not as it was under the snapshot, of what was copied.
    fn changed(&self, under: &Facts, later: &Facts) -> Option<String> {
        let oids: Vec<Oid> = self
            .targets
            .iter()
            .filter_map(|id| Some(self.believed.schema.owner(*id)?.0.oid))
            .collect();
        let only = |facts: &Facts| facts.only(&oids);
        let (under, later) = (only(under), only(later));
        let sent = |facts: &Facts| {
            let publication = &facts.publication;
            let members = publication.tables.iter();
            let members = members.filter(|it| facts.relations.contains_key(&it.oid));
            (publication.via_root, members.cloned().collect::<Vec<_>>())
        };
        if sent(&under) != sent(&later) {
            return Some("what the publication sends of it".to_owned());
        }
        under.view().copy_facts_differ(&later.view())
    }

    async fn say(&self, client: &Client, document: &Value) -> Result<Lsn, AttemptError> {
        let document = document.to_string();
        let said = client.query_one(COPIED, &[&document]).await;
        said.map_err(|error| {
            let absent = [
                SqlState::UNDEFINED_FUNCTION,
                SqlState::INVALID_SCHEMA_NAME,
                SqlState::INSUFFICIENT_PRIVILEGE,
            ];
            match error.code().is_some_and(|code| absent.contains(code)) {
                true => AttemptError::NotPrepared(crate::ship::chain(&error)),
                false => error.into(),
            }
        })?;
        let at: String = client.query_one(POSITION, &[]).await?.try_get(0)?;
        at.parse()
            .map_err(|error: rindle_proto::ids::ParseError| AttemptError::Bug(error.to_string()))
    }
}

/// The connection is gone, or the server sent it away: another one may do.
fn is_broken(error: &tokio_postgres::Error) -> bool {
    let class = error.code().map(|code| code.code().get(..2));
    error.is_closed() || class.is_none_or(|class| matches!(class, Some("08" | "53" | "57")))
}

/// A waiting table as the snapshot shows it, under the numbers that are believed.
fn shape(view: &CatalogView, believed: &Table) -> Option<Table> {
    let facts = view
        .tables
        .iter()
        .find(|table| table.relation.oid == believed.oid)?;
    let mut shape = view.table(facts, believed.id).ok()?;
    for leaf in &mut shape.leaves {
        let known = believed.leaves.iter().find(|known| known.oid == leaf.oid)?;
        *leaf = Leaf {
            waiting: false,
            ..*known
        };
    }
    shape.leaves.sort_by_key(|leaf| leaf.id);
    Some(shape)
}

struct Abort(AbortHandle);

impl Drop for Abort {
    fn drop(&mut self) {
        self.0.abort();
    }
}
