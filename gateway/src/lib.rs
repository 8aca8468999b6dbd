//! The gateway: reads one Postgres source, archives it, acknowledges what is archived, and fans it out.
//!
//! A transaction's way: [`pg`] (walsender, pgoutput) → [`assemble`] (frames) → [`pump`] → [`log`] → [`ship`]
//! (archive) and [`fanout`] (followers). [`session`] opens and ends walsender sessions; [`copy`] is the first copy.
//!
//! - [`backfill`]: rows that the stream cannot give
//! - [`ddl`]: how schema changes are captured, what is believed of the catalog, and what changes come to
//! - [`config`], [`state`], [`halt`]: settings; what the gateway says of itself; why it stops
//! - [`live`], [`lag`]: what one session shares with ship and fan-out; what waits in front of each hop
//! - [`http`]: health, status, metrics
//! - [`lifecycle`]: what `rindle pg` does: prepare, mint
//!
//! Shutdown, in this order: the pump stops between frames and reports its last position, ship writes what waits
//! (bounded), the slot and the lock are let go, then the servers stop.

pub mod assemble;
pub mod backfill;
pub mod config;
pub mod copy;
pub mod ddl;
pub mod fanout;
pub mod halt;
pub mod http;
pub mod lag;
pub mod lifecycle;
pub mod live;
pub mod log;
pub mod pg;
pub mod pump;
pub mod session;
pub mod ship;
pub mod state;

use std::time::Duration;

use anyhow::Context;
use rindle_archive::{Archive, GenerationRecord};
use rindle_proto::rpc::frames_server::FramesServer;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::transport::server::{ServerTlsConfig, TcpIncoming};
use tonic::transport::{Certificate, Identity, Server};
use tonic::{Request, Status};

use crate::config::Settings;
use crate::fanout::Fanout;
use crate::halt::HaltReason;
use crate::http::Http;
use crate::session::Sessions;
use crate::state::State;

/// How long the servers may take to end after the pump did.
const SERVER_STOP: Duration = Duration::from_secs(2);

/// Window of one follower's stream and connection: a catch-up is not held up by the round trip.
const HTTP2_WINDOW_BYTES: u32 = 4 << 20;

/// Sockets that are bound already.
#[derive(Debug)]
pub struct Listeners {
    /// For followers.
    pub grpc: TcpListener,
    /// For health, status and metrics.
    pub http: TcpListener,
}

/// The generation to serve: the one asked for, else the archive's current one, else the only one minted.
///
/// # Errors
/// When there is none, or several and no choice.
pub async fn choose_generation(
    archive: &Archive,
    settings: &Settings,
) -> anyhow::Result<GenerationRecord> {
    let all = archive
        .generations()
        .await
        .context("list the generations of the archive")?;
    let current = archive
        .current()
        .await
        .context("read the archive's current generation")?;
    let wanted = settings
        .generation
        .or(current.map(|current| current.generation));
    let list = || {
        all.iter()
            .map(|record| record.generation.to_string())
            .collect::<Vec<_>>()
            .join(", ")
    };
    let source = &settings.name;
    let chosen = match (wanted, all.as_slice()) {
        (Some(id), _) => all.iter().find(|record| record.generation == id).cloned().with_context(|| {
            format!("generation {id} of source {source} is not minted in this archive, which holds: [{}]", list())
        }),
        (None, [only]) => Ok(only.clone()),
        (None, []) => anyhow::bail!("no generation of source {source} is minted in this archive: check that the archive is mounted and the path right, or run rindle pg mint"),
        (None, _) => anyhow::bail!(
            "source {source} has several generations and none is current: set generation to one of [{}]",
            list()
        ),
    }?;
    archive.prove_once(&chosen).await?;
    Ok(chosen)
}

/// Runs a gateway until told to stop.
///
/// # Errors
/// [`HaltReason::Fenced`] in the chain when another gateway took over; anything else is a failed server.
pub async fn run(
    settings: Settings,
    archive: Archive,
    record: GenerationRecord,
    listeners: Listeners,
    metrics: metrics_exporter_prometheus::PrometheusHandle,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let state = State::new(record.clone());
    let http = Http {
        state: state.clone(),
        metrics,
        auth_token: settings.auth_token.clone(),
    };
    let serving = CancellationToken::new();
    let tls = settings.tls.as_ref().map(rindle_serve::acceptor);
    let tls = tls.transpose().context("use the certificates")?;
    let router = http::router(http);
    let mut http = tokio::spawn(rindle_serve::serve(
        listeners.http,
        tls,
        router,
        serving.clone(),
    ));
    let fanout = Fanout::new(
        archive.clone(),
        state.clone(),
        settings.limits.archive_catch_up_max_bytes,
    );
    let mut grpc = tokio::spawn(serve_grpc(
        settings.clone(),
        fanout,
        listeners.grpc,
        serving.clone(),
    )?);

    let sessions = Sessions {
        endpoint: settings.endpoint,
        archive: archive.log(record.generation),
        record,
        log_dir: settings.data_dir.join("log"),
        limits: settings.limits,
        state: state.clone(),
        runtime: tokio::runtime::Handle::current(),
    };
    let pump_stop = stop.child_token();
    let mut pump = pump_thread(sessions, pump_stop.clone())?;
    let result = tokio::select! {
        ended = &mut pump => ended.context("the pump's thread died").and_then(|ended| Ok(ended?)),
        ended = &mut http => Err(anyhow::anyhow!("the HTTP server ended: {ended:?}")),
        ended = &mut grpc => Err(anyhow::anyhow!("the gRPC server ended: {ended:?}")),
    };
    pump_stop.cancel();
    serving.cancel();
    state.set_live(None);
    let rest = futures_util::future::join(http, grpc);
    if tokio::time::timeout(SERVER_STOP, rest).await.is_err() {
        tracing::debug!("connections were open at the end");
    }
    result
}

/// The pump has a thread of its own: reading the socket wakes no other thread.
fn pump_thread(
    sessions: Sessions,
    stop: CancellationToken,
) -> anyhow::Result<tokio::sync::oneshot::Receiver<Result<(), HaltReason>>> {
    let (done, ended) = tokio::sync::oneshot::channel();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.context("build the pump's runtime")?;
    let thread = std::thread::Builder::new().name("pump".to_owned());
    let spawned = thread.spawn(move || {
        let result = runtime.block_on(session::run(sessions, stop));
        if done.send(result).is_err() {
            tracing::debug!("nobody waited for the pump");
        }
    });
    spawned.context("start the pump's thread")?;
    Ok(ended)
}

fn serve_grpc(
    settings: Settings,
    fanout: Fanout,
    listener: TcpListener,
    stop: CancellationToken,
) -> anyhow::Result<impl Future<Output = Result<(), tonic::transport::Error>>> {
    let mut server = Server::builder()
        .initial_stream_window_size(HTTP2_WINDOW_BYTES)
        .initial_connection_window_size(HTTP2_WINDOW_BYTES)
        .http2_keepalive_interval(Some(Duration::from_secs(10)));
    if let Some(tls) = &settings.tls {
        server = server
            .tls_config(server_tls(tls)?)
            .context("use the gRPC certificates")?;
    }
    let token = settings.auth_token;
    let authorize = move |request: Request<()>| {
        let header = request
            .metadata()
            .get("authorization")
            .and_then(|value| value.to_str().ok());
        match http::token_matches(token.as_ref(), header) {
            true => Ok(request),
            false => Err(Status::unauthenticated(
                "unauthorized: set authToken to the gateway's",
            )),
        }
    };
    let service = FramesServer::with_interceptor(fanout, authorize);
    // Set here: the server's own setting does not reach sockets of a listener that it did not bind.
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    Ok(async move {
        server
            .add_service(service)
            .serve_with_incoming_shutdown(incoming, stop.cancelled_owned())
            .await
    })
}

fn server_tls(tls: &rindle_serve::ServerTls) -> anyhow::Result<ServerTlsConfig> {
    let read = |path: &std::path::Path| {
        std::fs::read(path).with_context(|| format!("read {}", path.display()))
    };
    let identity = Identity::from_pem(read(&tls.cert)?, read(&tls.key)?);
    let config = ServerTlsConfig::new().identity(identity);
    Ok(match &tls.client_ca {
        Some(ca) => config.client_ca_root(Certificate::from_pem(read(ca)?)),
        None => config,
    })
}
