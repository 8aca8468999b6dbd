//! Images: SQLite files in slices, each its own object, the manifest last (I8). `proto/README.md`,
//! "Image manifest", has the fields.

mod manifest;
mod transfer;

use rindle_proto::ids::{EndLsn, Epoch, Generation, Position, SegmentNo};
use serde::{Deserialize, Serialize};

use crate::error::{ArchiveError, Kind};
use crate::layout::{GenerationKeys, Key};
use crate::objects::{MAX_RECORD_BYTES, Objects, now_ms, to_json};
use crate::reader::ReadFrom;
use crate::store::{Problem, StoreError};

pub use transfer::Progress;

/// Length of a slice of the file; the last one may be shorter.
pub const SLICE_BYTES: u64 = 64 << 20;

/// The images of one generation. Clones share them.
#[derive(Clone, Debug)]
pub struct Images {
    pub(crate) objects: Objects,
    pub(crate) keys: GenerationKeys,
    generation: Generation,
}

/// Which commit an image shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageBase {
    /// Log object that holds that commit: a reader begins there (rule 20).
    pub segment: SegmentNo,
    /// After its last frame.
    pub position: Position,
    /// Highest epoch that the image's maker had seen.
    pub epoch: Epoch,
    /// End of its commit record.
    pub end_lsn: EndLsn,
    /// Tables in the image, with their rows.
    pub tables: Vec<TableRows>,
}

/// A table in an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TableRows {
    /// Name in the mirror.
    pub table: String,
    /// Rows in it.
    pub rows: u64,
}

/// A published image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageInfo {
    /// Its name.
    pub id: String,
    /// Which commit it shows.
    pub base: ImageBase,
    /// Length of the file.
    pub file_bytes: u64,
    /// Length of its objects.
    pub stored_bytes: u64,
    /// When it was published, milliseconds since 1970.
    pub created_at_ms: i64,
    /// It was restored and proved once.
    pub verified: bool,
    parts: Vec<manifest::Part>,
}

/// Why an image was not published, listed or restored.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The store did not answer, or a record is damaged.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// A file here cannot be read or written.
    #[error("{action} {path}")]
    File {
        /// What was tried.
        action: &'static str,
        /// On which file.
        path: String,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// A slice is missing or not what the manifest lists.
    #[error("{key} {what}; restore another image")]
    Damaged {
        /// Its key.
        key: String,
        /// What is wrong with it.
        what: &'static str,
    },
    /// Retention is deleting it.
    #[error("image {image} is being deleted, for newer ones stand; take one of those")]
    Going {
        /// Its name.
        image: String,
    },
    /// The file changed while it was published.
    #[error("{path} changed while it was read; publish a file that nobody writes to")]
    Changed {
        /// The file.
        path: String,
    },
}

impl ImageError {
    /// What the caller does about it.
    pub fn kind(&self) -> Kind {
        match self {
            ImageError::Archive(error) => error.kind(),
            ImageError::File { .. } | ImageError::Going { .. } => Kind::Retry,
            ImageError::Damaged { .. } => Kind::Corrupt,
            ImageError::Changed { .. } => Kind::Bug,
        }
    }
}

impl ImageError {
    /// The archive lets us read, and not write.
    pub(crate) fn may_not_write(&self) -> bool {
        let ImageError::Archive(ArchiveError::Store(error)) = self else {
            return false;
        };
        let io = error.source.as_ref().map(std::io::Error::kind);
        let is_read_only = matches!(
            io,
            Some(std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem)
        );
        error.problem == Problem::Unauthorized || is_read_only
    }
}

impl From<StoreError> for ImageError {
    fn from(error: StoreError) -> Self {
        ImageError::Archive(error.into())
    }
}

impl ImageInfo {
    /// Where a reader of the log goes on after restoring this image.
    pub fn read_from(&self) -> ReadFrom {
        ReadFrom::Image {
            segment: self.base.segment,
            position: self.base.position,
        }
    }
}

impl Images {
    pub(crate) fn new(objects: Objects, keys: GenerationKeys, generation: Generation) -> Self {
        Self {
            objects,
            keys,
            generation,
        }
    }

    /// The images behind which the log goes on, highest base first (rule 22). One whose manifest is damaged is left out,
    /// with a warning: the others still serve.
    ///
    /// # Errors
    /// Of the store.
    pub async fn list(&self) -> Result<Vec<ImageInfo>, ImageError> {
        let mut images = self.all().await?;
        // Read last: what was trimmed behind an image that is listed was trimmed since.
        let boundary = crate::boundary::read(&self.objects, &self.keys).await?;
        images.retain(|image| image.base.segment > boundary.boundary);
        Ok(images)
    }

    /// Those too of which the log is trimmed: retention is deleting them.
    pub(crate) async fn all(&self) -> Result<Vec<ImageInfo>, ImageError> {
        let mut images = Vec::new();
        for id in self.ids().await? {
            match self.open(&id).await {
                Ok(found) => images.extend(found),
                Err(error) if error.kind() == Kind::Corrupt => {
                    tracing::warn!(image = %id, error = %error, "passing over a damaged image");
                }
                Err(error) => return Err(error),
            }
        }
        images.sort_by(|a, b| b.rank().cmp(&a.rank()));
        Ok(images)
    }

    /// The image with the highest base.
    ///
    /// # Errors
    /// Of the store.
    pub async fn newest(&self) -> Result<Option<ImageInfo>, ImageError> {
        Ok(self.list().await?.into_iter().next())
    }

    /// The image with the highest base among those that were proved.
    ///
    /// # Errors
    /// Of the store.
    pub async fn newest_verified(&self) -> Result<Option<ImageInfo>, ImageError> {
        Ok(self.list().await?.into_iter().find(|image| image.verified))
    }

    /// Notes that an image was restored and proved. Again is no error.
    ///
    /// # Errors
    /// Of the store.
    pub async fn mark_verified(&self, image: &ImageInfo) -> Result<(), ImageError> {
        let key = self.keys.image(&image.id).verified();
        let record = to_json(&serde_json::json!({ "atMs": now_ms() }));
        // Somebody else may have proved it too.
        self.objects.put(&key, &record, MAX_RECORD_BYTES).await?;
        Ok(())
    }

    /// Names of what may be images.
    pub(crate) async fn ids(&self) -> Result<Vec<String>, StoreError> {
        self.objects.0.list(&self.keys.images(), None).await
    }

    pub(crate) fn manifest_key(&self, id: &str) -> Key {
        self.keys.image(id).manifest()
    }

    pub(crate) fn mark_key(&self, id: &str) -> Key {
        self.keys.image(id).verified()
    }

    pub(crate) fn part_key(&self, image: &ImageInfo, number: u32) -> Key {
        self.keys.image(&image.id).part(number)
    }

    /// The slices of an image, as far as a listing tells.
    pub(crate) async fn slice_keys(&self, id: &str) -> Result<Vec<Key>, StoreError> {
        let keys = self.keys.image(id);
        let names = self.objects.0.list(&keys.directory(), None).await?;
        Ok(names.iter().filter_map(|name| keys.slice(name)).collect())
    }

    /// What says that an image was proved.
    pub(crate) async fn mark(&self, id: &str) -> Result<Option<serde_json::Value>, ArchiveError> {
        self.objects.record(&self.mark_key(id)).await
    }

    /// True when an image of this name was proved once.
    pub(crate) async fn is_marked(&self, id: &str) -> Result<bool, StoreError> {
        self.objects.exists(&self.mark_key(id)).await
    }

    pub(crate) async fn open(&self, id: &str) -> Result<Option<ImageInfo>, ImageError> {
        let keys = self.keys.image(id);
        let key = keys.manifest();
        let found: Option<manifest::Manifest> = self.objects.record(&key).await?;
        let Some(manifest) = found else {
            return Ok(None);
        };
        let verified = self.is_marked(id).await?;
        match manifest.check(self.generation) {
            Ok(()) => Ok(Some(manifest.info(id, verified))),
            Err(what) => Err(ImageError::Damaged {
                key: key.to_string(),
                what,
            }),
        }
    }
}

impl ImageInfo {
    /// Numbers of its slices.
    pub(crate) fn parts(&self) -> impl Iterator<Item = u32> + use<> {
        0..u32::try_from(self.parts.len()).unwrap_or(u32::MAX)
    }

    fn rank(&self) -> (rindle_proto::ids::Seq, SegmentNo, &str) {
        (self.base.position.seq, self.base.segment, &self.id)
    }
}
