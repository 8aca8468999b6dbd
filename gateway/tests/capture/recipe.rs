//! The recipe: made, repaired, refused, granted and removed; and with what rights.

use rindle_gateway::lifecycle::capture;
use rindle_gateway::lifecycle::deprovision::{DeprovisionRequest, deprovision};
use rindle_gateway::lifecycle::prepare::{PrepareRequest, prepare};
use rindle_gateway::lifecycle::schema_hook::{SchemaHookRequest, schema_hook};
use rindle_gateway::pg::endpoint::{Endpoint, SslMode};
use serde_json::json;
use tokio_postgres::Client;

use super::{altered, findings, ids, last, number, prepared, preparing, run, server, since, told};
use crate::postgres::Server;

const TABLES: &str = "CREATE TABLE a(id int PRIMARY KEY); CREATE TABLE b(id int PRIMARY KEY)";
const TRIGGERS: &str = "SELECT count(*) FROM pg_event_trigger";

/// What somebody does to the recipe, and how it is told.
const DRIFTS: [(&str, &str); 11] = [
    (
        "ALTER EVENT TRIGGER rindle_on_ddl DISABLE",
        "event trigger rindle_on_ddl: it is disabled",
    ),
    (
        "ALTER EVENT TRIGGER rindle_on_drop ENABLE",
        "event trigger rindle_on_drop: it is not enabled always",
    ),
    (
        "DROP EVENT TRIGGER rindle_on_rewrite",
        "event trigger rindle_on_rewrite is missing",
    ),
    (
        "CREATE OR REPLACE FUNCTION rindle._facts(tag text, shown oid[], seen text) RETURNS jsonb LANGUAGE sql STABLE \
         AS 'SELECT NULL::jsonb'",
        "function rindle._facts(text, oid[], text): its body, its result or language changed",
    ),
    (
        "ALTER FUNCTION rindle._on_drop() SET search_path = public",
        "function rindle._on_drop(): the settings that it pins changed",
    ),
    (
        "ALTER FUNCTION rindle._on_ddl() SECURITY INVOKER",
        "function rindle._on_ddl(): whose rights it has changed",
    ),
    (
        "GRANT EXECUTE ON FUNCTION rindle._append(jsonb) TO PUBLIC",
        "function rindle._append(jsonb): who may call it changed",
    ),
    (
        "CREATE ROLE r; ALTER FUNCTION rindle.copied(jsonb) OWNER TO r",
        "function rindle.copied(jsonb): its owner, who is not the table's changed",
    ),
    (
        "DROP FUNCTION rindle._concerned",
        "function rindle._concerned(oid[], oid[], oid[], oid[]) is missing",
    ),
    (
        "GRANT INSERT ON rindle.published_schema TO r",
        "table rindle.published_schema: r may change it",
    ),
    (
        "REVOKE USAGE ON SCHEMA rindle FROM PUBLIC",
        "schema rindle: not everybody may use it",
    ),
];

async fn checked(client: &Client) -> Vec<(&'static str, bool)> {
    let found = capture::check(client).await.unwrap();
    found.iter().map(|it| (it.id, it.is_fatal())).collect()
}

fn hook(endpoint: Endpoint, dry_run: bool) -> SchemaHookRequest {
    SchemaHookRequest {
        endpoint,
        source: "app".parse().unwrap(),
        publication: None,
        dry_run,
    }
}

async fn removed(server: &Server, endpoint: Endpoint) {
    let request = DeprovisionRequest {
        endpoint,
        source: "app".parse().unwrap(),
        yes: true,
    };
    deprovision(&request).await.unwrap();
    let sql = server.session("").await;
    let left = "SELECT count(*) FROM pg_namespace WHERE nspname = 'rindle'";
    assert_eq!(
        (number(&sql, left).await, number(&sql, TRIGGERS).await),
        (0, 0)
    );
}

#[tokio::test]
async fn drift_is_found_and_repaired_and_told() {
    let (server, sql) = server(TABLES, "a").await;
    assert_eq!(checked(&sql).await, []);
    assert_eq!(
        prepared(&server, "a").await.statements,
        Vec::<String>::new()
    );
    for (drift, repaired) in DRIFTS {
        run(&sql, drift).await;
        assert_eq!(checked(&sql).await, [("CaptureChanged", true)], "{drift}");
        let again = prepared(&server, "a").await;
        assert_eq!(again.repaired, [repaired], "{drift}");
        assert_eq!(checked(&sql).await, [], "{drift}");
    }
    assert_eq!(
        told(&sql, "ALTER TABLE a ADD v int").await,
        altered("ALTER TABLE", &["a"])
    );
}

#[tokio::test]
async fn another_programs_recipe_is_told_from_ours() {
    let (server, sql) = server(TABLES, "a").await;
    // An older program's.
    run(
        &sql,
        "UPDATE rindle.ledger SET version = 0 WHERE kind = 'function'",
    )
    .await;
    assert_eq!(checked(&sql).await, [("CaptureOld", false)]);
    assert!(prepared(&server, "a").await.statements.len() > 10);
    assert_eq!(checked(&sql).await, []);
    run(
        &sql,
        "UPDATE rindle.ledger SET version = 9 WHERE kind = 'function'",
    )
    .await;
    assert_eq!(checked(&sql).await, [("CaptureNewer", false)]);
    let refused = prepare(&preparing(server.endpoint(), "a"))
        .await
        .unwrap_err();
    assert_eq!(ids(&findings(refused)), ["PreparedByNewer"]);
    run(&sql, "DROP SCHEMA rindle CASCADE").await;
    assert_eq!(checked(&sql).await, [("CaptureMissing", false)]);
}

#[tokio::test]
async fn a_name_that_is_taken_is_refused() {
    let server = Server::start(&[]).await;
    let taken = "CREATE FUNCTION mine() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN END';
        CREATE EVENT TRIGGER rindle_on_drop ON sql_drop EXECUTE FUNCTION mine()";
    let sql = server.session(&format!("{TABLES}; {taken}")).await;
    let refused = findings(
        prepare(&preparing(server.endpoint(), "a"))
            .await
            .unwrap_err(),
    );
    assert_eq!(ids(&refused), ["NameTaken"]);
    run(&sql, "ALTER EVENT TRIGGER rindle_on_drop RENAME TO mine").await;
    prepared(&server, "a").await;
    let dry = PrepareRequest {
        dry_run: true,
        ..preparing(server.endpoint(), "a")
    };
    assert_eq!(
        prepare(&dry).await.unwrap().statements,
        Vec::<String>::new()
    );
}

#[tokio::test]
async fn the_gateways_role_gets_what_it_needs_and_no_more() {
    let server = Server::start(&[]).await;
    let sql = server
        .session(&format!(
            "{TABLES}; CREATE ROLE gate LOGIN REPLICATION; CREATE ROLE other LOGIN"
        ))
        .await;
    let request = PrepareRequest {
        role: Some("gate".to_owned()),
        ..preparing(server.endpoint(), "a")
    };
    let dry = prepare(&PrepareRequest {
        dry_run: true,
        ..request.clone()
    })
    .await
    .unwrap();
    let done = prepare(&request).await.unwrap();
    let grants = |statements: &[String]| -> Vec<String> {
        let mut grants: Vec<String> = statements
            .iter()
            .filter(|it| it.ends_with("TO \"gate\""))
            .cloned()
            .collect();
        grants.sort();
        grants
    };
    let ours = grants(&done.statements);
    let wanted = [
        "EXECUTE ON FUNCTION rindle.copied(jsonb)",
        "EXECUTE ON FUNCTION rindle.forget(bigint)",
        "EXECUTE ON FUNCTION rindle.retell(oid[])",
        "SELECT ON public.a",
        "SELECT ON rindle.ledger",
        "SELECT ON rindle.published_schema",
        "USAGE ON SCHEMA rindle",
        "pg_read_all_stats",
    ];
    assert_eq!(
        ours,
        wanted.map(|right| format!("GRANT {right} TO \"gate\""))
    );
    assert_eq!(
        grants(&prepare(&request).await.unwrap().statements),
        Vec::<String>::new()
    );
    assert_eq!(grants(&dry.statements), ours);

    let gate = server.session("SET SESSION AUTHORIZATION gate").await;
    assert_eq!(checked(&gate).await, []);
    let before = last(&gate).await;
    run(&gate, "SELECT rindle.copied('{\"attempt\": 1}')").await;
    assert_eq!(
        since(&gate, before).await,
        [json!({"copied": {"attempt": 1}})]
    );
    // The audit has tables copied anew, and takes away what nobody reads any more.
    let audit = "SELECT rindle.retell('{public.a}'::regclass[]::oid[]), rindle.forget(0)";
    run(&gate, audit).await;
    let other = server.session("SET SESSION AUTHORIZATION other").await;
    let refused = other.batch_execute("SELECT rindle.copied('{}')").await;
    let refused = refused.unwrap_err();
    assert_eq!(refused.code().unwrap().code(), "42501");
    // Who may not read the ledger still learns of the rest.
    run(&sql, "ALTER EVENT TRIGGER rindle_on_ddl DISABLE").await;
    let told = [("CaptureChanged", true), ("CaptureRights", false)];
    assert_eq!(checked(&other).await, told);
    run(&sql, "ALTER EVENT TRIGGER rindle_on_ddl ENABLE ALWAYS").await;
    // A right that was taken back.
    let revoke = "REVOKE EXECUTE ON FUNCTION rindle.copied(jsonb) FROM gate";
    run(&sql, revoke).await;
    assert_eq!(checked(&gate).await, [("CaptureRights", false)]);
}

#[tokio::test]
async fn deprovision_removes_the_recipe_unless_something_needs_it() {
    let (server, sql) = server(TABLES, "a").await;
    run(
        &sql,
        "CREATE VIEW mine AS SELECT * FROM rindle.published_schema",
    )
    .await;
    let request = DeprovisionRequest {
        endpoint: server.endpoint(),
        source: "app".parse().unwrap(),
        yes: true,
    };
    let refused = findings(deprovision(&request).await.unwrap_err());
    assert_eq!(ids(&refused), ["Dependents"]);
    assert_eq!(number(&sql, TRIGGERS).await, 3);
    run(&sql, "DROP VIEW mine").await;
    removed(&server, server.endpoint()).await;
}

#[tokio::test]
async fn b9_without_the_right_to_event_triggers_the_hook_is_there() {
    let server = Server::start(&[]).await;
    let sql = server
        .session(&format!(
            "CREATE ROLE maker LOGIN; GRANT CREATE ON DATABASE postgres TO maker;
            GRANT CREATE ON SCHEMA public TO maker; SET ROLE maker; {TABLES}; RESET ROLE"
        ))
        .await;
    let maker = server.tcp("127.0.0.1", "maker", "", SslMode::Disable);
    let done = prepare(&preparing(maker.clone(), "a")).await.unwrap();
    assert!(
        ids(&done.findings).contains(&"NoEventTriggerRight"),
        "{:?}",
        done.findings
    );
    assert_eq!(checked(&sql).await, [("CaptureByHand", false)]);
    assert_eq!(number(&sql, TRIGGERS).await, 0);
    // What prepare itself publishes is announced.
    prepare(&preparing(maker.clone(), "a,b")).await.unwrap();
    assert_eq!(last(&sql).await, 2);
    assert_eq!(told(&sql, "ALTER TABLE a ADD v int").await.len(), 0);
    let announced = schema_hook(&hook(maker.clone(), false)).await.unwrap();
    assert_eq!(announced.id, Some(3));
    let facts = since(&sql, 2).await;
    assert_eq!(facts[0]["relations"].as_array().unwrap().len(), 2);
    // A DBA runs what is printed.
    let dry = prepare(&PrepareRequest {
        dry_run: true,
        ..preparing(maker.clone(), "a,b")
    })
    .await
    .unwrap();
    run(
        &sql,
        &format!("BEGIN; {}; COMMIT", dry.statements.join(";")),
    )
    .await;
    assert_eq!(checked(&sql).await, []);
    assert_eq!(
        told(&sql, "ALTER TABLE a ADD w int").await,
        altered("ALTER TABLE", &["a"])
    );
    let again = prepare(&preparing(maker, "a,b")).await.unwrap();
    assert_eq!(again.statements, Vec::<String>::new());
    assert!(!ids(&again.findings).contains(&"NoEventTriggerRight"));
    removed(&server, server.endpoint()).await;
}

#[tokio::test]
async fn schema_hook_says_what_it_did_or_why_not() {
    let server = Server::start(&[]).await;
    let sql = server.session(TABLES).await;
    let refused = schema_hook(&hook(server.endpoint(), false))
        .await
        .unwrap_err();
    assert_eq!(ids(&findings(refused)), ["CaptureMissing"]);
    let printed = schema_hook(&hook(server.endpoint(), true)).await.unwrap();
    assert_eq!(printed.id, None);
    prepared(&server, "a").await;
    for statement in &printed.statements {
        assert_eq!(told(&sql, statement).await.len(), 1, "{statement}");
    }
    let before = last(&sql).await;
    let done = schema_hook(&hook(server.endpoint(), false)).await.unwrap();
    assert_eq!(done.id, Some(before + 1));
}
