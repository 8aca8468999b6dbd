//! Serving HTTP, with TLS when certificates are configured: what gateway and follower have in common towards their
//! control ports. Handshakes run beside each other, so a client that does not finish one is in nobody's way.

#![warn(missing_docs)]

use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
pub use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

/// Certificates of a server.
#[derive(Clone, Debug, serde::Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ServerTls {
    /// PEM file with the certificate and its chain.
    pub cert: PathBuf,
    /// PEM file with the private key.
    pub key: PathBuf,
    /// PEM file with the authorities whose clients are let in; without it any client may connect.
    pub client_ca: Option<PathBuf>,
}

#[cfg(test)]
mod tests;

/// A handshake that takes longer is dropped.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Handshakes under way at once.
const HANDSHAKES: usize = 64;

/// Serves until stopped.
///
/// # Errors
/// When the listener fails for good.
pub async fn serve(
    listener: TcpListener,
    acceptor: Option<TlsAcceptor>,
    router: Router,
    stop: CancellationToken,
) -> io::Result<()> {
    let stopped = stop.cancelled_owned();
    match acceptor {
        None => {
            axum::serve(listener, router)
                .with_graceful_shutdown(stopped)
                .await
        }
        Some(acceptor) => {
            let listener = Tls {
                listener,
                acceptor,
                handshakes: JoinSet::new(),
            };
            axum::serve(listener, router)
                .with_graceful_shutdown(stopped)
                .await
        }
    }
}

/// Reads the certificates.
///
/// # Errors
/// When a file cannot be read or holds something else; the error names it.
pub fn acceptor(tls: &ServerTls) -> io::Result<TlsAcceptor> {
    Ok(TlsAcceptor::from(Arc::new(server_config(tls)?)))
}

struct Tls {
    listener: TcpListener,
    acceptor: TlsAcceptor,
    handshakes: JoinSet<Option<(TlsStream<TcpStream>, SocketAddr)>>,
}

impl axum::serve::Listener for Tls {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            tokio::select! {
                (stream, address) = axum::serve::Listener::accept(&mut self.listener),
                    if self.handshakes.len() < HANDSHAKES =>
                {
                    let acceptor = self.acceptor.clone();
                    self.handshakes.spawn(async move {
                        let shaken = tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await;
                        match shaken {
                            Ok(Ok(stream)) => Some((stream, address)),
                            Ok(Err(error)) => {
                                tracing::debug!(%address, %error, "a TLS handshake failed");
                                None
                            }
                            Err(_elapsed) => None,
                        }
                    });
                }
                // A pattern that does not fit would switch the branch off: one that failed is looked at here.
                Some(done) = self.handshakes.join_next() => {
                    if let Ok(Some(ready)) = done {
                        return ready;
                    }
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

fn server_config(tls: &ServerTls) -> io::Result<ServerConfig> {
    let certificates = certificates(&tls.cert)?;
    let key = PrivateKeyDer::from_pem_reader(open(&tls.key)?)
        .map_err(|error| invalid(&tls.key, &error))?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| invalid(&tls.cert, &error))?;
    let builder = match &tls.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for certificate in self::certificates(path)? {
                roots
                    .add(certificate)
                    .map_err(|error| invalid(path, &error))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .build()
                .map_err(|error| invalid(path, &error))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder
        .with_single_cert(certificates, key)
        .map_err(|error| invalid(&tls.cert, &error))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

fn certificates(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_reader_iter(open(path)?).collect();
    match read {
        Ok(found) if found.is_empty() => Err(invalid(path, &"it holds no certificate")),
        Ok(found) => Ok(found),
        Err(error) => Err(invalid(path, &error)),
    }
}

fn open(path: &Path) -> io::Result<File> {
    File::open(path)
        .map_err(|error| io::Error::new(error.kind(), format!("tls: {path:?}: {error}")))
}

fn invalid(path: &Path, error: &dyn std::fmt::Display) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("tls: {path:?}: {error}"),
    )
}
