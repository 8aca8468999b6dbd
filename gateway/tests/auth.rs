//! Every way in: passwords, TLS, hosts that are of no use.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use rindle_gateway::pg::conn::{self, ConnectError, Reason};
use rindle_gateway::pg::endpoint::{Endpoint, Host, Password, Secret, SslMode};
use rindle_gateway::pg::tls;
use rindle_gateway::pg::walsender::WalStream;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::postgres::{Server, give_away};

const HBA: &str = "\
local all all trust
hostssl all scram_tls 127.0.0.1/32 scram-sha-256
hostssl all tls_only 127.0.0.1/32 trust
host all scram 127.0.0.1/32 scram-sha-256
host all md5 127.0.0.1/32 md5
host all clear 127.0.0.1/32 password
";

const ROLES: &str = "
    SET password_encryption = 'scram-sha-256';
    CREATE ROLE scram LOGIN REPLICATION PASSWORD 'päss';
    CREATE ROLE scram_tls LOGIN REPLICATION PASSWORD 'tls';
    CREATE ROLE clear LOGIN REPLICATION PASSWORD 'clear';
    CREATE ROLE tls_only LOGIN REPLICATION;
    SET password_encryption = 'md5';
    CREATE ROLE md5 LOGIN REPLICATION PASSWORD 'old';
    ";

/// Mode, host, root file, and the words of the refusal if it is one.
const CHECKS: [(SslMode, &str, &str, Option<&str>); 10] = [
    (SslMode::Require, "127.0.0.1", "ca.crt", None),
    (SslMode::VerifyCa, "localhost", "ca.crt", None),
    (SslMode::VerifyFull, "127.0.0.1", "ca.crt", None),
    (SslMode::VerifyFull, "127.0.0.1", "server.crt", None),
    (
        SslMode::VerifyFull,
        "localhost",
        "ca.crt",
        Some("not valid for name"),
    ),
    (
        SslMode::VerifyFull,
        "localhost",
        "server.crt",
        Some("not valid for name"),
    ),
    (
        SslMode::VerifyCa,
        "127.0.0.1",
        "other.crt",
        Some("UnknownIssuer"),
    ),
    (
        SslMode::Require,
        "127.0.0.1",
        "other.crt",
        Some("UnknownIssuer"),
    ),
    (
        SslMode::VerifyFull,
        "127.0.0.1",
        "system",
        Some("UnknownIssuer"),
    ),
    (
        SslMode::Require,
        "127.0.0.1",
        "missing.crt",
        Some("missing.crt"),
    ),
];

/// Both kinds of connection with one endpoint; the errors as text.
async fn both(endpoint: &Endpoint) -> [Result<(), String>; 2] {
    let ordinary = conn::connect(endpoint, "test")
        .await
        .map(drop)
        .map_err(|error| told(&error));
    let replication = WalStream::connect(endpoint, "test").await;
    let identified = match replication {
        Ok(mut stream) => stream
            .identify_system()
            .await
            .map(drop)
            .map_err(|error| error.to_string()),
        Err(error) => Err(told(&error)),
    };
    [ordinary, identified]
}

fn told(error: &ConnectError) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

#[track_caller]
fn both_say(found: &[Result<(), String>; 2], words: &str) {
    for one in found {
        let error = one.as_ref().expect_err(words);
        assert!(error.contains(words), "{error:?} does not say {words:?}");
    }
}

/// An authority, a server certificate for 127.0.0.1 signed by it, and another authority.
fn make_certificates(data: &Path) {
    fs::write(data.join("pg_hba.conf"), HBA).unwrap();
    fs::write(data.join("ext"), "subjectAltName=IP:127.0.0.1").unwrap();
    let steps = [
        "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=ca -keyout ca.key -out ca.crt",
        "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=other -keyout other.key -out other.crt",
        "req -newkey rsa:2048 -nodes -subj /CN=server -keyout server.key -out server.csr",
        "x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -sha384 \
         -extfile ext -out server.crt",
        "x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days -1 \
         -extfile ext -out expired.crt",
    ];
    for step in steps {
        let made = Command::new("openssl")
            .current_dir(data)
            .args(step.split_whitespace())
            .output();
        let made = made.unwrap();
        assert!(
            made.status.success(),
            "{}",
            String::from_utf8_lossy(&made.stderr)
        );
    }
    for file in ["server.key", "server.crt"] {
        give_away(&data.join(file));
    }
    let owned = fs::Permissions::from_mode(0o600);
    fs::set_permissions(data.join("server.key"), owned).unwrap();
}

#[tokio::test]
async fn passwords_and_certificates_are_checked_on_both_kinds_of_connection() {
    let mut directory = None;
    let server = Server::with_files(&["ssl=on"], |data| {
        make_certificates(data);
        directory = Some(data.to_owned());
    })
    .await;
    let file = |name: &str| Some(directory.as_ref().unwrap().join(name));
    server.session(ROLES).await;

    for (user, password) in [("scram", "päss"), ("md5", "old"), ("clear", "clear")] {
        for mode in [SslMode::Disable, SslMode::Prefer, SslMode::Require] {
            let endpoint = server.tcp("127.0.0.1", user, password, mode);
            assert_eq!(both(&endpoint).await, [Ok(()), Ok(())], "{user} {mode:?}");
        }
        let wrong = server.tcp("127.0.0.1", user, "wrong", SslMode::Disable);
        both_say(&both(&wrong).await, "28P01");
        let error = WalStream::connect(&wrong, "test").await.unwrap_err();
        assert_eq!(error.sqlstate(), Some("28P01"));
    }
    // SCRAM is bound to the certificate, whose signature is SHA-384.
    let certificate = CertificateDer::from_pem_file(file("server.crt").unwrap()).unwrap();
    assert_eq!(
        tls::server_end_point(&certificate).map(|hash| hash.len()),
        Some(48)
    );
    let mut endpoint = server.tcp("127.0.0.1", "scram_tls", "tls", SslMode::Require);
    assert_eq!(both(&endpoint).await, [Ok(()), Ok(())]);
    endpoint.password = None;
    assert!(both(&endpoint).await.iter().all(Result::is_err));

    certificates_are_checked(&server, directory.as_ref().unwrap()).await;
    an_expired_certificate_is_none(&server, directory.as_ref().unwrap()).await;
}

async fn an_expired_certificate_is_none(server: &Server, data: &Path) {
    let mut endpoint = server.tcp("127.0.0.1", "tls_only", "", SslMode::VerifyFull);
    endpoint.tls.root_cert = Some(data.join("ca.crt"));
    assert_eq!(both(&endpoint).await, [Ok(()), Ok(())]);
    fs::copy(data.join("expired.crt"), data.join("server.crt")).unwrap();
    server.session("SELECT pg_reload_conf()").await;
    // The server takes a moment to read it.
    let mut tries = 0;
    let mut found = both(&endpoint).await;
    while found.contains(&Ok(())) && tries < 100 {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        (found, tries) = (both(&endpoint).await, tries + 1);
    }
    both_say(&found, "xpired");
}

/// The modes of TLS against authorities that signed the server's certificate, and others.
async fn certificates_are_checked(server: &Server, data: &Path) {
    for (mode, host, root, refusal) in CHECKS {
        let mut endpoint = server.tcp(host, "tls_only", "", mode);
        endpoint.tls.root_cert = if root == "system" {
            Some("system".into())
        } else {
            Some(data.join(root))
        };
        let found = both(&endpoint).await;
        match refusal {
            None => assert_eq!(found, [Ok(()), Ok(())], "{mode:?} {host} {root}"),
            Some(words) => both_say(&found, words),
        }
    }
    both_say(
        &both(&server.tcp("127.0.0.1", "tls_only", "", SslMode::Disable)).await,
        "28000",
    );
}

#[tokio::test]
async fn a6_sessions_pin_what_role_and_database_would_change() {
    let server = Server::start(&[]).await;
    server
        .session(
            "CREATE ROLE odd LOGIN REPLICATION; ALTER ROLE odd SET datestyle = 'SQL, DMY';
             ALTER ROLE odd SET timezone = 'Asia/Tokyo'; ALTER ROLE odd SET bytea_output = 'escape';
             ALTER ROLE odd SET extra_float_digits = -10; ALTER ROLE odd SET statement_timeout = 1000;
             ALTER DATABASE postgres SET idle_in_transaction_session_timeout = 1000;",
        )
        .await;
    let endpoint = Endpoint {
        user: "odd".to_owned(),
        ..server.endpoint()
    };
    let sql = "SELECT concat_ws('|', '2024-02-03 04:05:06+00'::timestamptz, '\\x00ff'::bytea, \
               (1/3.0)::float8, current_setting('statement_timeout'), \
               current_setting('idle_in_transaction_session_timeout'), current_schemas(true))";
    let wanted = "2024-02-03 04:05:06+00|\\x00ff|0.3333333333333333|0|0|{pg_catalog}";
    let client = conn::connect(&endpoint, "test").await.unwrap();
    assert_eq!(
        client
            .query_one(sql, &[])
            .await
            .unwrap()
            .get::<_, String>(0),
        wanted
    );
    let mut stream = WalStream::connect(&endpoint, "test").await.unwrap();
    assert_eq!(
        stream.query(sql).await.unwrap(),
        [[Some(wanted.to_owned())]]
    );
}

#[tokio::test]
async fn hosts_are_tried_until_one_answers() {
    let server = Server::start(&[]).await;
    let mut endpoint = server.endpoint();
    let good = endpoint.hosts[0].clone();
    // Nobody listens on port 1.
    endpoint.hosts = vec![
        Host {
            name: "127.0.0.1".to_owned(),
            port: 1,
        },
        good.clone(),
    ];
    assert_eq!(both(&endpoint).await, [Ok(()), Ok(())]);
    assert_eq!(
        WalStream::connect(&endpoint, "test").await.unwrap().host(),
        &good
    );

    let missing = Endpoint {
        database: "absent".to_owned(),
        ..server.endpoint()
    };
    both_say(
        &both(&missing).await,
        "database \"absent\" does not exist (3D000)",
    );
    let silent = Endpoint {
        hosts: vec![endpoint.hosts[0].clone()],
        ..server.endpoint()
    };
    let error = conn::connect(&silent, "test").await.unwrap_err();
    assert!(error.sqlstate().is_none() && !error.is_standby());
    let ConnectError::NoPrimary(failures) = error else {
        panic!()
    };
    assert!(matches!(failures[0].reason, Reason::Sql(_)));
    assert!(!format!("{:?}", Secret::new("x")).contains('x'));
}

#[tokio::test]
async fn server_without_tls_is_named() {
    let server = Server::start(&[]).await;
    both_say(
        &both(&server.tcp("127.0.0.1", "postgres", "", SslMode::Require)).await,
        "TLS",
    );
    let plain = server.tcp("127.0.0.1", "postgres", "", SslMode::Prefer);
    assert_eq!(both(&plain).await, [Ok(()), Ok(())]);
}

#[tokio::test]
async fn a_password_that_is_changed_is_read_anew() {
    let server = Server::with_files(&[], |data| {
        fs::write(data.join("pg_hba.conf"), HBA).unwrap();
    })
    .await;
    let client = server.session(ROLES).await;
    let dir = tempfile::TempDir::new().unwrap();
    let file = dir.path().join("password");
    let mut endpoint = server.tcp("127.0.0.1", "scram", "", SslMode::Disable);
    endpoint.password = Some(Password::File(file.clone()));
    both_say(&both(&endpoint).await, "read the password file");
    fs::write(&file, "päss\n").unwrap();
    assert_eq!(both(&endpoint).await, [Ok(()), Ok(())]);
    let rotate = "SET password_encryption = 'scram-sha-256'; ALTER ROLE scram PASSWORD 'rotated'";
    client.batch_execute(rotate).await.unwrap();
    both_say(&both(&endpoint).await, "28P01");
    fs::write(&file, "rotated\n").unwrap();
    assert_eq!(both(&endpoint).await, [Ok(()), Ok(())]);
}
