//! Slots and catalog facts of a real server.

use std::collections::BTreeMap;

use rindle_gateway::ddl::Believed;
use rindle_gateway::ddl::believed::First;
use rindle_gateway::pg::catalog::{self, CatalogError, CatalogView};
use rindle_gateway::pg::slot;
use rindle_gateway::pg::walsender::WalStream;
use rindle_proto::pgtype::Kind;
use rindle_proto::schema::{Schema, Table};
use tokio_postgres::Client;

use crate::postgres::Server;

const TABLES: &str = "
    CREATE TYPE mood AS ENUM ('sad', 'glad'); CREATE DOMAIN age AS int;
    CREATE TYPE pair AS (a int, b mood[]);
    CREATE TABLE types(
        id int PRIMARY KEY, b bool, o oid, f float4, by bytea, j jsonb, a int[], fa float8[], ba bool[],
        ta varchar(5)[], xa box[], da age[], v int2vector, ov oidvector, d age, e mood, n numeric(12,2),
        c char(5), p pair, g int GENERATED ALWAYS AS (id + 1) STORED);
    ALTER TABLE types ADD dropped int; ALTER TABLE types DROP dropped; ALTER TABLE types ADD late text;
    CREATE INDEX plain ON types(n, e); CREATE INDEX partial ON types(n) WHERE b;
    CREATE INDEX expression ON types((n + 1)); CREATE INDEX hashed ON types USING hash (n);
    CREATE INDEX covering ON types(late) INCLUDE (n);
    CREATE TABLE \"Odd \"\"Name\"(x text NOT NULL, y int, z int NOT NULL);
    CREATE UNIQUE INDEX nullable ON \"Odd \"\"Name\"(y);
    CREATE UNIQUE INDEX fit ON \"Odd \"\"Name\"(z, x) INCLUDE (y);
    ALTER TABLE \"Odd \"\"Name\" REPLICA IDENTITY USING INDEX fit;
    CREATE TABLE part(id int, k int, v text, PRIMARY KEY (id, k)) PARTITION BY LIST (k);
    CREATE TABLE part1 PARTITION OF part FOR VALUES IN (1);
    CREATE TABLE sub PARTITION OF part FOR VALUES IN (2, 3) PARTITION BY LIST (k);
    CREATE TABLE part2(v text, k int NOT NULL, gone int, id int NOT NULL);
    ALTER TABLE part2 DROP gone; ALTER TABLE sub ATTACH PARTITION part2 FOR VALUES IN (2);
    CREATE SCHEMA rindle; CREATE TABLE rindle.own(id int PRIMARY KEY);
    CREATE TABLE listed(id int PRIMARY KEY, a int, b text);
    CREATE TABLE filtered(id int PRIMARY KEY, a int);";

/// Name, kind and type of the columns of `types`.
const KINDS: [(&str, &str, &str); 20] = [
    ("id", "int", "integer"),
    ("b", "bool", "boolean"),
    ("o", "int", "oid"),
    ("f", "float", "real"),
    ("by", "bytea", "bytea"),
    ("j", "json", "jsonb"),
    ("a", "int[]", "integer[]"),
    ("fa", "float[]", "double precision[]"),
    ("ba", "bool[]", "boolean[]"),
    ("ta", "text[]", "character varying(5)[]"),
    ("xa", "text[;]", "box[]"),
    ("da", "text[]", "public.age[]"),
    ("v", "text", "int2vector"),
    ("ov", "text", "oidvector"),
    ("d", "text", "public.age"),
    ("e", "text", "public.mood"),
    ("n", "text", "numeric(12,2)"),
    ("c", "text", "character(5)"),
    ("p", "text", "public.pair"),
    ("late", "text", "text"),
];

/// Physical tables of the copy and the tables of the mirror they go to.
const COPIED: [(&str, &str); 6] = [
    ("\"public\".\"types\"", "types"),
    ("\"public\".\"Odd \"\"Name\"", "Odd \"Name"),
    ("\"public\".\"part1\"", "part"),
    ("\"public\".\"part2\"", "part"),
    ("\"public\".\"listed\"", "listed"),
    ("\"public\".\"filtered\"", "filtered"),
];

fn table<'a>(tables: &'a [Table], name: &str) -> &'a Table {
    tables.iter().find(|table| table.name == name).unwrap()
}

async fn read(client: &Client, publication: &str) -> CatalogView {
    catalog::read(client, publication).await.unwrap()
}

#[tokio::test]
async fn catalog_tells_what_the_mirror_is() {
    let server = Server::start(&[]).await;
    let sql = server.session(TABLES).await;
    let ours = server.plain_session().await;
    let missing = catalog::read(&ours, "absent").await;
    assert!(matches!(missing, Err(CatalogError::NoPublication { .. })));

    sql.batch_execute("CREATE PUBLICATION every FOR ALL TABLES")
        .await
        .unwrap();
    let view = catalog::read_with_sizes(&ours, "every").await.unwrap();
    assert!(view.server.version_num >= 150_000 && view.server.encoding == "UTF8");
    assert!(view.publication.all_tables && view.publication.truncate && !view.publication.via_root);
    let schema = view.schema().unwrap();
    let names: Vec<_> = schema.tables.iter().map(|table| &*table.name).collect();
    assert_eq!(names, ["types", "Odd \"Name", "part", "listed", "filtered"]);

    let types = table(&schema.tables, "types");
    let kinds: BTreeMap<_, _> = types
        .columns
        .iter()
        .map(|it| (&*it.name, (it.kind.to_string(), &*it.type_name)))
        .collect();
    assert_eq!(kinds.len(), KINDS.len());
    for (name, kind, type_name) in KINDS {
        assert_eq!(kinds[name], (kind.to_owned(), type_name), "{name}");
    }
    let indexes: Vec<_> = types.indexes.iter().map(|index| &*index.name).collect();
    assert_eq!(indexes, ["plain", "covering"]);
    assert_eq!(types.indexes[1].columns.len(), 1);
    assert_eq!(
        types
            .columns
            .iter()
            .find(|it| it.name == "late")
            .unwrap()
            .attnum,
        22
    );

    let odd = table(&schema.tables, "Odd \"Name");
    let key: Vec<_> = odd.key.iter().map(|at| &*odd.columns[*at].name).collect();
    assert_eq!(key, ["z", "x"]);
    assert_eq!(table(&schema.tables, "part").columns[2].kind, Kind::Text);

    let plan = view.copy_plan(&schema);
    let copied: Vec<_> = plan
        .iter()
        .map(|it| (&*it.quoted_name, &*it.table.name))
        .collect();
    assert_eq!(copied, COPIED);
    let composites: Vec<_> = view
        .types
        .iter()
        .map(|(name, shape)| format!("{name}: {shape}"))
        .collect();
    assert!(
        composites
            .iter()
            .any(|it| it.ends_with("public.mood: [\"sad\",\"glad\"]")),
        "{composites:?}"
    );
    assert!(
        composites.iter().any(|it| it.contains("public.pair: ")),
        "{composites:?}"
    );
}

/// The filters with which a copy would read.
async fn filters(client: &Client, view: &CatalogView, schema: &Schema) -> Vec<String> {
    let mut plan = view.copy_plan(schema);
    catalog::read_filters(client, view.publication.oid, &mut plan)
        .await
        .unwrap();
    plan.into_iter().filter_map(|table| table.filter).collect()
}

#[tokio::test]
async fn lists_filters_schemas_and_roots_are_honoured() {
    let server = Server::start(&[]).await;
    let sql = server.session(TABLES).await;
    let ours = server.plain_session().await;
    sql.batch_execute(
        "CREATE PUBLICATION listed FOR TABLE listed (id, b), filtered WHERE (id > 5);
         CREATE PUBLICATION roots FOR TABLE part WHERE (id > 7) WITH (publish_via_partition_root);
         CREATE PUBLICATION middle FOR TABLE sub; CREATE PUBLICATION leaf FOR TABLE part2;
         CREATE PUBLICATION schemas FOR TABLES IN SCHEMA public, rindle;",
    )
    .await
    .unwrap();
    let view = read(&ours, "listed").await;
    let schema = view.schema().unwrap();
    let columns: Vec<_> = schema.tables[0]
        .columns
        .iter()
        .map(|it| &*it.name)
        .collect();
    assert_eq!(columns, ["id", "b"]);
    assert_eq!(filters(&ours, &view, &schema).await, ["(id > 5)"]);

    let view = read(&ours, "roots").await;
    assert_eq!((view.tables.len(), view.leaf_pairs().len()), (1, 2));
    let error = view.schema().unwrap_err().to_string();
    assert!(
        error.contains("row filter") && error.contains("\"v\""),
        "{error}"
    );
    sql.batch_execute(
        "ALTER TABLE part1 REPLICA IDENTITY FULL; ALTER TABLE part2 REPLICA IDENTITY FULL",
    )
    .await
    .unwrap();
    let view = read(&ours, "roots").await;
    let schema = view.schema().unwrap();
    assert_eq!(filters(&ours, &view, &schema).await, ["(id > 7)"; 2]);

    for (publication, root) in [("middle", "sub"), ("leaf", "part2")] {
        let view = read(&ours, publication).await;
        assert_eq!(view.schema().unwrap().tables[0].name, root);
    }
    let view = read(&ours, "schemas").await;
    assert_eq!(view.schema().unwrap().tables.len(), 5);

    // Changes show as differences; those that no lock keeps void a copy.
    let schema = view.schema().unwrap();
    sql.batch_execute("ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'")
        .await
        .unwrap();
    let later = read(&ours, "schemas").await;
    assert!(
        view.copy_facts_differ(&later)
            .unwrap()
            .ends_with("public.mood")
    );
    let facts = catalog::read_facts(&ours, "schemas").await.unwrap();
    let first = First {
        facts: facts.clone(),
        snapshot: "3:3:".parse().unwrap(),
    };
    let believed = Believed::new(first, schema);
    assert_eq!(believed.differences(&facts), []);
    sql.batch_execute("ALTER TABLE listed ADD c int; ALTER TABLE part DETACH PARTITION part1")
        .await
        .unwrap();
    let now = catalog::read_facts(&ours, "schemas").await.unwrap();
    let found = believed.differences(&now).remove(0);
    assert_eq!(
        (&*found.object, &*found.detail),
        ("public.listed", "column \"c\" is new")
    );
}

#[tokio::test]
async fn a5_facts_under_a_snapshot_show_its_leaves_and_types() {
    let server = Server::start(&[]).await;
    let sql = server.session(TABLES).await;
    let ours = server.plain_session().await;
    sql.batch_execute("CREATE PUBLICATION every FOR ALL TABLES")
        .await
        .unwrap();
    let old = server.plain_session().await;
    old.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")
        .await
        .unwrap();
    sql.batch_execute("ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'")
        .await
        .unwrap();
    let (then, now) = (read(&old, "every").await, read(&ours, "every").await);
    assert!(
        then.copy_facts_differ(&now)
            .unwrap()
            .ends_with("public.mood")
    );
    assert_eq!(now.copy_facts_differ(&now), None);
}

#[tokio::test]
async fn slots_are_inspected_and_dropped() {
    let server = Server::start(&[]).await;
    let sql = server.session("CREATE PUBLICATION p").await;
    assert_eq!(slot::inspect(&sql, "s").await.unwrap(), None);
    assert!(!slot::drop(&sql, "s").await.unwrap());
    let mut stream = WalStream::connect(&server.endpoint(), "test")
        .await
        .unwrap();
    let created = stream.create_slot("s", false, false).await.unwrap();
    let idle = slot::inspect(&sql, "s").await.unwrap().unwrap();
    assert_eq!(idle.confirmed_flush, Some(created.consistent_point));
    assert_eq!(
        (idle.active, idle.lost, idle.plugin.as_deref()),
        (false, None, Some("pgoutput"))
    );
    stream
        .start("s", created.consistent_point, "p")
        .await
        .unwrap();
    let used = slot::inspect(&sql, "s").await.unwrap().unwrap();
    assert_eq!(used.active_pid, Some(stream.backend_pid()));
    let held = slot::drop(&sql, "s").await.unwrap_err();
    assert_eq!(held.code().map(|code| code.code()), Some("55006"));
}

#[tokio::test]
async fn invalidated_slot_is_told_as_lost() {
    let server = Server::start(&[
        "max_slot_wal_keep_size=1MB",
        "min_wal_size=32MB",
        "max_wal_size=32MB",
    ])
    .await;
    let sql = server
        .session("CREATE TABLE t(v text); CREATE PUBLICATION p FOR TABLE t")
        .await;
    let mut stream = WalStream::connect(&server.endpoint(), "test")
        .await
        .unwrap();
    let created = stream.create_slot("s", false, false).await.unwrap();
    for _ in 0..4 {
        sql.batch_execute("INSERT INTO t SELECT repeat('x', 500) FROM generate_series(1, 40000); SELECT pg_switch_wal(); CHECKPOINT")
            .await
            .unwrap();
    }
    let lost = slot::inspect(&sql, "s").await.unwrap().unwrap();
    assert!(lost.lost.is_some(), "{lost:?}");
    let refused = stream
        .start("s", created.consistent_point, "p")
        .await
        .unwrap_err();
    assert_eq!(refused.sqlstate(), Some("55000"), "{refused}");
}
