//! How much waits in front of a hop, and for how long.
//!
//! Seconds are the age of the oldest of what waits, by this process's monotonic clock, from the moment when it came to
//! the hop before; 0 when nothing waits. No commit time is compared with a clock here: the source's clock is another one,
//! and a transaction that took an hour would seem an hour late. What was on its way before this process, or this session,
//! saw it counts from then, so right after a start the seconds are too few.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

/// What comes within this time counts as having come with its first byte.
const STEP: Duration = Duration::from_millis(100);

/// Moments remembered. More are thinned out where it changes an age least, so even a week is told to a few percent.
const STEPS_MAX: usize = 512;

/// What waits in front of a hop.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Waiting {
    /// Bytes: of WAL in front of `received` and `acked`, of frames in front of `archived` and of a follower.
    pub bytes: u64,
    /// Age of the oldest of it in seconds, to the millisecond.
    pub seconds: f64,
}

impl Waiting {
    /// So many bytes, the oldest of this age.
    pub fn new(bytes: u64, age: Duration) -> Self {
        Self {
            bytes,
            seconds: age.as_millis() as f64 / 1000.0,
        }
    }
}

/// Hop by hop what waits in front of it; null where it is not known.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Lag {
    /// WAL of the source that was not received.
    pub received: Option<Waiting>,
    /// Received frames that are not archived.
    pub archived: Option<Waiting>,
    /// WAL that is archived and not acknowledged.
    pub acked: Option<Waiting>,
    /// For each hop that is null: why.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub why: BTreeMap<&'static str, String>,
}

/// When a position that only rises came to be where it is.
#[derive(Clone, Debug)]
pub struct Trail {
    end: u64,
    steps: VecDeque<Step>,
}

/// Everything up to `end` was there; the first of it beyond the step before came at `at`.
#[derive(Clone, Copy, Debug)]
struct Step {
    end: u64,
    at: Instant,
}

impl Trail {
    /// A position that stands at `end`; nothing is known of how it came there.
    pub fn new(end: u64) -> Self {
        Self {
            end,
            steps: VecDeque::new(),
        }
    }

    /// The position.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// The position is `end` now; one that is no step forward is passed over.
    pub fn reached(&mut self, end: u64, now: Instant) {
        if end <= self.end {
            return;
        }
        self.end = end;
        match self.steps.back_mut() {
            Some(last) if now.duration_since(last.at) < STEP => last.end = end,
            _ => self.steps.push_back(Step { end, at: now }),
        }
        if self.steps.len() > STEPS_MAX {
            self.thin(now);
        }
    }

    /// What lies beyond `position`.
    pub fn beyond(&self, position: u64, now: Instant) -> Waiting {
        let oldest = self.steps.partition_point(|step| step.end <= position);
        let age = self
            .steps
            .get(oldest)
            .map(|step| now.duration_since(step.at));
        Waiting::new(self.end.saturating_sub(position), age.unwrap_or_default())
    }

    /// Joins the two steps whose distance is smallest beside their age.
    fn thin(&mut self, now: Instant) {
        let loss = |at: usize| {
            let (step, next) = (self.steps[at], self.steps[at + 1]);
            let age = now.duration_since(step.at).max(STEP);
            next.at.duration_since(step.at).as_secs_f64() / age.as_secs_f64()
        };
        let least = (0..self.steps.len() - 1).min_by(|a, b| loss(*a).total_cmp(&loss(*b)));
        let joined = least.and_then(|at| self.steps.remove(at + 1).zip(self.steps.get_mut(at)));
        if let Some((next, step)) = joined {
            step.end = next.end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A trail with a step of ten bytes at each of these seconds, and a clock.
    fn trail(seconds: impl IntoIterator<Item = u64>) -> (Trail, impl Fn(u64) -> Instant) {
        let begun = Instant::now();
        let clock = move |seconds| begun + Duration::from_secs(seconds);
        let mut trail = Trail::new(100);
        for (nth, second) in seconds.into_iter().enumerate() {
            trail.reached(110 + nth as u64 * 10, clock(second));
        }
        (trail, clock)
    }

    #[test]
    fn the_oldest_of_what_waits_has_the_age() {
        let (trail, at) = trail([10, 20, 50]);
        let waits = |position| {
            let waiting = trail.beyond(position, at(60));
            (waiting.bytes, waiting.seconds)
        };
        assert_eq!(waits(100), (30, 50.0));
        assert_eq!(waits(109), (21, 50.0));
        assert_eq!(waits(110), (20, 40.0));
        assert_eq!(waits(129), (1, 10.0));
        assert_eq!(waits(130), (0, 0.0));
        // Downstream may know more than was told here.
        assert_eq!(waits(999), (0, 0.0));
    }

    #[test]
    fn what_comes_at_once_is_one_step_and_a_step_back_is_none() {
        let (mut trail, at) = trail([10]);
        trail.reached(200, at(10) + STEP / 2);
        trail.reached(150, at(20));
        assert_eq!(trail.steps.len(), 1);
        assert_eq!(trail.end(), 200);
        assert_eq!(trail.beyond(199, at(30)).seconds, 20.0);
    }

    #[test]
    fn a_long_time_is_remembered_in_few_steps() {
        let day = 24 * 3600;
        // Busy but for a night in the middle.
        let busy = (0..day).chain(day + 8 * 3600..2 * day);
        let (trail, at) = trail(busy.clone());
        assert!(trail.steps.len() <= STEPS_MAX);
        for (nth, second) in busy.enumerate().step_by(997) {
            let truth = (2 * day - second) as f64;
            let told = trail.beyond(109 + nth as u64 * 10, at(2 * day)).seconds;
            assert!(
                (told - truth).abs() <= truth * 0.05 + 1.0,
                "{told} for {truth}"
            );
        }
    }
}
