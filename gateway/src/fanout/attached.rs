//! Who is attached, and what was sent to whom: told by status, waited for by nobody.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rindle_proto::ids::{Lsn, Seq};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::lag::Waiting;
use crate::live::Live;

/// Longest name that is kept of what a follower calls itself, in characters.
const NAME_MAX: usize = 64;

/// The followers of a gateway. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Followers {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug, Default)]
struct Inner {
    /// By the order in which they came.
    followers: BTreeMap<u64, Arc<Follower>>,
    came: u64,
}

#[derive(Debug)]
struct Follower {
    name: String,
    peer: Option<SocketAddr>,
    sent: Mutex<Sent>,
}

/// What was sent to a follower. It counts as sent once it is handed to the connection: what waits in its buffers, or is
/// not applied yet, only the follower knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sent {
    /// Last frame that it has for sure: in the midst of a long piece of log it may have more.
    pub(super) seq: Seq,
    /// It has every transaction that commits up to here; none before that is known.
    pub(super) through: Option<Lsn>,
    /// Where its reader stands.
    pub(super) place: Place,
}

/// Where a follower's reader stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In the log of the session, before this offset.
    Log(u64),
    /// Not there, so nobody knows how many bytes it is behind: why.
    Elsewhere(&'static str),
}

/// A follower as status tells of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FollowerView {
    /// What it calls itself; its address when it does not.
    pub name: String,
    /// Its address, as far as the connection tells.
    pub peer: Option<String>,
    /// Last frame sent.
    pub seq: Seq,
    /// Every transaction that commits up to here was sent.
    pub through: Option<Lsn>,
    /// Frames not sent, in bytes, and the age of the oldest; null while it does not read the local log.
    pub lag: Option<Waiting>,
    /// Why `lag` is null.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

impl Followers {
    /// A follower came; it left when the guard is dropped.
    pub(super) fn attach(&self, name: &str, peer: Option<SocketAddr>, sent: Sent) -> Attached {
        let follower = Arc::new(Follower {
            name: printable(name),
            peer,
            sent: Mutex::new(sent),
        });
        let mut inner = lock(&self.inner);
        inner.came += 1;
        let number = inner.came;
        inner.followers.insert(number, Arc::clone(&follower));
        Attached {
            all: self.clone(),
            number,
            follower,
        }
    }

    /// All of them, in the order in which they came.
    pub fn view(&self, live: Option<&Live>) -> Vec<FollowerView> {
        let all: Vec<_> = lock(&self.inner).followers.values().cloned().collect();
        let now = Instant::now();
        all.iter().map(|one| one.view(live, now)).collect()
    }
}

impl Follower {
    fn view(&self, live: Option<&Live>, now: Instant) -> FollowerView {
        let sent = *lock(&self.sent);
        let peer = self.peer.map(|peer| peer.to_string());
        let lag = match (sent.place, live) {
            (Place::Log(offset), Some(live)) => Ok(live.frames_beyond(offset, now)),
            (Place::Log(_), None) => Err("the gateway's session ended"),
            (Place::Elsewhere(why), _) => Err(why),
        };
        FollowerView {
            name: match self.name.as_str() {
                "" => peer.clone().unwrap_or_default(),
                name => name.to_owned(),
            },
            peer,
            seq: sent.seq,
            through: sent.through,
            lag: lag.ok(),
            why: lag.err().map(str::to_owned),
        }
    }
}

/// A follower that is attached, until dropped.
#[derive(Debug)]
pub(super) struct Attached {
    all: Followers,
    number: u64,
    follower: Arc<Follower>,
}

impl Attached {
    /// This is what it has now.
    pub(super) fn sent(&self, sent: Sent) {
        *lock(&self.follower.sent) = sent;
    }

    /// Its reader moved; frames and transactions are counted when it has reached an end of them.
    pub(super) fn moved(&self, place: Place) {
        lock(&self.follower.sent).place = place;
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        lock(&self.all.inner).followers.remove(&self.number);
    }
}

/// A name comes from outside, and goes to a terminal.
fn printable(name: &str) -> String {
    let shown = name.chars().filter(|letter| !letter.is_control());
    shown.take(NAME_MAX).collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SENT: Sent = Sent {
        seq: Seq(7),
        through: Some(Lsn(70)),
        place: Place::Elsewhere("it reads the archived tail"),
    };

    #[test]
    fn a_follower_is_told_while_it_is_attached() {
        let followers = Followers::default();
        let peer = Some("10.0.0.7:4242".parse().unwrap());
        let first = followers.attach("first", peer, SENT);
        let nameless = followers.attach("", peer, SENT);
        let names = || {
            let all = followers.view(None).into_iter();
            all.map(|one| one.name).collect::<Vec<_>>()
        };
        assert_eq!(names(), ["first", "10.0.0.7:4242"]);
        drop(first);
        assert_eq!(names(), ["10.0.0.7:4242"]);
        nameless.sent(Sent {
            seq: Seq(8),
            ..SENT
        });
        let told = followers.view(None).remove(0);
        assert_eq!((told.seq, told.through), (Seq(8), Some(Lsn(70))));
        assert_eq!(told.lag, None);
        assert_eq!(told.why.as_deref(), Some("it reads the archived tail"));
    }

    #[test]
    fn a_name_cannot_write_to_a_terminal() {
        assert_eq!(printable("a\u{1b}[31m\nb"), "a[31mb");
        assert_eq!(printable(&"x".repeat(1000)).len(), NAME_MAX);
    }
}
