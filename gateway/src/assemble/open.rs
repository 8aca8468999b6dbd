//! The transaction that is being put together.

use std::collections::{BTreeMap, BTreeSet};

use rindle_proto::body::TxnStart;
use rindle_proto::ids::{EndLsn, FinalLsn, Oid, Position};

use crate::halt::HaltReason;
use crate::pg::catalog::Patch;

/// The transaction between Begin and Commit.
#[derive(Debug)]
pub(super) struct OpenTxn {
    pub(super) final_lsn: FinalLsn,
    pub(super) start: TxnStart,
    /// Position before its first frame.
    pub(super) before: Position,
    /// No frame of it was finished yet.
    pub(super) first: bool,
    /// The last announcement in it.
    pub(super) announced: i64,
    /// Relations that sent rows before anything said what they are.
    pub(super) strangers: BTreeSet<Oid>,
    /// Relations that it rewrote, until a message says what they are now.
    pub(super) rewritten: BTreeMap<Oid, i32>,
    /// What no mirror follows, unless a later statement mends it.
    pub(super) held: Option<Held>,
    /// Its commit was read, and what it sent rows of is looked up.
    pub(super) ended: Option<(FinalLsn, EndLsn)>,
}

/// Announcements that are refused as they stand. A transaction may pass through what no mirror follows (a key is dropped
/// and made again); what counts is what it has come to at its next row of such a table, or at its commit.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) patch: Patch,
    pub(super) rewritten: BTreeMap<Oid, i32>,
    pub(super) unsure: BTreeSet<Oid>,
    pub(super) reason: HaltReason,
}

impl OpenTxn {
    /// Why a row of this relation cannot be taken in.
    pub(super) fn refuses(&self, rel: Oid) -> Option<HaltReason> {
        let held = self.held.as_ref().filter(|held| held.patch.names(rel));
        held.map(|held| held.reason.clone())
    }
}
