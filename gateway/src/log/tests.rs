use super::*;
use rindle_archive::CommitKind;
use rindle_proto::body::PgMicros;
use rindle_proto::frame::{FrameFlags, FrameKind, FrameWriter};
use rindle_proto::ids::{Digest, EndLsn, FinalLsn, Generation, Lsn, Seq};

struct Fixture {
    dir: tempfile::TempDir,
    writer: FrameWriter,
    log: Log,
    positions: Vec<Position>,
}

impl Fixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let start = Position::start(Generation::from_bytes([7; 16]));
        let log = Log::create(dir.path(), start).unwrap();
        Self {
            dir,
            writer: FrameWriter::new(start),
            log,
            positions: vec![start],
        }
    }

    /// One append of `frames` frames of `bytes` payload bytes each.
    fn append(&mut self, frames: usize, bytes: usize) -> Mark {
        for _ in 0..frames {
            self.writer.open().extend(std::iter::repeat_n(b'x', bytes));
            let position = self
                .writer
                .finish(FrameKind::Txn, FrameFlags::WHOLE, Lsn(1))
                .unwrap();
            self.positions.push(position);
        }
        let position = self.writer.position();
        let commit = Commit {
            kind: CommitKind::Txn,
            position,
            before: position,
            final_lsn: FinalLsn(Lsn(position.seq.0)),
            end_lsn: EndLsn(Lsn(position.seq.0)),
            xid: 1,
            commit_time: PgMicros(0),
        };
        let frames = self.writer.take();
        self.log.append(&frames, position, Some(commit)).unwrap()
    }
}

#[test]
fn every_position_is_found_where_its_next_frame_starts() {
    let mut log = Fixture::new();
    let marks: Vec<Mark> = (0..50).map(|i| log.append(1 + i % 3, 1000)).collect();
    for archived in [None, Some(marks[20]), Some(marks[49])] {
        if let Some(mark) = archived {
            log.log.archived(&mark, u64::MAX);
        }
        for position in &log.positions {
            let frame = (rindle_proto::frame::HEADER_BYTES + 1000) as u64;
            assert_eq!(
                log.log.locate(*position).unwrap(),
                Located::At(position.seq.0 * frame)
            );
            let other = Position {
                chain: Digest([9; 32]),
                ..*position
            };
            assert_eq!(log.log.locate(other).unwrap(), Located::Differs);
        }
    }
    let above = Position {
        seq: Seq(log.positions.len() as u64),
        ..log.positions[3]
    };
    assert_eq!(log.log.locate(above).unwrap(), Located::Above);
}

#[test]
fn runs_are_whole_appends_and_follow_each_other() {
    let mut log = Fixture::new();
    for _ in 0..10 {
        log.append(1, 70_000);
    }
    let mut at = 0;
    let mut commits = Vec::new();
    while let Some(run) = log.log.next_run(200_000) {
        assert_eq!(run.from_offset, at);
        assert!(run.end.offset - run.from_offset <= 200_000);
        commits.push(run.last_commit.unwrap().position.seq.0);
        at = run.end.offset;
        log.log.archived(&run.end, u64::MAX);
    }
    assert_eq!(at, log.log.head().offset);
    assert_eq!(commits, [2, 4, 6, 8, 10]);
}

#[test]
fn small_appends_share_a_mark_but_never_one_that_is_being_shipped() {
    let mut log = Fixture::new();
    log.append(1, 100);
    log.append(1, 100);
    let run = log.log.next_run(200_000).unwrap();
    assert_eq!(run.end.position.seq, Seq(2));
    let late = log.append(1, 100);
    log.log.archived(&run.end, u64::MAX);
    let next = log.log.next_run(200_000).unwrap();
    assert_eq!(next.from, run.end.position);
    assert_eq!(next.end.position, late.position);
    assert_eq!(next.last_commit.unwrap().position, late.position);
}

#[test]
fn an_append_larger_than_a_segment_is_one_run() {
    let mut log = Fixture::new();
    log.append(1, 500_000);
    log.append(1, 70_000);
    let run = log.log.next_run(200_000).unwrap();
    assert_eq!(run.end.position.seq, Seq(1));
}

#[test]
fn archived_files_go_when_they_lie_far_enough_behind() {
    let mut log = Fixture::new();
    let marks: Vec<Mark> = (0..40).map(|_| log.append(1, 1 << 20)).collect();
    let files = |log: &Fixture| std::fs::read_dir(log.dir.path()).unwrap().count();
    let before = files(&log);
    log.log.archived(&marks[30], 4 << 20);
    assert!(files(&log) < before);
    let base = log.log.base();
    assert!(base > 0 && base <= marks[30].offset - (4 << 20));
    assert_eq!(log.log.read(0, marks[0].offset).unwrap(), None);
    assert_eq!(log.log.locate(log.positions[1]).unwrap(), Located::Below);
    let kept = log
        .log
        .read_run(base, log.log.head().offset)
        .unwrap()
        .unwrap();
    assert_eq!(kept.len() as u64, log.log.head().offset - base);
    assert!(matches!(
        log.log.locate(log.positions[38]).unwrap(),
        Located::At(_)
    ));
}

#[test]
fn a_new_session_starts_with_an_empty_log() {
    let mut log = Fixture::new();
    log.append(3, 100);
    let again = Log::create(log.dir.path(), log.positions[1]).unwrap();
    assert_eq!(again.head().offset, 0);
    assert_eq!(again.locate(log.positions[1]).unwrap(), Located::At(0));
    assert_eq!(again.locate(log.positions[0]).unwrap(), Located::Below);
    assert_eq!(again.locate(log.positions[2]).unwrap(), Located::Above);
}
