//! Each rule of admission, broken alone on a real server: not found before, found after, and gone again once the
//! mend that the finding gives was run.

use rindle_gateway::lifecycle::Finding;
use rindle_gateway::lifecycle::TableName;
use rindle_gateway::lifecycle::examine::SourceRequest;
use rindle_gateway::lifecycle::preflight::{Preflight, preflight};
use rindle_gateway::pg::conn;
use rindle_gateway::pg::endpoint::{Endpoint, SslMode};
use tokio_postgres::Client;

use crate::postgres::{Pooler, Server};

/// One rule.
struct Rule {
    id: &'static str,
    /// Makes `pub` and what it publishes, all of it right.
    setup: &'static str,
    /// Breaks the rule.
    breaks: &'static str,
    /// How to mend it where the finding names no statement, or more than one.
    mend: Mend,
}

enum Mend {
    /// The finding's own words, up to the first of these marks.
    Says,
    /// A choice of the operator.
    Chosen(&'static str),
}

const TABLE: &str =
    "CREATE TABLE t(id int PRIMARY KEY, v text); CREATE PUBLICATION pub FOR TABLE t";

const RULES: [Rule; 22] = [
    Rule {
        id: "PublicationMissing",
        setup: TABLE,
        breaks: "DROP PUBLICATION pub",
        mend: Mend::Chosen("CREATE PUBLICATION pub FOR TABLE t"),
    },
    Rule {
        id: "PublicationOperations",
        setup: TABLE,
        breaks: "ALTER PUBLICATION pub SET (publish = 'insert, update')",
        mend: Mend::Says,
    },
    Rule {
        id: "NoRowKey",
        setup: TABLE,
        breaks: "ALTER TABLE t DROP CONSTRAINT t_pkey",
        mend: Mend::Chosen("ALTER TABLE t ADD PRIMARY KEY (id)"),
    },
    Rule {
        id: "RowKeyNotIdentity",
        setup: TABLE,
        breaks: "ALTER TABLE t REPLICA IDENTITY NOTHING",
        mend: Mend::Says,
    },
    Rule {
        id: "RowKeyNotIdentity",
        setup: "CREATE TABLE t(id int NOT NULL UNIQUE); ALTER TABLE t REPLICA IDENTITY USING INDEX t_id_key; \
                CREATE PUBLICATION pub FOR TABLE t",
        breaks: "ALTER TABLE t REPLICA IDENTITY DEFAULT",
        mend: Mend::Says,
    },
    Rule {
        id: "RowKeyDeferrable",
        setup: TABLE,
        breaks: "ALTER TABLE t DROP CONSTRAINT t_pkey; ALTER TABLE t ADD CONSTRAINT t_pkey PRIMARY KEY (id) DEFERRABLE",
        mend: Mend::Says,
    },
    Rule {
        id: "RowKeyGenerated",
        setup: TABLE,
        breaks: "ALTER TABLE t DROP CONSTRAINT t_pkey; ALTER TABLE t ADD g int GENERATED ALWAYS AS (id) STORED; \
                 ALTER TABLE t ADD PRIMARY KEY (g)",
        mend: Mend::Chosen(
            "ALTER TABLE t DROP CONSTRAINT t_pkey; ALTER TABLE t ADD PRIMARY KEY (id)",
        ),
    },
    Rule {
        id: "RowKeyNotPublished",
        setup: TABLE,
        breaks: "ALTER PUBLICATION pub SET TABLE t (v)",
        mend: Mend::Chosen("ALTER PUBLICATION pub SET TABLE t (id, v)"),
    },
    Rule {
        id: "RowFilterToast",
        setup: TABLE,
        breaks: "ALTER PUBLICATION pub SET TABLE t WHERE (id > 1)",
        mend: Mend::Says,
    },
    Rule {
        id: "Unlogged",
        setup: "CREATE TABLE t(id int PRIMARY KEY) PARTITION BY RANGE (id); CREATE PUBLICATION pub FOR TABLE t",
        breaks: "CREATE UNLOGGED TABLE leaf PARTITION OF t FOR VALUES FROM (0) TO (9)",
        mend: Mend::Says,
    },
    Rule {
        id: "LeafKeyDiffers",
        setup: "CREATE TABLE t(id int, v int) PARTITION BY RANGE (id); CREATE UNIQUE INDEX own ON t (id); \
                ALTER TABLE t ALTER id SET NOT NULL; ALTER TABLE t REPLICA IDENTITY FULL; CREATE TABLE leaf(id int NOT \
                NULL, v int); ALTER TABLE leaf REPLICA IDENTITY FULL; CREATE PUBLICATION pub FOR TABLE t",
        // A leaf's own index takes the place of the table's when it is attached; one on a leaf that is a table of its
        // own in another publication is not needed. So the leaf's index is made invalid by hand.
        breaks: "ALTER TABLE t ATTACH PARTITION leaf FOR VALUES FROM (0) TO (9); UPDATE pg_index SET indisvalid = false \
                 WHERE indrelid = 'leaf'::regclass",
        mend: Mend::Says,
    },
    Rule {
        id: "RowKeyNotIdentity",
        setup: "CREATE TABLE t(id int PRIMARY KEY) PARTITION BY RANGE (id); CREATE TABLE leaf PARTITION OF t FOR VALUES \
                FROM (0) TO (9); CREATE PUBLICATION pub FOR TABLE t",
        breaks: "ALTER TABLE leaf REPLICA IDENTITY NOTHING",
        mend: Mend::Says,
    },
    Rule {
        id: "ColumnNamesCollide",
        setup: TABLE,
        breaks: "ALTER TABLE t ADD \"V\" int",
        mend: Mend::Chosen("ALTER TABLE t RENAME \"V\" TO w"),
    },
    Rule {
        id: "TableNamesCollide",
        setup: TABLE,
        breaks: "CREATE TABLE \"T\"(id int PRIMARY KEY); ALTER PUBLICATION pub ADD TABLE \"T\"",
        mend: Mend::Chosen("ALTER TABLE \"T\" RENAME TO u"),
    },
    Rule {
        id: "ReservedName",
        setup: TABLE,
        breaks: "ALTER TABLE t RENAME TO _rindle_t",
        mend: Mend::Chosen("ALTER TABLE _rindle_t RENAME TO t"),
    },
    Rule {
        id: "GeneratedColumn",
        setup: TABLE,
        breaks: "ALTER TABLE t ADD g int GENERATED ALWAYS AS (id * 2) STORED",
        mend: Mend::Chosen("ALTER TABLE t ALTER g DROP EXPRESSION"),
    },
    Rule {
        id: "NameOfObject",
        setup: TABLE,
        breaks: "ALTER TABLE t ADD c regclass",
        mend: Mend::Chosen("ALTER TABLE t ALTER c TYPE text"),
    },
    Rule {
        id: "NotMirrored",
        setup: "CREATE TABLE t(id int PRIMARY KEY); CREATE PUBLICATION pub FOR ALL TABLES",
        breaks: "CREATE UNLOGGED TABLE scratch(id int PRIMARY KEY)",
        mend: Mend::Says,
    },
    Rule {
        id: "NotMirrored",
        setup: "CREATE TABLE t(id int PRIMARY KEY); CREATE PUBLICATION pub FOR TABLES IN SCHEMA public",
        breaks: "CREATE UNLOGGED TABLE scratch(id int PRIMARY KEY)",
        mend: Mend::Says,
    },
    Rule {
        id: "SlotWalLimit",
        setup: TABLE,
        breaks: "ALTER SYSTEM SET max_slot_wal_keep_size = '64MB'; SELECT pg_reload_conf()",
        mend: Mend::Says,
    },
    Rule {
        id: "SlotWalLimit",
        setup: TABLE,
        breaks: "ALTER SYSTEM SET max_slot_wal_keep_size = -1; SELECT pg_reload_conf()",
        mend: Mend::Says,
    },
    Rule {
        id: "PreparedTransaction",
        setup: TABLE,
        breaks: "BEGIN; INSERT INTO t VALUES (1); PREPARE TRANSACTION 'left behind'",
        mend: Mend::Says,
    },
];

fn request(endpoint: Endpoint, tables: &str) -> SourceRequest {
    let tables = match tables {
        "" => vec![],
        tables => TableName::parse_list(tables).unwrap(),
    };
    SourceRequest {
        endpoint,
        source: "my-app".parse().unwrap(),
        publication: Some("pub".to_owned()),
        tables,
        provider: None,
        provider_managed: false,
    }
}

async fn look(endpoint: &Endpoint) -> Preflight {
    preflight(&request(endpoint.clone(), "")).await.unwrap()
}

fn find<'a>(found: &'a Preflight, id: &str) -> Option<&'a Finding> {
    found.findings.iter().find(|one| one.id == id)
}

/// The statements of a mend: what stands before a remark.
fn statements(mend: &str) -> String {
    let cut = [", or ", " or ", ", then restart", " (the WAL"]
        .iter()
        .filter_map(|mark| mend.find(mark))
        .min();
    let first = &mend[..cut.unwrap_or(mend.len())];
    let rest = match mend.contains("then SELECT pg_reload_conf()") {
        true => "; SELECT pg_reload_conf()",
        false => "",
    };
    format!("{first}{rest}")
}

async fn run(client: &Client, sql: &str) {
    // ALTER SYSTEM runs in no transaction, so one statement at a time.
    for statement in sql.split("; ") {
        let done = client.batch_execute(statement).await;
        assert!(done.is_ok(), "{statement}: {done:?}");
    }
}

/// A database of its own for each rule.
async fn database(server: &Server, name: &str) -> (Endpoint, Client) {
    let admin = server.plain_session().await;
    run(&admin, &format!("CREATE DATABASE {name}")).await;
    let endpoint = Endpoint {
        database: name.to_owned(),
        ..server.endpoint()
    };
    let client = conn::connect(&endpoint, "test").await.unwrap();
    run(
        &client,
        "SET search_path = public; SET allow_system_table_mods = on",
    )
    .await;
    (endpoint, client)
}

#[tokio::test]
async fn each_rule_is_found_when_it_is_broken_and_cleared_by_its_mend() {
    let settings = ["max_slot_wal_keep_size=8GB", "max_prepared_transactions=5"];
    let server = Server::start(&settings).await;
    for (n, rule) in RULES.iter().enumerate() {
        let (endpoint, client) = database(&server, &format!("rule{n}")).await;
        run(&client, rule.setup).await;
        let before = look(&endpoint).await;
        assert!(find(&before, rule.id).is_none(), "{}: {before:#?}", rule.id);
        assert!(before.is_admitted(), "{before:#?}");
        run(&client, rule.breaks).await;
        let broken = until(&endpoint, |found| find(found, rule.id).is_some()).await;
        let finding = find(&broken, rule.id).unwrap();
        let mend = match rule.mend {
            Mend::Says => statements(&finding.mend),
            Mend::Chosen(sql) => sql.to_owned(),
        };
        run(&client, &mend).await;
        let after = until(&endpoint, |found| find(found, rule.id).is_none()).await;
        assert!(after.is_admitted(), "{} after {mend}: {after:#?}", rule.id);
    }
}

/// Settings take a moment to reach every session.
async fn until(endpoint: &Endpoint, done: impl Fn(&Preflight) -> bool) -> Preflight {
    let mut tries = 0;
    loop {
        let found = look(endpoint).await;
        tries += 1;
        if done(&found) || tries == 50 {
            return found;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn a_role_needs_its_rights() {
    let server = Server::start(&["max_slot_wal_keep_size=8GB"]).await;
    let client = server
        .session(
            "CREATE TABLE t(id int PRIMARY KEY); CREATE PUBLICATION pub FOR TABLE t;
                  CREATE ROLE gate LOGIN REPLICATION; GRANT SELECT ON t TO gate",
        )
        .await;
    let gate = server.tcp("127.0.0.1", "gate", "", SslMode::Disable);
    let found = look(&gate).await;
    assert!(found.is_admitted(), "{found:#?}");
    // Only a superuser makes event triggers.
    assert!(find(&found, "NoEventTriggerRight").is_some());
    assert!(find(&look(&server.endpoint()).await, "NoEventTriggerRight").is_none());
    let rules = [
        ("NoSelect", "REVOKE SELECT ON t FROM gate"),
        (
            "NoSelect",
            "CREATE SCHEMA s; CREATE TABLE s.u(id int PRIMARY KEY); GRANT SELECT ON s.u TO gate; \
                      ALTER PUBLICATION pub ADD TABLE s.u",
        ),
        ("RowSecurity", "ALTER TABLE t ENABLE ROW LEVEL SECURITY"),
        (
            "RowSecurity",
            "ALTER ROLE gate NOBYPASSRLS; ALTER TABLE t OWNER TO gate; ALTER TABLE t FORCE ROW LEVEL SECURITY",
        ),
        ("NoReplicationRight", "ALTER ROLE gate NOREPLICATION"),
    ];
    for (id, breaks) in rules {
        run(&client, breaks).await;
        let broken = look(&gate).await;
        let finding = find(&broken, id).unwrap_or_else(|| panic!("{id}: {broken:#?}"));
        assert!(finding.is_fatal());
        run(&client, &finding.mend).await;
        let after = look(&gate).await;
        assert!(after.is_admitted(), "{id}: {after:#?}");
    }
    // The owner is not held by policies that are not forced.
    run(
        &client,
        "ALTER ROLE gate NOBYPASSRLS; ALTER TABLE t NO FORCE ROW LEVEL SECURITY",
    )
    .await;
    assert!(look(&gate).await.is_admitted());
}

#[tokio::test]
async fn a7_slots_and_senders_run_out_by_degrees() {
    let server = Server::start(&["max_replication_slots=3", "max_slot_wal_keep_size=8GB"]).await;
    let client = server.session(TABLE).await;
    let slots = async || {
        let found = look(&server.endpoint()).await;
        let fatal = found
            .findings
            .iter()
            .filter(|one| one.id.ends_with("Slot") || one.id.ends_with("Slots"));
        fatal.map(|one| one.id).collect::<Vec<_>>()
    };
    assert!(slots().await.is_empty());
    run(&client, "SELECT pg_create_physical_replication_slot('one')").await;
    assert_eq!(slots().await, ["FewFreeSlots"]);
    run(&client, "SELECT pg_create_physical_replication_slot('two'); SELECT pg_create_physical_replication_slot('three')").await;
    assert_eq!(slots().await, ["NoFreeSlot"]);
    run(
        &client,
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots",
    )
    .await;
    assert!(slots().await.is_empty());

    for (senders, id) in [(0, "NoFreeSender"), (2, "FewFreeSenders")] {
        let server = Server::start(&[&format!("max_wal_senders={senders}")]).await;
        server.session(TABLE).await;
        let found = look(&server.endpoint()).await;
        let all: Vec<&str> = found.findings.iter().map(|one| one.id).collect();
        assert_eq!(all.iter().filter(|one| **one == id).count(), 1, "{all:?}");
    }
}

#[tokio::test]
async fn a_server_that_cannot_be_a_source_is_refused() {
    let server = Server::start(&["wal_level=replica"]).await;
    server.session(TABLE).await;
    let found = look(&server.endpoint()).await;
    let mend = find(&found, "WalLevel").unwrap().mend.clone();
    run(&server.plain_session().await, &statements(&mend)).await;
    let server = server.restart().await;
    assert!(look(&server.endpoint()).await.is_admitted());
    run(
        &server.plain_session().await,
        "CREATE DATABASE bytes ENCODING 'SQL_ASCII' TEMPLATE template0 LOCALE 'C'",
    )
    .await;
    let bytes = Endpoint {
        database: "bytes".to_owned(),
        ..server.endpoint()
    };
    assert!(find(&look(&bytes).await, "Encoding").unwrap().is_fatal());

    let standby = Server::with_files(&[], |data| {
        std::fs::write(data.join("standby.signal"), "").unwrap();
    })
    .await;
    assert!(
        find(&look(&standby.endpoint()).await, "InRecovery")
            .unwrap()
            .is_fatal()
    );
}

#[tokio::test]
async fn a7_an_old_transaction_is_named_whatever_its_database() {
    let server = Server::start(&[]).await;
    let client = server.session(TABLE).await;
    run(&client, "CREATE ROLE eve LOGIN SUPERUSER").await;
    let (elsewhere, _) = database(&server, "elsewhere").await;
    let eve = Endpoint {
        user: "eve".to_owned(),
        ..elsewhere
    };
    let blocker = conn::connect(&eve, "test").await.unwrap();
    blocker
        .batch_execute("BEGIN; CREATE TABLE public.held(id int); SELECT pg_sleep(5.5)")
        .await
        .unwrap();
    let found = look(&server.endpoint()).await;
    let old = find(&found, "OldTransaction").unwrap_or_else(|| panic!("{found:#?}"));
    for word in [
        "eve",
        "elsewhere",
        "idle in transaction",
        "CREATE TABLE public.held",
    ] {
        assert!(old.seen.contains(word), "{old}");
    }
    assert!(found.is_admitted(), "it is waited for");
    run(
        &client,
        old.mend
            .split("or ")
            .nth(1)
            .unwrap()
            .split(';')
            .next()
            .unwrap(),
    )
    .await;
    let found = until(&server.endpoint(), |found| {
        find(found, "OldTransaction").is_none()
    })
    .await;
    assert!(find(&found, "OldTransaction").is_none());
}

#[tokio::test]
async fn tables_that_are_named_are_looked_at_before_they_are_published() {
    let server = Server::start(&[]).await;
    let client = server
        .session("CREATE TABLE good(id int PRIMARY KEY); CREATE TABLE keyless(id int)")
        .await;
    let at = server.endpoint();
    let asked = |tables: &str| request(at.clone(), tables);
    let found = preflight(&asked("good")).await.unwrap();
    assert!(
        found.is_admitted() && find(&found, "NotPrepared").is_some(),
        "{found:#?}"
    );
    let found = preflight(&asked("good,keyless,typo")).await.unwrap();
    for (id, object) in [
        ("NoRowKey", "public.keyless"),
        ("TableMissing", "public.typo"),
    ] {
        assert_eq!(find(&found, id).unwrap().object.as_deref(), Some(object));
    }
    // A publication of somebody else is never altered: its owner is told how.
    run(&client, "CREATE PUBLICATION pub").await;
    let found = preflight(&asked("good")).await.unwrap();
    let lacking = find(&found, "TableNotPublished").unwrap();
    run(&client, &lacking.mend).await;
    assert!(preflight(&asked("good")).await.unwrap().is_admitted());
}

#[tokio::test]
async fn providers_are_found_in_catalogs_of_their_shape() {
    let shapes = [
        ("neon", "CREATE ROLE neon_superuser"),
        ("supabase", "CREATE ROLE supabase_admin"),
        (
            "rds",
            "CREATE ROLE rds_superuser; CREATE ROLE rds_replication",
        ),
        (
            "aurora",
            "CREATE ROLE rds_superuser; CREATE FUNCTION public.aurora_version() RETURNS text LANGUAGE sql AS 'SELECT ''16.1''::text'",
        ),
        ("cloudsql", "CREATE ROLE cloudsqlsuperuser"),
        ("azure", "CREATE ROLE azure_pg_admin"),
    ];
    let server = Server::start(&[]).await;
    for (name, shape) in shapes {
        let (endpoint, client) = database(&server, &format!("shape_{name}")).await;
        run(&client, TABLE).await;
        run(&client, shape).await;
        let found = look(&endpoint).await;
        let provider = serde_json::to_value(found.provider).unwrap();
        assert_eq!(provider, name, "{found:#?}");
        assert!(
            find(&found, "Provider").is_some() && found.is_admitted(),
            "{found:#?}"
        );
        let roles = "DO $$ DECLARE r text; BEGIN FOR r IN SELECT rolname FROM pg_roles WHERE rolname ~ '^(neon|supabase|rds|cloudsql|azure)' \
                     LOOP EXECUTE format('DROP ROLE %I', r); END LOOP; END $$";
        client.batch_execute(roles).await.unwrap();
        assert!(look(&server.endpoint()).await.provider.is_none());
    }
    // Declared where nothing shows it; and denied where something shows another.
    let (endpoint, client) = database(&server, "declared").await;
    run(&client, TABLE).await;
    let declared = |name: &str| SourceRequest {
        provider: Some(name.parse().unwrap()),
        ..request(endpoint.clone(), "")
    };
    assert!(
        preflight(&declared("planetscale"))
            .await
            .unwrap()
            .is_admitted()
    );
    run(&client, "CREATE ROLE neon_superuser").await;
    let found = preflight(&declared("planetscale")).await.unwrap();
    assert!(find(&found, "ProviderDiffers").unwrap().is_fatal());
}

#[tokio::test]
async fn a_pooler_is_known_by_what_it_does() {
    let server = Server::start(&[]).await;
    server.session(TABLE).await;
    assert!(find(&look(&server.endpoint()).await, "Pooler").is_none());
    for (size, more) in [
        (5, ""),
        (5, "ignore_startup_parameters = options"),
        (1, "ignore_startup_parameters = options"),
    ] {
        let pooler = Pooler::start(&server, size, more).await;
        let found = look(&pooler.endpoint(&server)).await;
        let finding = find(&found, "Pooler").unwrap_or_else(|| panic!("{size} {more}: {found:#?}"));
        assert!(
            finding.is_fatal() && found.findings.len() == 1,
            "{found:#?}"
        );
    }
}
