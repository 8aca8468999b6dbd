//! The first copy: hidden until it is complete, nothing kept of one that broke off.

use super::*;

struct Watched<'l> {
    log: &'l mut Log,
    path: PathBuf,
    fail_at: Option<u32>,
    calls: u32,
}

impl BulkSource for Watched<'_> {
    fn rows(&mut self, attempt: Attempt, part: &BulkPart) -> Result<Bytes, BulkError> {
        let stock = Connection::open(&self.path).unwrap();
        assert_eq!(shown(&stock), [], "nothing shows before Done");
        assert_eq!(
            select(&stock, "SELECT * FROM _rindle_tables"),
            Vec::<Vec<V>>::new()
        );
        self.calls += 1;
        match self.fail_at == Some(part.number) {
            true => Err(BulkError::Unavailable("cut off".into())),
            false => self.log.rows(attempt, part),
        }
    }
}

fn rows() -> Vec<(u32, Vec<V>)> {
    let mut rows: Vec<_> = (0..20).map(|id| (1, row(id, "copied"))).collect();
    rows.push((2, vec![text("k"), V::Int(1), V::Null]));
    rows
}

#[test]
fn copy_is_hidden_until_done_and_then_whole() {
    let mut env = Env::empty();
    let [begin, done] = env.log.genesis(&two_tables(), &rows());
    env.mirror.apply(&begin, &mut NoBulk).unwrap();
    assert!(env.mirror.has_open_txn());
    let path = env.mirror.path().to_path_buf();
    let mut bulk = Watched {
        log: &mut env.log,
        path,
        fail_at: None,
        calls: 0,
    };
    let applied = env.mirror.apply(&done, &mut bulk).unwrap();
    assert_eq!(
        (applied.committed_txn, applied.ops, bulk.calls),
        (true, 21, 8)
    );
    let cursor = env.mirror.cursor().unwrap();
    assert_eq!((cursor.complete, cursor.position.seq), (true, Seq(2)));
    assert_eq!(shown(&env.reader()), [text("pair"), text("t")]);
    assert_eq!(
        env.rows("SELECT count(*), max(a) FROM t"),
        [[V::Int(20), text("copied")]]
    );
    let hidden =
        env.rows("SELECT name FROM sqlite_schema WHERE name LIKE '\\_rindle\\_load%' ESCAPE '\\'");
    assert_eq!(hidden, Vec::<Vec<V>>::new());
}

#[test]
fn copy_that_broke_off_leaves_nothing_and_starts_afresh() {
    for part in [0, 3, 7] {
        let mut env = Env::empty();
        let [begin, done] = env.log.genesis(&two_tables(), &rows());
        env.mirror.apply(&begin, &mut NoBulk).unwrap();
        let path = env.mirror.path().to_path_buf();
        let mut bulk = Watched {
            log: &mut env.log,
            path,
            fail_at: Some(part),
            calls: 0,
        };
        let error = env.mirror.apply(&done, &mut bulk).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
        let mut env = env.reopen();
        let names = env.rows("SELECT count(*) FROM sqlite_schema WHERE name LIKE '%load%'");
        assert_eq!(names, [[V::Int(0)]]);
        assert_eq!(env.mirror.cursor(), Some(Cursor::start(generation())));
        for frame in [begin, done] {
            env.mirror.apply(&frame, &mut env.log).unwrap();
        }
        assert_eq!(env.rows("SELECT count(*) FROM t"), [[V::Int(20)]]);
    }
}

#[test]
fn fence_before_done_leaves_an_empty_mirror() {
    let mut env = Env::empty();
    let [begin, _done] = env.log.genesis(&two_tables(), &rows());
    env.mirror.apply(&begin, &mut NoBulk).unwrap();
    env.mirror.discard().unwrap();
    assert_eq!(env.mirror.position(), Some(Position::start(generation())));
    env.log = Log::new();
    for frame in env.log.genesis(&two_tables(), &[(1, row(5, "second"))]) {
        env.mirror.apply(&frame, &mut env.log).unwrap();
    }
    assert_eq!(env.rows("SELECT id FROM t"), [[V::Int(5)]]);
}

#[test]
fn part_that_is_not_what_done_says_is_refused() {
    type Damage = fn(&mut Vec<u8>);
    let damage: [(&str, Damage); 2] = [
        ("length", |bytes| bytes.push(0)),
        ("digest", |bytes| *bytes.last_mut().unwrap() ^= 1),
    ];
    for (what, damage) in damage {
        let mut env = Env::empty();
        let [begin, done] = env.log.genesis(&two_tables(), &rows());
        let mut bytes = env.log.parts[2].to_vec();
        damage(&mut bytes);
        env.log.parts[2] = bytes.into();
        env.mirror.apply(&begin, &mut NoBulk).unwrap();
        let error = env.mirror.apply(&done, &mut env.log).unwrap_err();
        assert!(
            error.to_string().starts_with("bulk part 2 is damaged"),
            "{error}"
        );
        assert!(error.to_string().contains(what), "{error}");
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert_eq!(shown(&env.reader()), []);
    }
}

#[test]
fn copy_with_a_key_twice_is_refused() {
    let key = |y| (2, vec![text("k"), V::Int(y), V::Null]);
    for rows in [
        vec![(1, row(1, "a")), (1, row(1, "b"))],
        vec![key(1), key(2), key(1)],
    ] {
        let mut env = Env::empty();
        let [begin, done] = env.log.genesis(&two_tables(), &rows);
        env.mirror.apply(&begin, &mut NoBulk).unwrap();
        env.mirror.apply(&done, &mut env.log).unwrap_err();
        assert_eq!(shown(&env.reader()), []);
    }
}

#[test]
fn copy_cannot_begin_twice_or_end_unbegun() {
    let mut env = Env::empty();
    let [begin, done] = env.log.genesis(&two_tables(), &[]);
    let mut early = done.clone();
    early.seq = begin.seq;
    assert!(env.mirror.apply(&early, &mut NoBulk).is_err());
    env.mirror.apply(&begin, &mut NoBulk).unwrap();
    env.mirror.apply(&done, &mut NoBulk).unwrap();
    let [again, _] = env.log.genesis(&two_tables(), &[]);
    let error = env.mirror.apply(&again, &mut NoBulk).unwrap_err();
    assert!(
        error.to_string().contains("after it was complete"),
        "{error}"
    );
}
