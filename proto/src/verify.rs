//! The canonical digest of a table's rows: the same for source and mirror exactly when they hold the same rows.
//!
//! Each row is written with [`crate::row`] under the mirror's values and hashed; the hashes are added, so the
//! order in which the two sides read their rows does not matter and nothing is sorted.

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// Count and sum over the rows of one table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableDigest {
    /// Rows seen.
    pub rows: u64,
    /// Sum of the rows' SHA-256, each as four little-endian words, modulo 2^64 a word.
    sum: [u64; 4],
}

impl TableDigest {
    /// Adds one row, given as [`crate::row`] bytes.
    pub fn add_row(&mut self, row: &[u8]) {
        let hash = Sha256::digest(row);
        for (sum, word) in self.sum.iter_mut().zip(hash.as_chunks::<8>().0) {
            *sum = sum.wrapping_add(u64::from_le_bytes(*word));
        }
        self.rows += 1;
    }

    /// Adds the rows of another part of the same table.
    pub fn merge(&mut self, other: &TableDigest) {
        self.rows += other.rows;
        for (sum, word) in self.sum.iter_mut().zip(other.sum) {
            *sum = sum.wrapping_add(word);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_does_not_matter_and_content_does() {
        let digest = |rows: &[&[u8]]| {
            let mut digest = TableDigest::default();
            rows.iter().for_each(|row| digest.add_row(row));
            digest
        };
        assert_eq!(digest(&[b"a", b"b"]), digest(&[b"b", b"a"]));
        assert_ne!(digest(&[b"a", b"b"]), digest(&[b"a", b"c"]));
        assert_ne!(
            digest(&[b"a", b"a"]),
            digest(&[b"b", b"b"]),
            "equal pairs must not cancel out"
        );
        let mut merged = digest(&[b"a"]);
        merged.merge(&digest(&[b"b"]));
        assert_eq!(merged, digest(&[b"a", b"b"]));
    }
}
