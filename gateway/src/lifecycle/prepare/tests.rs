use super::plan::{Plan, plan};
use super::present::{Ours, Present, Publication, Relation};
use super::*;
use crate::ddl::found::tests::whole;
use crate::ddl::found::{Entry, Found};
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
        role: None,
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
    present.capture = whole();
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
        "CREATE TABLE rindle.published_schema",
        "INSERT INTO rindle.ledger",
        "INSERT INTO rindle.ledger",
        "CREATE OR REPLACE FUNCTION rindle._is_home()",
        "REVOKE ALL ON FUNCTION rindle._is_home() FROM PUBLIC",
    ];
    for (statement, start) in plan.statements.iter().zip(starts) {
        assert!(statement.starts_with(start), "{statement}");
    }
    let ends = [
        "CREATE EVENT TRIGGER rindle_on_rewrite ON table_rewrite",
        "ALTER EVENT TRIGGER rindle_on_rewrite ENABLE ALWAYS",
        "CREATE PUBLICATION \"rindle_app\" FOR TABLE ONLY \"public\".\"a\", ONLY \"public\".\"b\" WITH",
        "INSERT INTO rindle.ledger",
    ];
    let last = &plan.statements[plan.statements.len() - ends.len()..];
    for (statement, start) in last.iter().zip(ends) {
        assert!(statement.starts_with(start), "{statement}");
    }
    assert!(last[2].contains("publish_via_partition_root = false"));
    assert!(plan.repaired.is_empty(), "it is new");
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

/// The plan for a database whose capture is `capture`; its statements without the ledger's.
fn captured(capture: Found, no_right: bool) -> (Vec<String>, Plan) {
    let request = request(&["a"]);
    let mut present = prepared(&request, &["a"]);
    present.capture = capture;
    present.no_trigger_right = no_right.then(|| Finding::fatal("NoEventTriggerRight", "", "", ""));
    let plan = planned(&request, &present);
    let made = |statement: &&String| !statement.starts_with("INSERT INTO rindle.ledger");
    let starts = plan.statements.iter().filter(made);
    let starts = starts.map(|statement| {
        statement
            .split([' ', '('])
            .take(4)
            .collect::<Vec<_>>()
            .join(" ")
    });
    (starts.collect(), plan)
}

#[test]
fn a_capture_that_was_changed_is_made_as_it_was_and_told() {
    let mut found = whole();
    found.functions[15].body.push(' ');
    let (statements, plan) = captured(found, false);
    let wanted = [
        "DROP EVENT TRIGGER IF",
        "DROP EVENT TRIGGER IF",
        "DROP EVENT TRIGGER IF",
        "CREATE OR REPLACE FUNCTION",
        "GRANT EXECUTE ON FUNCTION",
        "ALTER FUNCTION rindle.schema_hook name)",
        "CREATE EVENT TRIGGER rindle_on_ddl",
        "ALTER EVENT TRIGGER rindle_on_ddl",
        "CREATE EVENT TRIGGER rindle_on_drop",
        "ALTER EVENT TRIGGER rindle_on_drop",
        "CREATE EVENT TRIGGER rindle_on_rewrite",
        "ALTER EVENT TRIGGER rindle_on_rewrite",
    ];
    assert_eq!(statements, wanted);
    assert_eq!(
        plan.repaired,
        ["function rindle.schema_hook(name): its body changed"]
    );

    let mut found = whole();
    found.triggers[1].enabled = 'D';
    let (statements, plan) = captured(found, false);
    let wanted = [
        "DROP EVENT TRIGGER IF",
        "CREATE EVENT TRIGGER rindle_on_drop",
        "ALTER EVENT TRIGGER rindle_on_drop",
    ];
    assert_eq!(statements, wanted);
    assert_eq!(
        plan.repaired,
        ["event trigger rindle_on_drop: it is disabled"]
    );
}

#[test]
fn what_an_older_recipe_made_and_this_one_does_not_goes() {
    let mut found = whole();
    let old = ["function", "rindle._old(oid)"].map(str::to_owned);
    let [kind, name] = old;
    found.ledger.as_mut().unwrap().push(Entry {
        kind,
        name,
        version: 0,
    });
    let (statements, _) = captured(found, false);
    assert!(
        statements.contains(&"DROP FUNCTION IF EXISTS".to_owned()),
        "{statements:?}"
    );
    assert!(
        statements.contains(&"DELETE FROM rindle.ledger WHERE".to_owned()),
        "{statements:?}"
    );
}

#[test]
fn without_the_right_there_are_no_triggers_and_it_is_told() {
    let mut request = request(&["a", "b"]);
    let mut present = prepared(&request, &["a"]);
    present.capture.triggers.clear();
    present.no_trigger_right = Some(Finding::fatal("NoEventTriggerRight", "", "", ""));
    let plan = planned(&request, &present);
    assert_eq!(plan.told.len(), 1);
    // What is published now is announced as a migration would have to.
    assert_eq!(
        plan.statements.last().unwrap(),
        "SELECT rindle.schema_hook()"
    );
    assert!(
        !plan
            .statements
            .iter()
            .any(|it| it.contains("EVENT TRIGGER"))
    );
    // Whom it is printed for may have the right.
    request.dry_run = true;
    let plan = planned(&request, &present);
    assert!(
        plan.statements
            .iter()
            .any(|it| it.contains("CREATE EVENT TRIGGER"))
    );
    // Triggers that a superuser made before are left alone.
    present.capture = whole();
    request.dry_run = false;
    assert_eq!(planned(&request, &present).told, []);
}

#[test]
fn what_is_not_in_the_ledger_is_not_replaced() {
    let request = request(&["a"]);
    let mut present = prepared(&request, &["a"]);
    let ledger = present.capture.ledger.as_mut().unwrap();
    ledger.retain(|entry| entry.name != "rindle_on_drop" && entry.name != "rindle.copied(jsonb)");
    let findings = refused(&request, &present);
    let objects: Vec<_> = findings
        .iter()
        .filter_map(|it| it.object.as_deref())
        .collect();
    assert_eq!(objects, ["rindle.copied(jsonb)", "rindle_on_drop"]);
    assert!(findings.iter().all(|it| it.id == "NameTaken"));

    present.capture = whole();
    present.capture.table.as_mut().unwrap().sound = false;
    assert_eq!(refused(&request, &present)[0].id, "CaptureTable");
    present.capture = whole();
    present.capture.ledger.as_mut().unwrap()[0].version = 2;
    assert_eq!(refused(&request, &present)[0].id, "PreparedByNewer");
}
