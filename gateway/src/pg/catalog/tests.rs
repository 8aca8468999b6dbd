use super::samples::*;
use super::*;
use rindle_proto::schema::TableId;

fn refusal(relation: RelationFacts) -> String {
    view(vec![table(relation)])
        .schema()
        .expect_err("is unfit")
        .to_string()
}

#[test]
fn row_key_is_the_primary_key_else_the_first_fit_index() {
    let mut rel = relation(1);
    rel.indexes = vec![
        IndexFacts {
            not_null: false,
            ..index(10, &[2])
        },
        IndexFacts {
            immediate: false,
            ..index(11, &[1])
        },
        IndexFacts {
            plain: false,
            ..index(12, &[1])
        },
        IndexFacts {
            valid: false,
            ..index(13, &[1])
        },
        IndexFacts {
            unique: false,
            ..index(14, &[1])
        },
    ];
    assert_eq!(rel.row_key(), None);
    rel.indexes.push(index(15, &[2, 1]));
    rel.indexes.push(index(16, &[1]));
    assert_eq!(rel.row_key().map(|key| key.oid), Some(Oid(15)));
    rel.indexes.push(IndexFacts {
        immediate: false,
        ..primary(&[1])
    });
    assert_eq!(rel.row_key().map(|key| key.oid), Some(Oid(90)));
}

#[test]
fn schema_numbers_tables_and_places_keys_and_indexes() {
    let mut rel = relation(7);
    rel.columns.insert(0, column(5, "late", 1700));
    rel.indexes.push(IndexFacts {
        unique: false,
        not_null: false,
        ..index(95, &[2, 1])
    });
    rel.indexes.push(IndexFacts {
        method: "gin".to_owned(),
        ..index(96, &[2])
    });
    let schema = view(vec![table(relation(3)), table(rel)]).schema().unwrap();
    let second = &schema.tables[1];
    assert_eq!(
        (schema.tables[0].id, second.id, second.oid),
        (TableId(1), TableId(2), Oid(7))
    );
    assert_eq!(second.key, [1]);
    assert_eq!(second.indexes.len(), 1);
    assert_eq!(second.indexes[0].columns, [2, 1]);
    assert_eq!(second.columns[1].kind, Kind::Int);
}

#[test]
fn a11_generated_columns_are_mirrored_only_where_they_are_sent() {
    let mut rel = relation(1);
    rel.columns.push(ColumnFacts {
        generated: "s".to_owned(),
        ..column(3, "s", 23)
    });
    rel.columns.push(ColumnFacts {
        generated: "v".to_owned(),
        ..column(4, "w", 23)
    });
    let mut view = view(vec![table(rel)]);
    let names = |view: &CatalogView| {
        let schema = view.schema().unwrap();
        schema.tables[0]
            .columns
            .iter()
            .map(|it| it.name.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&view), ["id", "v"]);
    view.server.version_num = 180_002;
    assert_eq!(names(&view), ["id", "v", "s"]);
    view.tables[0].published.retain(|name| name != "s");
    assert_eq!(names(&view), ["id", "v"]);
}

#[test]
fn what_cannot_be_mirrored_is_refused_by_name() {
    let keyless = RelationFacts {
        indexes: vec![],
        ..relation(1)
    };
    assert!(refusal(keyless).starts_with("table public.t1: it has no row key"));
    let nothing = RelationFacts {
        replident: 'n',
        ..relation(1)
    };
    assert!(refusal(nothing).contains("its replica identity does not hold column \"id\""));
    let unlogged = RelationFacts {
        persistence: 'u',
        ..relation(1)
    };
    assert!(refusal(unlogged).contains("unlogged"));
    let filter = Some("(id > 1)".to_owned());
    let filtered = RelationFacts {
        row_filter: filter.clone(),
        ..relation(1)
    };
    assert!(refusal(filtered).contains("column \"v\" can be stored out of line"));
    let full = RelationFacts {
        row_filter: filter,
        replident: 'f',
        ..relation(1)
    };
    assert!(view(vec![table(full)]).schema().is_ok());
    let mut listed = table(relation(1));
    listed.published = vec!["v".to_owned()];
    let error = view(vec![listed]).schema().unwrap_err().to_string();
    assert!(error.contains("leaves out a column of its row key"));
    let reserved = RelationFacts {
        name: "_rindle_x".to_owned(),
        ..relation(1)
    };
    assert!(refusal(reserved).contains("reserved"));
}

#[test]
fn c3_identity_of_every_leaf_counts() {
    let mut root = table(RelationFacts {
        kind: 'p',
        ..relation(1)
    });
    root.leaves = vec![
        relation(2),
        RelationFacts {
            replident: 'n',
            ..relation(3)
        },
    ];
    let error = view(vec![root.clone()]).schema().unwrap_err().to_string();
    assert!(
        error.starts_with("table public.t3: its replica identity"),
        "{error}"
    );
    root.leaves.truncate(1);
    let view = view(vec![root]);
    assert_eq!(view.leaf_pairs(), [(Oid(2), Oid(1))]);
    let plan = view.copy_plan(&view.schema().unwrap());
    assert_eq!(plan.len(), 1);
    assert_eq!(
        (plan[0].rel, &*plan[0].quoted_name, plan[0].pages),
        (Oid(2), "\"public\".\"t2\"", 3)
    );
}

#[test]
fn a5_changed_types_and_leaves_void_a_copy() {
    let mut root = table(RelationFacts {
        kind: 'p',
        ..relation(1)
    });
    root.leaves = vec![relation(2)];
    let mut then = view(vec![root]);
    then.types
        .insert("7 public.mood".to_owned(), "[\"sad\"]".to_owned());
    let mut now = then.clone();
    assert_eq!(then.copy_facts_differ(&now), None);
    now.types
        .insert("7 public.mood".to_owned(), "[\"glad\"]".to_owned());
    assert_eq!(
        then.copy_facts_differ(&now),
        Some("type 7 public.mood".to_owned())
    );
    let mut now = then.clone();
    now.tables[0].leaves.push(relation(3));
    assert!(then.copy_facts_differ(&now).unwrap().contains("partitions"));
}
