//! Rows of a copy from the archive, fetched and verified ahead of the mirror, which loads them one after another.

use std::collections::VecDeque;

use bytes::Bytes;
use rindle_archive::{BulkError, Kind, Log};
use rindle_follower::mirror::{self, BulkSource};
use rindle_proto::body::{Attempt, BulkPart};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

/// Parts in memory at once, each of a few MiB.
const AHEAD: usize = 4;

type Fetched = Result<Bytes, BulkError>;

/// The bulk parts of copies.
pub struct BulkAhead<'a> {
    log: Log,
    runtime: Handle,
    /// Parts in the order in which the mirror loads them.
    waiting: VecDeque<BulkPart>,
    fetching: VecDeque<(u32, JoinHandle<Fetched>)>,
    told: &'a mut dyn FnMut(&BulkPart),
}

impl<'a> BulkAhead<'a> {
    /// Parts are fetched on `runtime`; `told` hears of each one that was taken.
    pub fn new(log: Log, runtime: Handle, told: &'a mut dyn FnMut(&BulkPart)) -> Self {
        Self {
            log,
            runtime,
            waiting: VecDeque::new(),
            fetching: VecDeque::new(),
            told,
        }
    }

    fn fetch_more(&mut self, attempt: Attempt) {
        while self.fetching.len() < AHEAD
            && let Some(part) = self.waiting.pop_front()
        {
            let (log, number) = (self.log.clone(), part.number);
            let fetch = async move { log.fetch_bulk(attempt, &part).await };
            self.fetching.push_back((number, self.runtime.spawn(fetch)));
        }
    }

    fn take(&mut self, attempt: Attempt, part: &BulkPart) -> Fetched {
        self.fetch_more(attempt);
        let next = self
            .fetching
            .front()
            .is_some_and(|(number, _)| *number == part.number);
        if next && let Some((_, task)) = self.fetching.pop_front() {
            self.fetch_more(attempt);
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

    fn expect(&mut self, _attempt: Attempt, parts: &[&BulkPart]) {
        self.fetching.drain(..).for_each(|(_, task)| task.abort());
        self.waiting = parts.iter().map(|part| (*part).clone()).collect();
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
