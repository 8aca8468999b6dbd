//! A source whose n-th transaction is always the same, so that two gateways encode the same bytes for it (I3).

use bytes::Bytes;
use rindle_proto::body::{PgMicros, TxnStart, put_txn_end, put_txn_start};
use rindle_proto::frame::{FrameFlags, FrameKind, FrameWriter};
use rindle_proto::ids::{EndLsn, FinalLsn, Generation, Lsn, Position, Timeline};
use rindle_proto::op;
use rindle_proto::schema::Schema;

use crate::generation::{FORMAT, GenerationRecord};
use crate::segment::{Commit, CommitKind};
use crate::writer::NewSegment;

/// Encodes transactions after a position, and gives them as segments.
#[derive(Debug)]
pub struct Source {
    frames: FrameWriter,
    /// Position of the last segment that was taken.
    taken: Position,
    /// Before the transaction that is open.
    before: Position,
    last_commit: Option<Commit>,
    through_lsn: Lsn,
    /// Its frames hold operations, and not only text.
    of_ops: bool,
}

/// The n-th transaction of every test: its records end at `n * 100`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceTxn(pub u64);

impl SourceTxn {
    /// Start of its commit record.
    pub fn final_lsn(self) -> FinalLsn {
        FinalLsn(Lsn(self.0 * 100 - 8))
    }

    /// End of its commit record.
    pub fn end_lsn(self) -> EndLsn {
        EndLsn(Lsn(self.0 * 100))
    }
}

impl Source {
    /// Goes on after a position.
    pub fn at(position: Position) -> Self {
        Self {
            frames: FrameWriter::new(position),
            taken: position,
            before: position,
            last_commit: None,
            through_lsn: Lsn(0),
            of_ops: false,
        }
    }

    /// The same, with frames that whoever looks into them can read.
    pub fn of_ops(position: Position) -> Self {
        Self {
            of_ops: true,
            ..Self::at(position)
        }
    }

    /// A whole transaction of `parts` frames.
    pub fn txn(&mut self, txn: SourceTxn, parts: u64) {
        (1..=parts).for_each(|part| self.part(txn, part, parts));
    }

    /// One frame of a transaction: part 1 to `parts`.
    pub fn part(&mut self, txn: SourceTxn, part: u64, parts: u64) {
        let flags = FrameFlags {
            first: part == 1,
            last: part == parts,
        };
        if flags.first {
            self.before = self.frames.position();
        }
        let start = TxnStart {
            xid: txn.0 as u32,
            commit_time: PgMicros(txn.0 as i64),
        };
        let payload = self.frames.open();
        if flags.first {
            put_txn_start(payload, start);
        }
        let text = format!("transaction {} part {part};", txn.0);
        match self.of_ops {
            true => op::put_facts(payload, text.as_bytes()),
            false => payload.extend_from_slice(text.as_bytes()),
        }
        if flags.last {
            put_txn_end(payload, txn.end_lsn());
        }
        let lsn = txn.final_lsn().0;
        let end = self
            .frames
            .finish(FrameKind::Txn, flags, lsn)
            .expect("a short frame");
        if flags.last {
            self.commit(CommitKind::Txn, end, txn);
        }
    }

    /// A copy begins. Its frame is no valid document: nothing in this crate reads it.
    pub fn begin_copy(&mut self, snapshot: Lsn) {
        self.before = self.frames.position();
        self.copy_frame(FrameKind::CopyBegin, snapshot);
    }

    /// A copy is done.
    pub fn end_copy(&mut self, snapshot: Lsn) {
        self.before = self.frames.position();
        let position = self.copy_frame(FrameKind::CopyDone, snapshot);
        self.through_lsn = snapshot;
        self.last_commit = Some(Commit {
            kind: CommitKind::CopyDone,
            position,
            before: self.before,
            final_lsn: FinalLsn(snapshot),
            end_lsn: EndLsn(snapshot),
            xid: 0,
            commit_time: PgMicros(0),
        });
    }

    /// After the last frame.
    pub fn position(&self) -> Position {
        self.frames.position()
    }

    /// What was encoded since the last call, as one segment.
    pub fn take(&mut self) -> NewSegment {
        let first_seq = self.taken.seq.next();
        self.taken = self.frames.position();
        NewSegment {
            frames: Bytes::from(self.frames.take()),
            first_seq,
            last: self.taken,
            last_commit: self.last_commit.take(),
            through_lsn: self.through_lsn,
            tick: false,
        }
    }

    /// The source was idle up to `through_lsn`.
    pub fn take_tick(&mut self, through_lsn: Lsn) -> NewSegment {
        self.through_lsn = through_lsn;
        NewSegment {
            tick: true,
            ..self.take()
        }
    }

    fn copy_frame(&mut self, kind: FrameKind, snapshot: Lsn) -> Position {
        self.frames.open().extend_from_slice(b"{}");
        self.frames
            .finish(kind, FrameFlags::WHOLE, snapshot)
            .expect("a short frame")
    }

    fn commit(&mut self, kind: CommitKind, position: Position, txn: SourceTxn) {
        self.through_lsn = txn.end_lsn().0;
        self.last_commit = Some(Commit {
            kind,
            position,
            before: self.before,
            final_lsn: txn.final_lsn(),
            end_lsn: txn.end_lsn(),
            xid: txn.0 as u32,
            commit_time: PgMicros(txn.0 as i64),
        });
    }
}

/// A record of a generation that mirrors nothing.
pub fn generation_record(generation: Generation) -> GenerationRecord {
    GenerationRecord {
        generation,
        source: "app".parse().expect("a valid name"),
        system_identifier: "7".to_owned(),
        timeline: Timeline(1),
        database: "app".to_owned(),
        slot: "rindle_app".to_owned(),
        publication: "rindle".to_owned(),
        posture: "none".to_owned(),
        minted_at_ms: 0,
        schema: Schema::default(),
        format: FORMAT,
        proved: None,
    }
}
