//! Partitions with ids of their own: one of them goes, or comes, by itself.

use super::waiting::leaf;
use super::*;
use rindle_proto::change::StoredValue;
use rindle_proto::schema::{Index, Leaf};

/// Table 3 `p`, of partitions 10 and 11, with an index.
fn partitioned() -> Schema {
    let mut root = table(3, "p", &[("k", Kind::Int), ("v", Kind::Text)], &[0]);
    root.leaves = vec![leaf(10, false), leaf(11, false)];
    root.indexes.push(Index {
        oid: Oid(30),
        name: "p_v".into(),
        columns: vec![1],
    });
    let mut schema = two_tables();
    schema.tables.push(root);
    schema
}

fn kv(k: i64, v: &str) -> Vec<V> {
    vec![V::Int(k), text(v)]
}

fn env() -> Env {
    let ten = (0..5).map(|k| (10, kv(k, "ten")));
    let eleven = (100..104).map(|k| (11, kv(k, "eleven")));
    let rows: Vec<_> = ten.chain(eleven).chain([(1, row(1, "one"))]).collect();
    Env::with(&partitioned(), &rows)
}

fn row_ids(env: &Env) -> Vec<(i64, i64)> {
    let rows = env.rows("SELECT rowid >> 40, rowid & 1099511627775 FROM p ORDER BY rowid");
    let number = |value: &V| match value {
        V::Int(number) => *number,
        _ => unreachable!(),
    };
    rows.iter()
        .map(|row| (number(&row[0]), number(&row[1])))
        .collect()
}

fn range(leaf: i64, numbers: std::ops::RangeInclusive<i64>) -> Vec<(i64, i64)> {
    numbers.map(|number| (leaf, number)).collect()
}

fn create_leaf(leaf: Leaf) -> O {
    let table = TableId(3);
    O::Schema(SchemaChange::CreateLeaf { table, leaf })
}

fn drop_leaf(id: u32) -> O {
    let (table, leaf) = (TableId(3), TableId(id));
    O::Schema(SchemaChange::DropLeaf { table, leaf })
}

#[test]
fn rows_lie_in_the_range_of_their_partition_and_are_found_by_key() {
    let mut env = env();
    assert_eq!(row_ids(&env), [range(10, 1..=5), range(11, 1..=4)].concat());
    env.run(&[
        O::Insert(10, kv(5, "new")),
        O::Insert(11, kv(104, "new")),
        O::Insert(10, kv(6, "new")),
    ]);
    let mut env = env.reopen();
    env.run(&[
        O::Insert(10, kv(7, "new")),
        O::Update(10, kv(0, "updated")),
        O::Rekey(11, vec![V::Int(100)], kv(199, "moved")),
        O::Delete(11, vec![V::Int(104)]),
    ]);
    assert_eq!(row_ids(&env), [range(10, 1..=8), range(11, 1..=4)].concat());
    assert_eq!(env.rows("SELECT v FROM p WHERE k = 0"), [[text("updated")]]);
    assert_eq!(env.rows("SELECT v FROM p WHERE k = 199"), [[text("moved")]]);
}

#[test]
fn rolled_back_rows_leave_their_row_ids_to_others() {
    let mut env = env();
    let position = env.mirror.position().unwrap();
    env.apply(&[O::Insert(10, kv(50, "x")), O::Insert(10, kv(51, "x"))])
        .unwrap();
    env.mirror.rollback().unwrap();
    env.log.writer = FrameWriter::new(position);
    env.run(&[O::Insert(10, kv(52, "y")), O::Insert(11, kv(152, "y"))]);
    assert_eq!(env.rows("SELECT count(*) FROM p"), [[V::Int(11)]]);
    assert!(
        row_ids(&env)
            .iter()
            .all(|(leaf, _)| [10, 11].contains(leaf))
    );
    env.apply(&[O::Insert(10, kv(52, "twice"))]).unwrap_err();
    env.log.writer = FrameWriter::new(env.mirror.position().unwrap());
    env.run(&[O::Insert(10, kv(53, "z")), drop_leaf(10)]);
    assert_eq!(env.rows("SELECT count(*) FROM p"), [[V::Int(5)]]);
}

#[test]
fn dropped_or_truncated_partition_takes_its_rows_and_no_others() {
    for op in [O::Truncate(vec![10, 1]), drop_leaf(10)] {
        let mut env = env();
        env.run(std::slice::from_ref(&op));
        assert_eq!(row_ids(&env), range(11, 1..=4));
        match op {
            O::Truncate(_) => env.run(&[O::Insert(10, kv(1, "again"))]),
            _ => assert!(env.apply(&[O::Insert(10, kv(1, "again"))]).is_err()),
        }
    }
    let mut env = env();
    env.run(&[O::Truncate(vec![3]), O::Insert(11, kv(1, "again"))]);
    assert_eq!(env.rows("SELECT * FROM p"), [kv(1, "again")]);
}

#[test]
fn new_partition_takes_rows_at_once() {
    let mut env = env();
    env.run(&[create_leaf(leaf(12, false)), O::Insert(12, kv(200, "new"))]);
    assert_eq!(row_ids(&env).last(), Some(&(12, 1)));
    assert!(env.apply(&[drop_leaf(99)]).is_err(), "no such partition");
}

#[test]
fn row_of_a_partitioned_table_names_its_partition() {
    let mut env = env();
    let error = env.apply(&[O::Insert(3, kv(9, "x"))]).unwrap_err();
    assert!(
        error.to_string().contains("none of its partitions"),
        "{error}"
    );
}

#[test]
fn names_of_the_row_id_may_be_taken() {
    let column_of = |name| [("k", Kind::Int), (name, Kind::Text)];
    for names in [&["ROWID"][..], &["_rowid_", "oid"], &["rowid", "oid"]] {
        let mut columns: Vec<(&str, Kind)> = column_of("v").to_vec();
        columns.extend(names.iter().map(|name| (*name, Kind::Text)));
        let mut root = table(3, "p", &columns, &[0]);
        root.leaves = vec![leaf(10, false), leaf(11, false)];
        let mut env = Env::with(&Schema { tables: vec![root] }, &[]);
        let mut new = kv(1, "v");
        new.resize(columns.len(), text("rowid?"));
        env.run(&[O::Insert(10, new.clone())]);
        new[0] = V::Int(2);
        env.run(&[O::Insert(11, new.clone()), O::Truncate(vec![10])]);
        assert_eq!(env.rows("SELECT * FROM p"), [new]);
    }
    let mut root = table(3, "p", &column_of("v"), &[0]);
    for (at, name) in ["oid", "rowid", "_rowid_"].iter().enumerate() {
        root.columns.push(column(5 + at, name, Kind::Int));
    }
    root.leaves = vec![leaf(10, false)];
    let mut env = Env::with(&Schema { tables: vec![root] }, &[]);
    let new = vec![V::Int(1), text("v"), V::Null, V::Null, V::Null];
    let error = env.apply(&[O::Insert(10, new)]).unwrap_err();
    assert!(matches!(error, MirrorError::Schema { .. }), "{error}");
}

#[test]
fn partition_whose_row_ids_sqlite_does_not_hold_is_refused_by_name() {
    let mut env = env();
    let change = create_leaf(leaf(1 << 23, false));
    let error = env.apply(&[change]).unwrap_err();
    assert!(matches!(error, MirrorError::Schema { .. }), "{error}");
    env.log.writer = FrameWriter::new(env.mirror.position().unwrap());
    let last = (1 << 23) - 1;
    env.run(&[create_leaf(leaf(last, false)), O::Insert(last, kv(-1, "x"))]);
    env.run(&[O::Truncate(vec![last])]);
    assert_eq!(row_ids(&env).len(), 9);
}

#[test]
fn image_keeps_row_ids_with_and_without_indexes() {
    for indexed in [true, false] {
        let mut schema = partitioned();
        if !indexed {
            schema.tables[2].indexes.clear();
        }
        let rows: Vec<_> = (0..300).map(|k| (10 + k as u32 % 2, kv(k, "x"))).collect();
        let mut env = Env::with(&schema, &rows);
        env.run(&[
            O::Delete(10, vec![V::Int(4)]),
            O::Delete(11, vec![V::Int(299)]),
        ]);
        if !indexed {
            env.mirror
                .conn
                .execute_batch("DROP INDEX _rindle_key_3")
                .unwrap();
        }
        let before = row_ids(&env);
        let path = env.dir.path().join("image.db");
        image::write(&mut env.mirror, &path).unwrap();
        let image = Env {
            mirror: Mirror::open(&path, MirrorOptions::default()).unwrap(),
            ..env
        };
        assert_eq!(row_ids(&image), before);
    }
}

fn waiting_leaf() -> Env {
    let mut env = env();
    env.run(&[
        create_leaf(leaf(12, true)),
        O::Insert(12, kv(200, "pending")),
    ]);
    env
}

#[test]
fn attached_partition_waits_alone_and_comes_whole() {
    let mut env = waiting_leaf();
    let shape = env.mirror.schema().table(TableId(3)).unwrap().clone();
    let snapshot = env.log.lsn;
    env.run(&[
        O::Update(12, kv(201, "updated")),
        O::Insert(10, kv(20, "shown")),
    ]);
    env.run(&[
        O::Schema(SchemaChange::AddColumn {
            table: TableId(3),
            column: column(9, "new", Kind::Text),
            value: StoredValue::Text("stored".into()),
        }),
        O::Schema(SchemaChange::RenameTable {
            table: TableId(3),
            schema: "public".into(),
            name: "P".into(),
        }),
        O::Insert(12, vec![V::Int(203), text("wide"), V::Null]),
    ]);
    assert_eq!(row_ids(&env).len(), 10, "nothing of it shows");
    let mut env = env.reopen();
    let rows = [(12, kv(201, "copied")), (12, kv(202, "copied"))];
    let frame = env.log.copied(snapshot, &[(12, &shape)], &rows);
    let frame = env.log.txn(&[O::Copied(frame)]);
    env.mirror.apply(&frame, &mut env.log).unwrap();
    let wide = |k, v: &str, new| vec![V::Int(k), text(v), new];
    assert_eq!(
        env.rows("SELECT * FROM p WHERE k >= 200 ORDER BY k"),
        [
            wide(200, "pending", text("stored")),
            wide(201, "updated", text("stored")),
            wide(202, "copied", text("stored")),
            wide(203, "wide", V::Null),
        ]
    );
    assert_eq!(row_ids(&env).len(), 14);
    assert!(!env.mirror.schema().table(TableId(3)).unwrap().leaves[2].waiting);
    env.run(&[drop_leaf(12)]);
    assert_eq!(row_ids(&env).len(), 10);
    let left = env.rows("SELECT count(*) FROM _rindle_pending");
    assert_eq!(left, [[V::Int(0)]]);
    let left = env.rows("SELECT count(*) FROM sqlite_schema WHERE name LIKE '%load%'");
    assert_eq!(left, [[V::Int(0)]]);
}

#[test]
fn truncate_of_the_root_reaches_the_partition_that_waits() {
    let mut env = waiting_leaf();
    let shape = env.mirror.schema().table(TableId(3)).unwrap().clone();
    let snapshot = env.log.lsn + 1;
    env.run(&[O::Truncate(vec![3]), O::Insert(12, kv(300, "after"))]);
    let copied = env
        .log
        .copied(snapshot, &[(12, &shape)], &[(12, kv(200, "copied"))]);
    let frame = env.log.txn(&[O::Copied(copied)]);
    env.mirror.apply(&frame, &mut env.log).unwrap();
    assert_eq!(env.rows("SELECT * FROM p"), [kv(300, "after")]);
}

#[test]
fn partition_whose_rows_are_there_already_is_a_divergence() {
    let mut env = waiting_leaf();
    let shape = env.mirror.schema().table(TableId(3)).unwrap().clone();
    let rows = [(12, kv(100, "also in eleven"))];
    let copied = env.log.copied(env.log.lsn, &[(12, &shape)], &rows);
    let frame = env.log.txn(&[O::Copied(copied)]);
    let error = env.mirror.apply(&frame, &mut env.log).unwrap_err();
    assert!(matches!(error, MirrorError::Divergence { .. }), "{error}");
    assert_eq!(row_ids(&env).len(), 9);
}

#[test]
fn dropped_partition_and_dropped_root_take_what_waits_along() {
    for change in [
        drop_leaf(12),
        O::Schema(SchemaChange::DropTable { table: TableId(3) }),
    ] {
        let mut env = waiting_leaf();
        env.run(&[change]);
        let left = env.rows("SELECT count(*) FROM _rindle_pending");
        assert_eq!(left, [[V::Int(0)]]);
    }
}

#[test]
fn partition_that_comes_with_the_table_that_replaces_its_own_is_that_table_s() {
    let mut env = waiting_leaf();
    let shape = env.mirror.schema().table(TableId(3)).unwrap().clone();
    let mut next = Table {
        id: TableId(20),
        leaves: vec![leaf(21, false), leaf(22, false), leaf(23, false)],
        waiting: Some(rindle_proto::schema::Waiting {
            replaces: Some(TableId(3)),
            live: true,
        }),
        ..shape.clone()
    };
    next.indexes[0].oid = Oid(31);
    let create = SchemaChange::CreateTable {
        table: next.clone(),
    };
    env.run(&[O::Schema(create)]);
    let snapshot = env.log.lsn + 1;
    let both = O::Insert(12, kv(400, "pending"));
    env.run(&[both, O::Insert(23, kv(400, "pending"))]);
    let rows = [(12, kv(200, "copied")), (23, kv(200, "copied"))];
    let targets = [(12, &shape), (20, &next)];
    let copied = env.log.copied(snapshot, &targets, &rows);
    let frame = env.log.txn(&[O::Copied(copied)]);
    env.mirror.apply(&frame, &mut env.log).unwrap();
    assert_eq!(
        env.rows("SELECT * FROM p ORDER BY k"),
        [kv(200, "copied"), kv(400, "pending")]
    );
    let left = env.rows("SELECT count(*) FROM _rindle_pending");
    assert_eq!(left, [[V::Int(0)]]);
    let left = env.rows("SELECT count(*) FROM sqlite_schema WHERE name LIKE '%load%'");
    assert_eq!(left, [[V::Int(0)]]);
}

#[test]
fn partition_that_waits_in_a_waiting_table_waits_on_when_that_is_shown() {
    let mut env = env();
    let mut next = env.mirror.schema().table(TableId(3)).unwrap().clone();
    next.id = TableId(20);
    next.leaves = vec![leaf(21, false), leaf(22, false)];
    next.indexes[0].oid = Oid(31);
    next.waiting = Some(rindle_proto::schema::Waiting {
        replaces: Some(TableId(3)),
        live: false,
    });
    let of = TableId(20);
    env.run(&[O::Schema(SchemaChange::CreateTable {
        table: next.clone(),
    })]);
    let snapshot = env.log.lsn + 1;
    let attach = SchemaChange::CreateLeaf {
        table: of,
        leaf: leaf(23, true),
    };
    env.run(&[
        O::Insert(22, kv(100, "pending")),
        O::Schema(attach),
        O::Insert(23, kv(300, "of the one that waits")),
        O::Schema(SchemaChange::RenameColumn {
            table: of,
            attnum: 2,
            name: "w".into(),
        }),
        O::Insert(23, kv(301, "of the one that waits")),
    ]);
    let own = env.log.lsn;
    let copied = env
        .log
        .copied(snapshot, &[(20, &next)], &[(21, kv(1, "copied"))]);
    let frame = env.log.txn(&[O::Copied(copied)]);
    env.mirror.apply(&frame, &mut env.log).unwrap();
    assert_eq!(
        env.rows("SELECT * FROM p ORDER BY k"),
        [kv(1, "copied"), kv(100, "pending")]
    );
    assert_eq!(row_ids(&env), [(21, 1), (22, 1)]);
    let left = env.rows("SELECT DISTINCT target, final_lsn FROM _rindle_pending");
    assert_eq!(left, [[V::Int(23), V::Int(own as i64)]]);
    env.run(&[O::Insert(23, kv(302, "still waits"))]);
    let mut shape = next.clone();
    shape.leaves.push(leaf(23, false));
    let copied = env
        .log
        .copied(own, &[(23, &shape)], &[(23, kv(299, "copied"))]);
    let frame = env.log.txn(&[O::Copied(copied)]);
    env.mirror.apply(&frame, &mut env.log).unwrap();
    assert_eq!(
        env.rows("SELECT count(*), max(w) FROM p"),
        [[V::Int(6), text("still waits")]]
    );
}
