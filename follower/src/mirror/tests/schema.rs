//! Every schema change there is, and what readers see of it.

use super::*;
use rindle_proto::change::StoredValue;
use rindle_proto::schema::Index;

fn env() -> Env {
    Env::with(&two_tables(), &[(1, row(1, "one")), (1, row(2, "two"))])
}

fn schema(change: SchemaChange) -> O {
    O::Schema(change)
}

fn add(name: &str, kind: Kind, value: StoredValue) -> O {
    schema(SchemaChange::AddColumn {
        table: TableId(1),
        column: column(9, name, kind),
        value,
    })
}

#[test]
fn created_table_takes_rows_in_the_same_transaction() {
    let mut env = env();
    let mut created = table(7, "New", &[("k", Kind::Text), ("v", Kind::Int)], &[0]);
    created.schema = "app".into();
    created.indexes.push(Index {
        oid: Oid(5),
        name: "i".into(),
        columns: vec![1, 0],
    });
    let insert = O::Insert(7, vec![text("a"), V::Int(1)]);
    env.run(&[
        schema(SchemaChange::CreateTable {
            table: created.clone(),
        }),
        insert,
    ]);
    assert_eq!(
        env.rows("SELECT * FROM \"app.New\""),
        [[text("a"), V::Int(1)]]
    );
    let sidecar = env.rows("SELECT * FROM _rindle_tables WHERE table_name = 'app.New'");
    let expected = [
        text("app.New"),
        text("app"),
        text("New"),
        V::Int(16_007),
        text("ready"),
        text("[\"k\"]"),
    ];
    assert_eq!(sidecar, [expected]);
    let indexes = env
        .rows("SELECT count(*) FROM sqlite_schema WHERE tbl_name = 'app.New' AND type = 'index'");
    assert_eq!(indexes, [[V::Int(2)]]);
    assert_eq!(
        env.reopen().mirror.schema().table(TableId(7)),
        Some(&created)
    );
}

#[test]
fn dropped_table_is_gone_with_its_sidecar() {
    let mut env = env();
    env.run(&[schema(SchemaChange::DropTable { table: TableId(1) })]);
    assert_eq!(shown(&env.reader()), [text("pair")]);
    assert_eq!(
        env.rows("SELECT DISTINCT table_name FROM _rindle_columns"),
        [[text("pair")]]
    );
    assert!(env.apply(&[O::Insert(1, row(3, "x"))]).is_err());
}

#[test]
fn renames_reach_names_that_sqlite_takes_for_the_same() {
    let mut env = env();
    for (schema_name, name, shown_as) in [
        ("public", "T", "T"),
        ("public", "a\"b", "a\"b"),
        ("S", "T", "S.T"),
        ("s", "t", "s.t"),
    ] {
        let change = SchemaChange::RenameTable {
            table: TableId(1),
            schema: schema_name.into(),
            name: name.into(),
        };
        env.run(&[schema(change), O::Update(1, row(1, shown_as))]);
        let quoted = ddl::quote(shown_as);
        assert_eq!(
            env.rows(&format!("SELECT a FROM {quoted} WHERE id = 1")),
            [[text(shown_as)]]
        );
        assert_eq!(shown(&env.reader()).len(), 2);
        let known = env.rows("SELECT table_name FROM _rindle_tables ORDER BY relid");
        assert_eq!(known[0], [text(shown_as)]);
    }
}

#[test]
fn renamed_column_is_renamed_everywhere() {
    let mut env = env();
    for name in ["A", "say \"hi\"", "id2"] {
        let change = SchemaChange::RenameColumn {
            table: TableId(1),
            attnum: 2,
            name: name.into(),
        };
        env.run(&[schema(change), O::Update(1, row(1, name))]);
        let sql = format!("SELECT {} FROM t WHERE id = 1", ddl::quote(name));
        assert_eq!(env.rows(&sql), [[text(name)]]);
        let sidecar = env.rows(
            "SELECT column_name FROM _rindle_columns WHERE table_name = 't' ORDER BY ordinal",
        );
        assert_eq!(sidecar[1], [text(name)]);
    }
    let key = SchemaChange::RenameColumn {
        table: TableId(1),
        attnum: 1,
        name: "key".into(),
    };
    env.run(&[schema(key), O::Delete(1, vec![V::Int(2)])]);
    assert_eq!(env.rows("SELECT key FROM t"), [[V::Int(1)]]);
}

#[test]
fn added_column_gives_rows_exactly_the_stored_value() {
    for (kind, value, expected) in [
        (Kind::Text, StoredValue::Null, V::Null),
        (Kind::Text, StoredValue::Text("007".into()), text("007")),
        (
            Kind::Text,
            StoredValue::Text("it's \"x\"".into()),
            text("it's \"x\""),
        ),
        (
            Kind::Text,
            StoredValue::Text("y".repeat(2 << 20)),
            text(&"y".repeat(2 << 20)),
        ),
        (Kind::Int, StoredValue::Int(i64::MIN), V::Int(i64::MIN)),
        (Kind::Int, StoredValue::Int(i64::MAX), V::Int(i64::MAX)),
        (Kind::Bool, StoredValue::Int(1), V::Int(1)),
        (Kind::Float, StoredValue::Text("NaN".into()), text("NaN")),
        (
            Kind::Float,
            StoredValue::RealBits(0.1f64.to_bits()),
            V::Real(0.1),
        ),
        (
            Kind::Float,
            StoredValue::RealBits(f64::NEG_INFINITY.to_bits()),
            V::Real(f64::NEG_INFINITY),
        ),
        (
            Kind::Float,
            StoredValue::RealBits(5e-324f64.to_bits()),
            V::Real(5e-324),
        ),
        (
            Kind::Float,
            StoredValue::RealBits(7.0f64.to_bits()),
            V::Real(7.0),
        ),
    ] {
        let mut env = env();
        let mut added = row(3, "three");
        added.push(V::Null);
        env.run(&[add("new", kind, value), O::Insert(1, added)]);
        let rows = env.rows("SELECT \"new\" FROM t ORDER BY id");
        assert_eq!(rows, [[expected.clone()], [expected.clone()], [V::Null]]);
        let digest =
            |env: &Env| digest::table(&env.reader(), &env.mirror.schema().tables[0]).unwrap();
        let before = digest(&env);
        assert_eq!(digest(&env.reopen()), before);
    }
}

#[test]
fn dropped_column_shifts_the_rest_and_takes_local_indexes_along() {
    let mut env = env();
    let local = |columns: &[&str]| LocalIndex {
        table: "t".into(),
        columns: columns.iter().map(|name| (*name).to_owned()).collect(),
    };
    env.mirror.options.indexes = vec![local(&["b", "a"]), local(&["c"]), local(&["nosuch"])];
    local::ensure(
        &env.mirror.conn,
        &env.mirror.schema,
        &env.mirror.options.indexes,
    )
    .unwrap();
    let count =
        "SELECT count(*) FROM sqlite_schema WHERE name LIKE '\\_rindle\\_local\\_%' ESCAPE '\\'";
    assert_eq!(env.rows(count), [[V::Int(2)]]);
    let change = SchemaChange::DropColumn {
        table: TableId(1),
        attnum: 2,
    };
    env.run(&[
        schema(change),
        O::Insert(1, vec![V::Int(3), V::Real(2.5), V::Int(0)]),
    ]);
    assert_eq!(
        env.rows("SELECT * FROM t WHERE id = 3"),
        [[V::Int(3), V::Real(2.5), V::Int(0)]]
    );
    assert_eq!(env.rows(count), [[V::Int(1)]]);
    let env = env.reopen();
    assert_eq!(
        env.rows(count),
        [[V::Int(0)]],
        "no configuration, no local index"
    );
}

#[test]
fn altered_column_changes_the_sidecar_only() {
    let mut env = env();
    let change = SchemaChange::AlterColumn {
        table: TableId(1),
        attnum: 2,
        type_name: "character varying(9)".into(),
        type_oid: Oid(1043),
        typmod: 13,
        not_null: true,
    };
    env.run(&[schema(change)]);
    let sql = "SELECT pg_type, pg_type_oid, pg_typmod, rindle_type, nullable, key_ordinal, hidden
               FROM _rindle_columns WHERE table_name = 't' AND column_name = 'a'";
    let expected = [
        text("character varying(9)"),
        V::Int(1043),
        V::Int(13),
        text("string"),
        V::Int(0),
        V::Null,
        V::Int(0),
    ];
    assert_eq!(env.rows(sql), [expected]);
}

#[test]
fn carried_indexes_come_and_go_and_are_not_unique() {
    let mut env = env();
    let index = Index {
        oid: Oid(77),
        name: "t_a_key".into(),
        columns: vec![1],
    };
    let create = SchemaChange::CreateIndex {
        table: TableId(1),
        index,
    };
    env.run(&[
        schema(create),
        O::Insert(1, row(3, "one")),
        O::Update(1, row(2, "one")),
    ]);
    let plan = env.rows("EXPLAIN QUERY PLAN SELECT id FROM t WHERE a = 'one'");
    assert!(
        format!("{plan:?}").contains("_rindle_index_1_77"),
        "{plan:?}"
    );
    env.run(&[schema(SchemaChange::DropIndex {
        table: TableId(1),
        oid: Oid(77),
    })]);
    assert_eq!(
        env.rows("SELECT count(*) FROM sqlite_schema WHERE name LIKE '%index_1%'"),
        [[V::Int(0)]]
    );
}

#[test]
fn change_that_does_not_fit_is_refused_by_name() {
    for (change, told) in [
        (
            SchemaChange::DropTable { table: TableId(5) },
            "no such table",
        ),
        (
            SchemaChange::DropColumn {
                table: TableId(1),
                attnum: 1,
            },
            "still in the row key",
        ),
        (
            SchemaChange::DropColumn {
                table: TableId(1),
                attnum: 50,
            },
            "no column",
        ),
    ] {
        let mut env = env();
        let error = env.apply(&[schema(change)]).unwrap_err();
        assert!(
            matches!(&error, MirrorError::Schema { source, .. } if source.reason.contains(told)),
            "{error:?}"
        );
        assert_eq!(error.kind(), ErrorKind::Halt);
        assert_eq!(env.mirror.schema(), &two_tables());
    }
}

#[test]
fn rolled_back_change_leaves_rows_schema_and_statements_as_before() {
    let mut env = env();
    let position = env.mirror.position().unwrap();
    let drop_it = schema(SchemaChange::DropColumn {
        table: TableId(1),
        attnum: 3,
    });
    let parts = env
        .log
        .parts(&[drop_it, O::Delete(1, vec![V::Int(1)])], &[1]);
    env.mirror.apply(&parts[0], &mut NoBulk).unwrap();
    assert_eq!(env.mirror.schema().tables[0].columns.len(), 3);
    env.mirror.discard().unwrap();
    assert_eq!(env.mirror.schema(), &two_tables());
    env.log.writer = FrameWriter::new(position);
    env.run(&[O::Update(1, row(1, "after"))]);
    assert_eq!(env.rows("SELECT * FROM t WHERE id = 1"), [row(1, "after")]);
}

#[test]
fn change_in_a_transaction_that_fails_is_forgotten() {
    let mut env = env();
    let before = env.mirror.schema().clone();
    let drop_it = schema(SchemaChange::DropTable { table: TableId(1) });
    let absent = O::Delete(2, vec![V::Int(99), text("nobody")]);
    env.apply(&[drop_it, absent]).unwrap_err();
    assert_eq!(*env.mirror.schema(), before);
}

#[test]
fn truncate_empties_several_tables_at_once() {
    let mut env = env();
    env.run(&[O::Insert(2, vec![text("k"), V::Int(1), V::Null])]);
    env.run(&[O::Truncate(vec![1, 2]), O::Insert(1, row(1, "again"))]);
    assert_eq!(
        env.rows("SELECT (SELECT count(*) FROM t), (SELECT count(*) FROM pair)"),
        [[V::Int(1), V::Int(0)]]
    );
}
