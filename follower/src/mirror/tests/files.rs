//! The file: what is kept over restarts, whose it is, images, readers beside the writer.

use super::*;

fn env() -> Env {
    Env::with(
        &two_tables(),
        &[(1, row(1, "one")), (2, vec![text("k"), V::Int(1), V::Null])],
    )
}

#[test]
fn what_was_not_committed_is_gone_after_a_crash() {
    let mut env = env();
    env.run(&[O::Insert(1, row(2, "kept"))]);
    let cursor = env.mirror.cursor();
    env.apply(&[O::Insert(1, row(3, "lost"))]).unwrap();
    assert_eq!(env.mirror.pending().txns, 1);
    let env = env.reopen();
    assert_eq!(env.mirror.cursor(), cursor);
    assert_eq!(env.rows("SELECT max(id) FROM t"), [[V::Int(2)]]);
}

#[test]
fn incomplete_transaction_is_dropped_without_the_whole_ones_before_it() {
    let mut env = env();
    env.apply(&[O::Insert(1, row(2, "whole"))]).unwrap();
    let parts = env.log.parts(
        &[O::Insert(1, row(3, "half")), O::Insert(1, row(4, "half"))],
        &[1],
    );
    env.mirror.apply(&parts[0], &mut NoBulk).unwrap();
    assert!(env.mirror.has_open_txn());
    assert!(
        !env.mirror.commit().unwrap(),
        "half a transaction is never committed"
    );
    assert_eq!(
        env.rows("SELECT max(id) FROM t"),
        [[V::Int(2)]],
        "a reader sees the whole one already"
    );
    env.mirror.discard().unwrap();
    assert_eq!(
        env.mirror.position(),
        env.mirror.cursor().map(|cursor| cursor.position)
    );
    env.mirror.apply(&parts[0], &mut NoBulk).unwrap();
    env.mirror.apply(&parts[1], &mut NoBulk).unwrap();
    env.apply(&[O::Insert(1, row(5, "after"))]).unwrap();
    env.mirror.discard().unwrap();
    assert_eq!(
        env.rows("SELECT count(*), max(id) FROM t"),
        [[V::Int(5), V::Int(5)]],
        "whole ones are kept"
    );
}

#[test]
fn cursor_says_what_is_in_the_file() {
    let mut env = env();
    let first = env.mirror.cursor().unwrap();
    assert_eq!(
        (first.position.seq, first.end_lsn, first.commit_time),
        (Seq(2), EndLsn(Lsn(1000)), None)
    );
    let frame = env.log.txn(&[]);
    let applied = env.mirror.apply(&frame, &mut NoBulk).unwrap();
    assert_eq!(applied.commit_time, Some(PgMicros(1010)));
    env.mirror.commit().unwrap();
    let cursor = env.mirror.cursor().unwrap();
    assert_eq!(cursor.position, env.log.writer.position());
    assert_eq!(cursor.end_lsn, EndLsn(Lsn(1018)));
    let offsets = env.rows(
        "SELECT source, offset, chunk_seq, batch_hash, committed_at FROM _rindle_source_offsets",
    );
    let expected = [
        text("main"),
        text(&format!("{}:0000000000000003", generation())),
        V::Int(i64::MAX),
        text(&cursor.position.chain.to_hex()),
        V::Int(946_684_800_001),
    ];
    assert_eq!(offsets, [expected]);
}

#[test]
fn highest_epoch_survives_restarts_and_later_commits() {
    let mut env = env();
    env.mirror.note_epoch(Epoch(5)).unwrap();
    env.mirror.note_epoch(Epoch(3)).unwrap();
    let mut env = env.reopen();
    assert_eq!(env.mirror.cursor().unwrap().epoch, Epoch(5));
    env.apply(&[O::Insert(1, row(2, "x"))]).unwrap();
    env.mirror.note_epoch(Epoch(6)).unwrap();
    env.mirror.note_segment(SegmentNo(4)).unwrap();
    env.mirror.commit().unwrap();
    let cursor = env.reopen().mirror.cursor().unwrap();
    assert_eq!(
        (cursor.epoch, cursor.segment),
        (Epoch(6), Some(SegmentNo(4)))
    );
}

#[test]
fn file_of_another_program_or_format_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("other.db");
    Connection::open(&path)
        .unwrap()
        .execute_batch("CREATE TABLE theirs (x)")
        .unwrap();
    let error = Mirror::open(&path, MirrorOptions::default()).unwrap_err();
    assert!(
        error.to_string().contains("another program made it"),
        "{error}"
    );

    let env = env();
    env.mirror
        .connection()
        .execute_batch("PRAGMA user_version = 2")
        .unwrap();
    let path = env.mirror.path().to_path_buf();
    drop(env.mirror);
    let error = Mirror::open(&path, MirrorOptions::default()).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("its format is 2, this program knows 1"),
        "{error}"
    );

    let garbage = dir.path().join("garbage.db");
    std::fs::write(
        &garbage,
        "not a database, but long enough to look like something",
    )
    .unwrap();
    let error = Mirror::open(&garbage, MirrorOptions::default()).unwrap_err();
    assert!(matches!(error, MirrorError::Foreign { .. }), "{error}");
    std::fs::write(&garbage, "short").unwrap();
    assert!(Mirror::open(&garbage, MirrorOptions::default()).is_err());
    assert_eq!(std::fs::read(&garbage).unwrap(), b"short");
}

#[test]
fn new_mirror_is_placed_whole_and_an_earlier_attempt_is_no_obstacle() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.db");
    for left in ["m.db.rindle-fresh", "m.db.rindle-fresh-wal", "m.db-wal"] {
        std::fs::write(dir.path().join(left), "left by a kill").unwrap();
    }
    std::fs::write(&path, "").unwrap();
    meta::create(&path).unwrap();
    check_mark(&path).unwrap();
    let conn = open_reader(&path).unwrap();
    assert_eq!(stored(&conn, &path).unwrap(), None, "its tables are there");
    drop(conn);
    let mut mirror = Mirror::open(&path, MirrorOptions::default()).unwrap();
    mirror.start(generation()).unwrap();
    assert!(!dir.path().join("m.db.rindle-fresh").exists());
}

#[test]
fn reader_cannot_write_and_does_not_stop_progress() {
    let mut env = env();
    let reader = env.reader();
    reader.execute_batch("BEGIN").unwrap();
    assert_eq!(select(&reader, "SELECT count(*) FROM t"), [[V::Int(1)]]);
    for id in 2..50 {
        env.run(&[O::Insert(1, row(id, "x"))]);
    }
    env.mirror.checkpoint().unwrap();
    assert_eq!(
        select(&reader, "SELECT count(*) FROM t"),
        [[V::Int(1)]],
        "it sees one commit"
    );
    assert_eq!(env.rows("SELECT count(*) FROM t"), [[V::Int(49)]]);
    for sql in [
        "DELETE FROM t",
        "PRAGMA query_only = off; DELETE FROM t",
        "CREATE TABLE x (y)",
    ] {
        assert!(env.reader().execute_batch(sql).is_err(), "{sql}");
    }
}

#[test]
fn image_is_one_whole_file_that_a_mirror_goes_on_from() {
    let mut env = env();
    env.run(&[O::Insert(1, row(2, "two"))]);
    let path = env.dir.path().join("image.db");
    image::write(&mut env.mirror, &path).unwrap();
    let facts = image::prove(&path).unwrap();
    assert_eq!(Some(facts.cursor), env.mirror.cursor());
    assert_eq!(
        (facts.rows, &facts.schema),
        (vec![2, 1], env.mirror.schema())
    );
    assert!(!env.dir.path().join("image.db-wal").exists());

    let mut copy = Mirror::open(&path, MirrorOptions::default()).unwrap();
    let frame = env.log.txn(&[O::Update(1, row(2, "later"))]);
    for mirror in [&mut env.mirror, &mut copy] {
        mirror.apply(&frame, &mut NoBulk).unwrap();
        mirror.commit().unwrap();
    }
    let table = &env.mirror.schema().tables[0];
    let digest = |mirror: &Mirror| digest::table(mirror.connection(), table).unwrap();
    assert_eq!(digest(&env.mirror), digest(&copy));
    assert_eq!(digest(&copy).rows, 2);
}

#[test]
fn damaged_or_incomplete_image_is_refused() {
    let mut env = env();
    let rows: Vec<_> = (10..5000)
        .map(|id| O::Insert(1, row(id, "fill the pages")))
        .collect();
    env.run(&rows);
    let path = env.dir.path().join("image.db");
    image::write(&mut env.mirror, &path).unwrap();
    let whole = std::fs::read(&path).unwrap();
    let mut refused = 0;
    for at in (0..whole.len()).step_by(4096) {
        let mut bytes = whole.clone();
        let end = bytes.len().min(at + 64);
        bytes[at..end].fill(0xa5);
        std::fs::write(&path, bytes).unwrap();
        refused += usize::from(image::prove(&path).is_err());
    }
    assert_eq!(
        refused,
        whole.len().div_ceil(4096),
        "each page's head matters"
    );

    let mut empty = Env::empty();
    let path = empty.dir.path().join("image.db");
    image::write(&mut empty.mirror, &path).unwrap();
    let error = image::prove(&path).unwrap_err();
    assert!(
        error.to_string().contains("first copy is not complete"),
        "{error}"
    );
}

#[test]
fn start_is_once_and_frames_need_it() {
    let mut env = env();
    assert!(matches!(
        env.mirror.start(generation()),
        Err(MirrorError::AlreadyStarted(_))
    ));
    let mut fresh =
        Mirror::open(env.dir.path().join("fresh.db"), MirrorOptions::default()).unwrap();
    let error = fresh.apply(&env.log.txn(&[]), &mut NoBulk).unwrap_err();
    assert!(matches!(error, MirrorError::NotStarted));
    assert_eq!(fresh.cursor(), None);
}
