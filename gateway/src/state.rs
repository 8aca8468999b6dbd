//! What the gateway says of itself: one state, written by whoever knows, read by HTTP, status and metrics.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rindle_archive::GenerationRecord;
use rindle_proto::ids::Lsn;
use serde::Serialize;
use tokio::sync::watch;

use crate::halt::HaltReason;
use crate::live::Live;

/// Shared state of a gateway. Cheap to clone.
#[derive(Clone, Debug)]
pub struct State {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    record: GenerationRecord,
    words: Mutex<Words>,
    live: watch::Sender<Option<Arc<Live>>>,
}

#[derive(Debug)]
struct Words {
    phase: Phase,
    /// Why the archive does not take writes, while it does not.
    archive_problem: Option<String>,
    /// Last report to the server.
    received: Lsn,
    acked: Lsn,
    /// Last known end of the source's WAL.
    source_end: Lsn,
    followers: usize,
}

/// What the gateway is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Nothing yet.
    Starting,
    /// Reaching the source; with the reason why it takes long.
    Connecting(String),
    /// Another gateway holds the generation: waiting for it to let go.
    Standby(String),
    /// Copying the tables for the first time.
    Copying(CopyProgress),
    /// The stream runs.
    Streaming,
    /// An operator must act.
    Halted(HaltReason),
}

/// How far the first copy is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CopyProgress {
    /// Tables whose every part is durable.
    pub tables_done: usize,
    /// Tables in all.
    pub tables: usize,
    /// Rows read.
    pub rows: u64,
    /// Bytes read.
    pub bytes: u64,
    /// What it waits for, if it waits.
    pub waiting: Option<String>,
}

/// Everything told by `/readyz` and status.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct View {
    /// The stream runs and the archive takes writes.
    pub ready: bool,
    /// One word: `starting`, `connecting`, `standby`, `copying`, `streaming` or `halted`.
    pub phase: &'static str,
    /// Why not ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Source.
    pub source: String,
    /// Generation.
    pub generation: String,
    /// Epoch of the running session.
    pub epoch: Option<u64>,
    /// Progress of the first copy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub copy: Option<CopyProgress>,
    /// Last frame there is.
    pub head_seq: u64,
    /// Last archived frame.
    pub durable_seq: u64,
    /// Bytes of frames not archived.
    pub unshipped_bytes: u64,
    /// End of the source's WAL, as last heard.
    pub source_end: Lsn,
    /// Received.
    pub received: Lsn,
    /// The archive holds everything that commits up to here.
    pub archived: Lsn,
    /// Acknowledged to the slot.
    pub acked: Lsn,
    /// Followers attached.
    pub followers: usize,
}

impl State {
    /// The state of a gateway that serves `record`.
    pub fn new(record: GenerationRecord) -> Self {
        let words = Words {
            phase: Phase::Starting,
            archive_problem: None,
            received: Lsn(0),
            acked: Lsn(0),
            source_end: Lsn(0),
            followers: 0,
        };
        let live = watch::Sender::new(None);
        Self {
            inner: Arc::new(Inner {
                record,
                words: Mutex::new(words),
                live,
            }),
        }
    }

    /// The generation served.
    pub fn record(&self) -> &GenerationRecord {
        &self.inner.record
    }

    /// Says what the gateway does now; logged when it changes.
    pub fn set_phase(&self, phase: Phase) {
        let mut words = self.words();
        if words.phase == phase {
            return;
        }
        match &phase {
            Phase::Halted(reason) => tracing::error!(%reason, "halted"),
            Phase::Connecting(why) => tracing::info!(why, "connecting"),
            Phase::Standby(why) => tracing::info!(why, "standby"),
            Phase::Copying(progress) => tracing::debug!(?progress, "copying"),
            Phase::Starting | Phase::Streaming => tracing::info!(?phase, "phase"),
        }
        words.phase = phase;
    }

    /// Says that the archive does not take writes, or does again.
    pub fn set_archive_problem(&self, problem: Option<String>) {
        let mut words = self.words();
        match (&words.archive_problem, &problem) {
            (None, Some(problem)) => tracing::warn!(
                problem,
                "the archive takes no writes; nothing is acknowledged"
            ),
            (Some(_), None) => tracing::info!("the archive takes writes again"),
            (None, None) | (Some(_), Some(_)) => {}
        }
        words.archive_problem = problem;
    }

    /// Records the last report to the server.
    pub fn set_positions(&self, received: Lsn, acked: Lsn, source_end: Lsn) {
        let mut words = self.words();
        (words.received, words.acked) = (received, acked);
        words.source_end = words.source_end.max(source_end);
    }

    /// A follower attached (`1`) or left (`-1`).
    pub fn count_follower(&self, change: isize) {
        let mut words = self.words();
        words.followers = words.followers.saturating_add_signed(change);
    }

    /// Opens (`Some`) or closes (`None`) the session that followers are served from.
    pub fn set_live(&self, live: Option<Arc<Live>>) {
        self.inner.live.send_replace(live);
    }

    /// The session that followers are served from, as it changes.
    pub fn live(&self) -> watch::Receiver<Option<Arc<Live>>> {
        self.inner.live.subscribe()
    }

    /// Why followers cannot be served now, when they cannot.
    pub fn reason(&self) -> Option<String> {
        reason(&self.words().phase)
    }

    /// True once halted.
    pub fn is_halted(&self) -> bool {
        matches!(self.words().phase, Phase::Halted(_))
    }

    /// Everything at once.
    pub fn view(&self) -> View {
        let live = self.inner.live.borrow().clone();
        let words = self.words();
        let head = live.as_ref().map(|live| *live.head().borrow());
        let durable = live.as_ref().map(|live| *live.durable().borrow());
        let reason = reason(&words.phase).or_else(|| {
            words
                .archive_problem
                .as_ref()
                .map(|why| format!("the archive takes no writes: {why}"))
        });
        View {
            ready: words.phase == Phase::Streaming && words.archive_problem.is_none(),
            phase: words.phase.word(),
            reason,
            source: self.inner.record.source.to_string(),
            generation: self.inner.record.generation.to_string(),
            epoch: live.as_ref().map(|live| live.epoch.0),
            copy: match &words.phase {
                Phase::Copying(progress) => Some(progress.clone()),
                _ => None,
            },
            head_seq: head.map_or(0, |head| head.position.seq.0),
            durable_seq: durable.map_or(0, |durable| durable.mark.position.seq.0),
            unshipped_bytes: head.zip(durable).map_or(0, |(head, durable)| {
                head.offset.saturating_sub(durable.mark.offset)
            }),
            source_end: words.source_end,
            received: words.received,
            archived: durable.map_or(Lsn(0), |durable| durable.through),
            acked: words.acked,
            followers: words.followers,
        }
    }

    fn words(&self) -> MutexGuard<'_, Words> {
        self.inner
            .words
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Phase {
    fn word(&self) -> &'static str {
        match self {
            Phase::Starting => "starting",
            Phase::Connecting(_) => "connecting",
            Phase::Standby(_) => "standby",
            Phase::Copying(_) => "copying",
            Phase::Streaming => "streaming",
            Phase::Halted(_) => "halted",
        }
    }
}

fn reason(phase: &Phase) -> Option<String> {
    match phase {
        Phase::Starting => Some("starting".to_owned()),
        Phase::Connecting(why) => Some(format!("connecting: {why}")),
        Phase::Standby(why) => Some(format!("standby: {why}")),
        Phase::Copying(progress) => Some(match &progress.waiting {
            Some(waiting) => format!("waiting for the first copy: {waiting}"),
            None => format!(
                "waiting for the first copy ({} of {} tables)",
                progress.tables_done, progress.tables
            ),
        }),
        Phase::Streaming => None,
        Phase::Halted(reason) => Some(reason.to_string()),
    }
}
