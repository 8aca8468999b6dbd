use super::*;
use rindle_proto::schema::TableId;

fn column(attnum: i16, name: &str, type_oid: u32) -> ColumnFacts {
    ColumnFacts {
        attnum,
        name: name.to_owned(),
        type_oid: Oid(type_oid),
        type_name: format!("type{type_oid}"),
        typmod: -1,
        not_null: false,
        generated: String::new(),
        toastable: type_oid == 25,
        typtype: 'b',
        element: None,
    }
}

fn index(oid: u32, columns: &[i16]) -> IndexFacts {
    IndexFacts {
        oid: Oid(oid),
        name: format!("index{oid}"),
        method: "btree".to_owned(),
        columns: columns.to_vec(),
        not_null: true,
        unique: true,
        primary: false,
        immediate: true,
        plain: true,
        valid: true,
        identity: false,
    }
}

fn primary(columns: &[i16]) -> IndexFacts {
    IndexFacts {
        primary: true,
        ..index(90, columns)
    }
}

/// A table (id int, v text) with a primary key.
fn relation(oid: u32) -> RelationFacts {
    RelationFacts {
        oid: Oid(oid),
        schema: "public".to_owned(),
        name: format!("t{oid}"),
        kind: 'r',
        persistence: 'p',
        replident: 'd',
        owner: "o".to_owned(),
        row_security: false,
        force_row_security: false,
        filenode: oid,
        pages: 3,
        columns: vec![column(1, "id", 23), column(2, "v", 25)],
        indexes: vec![primary(&[1])],
        row_filter: None,
    }
}

fn table(relation: RelationFacts) -> TableFacts {
    let published = relation
        .columns
        .iter()
        .map(|column| column.name.clone())
        .collect();
    TableFacts {
        relation,
        leaves: Vec::new(),
        published,
    }
}

fn view(tables: Vec<TableFacts>) -> CatalogView {
    let server = ServerFacts {
        version_num: 170_006,
        encoding: "UTF8".to_owned(),
        database_oid: Oid(5),
        in_recovery: false,
    };
    let publication = PublicationFacts {
        oid: Oid(9),
        name: "p".to_owned(),
        all_tables: false,
        insert: true,
        update: true,
        delete: true,
        truncate: true,
        via_root: false,
        generated_columns: None,
    };
    CatalogView {
        server,
        publication,
        tables,
        types: BTreeMap::new(),
    }
}

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
fn generated_columns_are_mirrored_only_where_they_are_sent() {
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
fn identity_of_every_leaf_counts() {
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
fn differences_to_what_is_believed_are_named() {
    let view_now = view(vec![table(relation(1))]);
    let believed = view_now.schema().unwrap();
    assert_eq!(view_now.difference(&believed), None);
    let with = |change: &dyn Fn(&mut RelationFacts)| {
        let mut rel = relation(1);
        change(&mut rel);
        view(vec![table(rel)])
            .difference(&believed)
            .map_or("none".to_owned(), |(_, detail)| detail)
    };
    assert_eq!(with(&|rel| rel.columns[1].not_null = true), "none");
    assert_eq!(
        with(&|rel| rel.name = "u".to_owned()),
        "it is called public.u now"
    );
    assert_eq!(
        with(&|rel| rel.columns[1].name = "w".to_owned()),
        "column \"v\" is called \"w\" now"
    );
    assert_eq!(
        with(&|rel| rel.columns[1] = column(2, "v", 1043)),
        "column \"v\" was type25 and is type1043 now"
    );
    assert_eq!(with(&|rel| drop(rel.columns.pop())), "column \"v\" is gone");
    assert_eq!(
        with(&|rel| rel.columns.push(column(3, "n", 23))),
        "column \"n\" is new"
    );
    let gone = view(vec![]).difference(&believed);
    assert_eq!(
        gone,
        Some((
            "public.t1".to_owned(),
            "it is no longer published".to_owned()
        ))
    );
    let keyless = RelationFacts {
        indexes: vec![],
        ..relation(2)
    };
    assert_eq!(
        view(vec![table(relation(1)), table(keyless)]).difference(&believed),
        None
    );
    let more = view(vec![table(relation(1)), table(relation(2))]).difference(&believed);
    assert_eq!(more.unwrap().0, "public.t2");
}

#[test]
fn changed_types_and_leaves_void_a_copy() {
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
