//! What a gateway believed of the source at a commit of the log, kept so that a start need not read the whole log for it.
//! A cache: the log says the same, and a checkpoint whose position is not in the log is passed over.

use rindle_proto::ids::{Digest, Position, Seq};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::ArchiveError;
use crate::layout::number_of;
use crate::log::Log;
use crate::objects::{MAX_RECORD_BYTES, to_json};

/// Content of `schema/{seq}.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Checkpoint<T> {
    /// Last frame of the commit after which it holds.
    pub seq: Seq,
    /// Chain up to it.
    pub chain: Digest,
    /// What was believed.
    pub believed: T,
}

impl<T> Checkpoint<T> {
    /// The commit.
    pub fn position(&self) -> Position {
        Position {
            seq: self.seq,
            chain: self.chain,
        }
    }
}

impl Log {
    /// Keeps what is believed at a commit that the log holds. Whoever does so for the same commit writes the same, so one
    /// that is there already is enough.
    ///
    /// # Errors
    /// Of the store.
    pub async fn put_checkpoint<T: Serialize>(
        &self,
        checkpoint: &Checkpoint<T>,
    ) -> Result<(), ArchiveError> {
        let key = self.keys.checkpoint(checkpoint.seq);
        let bytes = to_json(checkpoint);
        self.objects.create(&key, &bytes, MAX_RECORD_BYTES).await?;
        Ok(())
    }

    /// Numbers of the checkpoints at or below `at`, newest first.
    ///
    /// # Errors
    /// Of the store.
    pub async fn checkpoints(&self, at: Seq) -> Result<Vec<Seq>, ArchiveError> {
        let names = self.objects.0.list(&self.keys.checkpoints(), None).await?;
        let numbers = names.iter().filter_map(|name| number_of(name, ".json"));
        let mut found: Vec<Seq> = numbers.map(Seq).filter(|seq| *seq <= at).collect();
        found.sort_unstable_by(|a, b| b.cmp(a));
        Ok(found)
    }

    /// One checkpoint; none when it is gone.
    ///
    /// # Errors
    /// Of the store, or when it does not parse.
    pub async fn checkpoint<T: DeserializeOwned>(
        &self,
        seq: Seq,
    ) -> Result<Option<Checkpoint<T>>, ArchiveError> {
        self.objects.record(&self.keys.checkpoint(seq)).await
    }
}
