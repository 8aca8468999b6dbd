//! Creating an object for good: the one place that resolves a create whose answer is not clean (rule 12).

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use rindle_proto::ids::Digest;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

use crate::error::{ArchiveError, Kind};
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

    /// As [`Objects::create`], tried so often that a hiccup costs nothing.
    pub(crate) async fn put(
        &self,
        key: &Key,
        bytes: &Bytes,
        limit: u64,
    ) -> Result<Stands, StoreError> {
        patiently(|| self.create(key, bytes, limit)).await
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

/// Member of each record that holds the SHA-256 of all its other members, written without spaces and in the order of
/// their names: a byte that turned is told, and never believed.
const DIGEST: &str = "sha256";

/// Reads the JSON of a record, when it is what was written.
pub(crate) fn parse<T: DeserializeOwned>(key: &Key, bytes: &[u8]) -> Result<T, ArchiveError> {
    unseal(bytes).map_err(|source| ArchiveError::Record {
        key: key.to_string(),
        source,
    })
}

fn unseal<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, serde_json::Error> {
    let damaged = <serde_json::Error as serde::de::Error>::custom;
    let mut members: Map<String, Value> = serde_json::from_slice(bytes)?;
    let told = members.remove(DIGEST);
    let found = digest_of(&members)?;
    match told {
        Some(Value::String(told)) if told == found => {
            serde_json::from_value(Value::Object(members))
        }
        Some(_) => Err(damaged("its content has another sha256 than it says")),
        None => Err(damaged("it does not say its sha256")),
    }
}

fn digest_of(members: &Map<String, Value>) -> Result<String, serde_json::Error> {
    let digest: [u8; 32] = Sha256::digest(serde_json::to_vec(members)?).into();
    Ok(Digest(digest).to_hex())
}

/// The JSON of a record.
pub(crate) fn to_json(record: &impl Serialize) -> Bytes {
    let sealed = match serde_json::to_value(record) {
        Ok(Value::Object(mut members)) => digest_of(&members).and_then(|digest| {
            members.insert(DIGEST.to_owned(), digest.into());
            serde_json::to_vec_pretty(&members)
        }),
        Ok(_) | Err(_) => unreachable!("records are structs with string keys only"),
    };
    let mut bytes = sealed.expect("records have string keys only");
    bytes.push(b'\n');
    bytes.into()
}

/// Attempts at something that may be done twice, and the wait after the first; four times as long after each further one.
const ATTEMPTS: u32 = 4;
const FIRST_WAIT: Duration = Duration::from_millis(if cfg!(test) { 1 } else { 100 });

/// Tries again what may pass by itself.
pub(crate) async fn patiently<T, F>(mut attempt: impl FnMut() -> F) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    let mut wait = FIRST_WAIT;
    for _ in 1..ATTEMPTS {
        match attempt().await {
            Err(error) if error.kind() == Kind::Retry => tokio::time::sleep(wait).await,
            done => return done,
        }
        wait *= 4;
    }
    attempt().await
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::SourceKeys;

    #[test]
    fn each_byte_of_a_record_that_turns_is_told() {
        let record = serde_json::json!({"b": [1, -2, u64::MAX], "a": {"text": "x\u{e9}\n", "none": null}, "c": true});
        let key = SourceKeys::new(&"app".parse().unwrap()).current();
        let bytes = to_json(&record);
        assert_eq!(parse::<Value>(&key, &bytes).unwrap(), record);
        for at in 0..bytes.len() {
            for turned in [1, 2, 4, 0x20, 0x80] {
                let mut bytes = bytes.to_vec();
                bytes[at] ^= turned;
                if bytes[at].is_ascii_whitespace() && (bytes[at] ^ turned).is_ascii_whitespace() {
                    continue;
                }
                let read = parse::<Value>(&key, &bytes);
                assert!(
                    read.is_err(),
                    "byte {at}: {}",
                    String::from_utf8_lossy(&bytes)
                );
            }
        }
        let bare = serde_json::to_vec(&record).unwrap();
        assert!(parse::<Value>(&key, &bare).is_err());
    }
}
