//! Rows of a copy from the archive, fetched and verified ahead of the mirror, which loads them one after another.

use std::collections::VecDeque;

use bytes::Bytes;
use rindle_archive::{BulkError, Kind, Log};
use rindle_follower::mirror::{self, BulkSource};
use rindle_proto::body::{Attempt, BulkPart, CopyDone};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

/// Parts in memory at once, each of a few MiB.
const AHEAD: usize = 4;

type Fetched = Result<Bytes, BulkError>;

/// The bulk parts of one copy.
pub struct BulkAhead<'a> {
    log: Log,
    runtime: Handle,
    attempt: Attempt,
    /// Parts in the order in which a mirror loads them.
    waiting: VecDeque<BulkPart>,
    fetching: VecDeque<(u32, JoinHandle<Fetched>)>,
    told: &'a mut dyn FnMut(&BulkPart),
}

impl<'a> BulkAhead<'a> {
    /// The parts of `done`, fetched on `runtime`; `told` hears of each one that was taken.
    pub fn new(
        log: Log,
        runtime: Handle,
        done: &CopyDone,
        told: &'a mut dyn FnMut(&BulkPart),
    ) -> Self {
        let mut parts = done.parts.clone();
        parts.sort_by_key(|part| (part.table, part.number));
        let (waiting, fetching) = (parts.into(), VecDeque::new());
        Self {
            log,
            runtime,
            attempt: done.attempt,
            waiting,
            fetching,
            told,
        }
    }

    fn fetch_more(&mut self) {
        while self.fetching.len() < AHEAD
            && let Some(part) = self.waiting.pop_front()
        {
            let (log, attempt, number) = (self.log.clone(), self.attempt, part.number);
            let fetch = async move { log.fetch_bulk(attempt, &part).await };
            self.fetching.push_back((number, self.runtime.spawn(fetch)));
        }
    }

    fn take(&mut self, attempt: Attempt, part: &BulkPart) -> Fetched {
        self.fetch_more();
        let next = self
            .fetching
            .front()
            .is_some_and(|(number, _)| *number == part.number);
        if next && let Some((_, task)) = self.fetching.pop_front() {
            self.fetch_more();
            if let Ok(fetched) = self.runtime.block_on(task) {
                return fetched;
            }
        }
        self.runtime.block_on(self.log.fetch_bulk(attempt, part))
    }
}

impl BulkSource for BulkAhead<'_> {
    fn rows(&mut self, attempt: Attempt, part: &BulkPart) -> Result<Bytes, mirror::BulkError> {
        let rows = self
            .take(attempt, part)
            .map_err(|error| match error.kind() {
                Kind::Corrupt => mirror::BulkError::Corrupt(Box::new(error)),
                Kind::Retry | Kind::Halt | Kind::Refused | Kind::Bug => {
                    mirror::BulkError::Unavailable(Box::new(error))
                }
            })?;
        (self.told)(part);
        Ok(rows)
    }
}

impl Drop for BulkAhead<'_> {
    fn drop(&mut self) {
        self.fetching.iter().for_each(|(_, task)| task.abort());
    }
}

/// For frames that need no bulk rows.
pub(crate) struct NoBulk;

impl BulkSource for NoBulk {
    fn rows(&mut self, _: Attempt, part: &BulkPart) -> Result<Bytes, mirror::BulkError> {
        let error = format!("part {} belongs to no copy", part.number);
        Err(mirror::BulkError::Corrupt(error.into()))
    }
}
