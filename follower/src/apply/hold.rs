//! Holding the mirror still for verify: exactly the transactions with a `final_lsn` below a snapshot are in it.
//! Pure: [`super::Worker`] asks and acts.

use std::collections::VecDeque;
use std::time::Duration;

use rindle_proto::frame::{Frame, FrameKind};
use rindle_proto::ids::{FinalLsn, Lsn, Seq};
use tokio::sync::oneshot;

use super::Input;
use crate::mirror::Cursor;
use crate::state::Held;

/// A hold that nobody releases or renews ends by itself.
pub(crate) const LIMIT: Duration = Duration::from_secs(600);

/// Why the mirror cannot be held at a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HoldError {
    /// It is further already.
    #[error(
        "the mirror is at {at}, past snapshot {snapshot}; take a new snapshot and hold at that"
    )]
    Past { at: Lsn, snapshot: Lsn },
    /// Another verify is at work.
    #[error("the mirror is held at {snapshot} by another verify; wait for it, or release it")]
    Busy { snapshot: Lsn },
    /// Nothing is mirrored yet.
    #[error("the mirror is not complete yet; wait until /readyz is 200")]
    NotComplete,
}

impl HoldError {
    /// What programs go by.
    pub(crate) fn code(self) -> &'static str {
        match self {
            HoldError::Past { .. } => "past",
            HoldError::Busy { .. } => "busy",
            HoldError::NotComplete => "not_complete",
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Hold {
    wanted: Option<Wanted>,
    held: Option<Held>,
    /// Counts grants and renewals: the lapse of an earlier one is of no meaning.
    term: u64,
    /// Everything up to here was applied.
    through: Lsn,
    /// What came while the mirror is held; the channel's room bounds it.
    pub(super) backlog: VecDeque<Input>,
}

#[derive(Debug)]
struct Wanted {
    snapshot: Lsn,
    reached: oneshot::Sender<Result<Held, HoldError>>,
}

impl Hold {
    /// Takes on a hold, or refuses it at once.
    pub(super) fn ask(
        &mut self,
        snapshot: Lsn,
        reached: oneshot::Sender<Result<Held, HoldError>>,
        cursor: Option<&Cursor>,
        open: Option<FinalLsn>,
    ) {
        // Whoever asked and gave up is no longer in the way.
        self.wanted = self
            .wanted
            .take()
            .filter(|wanted| !wanted.reached.is_closed());
        let other = self.held.map(|held| held.snapshot);
        let other = other.or(self.wanted.as_ref().map(|wanted| wanted.snapshot));
        let refused = match (other, cursor.filter(|cursor| cursor.complete)) {
            (Some(snapshot), _) => Some(HoldError::Busy { snapshot }),
            (None, None) => Some(HoldError::NotComplete),
            // `end_lsn <= snapshot` is `final_lsn < snapshot`: a snapshot lies between two records.
            (None, Some(cursor)) if cursor.end_lsn.0 > snapshot => Some(HoldError::Past {
                at: cursor.end_lsn.0,
                snapshot,
            }),
            // Parts of one that must not be in it are: it cannot be stopped before any more.
            (None, Some(_)) => open
                .filter(|open| open.0 >= snapshot)
                .map(|open| HoldError::Past {
                    at: open.0,
                    snapshot,
                }),
        };
        match refused {
            Some(error) => drop(reached.send(Err(error))),
            None => self.wanted = Some(Wanted { snapshot, reached }),
        }
    }

    /// Ends a hold, and what waits for one.
    pub(super) fn release(&mut self) {
        (self.wanted, self.held) = (None, None);
    }

    /// The time of `term` is over. True when the mirror was held in it.
    pub(super) fn lapse(&mut self, term: u64) -> bool {
        let lapses = self.held.is_some() && self.term == term;
        if lapses {
            self.held = None;
        }
        lapses
    }

    /// Begins another term, if the mirror is held.
    pub(super) fn renew(&mut self) -> Option<u64> {
        self.held?;
        self.term += 1;
        Some(self.term)
    }

    /// Nothing may be applied now.
    pub(super) fn keeps_back(&self) -> bool {
        self.held.is_some()
    }

    pub(super) fn stops_before(&self, frame: &Frame) -> bool {
        let first = frame.kind == FrameKind::Txn && frame.flags.first;
        // A frame's LSN is its transaction's `final_lsn`. `>=`: one that is at the snapshot is not in it.
        let beyond = |wanted: &Wanted| first && frame.lsn >= wanted.snapshot;
        self.wanted.as_ref().is_some_and(beyond)
    }

    pub(super) fn progress(&mut self, through: Lsn) {
        self.through = through;
    }

    pub(super) fn forget_progress(&mut self) {
        self.through = Lsn(0);
    }

    pub(super) fn is_through(&self) -> bool {
        let through = |wanted: &Wanted| self.through >= wanted.snapshot;
        self.wanted.as_ref().is_some_and(through)
    }

    /// The mirror stands where it was asked to. `tell` comes before the answer: whoever has that asks for digests at once.
    pub(super) fn hold(&mut self, seq: Seq, tell: impl FnOnce(Held)) -> Option<Held> {
        if let Some(Wanted { snapshot, reached }) = self.wanted.take() {
            let held = Held { snapshot, seq };
            tell(held);
            // Whoever asked may have given up; then nobody would release it.
            self.held = reached.send(Ok(held)).is_ok().then_some(held);
        }
        self.held
    }
}
