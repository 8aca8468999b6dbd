//! Backfills: rows that the stream cannot give, copied beside it. See `designs/006-schema-changes.md`, "Backfill".
//!
//! One task a session looks at what waits and starts attempts, each with connections of its own. An attempt ends with a
//! transaction of the source that says so; the stream brings it, and only then anything is revealed. So nothing here
//! decides what is right: an attempt that dies, or comes too late, is passed over, and what still waits is copied again.

mod attempt;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use rindle_proto::body::Attempt;
use rindle_proto::ids::Lsn;
use rindle_proto::schema::TableId;
use tokio::task::JoinSet;
use tokio::time::Instant;

use self::attempt::{AttemptError, Work};
use crate::live::{Belief, Live};
use crate::pg::endpoint::Endpoint;
use crate::session::Sessions;
use crate::ship::chain;
use crate::state::BackfillView;

/// Attempts at a time: each takes a slot and a sender of the source while its snapshot is made.
const AT_A_TIME: usize = 2;

/// Pauses before what failed is copied again.
const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(60);

/// Numbers of attempts, by which their progress is told, lie below this; those of what waits above.
const ATTEMPTS: u64 = 1 << 32;

/// How often it is looked at what waits, when nothing changes.
const LOOK: Duration = Duration::from_secs(1);

/// Runs backfills until dropped.
pub async fn run(sessions: Sessions, endpoint: Endpoint, live: Arc<Live>) {
    let mut driver = Driver {
        live: Arc::clone(&live),
        sessions,
        endpoint,
        running: JoinSet::new(),
        copying: BTreeMap::new(),
        done: BTreeMap::new(),
        failed: BTreeMap::new(),
        next_number: 1,
    };
    let mut beliefs = live.beliefs();
    let mut timer = tokio::time::interval(LOOK);
    loop {
        let belief = beliefs.borrow_and_update().clone();
        if let Some(belief) = belief {
            driver.look(&belief);
        }
        tokio::select! {
            changed = beliefs.changed() => if changed.is_err() { return },
            _ = timer.tick() => {}
            Some(ended) = driver.running.join_next() => driver.ended(ended),
        }
    }
}

struct Driver {
    sessions: Sessions,
    endpoint: Endpoint,
    live: Arc<Live>,
    running: JoinSet<(u32, Result<Lsn, AttemptError>)>,
    /// What each running attempt copies.
    copying: BTreeMap<u32, BTreeSet<TableId>>,
    /// What was said to be complete, and where in the WAL: until the stream is past it.
    done: BTreeMap<TableId, Lsn>,
    failed: BTreeMap<TableId, Failed>,
    next_number: u32,
}

struct Failed {
    pause: Duration,
    again_at: Instant,
}

impl Driver {
    /// Starts what waits and nobody copies.
    fn look(&mut self, belief: &Belief) {
        let waiting: BTreeSet<TableId> = belief.believed.waiting().into_iter().collect();
        let through = self.live.visible().borrow().through;
        self.done
            .retain(|target, said| waiting.contains(target) && *said > through);
        self.failed.retain(|target, _| waiting.contains(target));
        let known = |number| number < ATTEMPTS || waiting.iter().any(|it| key(*it) == number);
        self.sessions.state.keep_backfills(known);
        let now = Instant::now();
        let busy = |target: &TableId| {
            self.copying
                .values()
                .any(|targets| targets.contains(target))
        };
        let rests = |target: &TableId| {
            self.failed
                .get(target)
                .is_some_and(|failed| failed.again_at > now)
        };
        let free: BTreeSet<TableId> = waiting
            .iter()
            .copied()
            .filter(|target| !busy(target) && !rests(target) && !self.done.contains_key(target))
            .collect();
        self.tell_waiting(belief, &free);
        if free.is_empty() || self.running.len() >= AT_A_TIME {
            return;
        }
        let number = self.next_number;
        self.next_number += 1;
        let work = Work {
            sessions: self.sessions.clone(),
            endpoint: self.endpoint.clone(),
            believed: Arc::clone(&belief.believed),
            targets: free.iter().copied().collect(),
            attempt: Attempt {
                epoch: self.live.epoch,
                number,
            },
        };
        self.copying.insert(number, free);
        self.running
            .spawn(async move { (number, work.run().await) });
    }

    /// What waits for its turn is told too.
    fn tell_waiting(&self, belief: &Belief, free: &BTreeSet<TableId>) {
        for target in free {
            let view = BackfillView {
                tables: belief.believed.names(&[*target]),
                waiting: Some("waiting for its turn".to_owned()),
                ..BackfillView::default()
            };
            if self.running.len() >= AT_A_TIME {
                self.sessions.state.set_backfill(key(*target), Some(view));
            }
        }
    }

    fn ended(&mut self, ended: Result<(u32, Result<Lsn, AttemptError>), tokio::task::JoinError>) {
        let (number, outcome) = match ended {
            Ok(ended) => ended,
            // Ended by what is done about another one's death.
            Err(error) if error.is_cancelled() => return,
            Err(error) => {
                tracing::error!(%error, "a backfill panicked and starts afresh; this is a bug: report it with this log");
                // Which one it was is not known: all that nobody runs any more are free again.
                self.copying.clear();
                self.running.abort_all();
                return;
            }
        };
        let targets = self.copying.remove(&number).unwrap_or_default();
        self.sessions.state.set_backfill(u64::from(number), None);
        for target in &targets {
            self.sessions.state.set_backfill(key(*target), None);
        }
        match outcome {
            Ok(said) => {
                for target in targets {
                    self.failed.remove(&target);
                    self.done.insert(target, said);
                }
            }
            Err(error) => self.failed(&targets, &error),
        }
    }

    fn failed(&mut self, targets: &BTreeSet<TableId>, error: &AttemptError) {
        let why = chain(error);
        tracing::warn!(
            error = why,
            "a backfill ended without its rows; it is made again"
        );
        let mut pause = RETRY_MIN;
        for target in targets {
            let before = self
                .failed
                .get(target)
                .map_or(Duration::ZERO, |failed| failed.pause);
            pause = pause.max((before * 2).clamp(RETRY_MIN, RETRY_MAX));
        }
        for target in targets {
            self.failed.insert(
                *target,
                Failed {
                    pause,
                    again_at: Instant::now() + pause,
                },
            );
        }
        if let (Some(first), Some(belief)) =
            (targets.first(), self.live.beliefs().borrow().as_ref())
        {
            let all: Vec<TableId> = targets.iter().copied().collect();
            let view = BackfillView {
                tables: belief.believed.names(&all),
                waiting: Some(format!("it failed and is made again: {why}")),
                ..BackfillView::default()
            };
            self.sessions.state.set_backfill(key(*first), Some(view));
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.sessions.state.keep_backfills(|_| false);
    }
}

/// By which the progress of what waits is told.
fn key(target: TableId) -> u64 {
    ATTEMPTS + u64::from(target.0)
}
