//! The scratch mirror: kept between runs, so that each run replays only what is new. It holds nothing that the
//! archive does not: whenever it is of no use it is made anew, from the newest image or from the first frame.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use rindle_archive::{ImageInfo, Images, Kind, ReadFrom};
use rindle_follower::mirror::{Cursor, Mirror, MirrorError, MirrorOptions};
use rindle_proto::ids::{Generation, SegmentNo};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use crate::error::ProducerError;
use crate::progress::{Step, Watch};
use crate::replay::wait;

/// Keeps a second run away; ends with the value, or with the process.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Locks the scratch file at `path`.
    ///
    /// # Errors
    /// When another run has it, or the lock file cannot be made.
    pub fn take(path: &Path) -> Result<Self, ProducerError> {
        let path = beside(path, "lock");
        // Never removed: whoever waits for a removed file would lock another one than the next run.
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path);
        let file = file.map_err(ProducerError::file("create", &path))?;
        match file.try_lock() {
            Ok(()) => Ok(Self { _file: file }),
            Err(TryLockError::WouldBlock) => Err(ProducerError::Busy { path }),
            Err(TryLockError::Error(error)) => Err(ProducerError::file("lock", &path)(error)),
        }
    }
}

/// What opening a scratch mirror needs.
#[derive(Debug)]
pub(crate) struct Scratch<'a> {
    pub(crate) path: &'a Path,
    pub(crate) source: &'a str,
    pub(crate) generation: Generation,
    pub(crate) images: &'a Images,
    pub(crate) runtime: &'a Handle,
    pub(crate) stop: &'a CancellationToken,
    pub(crate) watch: &'a Watch,
}

/// A scratch mirror that was made anew.
#[derive(Debug)]
pub(crate) struct Begun {
    pub(crate) mirror: Mirror,
    /// Where its reader begins.
    pub(crate) from: ReadFrom,
    /// The image that it is.
    pub(crate) image: Option<String>,
    /// Why the last of those that were passed over was.
    pub(crate) damaged: Option<ProducerError>,
}

/// The file of the same name with another ending.
pub(crate) fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(ending);
    name.into()
}

/// Removes a file that may not be there.
pub(crate) fn remove(path: &Path) -> Result<(), ProducerError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(ProducerError::file("remove", path)(error))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Removes a SQLite file with its side files; these first, for a database without its log is whole, and a log
/// without its database would be replayed into the next one.
pub(crate) fn remove_mirror(path: &Path) -> Result<(), ProducerError> {
    for ending in ["-wal", "-shm", "-journal", ""] {
        let mut name = path.as_os_str().to_owned();
        name.push(ending);
        remove(Path::new(&name))?;
    }
    Ok(())
}

impl Scratch<'_> {
    /// Throws away what is there and begins with the newest image that `fits` and can be restored.
    pub(crate) fn make_anew(
        &self,
        fits: &dyn Fn(&ImageInfo) -> bool,
    ) -> Result<Begun, ProducerError> {
        remove_mirror(self.path)?;
        let mut images = wait(self.runtime, self.stop, self.images.list())??;
        images.retain(fits);
        // Proved ones first; the sort keeps the order among equals.
        images.sort_by_key(|image| !image.verified);
        let mut damaged = None;
        for image in &images {
            match self.restore(image) {
                Err(error) if error.kind() == Kind::Corrupt => {
                    tracing::warn!(image = %image.id, %error, "passing over a damaged image");
                    remove_mirror(self.path)?;
                    damaged = Some(error);
                }
                restored => {
                    return restored.map(|(mirror, from)| Begun {
                        mirror,
                        from,
                        image: Some(image.id.clone()),
                        damaged,
                    });
                }
            }
        }
        let mut mirror = self.open_file()?;
        mirror.start(self.generation)?;
        Ok(Begun {
            mirror,
            from: ReadFrom::Start,
            image: None,
            damaged,
        })
    }

    fn restore(&self, image: &ImageInfo) -> Result<(Mirror, ReadFrom), ProducerError> {
        tracing::info!(image = %image.id, "restoring the scratch mirror");
        let watch = self.watch.clone();
        let told = move |at: rindle_archive::image::Progress| {
            watch.tell_bytes(Step::Restoring, at.done_bytes, at.total_bytes);
        };
        let restoring = self.images.restore(image, self.path, told);
        wait(self.runtime, self.stop, restoring)??;
        let mut mirror = self.open_file()?;
        mirror.note_segment(image.base.segment)?;
        Ok((mirror, image.read_from()))
    }

    /// The mirror of an earlier run, if there is one that can go on, and where its reader begins.
    pub(crate) fn open_kept(&self) -> Result<Option<(Mirror, ReadFrom)>, ProducerError> {
        if !self.path.exists() {
            return Ok(None);
        }
        let mut mirror = match self.open_file() {
            Ok(mirror) => mirror,
            // It carries our mark, so it holds nothing that the archive does not.
            Err(ProducerError::Mirror(error)) if error.file_is_damaged() => {
                tracing::warn!(%error, "making the scratch mirror anew");
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let Some(cursor) = mirror.cursor() else {
            mirror.start(self.generation)?;
            return Ok(Some((mirror, ReadFrom::Start)));
        };
        Ok(self.goes_on(&cursor).map(|from| (mirror, from)))
    }

    fn goes_on(&self, cursor: &Cursor) -> Option<ReadFrom> {
        match (cursor.complete, cursor.segment) {
            _ if cursor.generation != self.generation => None,
            (false, _) => Some(ReadFrom::Start),
            (true, Some(SegmentNo(_))) => Some(ReadFrom::Position {
                position: cursor.position,
            }),
            // Killed right after a first copy, before its log object was noted.
            (true, None) => None,
        }
    }

    fn open_file(&self) -> Result<Mirror, ProducerError> {
        let options = MirrorOptions {
            source: self.source.to_owned(),
            ..MirrorOptions::default()
        };
        let path = self.path.to_owned();
        Mirror::open(self.path, options).map_err(|source| match source {
            // Possibly somebody's only copy of something: never removed by us.
            MirrorError::Foreign { .. } => ProducerError::ForeignScratch { path, source },
            source => source.into(),
        })
    }
}
