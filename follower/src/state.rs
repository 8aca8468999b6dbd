//! What the follower knows about itself, for `/readyz`, metrics and verify. Written by whoever owns each fact,
//! read by the HTTP handlers; nothing decides by it.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{SystemTime, UNIX_EPOCH};

use rindle_proto::ids::{Lsn, Seq};
use serde::Serialize;
use tokio::sync::watch;

use crate::halt::HaltReason;
use crate::mirror::{Awaiting, Cursor};

/// Shared by all parts of the program.
#[derive(Clone, Debug)]
pub struct State(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    facts: Mutex<Facts>,
    applied: watch::Sender<Option<Cursor>>,
}

#[derive(Debug, Default)]
struct Facts {
    /// The file that is served, once there is a complete mirror.
    serving: Option<PathBuf>,
    boots: u64,
    /// With an archive alone: its log was not yet read to its end, so what is served may be old, or damage may follow.
    unread: bool,
    /// Why the mirror does not move, until it does.
    waiting: Option<String>,
    /// Why the follower stopped following, until it goes on.
    halted: Option<HaltReason>,
    /// Things a human should look at that stop nothing.
    warnings: Vec<String>,
    gateway: Gateway,
    head: Head,
    held: Option<Held>,
    copying: Vec<Awaiting>,
}

/// The follower's connection to a gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Gateway {
    /// The one it talks to, or tried last; none when the archive is tailed.
    pub url: Option<String>,
    /// Frames come.
    pub connected: bool,
    /// Why not.
    pub detail: Option<String>,
}

/// Where the gateway or archive said it stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Head {
    /// Every transaction that ends at or below was sent.
    pub through_lsn: Lsn,
    /// Last frame there is.
    pub head_seq: Seq,
    /// Last frame the archive holds.
    pub durable_seq: Seq,
}

/// A mirror held still for verify.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Held {
    /// Only transactions with a `final_lsn` below are in the mirror.
    pub snapshot: Lsn,
    /// Its last frame.
    pub seq: Seq,
}

/// The body of `/readyz`.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct View {
    /// A complete mirror is served and nothing is halted. With an archive alone its log was read to its end once.
    pub ready: bool,
    /// Why not, in one sentence.
    pub reason: Option<String>,
    /// The sentence is one that needs an operator.
    pub halted: bool,
    /// Why the mirror does not move, also while an earlier state of it is served; none once it moves.
    pub waiting: Option<String>,
    /// It is held still for verify.
    pub held: Option<Held>,
    /// Tables that await a copy.
    pub copying: Vec<Awaiting>,
    /// Generation that is followed.
    pub generation: Option<String>,
    /// Last frame in the mirror.
    pub applied_seq: Seq,
    /// End of the last transaction in it.
    pub applied_lsn: Lsn,
    /// How far behind the source, in bytes of WAL.
    pub lag_bytes: u64,
    /// Age of the last transaction applied while there are later ones, in seconds.
    pub lag_seconds: f64,
    /// The gateway.
    pub gateway: Gateway,
    /// Where it stands.
    pub head: Head,
    /// Things to look at that stop nothing.
    pub warnings: Vec<String>,
}

impl State {
    /// Of a program that just started.
    pub fn new() -> Self {
        let facts = Facts {
            waiting: Some("starting".to_owned()),
            ..Facts::default()
        };
        Self(Arc::new(Inner {
            facts: Mutex::new(facts),
            applied: watch::Sender::new(None),
        }))
    }

    fn facts(&self) -> MutexGuard<'_, Facts> {
        // A panic elsewhere cannot leave facts half written: each write is one assignment.
        self.0
            .facts
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Changes at process start and whenever another file is served.
    pub fn boot_id(&self) -> String {
        static STARTED: std::sync::OnceLock<u64> = std::sync::OnceLock::new();
        let started = *STARTED.get_or_init(|| now_ms() as u64 * 1_000_000);
        let boots = self.facts().boots;
        format!("{:016x}-{:x}", started + boots, std::process::id())
    }

    /// The file that queries read, if a complete mirror is served.
    pub fn serving(&self) -> Option<PathBuf> {
        self.facts().serving.clone()
    }

    pub(crate) fn serve(&self, path: PathBuf) {
        let mut facts = self.facts();
        facts.serving = Some(path);
        facts.boots += 1;
    }

    /// The log must be read to its end once, before anybody is told that this follower is ready.
    pub(crate) fn must_read(&self) {
        self.facts().unread = true;
    }

    /// It was, or it cannot be had now and what is served is the best there is.
    pub(crate) fn has_read(&self) {
        self.facts().unread = false;
    }

    pub(crate) fn wait_for(&self, what: impl Into<String>) {
        self.facts().waiting = Some(what.into());
    }

    /// Whatever it waited or halted for, it is over.
    pub(crate) fn goes_on(&self) {
        let mut facts = self.facts();
        (facts.halted, facts.waiting) = (None, None);
    }

    pub(crate) fn halt(&self, reason: HaltReason) {
        self.facts().halted = Some(reason);
    }

    pub(crate) fn warn(&self, warning: String) {
        let mut facts = self.facts();
        if !facts.warnings.contains(&warning) && facts.warnings.len() < 20 {
            facts.warnings.push(warning);
        }
    }

    pub(crate) fn set_gateway(&self, gateway: Gateway) {
        self.facts().gateway = gateway;
    }

    pub(crate) fn set_head(&self, head: Head) {
        self.facts().head = head;
    }

    /// Where the gateway said it stands.
    pub fn head(&self) -> Head {
        self.facts().head
    }

    pub(crate) fn set_copying(&self, copying: Vec<Awaiting>) {
        self.facts().copying = copying;
    }

    /// Tables that await a copy, as of the mirror's last commit.
    pub fn copying(&self) -> Vec<Awaiting> {
        self.facts().copying.clone()
    }

    pub(crate) fn set_held(&self, held: Option<Held>) {
        self.facts().held = held;
    }

    /// The mirror is held still.
    pub fn held(&self) -> Option<Held> {
        self.facts().held
    }

    pub(crate) fn set_applied(&self, cursor: Option<Cursor>) {
        let before = self.0.applied.send_replace(cursor);
        let seq = |cursor: Option<Cursor>| cursor.map(|cursor| cursor.position.seq);
        if before.is_some() && seq(cursor) > seq(before) {
            self.goes_on();
        }
    }

    /// Where the mirror stands, as of its last commit.
    pub fn applied(&self) -> watch::Receiver<Option<Cursor>> {
        self.0.applied.subscribe()
    }

    /// Everything at one moment.
    pub fn view(&self) -> View {
        let cursor = *self.0.applied.borrow();
        let facts = self.facts();
        let (lag_bytes, lag_seconds) = lag(cursor.as_ref(), facts.head);
        let waiting = match (&facts.serving, facts.unread) {
            (None, _) => Some(
                facts
                    .waiting
                    .clone()
                    .unwrap_or_else(|| "waiting for the first copy".to_owned()),
            ),
            (Some(_), true) => Some("reading the archive's log".to_owned()),
            (Some(_), false) => None,
        };
        let reason = facts.halted.as_ref().map(ToString::to_string).or(waiting);
        View {
            ready: reason.is_none(),
            halted: facts.halted.is_some(),
            reason,
            waiting: facts.waiting.clone(),
            held: facts.held,
            copying: facts.copying.clone(),
            generation: cursor.map(|cursor| cursor.generation.to_string()),
            applied_seq: cursor.map_or(Seq(0), |cursor| cursor.position.seq),
            applied_lsn: cursor.map_or(Lsn(0), |cursor| cursor.end_lsn.0),
            lag_bytes,
            lag_seconds,
            gateway: facts.gateway.clone(),
            head: facts.head,
            warnings: facts.warnings.clone(),
        }
    }
}

impl Default for State {
    fn default() -> Self {
        Self::new()
    }
}

/// Bytes and seconds behind. The source may write WAL that holds nothing for us: with every frame applied the
/// mirror is level whatever the LSNs are.
fn lag(cursor: Option<&Cursor>, head: Head) -> (u64, f64) {
    let Some(cursor) = cursor.filter(|cursor| cursor.position.seq < head.head_seq) else {
        return (0, 0.0);
    };
    let bytes = head.through_lsn.bytes_since(cursor.end_lsn.0);
    let seconds = cursor.commit_time.map_or(0.0, |time| {
        (now_ms() - time.unix_ms()).max(0) as f64 / 1000.0
    });
    (bytes, seconds)
}

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as i64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rindle_proto::ids::Generation;

    #[test]
    fn wait_is_told_while_a_mirror_is_served_until_the_cursor_moves() {
        let state = State::new();
        let mut cursor = Cursor::start(Generation::from_bytes([1; 16]));
        state.set_applied(Some(cursor));
        state.serve("m.db".into());
        state.wait_for("waiting: the disk is full");
        let view = state.view();
        assert!(view.ready, "what there is is served");
        assert_eq!(view.waiting.as_deref(), Some("waiting: the disk is full"));
        cursor.position.seq = Seq(1);
        state.set_applied(Some(cursor));
        assert_eq!(state.view().waiting, None);
    }
}
