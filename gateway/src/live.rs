//! What one walsender session shares with ship and fan-out: its log, and how far each hop has come.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rindle_archive::Commit;
use rindle_proto::ids::{Epoch, Generation, Lsn, Position, Seq, Timeline};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::ddl::Believed;
use crate::lag::{Trail, Waiting};
use crate::log::{Log, Mark};

/// One session. It is replaced, never reused: a new session has a new epoch and an empty log.
#[derive(Debug)]
pub struct Live {
    /// The generation served.
    pub generation: Generation,
    /// Number of this session's takeover.
    pub epoch: Epoch,
    /// Timeline of the server it reads.
    pub timeline: Timeline,
    /// Position that the log starts after: the archive's last commit when the session began.
    pub start: Position,
    /// Frames of this session.
    pub log: Log,
    /// End of the log. Written by the pump.
    head: watch::Sender<Mark>,
    /// What is archived. Written by ship.
    durable: watch::Sender<Durable>,
    /// Up to where followers may read. Written by the pump.
    visible: watch::Sender<Visible>,
    /// What is believed of the source. Written by the pump.
    beliefs: watch::Sender<Option<Belief>>,
    /// The server waits for an acknowledgement: it does before it shuts down.
    hurry: Notify,
    moments: Mutex<Moments>,
}

/// When each hop came to where it is.
#[derive(Debug)]
struct Moments {
    /// Offset of the log's end.
    head: Trail,
    /// [`Durable::through`].
    archived: Trail,
}

/// What the archive holds of this session.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Durable {
    /// End of the archived part of the log.
    pub mark: Mark,
    /// The session's `through_lsn` in its last confirmed object: what may be acknowledged.
    pub through: Lsn,
}

/// What followers may see.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Visible {
    /// Offset in the log.
    pub offset: u64,
    /// Last frame below it.
    pub seq: Seq,
    /// Every transaction whose commit record ends at or below this lies below `offset`.
    pub through: Lsn,
}

/// What is believed after a commit of the log, and holds until another one changes it.
#[derive(Clone, Debug)]
pub struct Belief {
    /// What is believed.
    pub believed: Arc<Believed>,
    /// The commit.
    pub position: Position,
    /// End of its transaction.
    pub end_lsn: Lsn,
    /// The log holds the commit below this offset.
    pub offset: u64,
    /// Names of tables and partitions that wait for a copy.
    pub waiting: Vec<String>,
    /// Published tables that are not mirrored, and why.
    pub unmirrored: Vec<(String, String)>,
}

impl Belief {
    /// `believed` from the commit at `position` on; what is asked often follows from it once.
    pub fn new(believed: Arc<Believed>, position: Position, end_lsn: Lsn, offset: u64) -> Self {
        Self {
            waiting: believed.waiting_names(),
            unmirrored: believed.unmirrored(),
            believed,
            position,
            end_lsn,
            offset,
        }
    }
}

impl Live {
    /// A session that starts after `start`, where `through` may be acknowledged already.
    ///
    /// # Errors
    /// When the log's directory cannot be used.
    pub fn create(
        generation: Generation,
        epoch: Epoch,
        timeline: Timeline,
        start: Position,
        through: Lsn,
        dir: &Path,
    ) -> io::Result<Self> {
        let log = Log::create(dir, start)?;
        let mark = log.head();
        Ok(Self {
            generation,
            epoch,
            timeline,
            start,
            log,
            head: watch::Sender::new(mark),
            durable: watch::Sender::new(Durable { mark, through }),
            visible: watch::Sender::new(Visible {
                offset: 0,
                seq: start.seq,
                through,
            }),
            beliefs: watch::Sender::new(None),
            hurry: Notify::new(),
            moments: Mutex::new(Moments {
                head: Trail::new(mark.offset),
                archived: Trail::new(through.0),
            }),
        })
    }

    /// Asks ship for a tick now instead of when it is due.
    pub fn hurry(&self) {
        self.hurry.notify_one();
    }

    /// Waits for [`Live::hurry`].
    pub async fn hurried(&self) {
        self.hurry.notified().await;
    }

    /// Appends frames to the log and tells ship. Followers are told by [`Live::show`].
    ///
    /// # Errors
    /// When the log cannot be written.
    pub fn append(
        &self,
        frames: &[u8],
        end: Position,
        last_commit: Option<Commit>,
    ) -> io::Result<Mark> {
        let mark = self.log.append(frames, end, last_commit)?;
        self.moments().head.reached(mark.offset, Instant::now());
        self.head.send_replace(mark);
        Ok(mark)
    }

    /// Something else is believed from here on.
    pub fn believe(&self, belief: Belief) {
        self.beliefs.send_replace(Some(belief));
    }

    /// What is believed, as it changes; none before the stream runs.
    pub fn beliefs(&self) -> watch::Receiver<Option<Belief>> {
        self.beliefs.subscribe()
    }

    /// Lets followers read up to `mark`.
    pub fn show(&self, mark: &Mark, through: Lsn) {
        let next = Visible {
            offset: mark.offset,
            seq: mark.position.seq,
            through,
        };
        self.visible.send_if_modified(|visible| {
            let changed = *visible != next;
            *visible = next;
            changed
        });
    }

    /// Records that the archive holds the log up to `mark`.
    pub fn archived(&self, mark: Mark, through: Lsn, retain_bytes: u64) {
        self.log.archived(&mark, retain_bytes);
        self.moments().archived.reached(through.0, Instant::now());
        self.durable.send_replace(Durable { mark, through });
    }

    /// Frames that lie beyond an offset.
    pub fn frames_beyond(&self, offset: u64, now: Instant) -> Waiting {
        self.moments().head.beyond(offset, now)
    }

    /// WAL that is archived and lies beyond a position.
    pub fn archived_beyond(&self, lsn: Lsn, now: Instant) -> Waiting {
        self.moments().archived.beyond(lsn.0, now)
    }

    fn moments(&self) -> MutexGuard<'_, Moments> {
        self.moments.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The end of the log as it moves.
    pub fn head(&self) -> watch::Receiver<Mark> {
        self.head.subscribe()
    }

    /// What is archived as it moves.
    pub fn durable(&self) -> watch::Receiver<Durable> {
        self.durable.subscribe()
    }

    /// What followers may see as it moves.
    pub fn visible(&self) -> watch::Receiver<Visible> {
        self.visible.subscribe()
    }
}
