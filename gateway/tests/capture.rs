//! DDL capture on a real server: what each statement announces, and that it harms nobody.

mod harm;
mod recipe;

use rindle_gateway::lifecycle::prepare::{PrepareRequest, Prepared, prepare};
use rindle_gateway::lifecycle::{Finding, LifecycleError, TableName};
use rindle_gateway::pg::endpoint::Endpoint;
use serde_json::{Value, json};
use tokio_postgres::Client;

use crate::postgres::Server;

pub(crate) fn preparing(endpoint: Endpoint, tables: &str) -> PrepareRequest {
    PrepareRequest {
        endpoint,
        source: "app".parse().unwrap(),
        publication: None,
        tables: TableName::parse_list(tables).unwrap(),
        role: None,
        client_mutations: false,
        prune: false,
        dry_run: false,
    }
}

async fn prepared(server: &Server, tables: &str) -> Prepared {
    prepare(&preparing(server.endpoint(), tables))
        .await
        .unwrap()
}

/// A server on which `sql` ran and then `tables` were prepared.
async fn server(sql: &str, tables: &str) -> (Server, Client) {
    let server = Server::start(&[]).await;
    let client = server.session(sql).await;
    prepared(&server, tables).await;
    (server, client)
}

async fn run(client: &Client, sql: &str) {
    let done = client.batch_execute(sql).await;
    done.unwrap_or_else(|error| panic!("{sql}: {:?}", error.as_db_error()));
}

async fn number(client: &Client, sql: &str) -> i64 {
    client.query_one(sql, &[]).await.unwrap().get(0)
}

async fn oid(client: &Client, name: &str) -> i64 {
    number(client, &format!("SELECT '{name}'::regclass::oid::int8")).await
}

/// What was announced since `after`, without its version.
async fn since(client: &Client, after: i64) -> Vec<Value> {
    let sql = "SELECT facts::text FROM rindle.published_schema WHERE id > $1 ORDER BY id";
    let rows = client.query(sql, &[&after]).await.unwrap();
    let facts = rows.iter().map(|row| {
        let mut facts: Value = serde_json::from_str(row.get(0)).unwrap();
        assert_eq!(facts.as_object_mut().unwrap().remove("v"), Some(json!(1)));
        facts
    });
    facts.collect()
}

async fn last(client: &Client) -> i64 {
    number(
        client,
        "SELECT coalesce(max(id), 0) FROM rindle.published_schema",
    )
    .await
}

/// What a statement announces, each relation, publication and type as its name.
async fn told(client: &Client, sql: &str) -> Vec<Value> {
    let before = last(client).await;
    run(client, sql).await;
    let mut facts = since(client, before).await;
    for one in &mut facts {
        let fields = one.as_object_mut().unwrap();
        // Oids of types, which have no names of relations; and of what the statement itself named.
        fields.remove("retyped");
        fields.remove("own");
        // Every document about the catalog says what its transaction saw.
        assert!(fields.remove("snapshot").is_some());
        for (part, name) in [
            ("schemas", "/1"),
            ("relations", "/name"),
            ("publications", "/pubname"),
            ("types", "/1"),
        ] {
            if let Some(list) = fields.get_mut(part) {
                let names = list.as_array().unwrap().iter();
                let mut names: Vec<Value> =
                    names.map(|it| it.pointer(name).unwrap().clone()).collect();
                names.sort_by_key(ToString::to_string);
                *list = names.into();
            }
        }
    }
    facts
}

/// The facts of the only relation of the last announcement that has this name.
async fn relation(client: &Client, name: &str) -> Value {
    let before = last(client).await - 1;
    let facts = since(client, before).await.pop().unwrap();
    let relations = facts["relations"].as_array().unwrap().clone();
    let mut found = relations.into_iter().filter(|it| it["name"] == name);
    found
        .next()
        .unwrap_or_else(|| panic!("no {name} in {facts}"))
}

fn altered(tag: &str, relations: &[&str]) -> Vec<Value> {
    vec![json!({"tag": tag, "relations": relations})]
}

fn findings(error: LifecycleError) -> Vec<Finding> {
    match error {
        LifecycleError::Refused(refusal) => refusal.findings,
        other => panic!("not refused: {other:?}"),
    }
}

fn ids(findings: &[Finding]) -> Vec<&str> {
    findings.iter().map(|finding| finding.id).collect()
}

const NONE: Vec<Value> = Vec::new();

const SAMPLE: &str = "
    CREATE TYPE mood AS ENUM ('sad', 'glad'); CREATE DOMAIN age AS int; CREATE TYPE pair AS (x int, y mood);
    CREATE TABLE t(id int PRIMARY KEY, v text, n int, d age, gone mood);
    CREATE TABLE uses(id int PRIMARY KEY, p pair[]);
    CREATE TABLE other(id int PRIMARY KEY, m mood)";

#[tokio::test]
async fn b3_changes_of_a_table_are_told_as_facts() {
    let (_server, sql) = server(SAMPLE, "t,uses").await;
    let t = || altered("ALTER TABLE", &["t"]);
    let with_types = |mut facts: Vec<Value>| {
        facts[0]["types"] = json!(["public.age", "public.mood"]);
        facts
    };
    for statement in [
        "ALTER TABLE t ADD c int",
        "ALTER TABLE t RENAME c TO e",
        "ALTER TABLE t ALTER e SET NOT NULL",
        "ALTER TABLE t DROP e",
        // Several actions of one command are one message.
        "ALTER TABLE t ADD p1 int, ADD p2 text DEFAULT 'x', ALTER v SET DEFAULT 'v'",
        "ALTER TABLE t DROP p1, DROP p2, ALTER v DROP DEFAULT",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "ALTER TABLE t ENABLE ROW LEVEL SECURITY",
        "ALTER TABLE t ADD CONSTRAINT u UNIQUE (n)",
        "ALTER TABLE t RENAME CONSTRAINT u TO w",
        // The index behind a constraint goes with it.
        "ALTER TABLE t DROP CONSTRAINT w",
        "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD CONSTRAINT t_key PRIMARY KEY (id)",
    ] {
        let facts = told(&sql, statement).await;
        assert_eq!(facts, with_types(t()), "{statement}");
    }
    assert_eq!(
        told(&sql, "CREATE INDEX i ON t(v)").await,
        with_types(altered("CREATE INDEX", &["t"]))
    );
    assert_eq!(
        told(&sql, "ALTER INDEX i RENAME TO j").await,
        with_types(altered("ALTER INDEX", &["t"]))
    );
    assert_eq!(
        told(&sql, "CREATE INDEX CONCURRENTLY k ON t(n)").await,
        with_types(altered("CREATE INDEX", &["t"]))
    );
    let j = oid(&sql, "j").await;
    assert_eq!(
        told(&sql, "DROP INDEX j").await,
        [json!({"tag": "DROP INDEX", "dropped": [j]})]
    );
    let k = oid(&sql, "k").await;
    assert_eq!(
        told(&sql, "DROP INDEX CONCURRENTLY k").await,
        [json!({"tag": "DROP INDEX", "dropped": [k]})]
    );

    // Everything in the facts is as the gateway's own query gives it.
    run(&sql, "ALTER TABLE t ADD late int DEFAULT 7").await;
    let facts = relation(&sql, "t").await;
    let column = facts["columns"].as_array().unwrap().last().unwrap();
    assert_eq!(
        (&column["name"], &column["missing"]),
        (&json!("late"), &json!("7"))
    );
    assert_eq!(facts["indexes"][0]["primary"], json!(true));
    assert_eq!(facts["oid"], json!(oid(&sql, "t").await));

    // Renamed and moved, it is itself.
    assert_eq!(
        told(&sql, "ALTER TABLE t RENAME TO s").await,
        with_types(altered("ALTER TABLE", &["s"]))
    );
    run(&sql, "CREATE SCHEMA elsewhere").await;
    assert_eq!(
        told(&sql, "ALTER TABLE s SET SCHEMA elsewhere").await,
        with_types(altered("ALTER TABLE", &["s"]))
    );
    let mut renamed = with_types(altered("ALTER SCHEMA", &["s"]));
    renamed[0]["schemas"] = json!(["there"]);
    assert_eq!(
        told(&sql, "ALTER SCHEMA elsewhere RENAME TO there").await,
        renamed
    );
    assert_eq!(relation(&sql, "s").await["schema"], json!("there"));
}

#[tokio::test]
async fn b3_types_lead_to_the_tables_that_use_them() {
    let (_server, sql) = server(SAMPLE, "t,uses").await;
    let both = |tag: &str| {
        let mut facts = altered(tag, &["t", "uses"]);
        facts[0]["types"] = json!(["public._pair", "public.age", "public.mood", "public.pair"]);
        facts
    };
    // `uses` has it in an array of a composite.
    assert_eq!(
        told(&sql, "ALTER TYPE mood ADD VALUE 'calm'").await,
        both("ALTER TYPE")
    );
    assert_eq!(
        told(&sql, "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'").await,
        both("ALTER TYPE")
    );
    let uses = |tag: &str| {
        let mut facts = altered(tag, &["uses"]);
        facts[0]["types"] = json!(["public._pair", "public.mood", "public.pair"]);
        facts
    };
    assert_eq!(
        told(&sql, "ALTER TYPE pair ADD ATTRIBUTE z int").await,
        uses("ALTER TYPE")
    );
    assert_eq!(
        told(&sql, "ALTER TYPE pair RENAME ATTRIBUTE z TO w").await,
        uses("ALTER TYPE")
    );
    assert_eq!(told(&sql, "ALTER TYPE pair RENAME TO duo").await.len(), 1);
    assert_eq!(
        told(&sql, "ALTER DOMAIN age ADD CHECK (VALUE > 0)")
            .await
            .len(),
        1
    );
    run(&sql, "CREATE SCHEMA s").await;
    let moved = told(&sql, "ALTER TYPE mood SET SCHEMA s").await;
    assert_eq!(moved[0]["types"][3], json!("s.mood"));
    // A schema's name is part of the types' in it.
    assert_eq!(
        told(&sql, "ALTER SCHEMA s RENAME TO z").await[0]["relations"],
        json!(["t", "uses"])
    );
    // Columns that go with a type are told by the tables that lost them.
    let dropped = told(&sql, "DROP TYPE z.mood CASCADE").await;
    let wanted = json!({"tag": "DROP TYPE", "relations": ["t", "uses"],
        "types": ["public._duo", "public.age", "public.duo"]});
    assert_eq!(dropped, [wanted]);
    let dropped = told(&sql, "DROP DOMAIN age CASCADE").await;
    assert_eq!(dropped, altered("DROP DOMAIN", &["t"]));
    assert_eq!(told(&sql, "CREATE TYPE unused AS ENUM ('a')").await, NONE);
    // Whoever publishes a table that uses it and has not committed yet is not seen.
    let before = last(&sql).await;
    run(&sql, "ALTER TYPE unused ADD VALUE 'b'").await;
    let unused = number(&sql, "SELECT 'unused'::regtype::oid::int8").await;
    let mut told = since(&sql, before).await;
    assert!(
        told[0]
            .as_object_mut()
            .unwrap()
            .remove("snapshot")
            .is_some()
    );
    let wanted = json!({"tag": "ALTER TYPE", "retyped": [unused]});
    assert_eq!(told, [wanted]);
}

#[tokio::test]
async fn b2_every_rewrite_is_told_before_its_facts() {
    let (_server, sql) = server(SAMPLE, "t").await;
    let t = oid(&sql, "t").await;
    let rewritten = |reason: i64| json!({"tag": "ALTER TABLE", "rewritten": [[t, reason]]});
    for (statement, reason) in [
        ("ALTER TABLE t ALTER n TYPE int USING n + 100", 4),
        ("ALTER TABLE t ADD u uuid DEFAULT gen_random_uuid()", 2),
        ("ALTER TABLE t ALTER n TYPE bigint", 4),
    ] {
        let facts = told(&sql, statement).await;
        assert_eq!(
            (facts.len(), &facts[0]),
            (2, &rewritten(reason)),
            "{statement}"
        );
        assert_eq!(facts[1]["relations"], json!(["t"]), "{statement}");
    }
    // H8: a default that the next statement takes away leaves no other trace.
    let facts = told(
        &sql,
        "ALTER TABLE t ADD w float DEFAULT random(); ALTER TABLE t ALTER w DROP DEFAULT",
    )
    .await;
    assert_eq!(facts[0], rewritten(2));
    // H9: these rewrite too, and change nothing.
    run(&sql, "CLUSTER t USING t_pkey").await;
    assert_eq!(told(&sql, "CLUSTER t").await, NONE);
    assert_eq!(told(&sql, "VACUUM FULL t").await, NONE);
    assert_eq!(
        told(&sql, "ALTER TABLE other ALTER id TYPE bigint").await,
        NONE
    );
}

#[tokio::test]
async fn c1_a_relation_is_told_with_all_its_partitions() {
    let tables = "
        CREATE TABLE root(id int, k int, PRIMARY KEY (id, k)) PARTITION BY LIST (k);
        CREATE TABLE l1 PARTITION OF root FOR VALUES IN (1);
        CREATE TABLE sub PARTITION OF root FOR VALUES IN (2, 3) PARTITION BY LIST (k);
        CREATE TABLE l2 PARTITION OF sub FOR VALUES IN (2);
        CREATE TABLE parent(id int PRIMARY KEY); CREATE TABLE child(PRIMARY KEY (id)) INHERITS (parent);
        CREATE TABLE loose(id int NOT NULL, k int NOT NULL)";
    let (_server, sql) = server(tables, "root,parent,child").await;
    let whole = ["l1", "l2", "root", "sub"];
    assert_eq!(
        told(&sql, "ALTER TABLE root ADD v text").await,
        altered("ALTER TABLE", &whole)
    );
    assert_eq!(
        told(&sql, "ALTER TABLE l2 REPLICA IDENTITY FULL").await,
        altered("ALTER TABLE", &["l2"])
    );
    assert_eq!(
        told(&sql, "CREATE INDEX i ON root(v)").await,
        altered("CREATE INDEX", &whole)
    );
    let mut made = told(&sql, "CREATE TABLE l3 PARTITION OF sub FOR VALUES IN (3)").await;
    assert_eq!(made[0]["created"], json!([oid(&sql, "l3").await]));
    made[0].as_object_mut().unwrap().remove("created");
    assert_eq!(made, altered("CREATE TABLE", &["l3"]));
    let whole = ["l1", "l2", "l3", "root", "sub"];
    // The command names the root only.
    run(&sql, "ALTER TABLE loose ADD v text").await;
    let attached = told(
        &sql,
        "ALTER TABLE root ATTACH PARTITION loose FOR VALUES IN (9)",
    )
    .await;
    assert_eq!(
        attached,
        altered("ALTER TABLE", &["l1", "l2", "l3", "loose", "root", "sub"])
    );
    assert_eq!(
        relation(&sql, "loose").await["parent"],
        json!(oid(&sql, "root").await)
    );
    assert_eq!(
        told(&sql, "ALTER TABLE root DETACH PARTITION loose").await,
        altered("ALTER TABLE", &whole)
    );
    assert_eq!(
        told(&sql, "ALTER TABLE sub DETACH PARTITION l3 CONCURRENTLY").await,
        altered("ALTER TABLE", &["l2", "sub"])
    );
    let (l1, dropped) = (oid(&sql, "l1").await, told(&sql, "DROP TABLE l1").await);
    assert!(
        dropped[0]["dropped"]
            .as_array()
            .unwrap()
            .contains(&json!(l1)),
        "{dropped:?}"
    );
    assert_eq!(dropped.len(), 1);
    assert_eq!(
        told(&sql, "ALTER TABLE parent ADD v int").await,
        altered("ALTER TABLE", &["child", "parent"])
    );

    // Published by itself, what was a leaf is told when it is one no more.
    run(&sql, "CREATE PUBLICATION every FOR ALL TABLES").await;
    let detached = told(&sql, "ALTER TABLE sub DETACH PARTITION l2").await;
    assert_eq!(detached, altered("ALTER TABLE", &["l2", "sub"]));
    assert_eq!(relation(&sql, "l2").await["parent"], Value::Null);
}

#[tokio::test]
async fn b3_publications_are_told_whole_with_what_they_add() {
    let tables = "CREATE TABLE a(id int PRIMARY KEY, v int); CREATE TABLE b(id int PRIMARY KEY); CREATE SCHEMA s;
        CREATE TABLE s.c(id int PRIMARY KEY); CREATE TABLE un(id int PRIMARY KEY)";
    let (_server, sql) = server(tables, "a").await;
    let facts = |tag: &str, relations: &[&str], publications: &[&str]| match relations.is_empty() {
        true => json!({"tag": tag, "publications": publications}),
        false => json!({"tag": tag, "relations": relations, "publications": publications}),
    };
    let told = async |statement: &str| told(&sql, statement).await;
    let both = ["p", "rindle_app"];
    // CREATE PUBLICATION names no table.
    let made = told("CREATE PUBLICATION p FOR TABLE b").await;
    assert_eq!(made, [facts("CREATE PUBLICATION", &["b"], &both)]);
    let added = told("ALTER PUBLICATION p ADD TABLE a WHERE (v > 1)").await;
    assert_eq!(added, [facts("ALTER PUBLICATION", &["a"], &both)]);
    let gone = told("ALTER PUBLICATION p DROP TABLE a").await;
    assert_eq!(gone, [facts("ALTER PUBLICATION", &[], &both)]);
    let set = told("ALTER PUBLICATION p SET (publish = 'insert')").await;
    assert_eq!(set, [facts("ALTER PUBLICATION", &[], &both)]);
    let added = told("ALTER PUBLICATION p ADD TABLES IN SCHEMA s").await;
    assert_eq!(added, [facts("ALTER PUBLICATION", &["c"], &both)]);
    // What leaves a published schema is told although it is published no more.
    let moved = told("ALTER TABLE s.c SET SCHEMA public").await;
    assert_eq!(moved, altered("ALTER TABLE", &["c"]));
    assert_eq!(told("ALTER TABLE un ADD v int").await, NONE);
    let back = told("ALTER TABLE c SET SCHEMA s").await;
    assert_eq!(back, altered("ALTER TABLE", &["c"]));
    let dropped = told("DROP PUBLICATION p").await;
    assert_eq!(dropped, [facts("DROP PUBLICATION", &[], &["rindle_app"])]);

    let every = told("CREATE PUBLICATION every FOR ALL TABLES").await;
    let all = ["a", "b", "c", "un"];
    assert_eq!(
        every,
        [facts("CREATE PUBLICATION", &all, &["every", "rindle_app"])]
    );
    // H3: it leaves the publication, and comes back.
    let facts = told("ALTER TABLE un SET UNLOGGED").await;
    assert_eq!(
        (facts.len(), &facts[1]),
        (2, &altered("ALTER TABLE", &["un"])[0])
    );
    assert_eq!(relation(&sql, "un").await["persistence"], json!("u"));
    let facts = told("ALTER TABLE un SET LOGGED").await;
    assert_eq!(facts[1], altered("ALTER TABLE", &["un"])[0]);
}

/// Which commands fire which trigger differs between versions; what is told does not.
#[tokio::test]
async fn h9_commands_that_fire_nothing_or_little_are_told_as_far_as_it_matters() {
    let tables = "CREATE TABLE a(id int PRIMARY KEY, v int); CREATE INDEX i ON a(v); INSERT INTO a VALUES (1, 1);
        CREATE TABLE root(id int, k int, PRIMARY KEY (id, k)) PARTITION BY LIST (k);
        CREATE TABLE l1 PARTITION OF root FOR VALUES IN (1); CREATE TABLE l2 PARTITION OF root FOR VALUES IN (2)";
    let (_server, sql) = server(tables, "a,root").await;
    // They make new files, and change nothing that is mirrored; a message more does no harm.
    let file = "SELECT pg_relation_filenode('a')::int8";
    for statement in ["VACUUM FULL a", "CLUSTER a USING a_pkey", "REINDEX TABLE a"] {
        let before = number(&sql, file).await;
        let told = told(&sql, statement).await;
        assert!(
            told.iter().all(|one| one.get("rewritten").is_none()),
            "{told:?}"
        );
        let moved = number(&sql, file).await != before;
        assert_eq!(moved, !statement.starts_with("REINDEX"), "{statement}");
    }
    let i = oid(&sql, "i").await;
    let dropped = told(&sql, "DROP INDEX i").await;
    assert_eq!(dropped, [json!({"tag": "DROP INDEX", "dropped": [i]})]);
    let detached = told(&sql, "ALTER TABLE root DETACH PARTITION l1 CONCURRENTLY").await;
    assert_eq!(detached, altered("ALTER TABLE", &["l2", "root"]));
}

/// A filter is compared, not run; reading it as SQL would wait for whoever alters its table.
#[tokio::test]
async fn b1_a_row_filter_is_told_by_its_digest() {
    let (_server, sql) = server("CREATE TABLE a(id int PRIMARY KEY, v int)", "a").await;
    let filter = async |statement: &str| {
        run(&sql, statement).await;
        let facts = since(&sql, last(&sql).await - 1).await;
        let publications = facts[0]["publications"].as_array().unwrap();
        let p = publications.iter().find(|it| it["pubname"] == "p").unwrap();
        p["tables"][0]["filter"].as_str().unwrap().to_owned()
    };
    let first = filter("CREATE PUBLICATION p FOR TABLE a WHERE (id > 1)").await;
    let same = filter("ALTER PUBLICATION p SET TABLE a WHERE ( id  >  1 )").await;
    assert_eq!(first, same);
    assert_ne!(
        first,
        filter("ALTER PUBLICATION p SET TABLE a WHERE (id > 2)").await
    );
}

#[tokio::test]
async fn h4_tables_made_with_their_rows_are_told_as_new() {
    let (_server, sql) = server("CREATE TABLE a(id int PRIMARY KEY)", "a").await;
    run(&sql, "CREATE PUBLICATION every FOR ALL TABLES").await;
    for (statement, tag, name) in [
        ("CREATE TABLE c1 AS SELECT 1 AS x", "CREATE TABLE AS", "c1"),
        ("SELECT 1 AS x INTO c2", "SELECT INTO", "c2"),
        (
            "CREATE TABLE c3(id serial PRIMARY KEY, a int REFERENCES a)",
            "CREATE TABLE",
            "c3",
        ),
        (
            "CREATE SCHEMA s CREATE TABLE c4(id int)",
            "CREATE SCHEMA",
            "s.c4",
        ),
    ] {
        let facts = told(&sql, statement).await;
        let name_only = name.rsplit('.').next().unwrap();
        let wanted =
            json!({"tag": tag, "relations": [name_only], "created": [oid(&sql, name).await]});
        assert_eq!(facts, [wanted], "{statement}");
    }
    assert_eq!(
        told(&sql, "ALTER TABLE c1 ADD PRIMARY KEY (x)").await,
        altered("ALTER TABLE", &["c1"])
    );
    // A refused statement, and one that found nothing to do.
    assert_eq!(
        told(&sql, "CREATE TABLE IF NOT EXISTS c1(x int)").await,
        NONE
    );
    assert_eq!(told(&sql, "DROP TABLE IF EXISTS absent").await, NONE);
    let c1 = oid(&sql, "c1").await;
    let dropped = told(&sql, "DROP TABLE c1").await;
    assert!(
        dropped[0]["dropped"]
            .as_array()
            .unwrap()
            .contains(&json!(c1))
    );
}

#[tokio::test]
async fn b9_what_is_not_published_is_not_told() {
    let (_server, sql) = server(
        "CREATE TABLE a(id int PRIMARY KEY); CREATE TABLE un(id int PRIMARY KEY, v int)",
        "a",
    )
    .await;
    for statement in [
        "CREATE TABLE u2(id int PRIMARY KEY); ALTER TABLE u2 ADD v int; CREATE INDEX ON u2(v); DROP TABLE u2",
        "ALTER TABLE un ALTER v TYPE bigint; ALTER TABLE un RENAME TO vn; ALTER TABLE vn RENAME TO un",
        "CREATE TEMP TABLE t(id int PRIMARY KEY, v int DEFAULT random()); ALTER TABLE t ALTER v TYPE bigint; DROP TABLE t",
        "CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1'; DROP FUNCTION f()",
        "CREATE VIEW w AS SELECT * FROM a; DROP VIEW w; CREATE SEQUENCE q; ALTER SEQUENCE q RESTART 5; DROP SEQUENCE q",
        "COMMENT ON TABLE a IS 'x'; GRANT SELECT ON a TO PUBLIC; COMMENT ON SCHEMA public IS 'y'; ANALYZE a",
        "CREATE MATERIALIZED VIEW m AS SELECT * FROM a; REFRESH MATERIALIZED VIEW m",
        "CREATE TRIGGER g BEFORE UPDATE ON a FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()",
        "CREATE ROLE somebody; CREATE SCHEMA z; CREATE TYPE e AS ENUM ('a'); DROP TYPE e; DROP SCHEMA z",
    ] {
        assert_eq!(told(&sql, statement).await, NONE, "{statement}");
    }
    run(&sql, "CREATE UNIQUE INDEX mi ON m(id)").await;
    assert_eq!(
        told(&sql, "REFRESH MATERIALIZED VIEW CONCURRENTLY m").await,
        NONE
    );
    assert_eq!(told(&sql, "REINDEX TABLE un").await, NONE);
    // Without any publication nothing is.
    run(&sql, "DROP PUBLICATION rindle_app").await;
    assert_eq!(
        told(&sql, "ALTER TABLE a ADD v int; DROP TABLE a CASCADE").await,
        NONE
    );
}

#[tokio::test]
async fn b9_everything_is_told_by_hand() {
    let (_server, sql) = server(SAMPLE, "t,uses").await;
    let whole = |tag: &str| {
        vec![
            json!({"tag": tag, "full": true, "relations": ["t", "uses"], "publications": ["rindle_app"],
            "types": ["public._pair", "public.age", "public.mood", "public.pair"]}),
        ]
    };
    assert_eq!(
        told(&sql, "SELECT rindle.schema_hook()").await,
        whole("SCHEMA HOOK")
    );
    assert_eq!(
        told(&sql, "SELECT rindle.schema_hook('rindle_app')").await,
        whole("SCHEMA HOOK")
    );
    assert_eq!(
        told(&sql, "COMMENT ON PUBLICATION rindle_app IS 'sync'").await,
        whole("COMMENT")
    );
    let error = sql
        .batch_execute("SELECT rindle.schema_hook('absent')")
        .await
        .unwrap_err();
    assert_eq!(error.code().unwrap().code(), "42704");
}
