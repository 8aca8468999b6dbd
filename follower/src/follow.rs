//! From start to stop: which mirror is followed, when it is replaced, and what is waited for. One mirror is
//! applied to at a time; the one before it stays served until the new one is complete.

use std::path::PathBuf;
use std::time::Duration;

use rindle_archive::Archive;
use rindle_proto::ids::{Generation, Lsn, Seq};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::apply::{ApplyError, Handle, Job, Thread};
use crate::archive_tail::{ArchiveEnd, ArchiveTail};
use crate::backoff::Backoff;
use crate::bootstrap::{Bootstrap, BootstrapError, DamagedImages, Present, epoch_of, look};
use crate::bulk::{Fetcher, From, Queue};
use crate::config::Settings;
use crate::files::{Files, Lock};
use crate::gateway::{Gateways, sentence};
use crate::halt::HaltReason;
use crate::mirror::{Cursor, MirrorOptions};
use crate::reveal::Reveal;
use crate::state::State;
use crate::tail::{Tail, TailEnd, Why};

/// How often the archive's pointer is looked at.
const CURRENT_INTERVAL: Duration = Duration::from_secs(5);

/// How long a halt on damaged bytes is left before they are read again: somebody may have brought them back.
const DAMAGE_INTERVAL: Duration = Duration::from_secs(30);

/// How often it is tried to take the lock that another process has.
const LOCK_INTERVAL: Duration = Duration::from_secs(1);

/// A mirror that was replaced is kept for this long, for readers that were just opening it.
const RETIRE_AFTER: Duration = Duration::from_secs(30);

/// Who speaks to the apply thread of the mirror that is followed.
pub(crate) type Control = watch::Sender<Option<Handle>>;

/// The follower itself.
#[derive(Debug)]
pub(crate) struct Follow {
    settings: Settings,
    state: State,
    files: Files,
    archive: Option<Archive>,
    gateways: Gateways,
    control: Control,
    stop: CancellationToken,
    damaged: DamagedImages,
}

/// What is to be done next.
#[derive(Clone, Debug)]
enum Plan {
    /// With what is there.
    Resume,
    /// With a new mirror of this generation, whatever is in the present one.
    Replace(Generation),
    /// With an image of this generation that is further than the present mirror.
    Advance(Generation, Seq),
}

/// What became of a plan.
#[derive(Debug)]
enum Outcome {
    Stopped,
    Next(Plan),
    /// Try again after a wait; the words are for `/readyz`.
    Wait(Plan, String),
    /// Halted until a generation is current that this mirror does not follow, or until the damage is mended and
    /// the plan can be tried again.
    Halt {
        reason: HaltReason,
        generation: Option<Generation>,
        again: Plan,
    },
}

impl Follow {
    pub(crate) fn new(
        settings: Settings,
        archive: Option<Archive>,
        gateways: Gateways,
        state: State,
        control: Control,
        stop: CancellationToken,
    ) -> Self {
        Self {
            files: Files::new(&settings.db),
            settings,
            state,
            archive,
            gateways,
            control,
            stop,
            damaged: DamagedImages::default(),
        }
    }

    /// Follows until stopped.
    pub(crate) async fn run(self) -> Result<(), std::io::Error> {
        let Some(_lock) = self.lock().await? else {
            return Ok(());
        };
        self.files.prepare()?;
        if self.gateways.is_empty() {
            self.state.must_read();
        }
        let mut plan = Plan::Resume;
        let mut backoff = Backoff::default();
        for attempt in 0.. {
            let before = self.applied();
            let outcome = self.carry_out(plan, attempt).await;
            // However long an attempt took: one that led nowhere is a failed one.
            if self.applied() > before {
                backoff.reset();
            }
            plan = match outcome {
                Outcome::Stopped => return Ok(()),
                Outcome::Next(plan) => plan,
                Outcome::Wait(plan, why) => {
                    tracing::warn!(%why, "waiting");
                    self.state.wait_for(format!("waiting: {why}"));
                    plan
                }
                Outcome::Halt {
                    reason,
                    generation,
                    again,
                } => match self.halted(reason, generation, again).await {
                    Some(plan) => plan,
                    None => return Ok(()),
                },
            };
            // Also after `Next`: a restore that does not help must not turn in a circle without a pause.
            let pause = async {
                match plan {
                    Plan::Resume => backoff.wait().await,
                    Plan::Replace(_) | Plan::Advance(..) => backoff.wait_expensive().await,
                }
            };
            tokio::select! {
                () = self.stop.cancelled() => return Ok(()),
                () = pause => {}
            }
        }
        Ok(())
    }

    /// Waits until no other process writes the mirror. `None` when stopped.
    async fn lock(&self) -> Result<Option<Lock>, std::io::Error> {
        let mut told = false;
        loop {
            if let Some(lock) = self.files.lock()? {
                return Ok(Some(lock));
            }
            if !told {
                let path = self.files.lock_path();
                let why = format!(
                    "waiting: another process has {path:?} locked and writes this mirror; stop it, or set another db"
                );
                tracing::warn!("{why}");
                self.state.wait_for(why);
                told = true;
            }
            tokio::select! {
                () = self.stop.cancelled() => return Ok(None),
                () = tokio::time::sleep(LOCK_INTERVAL) => {}
            }
        }
    }

    fn applied(&self) -> Option<(Generation, Seq)> {
        let applied = self.state.applied();
        let cursor = *applied.borrow();
        cursor.map(|cursor| (cursor.generation, cursor.position.seq))
    }

    fn bootstrap(&self) -> Bootstrap<'_> {
        Bootstrap {
            files: &self.files,
            archive: self.archive.as_ref(),
            gateways: &self.gateways,
            state: &self.state,
            damaged: &self.damaged,
        }
    }

    async fn carry_out(&self, plan: Plan, attempt: usize) -> Outcome {
        let stop = self.stop.clone();
        let begun = tokio::select! {
            () = stop.cancelled() => return Outcome::Stopped,
            begun = self.begin(&plan, attempt) => begun,
        };
        match begun {
            Ok(job) => self.line(job).await,
            Err(Begin::Outcome(outcome)) => outcome,
            Err(Begin::Failed(error)) if error.halts() => Outcome::Halt {
                reason: HaltReason::ArchiveDamaged {
                    detail: sentence(&error),
                },
                generation: None,
                again: plan,
            },
            Err(Begin::Failed(error)) => Outcome::Wait(plan, sentence(&error)),
        }
    }

    /// Finds or makes the mirror to apply to.
    async fn begin(&self, plan: &Plan, attempt: usize) -> Result<Line, Begin> {
        let db = self.files.db().to_owned();
        let present = look(&db);
        let cursor = match &present {
            Present::Mirror(cursor) => Some(*cursor),
            Present::Nothing | Present::Damaged(_) | Present::Foreign(_) => None,
        };
        match (plan, present) {
            (_, Present::Foreign(error)) => Err(Begin::Outcome(Outcome::Halt {
                reason: HaltReason::ForeignFile {
                    detail: sentence(&error),
                },
                generation: None,
                again: plan.clone(),
            })),
            (Plan::Resume, Present::Mirror(cursor)) if cursor.complete => {
                self.state.set_applied(Some(cursor));
                self.serve();
                Ok(Line::new(db, cursor.generation, cursor))
            }
            (Plan::Resume, Present::Mirror(_) | Present::Nothing) => {
                self.make_current(cursor, attempt).await
            }
            (Plan::Resume, Present::Damaged(error)) => {
                let text = sentence(&error);
                tracing::error!(%text, "the mirror file is damaged, a new one takes its place");
                self.state.warn(text);
                self.make_current(None, attempt).await
            }
            (Plan::Replace(generation), _) => self.make(*generation, cursor, None).await,
            (Plan::Advance(generation, seq), _) => self.make(*generation, cursor, Some(*seq)).await,
        }
    }

    fn serve(&self) {
        if self.state.serving().is_none() {
            self.state.serve(self.files.db().to_owned());
        }
    }

    async fn make_current(&self, old: Option<Cursor>, attempt: usize) -> Result<Line, Begin> {
        let generation = self.bootstrap().generation(attempt).await?;
        self.make(generation, old, None).await
    }

    /// A new mirror: from the newest image, else from the first frame. With `beyond`, only from an image that is
    /// further: the present mirror never goes back.
    async fn make(
        &self,
        generation: Generation,
        old: Option<Cursor>,
        beyond: Option<Seq>,
    ) -> Result<Line, Begin> {
        self.files
            .clear_unused()
            .map_err(|source| self.file_error(source))?;
        let beside = self.files.exists() && self.state.serving().is_some();
        let target = match beside {
            true => self.files.next(),
            false => self.files.begin(),
        };
        let target = target.map_err(|source| self.file_error(source))?;
        let bootstrap = self.bootstrap();
        let restored = bootstrap.restore(generation, &target, beyond).await?;
        if !restored && beyond.is_some() {
            let why = "no image that can be used is further than the mirror".to_owned();
            return Err(Begin::Outcome(Outcome::Wait(Plan::Resume, why)));
        }
        if !restored {
            tracing::info!(%generation, "no image: beginning with the first frame");
            self.state.wait_for("waiting for the first copy");
        }
        let start = Cursor {
            epoch: epoch_of(old.as_ref(), generation),
            ..Cursor::start(generation)
        };
        Ok(Line {
            served: old.filter(|_| beside).map(|old| old.end_lsn.0),
            ..Line::new(target, generation, start)
        })
    }

    fn file_error(&self, source: std::io::Error) -> BootstrapError {
        BootstrapError::File {
            path: self.files.db().to_owned(),
            source,
        }
    }

    /// Applies to one mirror until it must be replaced, or cannot go on.
    async fn line(&self, line: Line) -> Outcome {
        let generation = line.generation;
        let left = self.stop.child_token();
        let mut thread = match Thread::spawn(self.job(line, left.clone())) {
            Ok(thread) => thread,
            Err(error) => return Outcome::Wait(Plan::Resume, format!("start a thread: {error}")),
        };
        self.control.send_replace(Some(thread.handle.clone()));
        let handle = thread.handle.clone();
        let outcome = tokio::select! {
            () = self.stop.cancelled() => Outcome::Stopped,
            () = thread.ended() => Outcome::Next(Plan::Resume),
            current = self.other_current(generation) => {
                tracing::info!(%current, "another generation is current");
                Outcome::Next(Plan::Replace(current))
            }
            outcome = self.tail(handle, generation) => outcome,
        };
        self.control.send_replace(None);
        let leaves = matches!(
            &outcome,
            Outcome::Next(Plan::Replace(_) | Plan::Advance(..))
        );
        if leaves {
            // A first copy that nobody wants any more is not waited for.
            left.cancel();
        }
        let joined = thread.join().await;
        self.state.set_held(None);
        match (joined, outcome) {
            (_, Outcome::Stopped) => Outcome::Stopped,
            (Err(error), outcome) if leaves => {
                tracing::info!(error = %sentence(&error), "the mirror that is replaced came to an end");
                outcome
            }
            (Ok(()), outcome) => outcome,
            (Err(error), _) => self.apply_failed(&error, generation),
        }
    }

    fn job(&self, line: Line, left: CancellationToken) -> Job {
        let from = match &self.archive {
            Some(archive) => From::Archive(archive.log(line.generation)),
            None => From::Gateway(self.gateways.clone(), line.generation),
        };
        let bulk = Fetcher {
            runtime: tokio::runtime::Handle::current(),
            from,
            state: self.state.clone(),
            stop: left,
            queue: Queue::default(),
        };
        let (files, state, path) = (self.files.clone(), self.state.clone(), line.path.clone());
        let runtime = tokio::runtime::Handle::current();
        let complete = move || {
            let db = files.db();
            let old = files.live();
            let replaces = std::fs::canonicalize(&path).is_ok_and(|path| path != old);
            if replaces {
                files.swap(&path)?;
                tracing::info!(path = %path.display(), "the new mirror took the old one's place");
                runtime.spawn(retire(files.clone(), old));
            }
            if replaces || state.serving().is_none() {
                state.serve(db.to_owned());
            }
            Ok(())
        };
        Job {
            path: line.path,
            options: MirrorOptions {
                source: self.settings.source.name.to_string(),
                indexes: self.settings.indexes.clone(),
                ..MirrorOptions::default()
            },
            generation: line.generation,
            epoch: line.cursor.epoch,
            bulk: Box::new(bulk),
            state: self.state.clone(),
            reveal: Reveal::beside(line.served),
            complete: Box::new(complete),
        }
    }

    fn apply_failed(&self, error: &ApplyError, generation: Generation) -> Outcome {
        // A mirror that never was complete is made anew: what is in its file is of no worth.
        let again = match self.state.serving() {
            Some(_) => Plan::Resume,
            None => Plan::Replace(generation),
        };
        if let ApplyError::Mirror(error) = error
            && error.file_is_damaged()
        {
            let text = format!("{}; a new mirror takes its place", sentence(error));
            tracing::error!(%text, "the mirror file is damaged");
            self.state.warn(text.clone());
            return Outcome::Wait(Plan::Replace(generation), text);
        }
        let halt = match error {
            ApplyError::Mirror(error) => HaltReason::of(error),
            ApplyError::Swap(_) => None,
        };
        match halt {
            None => Outcome::Wait(again, sentence(error)),
            Some(reason) => Outcome::Halt {
                reason,
                generation: Some(generation),
                again,
            },
        }
    }

    /// Feeds the apply thread.
    async fn tail(&self, handle: Handle, generation: Generation) -> Outcome {
        if self.gateways.is_empty()
            && let Some(archive) = &self.archive
        {
            let tail = ArchiveTail {
                log: archive.log(generation),
                handle,
                state: self.state.clone(),
                poll_interval: self.settings.source.poll_interval,
            };
            return match tail.run().await {
                ArchiveEnd::Restore(why) => self.restore(why, generation).await,
                ArchiveEnd::Damaged(detail) => Outcome::Halt {
                    reason: HaltReason::ArchiveDamaged { detail },
                    generation: Some(generation),
                    again: Plan::Resume,
                },
                ArchiveEnd::Gone => std::future::pending().await,
            };
        }
        let tail = Tail {
            gateways: self.gateways.clone(),
            handle,
            state: self.state.clone(),
            // With an image that is damaged the log is the way on, as long as it reaches back.
            can_restore: self.archive.is_some() && self.damaged.is_empty(),
            pinned: self.pinned(generation).await,
        };
        match tail.run().await {
            TailEnd::Restore(why) => self.restore(why, generation).await,
            // How it ended is told by the thread itself.
            TailEnd::Gone => std::future::pending().await,
        }
    }

    /// The only generation that may be followed; none when there is no archive to say it.
    async fn pinned(&self, generation: Generation) -> Option<Generation> {
        match self.bootstrap().current().await {
            Ok(current) => current,
            // Not "any": what a gateway serves may be what the pointer was moved away from.
            Err(error) => {
                tracing::warn!(error = %sentence(&error), "the archive's pointer cannot be read: staying with the generation that is followed");
                Some(generation)
            }
        }
    }

    async fn restore(&self, why: Why, generation: Generation) -> Outcome {
        match why {
            Why::Generation(other) => Outcome::Next(Plan::Replace(other)),
            Why::ChainDiffers => Outcome::Next(Plan::Replace(generation)),
            Why::TooFarBehind | Why::Trimmed => {
                let applied = *self.state.applied().borrow();
                let seq = applied
                    .filter(|cursor| cursor.generation == generation)
                    .map_or(Seq(0), |cursor| cursor.position.seq);
                match (
                    self.bootstrap().has_image_beyond(generation, seq).await,
                    why,
                ) {
                    (Ok(true), _) => Outcome::Next(Plan::Advance(generation, seq)),
                    (Ok(false), Why::Trimmed) => Outcome::Halt {
                        reason: HaltReason::LogTrimmed {
                            detail: self.no_way_on(seq),
                        },
                        generation: Some(generation),
                        again: Plan::Resume,
                    },
                    (Ok(false), _) => {
                        Outcome::Wait(Plan::Resume, "an image is gone again".to_owned())
                    }
                    (Err(error), _) => Outcome::Wait(Plan::Resume, sentence(&error)),
                }
            }
        }
    }

    fn no_way_on(&self, seq: Seq) -> String {
        let damaged = match self.damaged.is_empty() {
            true => String::new(),
            false => format!(" (damaged: {})", self.damaged.names()),
        };
        format!(
            "the log no longer reaches back to frame {seq} and no image that can be used is further{damaged}: run \
             `rindle backup producer`, or configure sources[0].backup"
        )
    }

    /// Comes back when the archive points to another generation.
    async fn other_current(&self, generation: Generation) -> Generation {
        loop {
            tokio::time::sleep(CURRENT_INTERVAL).await;
            match self.bootstrap().current().await {
                Ok(Some(current)) if current != generation => return current,
                Ok(_) => {}
                Err(error) => {
                    tracing::debug!(error = %sentence(&error), "the archive's pointer cannot be read now");
                }
            }
        }
    }

    /// Keeps serving what there is, and says why nothing comes. `None` when stopped.
    async fn halted(
        &self,
        reason: HaltReason,
        generation: Option<Generation>,
        again: Plan,
    ) -> Option<Plan> {
        tracing::error!(%reason, "halted");
        let mends = reason.is_looked_at_again();
        self.state.halt(reason);
        let moved = async {
            match generation {
                Some(generation) => self.other_current(generation).await,
                None => std::future::pending().await,
            }
        };
        let mended = async {
            match mends {
                true => tokio::time::sleep(DAMAGE_INTERVAL).await,
                false => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.stop.cancelled() => None,
            current = moved => Some(Plan::Replace(current)),
            () = mended => Some(again),
        }
    }
}

/// Removes a mirror that was swapped out, once nobody is about to open it. A stop before leaves it to the next start.
async fn retire(files: Files, old: PathBuf) {
    tokio::time::sleep(RETIRE_AFTER).await;
    if let Err(error) = files.retire(&old) {
        tracing::warn!(%error, path = %old.display(), "a mirror that is no longer used cannot be removed");
    }
}

/// A mirror to apply to.
#[derive(Clone, Debug)]
struct Line {
    path: PathBuf,
    generation: Generation,
    /// What is known of it: its cursor, or the epoch that must not be forgotten.
    cursor: Cursor,
    /// Last commit of the mirror that is served meanwhile.
    served: Option<Lsn>,
}

impl Line {
    fn new(path: PathBuf, generation: Generation, cursor: Cursor) -> Self {
        Self {
            path,
            generation,
            cursor,
            served: None,
        }
    }
}

#[derive(Debug)]
enum Begin {
    Outcome(Outcome),
    Failed(BootstrapError),
}

impl std::convert::From<BootstrapError> for Begin {
    fn from(error: BootstrapError) -> Self {
        Begin::Failed(error)
    }
}
