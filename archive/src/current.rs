//! Which generation is served: the pointer that cutover moves, and rollback moves back.

use rindle_proto::ids::Generation;
use serde::{Deserialize, Serialize};

use crate::archive::Archive;
use crate::error::ArchiveError;
use crate::objects::{MAX_RECORD_BYTES, now_ms, parse, to_json};
use crate::store::{Swap, Version};

/// The pointer as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Current {
    /// The generation that is served.
    pub generation: Generation,
    /// The one before it, where a rollback goes.
    pub previous: Option<Generation>,
    /// When it was set, milliseconds since 1970.
    pub at_ms: i64,
    /// What [`Archive::set_current`] expects.
    pub version: Version,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Pointer {
    generation: Generation,
    previous: Option<Generation>,
    at_ms: i64,
    /// Makes every content its own, so that a write whose answer was lost is recognised.
    id: String,
}

impl Archive {
    /// The pointer; `None` before the first cutover.
    ///
    /// # Errors
    /// Of the store, or when the record does not parse.
    pub async fn current(&self) -> Result<Option<Current>, ArchiveError> {
        let key = self.keys.current();
        let Some(found) = self.objects.0.get_versioned(&key, MAX_RECORD_BYTES).await? else {
            return Ok(None);
        };
        let pointer: Pointer = parse(&key, &found.bytes)?;
        Ok(Some(pointer.at(found.version)))
    }

    /// Moves the pointer, if it still is what was read.
    ///
    /// # Errors
    /// [`ArchiveError::CurrentMoved`] when somebody else moved it; of the store, and then it may have been
    /// moved or not: read it again.
    pub async fn set_current(
        &self,
        expected: Option<&Current>,
        generation: Generation,
    ) -> Result<Current, ArchiveError> {
        let key = self.keys.current();
        let pointer = Pointer {
            generation,
            previous: expected.map(|current| current.generation),
            at_ms: now_ms(),
            id: ulid::Ulid::generate().to_string(),
        };
        let bytes = to_json(&pointer);
        let version = expected.map(|current| &current.version);
        let answer = self
            .objects
            .0
            .compare_and_set(&key, version, bytes.clone())
            .await;
        if let Ok(Swap::Done(version)) = answer {
            return Ok(pointer.at(version));
        }
        match self.objects.0.get_versioned(&key, MAX_RECORD_BYTES).await? {
            Some(found) if found.bytes == bytes => {
                self.objects.0.settle(&key).await?;
                Ok(pointer.at(found.version))
            }
            _ => Err(match answer {
                Err(error) => error.into(),
                Ok(_lost) => ArchiveError::CurrentMoved {
                    key: key.to_string(),
                },
            }),
        }
    }
}

impl Pointer {
    fn at(&self, version: Version) -> Current {
        Current {
            generation: self.generation,
            previous: self.previous,
            at_ms: self.at_ms,
            version,
        }
    }
}
