//! Follower of a source: keeps an exact read-only SQLite mirror and serves it.
//!
//! - [`mirror`]: the SQLite file; applies frames. Synchronous, uses no sibling module, so the producer and the
//!   command line stand on it too
//! - [`config`]: `rindled.json` to settings
//! - [`state`], [`halt`]: what is told on `/readyz`
//! - `follow`: which mirror is followed, when it is replaced
//! - `bootstrap`, `files`: where a mirror begins, which file it is
//! - `tail`, `gateway`, `archive_tail`, `bulk`: where frames and rows come from
//! - `apply`, `reveal`: the thread that owns the mirror, and when a new one is shown
//! - `http`: the control port
//!
//! Stopping: the tails end first, the apply thread commits what it was handed, then HTTP closes. A kill at any
//! moment is as safe.

pub mod config;
pub mod halt;
pub mod mirror;
pub mod state;

mod apply;
mod archive_tail;
mod backoff;
mod bootstrap;
mod bulk;
mod files;
mod follow;
mod gateway;
mod http;
mod reveal;
mod tail;

#[cfg(test)]
mod tests;

use std::time::Duration;

use anyhow::Context as _;
use metrics_exporter_prometheus::PrometheusHandle;
use rindle_archive::{Archive, ArchiveError, Kind};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::config::Settings;
use crate::state::State;

/// A stop that takes longer leaves what is open to the next start.
const STOP_LIMIT: Duration = Duration::from_secs(8);

/// Why settings that make sense by themselves cannot be followed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The archive.
    #[error("open the archive")]
    Archive(#[source] ArchiveError),
    /// Token or certificates towards the gateway.
    #[error("{0}")]
    Gateway(String),
    /// Certificates of the HTTP service.
    #[error("read the certificates")]
    Tls(#[source] std::io::Error),
}

impl OpenError {
    /// True when the configuration is wrong: trying again cannot help.
    pub fn is_refusal(&self) -> bool {
        match self {
            OpenError::Archive(error) => error.kind() != Kind::Retry,
            OpenError::Gateway(_) | OpenError::Tls(_) => true,
        }
    }
}

/// A follower whose settings were tried: what can be refused was not.
pub struct Follower {
    settings: Settings,
    archive: Option<Archive>,
    gateways: gateway::Gateways,
    tls: Option<rindle_serve::TlsAcceptor>,
}

impl Follower {
    /// Opens the archive, and reads tokens and certificates.
    ///
    /// # Errors
    /// When one of these is of no use.
    pub async fn open(settings: Settings) -> Result<Self, OpenError> {
        let tls = settings.tls.as_ref().map(rindle_serve::acceptor);
        let tls = tls.transpose().map_err(OpenError::Tls)?;
        let refused = |error| OpenError::Gateway(gateway::sentence(&error));
        let gateways = gateway::Gateways::new(&settings.source).map_err(refused)?;
        gateways.check().await.map_err(refused)?;
        let archive = match &settings.source.backup {
            None => None,
            Some(backup) => {
                let opened = Archive::open(backup, &settings.source.name).await;
                Some(opened.map_err(OpenError::Archive)?)
            }
        };
        Ok(Self {
            settings,
            archive,
            gateways,
            tls,
        })
    }

    /// Follows and serves until stopped.
    ///
    /// # Errors
    /// What ended it otherwise.
    pub async fn run(
        self,
        listener: TcpListener,
        state: State,
        metrics: PrometheusHandle,
        stop: CancellationToken,
    ) -> anyhow::Result<()> {
        let Self {
            settings,
            archive,
            gateways,
            tls,
        } = self;
        let (control, controlled) = watch::channel(None);
        let shared = http::Http::new(
            state.clone(),
            metrics,
            settings.auth_token.clone(),
            controlled,
        );
        let follow = follow::Follow::new(settings, archive, gateways, state, control, stop.clone());
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { follow.run().await.context("follow the source") });
        let (router, serving) = (http::router(shared), stop.clone());
        tasks.spawn(async move {
            let served = rindle_serve::serve(listener, tls, router, serving).await;
            served.context("serve HTTP")
        });
        finish(tasks, stop).await
    }
}

/// The first task to end decides; the others are given a moment.
async fn finish(
    mut tasks: JoinSet<anyhow::Result<()>>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let first = tasks.join_next().await;
    stop.cancel();
    let rest = async {
        let mut result = Ok(());
        while let Some(ended) = tasks.join_next().await {
            result = result.and(ended.context("join a task").flatten());
        }
        result
    };
    let rest = tokio::time::timeout(STOP_LIMIT, rest).await;
    if rest.is_err() {
        tracing::warn!("stopping without waiting any longer; the next start clears up");
    }
    let first = first.map_or(Ok(()), |ended| ended.context("join a task").flatten());
    first.and(rest.unwrap_or(Ok(())))
}
