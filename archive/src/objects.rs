//! Creating an object for good: the one place that resolves a create whose answer is not clean (rule 12).

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::ArchiveError;
use crate::layout::Key;
use crate::store::{Create, Problem, Store, StoreError};

/// Longest record: a generation's schema is the largest.
pub(crate) const MAX_RECORD_BYTES: u64 = 64 << 20;

/// What stands under a key after a create.
#[derive(Debug)]
pub(crate) enum Stands {
    /// Exactly these bytes, durable: this attempt put them there, or an earlier one.
    Mine,
    /// Other bytes.
    Other(Bytes),
}

/// A store with what all callers need around it.
#[derive(Clone, Debug)]
pub(crate) struct Objects(pub(crate) Arc<dyn Store>);

impl Objects {
    /// Creates an object. Anything but a clean answer is resolved by reading back; an error means that it is
    /// not known to stand, and that the same bytes must be tried again.
    pub(crate) async fn create(
        &self,
        key: &Key,
        bytes: &Bytes,
        limit: u64,
    ) -> Result<Stands, StoreError> {
        let answer = self.0.create(key, bytes.clone()).await;
        if let Ok(Create::Created) = answer {
            return Ok(Stands::Mine);
        }
        match (self.0.get(key, limit).await?, answer) {
            (Some(found), _) if found == *bytes => {
                self.0.settle(key).await?;
                Ok(Stands::Mine)
            }
            (Some(found), _) => Ok(Stands::Other(found)),
            (None, Err(error)) => Err(error),
            (None, Ok(_)) => Err(StoreError::new(
                "read back",
                key,
                Problem::Unavailable,
                None,
            )),
        }
    }

    /// Reads a record.
    pub(crate) async fn record<T: DeserializeOwned>(
        &self,
        key: &Key,
    ) -> Result<Option<T>, ArchiveError> {
        let bytes = self.0.get(key, MAX_RECORD_BYTES).await?;
        bytes.map(|bytes| parse(key, &bytes)).transpose()
    }

    /// Tells whether an object exists.
    pub(crate) async fn exists(&self, key: &Key) -> Result<bool, StoreError> {
        Ok(self.0.get_start(key, 1).await?.is_some())
    }
}

/// Reads the JSON of a record.
pub(crate) fn parse<T: DeserializeOwned>(key: &Key, bytes: &[u8]) -> Result<T, ArchiveError> {
    serde_json::from_slice(bytes).map_err(|source| ArchiveError::Record {
        key: key.to_string(),
        source,
    })
}

/// The JSON of a record.
pub(crate) fn to_json(record: &impl Serialize) -> Bytes {
    let mut bytes = serde_json::to_vec_pretty(record).expect("records have string keys only");
    bytes.push(b'\n');
    bytes.into()
}

/// Milliseconds since 1970: told to people, decides nothing (I7).
pub(crate) fn now_ms() -> i64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// Runs work that keeps a processor busy off the runtime's threads.
pub(crate) async fn busy<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_cancelled) => std::future::pending().await,
        },
    }
}
