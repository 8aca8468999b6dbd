//! Where a mirror begins: with the file that is there, with the newest image, or with nothing at the log's first
//! frame. Never serves what it could not prove to be what was published.

use std::io;
use std::path::{Path, PathBuf};

use rindle_archive::{Archive, ArchiveError, ImageError, ImageInfo, Kind, failpoint};
use rindle_proto::ids::{Epoch, Generation, Seq};

use crate::files::{self, Files};
use crate::gateway::{Gateways, sentence};
use crate::mirror::{self, Cursor, ErrorKind, MirrorError};
use crate::state::State;

/// What is in the mirror file at present.
#[derive(Debug)]
pub(crate) enum Present {
    /// No file, or one that holds nothing of worth.
    Nothing,
    /// A mirror. It can be served if its first copy is complete.
    Mirror(Cursor),
    /// A file that cannot be read as the mirror it was.
    Damaged(MirrorError),
    /// Somebody else's file: it is not touched.
    Foreign(MirrorError),
}

/// Looks at the file at `path`.
pub(crate) fn look(path: &Path) -> Present {
    if !path.exists() {
        return Present::Nothing;
    }
    let read = mirror::open_reader(path).and_then(|conn| mirror::stored(&conn, path));
    match read {
        Ok(Some(stored)) => Present::Mirror(stored.cursor),
        Ok(None) => Present::Nothing,
        // An empty file has no header yet: a crash before the first write.
        Err(_) if std::fs::metadata(path).is_ok_and(|file| file.len() == 0) => Present::Nothing,
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

/// Makes new mirrors.
#[derive(Debug)]
pub(crate) struct Bootstrap<'a> {
    pub(crate) files: &'a Files,
    pub(crate) archive: Option<&'a Archive>,
    pub(crate) gateways: &'a Gateways,
    pub(crate) state: &'a State,
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

    /// True when the archive has an image that is further than `seq`.
    pub(crate) async fn has_image_beyond(
        &self,
        generation: Generation,
        seq: Seq,
    ) -> Result<bool, BootstrapError> {
        let images = self.images(generation).await?;
        Ok(images.iter().any(|image| image.base.position.seq > seq))
    }

    async fn images(&self, generation: Generation) -> Result<Vec<ImageInfo>, BootstrapError> {
        match self.archive {
            None => Ok(Vec::new()),
            Some(archive) => {
                let listed = archive.images(generation).list().await;
                listed.map_err(BootstrapError::Images)
            }
        }
    }

    /// Puts the newest whole image at `target`. False when there is none: the mirror begins empty then.
    pub(crate) async fn restore(
        &self,
        generation: Generation,
        target: &Path,
    ) -> Result<bool, BootstrapError> {
        files::remove(target).map_err(|source| file_error(target, source))?;
        for image in self.images(generation).await? {
            match self.restore_one(generation, &image, target).await? {
                Ok(()) => return Ok(true),
                Err(what) => {
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
