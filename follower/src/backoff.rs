//! Waits between attempts: longer each time, spread so that many followers do not come back at once.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::time::Duration;

const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(5);

/// The limit for what moves a whole mirror each time.
pub(crate) const LONGEST_EXPENSIVE: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(crate) struct Backoff {
    attempts: u32,
}

impl Backoff {
    /// Something went well: the next wait is short again.
    pub(crate) fn reset(&mut self) {
        self.attempts = 0;
    }

    /// The next wait: half of it certain, half of it chance.
    fn next(&mut self, limit: Duration) -> Duration {
        let longest = FIRST.saturating_mul(1 << self.attempts.min(10)).min(limit);
        self.attempts = self.attempts.saturating_add(1);
        let chance = RandomState::new().build_hasher().finish() as f64 / u64::MAX as f64;
        longest.mul_f64(0.5 + chance / 2.0)
    }

    pub(crate) async fn wait(&mut self) {
        tokio::time::sleep(self.next(LONGEST)).await;
    }

    pub(crate) async fn wait_expensive(&mut self) {
        tokio::time::sleep(self.next(LONGEST_EXPENSIVE)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_a_limit_and_start_over() {
        let mut backoff = Backoff::default();
        let waits: Vec<_> = (0..20).map(|_| backoff.next(LONGEST)).collect();
        assert!(waits[0] <= FIRST && waits[0] >= FIRST / 2);
        assert!(waits[19] <= LONGEST && waits[19] >= LONGEST / 2);
        assert!(backoff.next(LONGEST_EXPENSIVE) >= LONGEST_EXPENSIVE / 2);
        backoff.reset();
        assert!(backoff.next(LONGEST) <= FIRST);
    }
}
