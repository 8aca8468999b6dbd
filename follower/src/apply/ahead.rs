//! When the apply thread loads ahead: in short slices, while nothing else waits, and never more than some of the time.

use std::time::{Duration, Instant};

use super::{ApplyError, Worker};
use crate::mirror::Slice;

/// Longest time that a transaction may have to wait for a slice, its commit not counted.
const SLICE: Duration = Duration::from_millis(2);

/// A slice is followed by a rest as long as itself, and at least so long.
const REST: Duration = Duration::from_millis(3);

/// Between two looks whether a part has come.
const LOOK: Duration = Duration::from_millis(20);

/// When the next slice may begin.
#[derive(Debug, Default)]
pub(super) struct Pace {
    next: Option<Instant>,
}

impl Worker {
    /// Loads a slice if it is time for one. Gives how long to wait for the next one; none when there is nothing to load.
    pub(super) fn load_ahead(&mut self) -> Result<Option<Duration>, ApplyError> {
        let began = Instant::now();
        if let Some(next) = self.pace.next
            && next > began
        {
            return Ok(Some(next - began));
        }
        let mut go_on = || began.elapsed() < SLICE;
        let rest = match self.mirror.load_ahead(self.bulk.as_mut(), &mut go_on)? {
            Slice::Nothing => None,
            Slice::Waits => Some(LOOK),
            Slice::Some => Some(began.elapsed().max(REST)),
            Slice::Dropped(error) => {
                tracing::warn!(%error, "what a backfill copied is not loaded ahead; it is loaded when the copy ends, which says what is wrong if it still is");
                None
            }
            Slice::Kept(error) => {
                tracing::warn!(%error, "a table that was replaced or dropped stays in the mirror file, hidden; it is tried again at the next change of a schema and the next start: look at the disk");
                None
            }
        };
        self.pace.next = rest.map(|rest| Instant::now() + rest);
        Ok(rest)
    }
}
