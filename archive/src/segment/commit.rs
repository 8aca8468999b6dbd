//! The last commit: where a new writer and a reader over a fence go on.

use rindle_proto::body::PgMicros;
use rindle_proto::frame::FrameKind;
use rindle_proto::ids::{EndLsn, FinalLsn, Position, SegmentNo, Timeline};

/// What made things visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CommitKind {
    /// A source transaction.
    Txn,
    /// The end of a copy: no transaction, and its `end_lsn` is the snapshot's position.
    CopyDone,
}

impl CommitKind {
    /// The kind of a last frame, if such a frame commits.
    pub fn of(kind: FrameKind) -> Option<Self> {
        match kind {
            FrameKind::Txn => Some(CommitKind::Txn),
            FrameKind::CopyDone => Some(CommitKind::CopyDone),
            FrameKind::CopyBegin => None,
        }
    }
}

/// A commit, as the one who encoded it knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Commit {
    /// What it is.
    pub kind: CommitKind,
    /// After its last frame.
    pub position: Position,
    /// Before its first frame: lets a redelivered transaction be encoded again and its chain be compared.
    pub before: Position,
    /// Start of its commit record.
    pub final_lsn: FinalLsn,
    /// End of its commit record.
    pub end_lsn: EndLsn,
    /// Transaction id; 0 for a copy.
    pub xid: u32,
    /// Commit time; 0 for a copy.
    pub commit_time: PgMicros,
}

/// The last commit in the log, with where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastCommit {
    /// What it is.
    pub kind: CommitKind,
    /// After its last frame.
    pub position: Position,
    /// Before its first frame.
    pub before: Position,
    /// Start of its commit record.
    pub final_lsn: FinalLsn,
    /// End of its commit record.
    pub end_lsn: EndLsn,
    /// Transaction id; 0 for a copy.
    pub xid: u32,
    /// Commit time; 0 for a copy.
    pub commit_time: PgMicros,
    /// Timeline on which it was received.
    pub timeline: Timeline,
    /// Log object that holds its last frame.
    pub segment: SegmentNo,
}

impl Commit {
    /// The same commit, archived in `segment` by a session on `timeline`.
    pub fn archived(&self, timeline: Timeline, segment: SegmentNo) -> LastCommit {
        LastCommit {
            kind: self.kind,
            position: self.position,
            before: self.before,
            final_lsn: self.final_lsn,
            end_lsn: self.end_lsn,
            xid: self.xid,
            commit_time: self.commit_time,
            timeline,
            segment,
        }
    }
}
