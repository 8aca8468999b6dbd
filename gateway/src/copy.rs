//! Copies tables under one snapshot into bulk objects, in parallel over tables and over ranges of big ones.
//!
//! A copy can be silently wrong after a rename, a rewrite or a swapped partition between snapshot and lock, so
//! each range compares the facts of its table, read under the snapshot with its lock held, with the facts a fresh
//! connection sees (architecture decision 6). A difference voids the attempt.

mod worker;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use rindle_archive::{BulkError, Log};
use rindle_proto::body::{Attempt, BulkPart};
use rindle_proto::ids::Oid;
use rindle_proto::schema::{Table, TableId};
use tokio::task::JoinSet;

use crate::halt::HaltReason;
use crate::pg::conn::ConnectError;
use crate::pg::endpoint::Endpoint;
use crate::state::{CopyProgress, State};

/// Pages of one range: what one COPY reads, and how long one table lock is held.
const RANGE_PAGES: u64 = 4096;

/// The same of a paced copy.
const PACED_RANGE_PAGES: u64 = 1024;

/// Fewest and most connections that copy.
const WORKERS_MIN: usize = 2;
const WORKERS_MAX: usize = 8;

/// What a role must be given that may not read a table. Our sessions would rather fail than read what row-level security
/// leaves of it.
pub(crate) const RIGHTS: &str = "grant SELECT on it to the gateway's role (rindle pg prepare --role does), and where \
    row-level security is on, make the role one that sees past it: ALTER ROLE … BYPASSRLS";

/// One copy.
#[derive(Debug)]
pub struct Job {
    /// Where Postgres is.
    pub endpoint: Endpoint,
    /// How the connections are seen there.
    pub application_name: String,
    /// Where bulk objects go.
    pub archive: Log,
    /// Told that the archive takes no writes.
    pub state: State,
    /// Exported snapshot that every worker imports.
    pub snapshot: String,
    /// Part of the objects' names.
    pub attempt: Attempt,
    /// What to read.
    pub plan: Vec<CopyTable>,
    /// Told as the copy goes on.
    pub progress: Progress,
    /// How hard it may work.
    pub pace: Pace,
}

/// How hard a copy may work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// As fast as it goes: nothing else is served yet.
    Fast,
    /// One connection, and no more than so many bytes of rows a second: what streams goes first.
    Gentle(u64),
}

/// Who is told how far a copy is.
pub struct Progress(Box<dyn Fn(CopyProgress) + Send + Sync>);

impl Progress {
    /// Calls `tell` at each step.
    pub fn new(tell: impl Fn(CopyProgress) + Send + Sync + 'static) -> Self {
        Self(Box::new(tell))
    }
}

impl std::fmt::Debug for Progress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Progress")
    }
}

/// One physical table to read.
#[derive(Clone, Debug)]
pub struct CopyTable {
    /// Table of the mirror that its rows go to.
    pub table: Table,
    /// The table, or the partition of it whose rows they are.
    pub target: TableId,
    /// The physical table: the table itself, or a leaf of it.
    pub rel: Oid,
    /// Its quoted, qualified name.
    pub quoted_name: String,
    /// The table with whose row filter the publication sends it.
    pub filtered_as: Option<Oid>,
    /// That filter, as SQL; read when the copy begins ([`crate::pg::catalog::read_filters`]).
    pub filter: Option<String>,
    /// Size in pages.
    pub pages: u64,
}

/// Why a copy ended without all rows.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// No connection.
    #[error("connect")]
    Connect(#[from] ConnectError),
    /// Postgres refused a statement, or the connection broke.
    #[error("copy {table}")]
    Postgres {
        /// The table.
        table: String,
        /// What Postgres said.
        #[source]
        source: tokio_postgres::Error,
    },
    /// The table changed between snapshot and lock.
    #[error("table {table} changed while it was copied")]
    Changed {
        /// The table.
        table: String,
    },
    /// A row that cannot be mirrored.
    #[error(transparent)]
    Row(HaltReason),
    /// Text that is no COPY row.
    #[error("copy {table}: {detail}")]
    Text {
        /// The table.
        table: String,
        /// What is wrong.
        detail: String,
    },
    /// The archive refused a part for good.
    #[error("archive")]
    Archive(#[from] BulkError),
    /// A worker died.
    #[error("a copy worker died: {0}")]
    Worker(String),
}

impl CopyError {
    /// True when Postgres refuses the role what the copy needs.
    pub fn is_refusal(&self) -> bool {
        match self {
            CopyError::Postgres { source, .. } => {
                source.code() == Some(&tokio_postgres::error::SqlState::INSUFFICIENT_PRIVILEGE)
            }
            _ => false,
        }
    }
}

/// One unit of work: pages `from..to` of a table, open-ended at its end.
#[derive(Clone, Debug)]
struct Range {
    table: Arc<CopyTable>,
    from: u64,
    to: Option<u64>,
}

/// What workers share.
#[derive(Debug)]
struct Shared {
    job: Job,
    ranges: Mutex<VecDeque<Range>>,
    parts: Mutex<Parts>,
}

#[derive(Debug, Default)]
struct Parts {
    next_number: u32,
    done: Vec<BulkPart>,
    progress: CopyProgress,
    /// Ranges not yet durable, by table of the mirror.
    ranges_left: std::collections::HashMap<u32, usize>,
}

impl Pace {
    fn workers(self) -> usize {
        match self {
            Pace::Gentle(_) => 1,
            Pace::Fast => {
                let cores = std::thread::available_parallelism().map_or(WORKERS_MIN, usize::from);
                (cores * 2).clamp(WORKERS_MIN, WORKERS_MAX)
            }
        }
    }
}

/// Copies everything of the job and returns its parts in number order.
///
/// # Errors
/// The first error of any worker; the attempt is void then.
pub async fn run(job: Job) -> Result<Vec<BulkPart>, CopyError> {
    let range_pages = match job.pace {
        Pace::Fast => RANGE_PAGES,
        Pace::Gentle(_) => PACED_RANGE_PAGES,
    };
    let ranges = plan_ranges(&job.plan, range_pages);
    let mut parts = Parts::default();
    for range in &ranges {
        *parts.ranges_left.entry(range.table.table.id.0).or_default() += 1;
    }
    parts.progress.tables = parts.ranges_left.len();
    let workers = job.pace.workers().min(ranges.len());
    let shared = Arc::new(Shared {
        job,
        ranges: Mutex::new(ranges),
        parts: Mutex::new(parts),
    });
    shared.tell();
    let mut set = JoinSet::new();
    for _ in 0..workers {
        set.spawn(worker::run(Arc::clone(&shared)));
    }
    while let Some(ended) = set.join_next().await {
        // Dropping the set ends the other workers.
        ended.map_err(|error| CopyError::Worker(error.to_string()))??;
    }
    let mut parts = std::mem::take(&mut *shared.parts());
    parts.done.sort_unstable_by_key(|part| part.number);
    Ok(parts.done)
}

/// Big tables first, so that the last range is a small one.
fn plan_ranges(plan: &[CopyTable], range_pages: u64) -> VecDeque<Range> {
    let mut tables: Vec<Arc<CopyTable>> = plan.iter().cloned().map(Arc::new).collect();
    tables.sort_by_key(|table| std::cmp::Reverse(table.pages));
    let mut ranges = VecDeque::new();
    for table in tables {
        let mut from = 0;
        while table.pages - from > range_pages {
            let to = Some(from + range_pages);
            ranges.push_back(Range {
                table: Arc::clone(&table),
                from,
                to,
            });
            from += range_pages;
        }
        // Open-ended: a size read before the copy excludes no row.
        ranges.push_back(Range {
            table,
            from,
            to: None,
        });
    }
    ranges
}

impl Shared {
    fn next_range(&self) -> Option<Range> {
        self.ranges
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop_front()
    }

    fn next_part_number(&self) -> u32 {
        let mut parts = self.parts();
        let number = parts.next_number;
        parts.next_number += 1;
        number
    }

    fn range_done(&self, range: &Range, done: Vec<BulkPart>) {
        let mut parts = self.parts();
        parts.progress.rows += done.iter().map(|part| part.rows).sum::<u64>();
        parts.progress.bytes += done.iter().map(|part| part.raw_bytes).sum::<u64>();
        parts.progress.waiting = None;
        parts.done.extend(done);
        let left = parts.ranges_left.entry(range.table.table.id.0).or_default();
        *left -= 1;
        if *left == 0 {
            parts.progress.tables_done += 1;
        }
        drop(parts);
        self.job.state.set_archive_problem(None);
        self.tell();
    }

    fn waits(&self, why: String) {
        self.parts().progress.waiting = Some(why);
        self.tell();
    }

    fn tell(&self) {
        let progress = self.parts().progress.clone();
        (self.job.progress.0)(progress);
    }

    fn parts(&self) -> std::sync::MutexGuard<'_, Parts> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
