//! From facts before and after to what followers do.

mod tables;

use std::collections::{BTreeMap, BTreeSet};

use rindle_proto::body::{Attempt, Copied, CopyTarget};
use rindle_proto::change::{SchemaChange, StoredValue};
use rindle_proto::ids::{Epoch, FinalLsn, Lsn, Oid};
use rindle_proto::op::{Op, Ops, put_facts, put_schema};
use rindle_proto::schema::{Table, TableId};

use super::believed::{Around, Believed, Learned, Noted};
use crate::halt::HaltReason;
use crate::pg::catalog::facts::TypeShape;
use crate::pg::catalog::samples::{column, facts, first, index, member, relation};
use crate::pg::catalog::{ColumnFacts, Facts, IndexFacts, Patch, PublicationFacts, RelationFacts};

const T: u32 = 20_000;

fn one() -> Believed {
    Believed::first(first(facts(vec![relation(T)]))).unwrap()
}

/// A partitioned table with leaves T + 1 and T + 2.
fn tree() -> Believed {
    let root = RelationFacts {
        kind: 'p',
        ..relation(T)
    };
    let leaf = |n: u32| RelationFacts {
        parent: Some(Oid(T)),
        ..relation(T + n)
    };
    Believed::first(first(facts(vec![root, leaf(1), leaf(2)]))).unwrap()
}

/// What happens around a message.
#[derive(Default)]
struct Scene {
    strangers: BTreeSet<Oid>,
    rewritten: BTreeMap<Oid, i32>,
    unsure: BTreeSet<Oid>,
}

impl Scene {
    fn rewrites(reason: i32) -> Self {
        Self {
            rewritten: BTreeMap::from([(Oid(T), reason)]),
            ..Self::default()
        }
    }

    fn learn(&self, believed: &Believed, patch: &Patch) -> Result<Learned, HaltReason> {
        let around = Around {
            final_lsn: FinalLsn(Lsn(100)),
            strangers: &self.strangers,
            rewritten: &self.rewritten,
            unsure: &self.unsure,
        };
        let learned = believed.learn(patch, around)?;
        // A later session, which reads the log, believes the same.
        let mut bytes = Vec::new();
        put_facts(
            &mut bytes,
            &serde_json::to_vec(&Noted::Patch(Box::new(patch.clone()))).unwrap(),
        );
        learned
            .changes
            .iter()
            .for_each(|change| put_schema(&mut bytes, change).unwrap());
        let mut again = believed.clone();
        for op in Ops::new(&bytes) {
            again.again(op.unwrap(), around.final_lsn).unwrap();
        }
        assert_eq!(again, learned.believed);
        // By way of a value, as records of the archive are read.
        let kept = serde_json::to_value(&again).unwrap();
        let kept: Believed = serde_json::from_value(kept).unwrap();
        assert_eq!(kept, again, "a checkpoint says the same");
        Ok(learned)
    }
}

fn patch(relations: Vec<RelationFacts>) -> Patch {
    Patch {
        v: 1,
        relations,
        ..Patch::default()
    }
}

fn changed(change: impl FnOnce(&mut RelationFacts)) -> Patch {
    let mut rel = relation(T);
    change(&mut rel);
    patch(vec![rel])
}

fn state(table: &Table) -> String {
    match table.waiting {
        None => "shown".to_owned(),
        Some(waiting) => {
            let replaces = waiting
                .replaces
                .map_or_else(String::new, |id| format!(" for #{}", id.0));
            format!(
                "waiting{replaces}{}",
                if waiting.live { ", live" } else { "" }
            )
        }
    }
}

fn words(changes: &[SchemaChange]) -> Vec<String> {
    let column = |attnum: &i16| format!("column {attnum}");
    let one = |change: &SchemaChange| match change {
        SchemaChange::CreateTable { table } => {
            let state = state(table);
            format!(
                "create #{} {} ({} columns) {state}",
                table.id.0,
                table.mirror_name(),
                table.columns.len()
            )
        }
        SchemaChange::DropTable { table } => format!("drop #{}", table.0),
        SchemaChange::RenameTable {
            table,
            schema,
            name,
        } => format!("rename #{} to {schema}.{name}", table.0),
        SchemaChange::AddColumn {
            table,
            column,
            value,
        } => format!("add #{} {} = {value:?}", table.0, column.name),
        SchemaChange::DropColumn { table, attnum } => {
            format!("drop #{} {}", table.0, column(attnum))
        }
        SchemaChange::RenameColumn {
            table,
            attnum,
            name,
        } => format!("rename #{} {} to {name}", table.0, column(attnum)),
        SchemaChange::AlterColumn {
            table,
            attnum,
            type_oid,
            not_null,
            ..
        } => {
            format!(
                "alter #{} {} to {}{}",
                table.0,
                column(attnum),
                type_oid.0,
                if *not_null { " not null" } else { "" }
            )
        }
        SchemaChange::CreateLeaf { table, leaf } => {
            format!(
                "leaf #{} of #{} is {}{}",
                leaf.id.0,
                table.0,
                leaf.oid.0,
                if leaf.waiting { ", waiting" } else { "" }
            )
        }
        SchemaChange::DropLeaf { table, leaf } => format!("drop leaf #{} of #{}", leaf.0, table.0),
        SchemaChange::CreateIndex { table, index } => {
            format!("index #{} {:?}", table.0, index.columns)
        }
        SchemaChange::DropIndex { table, oid } => format!("drop index #{} {}", table.0, oid.0),
    };
    changes.iter().map(one).collect()
}

fn check(patch: &Patch, expected: &[&str]) -> Believed {
    let learned = Scene::default().learn(&one(), patch).unwrap();
    assert_eq!(words(&learned.changes), expected);
    learned.believed
}

fn new_column(attnum: i16, name: &str, missing: Option<&str>) -> ColumnFacts {
    ColumnFacts {
        missing: missing.map(str::to_owned),
        ..column(attnum, name, 25)
    }
}

#[test]
fn renames_drops_and_types_are_made_in_place() {
    check(
        &changed(|rel| rel.name = "u".to_owned()),
        &["rename #1 to public.u"],
    );
    check(
        &changed(|rel| rel.schema = "s".to_owned()),
        &["rename #1 to s.t20000"],
    );
    check(
        &changed(|rel| rel.columns[1].name = "w".to_owned()),
        &["rename #1 column 2 to w"],
    );
    check(
        &changed(|rel| drop(rel.columns.pop())),
        &["drop #1 column 2"],
    );
    check(
        &changed(|rel| rel.columns[1].type_oid = Oid(1043)),
        &["alter #1 column 2 to 1043"],
    );
    check(
        &changed(|rel| rel.columns[1].not_null = true),
        &["alter #1 column 2 to 25 not null"],
    );
    check(&changed(|rel| rel.columns.swap(0, 1)), &[]);
}

#[test]
fn columns_that_trade_names_go_through_free_ones() {
    let swapped = changed(|rel| {
        rel.columns.push(column(3, "w", 25));
    });
    let believed = check(&swapped, &["add #1 w = Null"]);
    let traded = changed(|rel| {
        rel.columns[1].name = "w".to_owned();
        rel.columns.push(column(3, "v", 25));
    });
    let learned = Scene::default().learn(&believed, &traded).unwrap();
    let expected = [
        "rename #1 column 2 to _rindle_renaming_2",
        "rename #1 column 3 to _rindle_renaming_3",
        "rename #1 column 2 to w",
        "rename #1 column 3 to v",
    ];
    assert_eq!(words(&learned.changes), expected);
}

#[test]
fn a_new_column_has_the_value_that_postgres_keeps() {
    let added = changed(|rel| rel.columns.push(new_column(3, "n", Some("5.00"))));
    check(&added, &["add #1 n = Text(\"5.00\")"]);
    let added = changed(|rel| rel.columns.push(new_column(3, "n", None)));
    check(&added, &["add #1 n = Null"]);
    let number = ColumnFacts {
        missing: Some("7".to_owned()),
        ..column(3, "n", 23)
    };
    check(
        &changed(|rel| rel.columns.push(number)),
        &["add #1 n = Int(7)"],
    );
}

/// B2: the catalog does not show what a rewrite did.
#[test]
fn b2_a_rewrite_copies_the_table_whatever_the_catalog_shows() {
    let learned = Scene::rewrites(4).learn(&one(), &changed(|_| {})).unwrap();
    assert_eq!(
        words(&learned.changes),
        ["create #2 t20000 (2 columns) waiting for #1"]
    );
    // A column that was only filled leaves the others as they were.
    let added = changed(|rel| rel.columns.push(new_column(3, "n", None)));
    let learned = Scene::rewrites(2).learn(&one(), &added).unwrap();
    assert_eq!(
        words(&learned.changes),
        ["create #2 t20000 (3 columns) waiting for #1, live"]
    );
    let learned = Scene::rewrites(6).learn(&one(), &added).unwrap();
    assert_eq!(
        words(&learned.changes),
        ["create #2 t20000 (3 columns) waiting for #1"]
    );
    // Another storage holds the same rows.
    let learned = Scene::rewrites(8).learn(&one(), &changed(|_| {})).unwrap();
    assert_eq!(words(&learned.changes), Vec::<String>::new());
}

#[test]
fn a_hook_alone_shows_a_rewrite_by_the_tables_file() {
    let rewritten = changed(|rel| {
        rel.filenode += 1;
        rel.columns.push(new_column(9, "made", None));
    });
    check(&rewritten, &["add #1 made = Null"]);
    let by_hand = Patch {
        full: true,
        tag: Some("SCHEMA HOOK".to_owned()),
        ..rewritten
    };
    check(&by_hand, &["create #2 t20000 (3 columns) waiting for #1"]);
}

#[test]
fn c1_another_file_of_a_partition_that_is_sent_as_its_root_copies_the_root() {
    let tree = |via_root: bool, file: u32| {
        let mut root = relation(T);
        root.kind = 'p';
        let mut leaf = relation(T + 1);
        (leaf.name, leaf.parent) = ("leaf".to_owned(), Some(Oid(T)));
        leaf.filenode = file;
        let mut facts = facts(vec![root, leaf]);
        facts.publication.via_root = via_root;
        facts
    };
    for (via_root, expected) in [
        (true, vec!["create #2 t20000 (2 columns) waiting for #1"]),
        (false, vec![]),
    ] {
        let believed = Believed::first(first(tree(via_root, 7))).unwrap();
        let told = Patch {
            v: 1,
            relations: tree(via_root, 8).relations.into_values().collect(),
            ..Patch::default()
        };
        let learned = Scene::default().learn(&believed, &told).unwrap();
        assert_eq!(words(&learned.changes), expected);
        let refiled = |file, all| believed.facts.refiled(&tree(via_root, file), all).len();
        assert_eq!(refiled(8, false), usize::from(via_root));
        assert_eq!((refiled(8, true), refiled(7, true)), (1, 0));
    }
}

#[test]
fn b2_another_type_without_a_rewrite_may_print_otherwise() {
    check(
        &changed(|rel| rel.columns[1].type_oid = Oid(1184)),
        &["create #2 t20000 (2 columns) waiting for #1"],
    );
}

#[test]
fn later_changes_reach_both_the_live_table_and_the_waiting_one() {
    let added = changed(|rel| rel.columns.push(new_column(3, "n", None)));
    let live = Scene::rewrites(2).learn(&one(), &added).unwrap().believed;
    let more = changed(|rel| {
        rel.columns.push(new_column(3, "n", None));
        rel.columns.push(new_column(4, "m", Some("x")));
        rel.name = "u".to_owned();
    });
    let learned = Scene::default().learn(&live, &more).unwrap();
    let expected = [
        "rename #1 to public.u",
        "rename #2 to public.u",
        "add #1 m = Text(\"x\")",
        "add #2 m = Text(\"x\")",
    ];
    assert_eq!(words(&learned.changes), expected);
    // What is hidden stays hidden, and a further rewrite of values freezes what is shown.
    assert_eq!(
        learned
            .believed
            .schema
            .table(TableId(1))
            .unwrap()
            .columns
            .len(),
        3
    );
    let learned = Scene::rewrites(4).learn(&learned.believed, &more).unwrap();
    assert_eq!(
        words(&learned.changes),
        ["drop #2", "create #3 u (4 columns) waiting for #1"]
    );
    let frozen = learned.believed;
    let dropped = changed(|rel| rel.name = "w".to_owned());
    let learned = Scene::default().learn(&frozen, &dropped).unwrap();
    let expected = [
        "drop #3 column 3",
        "drop #3 column 4",
        "rename #1 to public.w",
        "rename #3 to public.w",
    ];
    assert_eq!(words(&learned.changes), expected);
}

fn copied(believed: &Believed, target: u32, snapshot: u64) -> Copied {
    let (table, _) = believed.schema.owner(TableId(target)).unwrap();
    let shape = Table {
        waiting: None,
        ..table.clone()
    };
    Copied {
        attempt: Attempt {
            epoch: Epoch(1),
            number: 1,
        },
        snapshot: Lsn(snapshot),
        targets: vec![CopyTarget {
            target: TableId(target),
            shape,
        }],
        parts: vec![],
    }
}

#[test]
fn a_partition_that_waits_comes_with_what_replaces_its_table() {
    let tree = tree();
    let mut all: Vec<RelationFacts> = tree.facts.relations.values().cloned().collect();
    all.push(RelationFacts {
        parent: Some(Oid(T)),
        ..relation(T + 3)
    });
    let attached = Scene::default().learn(&tree, &patch(all.clone())).unwrap();
    let attached = attached.believed;
    assert_eq!(attached.waiting(), [TableId(4)]);
    let replaced = Scene::rewrites(4).learn(&attached, &patch(all)).unwrap();
    let replaced = replaced.believed;
    assert_eq!(
        replaced.waiting(),
        [TableId(5)],
        "not its partition by itself"
    );
    let shown = replaced.copied(&copied(&replaced, 5, 101)).unwrap();
    assert!(shown.waits.is_empty(), "{:?}", shown.waits);
}

#[test]
fn a1_a_copy_is_revealed_when_what_came_since_makes_it_what_is_believed() {
    let waiting = Scene::rewrites(4)
        .learn(&one(), &changed(|_| {}))
        .unwrap()
        .believed;
    let whole = copied(&waiting, 2, 100);
    let shown = waiting.copied(&whole).unwrap();
    let ids: Vec<_> = shown
        .schema
        .tables
        .iter()
        .map(|table| (table.id.0, table.waiting))
        .collect();
    assert_eq!(ids, [(2, None)]);
    assert_eq!(
        shown.copied(&whole),
        None,
        "a second end of it finds nothing waiting"
    );
    // A column that came at 100 is not in a copy whose snapshot is 100, and is in one at 101.
    let added = changed(|rel| rel.columns.push(new_column(3, "n", Some("x"))));
    let later = Scene::default().learn(&waiting, &added).unwrap().believed;
    assert!(later.copied(&whole).is_some());
    assert_eq!(later.copied(&copied(&waiting, 2, 101)), None);
    assert!(later.copied(&copied(&later, 2, 101)).is_some());
}

/// Nothing tells of an index's new name, and nothing needs it.
#[test]
fn a_copy_fits_though_an_index_was_renamed_since_its_table_waits() {
    let plain = |name: &str| {
        changed(|rel| {
            rel.indexes.push(IndexFacts {
                name: name.to_owned(),
                unique: false,
                not_null: false,
                ..index(30_000, &[2])
            });
        })
    };
    let waiting = Scene::rewrites(4).learn(&one(), &plain("before")).unwrap();
    let waiting = waiting.believed;
    let mut whole = copied(&waiting, 2, 101);
    whole.targets[0].shape.indexes[0].name = "after".to_owned();
    let renamed = Scene::default().learn(&waiting, &plain("after")).unwrap();
    assert!(renamed.believed.copied(&whole).is_some());
    whole.targets[0].shape.indexes.clear();
    assert!(renamed.believed.copied(&whole).is_none());
}

#[test]
fn a1_a_copy_that_lacks_rows_that_were_passed_over_is_void() {
    let mut waiting = Scene::rewrites(4)
        .learn(&one(), &changed(|_| {}))
        .unwrap()
        .believed;
    assert!(waiting.pass_over(TableId(2), FinalLsn(Lsn(200))));
    assert!(
        !waiting.pass_over(TableId(2), FinalLsn(Lsn(200))),
        "said once a transaction"
    );
    assert_eq!(waiting.copied(&copied(&waiting, 2, 200)), None);
    assert!(waiting.copied(&copied(&waiting, 2, 201)).is_some());
}

#[test]
fn b7_what_nothing_announced_is_found() {
    let believed = one();
    let with = |change: &dyn Fn(&mut RelationFacts)| {
        let mut rel = relation(T);
        change(&mut rel);
        let found = believed.differences(&facts(vec![rel])).into_iter().next();
        found.map_or_else(|| "none".to_owned(), |found| found.detail)
    };
    assert_eq!(with(&|_| {}), "none");
    assert_eq!(with(&|rel| rel.columns[1].not_null = true), "none");
    assert_eq!(with(&|rel| rel.pages = 99), "none");
    assert!(with(&|rel| rel.name = "u".to_owned()).contains("called public.u"));
    assert!(with(&|rel| rel.columns.push(new_column(3, "n", None))).contains("\"n\" is new"));
    assert!(with(&|rel| rel.indexes.clear()).contains("no row key"));
    let keyless = RelationFacts {
        indexes: vec![],
        ..relation(T + 1)
    };
    assert_eq!(believed.differences(&facts(vec![relation(T), keyless])), []);
    assert_eq!(believed.differences(&facts(vec![])).len(), 1);
}

#[test]
fn stored_values_keep_every_float() {
    let real = ColumnFacts {
        missing: Some("0.1".to_owned()),
        ..column(3, "n", 701)
    };
    let learned = Scene::default()
        .learn(&one(), &changed(|rel| rel.columns.push(real)))
        .unwrap();
    let [SchemaChange::AddColumn { value, .. }] = &learned.changes[..] else {
        panic!("{:?}", learned.changes)
    };
    assert_eq!(*value, StoredValue::RealBits(0.1f64.to_bits()));
    let _: Option<Op<'_>> = None;
}
