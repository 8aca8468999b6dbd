//! Tables that come and go, lists, keys, indexes, types and partitions.

use super::*;

#[test]
fn tables_come_and_go_with_the_publication() {
    let believed = one();
    let with = |tables: &[u32]| PublicationFacts {
        tables: tables.iter().map(|oid| member(Oid(*oid))).collect(),
        ..believed.facts.publication.clone()
    };
    let added = Patch {
        publications: Some(vec![with(&[T, T + 1])]),
        ..patch(vec![relation(T + 1)])
    };
    let learned = Scene::default().learn(&believed, &added).unwrap();
    assert_eq!(
        words(&learned.changes),
        ["create #2 t20001 (2 columns) waiting"]
    );
    let removed = Patch {
        publications: Some(vec![with(&[T + 1])]),
        ..patch(vec![])
    };
    let learned = Scene::default().learn(&learned.believed, &removed).unwrap();
    assert_eq!(words(&learned.changes), ["drop #1"]);
    assert!(learned.believed.was_mirrored(Oid(T)));
    let again = Patch {
        publications: Some(vec![with(&[T, T + 1])]),
        ..patch(vec![relation(T)])
    };
    let learned = Scene::default().learn(&learned.believed, &again).unwrap();
    assert_eq!(
        words(&learned.changes),
        ["create #3 t20000 (2 columns) waiting"],
        "ids are never used twice"
    );
    let gone = Patch {
        publications: Some(vec![]),
        ..patch(vec![])
    };
    assert_eq!(
        Scene::default().learn(&believed, &gone).unwrap_err().name(),
        "SchemaRefused"
    );
    let dropped = Patch {
        dropped: vec![Oid(T)],
        ..patch(vec![])
    };
    check(&dropped, &["drop #1"]);
}

#[test]
fn b4_lists_and_filters_copy_the_table_to_its_new_shape() {
    let believed = one();
    let list = |columns: Option<Vec<i16>>, filter: Option<&str>| {
        let table = crate::pg::catalog::Member {
            columns,
            filter: filter.map(str::to_owned),
            ..member(Oid(T))
        };
        let publication = PublicationFacts {
            tables: vec![table],
            ..believed.facts.publication.clone()
        };
        Patch {
            publications: Some(vec![publication]),
            ..patch(vec![])
        }
    };
    let narrow = check(
        &list(Some(vec![1]), None),
        &["create #2 t20000 (1 columns) waiting for #1"],
    );
    let learned = Scene::default().learn(&narrow, &list(None, None)).unwrap();
    assert_eq!(
        words(&learned.changes),
        ["drop #2", "create #3 t20000 (2 columns) waiting for #1"]
    );
}

/// B9, H4: a table that is made while everything is published has all its rows in the stream, unless they came first.
#[test]
fn h4_a_table_made_empty_is_shown_at_once() {
    let mut base = facts(vec![relation(T)]);
    base.publication.all_tables = true;
    let believed = Believed::first(first(base)).unwrap();
    let made = Patch {
        created: vec![Oid(T + 1)],
        ..patch(vec![relation(T + 1)])
    };
    let learned = Scene::default().learn(&believed, &made).unwrap();
    assert_eq!(
        words(&learned.changes),
        ["create #2 t20001 (2 columns) shown"]
    );
    let rows_first = Scene {
        strangers: BTreeSet::from([Oid(T + 1)]),
        ..Scene::default()
    };
    let learned = rows_first.learn(&believed, &made).unwrap();
    assert_eq!(
        words(&learned.changes),
        ["create #2 t20001 (2 columns) waiting"]
    );
    let keyless = RelationFacts {
        indexes: vec![],
        ..relation(T + 1)
    };
    let learned = Scene::default()
        .learn(
            &believed,
            &Patch {
                created: vec![Oid(T + 1)],
                ..patch(vec![keyless])
            },
        )
        .unwrap();
    assert_eq!(words(&learned.changes), Vec::<String>::new());
    assert_eq!(learned.believed.unmirrored().len(), 1);
    let keyed = Scene::default()
        .learn(&learned.believed, &patch(vec![relation(T + 1)]))
        .unwrap();
    assert_eq!(
        words(&keyed.changes),
        ["create #2 t20001 (2 columns) waiting"]
    );
}

#[test]
fn what_no_mirror_follows_is_refused_by_name() {
    let refused = |change: &dyn Fn(&mut RelationFacts)| {
        let error = Scene::default()
            .learn(&one(), &changed(change))
            .unwrap_err();
        assert_eq!(error.name(), "SchemaRefused");
        error.to_string()
    };
    assert!(refused(&|rel| rel.indexes.clear()).contains("no row key"));
    assert!(refused(&|rel| rel.indexes[0].columns = vec![2]).contains("row key is another"));
    assert!(refused(&|rel| rel.replident = 'n').contains("replica identity"));
    assert!(refused(&|rel| rel.columns[1].name = "ID".to_owned()).contains("folds case"));
    // H5: an identity that still covers the key changes nothing.
    check(&changed(|rel| rel.replident = 'f'), &[]);
}

#[test]
fn indexes_are_carried_by_what_they_are_not_by_name() {
    let plain = |oid: u32| IndexFacts {
        unique: false,
        not_null: false,
        ..index(oid, &[2])
    };
    let believed = check(
        &changed(|rel| rel.indexes.push(plain(30_000))),
        &["index #1 [1]"],
    );
    let renamed = changed(|rel| {
        rel.indexes.push(IndexFacts {
            name: "other".to_owned(),
            ..plain(30_000)
        })
    });
    let learned = Scene::default().learn(&believed, &renamed).unwrap();
    assert_eq!(words(&learned.changes), Vec::<String>::new());
    let dropped = Patch {
        dropped: vec![Oid(30_000)],
        ..patch(vec![])
    };
    let learned = Scene::default().learn(&believed, &dropped).unwrap();
    assert_eq!(words(&learned.changes), ["drop index #1 30000"]);
    let column_too = changed(|rel| drop(rel.columns.pop()));
    let learned = Scene::default().learn(&believed, &column_too).unwrap();
    assert_eq!(
        words(&learned.changes),
        ["drop index #1 30000", "drop #1 column 2"]
    );
}

/// H1: text of transactions that were open meanwhile depends on the walsender's cache.
#[test]
fn h1_types_that_print_otherwise_copy_the_tables_that_use_them() {
    let shape = |labels: &str| TypeShape {
        name: "public.mood".to_owned(),
        typtype: 'e',
        parts: vec![],
        shape: serde_json::from_str(labels).unwrap(),
    };
    let with = |labels: &str| {
        let mut rel = relation(T);
        rel.columns.push(ColumnFacts {
            typtype: 'e',
            ..column(3, "mood", 40_000)
        });
        let mut facts: Facts = facts(vec![rel]);
        facts.types.insert(Oid(40_000), shape(labels));
        facts
    };
    let believed = Believed::first(first(with(r#"["sad"]"#))).unwrap();
    let says = |labels: &str| {
        let types = vec![(
            Oid(40_000),
            "public.mood".to_owned(),
            'e',
            [None; 3],
            serde_json::from_str(labels).unwrap(),
        )];
        let learned = Scene::default()
            .learn(
                &believed,
                &Patch {
                    v: 1,
                    types,
                    ..Patch::default()
                },
            )
            .unwrap();
        words(&learned.changes)
    };
    assert_eq!(says(r#"["sad","glad"]"#), Vec::<String>::new());
    assert_eq!(
        says(r#"["blue"]"#),
        ["create #2 t20000 (3 columns) waiting for #1"]
    );
}

fn root() -> RelationFacts {
    RelationFacts {
        kind: 'p',
        ..relation(T)
    }
}

fn leaf(n: u32) -> RelationFacts {
    RelationFacts {
        parent: Some(Oid(T)),
        ..relation(T + n)
    }
}

#[test]
fn c2_leaves_come_and_go_by_themselves() {
    let believed = tree();
    let attached = patch(vec![root(), leaf(1), leaf(2), leaf(3)]);
    let learned = Scene::default().learn(&believed, &attached).unwrap();
    assert_eq!(words(&learned.changes), ["leaf #4 of #1 is 20003, waiting"]);
    let made = Patch {
        created: vec![Oid(T + 3)],
        ..attached
    };
    let learned = Scene::default().learn(&believed, &made).unwrap();
    assert_eq!(words(&learned.changes), ["leaf #4 of #1 is 20003"]);
    let detached = patch(vec![root(), leaf(2)]);
    let learned = Scene::default().learn(&believed, &detached).unwrap();
    assert_eq!(words(&learned.changes), ["drop leaf #2 of #1"]);
    let dropped = Patch {
        dropped: vec![Oid(T + 2)],
        ..patch(vec![])
    };
    let learned = Scene::default().learn(&believed, &dropped).unwrap();
    assert_eq!(words(&learned.changes), ["drop leaf #3 of #1"]);
}

#[test]
fn c2_a_leaf_that_is_attached_waits_alone() {
    let attached = patch(vec![root(), leaf(1), leaf(2), leaf(3)]);
    let waiting = Scene::default().learn(&tree(), &attached).unwrap().believed;
    assert_eq!(waiting.waiting(), [TableId(4)]);
    let shown = waiting.copied(&copied(&waiting, 4, 101)).unwrap();
    assert!(shown.waiting().is_empty());
    assert!(
        shown.schema.tables[0]
            .leaves
            .iter()
            .all(|leaf| !leaf.waiting)
    );
}

#[test]
fn c3_a_leaf_that_comes_without_the_key_in_its_identity_is_refused_by_name() {
    let comes = |change: &dyn Fn(&mut RelationFacts), created: Vec<Oid>| {
        let mut third = leaf(3);
        change(&mut third);
        let with = Patch {
            created,
            ..patch(vec![root(), leaf(1), leaf(2), third])
        };
        Scene::default().learn(&tree(), &with)
    };
    for created in [vec![], vec![Oid(T + 3)]] {
        assert!(comes(&|_| {}, created.clone()).is_ok());
        assert!(comes(&|leaf| leaf.replident = 'f', created.clone()).is_ok());
        for change in [
            &(|leaf: &mut RelationFacts| leaf.replident = 'n') as &dyn Fn(&mut RelationFacts),
            &|leaf| leaf.replident = 'i',
            // C4: its rows would be in a copy and never in the stream.
            &|leaf| leaf.persistence = 'u',
        ] {
            let error = comes(change, created.clone()).unwrap_err();
            assert_eq!(error.name(), "SchemaRefused");
            assert!(error.to_string().contains("t20003"), "{error}");
        }
    }
}

/// Values of a domain are text in the mirror whatever the base type; Postgres rewrites nothing.
#[test]
fn h7_a_column_that_becomes_a_domain_or_ceases_to_be_one_is_copied() {
    let domain = |typtype: char, type_oid: u32| {
        let mut rel = relation(T);
        rel.columns.push(ColumnFacts {
            typtype,
            ..column(3, "n", type_oid)
        });
        rel
    };
    let (base, small) = (domain('b', 23), domain('d', 40_000));
    for (before, after) in [(&base, &small), (&small, &base)] {
        let believed = Believed::first(first(facts(vec![before.clone()]))).unwrap();
        let learned = Scene::default().learn(&believed, &patch(vec![after.clone()]));
        assert_eq!(
            words(&learned.unwrap().changes),
            ["create #2 t20000 (3 columns) waiting for #1"]
        );
    }
}

/// T + 1 was published as `public.late` and waits; somebody renamed it, made another one of that name, and nobody told.
#[test]
fn b3_a_young_table_makes_way_for_one_that_has_its_name() {
    let late = |oid: u32| RelationFacts {
        name: "late".to_owned(),
        ..relation(oid)
    };
    let publication = PublicationFacts {
        tables: [T, T + 1, T + 2].map(|oid| member(Oid(oid))).to_vec(),
        ..one().facts.publication
    };
    let announced = |rel: RelationFacts| Patch {
        publications: Some(vec![publication.clone()]),
        ..patch(vec![rel])
    };
    let believed = Scene::default()
        .learn(&one(), &announced(late(T + 1)))
        .unwrap()
        .believed;
    assert!(believed.is_young(Oid(T + 1)) && !believed.is_young(Oid(T)));
    let mut said = announced(late(T + 2));
    believed.make_way(&mut said);
    assert_eq!(said.dropped, [Oid(T + 1)]);
    let next = Scene::default().learn(&believed, &said).unwrap().believed;
    assert!(next.was_mirrored(Oid(T + 1)) && next.is_young(Oid(T + 2)));
    // What was shown, and what is named itself, does not go.
    let taken = RelationFacts {
        name: relation(T).name,
        ..relation(T + 2)
    };
    let mut said = announced(taken);
    believed.make_way(&mut said);
    assert_eq!(said.dropped, []);
    let mut said = announced(late(T + 2));
    said.relations.push(relation(T + 1));
    believed.make_way(&mut said);
    assert_eq!(said.dropped, []);
}
