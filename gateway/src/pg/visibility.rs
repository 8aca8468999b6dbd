//! Which transactions a snapshot of Postgres sees: its `pg_snapshot`, as text. Pure.
//!
//! Where the WAL was does not tell: a commit is written a moment before others see it, and much longer before where it
//! waits for a synchronous standby.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Snapshots that are kept name at most so many transactions.
const KEPT: usize = 64;

/// `pg_snapshot`: sees what had ended when it was taken. Numbers are those of top-level transactions, 64 bits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Snapshot {
    /// None below was running.
    xmin: u64,
    /// None from here on had ended.
    xmax: u64,
    /// Those between that were running, in order. In the snapshot of a slot whatever it does not see: also what failed.
    running: Vec<u64>,
}

/// A text that is no `pg_snapshot`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a pg_snapshot, which is xmin:xmax:xip,xip")]
pub struct SnapshotError(String);

impl Snapshot {
    /// It sees what the transaction did. Its own it may see or not.
    pub fn sees(&self, xid: u64) -> bool {
        xid < self.xmax && self.running.binary_search(&xid).is_err()
    }

    /// All transactions up to this one had ended.
    pub fn is_past(&self, xid: u64) -> bool {
        self.xmin > xid
    }

    /// The whole number of a transaction of which 32 bits are known: the nearest to those that were running.
    pub fn widened(&self, xid: u32) -> u64 {
        let low = u32::try_from(self.xmax & u64::from(u32::MAX)).unwrap_or_default();
        let ahead = i64::from(xid.wrapping_sub(low).cast_signed());
        self.xmax.saturating_add_signed(ahead)
    }

    /// It sees all that `other` sees.
    pub fn covers(&self, other: &Snapshot) -> bool {
        let late = other.running.partition_point(|xid| *xid < self.xmax);
        let late = other.running.len() - late;
        // Each that came later was running still.
        let came = other.xmax.saturating_sub(self.xmax);
        came == late as u64 && !self.running.iter().any(|xid| other.sees(*xid))
    }

    /// To be kept, and compared by [`Snapshot::covers`]: it may see more than this one, for it names few transactions.
    #[must_use]
    pub fn shortened(self) -> Snapshot {
        match self.running.len() > KEPT {
            true => Snapshot {
                xmin: self.xmax,
                running: Vec::new(),
                ..self
            },
            false => self,
        }
    }
}

impl FromStr for Snapshot {
    type Err = SnapshotError;

    fn from_str(text: &str) -> Result<Self, SnapshotError> {
        let wrong = || SnapshotError(text.chars().take(100).collect());
        let number = |text: &str| text.parse::<u64>().map_err(|_not_a_number| wrong());
        let mut parts = text.splitn(3, ':');
        let mut next = || parts.next().ok_or_else(wrong);
        let (xmin, xmax, list) = (number(next()?)?, number(next()?)?, next()?);
        let running = list.split(',').filter(|part| !part.is_empty());
        let running = running.map(number).collect::<Result<Vec<u64>, _>>()?;
        let in_order = running.is_sorted_by(|one, next| one < next);
        let within = running.iter().all(|xid| (xmin..xmax).contains(xid));
        match xmin <= xmax && in_order && within {
            true => Ok(Self {
                xmin,
                xmax,
                running,
            }),
            false => Err(wrong()),
        }
    }
}

impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:", self.xmin, self.xmax)?;
        for (at, xid) in self.running.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            write!(f, "{comma}{xid}")?;
        }
        Ok(())
    }
}

impl TryFrom<String> for Snapshot {
    type Error = SnapshotError;

    fn try_from(text: String) -> Result<Self, SnapshotError> {
        text.parse()
    }
}

impl From<Snapshot> for String {
    fn from(snapshot: Snapshot) -> String {
        snapshot.to_string()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn snapshot(text: &str) -> Snapshot {
        text.parse().unwrap()
    }

    #[test]
    fn text_is_what_postgres_prints() {
        for text in ["10:10:", "10:20:10,14", "5000000000:5000000002:5000000001"] {
            assert_eq!(snapshot(text).to_string(), text);
        }
        for text in [
            "",
            "10",
            "10:20",
            "x:20:",
            "20:10:",
            "10:20:9",
            "10:20:20",
            "10:20:14,12",
            "10:20:1x",
            "10:20:-1",
        ] {
            assert!(text.parse::<Snapshot>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn transactions_are_seen_that_had_ended() {
        let seen = snapshot("10:20:10,14");
        let of =
            |range: std::ops::Range<u64>| range.filter(|xid| seen.sees(*xid)).collect::<Vec<_>>();
        assert_eq!(of(8..23), [8, 9, 11, 12, 13, 15, 16, 17, 18, 19]);
        assert!(seen.is_past(9) && !seen.is_past(10));
    }

    #[test]
    fn numbers_wrap_at_32_bits() {
        let now = snapshot("4294967290:4294967301:4294967290,4294967298");
        for full in [
            4_294_967_200,
            4_294_967_295,
            4_294_967_296,
            4_294_967_301,
            4_294_967_400,
        ] {
            let low = u32::try_from(full % (1 << 32)).unwrap();
            assert_eq!(now.widened(low), full);
        }
        assert_eq!(snapshot("3:5:").widened(4), 4);
    }

    #[test]
    fn a_snapshot_that_is_shortened_sees_no_less() {
        let running: Vec<String> = (100..200).map(|xid: u64| xid.to_string()).collect();
        let long = snapshot(&format!("100:300:{}", running.join(",")));
        let short = long.clone().shortened();
        assert_eq!(short.to_string(), "300:300:");
        assert!(short.covers(&long) && !long.covers(&short));
        assert_eq!(snapshot("10:20:10,14").shortened(), snapshot("10:20:10,14"));
    }

    fn any_snapshot() -> impl Strategy<Value = Snapshot> {
        let some = (20_u64..30, prop::collection::btree_set(20_u64..30, 0..6));
        some.prop_map(|(xmax, running)| {
            let running: Vec<u64> = running.into_iter().filter(|xid| *xid < xmax).collect();
            let xmin = running.first().copied().unwrap_or(xmax);
            Snapshot {
                xmin,
                xmax,
                running,
            }
        })
    }

    proptest! {
        #[test]
        fn one_covers_another_when_it_sees_each_that_the_other_sees(one in any_snapshot(), other in any_snapshot()) {
            let all = (0..40).all(|xid| !other.sees(xid) || one.sees(xid));
            prop_assert_eq!(one.covers(&other), all);
        }
    }
}
