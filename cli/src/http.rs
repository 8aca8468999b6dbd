//! One JSON request to a program of ours.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::{Method, Request, Response, StatusCode, Uri, header};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Longest answer that is read.
const ANSWER_MAX: usize = 16 << 20;

/// What HTTPS needs.
#[derive(Clone, Debug, Default)]
pub(crate) struct TlsFiles {
    /// Authorities; those of the system by default.
    pub(crate) ca: Option<PathBuf>,
    /// Our certificate and key.
    pub(crate) own: Option<(PathBuf, PathBuf)>,
}

/// A program that answers over HTTP.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    base: Uri,
    /// The base as it was given, for messages.
    name: String,
    token: Option<String>,
    tls: TlsFiles,
}

impl Program {
    /// The program at a URL such as `http://127.0.0.1:7611`.
    pub(crate) fn at(url: &str, token: Option<String>, tls: TlsFiles) -> anyhow::Result<Self> {
        let base: Uri = url
            .parse()
            .with_context(|| format!("read the URL {url:?}"))?;
        let known = matches!(base.scheme_str(), Some("http" | "https"))
            && base.host().is_some()
            && base.path_and_query().is_none_or(|rest| rest == "/");
        let usage = format!(
            "{url:?} is no URL of a program: expected http://host:port or https://host:port"
        );
        ensure!(known, crate::args::UsageError(usage));
        let name = url.trim_end_matches('/').to_owned();
        Ok(Self {
            base,
            name,
            token,
            tls,
        })
    }

    /// Asks and gives the answer's body; an answer other than 200 is an error with the program's words.
    pub(crate) async fn ask(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        limit: Duration,
    ) -> anyhow::Result<Value> {
        let (status, body) = self.try_ask(method, path, body, limit).await?;
        if status != StatusCode::OK {
            bail!("{}{path} answers {status}: {}", self.name, words(&body));
        }
        Ok(body)
    }

    /// Asks and gives the answer, whatever its status.
    pub(crate) async fn try_ask(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        limit: Duration,
    ) -> anyhow::Result<(StatusCode, Value)> {
        let answer = tokio::time::timeout(limit, self.send(method, path, body)).await;
        let answer = answer.with_context(|| format!("no answer within {} s", limit.as_secs()));
        answer
            .flatten()
            .with_context(|| format!("ask {}{path}", self.name))
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> anyhow::Result<(StatusCode, Value)> {
        let host = self.base.host().unwrap_or_default();
        let secure = self.base.scheme_str() == Some("https");
        let port = self
            .base
            .port_u16()
            .unwrap_or(if secure { 443 } else { 80 });
        let name = host.trim_matches(['[', ']']);
        let mut request = Request::builder().method(method).uri(path);
        request = request.header(header::HOST, format!("{host}:{port}"));
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let body = match body {
            Some(body) => {
                request = request.header(header::CONTENT_TYPE, "application/json");
                body.to_string()
            }
            None => String::new(),
        };
        let request = request
            .body(Full::new(Bytes::from(body)))
            .context("make a request")?;
        let stream = TcpStream::connect((name, port)).await.context("connect")?;
        let response = match secure {
            true => exchange(encrypt(stream, name, &self.tls).await?, request).await?,
            false => exchange(stream, request).await?,
        };
        let status = response.status();
        let body = Limited::new(response.into_body(), ANSWER_MAX)
            .collect()
            .await;
        let body = body
            .map_err(|error| anyhow::anyhow!(error))
            .context("read an answer")?
            .to_bytes();
        let text = String::from_utf8_lossy(&body).into_owned();
        Ok((
            status,
            serde_json::from_slice(&body).unwrap_or(Value::String(text)),
        ))
    }
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Full<Bytes>>,
) -> anyhow::Result<Response<Incoming>> {
    let connecting = hyper::client::conn::http1::handshake(TokioIo::new(stream));
    let (mut sender, connection) = connecting.await.context("speak HTTP")?;
    tokio::spawn(async move {
        // The request sees the same end as an error of its own.
        if let Err(error) = connection.await {
            tracing::debug!(%error, "the HTTP connection ended");
        }
    });
    sender.send_request(request).await.context("send a request")
}

/// The program's certificate must be signed by a known authority.
async fn encrypt(
    stream: TcpStream,
    name: &str,
    tls: &TlsFiles,
) -> anyhow::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    match &tls.ca {
        Some(file) => {
            for certificate in certificates(file)? {
                roots
                    .add(certificate)
                    .with_context(|| format!("use {}", file.display()))?;
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    ensure!(
        !roots.is_empty(),
        "no certificate authority is known here: name a file of them with --tls-ca"
    );
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .context("set TLS up")?
        .with_root_certificates(roots);
    let config = match &tls.own {
        None => config.with_no_client_auth(),
        Some((certificate, key)) => {
            let file = key;
            let key = PrivateKeyDer::from_pem_file(key);
            let key = key.with_context(|| format!("read {}", file.display()))?;
            config
                .with_client_auth_cert(certificates(certificate)?, key)
                .with_context(|| format!("use {}", certificate.display()))?
        }
    };
    let name = ServerName::try_from(name.to_owned()).context("read the host's name")?;
    let connecting = TlsConnector::from(Arc::new(config)).connect(name, stream);
    connecting.await.context("speak TLS")
}

fn certificates(file: &Path) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let read = CertificateDer::pem_file_iter(file).and_then(Iterator::collect);
    read.with_context(|| format!("read {}", file.display()))
}

/// What a program says of an answer that is an error.
pub(crate) fn words(body: &Value) -> String {
    let said = body["error"].as_str().or(body["reason"].as_str());
    said.map_or_else(|| body.to_string(), str::to_owned)
}
