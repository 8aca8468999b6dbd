//! The archive of one source.

use std::path::PathBuf;
use std::sync::Arc;

use rindle_proto::ids::{Generation, SourceName};
use serde::{Deserialize, Serialize};

use crate::error::ArchiveError;
use crate::fs::DirStore;
use crate::image::Images;
use crate::layout::SourceKeys;
use crate::log::Log;
use crate::objects::Objects;
use crate::store::Store;

/// Where the archive lies, as it stands in configuration files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", deny_unknown_fields)]
pub enum BackupConfig {
    /// A directory on a filesystem that keeps what it synced.
    #[serde(rename_all = "camelCase")]
    Filesystem {
        /// The directory; created with the first object.
        path: PathBuf,
    },
    /// A bucket.
    #[serde(rename_all = "camelCase")]
    S3 {
        /// Name of the bucket.
        bucket: String,
        /// Put before every key; nothing by default.
        #[serde(default)]
        prefix: Option<String>,
        /// Another endpoint than that of AWS.
        #[serde(default)]
        endpoint: Option<String>,
        /// Region; that of the environment by default.
        #[serde(default)]
        region: Option<String>,
    },
}

/// The archive of one source. Clones share it.
#[derive(Clone, Debug)]
pub struct Archive {
    pub(crate) objects: Objects,
    pub(crate) keys: SourceKeys,
}

impl Archive {
    /// Opens the archive of a source. Nothing is created before something is written.
    ///
    /// # Errors
    /// When this build cannot use what is configured.
    pub async fn open(config: &BackupConfig, source: &SourceName) -> Result<Self, ArchiveError> {
        match config {
            BackupConfig::Filesystem { path } => {
                Ok(Self::with_store(Arc::new(DirStore::new(path)), source))
            }
            BackupConfig::S3 { bucket, .. } => Err(ArchiveError::Unsupported {
                what: format!("this build has no S3 archive yet (bucket {bucket:?})"),
                next: "use a backup of type \"filesystem\", or a later build",
            }),
        }
    }

    /// The archive of a source in a store of the caller's.
    pub fn with_store(store: Arc<dyn Store>, source: &SourceName) -> Self {
        Self {
            objects: Objects(store),
            keys: SourceKeys::new(source),
        }
    }

    /// The log of a generation.
    pub fn log(&self, generation: Generation) -> Log {
        Log::new(
            self.objects.clone(),
            self.keys.generation(generation),
            generation,
        )
    }

    /// The images of a generation.
    pub fn images(&self, generation: Generation) -> Images {
        Images::new(
            self.objects.clone(),
            self.keys.generation(generation),
            generation,
        )
    }
}
