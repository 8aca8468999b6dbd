//! What is loaded ahead is nowhere to be seen, is used when its copy ends, and is gone when that is another.

use super::waiting::{create, env, fresh, kv, nothing_is_left, nothing_is_left_loaded, visible};
use super::*;
use rindle_proto::change::StoredValue;

/// A table that waits, and a copy of it that was announced.
fn announced(rows: i64) -> (Env, Table, Copied) {
    let mut env = env();
    let new = fresh(7, "new");
    env.run(&[create(&new)]);
    let copied: Vec<_> = (0..rows).map(|k| (7, kv(k, "copied"))).collect();
    let copied = env.log.copied(env.log.lsn + 5, &[(7, &new)], &copied);
    env.run(&[O::Copying(copied.clone())]);
    (env, new, copied)
}

fn loaded(env: &Env) -> i64 {
    let there = "SELECT count(*) FROM sqlite_schema WHERE name = '_rindle_load_7'";
    if env.rows(there) == [[V::Int(0)]] {
        return 0;
    }
    match env.rows("SELECT count(*) FROM _rindle_load_7")[0][0] {
        V::Int(count) => count,
        _ => unreachable!(),
    }
}

impl Env {
    fn slice(&mut self) -> Slice {
        let asked = std::time::Instant::now();
        loop {
            match self
                .mirror
                .load_ahead(&mut self.log, &mut || false)
                .unwrap()
            {
                // Another thread reads what is to be deleted.
                Slice::Waits => assert!(asked.elapsed().as_secs() < 60, "nothing comes"),
                slice => return slice,
            }
        }
    }

    fn load_all(&mut self) {
        while matches!(self.slice(), Slice::Some) {}
    }
}

#[test]
fn slices_are_hidden_and_the_end_of_the_copy_asks_for_what_is_left() {
    for slices in 0..6 {
        let (mut env, _, copied) = announced(10);
        for at in 1..=slices {
            assert!(matches!(env.slice(), Slice::Some) == (at <= 4));
            assert_eq!(loaded(&env), (at * 3).min(10));
        }
        assert_eq!(visible(&env).0.len(), 2);
        env.run(&[
            O::Insert(7, kv(50, "pending")),
            O::Delete(7, vec![V::Int(1)]),
        ]);
        if slices > 4 {
            env.load_all();
            assert_eq!(loaded(&env), 10, "one came, one went");
        }
        let frame = env.log.txn(&[O::Copied(copied)]);
        if slices >= 4 {
            env.mirror.apply(&frame, &mut NoBulk).unwrap();
        } else {
            env.mirror.apply(&frame, &mut env.log).unwrap();
        }
        assert_eq!(
            env.rows("SELECT count(*), max(k) FROM new"),
            [[V::Int(10), V::Int(50)]]
        );
        nothing_is_left(&env);
        assert!(matches!(env.slice(), Slice::Nothing));
        let kept = env.reopen();
        assert_eq!(kept.rows("SELECT count(*) FROM new"), [[V::Int(10)]]);
    }
}

#[test]
fn nothing_is_loaded_while_a_group_is_open() {
    let (mut env, ..) = announced(10);
    env.apply(&[O::Insert(1, row(3, "open"))]).unwrap();
    assert!(matches!(env.slice(), Slice::Nothing));
    env.mirror.rollback().unwrap();
    env.load_all();
    assert_eq!(loaded(&env), 10);
}

#[test]
fn a2_another_attempt_a_drop_a_restart_and_an_image_make_it_void() {
    let (mut env, new, _) = announced(10);
    env.load_all();
    let mut other = env
        .log
        .copied(env.log.lsn + 5, &[(7, &new)], &[(7, kv(1, "second"))]);
    other.attempt.number = 9;
    env.run(&[O::Copying(other.clone())]);
    env.load_all();
    assert_eq!(loaded(&env), 1);
    let mut env = env.reopen();
    nothing_is_left_loaded(&env);
    assert!(
        matches!(env.slice(), Slice::Nothing),
        "it is not said again"
    );
    env.run(&[O::Copying(other.clone())]);
    env.load_all();
    let image = env.dir.path().join("image.db");
    image::write(&mut env.mirror, &image).unwrap();
    nothing_is_left_loaded(&env);
    env.run(&[O::Copying(other)]);
    env.load_all();
    assert_eq!(loaded(&env), 1);
    env.run(&[O::Schema(SchemaChange::DropTable { table: TableId(7) })]);
    assert!(matches!(env.slice(), Slice::Nothing));
    nothing_is_left(&env);
}

#[test]
fn part_that_cannot_be_had_or_is_wrong_is_left_to_the_end_of_the_copy() {
    let (mut env, _, copied) = announced(10);
    assert!(matches!(env.slice(), Slice::Some));
    let dropped = env.mirror.load_ahead(&mut NoBulk, &mut || true).unwrap();
    assert!(matches!(dropped, Slice::Dropped(MirrorError::Bulk { .. })));
    nothing_is_left_loaded(&env);
    env.run(&[O::Copying(copied.clone())]);
    let right = std::mem::replace(&mut env.log.parts[1], Bytes::from_static(b"nonsense"));
    while matches!(env.slice(), Slice::Some) {}
    nothing_is_left_loaded(&env);
    env.log.parts[1] = right;
    let frame = env.log.txn(&[O::Copied(copied)]);
    env.mirror.apply(&frame, &mut env.log).unwrap();
    assert_eq!(env.rows("SELECT count(*) FROM new"), [[V::Int(10)]]);
}

#[test]
fn changes_of_a_schema_wait_for_the_end_with_all_that_follows_them() {
    let (mut env, _, copied) = announced(3);
    env.load_all();
    env.run(&[O::Insert(7, kv(50, "before"))]);
    env.run(&[super::waiting::add_column(7, "w", StoredValue::Null)]);
    env.run(&[O::Insert(7, vec![V::Int(60), text("after"), text("w")])]);
    env.load_all();
    assert_eq!(loaded(&env), 4);
    let frame = env.log.txn(&[O::Copied(copied)]);
    env.mirror.apply(&frame, &mut NoBulk).unwrap();
    assert_eq!(
        env.rows("SELECT count(*), count(w) FROM new"),
        [[V::Int(5), V::Int(1)]]
    );
    nothing_is_left(&env);
}

/// Hidden tables that were replaced or dropped, and their indexes.
fn put_away(env: &Env) -> i64 {
    match env.rows(
        "SELECT count(*) FROM sqlite_schema WHERE tbl_name LIKE '\\_rindle\\_old\\_%' ESCAPE '\\'",
    )[0][0]
    {
        V::Int(count) => count,
        _ => unreachable!(),
    }
}

#[test]
fn a_big_table_that_is_dropped_goes_in_slices_and_a_small_one_at_once() {
    let rows: Vec<_> = (0..3000).map(|k| (1, row(k, "big"))).collect();
    let mut env = Env::with(&two_tables(), &rows);
    env.run(&[O::Schema(SchemaChange::DropTable { table: TableId(2) })]);
    assert_eq!(put_away(&env), 0);
    env.run(&[O::Schema(SchemaChange::DropTable { table: TableId(1) })]);
    assert_eq!(visible(&env).0, Vec::<V>::new());
    assert!(put_away(&env) >= 2, "table and key");
    let rows = |env: &Env| match env.rows("SELECT count(*) FROM _rindle_old_1")[0][0] {
        V::Int(count) => count,
        _ => unreachable!(),
    };
    // Its indexes first, then some rows each time; another process goes on where one was killed.
    while put_away(&env) > 1 {
        assert!(matches!(env.slice(), Slice::Some));
        assert_eq!(rows(&env), 3000);
    }
    assert!(matches!(env.slice(), Slice::Some));
    let left = rows(&env);
    assert!(left > 2000 && left < 3000, "{left}");
    let mut env = env.reopen();
    assert_eq!(rows(&env), left);
    let image = env.dir.path().join("image.db");
    env.load_all();
    assert_eq!(put_away(&env), 0);
    assert!(matches!(env.slice(), Slice::Nothing));
    image::write(&mut env.mirror, &image).unwrap();
}

#[test]
fn an_image_has_nothing_of_what_was_put_away() {
    let rows: Vec<_> = (0..3000).map(|k| (1, row(k, "big"))).collect();
    let mut env = Env::with(&two_tables(), &rows);
    env.run(&[O::Schema(SchemaChange::DropTable { table: TableId(1) })]);
    assert!(put_away(&env) > 0);
    let image = env.dir.path().join("image.db");
    image::write(&mut env.mirror, &image).unwrap();
    let file = rusqlite::Connection::open(&image).unwrap();
    let sql = "SELECT count(*) FROM sqlite_schema WHERE name LIKE '%old%'";
    let found: i64 = file.query_row(sql, [], |row| row.get(0)).unwrap();
    assert_eq!(found, 0);
}
