//! `rindle-pg-gateway --config gateway.json`.

use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use rindle_archive::Archive;
use rindle_gateway::config::Settings;
use rindle_gateway::halt::HaltReason;
use rindle_gateway::{Listeners, choose_generation};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

/// Wrong usage or configuration: refused.
const REFUSED: u8 = 2;
/// Another gateway took over.
const FENCED: u8 = 3;

/// Reads one Postgres source, archives it and fans it out to followers.
#[derive(Debug, Parser)]
#[command(version)]
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
        runtime.shutdown_timeout(std::time::Duration::from_secs(1));
        result
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            last_words(&format_args!("{error:#}"));
            let fenced = matches!(error.downcast_ref(), Some(HaltReason::Fenced { .. }));
            ExitCode::from(if fenced { FENCED } else { 1 })
        }
    }
}

/// Says why the program ends. The exit status tells it too, so a stderr that is gone changes nothing.
fn last_words(why: &dyn std::fmt::Display) {
    let _written = writeln!(std::io::stderr(), "rindle-pg-gateway: {why}");
}

async fn serve(settings: Settings) -> anyhow::Result<()> {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().install_recorder();
    let metrics = recorder.context("install the metrics recorder")?;
    let archive = Archive::open(&settings.backup, &settings.name)
        .await
        .context("open the archive")?;
    let record = choose_generation(&archive, &settings).await?;
    let bind = async |addr| {
        TcpListener::bind(addr)
            .await
            .with_context(|| format!("listen on {addr}"))
    };
    let listeners = Listeners {
        grpc: bind(settings.grpc).await?,
        http: bind(settings.http).await?,
    };
    let ready = serde_json::json!({
        "ready": true,
        "source": settings.name,
        "generation": record.generation,
        "grpcPort": listeners.grpc.local_addr()?.port(),
        "httpPort": listeners.http.local_addr()?.port(),
    });
    writeln!(std::io::stdout(), "{ready}").context("print the ready line on stdout")?;
    let stop = stop_on_signal()?;
    rindle_gateway::run(settings, archive, record, listeners, metrics, stop).await
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
