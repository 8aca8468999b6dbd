//! The thread that owns a mirror. Everything that changes the mirror comes in through one bounded channel, in
//! order: frames, breaks, and what verify asks for.
//!
//! It commits as soon as nothing waits, so a lone transaction is visible at once; while more waits it groups, up
//! to [`GROUP_OPS`], [`GROUP_BYTES`] and [`GROUP_TIME`].

mod ahead;
mod hold;

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rindle_archive::failpoint;
use rindle_proto::frame::Frame;
use rindle_proto::ids::{Epoch, Generation, Lsn, SegmentNo};
use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use hold::Hold;
pub(crate) use hold::{HoldError, LIMIT as HOLD_LIMIT};

use crate::mirror::{
    BulkSource, Cursor, Mirror, MirrorError, MirrorOptions, awaiting, loads_parts,
};
use crate::reveal::Reveal;
use crate::state::{Head, Held, State};

/// Limits of a group of source transactions that share a SQLite commit.
const GROUP_OPS: u64 = 100_000;
const GROUP_BYTES: u64 = 64 << 20;
const GROUP_TIME: Duration = Duration::from_millis(500);

/// Bytes of frames that wait for the thread, in KiB: one permit each.
const QUEUED_KIB: u32 = 16 << 10;

/// Messages that wait for it; bytes are the real limit.
const QUEUED_MESSAGES: usize = 4096;

/// What the thread is told.
#[derive(Debug)]
pub(crate) enum Input {
    /// The next frames.
    Frames(Frames),
    /// The transaction that is open was cut off.
    Discard,
    /// A stream begins: drop what is incomplete, and answer where the mirror stands.
    Rewind(oneshot::Sender<Cursor>),
    /// Who speaks from now on.
    Epoch(Epoch),
    /// Where the other end stands; everything up to it came before this.
    Progress(Head),
    /// There is nothing more at present.
    Level,
    /// Verify: stand still before `snapshot`.
    Hold {
        snapshot: Lsn,
        reached: oneshot::Sender<Result<Held, HoldError>>,
    },
    /// Verify is at work: the hold lasts longer.
    Renew,
    /// Verify is done.
    Release,
    /// The time of a hold's term is over.
    Lapse(u64),
}

/// Whole frames, with their share of the channel's room.
#[derive(Debug)]
pub(crate) struct Frames {
    frames: Vec<Frame>,
    /// Log object they came from, when read from an archive.
    segment: Option<SegmentNo>,
    _room: OwnedSemaphorePermit,
}

/// The thread's other end. Clones speak to the same thread.
#[derive(Clone, Debug)]
pub(crate) struct Handle {
    inputs: mpsc::Sender<Input>,
    room: Arc<Semaphore>,
}

/// A handle that does not keep the thread running.
#[derive(Clone, Debug)]
pub(crate) struct WeakHandle {
    inputs: mpsc::WeakSender<Input>,
    room: Arc<Semaphore>,
}

impl WeakHandle {
    /// The handle, if the thread still listens.
    pub(crate) fn upgrade(&self) -> Option<Handle> {
        let inputs = self.inputs.upgrade()?;
        let room = Arc::clone(&self.room);
        Some(Handle { inputs, room })
    }
}

/// The thread is gone; [`Thread::join`] says why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the apply thread has ended")]
pub(crate) struct Gone;

impl Handle {
    /// Hands frames over; waits while too many bytes wait already. Frames longer than all the room take all of it.
    pub(crate) async fn frames(
        &self,
        frames: Vec<Frame>,
        segment: Option<SegmentNo>,
    ) -> Result<(), Gone> {
        let bytes: usize = frames.iter().map(|frame| frame.payload.len()).sum();
        let permits = u32::try_from(bytes / 1024 + 1)
            .unwrap_or(u32::MAX)
            .min(QUEUED_KIB);
        let room = Arc::clone(&self.room).acquire_many_owned(permits).await;
        let _room = room.map_err(|_closed| Gone)?;
        self.send(Input::Frames(Frames {
            frames,
            segment,
            _room,
        }))
        .await
    }

    pub(crate) fn downgrade(&self) -> WeakHandle {
        WeakHandle {
            inputs: self.inputs.downgrade(),
            room: Arc::clone(&self.room),
        }
    }

    pub(crate) async fn send(&self, input: Input) -> Result<(), Gone> {
        self.inputs.send(input).await.map_err(|_gone| Gone)
    }

    /// Drops what is incomplete; where the mirror stands then.
    pub(crate) async fn rewind(&self) -> Result<Cursor, Gone> {
        let (answer, answered) = oneshot::channel();
        self.send(Input::Rewind(answer)).await?;
        answered.await.map_err(|_dropped| Gone)
    }
}

/// Why the thread ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApplyError {
    /// The mirror could not go on.
    #[error(transparent)]
    Mirror(#[from] MirrorError),
    /// The new mirror is complete and could not take the old one's place.
    #[error("put the new mirror in the place of the old one")]
    Swap(#[source] std::io::Error),
}

/// A running apply thread.
#[derive(Debug)]
pub(crate) struct Thread {
    pub(crate) handle: Handle,
    join: JoinHandle<Result<(), ApplyError>>,
    ended: oneshot::Receiver<()>,
}

/// What a thread needs.
pub(crate) struct Job {
    pub(crate) path: PathBuf,
    pub(crate) options: MirrorOptions,
    /// Followed when the file follows nothing yet.
    pub(crate) generation: Generation,
    /// Highest epoch that an earlier mirror of the same generation saw.
    pub(crate) epoch: Epoch,
    pub(crate) bulk: Box<dyn BulkSource + Send>,
    pub(crate) state: State,
    /// When it may be served.
    pub(crate) reveal: Reveal,
    /// Told once the mirror is to be served.
    pub(crate) complete: Box<dyn FnOnce() -> std::io::Result<()> + Send>,
}

/// Ends holds that nobody releases. The thread sees to it itself: whoever asked may leave at any moment.
struct Lapses {
    runtime: tokio::runtime::Handle,
    thread: WeakHandle,
}

impl Lapses {
    fn after_limit(&self, term: u64) {
        // Holds no sender, so that the thread can end meanwhile.
        let weak = self.thread.clone();
        self.runtime.spawn(async move {
            tokio::time::sleep(HOLD_LIMIT).await;
            if let Some(handle) = weak.upgrade() {
                // A thread that is gone holds nothing.
                let _ = handle.send(Input::Lapse(term)).await;
            }
        });
    }
}

impl Thread {
    /// Within a runtime.
    pub(crate) fn spawn(job: Job) -> std::io::Result<Self> {
        let (inputs, receiver) = mpsc::channel(QUEUED_MESSAGES);
        let room = Arc::new(Semaphore::new(QUEUED_KIB as usize));
        let (end, ended) = oneshot::channel();
        let handle = Handle { inputs, room };
        let lapses = Lapses {
            runtime: tokio::runtime::Handle::current(),
            thread: handle.downgrade(),
        };
        let join = std::thread::Builder::new()
            .name("apply".to_owned())
            .spawn(move || {
                let result = run(job, receiver, lapses);
                drop(end);
                result
            })?;
        Ok(Self {
            handle,
            join,
            ended,
        })
    }

    /// Waits until the thread has ended by itself.
    pub(crate) async fn ended(&mut self) {
        // The sender is dropped, never used: either answer means the end.
        let _ = (&mut self.ended).await;
    }

    /// Lets the thread finish what it was handed, and says how it ended.
    pub(crate) async fn join(self) -> Result<(), ApplyError> {
        let Self { handle, join, .. } = self;
        drop(handle);
        let joined = tokio::task::spawn_blocking(move || join.join()).await;
        match joined {
            Ok(Ok(result)) => result,
            Ok(Err(panic)) => std::panic::resume_unwind(panic),
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
}

fn run(job: Job, mut inputs: mpsc::Receiver<Input>, lapses: Lapses) -> Result<(), ApplyError> {
    let mut mirror = Mirror::open(&job.path, job.options)?;
    if mirror.cursor().is_none() {
        mirror.start(job.generation)?;
    }
    mirror.note_epoch(job.epoch)?;
    let runtime = lapses.runtime.clone();
    let mut worker = Worker {
        mirror,
        bulk: job.bulk,
        state: job.state,
        reveal: job.reveal,
        complete: Some(job.complete),
        hold: Hold::default(),
        lapses,
        group_began: None,
        told_edits: None,
        pace: ahead::Pace::default(),
    };
    worker.publish()?;
    loop {
        let input = match inputs.try_recv() {
            Ok(input) => input,
            Err(TryRecvError::Disconnected) => break,
            Err(TryRecvError::Empty) => {
                worker.commit()?;
                let received = match worker.load_ahead()? {
                    None => inputs.blocking_recv(),
                    Some(rest) => {
                        let came = runtime
                            .block_on(async { tokio::time::timeout(rest, inputs.recv()).await });
                        match came {
                            Ok(received) => received,
                            Err(_nothing_came) => continue,
                        }
                    }
                };
                match received {
                    Some(input) => input,
                    None => break,
                }
            }
        };
        worker.take(input)?;
    }
    worker.mirror.discard()?;
    worker.publish()
}

struct Worker {
    mirror: Mirror,
    bulk: Box<dyn BulkSource + Send>,
    state: State,
    reveal: Reveal,
    complete: Option<Box<dyn FnOnce() -> std::io::Result<()> + Send>>,
    hold: Hold,
    lapses: Lapses,
    /// When the first transaction of the open group was applied.
    group_began: Option<Instant>,
    /// Of which schema it was told what waits.
    told_edits: Option<u64>,
    pace: ahead::Pace,
}

impl Worker {
    fn take(&mut self, input: Input) -> Result<(), ApplyError> {
        match input {
            Input::Hold { snapshot, reached } => {
                self.commit()?;
                let cursor = self.mirror.cursor();
                let open = self.mirror.open_final_lsn();
                self.hold.ask(snapshot, reached, cursor.as_ref(), open);
                self.hold_if_reached(None)
            }
            Input::Renew => {
                self.renew();
                Ok(())
            }
            Input::Release => {
                self.hold.release();
                self.state.set_held(None);
                Ok(())
            }
            Input::Lapse(term) => {
                if self.hold.lapse(term) {
                    tracing::warn!("a hold for verify was not released in time");
                    self.state.set_held(None);
                }
                Ok(())
            }
            other => {
                self.hold.backlog.push_back(other);
                Ok(())
            }
        }?;
        self.drain()
    }

    /// What came, unless the mirror is held; then it waits.
    fn drain(&mut self) -> Result<(), ApplyError> {
        while !self.hold.keeps_back()
            && let Some(input) = self.hold.backlog.pop_front()
        {
            self.step(input)?;
        }
        Ok(())
    }

    fn step(&mut self, input: Input) -> Result<(), ApplyError> {
        match input {
            Input::Frames(frames) => self.frames(frames),
            Input::Discard => {
                self.mirror.discard()?;
                self.publish()
            }
            Input::Rewind(answer) => self.rewind(answer),
            Input::Epoch(epoch) => Ok(self.mirror.note_epoch(epoch)?),
            Input::Progress(head) => {
                self.state.set_head(head);
                // Everything that came before this was applied.
                self.state.goes_on();
                self.hold_if_reached(Some(head.through_lsn))?;
                self.reveal.progress(head.through_lsn);
                self.show_committed()
            }
            Input::Level => {
                self.reveal.level(Instant::now());
                self.show_committed()
            }
            Input::Hold { .. } | Input::Renew | Input::Release | Input::Lapse(_) => Ok(()),
        }
    }

    fn rewind(&mut self, answer: oneshot::Sender<Cursor>) -> Result<(), ApplyError> {
        self.mirror.discard()?;
        self.publish()?;
        // A stream that begins anew says itself how far it is.
        self.hold.forget_progress();
        if let Some(cursor) = self.mirror.cursor() {
            // A tail that stopped meanwhile asks again.
            let _ = answer.send(cursor);
        }
        Ok(())
    }

    fn frames(&mut self, mut batch: Frames) -> Result<(), ApplyError> {
        failpoint::reach(failpoint::FOLLOWER_RECEIVED);
        let frames = std::mem::take(&mut batch.frames);
        let mut frames = frames.into_iter();
        while let Some(frame) = frames.next() {
            if self.hold.stops_before(&frame) {
                batch.frames = std::iter::once(frame).chain(frames).collect();
                self.commit()?;
                self.hold.backlog.push_front(Input::Frames(batch));
                return self.hold_now();
            }
            self.frame(&frame, batch.segment)?;
        }
        Ok(())
    }

    fn frame(&mut self, frame: &Frame, segment: Option<SegmentNo>) -> Result<(), ApplyError> {
        if self.group_began.is_some() && loads_parts(frame) {
            // Readers are told of what came before, however long the load takes.
            self.commit()?;
        }
        let applied = self.mirror.apply(frame, self.bulk.as_mut())?;
        if !applied.committed_txn {
            // The first part of a long transaction commits the group before it.
            return match self.group_began.is_some() {
                true => self.publish(),
                false => Ok(()),
            };
        }
        if let Some(segment) = segment {
            self.mirror.note_segment(segment)?;
        }
        if self.mirror.pending().txns == 0 {
            // A copy commits by itself.
            return self.publish();
        }
        let began = *self.group_began.get_or_insert_with(Instant::now);
        let pending = self.mirror.pending();
        let full = pending.ops >= GROUP_OPS || pending.bytes >= GROUP_BYTES;
        match full || began.elapsed() >= GROUP_TIME {
            true => self.commit(),
            false => Ok(()),
        }
    }

    fn commit(&mut self) -> Result<(), ApplyError> {
        let pending = self.mirror.pending();
        if self.group_began.take().is_none() {
            return Ok(());
        }
        failpoint::reach(failpoint::FOLLOWER_APPLIED);
        if self.mirror.commit()? {
            failpoint::reach(failpoint::FOLLOWER_COMMITTED);
            metrics::counter!("rindle_changes_processed_total").increment(pending.ops);
            metrics::histogram!("rindle_apply_batch_rows").record(pending.ops as f64);
            metrics::histogram!("rindle_apply_batch_txns").record(pending.txns as f64);
            self.publish()?;
        }
        Ok(())
    }

    /// Tells where the file stands, and that it can be served once its first copy is complete.
    fn publish(&mut self) -> Result<(), ApplyError> {
        self.group_began = None;
        let edits = self.mirror.schema_edits();
        if self.told_edits.replace(edits) != Some(edits) {
            self.state.set_copying(awaiting(self.mirror.schema()));
        }
        // In this order: whoever knows what is applied may read it.
        self.show()?;
        self.state.set_applied(self.mirror.cursor());
        Ok(())
    }

    /// What was applied counts for readers only once it is committed.
    fn show_committed(&mut self) -> Result<(), ApplyError> {
        if self.complete.is_some() {
            self.commit()?;
        }
        self.show()
    }

    /// Lets the mirror be served, once, as soon as it may.
    fn show(&mut self) -> Result<(), ApplyError> {
        let cursor = self.mirror.cursor().filter(|cursor| cursor.complete);
        let may = |cursor| self.reveal.allows(cursor, Instant::now());
        if self.complete.is_none() || !cursor.as_ref().is_some_and(may) {
            return Ok(());
        }
        let Some(complete) = self.complete.take() else {
            return Ok(());
        };
        for index in self.mirror.unfit_indexes() {
            let warning = format!(
                "the local index on {} ({}) was not made: no such table or column is mirrored",
                index.table,
                index.columns.join(", ")
            );
            tracing::warn!("{warning}");
            self.state.warn(warning);
        }
        complete().map_err(ApplyError::Swap)
    }

    fn hold_if_reached(&mut self, through: Option<Lsn>) -> Result<(), ApplyError> {
        if let Some(through) = through {
            self.hold.progress(through);
        }
        match self.hold.is_through() && !self.mirror.has_open_txn() {
            true => {
                self.commit()?;
                self.hold_now()
            }
            false => Ok(()),
        }
    }

    fn hold_now(&mut self) -> Result<(), ApplyError> {
        let seq = self.mirror.cursor().map(|cursor| cursor.position.seq);
        let state = &self.state;
        let held = self
            .hold
            .hold(seq.unwrap_or_default(), |held| state.set_held(Some(held)));
        self.state.set_held(held);
        self.renew();
        Ok(())
    }

    fn renew(&mut self) {
        if let Some(term) = self.hold.renew() {
            self.lapses.after_limit(term);
        }
    }
}
