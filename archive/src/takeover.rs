//! Becoming the only writer of a generation (rules 5 to 8): claim an epoch, find the head, put a fence behind it.
//!
//! The fence has the key that an older writer would use next, so one of the two loses it; and it is built from
//! exactly the object before it, so nothing that lands late is discarded or kept by mistake.

use bytes::Bytes;
use rindle_proto::ids::{Epoch, Lsn, Position, SegmentNo, Timeline};
use serde::{Deserialize, Serialize};
use ulid::Ulid;

use crate::error::{ArchiveError, Kind};
use crate::log::Log;
use crate::objects::{MAX_RECORD_BYTES, Stands, now_ms, to_json};
use crate::reader::ReadError;
use crate::segment::{
    self, Flaw, LastCommit, MAX_OBJECT_BYTES, Predecessor, Sealed, Segment, SegmentHeader,
};
use crate::store::StoreError;
use crate::writer::Writer;

/// Attempts at a claim, at a fence and at the whole: each one is lost to a process that made progress.
const MAX_ROUNDS: usize = 1000;

/// The timeline of the server that the session streams from, and where earlier ones ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    /// The server's timeline (IDENTIFY_SYSTEM).
    pub timeline: Timeline,
    /// Earlier timelines with the position at which each was left (TIMELINE_HISTORY). Needed after a failover.
    pub switches: Vec<(Timeline, Lsn)>,
}

impl From<Timeline> for History {
    fn from(timeline: Timeline) -> Self {
        Self {
            timeline,
            switches: Vec::new(),
        }
    }
}

/// A generation taken over.
#[derive(Debug)]
pub struct Taken {
    /// The only one that may append.
    pub writer: Writer,
    /// The session's epoch.
    pub epoch: Epoch,
    /// What the log held.
    pub tail: Tail,
}

/// What the log holds at a takeover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tail {
    /// Where the next frame goes on: the last commit, or the start.
    pub position: Position,
    /// The last commit, if the first copy was completed.
    pub last_commit: Option<LastCommit>,
    /// Everything up to here was in the log, so it may have been acknowledged.
    pub through_lsn: Lsn,
    /// Timeline of `through_lsn`.
    pub through_timeline: Timeline,
    /// The fence.
    pub segment: SegmentNo,
}

/// Why a generation was not taken over. Whatever happened, calling again is safe.
#[derive(Debug, thiserror::Error)]
pub enum TakeOverError {
    /// A later session has it.
    #[error("epoch {mine} is fenced by epoch {by}; connect again to take over from it")]
    Fenced {
        /// What this session had claimed.
        mine: Epoch,
        /// Who has it.
        by: Epoch,
    },
    /// The server is on an older timeline than the log.
    #[error(
        "the log was written from timeline {log}, the server is on timeline {server}: it was left \
         behind by a failover; connect to the server that was promoted"
    )]
    TimelineBehind {
        /// Timeline of the last session.
        log: Timeline,
        /// The server's.
        server: Timeline,
    },
    /// The caller did not say where an earlier timeline ended.
    #[error("the end of timeline {0} is not known; read the server's TIMELINE_HISTORY first")]
    SwitchUnknown(Timeline),
    /// The generation has no record in this archive.
    #[error("generation {0} is not in this archive; check that the archive is mounted, or mint")]
    NoGeneration(rindle_proto::ids::Generation),
    /// It was ended for good.
    #[error("generation {0} was retired; point the gateway at a generation that is not, or mint")]
    Retired(rindle_proto::ids::Generation),
    /// The log is damaged.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A record is damaged, or the store did not answer.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// Something stands at the fence's place that no protocol puts there.
    #[error("{key} was written by this epoch, but not by this takeover; keep a copy and report it")]
    Conflict {
        /// Its key.
        key: String,
    },
    /// Others were faster each time.
    #[error("{0} attempts were overtaken by other gateways; stop all but one")]
    Contended(usize),
    /// The fence could not be built.
    #[error("a fence that this program cannot build")]
    Fence(#[source] Flaw),
}

impl TakeOverError {
    /// What the caller does about it.
    pub fn kind(&self) -> Kind {
        match self {
            TakeOverError::Fenced { .. } | TakeOverError::Contended(_) => Kind::Retry,
            TakeOverError::TimelineBehind { .. } | TakeOverError::Conflict { .. } => Kind::Halt,
            TakeOverError::SwitchUnknown(_) | TakeOverError::Fence(_) => Kind::Bug,
            TakeOverError::NoGeneration(_) | TakeOverError::Retired(_) => Kind::Refused,
            TakeOverError::Read(error) => error.kind(),
            TakeOverError::Archive(error) => error.kind(),
        }
    }
}

impl From<StoreError> for TakeOverError {
    fn from(error: StoreError) -> Self {
        TakeOverError::Archive(error.into())
    }
}

/// Content of `e/{epoch}.json`: who claimed it.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Claim {
    epoch: Epoch,
    timeline: Timeline,
    /// Makes each claim its own.
    id: String,
    at_ms: i64,
}

impl Log {
    /// Makes the caller the writer of this generation, for one walsender session (rule 4).
    ///
    /// Give the whole [`History`] of a server that was promoted; a bare timeline does for one that never was.
    ///
    /// # Errors
    /// Why not; see [`TakeOverError`].
    pub async fn take_over(&self, server: impl Into<History>) -> Result<Taken, TakeOverError> {
        let server = server.into();
        let (epoch, fence) = self.take(&server, false).await?;
        Ok(self.taken(epoch, server.timeline, &fence))
    }

    /// Ends this generation for good: fences whoever writes it, and nobody takes it over any more. Once it is sealed
    /// this changes nothing.
    ///
    /// # Errors
    /// Why not; see [`TakeOverError`].
    pub async fn seal(&self, server: impl Into<History>) -> Result<(), TakeOverError> {
        match self.take(&server.into(), true).await {
            Ok(_) | Err(TakeOverError::Retired(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn take(&self, server: &History, seal: bool) -> Result<(Epoch, Sealed), TakeOverError> {
        if !self.exists().await? {
            return Err(TakeOverError::NoGeneration(self.generation));
        }
        for _ in 0..MAX_ROUNDS {
            let epoch = self.claim(server.timeline).await?;
            let fence = match self.fence(epoch, server, seal).await {
                Err(TakeOverError::Read(ReadError::Trimmed { .. })) => continue,
                fence => fence?,
            };
            // Rule 8: a fence at or below the boundary stands where nobody reads, and fences nobody.
            if self.boundary().await? < fence.header.segment {
                self.saw(fence.header.segment);
                return Ok((epoch, fence));
            }
        }
        Err(TakeOverError::Contended(MAX_ROUNDS))
    }

    /// Rule 5: the first epoch nobody has.
    pub(crate) async fn claim(&self, timeline: Timeline) -> Result<Epoch, TakeOverError> {
        let mut epoch = self.newest_epoch().await?;
        for _ in 0..MAX_ROUNDS {
            epoch = Epoch(epoch.0 + 1);
            let id = Ulid::generate().to_string();
            let claim = to_json(&Claim {
                epoch,
                timeline,
                id,
                at_ms: now_ms(),
            });
            let key = self.keys.epoch(epoch);
            match self.objects.create(&key, &claim, MAX_RECORD_BYTES).await? {
                Stands::Mine => return Ok(epoch),
                Stands::Other(_) => {}
            }
        }
        Err(TakeOverError::Contended(MAX_ROUNDS))
    }

    /// Rules 6 and 7.
    async fn fence(
        &self,
        epoch: Epoch,
        server: &History,
        seal: bool,
    ) -> Result<Sealed, TakeOverError> {
        let boundary = self.boundary().await?;
        let mut head = self.find_head(boundary).await?;
        if let Some(listed) = self.listed_after(head).await? {
            // Written since, or a hole: then the head does not move however often one looks.
            let again = self.find_head(boundary).await?;
            if again == head && self.boundary().await? == boundary && listed > head.next() {
                let key = self.keys.segment(head.next()).to_string();
                return Err(ReadError::Gap { key }.into());
            }
            head = again;
        }
        self.fence_behind(epoch, server, boundary, head, seal).await
    }

    /// Puts a fence behind `head`, or behind what landed there meanwhile.
    pub(crate) async fn fence_behind(
        &self,
        epoch: Epoch,
        server: &History,
        boundary: SegmentNo,
        mut head: SegmentNo,
        seal: bool,
    ) -> Result<Sealed, TakeOverError> {
        for _ in 0..MAX_ROUNDS {
            let last = self.last_object(boundary, head).await?;
            let mut fence = self.build_fence(epoch, server, last.as_ref(), head.next())?;
            fence.seal = seal;
            let fence = segment::seal(fence, &Bytes::new()).map_err(TakeOverError::Fence)?;
            let key = self.keys.segment(fence.header.segment);
            match self
                .objects
                .create(&key, &fence.bytes, MAX_OBJECT_BYTES)
                .await?
            {
                Stands::Mine => return Ok(fence),
                Stands::Other(taken) => self.overtaken(epoch, &key, &taken, head.next())?,
            }
            head = head.next();
        }
        Err(TakeOverError::Contended(MAX_ROUNDS))
    }

    /// The head, verified: a fence must not stand on a damaged object.
    async fn last_object(
        &self,
        boundary: SegmentNo,
        head: SegmentNo,
    ) -> Result<Option<Segment>, TakeOverError> {
        if head.0 == 0 {
            return Ok(None);
        }
        if head > boundary
            && let Some(last) = self.segment(head).await?
        {
            // Its writer may have died before it knew that the object is durable.
            let key = self.keys.segment(head);
            match self.objects.0.settle(&key).await {
                Ok(()) => return Ok(Some(last)),
                Err(error) if self.objects.exists(&key).await? => return Err(error.into()),
                Err(_trimmed_meanwhile) => {}
            }
        }
        // Trimming leaves what the retained images need, so something stands above the boundary.
        Err(self.absent(head.max(boundary.next())).await?.into())
    }

    /// Somebody has the fence's place: an older session's object is adopted, a later one's ends this takeover.
    fn overtaken(
        &self,
        mine: Epoch,
        key: &crate::layout::Key,
        taken: &Bytes,
        segment: SegmentNo,
    ) -> Result<(), TakeOverError> {
        let header = segment::open_header(taken, self.generation, segment).map_err(|what| {
            ReadError::Corrupt {
                key: key.to_string(),
                what,
            }
        })?;
        match header.epoch.cmp(&mine) {
            std::cmp::Ordering::Less => Ok(()),
            std::cmp::Ordering::Equal => Err(TakeOverError::Conflict {
                key: key.to_string(),
            }),
            std::cmp::Ordering::Greater => Err(TakeOverError::Fenced {
                mine,
                by: header.epoch,
            }),
        }
    }

    fn build_fence(
        &self,
        epoch: Epoch,
        server: &History,
        last: Option<&Segment>,
        segment: SegmentNo,
    ) -> Result<SegmentHeader, TakeOverError> {
        let none = Predecessor::none(self.generation);
        let before = last.map_or(none, Segment::predecessor);
        let last = last.map(|last| &last.header);
        if last.is_some_and(|last| last.seal) {
            return Err(TakeOverError::Retired(self.generation));
        }
        if before.epoch > epoch {
            return Err(TakeOverError::Fenced {
                mine: epoch,
                by: before.epoch,
            });
        }
        if let Some(last) = last.filter(|last| last.timeline > server.timeline) {
            let (log, server) = (last.timeline, server.timeline);
            return Err(TakeOverError::TimelineBehind { log, server });
        }
        let (through_lsn, through_timeline) = server.through(last)?;
        let start = Position::start(self.generation);
        Ok(SegmentHeader {
            generation: self.generation,
            segment,
            epoch,
            put_id: Ulid::generate(),
            timeline: server.timeline,
            fence: true,
            tick: false,
            seal: false,
            through_lsn,
            through_timeline,
            start: before.end,
            end: before.last_commit.map_or(start, |commit| commit.position),
            previous: before.digest,
            frames: 0,
            last_commit: before.last_commit,
            raw_bytes: 0,
            body_bytes: 0,
            made_at_ms: now_ms(),
        })
    }

    fn taken(&self, epoch: Epoch, timeline: Timeline, fence: &Sealed) -> Taken {
        let header = &fence.header;
        let tail = Tail {
            position: header.end,
            last_commit: header.last_commit,
            through_lsn: header.through_lsn,
            through_timeline: header.through_timeline,
            segment: header.segment,
        };
        tracing::info!(
            generation = %self.generation, %epoch, fence = %header.segment, frame = %header.end.seq,
            "took the log over"
        );
        Taken {
            writer: Writer::new(self.clone(), epoch, timeline, fence),
            epoch,
            tail,
        }
    }
}

impl History {
    /// Rule 3: a fence carries what its predecessor does, capped where that timeline was left.
    fn through(&self, last: Option<&SegmentHeader>) -> Result<(Lsn, Timeline), TakeOverError> {
        let Some(last) = last else {
            return Ok((Lsn(0), self.timeline));
        };
        let (lsn, timeline) = (last.through_lsn, last.through_timeline);
        if timeline >= self.timeline {
            return Ok((lsn, timeline));
        }
        let switch = self.switches.iter().find(|switch| switch.0 == timeline);
        let switch = switch.ok_or(TakeOverError::SwitchUnknown(timeline))?;
        Ok((lsn.min(switch.1), timeline))
    }
}
