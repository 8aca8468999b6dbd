//! Where a cluster's archive lies, and how its programs are told.

use std::path::PathBuf;

use rindle_archive::bucket_server::{BUCKET, KEYS};
use serde_json::{Value, json};

use super::Cluster;

impl Cluster {
    /// Where the archive's objects lie as files.
    pub fn archive(&self) -> PathBuf {
        match &self.bucket {
            Some(bucket) => bucket.files(),
            None => self.dir.join("archive"),
        }
    }

    /// `backup` in a configuration.
    pub(super) fn backup(&self) -> Value {
        match &self.bucket {
            Some(bucket) => {
                json!({"type": "s3", "bucket": BUCKET, "endpoint": bucket.endpoint()})
            }
            None => json!({"type": "filesystem", "path": self.archive()}),
        }
    }

    /// The flags that say where the archive lies.
    pub fn store(&self) -> Vec<String> {
        let archive = self.archive().display().to_string();
        let args: &[&str] = match &self.bucket {
            Some(_) => &["--store", "s3"],
            None => &["--store", "filesystem", "--path", &archive],
        };
        args.iter().map(|arg| (*arg).to_owned()).collect()
    }

    /// An environment, and in it who we are to the bucket.
    pub(super) fn env(&self, env: &[(String, String)]) -> Vec<(String, String)> {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let known = self.bucket.as_ref().map(|bucket| {
            [
                pair("AWS_ACCESS_KEY_ID", KEYS.0),
                pair("AWS_SECRET_ACCESS_KEY", KEYS.1),
                pair("AWS_BUCKET", BUCKET),
                pair("AWS_ENDPOINT", &bucket.endpoint()),
            ]
        });
        // What is given comes last, and counts.
        known
            .into_iter()
            .flatten()
            .chain(env.iter().cloned())
            .collect()
    }
}
