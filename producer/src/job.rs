//! One run: which generations are due, and an image of each.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rindle_archive::{
    Archive, GenerationRecord, ImageInfo, Images, Kind, LastCommit, ReadError, ReadFrom,
    SegmentHeader,
};
use rindle_follower::mirror::Mirror;
use rindle_proto::ids::{Generation, SourceName};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use crate::error::ProducerError;
use crate::image::Mover;
use crate::progress::Watch;
use crate::replay::{Replay, Replayed, Until, replay};
use crate::scratch::{Lock, Scratch, beside};

/// What to make images of.
#[derive(Clone, Debug)]
pub struct Job {
    /// The archive of the source.
    pub archive: Archive,
    /// The source.
    pub source: SourceName,
    /// One generation; else the current one and every newer one.
    pub generation: Option<Generation>,
    /// The scratch mirror of the first of them; others are beside it.
    pub scratch: PathBuf,
}

/// What became of one generation.
#[derive(Debug)]
pub struct Produced {
    /// The generation.
    pub generation: Generation,
    /// What became of it.
    pub state: State,
    /// What was replayed.
    pub replayed: Replayed,
    /// How long it took.
    pub took: Duration,
}

/// What became of one generation.
#[derive(Debug)]
pub enum State {
    /// A new image, proved.
    Published(ImageInfo),
    /// An image that an earlier run had published, proved now.
    Proved(ImageInfo),
    /// The newest image shows the newest commit.
    NothingNew(ImageInfo),
    /// The first copy is not complete yet.
    NotComplete,
    /// There is no new image; the other generations were tried all the same.
    Failed(ProducerError),
}

/// Makes an image of each generation that is due.
///
/// # Errors
/// See [`ProducerError`]: what keeps every generation from an image. What keeps one is in its [`State::Failed`].
pub async fn run(
    job: Job,
    watch: Watch,
    stop: CancellationToken,
) -> Result<Vec<Produced>, ProducerError> {
    let _lock = Lock::take(&job.scratch)?;
    let due = due(&job).await?;
    let mut produced = Vec::new();
    for (at, record) in due.into_iter().enumerate() {
        let scratch = match at {
            0 => job.scratch.clone(),
            _ => beside(&job.scratch, &record.generation.slot_suffix()),
        };
        let one = One {
            archive: job.archive.clone(),
            source: job.source.clone(),
            generation: record.generation,
            scratch,
            runtime: Handle::current(),
            watch: watch.clone(),
            stop: stop.clone(),
        };
        let began = Instant::now();
        let made = tokio::task::spawn_blocking(move || one.produce()).await;
        let (state, replayed) = match made {
            Ok(Ok(made)) => made,
            Ok(Err(ProducerError::Stopped)) => return Err(ProducerError::Stopped),
            Ok(Err(error)) => (State::Failed(error), Replayed::default()),
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_cancelled) => return Err(ProducerError::Stopped),
            },
        };
        let (generation, took) = (record.generation, began.elapsed());
        produced.push(Produced {
            generation,
            state,
            replayed,
            took,
        });
    }
    Ok(produced)
}

async fn due(job: &Job) -> Result<Vec<GenerationRecord>, ProducerError> {
    let mut all = job.archive.generations().await?;
    let known = all
        .iter()
        .map(|record| record.generation.to_string())
        .collect::<Vec<_>>()
        .join(", ");
    let source_name = job.source.clone();
    if let Some(generation) = job.generation {
        all.retain(|record| record.generation == generation);
        return match all.is_empty() {
            true => Err(ProducerError::NoGeneration {
                generation,
                source_name,
                known,
            }),
            false => Ok(all),
        };
    }
    let current = job
        .archive
        .current()
        .await?
        .map(|current| current.generation);
    match (current, all.as_slice()) {
        (None, [_only]) => {}
        (Some(current), records) if records.iter().any(|record| record.generation == current) => {
            all.retain(|record| record.generation >= current);
        }
        (Some(generation), _) => {
            return Err(ProducerError::NoGeneration {
                generation,
                source_name,
                known,
            });
        }
        (None, _) => return Err(ProducerError::NoCurrent { source_name, known }),
    }
    Ok(all)
}

/// One generation, on a thread that may block.
struct One {
    archive: Archive,
    source: SourceName,
    generation: Generation,
    scratch: PathBuf,
    runtime: Handle,
    watch: Watch,
    stop: CancellationToken,
}

impl One {
    fn produce(&self) -> Result<(State, Replayed), ProducerError> {
        let log = self.archive.log(self.generation);
        let images = self.archive.images(self.generation);
        let head = self.runtime.block_on(log.checked_head())?;
        let Some((head, last)) = head.and_then(|head| Some((head, head.last_commit?))) else {
            return Ok((State::NotComplete, Replayed::default()));
        };
        let mover = Mover {
            images: &images,
            scratch: &self.scratch,
            runtime: &self.runtime,
            stop: &self.stop,
            watch: &self.watch,
        };
        if let Some(state) = self.image_at(&last, &images, &mover)? {
            return Ok((state, Replayed::default()));
        }
        let scratch = Scratch {
            path: Path::new(&self.scratch),
            source: self.source.as_str(),
            generation: self.generation,
            images: &images,
            runtime: &self.runtime,
            stop: &self.stop,
            watch: &self.watch,
        };
        if let Some((mirror, from)) = scratch.open_kept()? {
            match self.image_of(mirror, from, &head, &mover) {
                Err(error) if is_of_no_use(&error) => {
                    tracing::warn!(%error, "making the scratch mirror anew");
                }
                made => return made,
            }
        }
        let begun = scratch.make_anew(&|_image| true)?;
        self.image_of(begun.mirror, begun.from, &head, &mover)
    }

    /// What is there of the newest commit already: a proved image, or one that an earlier run left to be proved. A
    /// damaged one counts for nothing.
    fn image_at(
        &self,
        last: &LastCommit,
        images: &Images,
        mover: &Mover<'_>,
    ) -> Result<Option<State>, ProducerError> {
        let mut newest = self.runtime.block_on(images.list())?;
        newest.retain(|image| image.base.position == last.position);
        if let Some(proved) = newest.iter().find(|image| image.verified) {
            return Ok(Some(State::NothingNew(proved.clone())));
        }
        for image in newest {
            match mover.prove(&image) {
                Ok(()) => return Ok(Some(State::Proved(verified(image)))),
                Err(error) if error.kind() == Kind::Corrupt => {
                    tracing::error!(image = %image.id, %error, "a damaged image; making another one");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Brings a mirror to the head, and makes an image of it.
    fn image_of(
        &self,
        mut mirror: Mirror,
        from: ReadFrom,
        head: &SegmentHeader,
        mover: &Mover<'_>,
    ) -> Result<(State, Replayed), ProducerError> {
        let ctx = Replay {
            log: self.archive.log(self.generation),
            runtime: self.runtime.clone(),
            stop: self.stop.clone(),
            watch: self.watch.clone(),
            last_segment: head.segment,
        };
        let replayed = replay(&ctx, &mut mirror, from, Until::End(head.end))?;
        if !mirror.cursor().is_some_and(|cursor| cursor.complete) {
            return Ok((State::NotComplete, replayed));
        }
        let image = mover.publish(&mut mirror)?;
        mirror.checkpoint()?;
        drop(mirror);
        mover.prove(&image)?;
        Ok((State::Published(verified(image)), replayed))
    }
}

/// True when the kept scratch mirror is the reason: the log went on without it or is another one, or its file is
/// damaged. An image or the log has what it held.
fn is_of_no_use(error: &ProducerError) -> bool {
    match error {
        ProducerError::Read(error) => matches!(
            error,
            ReadError::Trimmed { .. } | ReadError::ChainDiffers { .. } | ReadError::NotYet { .. }
        ),
        ProducerError::Mirror(error) => error.file_is_damaged(),
        _ => false,
    }
}

fn verified(mut image: ImageInfo) -> ImageInfo {
    image.verified = true;
    image
}
