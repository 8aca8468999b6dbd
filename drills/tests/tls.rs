//! Gateway, followers and command line over TLS: who proves nothing is told what is missing, and gets nothing.

use std::{path::Path, process::Command, time::Duration};

use rindle_drills::{cluster::Cluster, postgres::Server, wait};
use serde_json::{Value, json};

const WITHIN: Duration = Duration::from_secs(60);

/// `ca` signs a server for localhost, one that expired, and a client; `other` is another authority.
fn make_certificates(dir: &Path) {
    std::fs::write(dir.join("ext"), "subjectAltName=DNS:localhost").unwrap();
    std::fs::write(dir.join("client"), "extendedKeyUsage=clientAuth").unwrap();
    let steps = [
        "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=ca -keyout ca.key -out ca.crt",
        "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=other -keyout other.key -out other.crt",
        "req -newkey rsa:2048 -nodes -subj /CN=server -keyout server.key -out server.csr",
        "x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile ext -out server.crt",
        "x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days -1 -extfile ext -out expired.crt",
        "req -newkey rsa:2048 -nodes -subj /CN=client -keyout client.key -out client.csr",
        "x509 -req -in client.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile client -out client.crt",
    ];
    for step in steps {
        let made = Command::new("openssl")
            .current_dir(dir)
            .args(step.split_whitespace())
            .output()
            .unwrap();
        assert!(
            made.status.success(),
            "{step}: {}",
            String::from_utf8_lossy(&made.stderr)
        );
    }
}

/// Starts a follower with these keys of its source, and waits until it says why it has nothing.
async fn is_told(cluster: &mut Cluster, source: Value, words: &str) {
    cluster.follower_config = json!({"sources": [source]});
    let number = cluster.add_follower().await.unwrap();
    let follower = cluster.follower(number).unwrap();
    let mut last = String::new();
    let waited = wait::until_true(words, WITHIN, async || {
        let Some(answer) = follower.readyz().await else {
            return Ok(false);
        };
        last = answer.body;
        Ok(answer.status == 503 && last.contains(words))
    })
    .await;
    assert!(waited.is_ok(), "no {words:?}: {last}");
    follower.kill().await.unwrap();
}

#[tokio::test]
async fn a_follower_shows_token_and_certificate_or_is_told_what_is_missing() {
    let server = Server::start().await.unwrap();
    server.create_database("mutual", "").await.unwrap();
    let mut cluster = Cluster::new(&server, "mutual", "mutual").await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    make_certificates(dir.path());
    let file = |name: &str| dir.path().join(name);
    cluster.gateway_config = json!({
        "authToken": "t0ken",
        "tls": {"cert": file("server.crt"), "key": file("server.key"), "clientCa": file("ca.crt")},
    });
    cluster
        .session
        .run("create table t(id int primary key)")
        .await
        .unwrap();
    cluster.prepare(&["public.t"]).await.unwrap();
    cluster.mint().await.unwrap();
    cluster.start_gateway().await.unwrap();
    let port = cluster.grpc_port();
    let source = |host: &str, token: &str, tls: Value| json!({"url": format!("https://{host}:{port}"), "authToken": token, "tls": tls});
    let own = json!({"ca": file("ca.crt"), "cert": file("client.crt"), "key": file("client.key")});
    let mut stranger = own.clone();
    stranger["ca"] = json!(file("other.crt"));
    let nobody = json!({"ca": file("ca.crt")});

    cluster.follower_config = json!({"sources": [source("localhost", "t0ken", own.clone())]});
    cluster.add_follower().await.unwrap();
    cluster.must_be_equal(0).await.unwrap();
    is_told(
        &mut cluster,
        source("localhost", "wrong", own.clone()),
        "unauthorized",
    )
    .await;
    is_told(
        &mut cluster,
        source("localhost", "t0ken", stranger),
        "UnknownIssuer",
    )
    .await;
    is_told(
        &mut cluster,
        source("localhost", "t0ken", nobody),
        "asks for client certificates",
    )
    .await;
    is_told(
        &mut cluster,
        source("127.0.0.1", "t0ken", own.clone()),
        "not valid for name",
    )
    .await;

    cluster.gateway().unwrap().stop().await.unwrap();
    cluster.gateway_config["tls"]["cert"] = json!(file("expired.crt"));
    cluster.start_gateway().await.unwrap();
    is_told(&mut cluster, source("localhost", "t0ken", own), "xpired").await;
}

#[tokio::test]
async fn the_control_port_is_as_closed_as_the_stream() {
    let server = Server::start().await.unwrap();
    server.create_database("control", "").await.unwrap();
    let mut cluster = Cluster::new(&server, "control", "control").await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    make_certificates(dir.path());
    let file = |name: &str| dir.path().join(name).display().to_string();
    cluster.gateway_config = json!({"authToken": "t0ken", "tls": {"cert": file("server.crt"), "key": file("server.key")}});
    cluster
        .session
        .run("create table t(id int primary key)")
        .await
        .unwrap();
    cluster.prepare(&["public.t"]).await.unwrap();
    cluster.mint().await.unwrap();
    cluster.start_gateway().await.unwrap();
    let port = cluster.gateway().unwrap().port("httpPort").unwrap();
    let archive = cluster.archive().display().to_string();
    let url = format!("https://localhost:{port}");
    let args = [
        "pg",
        "status",
        "--source",
        "control",
        "--store",
        "filesystem",
        "--path",
        &archive,
        "--gateway",
        &url,
    ];
    let env = |ca: &str, token: &str| {
        [
            ("SSL_CERT_FILE", file(ca)),
            ("RINDLE_TOKEN", token.to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
    };
    wait::until_true("the gateway to be well", WITHIN, async || {
        Ok(cluster
            .rindle_with(&args, &env("ca.crt", "t0ken"))
            .await?
            .status
            .success())
    })
    .await
    .unwrap();
    for (ca, token, words) in [
        ("ca.crt", "wrong", "unauthorized"),
        ("other.crt", "t0ken", "UnknownIssuer"),
    ] {
        let outcome = cluster.rindle_with(&args, &env(ca, token)).await.unwrap();
        assert_eq!(outcome.status.code(), Some(1), "{outcome:?}");
        assert!(outcome.stdout.contains(words), "{outcome:?}");
    }
    let ca = file("ca.crt");
    let own = [args.as_slice(), &["--tls-ca", &ca]].concat();
    let outcome = cluster
        .rindle_with(&own, &env("other.crt", "t0ken"))
        .await
        .unwrap();
    assert!(outcome.status.success(), "{outcome:?}");
    // Nobody is answered in plain text.
    assert!(cluster.gateway().unwrap().readyz().await.is_none());
}
