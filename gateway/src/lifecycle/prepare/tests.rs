use super::plan::{Plan, plan};
use super::present::{Ours, Present, Publication, Relation};
use super::*;
use crate::pg::endpoint::TlsSettings;

fn request(tables: &[&str]) -> PrepareRequest {
    PrepareRequest {
        endpoint: Endpoint {
            hosts: vec![],
            user: "u".to_owned(),
            database: "d".to_owned(),
            password: None,
            tls: TlsSettings::default(),
        },
        source: "app".parse().unwrap(),
        publication: None,
        tables: tables
            .iter()
            .map(|name| TableName::new("public", *name))
            .collect(),
        client_mutations: false,
        prune: false,
        dry_run: false,
    }
}

/// A database in which the wanted tables exist; nothing of ours does.
fn fresh(request: &PrepareRequest) -> Present {
    let relation = |table: &TableName| Relation {
        schema: table.schema.clone(),
        name: table.name.clone(),
        kind: Some('r'),
        persistence: Some('p'),
        ancestors: vec![],
        similar: vec![],
    };
    Present {
        server: Ours {
            version_num: 150_018,
            version: "15.18".to_owned(),
            ..Ours::default()
        },
        relations: request.tables.iter().map(relation).collect(),
        ..Present::default()
    }
}

/// A database that was prepared with `tables`.
fn prepared(request: &PrepareRequest, tables: &[&str]) -> Present {
    let mut present = fresh(request);
    (present.server.schema, present.server.ledger) = (true, true);
    present.ledger = vec![("publication".to_owned(), "rindle_app".to_owned())];
    present.publication = Some(publication(tables));
    present
}

fn publication(tables: &[&str]) -> Publication {
    let pair = |name: &&str| ("public".to_owned(), (*name).to_owned());
    Publication {
        whole: true,
        tables: tables.iter().map(pair).collect(),
        ..Publication::default()
    }
}

fn planned(request: &PrepareRequest, present: &Present) -> Plan {
    plan(request, "rindle_app", present).unwrap()
}

fn refused(request: &PrepareRequest, present: &Present) -> Vec<Finding> {
    plan(request, "rindle_app", present).unwrap_err().findings
}

#[test]
fn a_fresh_database_gets_ledger_and_publication() {
    let request = request(&["a", "b"]);
    let plan = planned(&request, &fresh(&request));
    let starts = [
        "CREATE SCHEMA rindle",
        "CREATE TABLE rindle.ledger",
        "INSERT INTO rindle.ledger",
        "INSERT INTO rindle.ledger",
        "CREATE PUBLICATION \"rindle_app\" FOR TABLE ONLY \"public\".\"a\", ONLY \"public\".\"b\" WITH",
        "INSERT INTO rindle.ledger",
    ];
    assert_eq!(plan.statements.len(), starts.len());
    for (statement, start) in plan.statements.iter().zip(starts) {
        assert!(statement.starts_with(start), "{statement}");
    }
    assert!(plan.statements[4].contains("publish_via_partition_root = false"));
    assert!(plan.ours && plan.added.len() == 2);
}

#[test]
fn again_changes_nothing() {
    let request = request(&["a"]);
    assert_eq!(
        planned(&request, &prepared(&request, &["a"])).statements,
        Vec::<String>::new()
    );
}

#[test]
fn missing_tables_are_added_and_extra_ones_reported() {
    let mut request = request(&["a", "b"]);
    let present = prepared(&request, &["b", "c"]);
    let plan = planned(&request, &present);
    let add = r#"ALTER PUBLICATION "rindle_app" ADD TABLE ONLY "public"."a""#;
    assert_eq!(plan.statements, [add]);
    assert_eq!(plan.extra, [TableName::new("public", "c")]);
    request.prune = true;
    let plan = planned(&request, &present);
    assert_eq!(
        plan.statements[1],
        r#"ALTER PUBLICATION "rindle_app" DROP TABLE ONLY "public"."c""#
    );
    assert_eq!((plan.extra.len(), plan.removed.len()), (0, 1));
}

#[test]
fn without_named_tables_those_of_the_publication_are_meant() {
    let mut request = request(&[]);
    request.prune = true;
    let plan = planned(&request, &prepared(&request, &["a"]));
    assert_eq!((plan.statements.len(), plan.removed.len()), (0, 0));
    assert_eq!(refused(&request, &fresh(&request))[0].id, "NoTables");
}

#[test]
fn drift_of_our_publication_is_repaired() {
    let request = request(&["a"]);
    let mut present = prepared(&request, &["a"]);
    present.publication.as_mut().unwrap().whole = false;
    let plan = planned(&request, &present);
    assert!(plan.statements[0].starts_with(r#"ALTER PUBLICATION "rindle_app" SET (publish ="#));
}

#[test]
fn a_publication_of_somebody_else_is_never_altered() {
    let request = request(&["a", "b"]);
    let mut present = prepared(&request, &["a"]);
    present.ledger.clear();
    let findings = refused(&request, &present);
    assert_eq!(findings.len(), 1);
    assert_eq!(findings[0].object.as_deref(), Some("public.b"));
    assert_eq!(
        findings[0].mend,
        r#"ALTER PUBLICATION "rindle_app" ADD TABLE "public"."b""#
    );
    for publication in [
        Publication {
            all_tables: true,
            ..publication(&[])
        },
        Publication {
            schemas: vec!["public".to_owned()],
            ..publication(&[])
        },
        Publication {
            whole: false,
            ..publication(&["a", "b"])
        },
    ] {
        present.publication = Some(publication);
        let plan = planned(&request, &present);
        assert!(!plan.ours && plan.statements.is_empty(), "{plan:?}");
    }
}

#[test]
fn client_mutations_are_made_and_published_once() {
    let mut request = request(&["a"]);
    request.client_mutations = true;
    let mut present = prepared(&request, &["a"]);
    let plan = planned(&request, &present);
    assert!(plan.statements[0].starts_with("CREATE TABLE public._rindle_client_mutations"));
    assert!(plan.statements[2].ends_with(r#"ADD TABLE ONLY "public"."_rindle_client_mutations""#));

    let shape = [
        ("client_id", "text", true),
        ("last_mutation_id", "bigint", false),
    ];
    let shape = shape.map(|(name, kind, key)| (name.to_owned(), kind.to_owned(), key));
    present.client_mutations = Some(shape.to_vec());
    present.publication = Some(publication(&["a", "_rindle_client_mutations"]));
    assert_eq!(planned(&request, &present).statements.len(), 0);
    // Without the flag the table stays where it is, and is no stranger.
    request.client_mutations = false;
    request.prune = true;
    assert_eq!(planned(&request, &present).removed, []);
    request.client_mutations = true;
    present.client_mutations.as_mut().unwrap()[1].1 = "integer".to_owned();
    assert_eq!(refused(&request, &present)[0].id, "ClientMutationsShape");
}

#[test]
fn what_cannot_be_published_is_told_at_once() {
    let request = request(&["gone", "view", "unlogged", "leaf"]);
    let mut present = fresh(&request);
    present.relations[0].kind = None;
    present.relations[0].similar = vec!["public.\"Gone\"".to_owned()];
    present.relations[1].kind = Some('v');
    present.relations[2].persistence = Some('u');
    present.relations[3].ancestors = vec![("public".to_owned(), "root".to_owned())];
    let findings = refused(&request, &present);
    let ids: Vec<_> = findings.iter().map(|finding| finding.id).collect();
    assert_eq!(ids, ["NoSuchTable", "NotATable", "Unlogged", "IsPartition"]);
    assert_eq!(findings[0].mend, "name it as it is: public.\"Gone\"");
    assert_eq!(findings[3].mend, "name public.root");
}
