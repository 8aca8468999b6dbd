//! Seeded numbers (SplitMix64). Every drill prints its seed; `SEED=n` runs it again with the same choices.

use std::time::{SystemTime, UNIX_EPOCH};

/// A small generator: the same seed gives the same numbers on every machine.
#[derive(Debug, Clone)]
pub struct Rng {
    state: u64,
}

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The seed named by `SEED`, else one from the clock; printed, so that a failure can be had again.
    pub fn from_env(what: &str) -> Self {
        let seed = std::env::var("SEED")
            .ok()
            .and_then(|s| s.parse().ok())
            .unwrap_or_else(|| {
                SystemTime::now()
                    .duration_since(UNIX_EPOCH)
                    .map_or(1, |d| d.as_nanos() as u64)
            });
        println!("{what}: SEED={seed}");
        Self::new(seed)
    }

    /// A generator of its own for one of several writers.
    pub fn fork(&mut self) -> Self {
        Self::new(self.number())
    }

    pub fn number(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number in `0..limit`; `limit` is at least 1.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.number() % limit.max(1)
    }

    /// A number in `from..=to`.
    pub fn between(&mut self, from: i64, to: i64) -> i64 {
        let span = (i128::from(to) - i128::from(from) + 1) as u128;
        (i128::from(from) + (u128::from(self.number()) % span) as i128) as i64
    }

    /// True once in `n` calls, on average.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }

    /// Hex digits that do not compress.
    pub fn hex(&mut self, digits: usize) -> String {
        let mut text = String::with_capacity(digits + 16);
        while text.len() < digits {
            text.push_str(&format!("{:016x}", self.number()));
        }
        text.truncate(digits);
        text
    }
}
