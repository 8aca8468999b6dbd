//! Where a mirror begins: with the file that is there, with the newest image, or with nothing at the log's first
//! frame. Never serves what it could not prove to be what was published.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rindle_archive::{Archive, ArchiveError, ImageError, ImageInfo, Kind, failpoint};
use rindle_proto::ids::{Epoch, Generation, Seq};
use tokio::time::Instant;

use crate::files::{self, Files};
use crate::gateway::{Gateways, sentence};
use crate::mirror::{self, Cursor, ErrorKind, MirrorError};
use crate::state::State;

/// A damaged image is left alone for this long: somebody may have brought its bytes back then.
const DAMAGED_FOR: Duration = Duration::from_secs(600);

/// What is in the mirror file at present.
#[derive(Debug)]
pub(crate) enum Present {
    /// No file, or one that holds nothing of worth.
    Nothing,
    /// A mirror. It can be served if its first copy is complete.
    Mirror(Cursor),
    /// A file with our mark that cannot be read as the mirror it was.
    Damaged(MirrorError),
    /// Somebody else's file: it is not touched.
    Foreign(MirrorError),
}

/// Looks at the file at `path`.
pub(crate) fn look(path: &Path) -> Present {
    if !path.exists() {
        return Present::Nothing;
    }
    // An empty file is what nobody has written to yet.
    if std::fs::metadata(path).is_ok_and(|file| file.is_file() && file.len() == 0) {
        return Present::Nothing;
    }
    let read = mirror::check_mark(path)
        .and_then(|()| mirror::open_reader(path))
        .and_then(|conn| mirror::stored(&conn, path));
    match read {
        Ok(Some(stored)) => Present::Mirror(stored.cursor),
        Ok(None) => Present::Nothing,
        Err(error @ MirrorError::Foreign { .. }) => Present::Foreign(error),
        Err(error) if error.kind() == ErrorKind::Corrupt => Present::Damaged(error),
        Err(error) => Present::Foreign(error),
    }
}

/// Why no mirror could be begun.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BootstrapError {
    /// Beside the mirror file.
    #[error("prepare {path:?}")]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The archive's pointer cannot be read.
    #[error("read the archive's current generation")]
    Archive(#[source] ArchiveError),
    /// The archive's images cannot be listed or read now.
    #[error("read the archive's images")]
    Images(#[source] ImageError),
    /// Nobody says which generation there is.
    #[error("the archive has no current generation: run `rindle pg mint`")]
    NotMinted,
    /// The gateway does not say which generation it serves.
    #[error("ask gateway {url} which generation it serves")]
    Gateway {
        url: String,
        #[source]
        source: crate::gateway::GatewayError,
    },
}

/// Images that were found damaged, by id.
#[derive(Debug, Default)]
pub(crate) struct DamagedImages(Mutex<BTreeMap<String, Instant>>);

impl DamagedImages {
    fn known(&self) -> MutexGuard<'_, BTreeMap<String, Instant>> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, found| found.elapsed() < DAMAGED_FOR);
        known
    }

    pub(crate) fn add(&self, id: &str) {
        self.known().insert(id.to_owned(), Instant::now());
    }

    fn has(&self, id: &str) -> bool {
        self.known().contains_key(id)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.known().is_empty()
    }

    /// For people: which ones.
    pub(crate) fn names(&self) -> String {
        let names: Vec<String> = self.known().keys().cloned().collect();
        names.join(", ")
    }
}

/// Makes new mirrors.
#[derive(Debug)]
pub(crate) struct Bootstrap<'a> {
    pub(crate) files: &'a Files,
    pub(crate) archive: Option<&'a Archive>,
    pub(crate) gateways: &'a Gateways,
    pub(crate) state: &'a State,
    pub(crate) damaged: &'a DamagedImages,
}

impl Bootstrap<'_> {
    /// The generation to follow: the archive's current one, else what a gateway serves.
    pub(crate) async fn generation(&self, attempt: usize) -> Result<Generation, BootstrapError> {
        if let Some(current) = self.current().await? {
            return Ok(current);
        }
        if self.gateways.is_empty() {
            return Err(BootstrapError::NotMinted);
        }
        let url = self.gateways.url(attempt);
        let asked = async { self.gateways.connect(url).await?.generation().await };
        asked.await.map_err(|source| BootstrapError::Gateway {
            url: url.to_owned(),
            source,
        })
    }

    pub(crate) async fn current(&self) -> Result<Option<Generation>, BootstrapError> {
        let Some(archive) = self.archive else {
            return Ok(None);
        };
        let current = archive.current().await.map_err(BootstrapError::Archive)?;
        Ok(current.map(|current| current.generation))
    }

    /// True when the archive has an image that is further than `seq` and not known to be damaged.
    pub(crate) async fn has_image_beyond(
        &self,
        generation: Generation,
        seq: Seq,
    ) -> Result<bool, BootstrapError> {
        let images = self.images(generation).await?;
        Ok(images.iter().any(|image| image.base.position.seq > seq))
    }

    /// Newest first, without those known to be damaged.
    async fn images(&self, generation: Generation) -> Result<Vec<ImageInfo>, BootstrapError> {
        match self.archive {
            None => Ok(Vec::new()),
            Some(archive) => {
                let listed = archive.images(generation).list().await;
                let mut images = listed.map_err(BootstrapError::Images)?;
                images.retain(|image| !self.damaged.has(&image.id.to_string()));
                Ok(images)
            }
        }
    }

    /// Puts the newest whole image at `target`; with `beyond`, only one that is further than that frame. False when
    /// there is none.
    pub(crate) async fn restore(
        &self,
        generation: Generation,
        target: &Path,
        beyond: Option<Seq>,
    ) -> Result<bool, BootstrapError> {
        files::remove(target).map_err(|source| file_error(target, source))?;
        let images = self.images(generation).await?.into_iter();
        let further = |image: &ImageInfo| beyond.is_none_or(|seq| image.base.position.seq > seq);
        for image in images.filter(further) {
            match self.restore_one(generation, &image, target).await? {
                Ok(()) => return Ok(true),
                Err(what) => {
                    self.damaged.add(&image.id.to_string());
                    tracing::error!(image = %image.id, %what, "an image is damaged and was not used");
                    self.state.warn(format!(
                        "image {} is damaged and was not used: {what}",
                        image.id
                    ));
                }
            }
        }
        Ok(false)
    }

    /// The inner error says what is wrong with the image.
    async fn restore_one(
        &self,
        generation: Generation,
        image: &ImageInfo,
        target: &Path,
    ) -> Result<Result<(), String>, BootstrapError> {
        let Some(archive) = self.archive else {
            return Ok(Err("there is no archive".to_owned()));
        };
        let scratch = self.files.restoring();
        let scratch = scratch.map_err(|source| file_error(target, source))?;
        let told = |done: u64, all: u64| {
            let percent = (done * 100).checked_div(all).unwrap_or(0);
            self.state
                .wait_for(format!("restoring image {} ({percent} %)", image.id));
        };
        told(0, image.file_bytes);
        let images = archive.images(generation);
        let restored = images
            .restore(image, &scratch, |progress| {
                told(progress.done_bytes, progress.total_bytes);
            })
            .await;
        match restored {
            Err(error) if error.kind() == Kind::Corrupt => return Ok(Err(sentence(&error))),
            Err(error) => return Err(BootstrapError::Images(error)),
            Ok(()) => {}
        }
        failpoint::reach(failpoint::FOLLOWER_IMAGE_FETCHED);
        if let Err(what) = prove(&scratch, image) {
            return Ok(Err(what));
        }
        self.files
            .place(&scratch, target)
            .map_err(|source| file_error(target, source))?;
        tracing::info!(image = %image.id, seq = %image.base.position.seq, "restored");
        Ok(Ok(()))
    }
}

/// The restored bytes are those that were published, by their digests; this shows that they are the mirror that
/// the manifest tells of.
fn prove(file: &Path, image: &ImageInfo) -> Result<(), String> {
    let read = mirror::open_reader(file).and_then(|conn| mirror::stored(&conn, file));
    let stored = match read {
        Ok(Some(stored)) => stored,
        Ok(None) => return Err("it follows no generation".to_owned()),
        Err(error) => return Err(sentence(&error)),
    };
    match stored.cursor.complete && stored.cursor.position == image.base.position {
        true => Ok(()),
        false => Err("its cursor is not the one that its manifest tells".to_owned()),
    }
}

fn file_error(path: &Path, source: io::Error) -> BootstrapError {
    BootstrapError::File {
        path: path.to_owned(),
        source,
    }
}

impl BootstrapError {
    /// True when waiting cannot help.
    pub(crate) fn halts(&self) -> bool {
        match self {
            BootstrapError::Archive(error) => error.kind() != Kind::Retry,
            BootstrapError::Images(error) => error.kind() != Kind::Retry,
            BootstrapError::File { .. }
            | BootstrapError::NotMinted
            | BootstrapError::Gateway { .. } => false,
        }
    }
}

/// The highest epoch that a mirror of the same generation saw.
pub(crate) fn epoch_of(cursor: Option<&Cursor>, generation: Generation) -> Epoch {
    cursor
        .filter(|cursor| cursor.generation == generation)
        .map_or(Epoch(0), |cursor| cursor.epoch)
}
