//! The log of one generation: where it ends, who claimed it, and reading one object of it.

mod find;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rindle_proto::ids::{Epoch, Generation, SegmentNo};

use crate::error::ArchiveError;
use crate::layout::{GenerationKeys, number_of};
use crate::objects::{Objects, busy};
use crate::reader::{ReadError, ReadFrom, Reader};
use crate::segment::{self, HEADER_BYTES, MAX_OBJECT_BYTES, Segment, SegmentHeader};
use crate::store::StoreError;

/// The log of one generation. Clones share it.
#[derive(Clone, Debug)]
pub struct Log {
    pub(crate) objects: Objects,
    pub(crate) keys: GenerationKeys,
    pub(crate) generation: Generation,
    /// A segment that was seen: where a search for the head begins. Contiguity makes it safe (I2).
    pub(crate) seen: Arc<AtomicU64>,
}

impl Log {
    pub(crate) fn new(objects: Objects, keys: GenerationKeys, generation: Generation) -> Self {
        Self {
            objects,
            keys,
            generation,
            seen: Arc::default(),
        }
    }

    /// Whose log it is.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Header of the newest object, for status; `None` when the log is empty.
    ///
    /// # Errors
    /// Of the store, or when the object is damaged.
    pub async fn head(&self) -> Result<Option<SegmentHeader>, ReadError> {
        let boundary = self.boundary().await?;
        let head = self.find_head(boundary).await?;
        if head <= boundary {
            return Ok(None);
        }
        self.header(head).await
    }

    /// As [`Log::head`], and sure of it: an object that is missing before others passes for the end of a log.
    ///
    /// # Errors
    /// Of the store, when the object is damaged, and [`ReadError::Gap`] when one is missing.
    pub async fn checked_head(&self) -> Result<Option<SegmentHeader>, ReadError> {
        loop {
            let boundary = self.boundary().await?;
            let head = self.find_head(boundary).await?;
            let next = head.next();
            match self.listed_after(head).await? {
                // Written in between, unless the next one still is absent.
                Some(_) if self.header(next).await?.is_some() => {}
                Some(_) => match self.absent(next).await? {
                    ReadError::Trimmed { .. } => {}
                    gap => return Err(gap),
                },
                None if head <= boundary => return Ok(None),
                None => return self.header(head).await,
            }
        }
    }

    /// Tells that an object stands which something was made of.
    ///
    /// # Errors
    /// Of the store, when it is damaged, trimmed or missing.
    pub async fn must_stand(&self, segment: SegmentNo) -> Result<(), ReadError> {
        match self.header(segment).await? {
            Some(_) => Ok(()),
            None => Err(self.absent(segment).await?),
        }
    }

    /// How many objects the log has up to `head`: there are no holes above its boundary (I2).
    ///
    /// # Errors
    /// Of the store, or when the boundary's record is damaged.
    pub async fn objects_up_to(&self, head: SegmentNo) -> Result<u64, ArchiveError> {
        Ok(head.0.saturating_sub(self.boundary().await?.0))
    }

    /// Tells whether somebody took the generation over after the session of `mine` (rule 10).
    ///
    /// # Errors
    /// Of the store.
    pub async fn newer_epoch_exists(&self, mine: Epoch) -> Result<bool, StoreError> {
        self.objects
            .exists(&self.keys.epoch(Epoch(mine.0 + 1)))
            .await
    }

    /// The highest epoch that was claimed, as far as a listing tells; 0 for none.
    ///
    /// # Errors
    /// Of the store.
    pub async fn newest_epoch(&self) -> Result<Epoch, StoreError> {
        let names = self.objects.0.list(&self.keys.epochs(), None).await?;
        let newest = names
            .iter()
            .filter_map(|name| number_of(name, ".json"))
            .max();
        Ok(Epoch(newest.unwrap_or(0)))
    }

    /// Reads frames in order.
    pub fn reader(&self, from: ReadFrom) -> Reader {
        Reader::new(self.clone(), from)
    }

    /// A log object, verified; `None` when there is none.
    ///
    /// # Errors
    /// Of the store, or when the object is damaged.
    pub async fn segment(&self, segment: SegmentNo) -> Result<Option<Segment>, ReadError> {
        let key = self.keys.segment(segment);
        let Some(stored) = self.objects.0.get(&key, MAX_OBJECT_BYTES).await? else {
            return Ok(None);
        };
        let generation = self.generation;
        match busy(move || segment::open(&stored, generation, segment)).await {
            Ok(opened) => {
                self.saw(segment);
                Ok(Some(opened))
            }
            Err(what) => Err(ReadError::Corrupt {
                key: key.to_string(),
                what,
            }),
        }
    }

    /// The header of a log object; `None` when there is none.
    pub(crate) async fn header(
        &self,
        segment: SegmentNo,
    ) -> Result<Option<SegmentHeader>, ReadError> {
        let key = self.keys.segment(segment);
        let Some(start) = self.objects.0.get_start(&key, HEADER_BYTES).await? else {
            return Ok(None);
        };
        match segment::open_header(&start, self.generation, segment) {
            Ok(header) => Ok(Some(header)),
            Err(what) => Err(ReadError::Corrupt {
                key: key.to_string(),
                what,
            }),
        }
    }

    /// Refuses a generation without a record: the archive may be another one, or not mounted.
    pub(crate) async fn exists(&self) -> Result<bool, ArchiveError> {
        Ok(self.objects.exists(&self.keys.record()).await?)
    }

    pub(crate) fn saw(&self, segment: SegmentNo) {
        self.seen.fetch_max(segment.0, Ordering::Relaxed);
    }
}
