//! Migration tools as their users run them, step by step, while the gateway and a follower run. Their migrations lie in
//! `drills/tools`; infra/setup.sh installs the tools.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use rindle_drills::{
    cluster::Cluster,
    postgres::{Server, tools},
};

const STEPS: usize = 7;

async fn running(server: &Server, name: &str) -> Cluster {
    server.create_database(name, "").await.unwrap();
    let mut cluster = Cluster::new(server, name, name).await.unwrap();
    cluster.prepare(&[]).await.unwrap();
    cluster.mint().await.unwrap();
    cluster.start_gateway().await.unwrap();
    let first = cluster.add_follower().await.unwrap();
    cluster.must_be_equal(first).await.unwrap();
    cluster
}

fn migrations(tool: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tools")
        .join(tool)
}

/// Runs one step of a tool, which must succeed.
fn run(cluster: &Cluster, server: &Server, command: &mut Command) {
    let output = command
        .env("PGPORT", server.port().to_string())
        .env("PGDATABASE", &cluster.database)
        .env("PUBLICATION", &cluster.publication)
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(
        output.status.success() && !said.contains("ERROR"),
        "{command:?}: {said}"
    );
}

/// Each step is followed; at the end an image says the same.
async fn follow(name: &str, setup: &str, step: impl Fn(usize) -> Command) {
    let server = Server::start().await.unwrap();
    let mut cluster = running(&server, name).await;
    cluster.session.run(setup).await.unwrap();
    for number in 1..=STEPS {
        run(&cluster, &server, &mut step(number));
        let followed = cluster.must_follow(0).await;
        followed.unwrap_or_else(|error| panic!("{name}, step {number}: {error:#}"));
    }
    cluster.produce().await.unwrap();
    let second = cluster.add_follower_from_image().await.unwrap();
    cluster.must_be_equal(second).await.unwrap();
}

#[tokio::test]
async fn alembic() {
    let packages = tools().unwrap().join("python");
    follow("alembic", "", |_| {
        let mut command = Command::new("python3");
        command
            .env("PYTHONPATH", &packages)
            .env("PYTHONDONTWRITEBYTECODE", "1");
        command
            .args(["-m", "alembic", "-c"])
            .arg(migrations("alembic").join("alembic.ini"));
        command.args(["upgrade", "+1"]);
        command
    })
    .await;
}

#[tokio::test]
async fn knex() {
    let packages = tools().unwrap().join("node/node_modules");
    follow("knex", "", |_| {
        let mut command = Command::new("node");
        command
            .env("NODE_PATH", &packages)
            .arg(migrations("knex").join("up.js"));
        command
    })
    .await;
}

#[tokio::test]
async fn versioned_sql() {
    let folder = migrations("sql");
    let mut files: Vec<PathBuf> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    assert_eq!(files.len(), STEPS);
    follow(
        "versioned",
        "create table version(number int primary key)",
        |number| {
            let mut command = Command::new("psql");
            command.args([
                "-X",
                "-q",
                "-v",
                "ON_ERROR_STOP=1",
                "-h",
                "127.0.0.1",
                "-U",
                "postgres",
            ]);
            // As a shell would, psql fills in the name of the publication.
            command
                .args(["-v", "publication=rindle_versioned", "-f"])
                .arg(&files[number - 1]);
            command
        },
    )
    .await;
}
