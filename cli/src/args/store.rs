//! `--store`: where the archive lies.

use std::path::PathBuf;

use anyhow::Context;
use clap::ValueEnum;
use rindle_archive::{Archive, BackupConfig};
use rindle_proto::ids::SourceName;

use super::UsageError;

/// Where the archive lies. A bucket is described by AWS_BUCKET, RINDLE_BACKUP_PREFIX, AWS_ENDPOINT and AWS_REGION.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct StoreArgs {
    /// Kind of store.
    #[arg(long, env = "RINDLE_STORE")]
    store: Option<Kind>,
    /// Directory of a filesystem store.
    #[arg(
        long,
        env = "RINDLE_BACKUP_PATH",
        value_name = "DIR",
        required_if_eq("store", "filesystem")
    )]
    path: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    Filesystem,
    S3,
}

impl StoreArgs {
    /// Opens the archive of a source.
    pub(crate) async fn open(&self, source: &SourceName) -> anyhow::Result<Archive> {
        Archive::open(&self.config()?, source)
            .await
            .context("open the archive")
    }

    fn config(&self) -> anyhow::Result<BackupConfig> {
        let usage = |text: &str| UsageError(text.to_owned());
        let kind = self.store.ok_or_else(|| usage("--store is missing"))?;
        Ok(match kind {
            Kind::Filesystem => {
                let path = self.path.clone();
                BackupConfig::Filesystem {
                    path: path.ok_or_else(|| usage("--path is missing"))?,
                }
            }
            // All of it may come from the environment.
            Kind::S3 => BackupConfig::S3 {
                bucket: None,
                prefix: None,
                endpoint: None,
                region: None,
            },
        })
    }
}
