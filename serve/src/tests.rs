use std::process::Command;

use axum::routing::get;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_rustls::TlsConnector;

use super::*;

/// A certificate for localhost that signs itself.
fn certified(dir: &Path) -> ServerTls {
    let made = Command::new("openssl")
        .current_dir(dir)
        .args("req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost".split(' '))
        .args([
            "-addext",
            "subjectAltName=DNS:localhost",
            "-addext",
            "basicConstraints=critical,CA:FALSE",
            "-keyout",
            "key.pem",
            "-out",
            "cert.pem",
        ])
        .output()
        .unwrap();
    assert!(
        made.status.success(),
        "{}",
        String::from_utf8_lossy(&made.stderr)
    );
    ServerTls {
        cert: dir.join("cert.pem"),
        key: dir.join("key.pem"),
        client_ca: None,
    }
}

fn connector(tls: &ServerTls) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(&tls.cert).unwrap() {
        roots.add(certificate).unwrap();
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    TlsConnector::from(Arc::new(config))
}

async fn started() -> (
    SocketAddr,
    TlsConnector,
    CancellationToken,
    tempfile::TempDir,
) {
    let dir = tempfile::tempdir().unwrap();
    let tls = certified(dir.path());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    let router = Router::new().route("/", get(|| async { "here" }));
    let acceptor = acceptor(&tls).unwrap();
    tokio::spawn(serve(listener, Some(acceptor), router, stop.clone()));
    (address, connector(&tls), stop, dir)
}

/// The answer to a request on a connection that is made already.
async fn answer(stream: TcpStream, connector: &TlsConnector) -> String {
    let name = ServerName::try_from("localhost").unwrap();
    let asked = async {
        let mut stream = connector.connect(name, stream).await.unwrap();
        let request = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        stream.write_all(request).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        text
    };
    tokio::time::timeout(Duration::from_secs(5), asked)
        .await
        .expect("an answer in time")
}

#[tokio::test]
async fn a_handshake_that_fails_is_in_nobodys_way() {
    let (address, connector, stop, _dir) = started().await;
    let mut bad = TcpStream::connect(address).await.unwrap();
    let good = TcpStream::connect(address).await.unwrap();
    bad.write_all(b"no handshake\r\n\r\n").await.unwrap();
    // The server has seen it fail once it hangs up.
    let mut rest = Vec::new();
    let _ended = bad.read_to_end(&mut rest).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(answer(good, &connector).await.ends_with("here"));
    stop.cancel();
}

/// As many as may shake hands at once say nothing, for as long as they may.
#[tokio::test]
async fn clients_that_say_nothing_stop_nobody_for_good() {
    let (address, connector, stop, _dir) = started().await;
    let mut silent = Vec::new();
    for _ in 0..HANDSHAKES {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    tokio::time::sleep(HANDSHAKE_TIMEOUT + Duration::from_millis(500)).await;
    let late = TcpStream::connect(address).await.unwrap();
    assert!(answer(late, &connector).await.ends_with("here"));
    stop.cancel();
}
