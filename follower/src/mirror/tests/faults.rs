//! What must be refused, by name, and leave the mirror at its last commit.

use super::*;
use rindle_proto::frame::Frame;

fn env() -> Env {
    Env::with(&two_tables(), &[(1, row(1, "one")), (1, row(2, "two"))])
}

fn divergence(env: &mut Env, ops: &[O]) -> String {
    let before = env.mirror.cursor();
    let error = env.apply(ops).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Halt);
    assert!(matches!(error, MirrorError::Divergence { .. }), "{error}");
    assert_eq!(env.mirror.cursor(), before);
    assert_eq!(env.mirror.position(), before.map(|cursor| cursor.position));
    error.to_string()
}

#[test]
fn row_that_is_not_there_is_a_divergence() {
    for op in [
        O::Update(1, row(3, "x")),
        O::Update(1, vec![V::Int(3), V::Same, V::Real(1.0), V::Null]),
        O::Delete(1, vec![V::Int(3)]),
        O::Rekey(1, vec![V::Int(3)], row(4, "x")),
        O::Delete(2, vec![V::Int(3), text("k")]),
    ] {
        let mut env = env();
        let told = divergence(&mut env, &[O::Update(1, row(1, "changed")), op]);
        assert!(told.contains("no row has the key"), "{told}");
        assert_eq!(
            env.rows("SELECT a FROM t WHERE id = 1"),
            [[text("one")]],
            "repairs nothing"
        );
    }
}

#[test]
fn key_that_is_there_already_is_a_divergence() {
    let mut env = env();
    for op in [
        O::Insert(1, row(2, "x")),
        O::Rekey(1, vec![V::Int(1)], row(2, "x")),
    ] {
        let told = divergence(&mut env, &[op]);
        assert!(
            told.contains("a row with the new row's key exists"),
            "{told}"
        );
        env.log.writer = FrameWriter::new(env.mirror.position().unwrap());
    }
    let twice = O::Insert(2, vec![text("k"), V::Int(1), V::Null]);
    divergence(&mut env, &[twice.clone(), twice]);
}

#[test]
fn gap_is_refused_and_an_old_frame_is_a_no_op() {
    let mut env = env();
    let frames: Vec<Frame> = (3..6)
        .map(|id| env.log.txn(&[O::Insert(1, row(id, "n"))]))
        .collect();
    env.mirror.apply(&frames[0], &mut NoBulk).unwrap();
    let error = env.mirror.apply(&frames[2], &mut NoBulk).unwrap_err();
    assert!(matches!(error, MirrorError::Gap(_)));
    let again = env.mirror.apply(&frames[0], &mut NoBulk).unwrap();
    assert!(again.skipped, "{again:?}");
    env.mirror.apply(&frames[1], &mut NoBulk).unwrap();
    env.mirror.apply(&frames[2], &mut NoBulk).unwrap();
    env.mirror.commit().unwrap();
    assert_eq!(env.rows("SELECT count(*) FROM t"), [[V::Int(5)]]);
}

#[test]
fn parts_out_of_order_are_refused() {
    let two = [O::Insert(1, row(3, "x")), O::Insert(1, row(4, "x"))];
    let mut first = env();
    let parts = first.log.parts(&two, &[1]);
    first.mirror.apply(&parts[0], &mut NoBulk).unwrap();
    first.log.writer = FrameWriter::new(first.mirror.position().unwrap());
    let error = first.apply(&two).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("a first part inside another transaction"),
        "{error}"
    );

    let mut later = env();
    let parts = later.log.parts(&two, &[1]);
    let mut alone = parts[1].clone();
    alone.seq = parts[0].seq;
    let error = later.mirror.apply(&alone, &mut NoBulk).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("a later part without a first one"),
        "{error}"
    );
}

#[test]
fn transaction_before_the_first_copy_is_refused() {
    let mut env = Env::empty();
    let error = env.apply(&[]).unwrap_err();
    assert!(
        error.to_string().contains("before the first copy"),
        "{error}"
    );
    assert_eq!(error.kind(), ErrorKind::Corrupt);
}

#[test]
fn row_that_does_not_fit_its_table_is_refused() {
    for (op, reason) in [
        (O::Insert(1, vec![V::Int(3)]), "another number of cells"),
        (
            O::Insert(1, vec![V::Null, V::Null, V::Null, V::Null]),
            "a key cell is null",
        ),
        (
            O::Insert(1, vec![V::Int(3), V::Same, V::Null, V::Null]),
            "is marked unchanged",
        ),
        (
            O::Update(1, vec![V::Same, text("x"), V::Null, V::Null]),
            "is marked unchanged",
        ),
        (
            O::Insert(1, vec![V::Int(3), V::Int(7), V::Null, V::Null]),
            "not of its column's kind",
        ),
        (
            O::Insert(1, vec![text("3"), V::Null, V::Null, V::Null]),
            "not of its column's kind",
        ),
        (
            O::Insert(1, vec![V::Int(3), V::Null, text("1e5"), V::Null]),
            "not of its column's kind",
        ),
        (
            O::Delete(2, vec![V::Int(3)]),
            "another number of cells than the row key",
        ),
        (O::Insert(9, vec![V::Int(3)]), "table #9 is not mirrored"),
        (O::Truncate(vec![1, 9]), "table #9 is not mirrored"),
    ] {
        let mut env = env();
        let error = env.apply(std::slice::from_ref(&op)).unwrap_err();
        assert!(error.to_string().contains(reason), "{op:?}: {error}");
        assert_eq!(env.rows("SELECT count(*) FROM t"), [[V::Int(2)]]);
    }
}

#[test]
fn bytes_that_do_not_decode_are_refused() {
    let mut env = env();
    let mut frame = env.log.txn(&[O::Insert(1, row(3, "x"))]);
    let mut payload = frame.payload.to_vec();
    payload[12] = 99;
    frame.payload = payload.into();
    let error = env.mirror.apply(&frame, &mut NoBulk).unwrap_err();
    assert!(matches!(error, MirrorError::Decode { .. }), "{error}");
    assert_eq!(error.kind(), ErrorKind::Corrupt);
}

#[test]
fn divergence_drops_the_group_it_is_in_and_nothing_before() {
    let mut env = env();
    env.run(&[O::Insert(1, row(3, "kept"))]);
    env.apply(&[O::Insert(1, row(4, "dropped"))]).unwrap();
    divergence(&mut env, &[O::Delete(1, vec![V::Int(99)])]);
    assert_eq!(env.rows("SELECT max(id) FROM t"), [[V::Int(3)]]);
}
