//! Whether a bucket keeps what the archive's fence rests on: of racing conditional writes one wins, and a stale one loses.
//! Some servers ignore conditions, and some look first and write later; one write after the other shows neither.

use bytes::Bytes;
use futures_util::future::join_all;
use serde::{Deserialize, Serialize};
use ulid::Ulid;

use crate::archive::Archive;
use crate::error::ArchiveError;
use crate::generation::GenerationRecord;
use crate::layout::Key;
use crate::objects::{MAX_RECORD_BYTES, Objects, to_json};
use crate::store::{Create, Problem, StoreError, Swap};

/// Keys that are raced for, and writers that race for each.
const KEYS: u32 = 20;
const RACERS: u32 = 8;

/// What each writes: large enough for servers to take their time.
const OBJECT_BYTES: usize = 16 << 10;

/// Bytes of a ranged read.
const RANGE: usize = 24;

/// A race that nobody won is run again, so often.
const TRIES: u32 = 3;

/// What was seen of a bucket when a generation was minted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Proved {
    /// So many keys were raced for, and each had one winner.
    pub keys: u32,
    /// By so many writers each.
    pub racers: u32,
    /// Endpoint, bucket and prefix: what is copied elsewhere has to be proved there.
    pub place: String,
}

impl Archive {
    /// Proves that the bucket keeps conditions; nothing for a directory, which is known to. Costs some hundred requests.
    ///
    /// # Errors
    /// [`ArchiveError::Unsupported`] with what the bucket does; of the store, and then nothing is proved.
    pub async fn prove_store(&self) -> Result<Option<Proved>, ArchiveError> {
        let Some(place) = self.objects.0.place() else {
            return Ok(None);
        };
        let id = Ulid::generate();
        let keys: Vec<Key> = (0..KEYS).map(|n| self.keys.probed(id, n)).collect();
        let proved = self.race_for(&keys, &self.keys.probe(id)).await;
        for key in &keys {
            // What stays is a few bytes that nobody reads.
            if let Err(error) = self.objects.0.delete(key).await {
                tracing::warn!(%key, error = %error, "an object of the probe was not deleted; delete it by hand");
            }
        }
        proved?;
        Ok(Some(Proved {
            keys: KEYS,
            racers: RACERS,
            place,
        }))
    }

    /// Proves the bucket for a generation that was minted elsewhere, once: an archive that was copied or moved there. Done
    /// before anything is written to it.
    ///
    /// # Errors
    /// As [`Archive::prove_store`].
    pub async fn prove_once(&self, record: &GenerationRecord) -> Result<(), ArchiveError> {
        let Some(place) = self.objects.0.place() else {
            return Ok(());
        };
        let is_here = |proved: &Proved| proved.place == place;
        if record.proved.as_ref().is_some_and(is_here) {
            return Ok(());
        }
        let key = self.keys.generation(record.generation).proved(&place);
        let found: Option<Proved> = self.objects.record(&key).await?;
        if found.as_ref().is_some_and(is_here) {
            return Ok(());
        }
        if let Some(proved) = self.prove_store().await? {
            self.objects
                .create(&key, &to_json(&proved), MAX_RECORD_BYTES)
                .await?;
        }
        Ok(())
    }

    async fn race_for(&self, keys: &[Key], directory: &Key) -> Result<(), ArchiveError> {
        for key in keys {
            let first = self.objects.race_to_create(key).await?;
            self.objects.race_to_replace(key, &first).await?;
        }
        let found = self.objects.0.list(directory, None).await?;
        match found.len() == keys.len() {
            true => Ok(()),
            false => Err(unfit(&format!(
                "a list names {} of {} objects that were just created",
                found.len(),
                keys.len()
            ))),
        }
    }
}

impl Objects {
    /// One of several racing creates wins, and what it wrote stays; gives that.
    async fn race_to_create(&self, key: &Key) -> Result<Bytes, ArchiveError> {
        for _ in 0..TRIES {
            let racers = (0..RACERS).map(|_| {
                let bytes = object();
                async { (self.0.create(key, bytes.clone()).await, bytes) }
            });
            let mut winners = Vec::new();
            for (answer, bytes) in join_all(racers).await {
                // One whose answer was lost may have won: nothing is proved then.
                if answer? == Create::Created {
                    winners.push(bytes);
                }
            }
            let found = self.0.get(key, OBJECT_BYTES as u64).await?;
            match (winners.len(), found) {
                (0, None) => continue,
                (0, Some(_)) => {
                    return Err(unfit("it stores an object whose create it refused"));
                }
                (1, Some(found)) if found == winners[0] => {}
                (1, _) => {
                    return Err(unfit("a create that lost has overwritten the winner"));
                }
                (n, _) => {
                    return Err(unfit(&format!(
                        "{n} of {RACERS} racing creates of one key won"
                    )));
                }
            }
            if self.0.create(key, object()).await? == Create::Created {
                return Err(unfit("it overwrites an object that must not exist"));
            }
            let start = self.0.get_start(key, RANGE).await?;
            if start.as_deref() != Some(&winners[0][..RANGE]) {
                return Err(unfit("a ranged read does not give the range"));
            }
            return Ok(winners.remove(0));
        }
        Err(unfit(&format!(
            "none of {RACERS} racing creates of one key wins"
        )))
    }

    /// One of several racing replacements of one version wins, and the version that is gone is not accepted again.
    async fn race_to_replace(&self, key: &Key, first: &Bytes) -> Result<(), ArchiveError> {
        for _ in 0..TRIES {
            let missing = || StoreError::new("read", key, Problem::Unavailable, None);
            let limit = OBJECT_BYTES as u64;
            let before = self
                .0
                .get_versioned(key, limit)
                .await?
                .ok_or_else(missing)?;
            let racers = (0..RACERS).map(|_| {
                let (bytes, version) = (object(), &before.version);
                async move {
                    (
                        self.0
                            .compare_and_set(key, Some(version), bytes.clone())
                            .await,
                        bytes,
                    )
                }
            });
            let mut winners = Vec::new();
            for (answer, bytes) in join_all(racers).await {
                match answer {
                    Ok(Swap::Done(_)) => winners.push(bytes),
                    Ok(Swap::Lost) => {}
                    Err(error) if error.problem == Problem::Conflict => {}
                    // It may have won: nothing is proved then.
                    Err(error) => return Err(error.into()),
                }
            }
            let after = self
                .0
                .get_versioned(key, limit)
                .await?
                .ok_or_else(missing)?;
            match winners.len() {
                0 if after.bytes == *first => continue,
                1 if after.bytes == winners[0] => {}
                0 | 1 => return Err(unfit("a replacement that lost has taken effect")),
                n => {
                    return Err(unfit(&format!(
                        "{n} of {RACERS} racing replacements of one version won"
                    )));
                }
            }
            let stale = self
                .0
                .compare_and_set(key, Some(&before.version), object())
                .await?;
            if stale != Swap::Lost {
                return Err(unfit("it replaces an object whose version is another one"));
            }
            return match self.0.compare_and_set(key, None, object()).await? {
                Swap::Lost => Ok(()),
                Swap::Done(_) => Err(unfit("it overwrites an object that must not exist")),
            };
        }
        Err(unfit(&format!("none of {RACERS} racing replacements wins")))
    }
}

/// Bytes that nobody else writes.
fn object() -> Bytes {
    let mut bytes = Ulid::generate().to_string().into_bytes();
    bytes.resize(OBJECT_BYTES, b'.');
    bytes.into()
}

fn unfit(what: &str) -> ArchiveError {
    ArchiveError::Unsupported {
        what: format!("this store cannot hold an archive: {what}"),
        next: "use a bucket of a store with conditional writes (If-None-Match and If-Match), such as AWS S3; there is no override",
    }
}
