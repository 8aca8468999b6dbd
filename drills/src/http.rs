//! HTTP on a local port, in the least that a drill needs: HTTP/1.0, so that the answer ends where the connection does.

use std::time::Duration;

use anyhow::{Context, Result};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

/// A local program answers within this, or something is wrong with it.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    pub body: String,
}

impl Answer {
    pub fn json(&self) -> Result<serde_json::Value> {
        serde_json::from_str(&self.body).with_context(|| format!("read as JSON: {}", self.body))
    }
}

pub async fn get(port: u16, path: &str) -> Result<Answer> {
    send(
        port,
        &format!("GET {path} HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n"),
    )
    .await
}

pub async fn post(port: u16, path: &str, body: &serde_json::Value) -> Result<Answer> {
    let body = body.to_string();
    let head = format!(
        "POST {path} HTTP/1.0\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    send(port, &(head + &body)).await
}

async fn send(port: u16, request: &str) -> Result<Answer> {
    timeout(ANSWER_WITHIN, async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.write_all(request.as_bytes()).await?;
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).await?;
        let text = String::from_utf8_lossy(&bytes);
        let (head, body) = text
            .split_once("\r\n\r\n")
            .context("find the end of the HTTP head")?;
        let status = head
            .split(' ')
            .nth(1)
            .context("find the HTTP status")?
            .parse()?;
        Ok(Answer {
            status,
            body: body.to_owned(),
        })
    })
    .await
    .with_context(|| format!("wait for an answer of port {port}"))?
}
