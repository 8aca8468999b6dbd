mod server;

use std::collections::BTreeMap;

use rindle_proto::ids::Oid;

use super::facts::{FailoverFacts, Fingerprints, RelationRights, SessionFacts, SourceFacts};
use super::*;
use crate::lifecycle::Refusal;
use crate::pg::catalog::samples::{self, table};
use crate::pg::catalog::{
    CatalogView, ColumnFacts, IndexFacts, PublicationFacts, RelationFacts, ServerFacts, TableFacts,
};

fn column(attnum: i16, name: &str, toastable: bool) -> ColumnFacts {
    ColumnFacts {
        not_null: true,
        ..samples::column(attnum, name, if toastable { 25 } else { 23 })
    }
}

fn primary_key() -> IndexFacts {
    IndexFacts {
        name: "pk".to_owned(),
        ..samples::primary(&[1])
    }
}

/// `public.t(id int primary key, v text)`.
fn relation() -> RelationFacts {
    RelationFacts {
        name: "t".to_owned(),
        pages: 1,
        columns: vec![column(1, "id", false), column(2, "v", true)],
        indexes: vec![primary_key()],
        ..samples::relation(7)
    }
}

/// A source that is admitted.
fn source(tables: Vec<TableFacts>) -> SourceFacts {
    let session = SessionFacts {
        version_num: 150_018,
        version: "15.18".to_owned(),
        wal_level: "logical".to_owned(),
        in_recovery: false,
        encoding: "UTF8".to_owned(),
        reads_as_utf8: true,
        slots: 1,
        slots_max: 10,
        senders: 1,
        senders_max: 10,
        role: "gate".to_owned(),
        replication_right: true,
        sees_all: true,
        settings: server::settings(&[("max_slot_wal_keep_size", "65536")]),
    };
    let server = ServerFacts {
        version_num: 150_018,
        encoding: "UTF8".to_owned(),
        database_oid: Oid(5),
        in_recovery: false,
    };
    let publication = PublicationFacts {
        oid: Oid(9),
        name: "pub".to_owned(),
        all_tables: false,
        insert: true,
        update: true,
        delete: true,
        truncate: true,
        via_root: false,
        generated_columns: None,
        tables: Vec::new(),
        schemas: Vec::new(),
    };
    let oids: Vec<Oid> = tables
        .iter()
        .flat_map(super::tables::physical)
        .map(|relation| relation.oid)
        .collect();
    let right = |oid| RelationRights {
        oid,
        usage: true,
        select: true,
        row_security: false,
    };
    SourceFacts {
        session,
        publication: "pub".to_owned(),
        view: Some(CatalogView {
            server,
            publication,
            tables,
            types: BTreeMap::new(),
        }),
        rights: oids.into_iter().map(right).collect(),
        ours: false,
        unpublished: vec![],
        unknown: vec![],
        unsent: vec![],
        open: vec![],
        prepared: vec![],
        failover: FailoverFacts::default(),
        fingerprints: Fingerprints::default(),
        capture: crate::ddl::found::tests::whole(),
    }
}

/// Everything but the posture, of which a server of 15 can have one only.
fn check(source: &SourceFacts, wanted: &[TableName]) -> Vec<Finding> {
    let asked = Asked {
        tables: wanted,
        ..Asked::default()
    };
    let mut findings = super::check(source, &asked);
    findings.retain(|finding| finding.id != "FailoverPosture");
    findings
}

fn ids(source: &SourceFacts) -> Vec<&'static str> {
    check(source, &[])
        .iter()
        .map(|finding| finding.id)
        .collect()
}

/// What is found about one table after `change`.
fn found(change: impl FnOnce(&mut TableFacts)) -> Vec<Finding> {
    let mut table = table(relation());
    change(&mut table);
    check(&source(vec![table]), &[])
}

#[test]
fn a_source_that_is_right_has_no_finding() {
    assert_eq!(check(&source(vec![table(relation())]), &[]), []);
    assert_eq!(check(&source(vec![]), &[]), []);
}

#[test]
fn everything_wrong_with_a_server_is_told_at_once() {
    let mut source = source(vec![]);
    source.session = SessionFacts {
        version_num: 140_012,
        wal_level: "replica".to_owned(),
        in_recovery: true,
        encoding: "SQL_ASCII".to_owned(),
        reads_as_utf8: false,
        slots: 10,
        senders: 10,
        ..source.session
    };
    source.view = None;
    let all = [
        "ServerTooOld",
        "WalLevel",
        "InRecovery",
        "Encoding",
        "NoFreeSlot",
        "NoFreeSender",
        "PublicationMissing",
    ];
    assert_eq!(ids(&source), all);
    let text = Refusal {
        findings: check(&source, &[]),
    }
    .to_string();
    assert!(
        text.starts_with("refused for 7 reasons\nfatal ServerTooOld:"),
        "{text}"
    );
    assert!(text.contains("SQL_ASCII"), "{text}");
}

#[test]
fn a_publication_must_send_everything_and_carry_what_was_named() {
    let mut source = source(vec![table(relation())]);
    let view = source.view.as_mut().unwrap();
    (view.publication.update, view.publication.truncate) = (false, false);
    let findings = check(
        &source,
        &[TableName::new("public", "t"), TableName::new("s", "x")],
    );
    assert_eq!(findings.len(), 2);
    assert!(
        findings[0].seen.contains("leaves out update, truncate"),
        "{}",
        findings[0]
    );
    assert_eq!(findings[1].object.as_deref(), Some("s.x"));
    assert!(
        findings[1].seen.contains("it carries public.t"),
        "{}",
        findings[1]
    );
    assert_eq!(
        findings[1].mend,
        r#"ALTER PUBLICATION "pub" ADD TABLE "s"."x""#
    );
}

#[test]
fn each_rule_of_a_table_is_told_with_its_mend() {
    type Change = fn(&mut TableFacts);
    let rules: [(&str, &str, Change); 8] = [
        ("NoRowKey", "ADD PRIMARY KEY", |table| {
            table.relation.indexes.clear()
        }),
        ("RowKeyNotIdentity", "REPLICA IDENTITY DEFAULT", |table| {
            table.relation.replident = 'n'
        }),
        ("RowKeyDeferrable", "DROP CONSTRAINT \"pk\"", |table| {
            table.relation.indexes[0].immediate = false;
            table.relation.replident = 'f';
        }),
        ("RowKeyGenerated", "another primary key", |table| {
            table.relation.columns[0].generated = "s".to_owned();
        }),
        ("RowKeyNotPublished", "column list", |table| {
            table.published.retain(|name| name != "id")
        }),
        ("Unlogged", "SET LOGGED", |table| {
            table.relation.persistence = 'u'
        }),
        ("RowFilterToast", "REPLICA IDENTITY FULL", |table| {
            table.relation.row_filter = Some("(id > 1)".to_owned());
        }),
        ("ReservedName", "rename the table", |table| {
            table.relation.name = "SQLite_x".to_owned()
        }),
    ];
    for (id, mend, change) in rules {
        let mut findings = found(change);
        findings.retain(Finding::is_fatal);
        assert_eq!(
            findings
                .iter()
                .map(|finding| finding.id)
                .collect::<Vec<_>>(),
            [id]
        );
        assert!(findings[0].mend.contains(mend), "{}", findings[0]);
        assert!(
            findings[0].is_fatal() && findings[0].object.is_some(),
            "{}",
            findings[0]
        );
    }
}

#[test]
fn a_unique_index_as_the_key_must_be_the_identity() {
    let unique = |table: &mut TableFacts, replident| {
        table.relation.indexes[0].primary = false;
        table.relation.replident = replident;
    };
    let findings = found(|table| unique(table, 'd'));
    assert_eq!(findings[0].id, "RowKeyNotIdentity");
    assert_eq!(
        findings[0].mend,
        r#"ALTER TABLE "public"."t" REPLICA IDENTITY USING INDEX "pk""#
    );
    assert_eq!(found(|table| unique(table, 'f')), []);
    let using = |table: &mut TableFacts| {
        unique(table, 'i');
        table.relation.indexes[0].identity = true;
    };
    assert_eq!(found(using), []);
}

#[test]
fn full_identity_lets_a_row_filter_pass() {
    let filtered = |table: &mut TableFacts| {
        table.relation.row_filter = Some("(v <> '')".to_owned());
        table.relation.replident = 'f';
    };
    assert_eq!(found(filtered), []);
}

#[test]
fn c3_each_leaf_is_looked_at() {
    let partitioned = |leaf: RelationFacts| {
        let mut table = table(RelationFacts {
            kind: 'p',
            ..relation()
        });
        table.leaves = vec![RelationFacts {
            oid: Oid(8),
            name: "leaf".to_owned(),
            ..leaf
        }];
        source(vec![table])
    };
    assert_eq!(ids(&partitioned(relation())), Vec::<&str>::new());
    let no_key = RelationFacts {
        indexes: vec![],
        replident: 'f',
        ..relation()
    };
    assert_eq!(ids(&partitioned(no_key)), ["LeafKeyDiffers"]);
    let nothing = RelationFacts {
        replident: 'n',
        ..relation()
    };
    assert_eq!(ids(&partitioned(nothing)), ["RowKeyNotIdentity"]);
    let unlogged = RelationFacts {
        persistence: 'u',
        ..relation()
    };
    assert_eq!(ids(&partitioned(unlogged)), ["Unlogged"]);
    let foreign = RelationFacts {
        kind: 'f',
        ..relation()
    };
    assert_eq!(ids(&partitioned(foreign)), ["NotATable"]);
}

#[test]
fn names_that_collide_are_told_together() {
    let mut columns = relation();
    columns
        .columns
        .extend([column(3, "V", false), column(4, "\u{c9}", false)]);
    columns.columns.push(column(5, "\u{e9}", false));
    let findings = found(|table| *table = self::table(columns));
    // SQLite folds ASCII letters only.
    assert_eq!(findings.len(), 1);
    assert_eq!(findings[0].id, "ColumnNamesCollide");
    assert!(findings[0].seen.contains(r#""v", "V""#), "{}", findings[0]);

    let other = RelationFacts {
        oid: Oid(8),
        name: "T".to_owned(),
        ..relation()
    };
    let findings = check(&source(vec![table(relation()), table(other)]), &[]);
    assert_eq!(findings[0].id, "TableNamesCollide");
    assert!(
        findings[0].seen.contains(r#""public.t", "public.T""#),
        "{}",
        findings[0]
    );
}

#[test]
fn the_role_must_see_every_row() {
    let mut source = source(vec![table(relation())]);
    source.rights[0].select = false;
    source.rights[0].row_security = true;
    let findings = check(&source, &[]);
    assert_eq!(ids(&source), ["NoSelect", "RowSecurity"]);
    assert!(
        findings[0]
            .mend
            .contains(r#"GRANT SELECT ON "public"."t" TO "gate""#)
    );
    assert_eq!(findings[1].mend, r#"ALTER ROLE "gate" BYPASSRLS"#);
}

#[test]
fn only_what_breaks_writes_keeps_a_table_from_being_published() {
    let breaking: Vec<bool> = [
        "NoRowKey",
        "RowKeyNotIdentity",
        "RowKeyDeferrable",
        "NoSelect",
    ]
    .into_iter()
    .map(|id| breaks_writes(&Finding::fatal(id, "", "", "")))
    .collect();
    assert_eq!(breaking, [true, true, true, false]);
}
