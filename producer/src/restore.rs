//! A plain SQLite file of a source as it was at one moment: the newest image that is not beyond it, and the log from
//! there on. The archive is only read, and nothing stands under the name that was asked for before it is whole.

use std::io;
use std::path::{Path, PathBuf};

use rindle_archive::fs::sync_directory;
use rindle_archive::{
    Archive, GenerationRecord, ImageInfo, Images, Log, ReadError, ReadFrom, ReadStep, SegmentHeader,
};
use rindle_follower::mirror::{Cursor, Mirror, MirrorError, image};
use rindle_proto::body::{PgMicros, TxnPart};
use rindle_proto::frame::{FrameKind, FrameReader};
use rindle_proto::ids::{EndLsn, Generation, Lsn, SegmentNo, SourceName};
use tempfile::TempDir;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use crate::error::ProducerError;
use crate::progress::{Progress, Step, Watch};
use crate::replay::{Replay, Replayed, Until, replay, wait};
use crate::scratch::{Begun, Lock, Scratch, beside};

/// Directories of restores, and the mirror in one.
const PLACE: &str = ".rindle-restore-";
const MIRROR: &str = "mirror.db";

/// Which moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// The last commit in the archive.
    Newest,
    /// Each transaction that ended at or before this position.
    Lsn(Lsn),
    /// Before the first commit, in the order of the log, whose commit time is later.
    Time(PgMicros),
}

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The archive of the source.
    pub archive: Archive,
    /// The source.
    pub source: SourceName,
    /// A generation; else the current one.
    pub generation: Option<Generation>,
    /// The moment.
    pub at: At,
    /// The file, which must not exist.
    pub out: PathBuf,
}

/// What was restored.
#[derive(Clone, Debug)]
pub struct Restored {
    /// Where the file stands.
    pub cursor: Cursor,
    /// The archive held nothing later.
    pub is_newest: bool,
    /// The image that it began with, if there was one.
    pub image: Option<String>,
    /// What was replayed on top of it.
    pub replayed: Replayed,
    /// Tables that are shown.
    pub tables: u64,
    /// Rows of all of them.
    pub rows: u64,
}

/// Restores a file.
///
/// # Errors
/// See [`ProducerError`]: among others when the moment is not in the archive, or the file exists.
pub async fn restore(
    wanted: Wanted,
    watch: Watch,
    stop: CancellationToken,
) -> Result<Restored, ProducerError> {
    must_be_free(&wanted.out)?;
    let record = chosen(&wanted).await?;
    let one = One {
        log: wanted.archive.log(record.generation),
        images: wanted.archive.images(record.generation),
        record,
        runtime: Handle::current(),
        watch,
        stop,
        wanted,
    };
    match tokio::task::spawn_blocking(move || one.restore()).await {
        Ok(restored) => restored,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_cancelled) => Err(ProducerError::Stopped),
        },
    }
}

/// The generation that is asked for, else the current one, else the only one. No other's record is read.
async fn chosen(wanted: &Wanted) -> Result<GenerationRecord, ProducerError> {
    let (archive, source_name) = (&wanted.archive, wanted.source.clone());
    let ids = archive.generation_ids().await?;
    let current = archive.current().await?.map(|current| current.generation);
    let only = match ids.as_slice() {
        [only] => Some(*only),
        _ => None,
    };
    let known: Vec<String> = ids.iter().map(ToString::to_string).collect();
    let known = known.join(", ");
    let Some(generation) = wanted.generation.or(current).or(only) else {
        return Err(ProducerError::NoCurrent { source_name, known });
    };
    let record = archive.generation(generation).await?;
    record.ok_or(ProducerError::NoGeneration {
        generation,
        source_name,
        known,
    })
}

/// SQLite would take what lies beside a file for its log, and write it over the file.
fn must_be_free(out: &Path) -> Result<(), ProducerError> {
    for ending in ["", "-wal", "-shm", "-journal"] {
        let mut name = out.as_os_str().to_owned();
        name.push(ending);
        let path = PathBuf::from(name);
        match path.symlink_metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(ProducerError::file("look for", &path)(error)),
            Ok(_) => return Err(ProducerError::Exists { path }),
        }
    }
    Ok(())
}

struct One {
    wanted: Wanted,
    record: GenerationRecord,
    log: Log,
    images: Images,
    runtime: Handle,
    watch: Watch,
    stop: CancellationToken,
}

/// How far the log goes into the file.
struct Limit {
    until: Until,
    is_newest: bool,
}

impl One {
    fn restore(&self) -> Result<Restored, ProducerError> {
        let out = &self.wanted.out;
        let parent = out.parent().filter(|parent| !parent.as_os_str().is_empty());
        let parent = parent.unwrap_or(Path::new("."));
        let place = Place::new(parent)?;
        let head = self.wait(self.log.checked_head())??;
        let generation = self.record.generation;
        let Some(head) = head.filter(|head| head.last_commit.is_some()) else {
            return Err(ProducerError::NotComplete { generation });
        };
        let images = self.wait(self.images.list())??;
        for image in images.iter().filter(|it| it.base.segment > head.segment) {
            self.wait(self.log.must_stand(image.base.segment))??;
        }
        let limit = self.limit(&head, &images)?;
        let path = place.file(MIRROR);
        let scratch = Scratch {
            path: &path,
            source: self.wanted.source.as_str(),
            generation,
            images: &self.images,
            runtime: &self.runtime,
            stop: &self.stop,
            watch: &self.watch,
        };
        let begun = scratch.make_anew(&|image| is_before(image, limit.until))?;
        let (mut mirror, image, replayed) = self.replay(begun, limit.until, &head)?;
        let cursor = mirror.cursor().ok_or(MirrorError::NotStarted)?;
        self.must_be_at(&cursor)?;
        let file = place.file("restored.db");
        image::write(&mut mirror, &file)?;
        drop(mirror);
        let facts = image::prove(&file)?;
        if self.stop.is_cancelled() {
            return Err(ProducerError::Stopped);
        }
        put_in_place(&file, out)?;
        sync_directory(parent).map_err(ProducerError::file("sync", parent))?;
        Ok(Restored {
            cursor,
            is_newest: limit.is_newest,
            image,
            replayed,
            tables: facts.rows.len() as u64,
            rows: facts.rows.iter().sum(),
        })
    }

    /// How far to replay for the moment that is wanted.
    fn limit(&self, head: &SegmentHeader, images: &[ImageInfo]) -> Result<Limit, ProducerError> {
        let from = match self.wanted.at {
            At::Newest => {
                return Ok(Limit {
                    until: Until::End(head.end),
                    is_newest: true,
                });
            }
            At::Lsn(lsn) if head.through_lsn < lsn => {
                return Err(ProducerError::NotReached { wanted: lsn });
            }
            // Positions of what stands in the log only rise: behind an image all is later than it.
            At::Lsn(lsn) => images.iter().find(|it| it.base.end_lsn <= EndLsn(lsn)),
            At::Time(_) => None,
        };
        let from = from.map_or(ReadFrom::Start, ImageInfo::read_from);
        let last = head.segment;
        match self.first_beyond(from, last) {
            // Clocks go back, so every transaction that is kept is looked at.
            Err(ProducerError::Read(ReadError::Trimmed { .. })) => {
                let oldest = images.last().map(ImageInfo::read_from);
                self.first_beyond(oldest.unwrap_or(ReadFrom::Start), last)
            }
            found => found,
        }
    }

    /// Looks for the first transaction that stands in the log and is beyond what is wanted.
    fn first_beyond(&self, from: ReadFrom, last: SegmentNo) -> Result<Limit, ProducerError> {
        let mut reader = self.log.reader(from);
        let (mut first, mut started, mut seen) = (None, None, 0);
        loop {
            let bytes = match self.wait(reader.next())?? {
                ReadStep::Frames { bytes, segment, .. } => {
                    seen += bytes.len() as u64;
                    self.watch.tell(Progress {
                        step: Step::Seeking,
                        done: segment.0,
                        total: last.0,
                        bytes: seen,
                        rows: 0,
                    });
                    bytes
                }
                // It did not commit here.
                ReadStep::Discard { .. } => {
                    (first, started) = (None, None);
                    continue;
                }
                ReadStep::Tick { .. } => continue,
                ReadStep::End => {
                    return Ok(Limit {
                        until: Until::End(reader.position()),
                        is_newest: true,
                    });
                }
            };
            let mut frames = FrameReader::new();
            frames.push(bytes);
            while let Some(frame) = frames.next_frame()? {
                if frame.kind != FrameKind::Txn {
                    continue;
                }
                let part = TxnPart::decode(&frame)?;
                if frame.flags.first {
                    (first, started) = (Some(frame.seq), part.start);
                }
                let time = started.map(|start| start.commit_time);
                if let (true, Some(seq)) = (self.is_beyond(part.end_lsn, time), first) {
                    return Ok(Limit {
                        until: Until::Before(seq),
                        is_newest: false,
                    });
                }
            }
        }
    }

    /// Of a transaction whose last part came; any other has no end yet.
    fn is_beyond(&self, end: Option<EndLsn>, committed: Option<PgMicros>) -> bool {
        let Some(end) = end else { return false };
        match self.wanted.at {
            At::Newest => false,
            At::Lsn(lsn) => end > EndLsn(lsn),
            At::Time(time) => committed.is_some_and(|it| it.0 > time.0),
        }
    }

    fn replay(
        &self,
        begun: Begun,
        until: Until,
        head: &SegmentHeader,
    ) -> Result<(Mirror, Option<String>, Replayed), ProducerError> {
        let ctx = Replay {
            log: self.log.clone(),
            runtime: self.runtime.clone(),
            stop: self.stop.clone(),
            watch: self.watch.clone(),
            last_segment: head.segment,
        };
        let Begun {
            mut mirror,
            from,
            image,
            damaged,
        } = begun;
        match replay(&ctx, &mut mirror, from, until) {
            Ok(replayed) => Ok((mirror, image, replayed)),
            // The image that would have reached further back is damaged, or there is none.
            Err(ProducerError::Read(ReadError::Trimmed { .. })) => {
                Err(damaged.unwrap_or(self.too_old()))
            }
            Err(error) => Err(error),
        }
    }

    fn too_old(&self) -> ProducerError {
        ProducerError::TooOld {
            generation: self.record.generation,
        }
    }

    /// The first copy, and the oldest image that is kept, show the source as of their end, and nothing before.
    fn must_be_at(&self, cursor: &Cursor) -> Result<(), ProducerError> {
        let generation = self.record.generation;
        let is_before_mint = |time: PgMicros| time.unix_ms() < self.record.minted_at_ms;
        match self.wanted.at {
            _ if !cursor.complete => Err(ProducerError::NotComplete { generation }),
            At::Lsn(lsn) if cursor.end_lsn > EndLsn(lsn) => Err(self.too_old()),
            At::Time(time) if is_before_mint(time) => Err(self.too_old()),
            At::Time(time) if cursor.commit_time.is_some_and(|it| it.0 > time.0) => {
                Err(self.too_old())
            }
            At::Newest | At::Lsn(_) | At::Time(_) => Ok(()),
        }
    }

    fn wait<T>(&self, work: impl Future<Output = T>) -> Result<T, ProducerError> {
        wait(&self.runtime, &self.stop, work)
    }
}

/// True for an image that shows no transaction too many.
fn is_before(image: &ImageInfo, until: Until) -> bool {
    let base = &image.base;
    match until {
        Until::End(end) => base.position.seq <= end.seq,
        Until::Before(seq) => base.position.seq < seq,
        Until::Snapshot { lsn, .. } => base.end_lsn <= EndLsn(lsn),
    }
}

/// Where a file is made, before it gets its name.
struct Place {
    dir: TempDir,
    /// Who cleans up must see that somebody works here.
    _lock: Lock,
}

impl Place {
    /// A directory of its own in `parent`, on a filesystem that can give a file its name without replacing another.
    fn new(parent: &Path) -> Result<Self, ProducerError> {
        remove_left_over(parent)?;
        let dir = tempfile::Builder::new().prefix(PLACE).tempdir_in(parent);
        let dir = dir.map_err(ProducerError::file("create a directory in", parent))?;
        let place = Self {
            _lock: Lock::take(&dir.path().join(MIRROR))?,
            dir,
        };
        place.must_give_names(parent)?;
        Ok(place)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn must_give_names(&self, parent: &Path) -> Result<(), ProducerError> {
        let probe = self.file("probe");
        let named = std::fs::File::create(&probe)
            .and_then(|_file| std::fs::hard_link(&probe, beside(&probe, "link")));
        named.map_err(ProducerError::file(
            "give a second name to a file in",
            parent,
        ))
    }
}

/// Removes what a restore left that was killed: whoever works holds the lock.
fn remove_left_over(parent: &Path) -> Result<(), ProducerError> {
    let failed = || ProducerError::file("look for what another restore left in", parent);
    for entry in std::fs::read_dir(parent).map_err(failed())? {
        let entry = entry.map_err(failed())?;
        let is_place = entry.file_name().to_string_lossy().starts_with(PLACE);
        let mirror = entry.path().join(MIRROR);
        // One without a lock is just being made, or empty.
        if !is_place || !beside(&mirror, "lock").exists() {
            continue;
        }
        if let Ok(_nobody) = Lock::take(&mirror) {
            let path = entry.path();
            let removed = std::fs::remove_dir_all(&path);
            removed.map_err(ProducerError::file(
                "remove what another restore left:",
                &path,
            ))?;
            tracing::info!(path = %path.display(), "removed what a restore left that did not end");
        }
    }
    Ok(())
}

/// Gives the file its name, and never takes one that is there.
fn put_in_place(file: &Path, out: &Path) -> Result<(), ProducerError> {
    must_be_free(out)?;
    match std::fs::hard_link(file, out) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(ProducerError::Exists {
            path: out.to_owned(),
        }),
        linked => linked.map_err(ProducerError::file("create", out)),
    }
}
