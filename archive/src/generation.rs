//! What is fixed when a generation is minted.

use rindle_proto::ids::{Generation, SourceName, Timeline};
use rindle_proto::schema::Schema;
use serde::{Deserialize, Serialize};

use crate::archive::Archive;
use crate::error::ArchiveError;
use crate::objects::{MAX_RECORD_BYTES, Stands, to_json};
use crate::probe::Proved;

/// Version of the layout and the bytes that this build writes.
pub const FORMAT: u32 = 1;

/// Content of `generation.json`. Never changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GenerationRecord {
    /// Its id.
    pub generation: Generation,
    /// Its source.
    pub source: SourceName,
    /// `system_identifier` of the Postgres cluster.
    pub system_identifier: String,
    /// Timeline at mint.
    pub timeline: Timeline,
    /// Database in the cluster.
    pub database: String,
    /// Replication slot.
    pub slot: String,
    /// Publication.
    pub publication: String,
    /// What the slot survives, as admission found it.
    pub posture: String,
    /// When it was minted, milliseconds since 1970.
    pub minted_at_ms: i64,
    /// Tables as admitted at mint.
    pub schema: Schema,
    /// [`FORMAT`] of the build that minted it.
    pub format: u32,
    /// How its bucket was proved to keep conditions; none in a directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proved: Option<Proved>,
}

impl Archive {
    /// Creates a generation. Doing it again with the same record is no error.
    ///
    /// # Errors
    /// Of the store, or when the id is taken by another record.
    pub async fn create_generation(&self, record: &GenerationRecord) -> Result<(), ArchiveError> {
        let key = self.keys.generation(record.generation).record();
        match self
            .objects
            .create(&key, &to_json(record), MAX_RECORD_BYTES)
            .await?
        {
            Stands::Mine => Ok(()),
            Stands::Other(_) => Err(ArchiveError::GenerationExists {
                key: key.to_string(),
            }),
        }
    }

    /// The generations of the source, oldest first. A name that is no generation is passed over.
    ///
    /// # Errors
    /// Of the store, or when a record does not parse.
    pub async fn generations(&self) -> Result<Vec<GenerationRecord>, ArchiveError> {
        let mut records = Vec::new();
        for generation in self.generation_ids().await? {
            records.extend(self.generation(generation).await?);
        }
        Ok(records)
    }

    /// Ids of all generations of which there is anything, oldest first.
    ///
    /// # Errors
    /// Of the store.
    pub async fn generation_ids(&self) -> Result<Vec<Generation>, ArchiveError> {
        let names = self.objects.0.list(&self.keys.generations(), None).await?;
        let ids = names.iter().filter_map(|name| name.parse().ok());
        Ok(ids.collect())
    }

    /// One generation, if it exists.
    ///
    /// # Errors
    /// Of the store, when the record does not parse, or when a newer build wrote it.
    pub async fn generation(
        &self,
        generation: Generation,
    ) -> Result<Option<GenerationRecord>, ArchiveError> {
        let key = self.keys.generation(generation).record();
        let record: Option<GenerationRecord> = self.objects.record(&key).await?;
        match record {
            Some(record) if record.format > FORMAT => Err(ArchiveError::Unsupported {
                what: format!("{key} has format {}", record.format),
                next: "use a newer build",
            }),
            record => Ok(record),
        }
    }
}
