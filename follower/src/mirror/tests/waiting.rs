//! Tables and partitions that wait for a copy: hidden, kept in order, shown whole at one commit.

use super::*;
use rindle_proto::change::StoredValue;
use rindle_proto::schema::{Index, Leaf, Waiting};

pub(super) fn env() -> Env {
    Env::with(&two_tables(), &[(1, row(1, "one")), (1, row(2, "two"))])
}

/// `t` again, as table 5, waiting to take the place of table 1.
fn next_t(live: bool) -> Table {
    let replaces = Some(TableId(1));
    Table {
        id: TableId(5),
        waiting: Some(Waiting { replaces, live }),
        ..two_tables().tables.remove(0)
    }
}

pub(super) fn fresh(id: u32, name: &str) -> Table {
    let waiting = Waiting {
        replaces: None,
        live: false,
    };
    Table {
        waiting: Some(waiting),
        ..table(id, name, &[("k", Kind::Int), ("v", Kind::Text)], &[0])
    }
}

pub(super) fn create(table: &Table) -> O {
    O::Schema(SchemaChange::CreateTable {
        table: table.clone(),
    })
}

pub(super) fn kv(k: i64, v: &str) -> Vec<V> {
    vec![V::Int(k), text(v)]
}

pub(super) fn add_column(id: u32, name: &str, value: StoredValue) -> O {
    O::Schema(SchemaChange::AddColumn {
        table: TableId(id),
        column: column(9, name, Kind::Text),
        value,
    })
}

/// Names in the file that are not ours, and what the sidecars and the pending list name.
pub(super) fn visible(env: &Env) -> (Vec<V>, Vec<Vec<V>>) {
    let names = env.rows("SELECT table_name FROM _rindle_tables ORDER BY 1");
    let columns = env.rows("SELECT DISTINCT table_name FROM _rindle_columns ORDER BY 1");
    assert_eq!(names, columns);
    (shown(&env.reader()), names)
}

fn pending(env: &Env) -> i64 {
    match env.rows("SELECT count(*) FROM _rindle_pending")[0][0] {
        V::Int(count) => count,
        _ => unreachable!(),
    }
}

pub(super) fn nothing_is_left(env: &Env) {
    assert_eq!(pending(env), 0);
    let hidden =
        env.rows("SELECT name FROM sqlite_schema WHERE name LIKE '%\\_load\\_%' ESCAPE '\\'");
    assert_eq!(hidden, Vec::<Vec<V>>::new());
}

impl Env {
    /// The end of a copy at `snapshot`, and what else its transaction holds.
    fn copied(
        &mut self,
        snapshot: u64,
        targets: &[(u32, &Table)],
        rows: &[(u32, Vec<V>)],
        more: &[O],
    ) -> Frame {
        let copied = self.log.copied(snapshot, targets, rows);
        let ops: Vec<O> = std::iter::once(O::Copied(copied))
            .chain(more.iter().cloned())
            .collect();
        self.log.txn(&ops)
    }

    fn show(&mut self, snapshot: u64, targets: &[(u32, &Table)], rows: &[(u32, Vec<V>)]) {
        let frame = self.copied(snapshot, targets, rows, &[]);
        let applied = self.mirror.apply(&frame, &mut self.log).unwrap();
        assert!(applied.committed_txn);
    }
}

#[test]
fn waiting_table_is_hidden_until_its_copy_is_complete_and_then_whole() {
    let mut env = env();
    let new = fresh(7, "new");
    env.run(&[create(&new), O::Insert(7, kv(1, "before the snapshot"))]);
    let snapshot = env.log.lsn + 5;
    env.run(&[O::Update(7, kv(1, "after")), O::Insert(7, kv(3, "three"))]);
    env.run(&[O::Insert(1, row(3, "others go on"))]);
    env.run(&[O::Delete(7, vec![V::Int(2)])]);
    let both = vec![text("pair"), text("t")];
    assert_eq!(visible(&env).0, both);
    assert_eq!(pending(&env), 4);
    assert_eq!(env.rows("SELECT count(*) FROM t"), [[V::Int(3)]]);
    let env = env.reopen();
    let mut env = env;
    assert_eq!(visible(&env).0, both);
    env.show(
        snapshot,
        &[(7, &new)],
        &[(7, kv(1, "copied")), (7, kv(2, "copied"))],
    );
    assert_eq!(
        env.rows("SELECT * FROM new ORDER BY k"),
        [kv(1, "after"), kv(3, "three")]
    );
    assert_eq!(visible(&env).1.len(), 3);
    nothing_is_left(&env);
    env.run(&[O::Insert(7, kv(4, "live"))]);
    let env = env.reopen();
    assert_eq!(env.rows("SELECT count(*) FROM new"), [[V::Int(3)]]);
    assert_eq!(env.mirror.schema().table(TableId(7)).unwrap().waiting, None);
}

#[test]
fn a1_transaction_at_the_snapshot_is_not_in_the_copy_and_one_below_is() {
    let mut env = env();
    let new = fresh(7, "new");
    env.run(&[create(&new)]);
    env.run(&[O::Insert(7, kv(1, "below"))]);
    env.run(&[O::Insert(7, kv(2, "at"))]);
    let at = env.log.lsn;
    env.run(&[O::Insert(7, kv(3, "above"))]);
    env.show(at, &[(7, &new)], &[(7, kv(1, "copied"))]);
    assert_eq!(
        env.rows("SELECT * FROM new"),
        [kv(1, "copied"), kv(2, "at"), kv(3, "above")]
    );
}

#[test]
fn positions_of_any_height_are_compared_as_they_are() {
    let mut env = env();
    let new = fresh(7, "new");
    env.log.lsn = i64::MAX as u64 - 15;
    env.run(&[create(&new), O::Insert(7, kv(1, "below"))]);
    let below = env.log.lsn;
    env.run(&[O::Insert(7, kv(2, "beyond what is signed"))]);
    assert!(below < i64::MAX as u64 && env.log.lsn > i64::MAX as u64);
    env.show(i64::MAX as u64, &[(7, &new)], &[(7, kv(1, "copied"))]);
    assert_eq!(env.rows("SELECT count(*) FROM new"), [[V::Int(2)]]);
}

#[test]
fn frozen_table_stands_still_and_live_one_goes_on_until_the_swap() {
    for live in [false, true] {
        let mut env = env();
        let next = next_t(live);
        env.run(&[create(&next)]);
        let mut inserted = row(3, "three");
        inserted.push(text("given"));
        let mut ops = vec![
            add_column(5, "new", StoredValue::Null),
            O::Insert(5, inserted.clone()),
        ];
        if live {
            ops.push(O::Insert(1, row(3, "three")));
        }
        env.run(&ops);
        let state = if live { "ready" } else { "frozen" };
        let states = env.rows("SELECT state FROM _rindle_tables WHERE table_name = 't'");
        assert_eq!(states, [[text(state)]]);
        let count = if live { 3 } else { 2 };
        assert_eq!(env.rows("SELECT count(*) FROM t"), [[V::Int(count)]]);
        let local = LocalIndex {
            table: "t".into(),
            columns: vec!["a".into()],
        };
        env.mirror.options.indexes = vec![local];
        let snapshot = env.log.lsn;
        // The snapshot is at the migration itself: the copy has the table as it was before.
        let before = next_t(live);
        env.show(snapshot, &[(5, &before)], &[(5, row(1, "copied"))]);
        let mut first = row(1, "copied");
        first.push(V::Null);
        assert_eq!(env.rows("SELECT * FROM t ORDER BY id"), [first, inserted]);
        let states =
            env.rows("SELECT table_name, state FROM _rindle_tables WHERE table_name <> 'pair'");
        assert_eq!(states, [[text("t"), text("ready")]]);
        let columns = env.rows("SELECT count(*) FROM _rindle_columns WHERE table_name = 't'");
        assert_eq!(columns, [[V::Int(5)]]);
        let plan = env.rows("EXPLAIN QUERY PLAN SELECT id FROM t WHERE a = 'x'");
        assert!(format!("{plan:?}").contains("_rindle_local_"), "{plan:?}");
        assert_eq!(env.mirror.schema().table(TableId(1)), None);
        nothing_is_left(&env);
    }
}

#[test]
fn a10_changes_that_wait_are_made_in_their_order_with_the_rows_between_them() {
    let mut env = env();
    let mut new = fresh(7, "new");
    env.run(&[create(&new)]);
    let snapshot = env.log.lsn + 1;
    let of = TableId(7);
    let index = Index {
        oid: Oid(70),
        name: "i".into(),
        columns: vec![1],
    };
    env.run(&[
        O::Insert(7, kv(1, "narrow")),
        add_column(7, "w", StoredValue::Text("stored".into())),
        O::Insert(7, vec![V::Int(2), text("wide"), text("w")]),
        O::Update(7, vec![V::Int(1), V::Same, text("set")]),
        O::Schema(SchemaChange::RenameColumn {
            table: of,
            attnum: 2,
            name: "say \"v\"".into(),
        }),
        O::Schema(SchemaChange::CreateIndex { table: of, index }),
        O::Schema(SchemaChange::RenameTable {
            table: of,
            schema: "app".into(),
            name: "Renamed".into(),
        }),
        O::Rekey(7, vec![V::Int(2)], vec![V::Int(5), V::Same, text("moved")]),
        O::Schema(SchemaChange::AlterColumn {
            table: of,
            attnum: 2,
            type_name: "varchar(9)".into(),
            type_oid: Oid(1043),
            typmod: 13,
            not_null: true,
        }),
    ]);
    env.run(&[
        O::Truncate(vec![2, 7, 1]),
        O::Insert(7, vec![V::Int(9), text("v"), V::Null]),
        O::Schema(SchemaChange::DropColumn {
            table: of,
            attnum: 10,
        }),
        O::Insert(7, kv(10, "last")),
    ]);
    assert_eq!(
        env.rows("SELECT count(*) FROM t"),
        [[V::Int(0)]],
        "each by itself"
    );
    new.waiting = None;
    env.show(snapshot, &[(7, &new)], &[(7, kv(3, "copied"))]);
    assert_eq!(
        env.rows("SELECT * FROM \"app.Renamed\""),
        [kv(9, "v"), kv(10, "last")]
    );
    let types = env
        .rows("SELECT column_name, pg_type FROM _rindle_columns WHERE table_name = 'app.Renamed'");
    assert_eq!(types[1], [text("say \"v\""), text("varchar(9)")]);
    let plan =
        env.rows("EXPLAIN QUERY PLAN SELECT k FROM \"app.Renamed\" WHERE \"say \"\"v\"\"\" = 'x'");
    assert!(
        format!("{plan:?}").contains("_rindle_index_7_70"),
        "{plan:?}"
    );
    nothing_is_left(&env);
}

#[test]
fn names_that_changed_places_meanwhile_come_out_right() {
    let mut env = env();
    env.run(&[O::Insert(2, vec![text("k"), V::Int(1), V::Null])]);
    let waiting = |id: u32, of: usize, name: &str| Table {
        id: TableId(id),
        name: name.into(),
        waiting: Some(Waiting {
            replaces: Some(TableId(of as u32 + 1)),
            live: false,
        }),
        ..two_tables().tables.remove(of)
    };
    let rename = |id: u32, name: &str| {
        O::Schema(SchemaChange::RenameTable {
            table: TableId(id),
            schema: "public".into(),
            name: name.into(),
        })
    };
    let (one, two) = (waiting(5, 0, "t"), waiting(6, 1, "pair"));
    env.run(&[create(&one), create(&two)]);
    // `t` becomes `Pair`, and `pair` becomes `T`.
    env.run(&[rename(5, "free"), rename(6, "T"), rename(5, "Pair")]);
    let alone = env.copied(env.log.lsn, &[(5, &one)], &[], &[]);
    let error = env.mirror.apply(&alone, &mut env.log).unwrap_err();
    assert!(error.to_string().contains("folds case"), "{error}");
    env.log.writer = FrameWriter::new(env.mirror.position().unwrap());
    let rows = [
        (5, row(8, "was t")),
        (6, vec![text("was pair"), V::Int(1), V::Null]),
    ];
    env.show(env.log.lsn, &[(6, &two), (5, &one)], &rows);
    assert_eq!(shown(&env.reader()), [text("Pair"), text("T")]);
    assert_eq!(env.rows("SELECT a FROM \"Pair\""), [[text("was t")]]);
    assert_eq!(env.rows("SELECT x FROM \"T\""), [[text("was pair")]]);
}

#[test]
fn dropped_while_it_waits_leaves_nothing() {
    let mut env = env();
    let next = next_t(false);
    env.run(&[create(&next), O::Insert(5, row(9, "x"))]);
    env.run(&[O::Schema(SchemaChange::DropTable { table: TableId(5) })]);
    nothing_is_left(&env);
    assert_eq!(
        env.rows("SELECT state FROM _rindle_tables WHERE table_name = 't'"),
        [[text("ready")]]
    );
    let frame = env.copied(env.log.lsn, &[(5, &next)], &[], &[]);
    let error = env.mirror.apply(&frame, &mut env.log).unwrap_err();
    assert!(matches!(error, MirrorError::BadFrame { .. }), "{error}");
    assert!(error.to_string().contains("does not wait"), "{error}");
}

#[test]
fn copy_ends_only_at_the_start_of_a_transaction_and_only_once() {
    let new = fresh(7, "new");
    let mut first = env();
    first.run(&[create(&new)]);
    let copied = first.log.copied(first.log.lsn, &[(7, &new)], &[]);
    let frame = first
        .log
        .txn(&[O::Insert(1, row(3, "x")), O::Copied(copied)]);
    let error = first.mirror.apply(&frame, &mut first.log).unwrap_err();
    assert!(error.to_string().contains("in the middle"), "{error}");

    for targets in [&[(7, &new), (7, &new)][..], &[(1, &new)], &[(99, &new)]] {
        let mut env = env();
        env.run(&[create(&new)]);
        let frame = env.copied(env.log.lsn, targets, &[], &[]);
        let error = env.mirror.apply(&frame, &mut env.log).unwrap_err();
        assert!(matches!(error, MirrorError::BadFrame { .. }), "{error}");
        nothing_is_left(&env);
        assert_eq!(shown(&env.reader()).len(), 2);
    }
}

#[test]
fn copy_that_does_not_add_up_is_refused_by_name_and_nothing_is_shown() {
    type Change = fn(&mut Table);
    let changes: [(&str, Change); 5] = [
        ("columns", |table| table.columns[1].name = "other".into()),
        ("columns", |table| table.columns[1].type_oid = Oid(1)),
        ("key columns", |table| table.key = vec![1]),
        ("indexes", |table| {
            let columns = vec![1];
            let (oid, name) = (Oid(3), "i".into());
            table.indexes.push(Index { oid, name, columns });
        }),
        ("partitions", |table| table.leaves.push(leaf(8, false))),
    ];
    for (what, change) in changes {
        let mut env = env();
        let new = fresh(7, "new");
        env.run(&[create(&new)]);
        let mut shape = new.clone();
        change(&mut shape);
        let frame = env.copied(env.log.lsn, &[(7, &shape)], &[], &[]);
        let error = env.mirror.apply(&frame, &mut env.log).unwrap_err();
        assert!(
            matches!(&error, MirrorError::Schema { source, .. } if source.reason.contains(what)),
            "{error:?}"
        );
        assert_eq!(shown(&env.reader()).len(), 2);
        nothing_is_left(&env);
        assert_eq!(env.mirror.schema().table(TableId(7)), Some(&new));
    }
}

#[test]
fn shape_that_makes_no_sense_is_a_bad_frame() {
    type Change = fn(&mut Table);
    let changes: [Change; 3] = [
        |table| table.key = vec![5],
        |table| table.id = TableId(3),
        |table| table.columns.clear(),
    ];
    for change in changes {
        let mut env = env();
        let new = fresh(7, "new");
        env.run(&[create(&new)]);
        let mut shape = new.clone();
        change(&mut shape);
        let frame = env.copied(env.log.lsn, &[(7, &shape)], &[], &[]);
        let error = env.mirror.apply(&frame, &mut env.log).unwrap_err();
        assert!(matches!(error, MirrorError::BadFrame { .. }), "{error}");
    }
}

/// Fails at one part, and looks into the file at each.
struct Cut<'l> {
    log: &'l mut Log,
    path: PathBuf,
    fail_at: usize,
    calls: usize,
}

impl BulkSource for Cut<'_> {
    fn rows(&mut self, attempt: Attempt, part: &BulkPart) -> Result<Bytes, BulkError> {
        let stock = Connection::open(&self.path).unwrap();
        assert_eq!(shown(&stock).len(), 2, "nothing shows while it is loaded");
        let at = self.calls;
        self.calls += 1;
        match at == self.fail_at {
            true => Err(BulkError::Unavailable("cut off".into())),
            false => self.log.rows(attempt, part),
        }
    }
}

#[test]
fn load_that_fails_at_any_part_leaves_nothing_and_comes_again() {
    let rows: Vec<_> = (0..10).map(|k| (7, kv(k, "copied"))).collect();
    for crash in [false, true] {
        for fail_at in 0.. {
            let mut env = env();
            let new = fresh(7, "new");
            env.run(&[create(&new)]);
            let snapshot = env.log.lsn;
            env.run(&[O::Insert(7, kv(50, "pending"))]);
            env.apply(&[O::Insert(1, row(3, "before it"))]).unwrap();
            let frame = env.copied(
                snapshot,
                &[(7, &new)],
                &rows,
                &[O::Insert(7, kv(60, "with it"))],
            );
            let path = env.mirror.path().to_path_buf();
            let mut bulk = Cut {
                log: &mut env.log,
                path,
                fail_at,
                calls: 0,
            };
            let result = env.mirror.apply(&frame, &mut bulk);
            if result.is_ok() {
                assert_eq!(bulk.calls, fail_at);
                break;
            }
            assert_eq!(
                env.rows("SELECT count(*) FROM t"),
                [[V::Int(3)]],
                "what was before stays"
            );
            if crash {
                env = env.reopen();
            }
            assert_eq!(pending(&env), 1);
            assert_eq!(shown(&env.reader()).len(), 2);
            env.mirror.apply(&frame, &mut env.log).unwrap();
            assert_eq!(env.rows("SELECT count(*) FROM new"), [[V::Int(12)]]);
            nothing_is_left(&env);
        }
    }
}

#[test]
fn end_of_a_copy_in_several_parts_that_breaks_off_shows_nothing() {
    let mut env = env();
    let new = fresh(7, "new");
    env.run(&[create(&new)]);
    let copied = env
        .log
        .copied(env.log.lsn, &[(7, &new)], &[(7, kv(1, "copied"))]);
    let ops = [O::Copied(copied), O::Insert(7, kv(2, "same transaction"))];
    let parts = env.log.parts(&ops, &[1]);
    env.mirror.apply(&parts[0], &mut env.log).unwrap();
    assert!(env.mirror.has_open_txn());
    assert_eq!(shown(&env.reader()).len(), 2);
    env.mirror.discard().unwrap();
    nothing_is_left_loaded(&env);
    for part in &parts {
        env.mirror.apply(part, &mut env.log).unwrap();
    }
    assert_eq!(env.rows("SELECT count(*) FROM new"), [[V::Int(2)]]);
}

pub(super) fn nothing_is_left_loaded(env: &Env) {
    let hidden = env.rows("SELECT count(*) FROM sqlite_schema WHERE name LIKE '%load%'");
    assert_eq!(hidden, [[V::Int(0)]]);
}

#[test]
fn image_of_the_middle_of_a_backfill_goes_on_like_the_mirror() {
    let mut env = env();
    let next = next_t(false);
    env.run(&[create(&next), O::Insert(5, row(5, "pending"))]);
    let image = env.dir.path().join("image.db");
    image::write(&mut env.mirror, &image).unwrap();
    let facts = image::prove(&image).unwrap();
    assert_eq!(facts.rows.len(), 2, "of what is shown");
    assert!(facts.schema.table(TableId(5)).is_some());
    let mut restored = Mirror::open(&image, MirrorOptions::default()).unwrap();
    let frames = [
        env.log.txn(&[O::Update(5, row(5, "later"))]),
        env.copied(1000, &[(5, &next)], &[(5, row(1, "copied"))], &[]),
    ];
    for frame in &frames {
        env.mirror.apply(frame, &mut env.log).unwrap();
        restored.apply(frame, &mut env.log).unwrap();
    }
    let rows = "SELECT * FROM t ORDER BY id";
    let theirs = select(&open_reader(&image).unwrap(), rows);
    assert_eq!(env.rows(rows), theirs);
    assert_eq!(theirs, [row(1, "copied"), row(5, "later")]);
    assert_eq!(restored.cursor(), env.mirror.cursor());
}

#[test]
fn facts_are_passed_over() {
    let mut env = env();
    let applied = env
        .apply(&[O::Facts(b"{\"v\":1}".to_vec()), O::Insert(1, row(3, "x"))])
        .unwrap();
    assert_eq!(applied.ops, 1);
}

pub(super) fn leaf(id: u32, waiting: bool) -> Leaf {
    Leaf {
        id: TableId(id),
        oid: Oid(17_000 + id),
        waiting,
    }
}
