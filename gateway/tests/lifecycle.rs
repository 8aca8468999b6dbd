//! prepare, mint and verify against a real server.

use rindle_archive::{Archive, BackupConfig};
use rindle_gateway::lifecycle::examine::SourceRequest;
use rindle_gateway::lifecycle::mint::mint;
use rindle_gateway::lifecycle::prepare::{PrepareRequest, Prepared, prepare};
use rindle_gateway::lifecycle::verify::{self, Digests, compare};
use rindle_gateway::lifecycle::{Finding, LifecycleError, TableName};
use rindle_gateway::pg::endpoint::{Endpoint, SslMode};
use rindle_proto::ids::SourceName;
use tempfile::TempDir;
use tokio_postgres::Client;

use crate::postgres::Server;

fn source() -> SourceName {
    "my-app".parse().unwrap()
}

fn preparing(server: &Server, tables: &str) -> PrepareRequest {
    PrepareRequest {
        endpoint: server.endpoint(),
        source: source(),
        publication: None,
        tables: TableName::parse_list(tables).unwrap(),
        role: None,
        client_mutations: false,
        prune: false,
        dry_run: false,
    }
}

async fn prepared(server: &Server, tables: &str) -> Prepared {
    prepare(&preparing(server, tables)).await.unwrap()
}

fn minting(endpoint: Endpoint, publication: &str) -> SourceRequest {
    let publication = Some(publication.to_owned());
    SourceRequest {
        endpoint,
        source: source(),
        publication,
        tables: vec![],
        provider: None,
        provider_managed: false,
    }
}

async fn archive(dir: &TempDir) -> Archive {
    let config = BackupConfig::Filesystem {
        path: dir.path().to_owned(),
    };
    Archive::open(&config, &source()).await.unwrap()
}

/// What `mint` refuses.
async fn refused(endpoint: Endpoint, publication: &str) -> Vec<Finding> {
    let dir = TempDir::new().unwrap();
    let archive = archive(&dir).await;
    let error = mint(&archive, &minting(endpoint, publication))
        .await
        .unwrap_err();
    assert!(error.is_refused(), "{error:?}");
    assert_eq!(
        archive.generations().await.unwrap(),
        [],
        "nothing is minted when anything is refused"
    );
    let mut found = findings(error);
    found.retain(Finding::is_fatal);
    found
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

async fn text(client: &Client, sql: &str) -> String {
    client
        .query_one(sql, &[])
        .await
        .unwrap()
        .get::<_, Option<String>>(0)
        .unwrap_or_default()
}

const PUBLISHED: &str = "SELECT string_agg(tablename, ',' ORDER BY tablename) FROM pg_publication_tables \
                         WHERE pubname = 'rindle_my_app'";

#[tokio::test]
async fn prepare_makes_writes_down_and_repeats() {
    let server = Server::start(&[]).await;
    let client = server
        .session(
            "CREATE TABLE a(id int PRIMARY KEY); CREATE TABLE b(id int PRIMARY KEY);
                  CREATE TABLE parent(id int PRIMARY KEY); CREATE TABLE child() INHERITS (parent)",
        )
        .await;
    let dry = PrepareRequest {
        dry_run: true,
        ..preparing(&server, "a,parent")
    };
    let planned = prepare(&dry).await.unwrap().statements;
    assert_eq!(
        text(&client, "SELECT to_regnamespace('rindle')::text").await,
        ""
    );

    let first = prepared(&server, "a,parent").await;
    assert_eq!(first.statements, planned);
    assert_eq!(
        text(&client, PUBLISHED).await,
        "a,parent",
        "children only when they are named"
    );
    let made = "SELECT string_agg(kind || ' ' || name || ' ' || source, ',' ORDER BY kind, name) FROM rindle.ledger
                WHERE kind IN ('publication', 'schema') OR name = 'rindle.ledger'";
    let made = text(&client, made).await;
    assert_eq!(
        made,
        "publication rindle_my_app my-app,schema rindle ,table rindle.ledger "
    );
    let options = "SELECT (pubinsert AND pubupdate AND pubdelete AND pubtruncate AND NOT pubviaroot)::text \
                   FROM pg_publication";
    assert_eq!(text(&client, options).await, "true");

    assert_eq!(prepared(&server, "a,parent").await.statements.len(), 0);
    assert_eq!(prepared(&server, "b").await.extra_tables.len(), 2);
    assert_eq!(text(&client, PUBLISHED).await, "a,b,parent");
    let prune = PrepareRequest {
        prune: true,
        client_mutations: true,
        ..preparing(&server, "a")
    };
    prepare(&prune).await.unwrap();
    assert_eq!(text(&client, PUBLISHED).await, "_rindle_client_mutations,a");
    // Dropped by hand, it is made again.
    client
        .batch_execute("DROP PUBLICATION rindle_my_app")
        .await
        .unwrap();
    assert!(prepared(&server, "a").await.ours);
    assert_eq!(text(&client, PUBLISHED).await, "a");
}

#[tokio::test]
async fn prepare_never_breaks_the_applications_writes() {
    let server = Server::start(&[]).await;
    let client = server
        .session(
            "CREATE TABLE good(id int PRIMARY KEY); CREATE TABLE keyless(id int);
                  CREATE TABLE late(id int PRIMARY KEY DEFERRABLE);
                  CREATE TABLE odd(id int PRIMARY KEY, \"X\" int, x int)",
        )
        .await;
    let error = prepare(&preparing(&server, "good,keyless,late"))
        .await
        .unwrap_err();
    assert_eq!(ids(&findings(error)), ["NoRowKey", "RowKeyDeferrable"]);
    assert_eq!(
        text(&client, "SELECT to_regnamespace('rindle')::text").await,
        "",
        "rolled back"
    );
    client
        .batch_execute("UPDATE keyless SET id = 1; UPDATE late SET id = 1")
        .await
        .unwrap();
    // What only a mirror could not bear is told, and left to mint.
    assert_eq!(
        ids(&prepared(&server, "good,odd").await.findings),
        ["ColumnNamesCollide"]
    );
}

#[tokio::test]
async fn a_publication_that_is_not_ours_is_used_as_it_is() {
    let server = Server::start(&[]).await;
    let client = server
        .session(
            "CREATE TABLE a(id int PRIMARY KEY, b int, c int); CREATE TABLE d(id int PRIMARY KEY);
                  CREATE PUBLICATION theirs FOR TABLE a(id, b) WHERE (id > 5)",
        )
        .await;
    let request = PrepareRequest {
        publication: Some("theirs".to_owned()),
        ..preparing(&server, "a,d")
    };
    let found = findings(prepare(&request).await.unwrap_err());
    assert_eq!(
        found[0].mend,
        r#"ALTER PUBLICATION "theirs" ADD TABLE "public"."d""#
    );
    client.batch_execute(&found[0].mend).await.unwrap();
    assert!(!prepare(&request).await.unwrap().ours);
    let dir = TempDir::new().unwrap();
    let minted = mint(&archive(&dir).await, &minting(server.endpoint(), "theirs"))
        .await
        .unwrap();
    let columns: Vec<usize> = minted
        .record
        .schema
        .tables
        .iter()
        .map(|table| table.columns.len())
        .collect();
    assert_eq!(columns, [2, 1]);
    let options = "SELECT rowfilter FROM pg_publication_tables WHERE tablename = 'a'";
    assert_eq!(text(&client, options).await, "(id > 5)");
}

#[tokio::test]
async fn mint_records_what_it_saw_and_points_at_the_first() {
    let server = Server::start(&[]).await;
    let client = server
        .session("CREATE TABLE a(id int PRIMARY KEY, v text)")
        .await;
    prepared(&server, "a").await;
    let dir = TempDir::new().unwrap();
    let archive = archive(&dir).await;
    let request = SourceRequest {
        publication: None,
        ..minting(server.endpoint(), "")
    };
    let first = mint(&archive, &request).await.unwrap();
    let id = text(
        &client,
        "SELECT system_identifier::text FROM pg_control_system()",
    )
    .await;
    let record = &first.record;
    assert_eq!(
        (
            &*record.system_identifier,
            record.timeline.0,
            &*record.database
        ),
        (&*id, 1, "postgres")
    );
    assert_eq!(record.slot, source().slot_name(record.generation));
    assert_eq!(
        (&*record.publication, &*record.posture),
        ("rindle_my_app", "fencing")
    );
    assert_eq!(record.schema.tables[0].name, "a");
    let second = mint(&archive, &request).await.unwrap();
    assert_eq!(
        second.current, record.generation,
        "the pointer is moved by cutover only"
    );
    assert_eq!(
        archive.generations().await.unwrap(),
        [first.record.clone(), second.record]
    );
    assert_eq!(
        text(&client, "SELECT count(*)::text FROM pg_replication_slots").await,
        "0"
    );
    let named = SourceRequest {
        tables: TableName::parse_list("a,other").unwrap(),
        ..request
    };
    let found = findings(mint(&archive, &named).await.unwrap_err());
    assert!(found[0].seen.contains("carries public.a"), "{}", found[0]);
}

#[tokio::test]
async fn mint_refuses_by_name_and_the_mend_clears_it() {
    let server = Server::start(&[]).await;
    let client = server
        .session("CREATE TABLE cased(id int PRIMARY KEY, \"Name\" text, name text, \"NAME\" text);
                  CREATE TABLE fit(id int PRIMARY KEY, v text);
                  CREATE TABLE late(id int CONSTRAINT late_pk PRIMARY KEY DEFERRABLE);
                  CREATE TABLE part(id int PRIMARY KEY) PARTITION BY RANGE (id);
                  CREATE UNLOGGED TABLE leaf PARTITION OF part FOR VALUES FROM (0) TO (9);
                  CREATE TABLE filtered(id int PRIMARY KEY, v text);
                  CREATE TABLE nothing(id int PRIMARY KEY); ALTER TABLE nothing REPLICA IDENTITY NOTHING;
                  CREATE PUBLICATION pub FOR TABLE cased, fit, late, part, nothing, filtered WHERE (id > 1)
                    WITH (publish = 'insert')")
        .await;
    let found = refused(server.endpoint(), "pub").await;
    let mut by_id = ids(&found);
    by_id.sort_unstable();
    let wanted = [
        "ColumnNamesCollide",
        "PublicationOperations",
        "RowFilterToast",
        "RowKeyDeferrable",
        "RowKeyNotIdentity",
        "Unlogged",
    ];
    assert_eq!(by_id, wanted, "{found:#?}");
    let cased = found
        .iter()
        .find(|one| one.id == "ColumnNamesCollide")
        .unwrap();
    assert_eq!(cased.object.as_deref(), Some("public.cased"));
    assert!(cased.seen.contains(r#""Name", "name", "NAME""#), "{cased}");
    for finding in found.iter().filter(|one| one.id != "ColumnNamesCollide") {
        let mend = finding.mend.split(", or ").next().unwrap();
        let done = client.batch_execute(mend).await;
        assert!(done.is_ok(), "{finding}: {done:?}");
    }
    client
        .batch_execute("ALTER PUBLICATION pub DROP TABLE public.cased")
        .await
        .unwrap();
    let dir = TempDir::new().unwrap();
    mint(&archive(&dir).await, &minting(server.endpoint(), "pub"))
        .await
        .unwrap();
}

#[tokio::test]
async fn mint_refuses_a_role_that_cannot_do_the_work() {
    let server = Server::start(&[]).await;
    let client = server
        .session("CREATE TABLE a(id int PRIMARY KEY); CREATE TABLE b(id int PRIMARY KEY);
                  ALTER TABLE b ENABLE ROW LEVEL SECURITY; CREATE ROLE gate LOGIN; GRANT SELECT ON b TO gate;
                  CREATE PUBLICATION pub FOR TABLE a, b")
        .await;
    let gate = server.tcp("127.0.0.1", "gate", "", SslMode::Disable);
    let found = refused(gate.clone(), "pub").await;
    assert_eq!(
        ids(&found),
        ["NoSelect", "RowSecurity", "NoReplicationRight"]
    );
    for finding in &found {
        client.batch_execute(&finding.mend).await.unwrap();
    }
    let dir = TempDir::new().unwrap();
    mint(&archive(&dir).await, &minting(gate, "pub"))
        .await
        .unwrap();
}

#[tokio::test]
async fn mint_refuses_a_server_that_cannot_stream() {
    let settings = [
        "wal_level=replica",
        "max_replication_slots=1",
        "max_wal_senders=0",
    ];
    let server = Server::start(&settings).await;
    assert_eq!(
        ids(&refused(server.endpoint(), "pub").await),
        ["WalLevel", "NoFreeSender", "PublicationMissing"]
    );
    let client = server.session("").await;
    let ascii =
        "CREATE DATABASE ascii ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0";
    client.batch_execute(ascii).await.unwrap();
    let endpoint = Endpoint {
        database: "ascii".to_owned(),
        ..server.endpoint()
    };
    let found = refused(endpoint, "pub").await;
    assert_eq!(
        ids(&found),
        ["WalLevel", "Encoding", "NoFreeSender", "PublicationMissing"]
    );
    assert!(found[1].seen.contains("SQL_ASCII"), "{}", found[1]);
}

async fn digests(server: &Server) -> Digests {
    let exported = verify::export(&server.endpoint(), &source(), "rindle_my_app")
        .await
        .unwrap();
    exported.keep().await.unwrap().digests().await.unwrap()
}

#[tokio::test]
async fn one_changed_cell_is_found_and_nothing_else() {
    let server = Server::start(&[]).await;
    let client = server
        .session(
            "CREATE TABLE a(id int PRIMARY KEY, v numeric, t text[]);
                  CREATE TABLE part(id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
                  CREATE TABLE low PARTITION OF part FOR VALUES FROM (0) TO (50);
                  CREATE TABLE high PARTITION OF part FOR VALUES FROM (50) TO (500);
                  INSERT INTO a SELECT n, n * 1.10, ARRAY['x', NULL] FROM generate_series(1, 300) n;
                  INSERT INTO part SELECT n, 'v' FROM generate_series(1, 99) n",
        )
        .await;
    prepared(&server, "a,part").await;
    let before = digests(&server).await;
    let rows: Vec<_> = before
        .iter()
        .map(|(name, digest)| (&**name, digest.rows))
        .collect();
    assert_eq!(rows, [("a", 300), ("part", 99)]);
    assert_eq!(before, digests(&server).await);
    let differs = async |sql: &str| {
        client.batch_execute(sql).await.unwrap();
        let after = digests(&server).await;
        let compared = compare(&before, &after);
        let differing = compared
            .into_iter()
            .filter(|one| !one.equal)
            .map(|one| one.table);
        differing.collect::<Vec<_>>().join(",")
    };
    // A numeric's scale is part of its text.
    assert_eq!(differs("UPDATE a SET v = 22.000 WHERE id = 20").await, "a");
    assert_eq!(differs("UPDATE a SET v = 22.00 WHERE id = 20").await, "");
    assert_eq!(
        differs("UPDATE part SET v = 'w' WHERE id = 70").await,
        "part"
    );
    assert_eq!(differs("UPDATE part SET v = 'v' WHERE id = 70").await, "");
    assert_eq!(
        differs("UPDATE a SET t = '{x,\"NULL\"}' WHERE id = 1; DELETE FROM part WHERE id = 1")
            .await,
        "a,part"
    );
    assert_eq!(
        text(&client, "SELECT count(*)::text FROM pg_replication_slots").await,
        "0"
    );
}

#[tokio::test]
async fn a_snapshot_shows_its_position_and_no_later_row() {
    let server = Server::start(&[]).await;
    let client = server
        .session("CREATE TABLE a(id int PRIMARY KEY); INSERT INTO a VALUES (1)")
        .await;
    prepared(&server, "a").await;
    let exported = verify::export(&server.endpoint(), &source(), "rindle_my_app")
        .await
        .unwrap();
    client
        .batch_execute("INSERT INTO a VALUES (2)")
        .await
        .unwrap();
    let snapshot = exported.keep().await.unwrap();
    client
        .batch_execute("INSERT INTO a VALUES (3)")
        .await
        .unwrap();
    assert_eq!(snapshot.digests().await.unwrap()["a"].rows, 1);

    let exported = verify::export(&server.endpoint(), &source(), "rindle_my_app")
        .await
        .unwrap();
    let snapshot = exported.keep().await.unwrap();
    client
        .batch_execute("ALTER TABLE a RENAME TO b")
        .await
        .unwrap();
    let error = snapshot.digests().await.unwrap_err();
    assert!(
        matches!(
            error,
            LifecycleError::Changed { .. } | LifecycleError::Postgres { .. }
        ),
        "{error:?}"
    );
}
