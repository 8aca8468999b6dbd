//! Where appends of the local log ended: what ship cuts segments at, and where position look-ups start.

use std::collections::VecDeque;

use rindle_archive::{Commit, CommitKind};
use rindle_proto::ids::{Position, Seq};

use super::Run;

/// Marks closer than this to the one before are merged into it: ship needs none so small, and look-ups read on
/// from the one before.
const SPACING_BYTES: u64 = 64 << 10;

/// The end of one append.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mark {
    /// Bytes since the session began.
    pub offset: u64,
    /// Position of the last frame.
    pub position: Position,
    /// The last commit among the frames of this append.
    pub last_commit: Option<Commit>,
}

#[derive(Debug)]
pub(super) struct Marks {
    /// Archived, sparse, oldest first. The last one is where the next run starts.
    archived: VecDeque<Mark>,
    unshipped: VecDeque<Mark>,
    /// End of the run that ship may be writing: marks up to it stay as they are.
    taken: u64,
}

impl Marks {
    pub(super) fn new(position: Position) -> Self {
        let start = Mark {
            offset: 0,
            position,
            last_commit: None,
        };
        Self {
            archived: VecDeque::from([start]),
            unshipped: VecDeque::new(),
            taken: 0,
        }
    }

    pub(super) fn head(&self) -> Mark {
        *self.unshipped.back().unwrap_or(self.archived_end())
    }

    pub(super) fn push(
        &mut self,
        offset: u64,
        position: Position,
        last_commit: Option<Commit>,
    ) -> Mark {
        let mark = Mark {
            offset,
            position,
            last_commit,
        };
        let before = self
            .unshipped
            .iter()
            .rev()
            .nth(1)
            .unwrap_or(self.archived_end())
            .offset;
        match self.unshipped.back_mut() {
            Some(last) if last.offset > self.taken && offset - before < SPACING_BYTES => {
                let last_commit = last_commit.or(last.last_commit);
                *last = Mark {
                    last_commit,
                    ..mark
                };
            }
            _ => self.unshipped.push_back(mark),
        }
        mark
    }

    pub(super) fn next_run(&mut self, max_bytes: u64) -> Option<Run> {
        let start = *self.archived_end();
        let mut run: Option<Run> = None;
        for mark in &self.unshipped {
            let too_long = mark.offset - start.offset > max_bytes;
            if too_long && run.is_some() {
                break;
            }
            let earlier = run.and_then(|run| run.last_commit);
            run = Some(Run {
                from: start.position,
                from_offset: start.offset,
                end: *mark,
                last_commit: mark.last_commit.or(earlier),
            });
            if too_long
                || mark
                    .last_commit
                    .is_some_and(|commit| commit.kind == CommitKind::CopyDone)
            {
                break;
            }
        }
        if let Some(run) = &run {
            self.taken = self.taken.max(run.end.offset);
        }
        run
    }

    pub(super) fn archived(&mut self, end: &Mark) {
        while self
            .unshipped
            .front()
            .is_some_and(|mark| mark.offset <= end.offset)
        {
            let Some(mark) = self.unshipped.pop_front() else {
                break;
            };
            let spare = self.archived.len() > 1
                && mark.offset - self.archived[self.archived.len() - 2].offset < SPACING_BYTES;
            if spare {
                self.archived.pop_back();
            }
            self.archived.push_back(mark);
        }
    }

    /// Forgets marks before `base`, but for the last, which is where the first byte still held may start.
    pub(super) fn trim(&mut self, base: u64) {
        while self.archived.len() > 1 && self.archived[0].offset < base {
            self.archived.pop_front();
        }
    }

    /// The last mark at or before a frame's number.
    pub(super) fn before(&self, seq: Seq) -> Option<Mark> {
        let find = |marks: &VecDeque<Mark>| {
            let at = marks.partition_point(|mark| mark.position.seq <= seq);
            at.checked_sub(1).map(|at| marks[at])
        };
        find(&self.unshipped).or_else(|| find(&self.archived))
    }

    fn archived_end(&self) -> &Mark {
        self.archived
            .back()
            .expect("the start of the log is kept until a later mark is")
    }
}
