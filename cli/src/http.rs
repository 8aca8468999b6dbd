//! One JSON request to a program of ours.

use std::time::Duration;

use anyhow::{Context, bail, ensure};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::{Method, Request, StatusCode, Uri, header};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

/// Longest answer that is read.
const ANSWER_MAX: usize = 16 << 20;

/// A program that answers over HTTP.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    base: Uri,
    /// The base as it was given, for messages.
    name: String,
    token: Option<String>,
}

impl Program {
    /// The program at a URL such as `http://127.0.0.1:7611`.
    pub(crate) fn at(url: &str, token: Option<String>) -> anyhow::Result<Self> {
        let base: Uri = url
            .parse()
            .with_context(|| format!("read the URL {url:?}"))?;
        let plain = base.scheme_str() == Some("http") && base.host().is_some();
        let usage = format!("{url:?} is no URL of a program: expected http://host:port");
        ensure!(plain, crate::args::UsageError(usage));
        let name = url.trim_end_matches('/').to_owned();
        Ok(Self { base, name, token })
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
        let port = self.base.port_u16().unwrap_or(80);
        let name = host.trim_matches(['[', ']']);
        let stream = TcpStream::connect((name, port)).await.context("connect")?;
        let connecting = hyper::client::conn::http1::handshake(TokioIo::new(stream));
        let (mut sender, connection) = connecting.await.context("speak HTTP")?;
        tokio::spawn(async move {
            // The request sees the same end as an error of its own.
            if let Err(error) = connection.await {
                tracing::debug!(%error, "the HTTP connection ended");
            }
        });
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
        let response = sender
            .send_request(request)
            .await
            .context("send a request")?;
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

/// What a program says of an answer that is an error.
pub(crate) fn words(body: &Value) -> String {
    let said = body["error"].as_str().or(body["reason"].as_str());
    said.map_or_else(|| body.to_string(), str::to_owned)
}
