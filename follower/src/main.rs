//! `rindled --config rindled.json`.

use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser;
use rindle_follower::config::Settings;
use rindle_follower::state::State;
use rindle_follower::{Follower, OpenError};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

/// Wrong usage or configuration.
const REFUSED: u8 = 2;

/// Keeps an exact read-only SQLite mirror of a Postgres source, and serves it.
#[derive(Debug, Parser)]
#[command(name = "rindled", version)]
struct Args {
    /// Configuration file, JSON.
    #[arg(long)]
    config: PathBuf,
}

fn main() -> ExitCode {
    let args = Args::parse();
    start_logging();
    let settings = match Settings::load(&args.config, &|name| std::env::var(name).ok()) {
        Ok(settings) => settings,
        Err(error) => {
            last_words(&error);
            return ExitCode::from(REFUSED);
        }
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let result = runtime.context("build the runtime").and_then(|runtime| {
        let result = runtime.block_on(serve(settings));
        runtime.shutdown_timeout(Duration::from_secs(1));
        result
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            last_words(&format_args!("{error:#}"));
            let opened = error.downcast_ref::<OpenError>();
            match opened.is_some_and(OpenError::is_refusal) {
                true => ExitCode::from(REFUSED),
                false => ExitCode::FAILURE,
            }
        }
    }
}

/// Says why the program ends. The exit status tells it too, so a stderr that is gone changes nothing.
fn last_words(why: &dyn std::fmt::Display) {
    let _written = writeln!(std::io::stderr(), "rindled: {why}");
}

async fn serve(settings: Settings) -> anyhow::Result<()> {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().install_recorder();
    let metrics = recorder.context("install the metrics recorder")?;
    let (address, ws_port) = (settings.http, settings.ws_port);
    let follower = Follower::open(settings).await?;
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("listen on {address}"))?;
    let stop = stop_on_signal()?;
    let state = State::new();
    let ready = serde_json::json!({
        "ready": true,
        "httpPort": listener.local_addr()?.port(),
        "wsPort": ws_port,
        "bootId": state.boot_id(),
    });
    writeln!(std::io::stdout(), "{ready}").context("print the ready line on stdout")?;
    follower.run(listener, state, metrics, stop).await
}

fn stop_on_signal() -> anyhow::Result<CancellationToken> {
    let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
    let stop = CancellationToken::new();
    let cancel = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("stopping");
        cancel.cancel();
    });
    Ok(stop)
}

fn start_logging() {
    let filter =
        EnvFilter::try_from_env("RINDLE_LOG").unwrap_or_else(|_unset| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        // Telling stderr of a line that stderr did not take would panic: a full disk under the log stops nothing.
        .log_internal_errors(false)
        .with_writer(std::io::stderr);
    match std::env::var("RINDLE_LOG_FORMAT").as_deref() {
        Ok("json") => builder.json().init(),
        _ => builder.with_ansi(std::io::stderr().is_terminal()).init(),
    }
}
