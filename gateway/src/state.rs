//! What the gateway says of itself: one state, written by whoever knows, read by HTTP, status and metrics.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rindle_archive::GenerationRecord;
use rindle_proto::ids::Lsn;
use serde::Serialize;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::fanout::{FollowerView, Followers};
use crate::halt::HaltReason;
use crate::lag::{Lag, Trail};
use crate::live::Live;

/// The source is asked for its position every second; one that is silent for so long may be anywhere.
const SOURCE_SILENT: Duration = Duration::from_secs(5);

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
    followers: Followers,
}

#[derive(Debug)]
struct Words {
    phase: Phase,
    /// Why the archive does not take writes, while it does not.
    archive_problem: Option<String>,
    /// Last report to the server.
    received: Lsn,
    acked: Lsn,
    /// Last known end of the source's WAL, and when it was told.
    source: Trail,
    source_told: Option<Instant>,
    /// Backfills, by a number of the driver's.
    backfills: BTreeMap<u64, BackfillView>,
    /// What is wrong with the capture of schema changes.
    capture: Vec<String>,
}

/// A backfill: a copy that runs, or waits to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BackfillView {
    /// What it copies.
    pub tables: Vec<String>,
    /// Rows read.
    pub rows: u64,
    /// Bytes read.
    pub bytes: u64,
    /// What it waits for, if it waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting: Option<String>,
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
    /// What waits in front of each hop.
    pub lag: Lag,
    /// Followers attached. Not told where anybody may ask: names and addresses are nobody's business.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub followers: Option<Vec<FollowerView>>,
    /// Copies that run beside the stream.
    pub backfills: Vec<BackfillView>,
    /// Tables and partitions whose rows are not all there yet.
    pub waiting: Vec<String>,
    /// Published tables that are not mirrored, and why.
    pub unmirrored: Vec<(String, String)>,
    /// What is wrong with the capture of schema changes in the source, and what mends it.
    pub capture: Vec<String>,
}

impl State {
    /// The state of a gateway that serves `record`.
    pub fn new(record: GenerationRecord) -> Self {
        let words = Words {
            phase: Phase::Starting,
            archive_problem: None,
            received: Lsn(0),
            acked: Lsn(0),
            source: Trail::new(0),
            source_told: None,
            backfills: BTreeMap::new(),
            capture: Vec::new(),
        };
        let live = watch::Sender::new(None);
        Self {
            inner: Arc::new(Inner {
                record,
                words: Mutex::new(words),
                live,
                followers: Followers::default(),
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
    pub fn set_positions(&self, received: Lsn, acked: Lsn) {
        let mut words = self.words();
        (words.received, words.acked) = (received, acked);
    }

    /// The source told where its WAL ends.
    pub fn set_source_end(&self, end: Lsn) {
        let (mut words, now) = (self.words(), Instant::now());
        words.source.reached(end.0, now);
        words.source_told = Some(now);
    }

    /// Who is attached.
    pub fn followers(&self) -> &Followers {
        &self.inner.followers
    }

    /// Tells what is wrong with the capture of schema changes; logged when it changes.
    pub fn set_capture(&self, found: Vec<String>) {
        let mut words = self.words();
        if words.capture != found {
            for one in &found {
                tracing::warn!(
                    finding = one,
                    "not all that happens in the source is announced in the stream"
                );
            }
            words.capture = found;
        }
    }

    /// Tells how far a backfill is; none when it is over.
    pub fn set_backfill(&self, number: u64, view: Option<BackfillView>) {
        let mut words = self.words();
        match view {
            Some(view) => drop(words.backfills.insert(number, view)),
            None => drop(words.backfills.remove(&number)),
        }
    }

    /// Forgets the backfills of which `keep` is false.
    pub fn keep_backfills(&self, keep: impl Fn(u64) -> bool) {
        self.words().backfills.retain(|number, _| keep(*number));
    }

    /// Opens (`Some`) or closes (`None`) the session that followers are served from.
    pub fn set_live(&self, live: Option<Arc<Live>>) {
        if live.is_some() {
            // It may read a promoted server whose WAL ends below what the one before it told.
            let mut words = self.words();
            (words.source, words.source_told) = (Trail::new(0), None);
        }
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
        let belief = live
            .as_ref()
            .and_then(|live| live.beliefs().borrow().clone());
        let (waiting, unmirrored) = belief.map_or_else(Default::default, |belief| {
            (belief.waiting, belief.unmirrored)
        });
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
            reason: reason.clone(),
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
            source_end: Lsn(words.source.end()),
            received: words.received,
            archived: durable.map_or(Lsn(0), |durable| durable.through),
            acked: words.acked,
            lag: lag(&words, live.as_deref(), reason.as_deref(), Instant::now()),
            followers: Some(self.inner.followers.view(live.as_deref())),
            backfills: words.backfills.values().cloned().collect(),
            waiting,
            unmirrored,
            capture: words.capture.clone(),
        }
    }

    /// What anybody may know.
    pub fn open_view(&self) -> View {
        View {
            followers: None,
            ..self.view()
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

/// `why` says why there is no session.
fn lag(words: &Words, live: Option<&Live>, why: Option<&str>, now: Instant) -> Lag {
    let mut lag = Lag::default();
    let Some(live) = live else {
        let why = why.unwrap_or("no session is open");
        let hops = ["received", "archived", "acked"];
        lag.why = hops.map(|hop| (hop, why.to_owned())).into();
        return lag;
    };
    lag.archived = Some(live.frames_beyond(live.durable().borrow().mark.offset, now));
    match words.source_told.map(|told| now.duration_since(told)) {
        Some(silent) if silent < SOURCE_SILENT => {
            lag.received = Some(words.source.beyond(words.received.0, now));
        }
        Some(silent) => {
            let seconds = silent.as_secs();
            let why = format!("the source's position was not read for {seconds} s");
            lag.why.insert("received", why);
        }
        None => {
            let why = "the source has not told its position yet".to_owned();
            lag.why.insert("received", why);
        }
    }
    match words.acked {
        Lsn(0) => {
            let why = "nothing was acknowledged yet".to_owned();
            lag.why.insert("acked", why);
        }
        acked => lag.acked = Some(live.archived_beyond(acked, now)),
    }
    lag
}

#[cfg(test)]
mod tests {
    use rindle_proto::ids::{Digest, Epoch, Position, Seq, Timeline};

    use super::*;

    #[test]
    fn a_hop_without_news_is_unknown_and_says_why() {
        let dir = tempfile::tempdir().unwrap();
        let at = |seq| Position {
            seq: Seq(seq),
            chain: Digest([0; 32]),
        };
        let generation = "01ARZ3NDEKTSV4RRFFQ69G5FAV".parse().unwrap();
        let live = Live::create(
            generation,
            Epoch(1),
            Timeline(1),
            at(0),
            Lsn(100),
            dir.path(),
        );
        let live = live.unwrap();
        let begun = Instant::now();
        let after = |seconds| begun + Duration::from_secs(seconds);
        let mut words = Words {
            phase: Phase::Streaming,
            archive_problem: None,
            received: Lsn(100),
            acked: Lsn(0),
            source: Trail::new(0),
            source_told: None,
            backfills: BTreeMap::new(),
            capture: Vec::new(),
        };
        let unknown = lag(&words, None, Some("halted"), begun);
        assert_eq!(unknown.why.len(), 3, "{unknown:?}");
        let early = lag(&words, Some(&live), None, begun);
        assert_eq!(early.archived.map(|waiting| waiting.bytes), Some(0));
        assert_eq!((early.received, early.acked), (None, None));
        assert_eq!(early.why.len(), 2, "{early:?}");

        words.source.reached(160, begun);
        (words.source_told, words.acked) = (Some(after(4)), Lsn(100));
        let told = lag(&words, Some(&live), None, after(4));
        let waiting = told.received.unwrap();
        assert_eq!((waiting.bytes, waiting.seconds), (60, 4.0));
        assert!(told.acked.is_some() && told.why.is_empty(), "{told:?}");
        let silent = lag(&words, Some(&live), None, after(9));
        assert_eq!(silent.received, None);
        assert!(silent.why["received"].contains("5 s"), "{silent:?}");
    }
}
