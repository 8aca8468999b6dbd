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
use crate::s3::{Given, S3Settings, S3Store};
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
        /// Name of the bucket; that of the environment by default, as all else.
        #[serde(default)]
        bucket: Option<String>,
        /// Put before every key.
        #[serde(default)]
        prefix: Option<String>,
        /// Another endpoint than that of AWS.
        #[serde(default)]
        endpoint: Option<String>,
        /// Region.
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
            BackupConfig::S3 {
                bucket,
                prefix,
                endpoint,
                region,
            } => {
                let given = Given {
                    bucket: bucket.as_deref(),
                    prefix: prefix.as_deref(),
                    endpoint: endpoint.as_deref(),
                    region: region.as_deref(),
                };
                let settings = S3Settings::resolve(&given, |name| std::env::var(name).ok())?;
                Self::in_bucket(&settings, source)
            }
        }
    }

    /// The archive of a source in a bucket. Nothing is asked yet.
    ///
    /// # Errors
    /// When the settings are none that can work.
    pub fn in_bucket(settings: &S3Settings, source: &SourceName) -> Result<Self, ArchiveError> {
        Ok(Self::with_store(Arc::new(S3Store::new(settings)?), source))
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
