//! A plain SQLite file of a source as it was at one moment: the newest image that is not beyond it, and the log from
//! there on. The archive is only read, and nothing stands under the name that was asked for before it is whole.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use rindle_archive::fs::sync_directory;
use rindle_archive::{Archive, ImageInfo, Images, Log, ReadError, ReadFrom, ReadStep};
use rindle_follower::mirror::{Cursor, Mirror, MirrorError, image};
use rindle_proto::body::{PgMicros, TxnPart};
use rindle_proto::frame::{FrameKind, FrameReader};
use rindle_proto::ids::{EndLsn, Generation, Lsn, SegmentNo, Seq, SourceName};
use tempfile::TempDir;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use crate::error::ProducerError;
use crate::job::due;
use crate::progress::Watch;
use crate::replay::{Replay, Replayed, Until, replay, wait};
use crate::scratch::Scratch;

/// Which moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// The last commit in the archive.
    Newest,
    /// What a snapshot of the source at this position shows: each transaction that ends at or before it.
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
    /// The image that it began with, if there was one.
    pub image: Option<String>,
    /// What was replayed on top of it.
    pub replayed: Replayed,
    /// Tables that are shown, and rows of all of them.
    pub tables: u64,
    /// Rows of all tables.
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
    let due = due(&wanted.archive, &wanted.source, wanted.generation).await?;
    // Sorted by age: the current one comes first.
    let Some(generation) = due.first().map(|record| record.generation) else {
        let (source_name, known) = (wanted.source, String::new());
        return Err(ProducerError::NoCurrent { source_name, known });
    };
    let one = One {
        log: wanted.archive.log(generation),
        images: wanted.archive.images(generation),
        generation,
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

fn must_be_free(out: &Path) -> Result<(), ProducerError> {
    match out.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(ProducerError::file("look for", out)(error)),
        Ok(_) => Err(ProducerError::Exists {
            path: out.to_owned(),
        }),
    }
}

struct One {
    wanted: Wanted,
    generation: Generation,
    log: Log,
    images: Images,
    runtime: Handle,
    watch: Watch,
    stop: CancellationToken,
}

impl One {
    fn restore(&self) -> Result<Restored, ProducerError> {
        let head = self.wait(self.log.head())??;
        let generation = self.generation;
        let Some(head) = head.filter(|head| head.last_commit.is_some()) else {
            return Err(ProducerError::NotComplete { generation });
        };
        let until = self.until(Until::End(head.end))?;
        let out = &self.wanted.out;
        let parent = out.parent().filter(|parent| !parent.as_os_str().is_empty());
        let parent = parent.unwrap_or(Path::new("."));
        let place = tempfile::Builder::new()
            .prefix(".rindle-restore-")
            .tempdir_in(parent);
        let place: TempDir = place.map_err(ProducerError::file("create a directory in", parent))?;
        let path = place.path().join("mirror.db");
        let scratch = Scratch {
            path: &path,
            source: self.wanted.source.as_str(),
            generation,
            images: &self.images,
            runtime: &self.runtime,
            stop: &self.stop,
            watch: &self.watch,
        };
        let (mut mirror, from) = scratch.make_anew(&|image| is_before(image, until))?;
        let replayed = self.replay(&mut mirror, from, until, head.segment)?;
        let cursor = mirror.cursor().ok_or(MirrorError::NotStarted)?;
        self.must_be_at(&cursor)?;
        let file = place.path().join("restored.db");
        image::write(&mut mirror, &file)?;
        drop(mirror);
        let facts = image::prove(&file)?;
        put_in_place(&file, out)?;
        sync_directory(parent).map_err(ProducerError::file("sync", parent))?;
        let image = match from {
            ReadFrom::Image { position, .. } => self.name_of(position.seq)?,
            ReadFrom::Start | ReadFrom::Position { .. } => None,
        };
        Ok(Restored {
            cursor,
            image,
            replayed,
            tables: facts.rows.len() as u64,
            rows: facts.rows.iter().sum(),
        })
    }

    /// How far to replay for the moment that is wanted.
    fn until(&self, newest: Until) -> Result<Until, ProducerError> {
        match self.wanted.at {
            At::Newest => Ok(newest),
            At::Lsn(lsn) => Ok(Until::Snapshot {
                lsn,
                deadline: Instant::now(),
            }),
            At::Time(time) => Ok(self.first_after(time)?.map_or(newest, Until::Before)),
        }
    }

    /// First frame of the first transaction that committed after `time`. Clocks go back, so every transaction that is
    /// kept is looked at.
    fn first_after(&self, time: PgMicros) -> Result<Option<Seq>, ProducerError> {
        match self.look_for(time, ReadFrom::Start) {
            Err(ProducerError::Read(ReadError::Trimmed { .. })) => {
                let images = self.wait(self.images.list())??;
                let oldest = images.last().map(ImageInfo::read_from);
                self.look_for(time, oldest.unwrap_or(ReadFrom::Start))
            }
            found => found,
        }
    }

    fn look_for(&self, time: PgMicros, from: ReadFrom) -> Result<Option<Seq>, ProducerError> {
        let mut reader = self.log.reader(from);
        let mut first = None;
        loop {
            let bytes = match self.wait(reader.next())?? {
                ReadStep::Frames { bytes, .. } => bytes,
                // It did not commit here.
                ReadStep::Discard { .. } => {
                    first = None;
                    continue;
                }
                ReadStep::Tick { .. } => continue,
                ReadStep::End => return Ok(None),
            };
            let mut frames = FrameReader::new();
            frames.push(bytes);
            while let Some(frame) = frames.next_frame()? {
                if frame.kind != FrameKind::Txn {
                    continue;
                }
                if frame.flags.first {
                    let start = TxnPart::decode(&frame)?.start;
                    let is_later = start.is_some_and(|start| start.commit_time.0 > time.0);
                    first = is_later.then_some(frame.seq);
                }
                if frame.flags.last && first.is_some() {
                    return Ok(first);
                }
            }
        }
    }

    fn replay(
        &self,
        mirror: &mut Mirror,
        from: ReadFrom,
        until: Until,
        last_segment: SegmentNo,
    ) -> Result<Replayed, ProducerError> {
        let ctx = Replay {
            log: self.log.clone(),
            runtime: self.runtime.clone(),
            stop: self.stop.clone(),
            watch: self.watch.clone(),
            last_segment,
        };
        replay(&ctx, mirror, from, until).map_err(|error| match error {
            ProducerError::Read(ReadError::Trimmed { .. }) => ProducerError::TooOld {
                generation: self.generation,
            },
            error => error,
        })
    }

    /// The first copy shows the source as of its end, and nothing before.
    fn must_be_at(&self, cursor: &Cursor) -> Result<(), ProducerError> {
        let generation = self.generation;
        match self.wanted.at {
            _ if !cursor.complete => Err(ProducerError::NotComplete { generation }),
            At::Lsn(lsn) if cursor.end_lsn > EndLsn(lsn) => {
                Err(ProducerError::TooOld { generation })
            }
            At::Newest | At::Lsn(_) | At::Time(_) => Ok(()),
        }
    }

    fn name_of(&self, seq: Seq) -> Result<Option<String>, ProducerError> {
        let images = self.wait(self.images.list())??;
        let found = images.into_iter().find(|it| it.base.position.seq == seq);
        Ok(found.map(|image| image.id))
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

/// Gives the file its name, and never takes one that is there.
fn put_in_place(file: &Path, out: &Path) -> Result<(), ProducerError> {
    match std::fs::hard_link(file, out) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(ProducerError::Exists {
            path: out.to_owned(),
        }),
        Err(error) => Err(ProducerError::file("create", out)(error)),
    }
}
