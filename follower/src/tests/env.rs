//! A follower with its files in a folder of its own, a gateway that follows a script, and an eye on both.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use rindle_archive::{Archive, BackupConfig};
use rindle_proto::ids::{Generation, Seq};
use rindle_proto::rpc::frames_server::{Frames, FramesServer};
use rindle_proto::rpc::subscribe_reply::Reply;
use rindle_proto::rpc::*;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use crate::config::{Settings, SourceSettings};
use crate::state::State;

const DEADLINE: Duration = Duration::from_secs(30);

type Answer = Result<SubscribeReply, Status>;

/// A gateway that answers each subscription with the next script, and then says what a test sends.
#[derive(Clone, Default)]
pub(super) struct Gateway(Arc<Mutex<Script>>);

#[derive(Default)]
struct Script {
    scripts: VecDeque<(Vec<Reply>, bool)>,
    requests: Vec<SubscribeRequest>,
    open: Option<mpsc::Sender<Answer>>,
    bulk: Vec<Bytes>,
}

impl Gateway {
    /// What the next subscription is told; it breaks off then, or stays open.
    pub(super) fn script(&self, replies: Vec<Reply>, stays: bool) {
        self.0.lock().unwrap().scripts.push_back((replies, stays));
    }

    pub(super) fn bulk(&self, objects: Vec<Bytes>) {
        self.0.lock().unwrap().bulk = objects;
    }

    pub(super) async fn say(&self, reply: Reply) {
        let open = self.0.lock().unwrap().open.clone().unwrap();
        let reply = SubscribeReply { reply: Some(reply) };
        open.send(Ok(reply)).await.unwrap();
    }

    pub(super) fn requests(&self) -> Vec<SubscribeRequest> {
        self.0.lock().unwrap().requests.clone()
    }

    pub(super) async fn until_subscribed(&self, times: usize) -> SubscribeRequest {
        until(|| self.requests().get(times - 1).cloned()).await
    }

    async fn serve(self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = tonic::transport::Server::builder().add_service(FramesServer::new(self));
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        url
    }
}

type Replies<T> = Pin<Box<dyn tokio_stream::Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl Frames for Gateway {
    type SubscribeStream = Replies<SubscribeReply>;
    type FetchBulkStream = Replies<FetchBulkReply>;

    async fn subscribe(
        &self,
        request: Request<SubscribeRequest>,
    ) -> Result<Response<Self::SubscribeStream>, Status> {
        let (sender, receiver) = mpsc::channel(1000);
        let mut script = self.0.lock().unwrap();
        let Some((replies, stays)) = script.scripts.pop_front() else {
            return Err(Status::unavailable("nothing to say"));
        };
        script.requests.push(request.into_inner());
        for reply in replies {
            sender
                .try_send(Ok(SubscribeReply { reply: Some(reply) }))
                .unwrap();
        }
        script.open = stays.then_some(sender);
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn fetch_bulk(
        &self,
        request: Request<FetchBulkRequest>,
    ) -> Result<Response<Self::FetchBulkStream>, Status> {
        let part = request.into_inner().part as usize;
        let object = self.0.lock().unwrap().bulk.get(part).cloned();
        let object = object.ok_or_else(|| Status::unavailable("no such part"))?;
        let pieces: Vec<_> = object
            .chunks(7)
            .map(|piece| {
                let data = Bytes::copy_from_slice(piece);
                Ok(FetchBulkReply { data })
            })
            .collect();
        Ok(Response::new(Box::pin(tokio_stream::iter(pieces))))
    }

    async fn status(
        &self,
        _request: Request<StatusRequest>,
    ) -> Result<Response<StatusReply>, Status> {
        Err(Status::unimplemented("not asked for"))
    }
}

pub(super) fn opened(generation: Generation, epoch: u64) -> Reply {
    Reply::Opened(Opened {
        generation: generation.to_string(),
        epoch,
        timeline: 1,
    })
}

/// Frames as one piece.
pub(super) fn frames(raw: &[Bytes]) -> Reply {
    let data = raw.concat().into();
    Reply::Frames(FramePiece { data })
}

/// A follower, running or not.
pub(super) struct Env {
    pub(super) dir: tempfile::TempDir,
    pub(super) gateway: Gateway,
    pub(super) state: State,
    pub(super) indexes: Vec<crate::mirror::LocalIndex>,
    url: Option<String>,
    backup: bool,
    running: Option<Running>,
}

struct Running {
    stop: CancellationToken,
    task: tokio::task::JoinHandle<anyhow::Result<()>>,
    port: u16,
}

impl Env {
    /// Not started yet.
    pub(super) async fn new(with_gateway: bool, backup: bool) -> Self {
        let gateway = Gateway::default();
        let url = match with_gateway {
            true => Some(gateway.clone().serve().await),
            false => None,
        };
        Self {
            dir: tempfile::tempdir().unwrap(),
            gateway,
            state: State::new(),
            url,
            backup,
            indexes: Vec::new(),
            running: None,
        }
    }

    pub(super) fn db(&self) -> PathBuf {
        self.dir.path().join("m.db")
    }

    fn backup(&self) -> BackupConfig {
        BackupConfig::Filesystem {
            path: self.dir.path().join("archive"),
        }
    }

    pub(super) async fn archive(&self) -> Archive {
        let name = "app".parse().unwrap();
        Archive::open(&self.backup(), &name).await.unwrap()
    }

    pub(super) async fn start(&mut self) {
        let source = SourceSettings {
            name: "app".parse().unwrap(),
            urls: self.url.clone().into_iter().collect(),
            auth_token: None,
            tls: None,
            backup: self.backup.then(|| self.backup()),
            poll_interval: Duration::from_millis(20),
        };
        let settings = Settings {
            db: self.db(),
            http: "127.0.0.1:0".parse().unwrap(),
            ws_port: 0,
            auth_token: Some(crate::config::Secret::new("t")),
            tls: None,
            source,
            indexes: self.indexes.clone(),
        };
        self.state = State::new();
        let listener = TcpListener::bind(settings.http).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let metrics = metrics_exporter_prometheus::PrometheusBuilder::new()
            .build_recorder()
            .handle();
        let stop = CancellationToken::new();
        let follower = crate::Follower::open(settings).await.unwrap();
        let task = tokio::spawn(follower.run(listener, self.state.clone(), metrics, stop.clone()));
        self.running = Some(Running { stop, task, port });
    }

    pub(super) fn stop_token(&self) -> CancellationToken {
        self.running.as_ref().unwrap().stop.clone()
    }

    pub(super) async fn stop(&mut self) {
        let running = self.running.take().unwrap();
        running.stop.cancel();
        running.task.await.unwrap().unwrap();
    }

    pub(super) async fn until_applied(&self, seq: u64) {
        let mut applied = self.state.applied();
        let reached =
            applied.wait_for(|cursor| cursor.is_some_and(|cursor| cursor.position.seq >= Seq(seq)));
        if tokio::time::timeout(DEADLINE, reached).await.is_err() {
            panic!("frame {seq} was not applied: {:?}", self.state.view());
        }
    }

    pub(super) async fn until_ready(&self) {
        until(|| self.state.view().ready.then_some(())).await;
    }

    /// Waits until `/readyz` says this.
    pub(super) async fn until_reason(&self, words: &str) -> String {
        until(|| {
            self.state
                .view()
                .reason
                .filter(|reason| reason.contains(words))
        })
        .await
    }

    /// Status and body.
    pub(super) async fn ask(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let (status, _, body) = self.ask_with(method, path, body, Some("t")).await;
        (status, body)
    }

    pub(super) async fn ask_with(
        &self,
        method: &str,
        path: &str,
        body: &Value,
        token: Option<&str>,
    ) -> (u16, String, Value) {
        let port = self.running.as_ref().unwrap().port;
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let body = match body {
            Value::Null => String::new(),
            body => body.to_string(),
        };
        let token = token.map_or(String::new(), |token| {
            format!("Authorization: Bearer {token}\r\n")
        });
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{token}Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let body = serde_json::from_str(body).unwrap_or(Value::String(body.to_owned()));
        (status, head.to_ascii_lowercase(), body)
    }

    /// Rows of a query through the follower.
    pub(super) async fn rows(&self, sql: &str) -> Value {
        let (status, answer) = self
            .ask("POST", "/execute-sql-read", &json!({"sql": sql}))
            .await;
        assert_eq!(status, 200, "{answer}");
        answer["rows"].clone()
    }
}

/// Looks until there is something.
pub(super) async fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let end = tokio::time::Instant::now() + DEADLINE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(tokio::time::Instant::now() < end, "nothing came");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
