//! Migrations while everything runs: the mirror ends equal to the source, and so does one that starts from an image.

use std::time::Duration;

use rindle_drills::{
    cluster::Cluster,
    migrations::{ALL, Migration},
    postgres::{Options, Server, version_from_env},
    wait,
};

const SETTLED_WITHIN: Duration = Duration::from_secs(120);

async fn server() -> Server {
    let conf = [
        "max_prepared_transactions = 5",
        "wal_sender_timeout = '20s'",
    ];
    let options = Options {
        conf: conf.map(str::to_owned).to_vec(),
        fresh: false,
    };
    Server::start_with(version_from_env(), options)
        .await
        .unwrap()
}

/// A cluster in which everything that `migrations` need is published and copied.
async fn started(server: &Server, name: &str, migrations: &[&Migration]) -> Cluster {
    server.create_database(name, "").await.unwrap();
    let mut cluster = Cluster::new(server, name, name).await.unwrap();
    for migration in migrations {
        let made = server.psql(name, migration.setup).unwrap();
        assert!(!made.contains("ERROR"), "{}: {made}", migration.name);
    }
    let tables: Vec<&str> = migrations
        .iter()
        .flat_map(|it| it.tables)
        .copied()
        .collect();
    cluster.prepare(&tables).await.unwrap();
    cluster.mint().await.unwrap();
    cluster.start_gateway().await.unwrap();
    let first = cluster.add_follower().await.unwrap();
    cluster
        .follower(first)
        .unwrap()
        .until_ready(SETTLED_WITHIN)
        .await
        .unwrap();
    cluster
}

/// Ends of copies that the source was told, by what they were of.
const COPIED: &str = "select coalesce(sum(jsonb_array_length(facts->'copied'->'targets')), 0)::text from rindle.published_schema \
     where facts->'copied'->'targets' is not null";

/// Gives what is wrong with the copies that it caused.
async fn run(cluster: &mut Cluster, server: &Server, migration: &Migration) -> Option<String> {
    let before = cluster.session.text(COPIED).await.unwrap();
    for step in migration.steps {
        let step = step.replace("{pub}", &cluster.publication);
        let said = server.psql(&cluster.database, &step).unwrap();
        assert!(
            !said.contains("ERROR"),
            "{}: {step}: {said}",
            migration.name
        );
    }
    let equal = cluster.must_follow(0).await;
    equal.unwrap_or_else(|error| panic!("{}: {error:#}", migration.name));
    let after = cluster.session.text(COPIED).await.unwrap();
    let name = migration.name;
    let wrong = (before != after) != migration.copies;
    wrong.then(|| format!("{name}: {before} copies before, {after} after"))
}

/// Every migration, one after the other in one database; at the end a follower from an image, and one that has the
/// archive alone.
#[tokio::test]
async fn every_migration_is_followed() {
    let server = server().await;
    let all: Vec<&Migration> = ALL.iter().collect();
    let mut cluster = started(&server, "migrations", &all).await;
    let mut wrong = Vec::new();
    for migration in ALL {
        wrong.extend(run(&mut cluster, &server, migration).await);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    cluster.produce().await.unwrap();
    let second = cluster.add_follower_from_image().await.unwrap();
    cluster.must_be_equal(second).await.unwrap();
}

/// All of them, and the gateway is killed and started again after each step.
#[tokio::test]
async fn each_step_is_followed_over_a_restart() {
    let server = server().await;
    let all: Vec<&Migration> = ALL.iter().collect();
    let mut cluster = started(&server, "restarts", &all).await;
    for migration in ALL {
        for step in migration.steps {
            let step = step.replace("{pub}", &cluster.publication);
            let said = server.psql(&cluster.database, &step).unwrap();
            assert!(
                !said.contains("ERROR"),
                "{}: {step}: {said}",
                migration.name
            );
            cluster.gateway().unwrap().kill().await.unwrap();
            cluster.start_gateway().await.unwrap();
        }
    }
    cluster.must_follow(0).await.unwrap();
}

/// A gateway whose role has what `prepare --role` gives, and no more. A table that row-level security hides from it is not
/// copied in part: it is named, and copied once the role sees past it.
#[tokio::test]
async fn a_role_of_few_rights_copies_whole_tables_or_none() {
    let server = server().await;
    server.create_database("fewrights", "").await.unwrap();
    let mut cluster = Cluster::new(&server, "fewrights", "fewrights")
        .await
        .unwrap();
    let setup = "drop role if exists gate; create role gate login replication; \
        create table seen(id int primary key, v text); insert into seen select n, 'v' from generate_series(1, 100) n; \
        create policy own on seen using (id < 10)";
    cluster.session.run(setup).await.unwrap();
    cluster.add_marker(None).await.unwrap();
    let tables = [
        "--tables",
        "public.seen,public.drill_marker",
        "--role",
        "gate",
    ];
    cluster
        .pg("prepare", &tables)
        .await
        .unwrap()
        .must_succeed()
        .unwrap();
    cluster.mint().await.unwrap();
    cluster.gateway_config = serde_json::json!({"postgres": {"user": "gate"}});
    cluster.start_gateway().await.unwrap();
    let first = cluster.add_follower().await.unwrap();
    cluster
        .follower(first)
        .unwrap()
        .until_ready(SETTLED_WITHIN)
        .await
        .unwrap();

    cluster
        .session
        .run("alter table seen alter v type text using upper(v)")
        .await
        .unwrap();
    cluster.must_follow(0).await.unwrap();

    cluster
        .session
        .run("alter table seen enable row level security")
        .await
        .unwrap();
    cluster
        .pg("resync", &["--table", "public.seen"])
        .await
        .unwrap()
        .must_succeed()
        .unwrap();
    wait::until_true(
        "row-level security to be named",
        SETTLED_WITHIN,
        async || {
            let status = cluster.gateway_status().await?;
            Ok(status["backfills"].to_string().contains("BYPASSRLS"))
        },
    )
    .await
    .unwrap();
    cluster
        .session
        .run("alter role gate bypassrls")
        .await
        .unwrap();
    cluster.must_follow(0).await.unwrap();
}
