//! Retention: what no kept image, no restore and no start needs goes. See `designs/009-retention.md`.
//!
//! A pass may die anywhere, and several may run at once: the boundary is raised first and never falls, readers take nothing
//! at or below it, and what goes goes from the lowest number on.

mod plan;

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use rindle_proto::frame::FrameReader;
use rindle_proto::ids::{Generation, SegmentNo, Seq};
use ulid::Ulid;

use crate::archive::Archive;
use crate::boundary::{self, Boundary, millis};
use crate::bulk::parts_of;
use crate::error::ArchiveError;
use crate::image::{ImageError, ImageInfo, Images};
use crate::layout::Key;
use crate::log::Log;
use crate::objects::Objects;
use crate::reader::ReadError;
use crate::store::{Problem, StoreError};

pub use plan::Rules;
use plan::{Aged, Plan, plan};

/// Log objects that go at once, and how many before it is noted how far that is.
const AT_ONCE: usize = 16;
const NOTED_EVERY: u64 = 1024;

/// Slices of an image that never got a manifest go when none came for so long: whoever uploads one may be slow.
const ORPHANED_AFTER: Duration = Duration::from_secs(24 * 3600);

/// What a pass did, or would do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Images that stay.
    pub kept: Vec<String>,
    /// Images that went.
    pub images: Vec<String>,
    /// The log up to here is given up.
    pub boundary: SegmentNo,
    /// Log objects that went. A dry run counts those that the boundary gives up, fences too.
    pub segments: u64,
    /// Parts of copies that only those listed; a dry run does not look.
    pub bulk_parts: u64,
    /// Records of what was believed.
    pub checkpoints: u64,
    /// Slices of images that were never published.
    pub orphans: u64,
    /// Damaged log objects that stay, for nobody can tell what they are.
    pub left: Vec<String>,
}

/// Why a pass ended early. The next one goes on.
#[derive(Debug, thiserror::Error)]
pub enum PruneError {
    /// Of the store, or of a record.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// Of an image.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// There is no such generation.
    #[error("generation {0} is not in this archive")]
    NoGeneration(Generation),
}

impl From<StoreError> for PruneError {
    fn from(error: StoreError) -> Self {
        PruneError::Archive(error.into())
    }
}

impl Objects {
    /// The store's own time: that of an object which is written for it.
    pub(crate) async fn now(&self, clock: &Key) -> Result<SystemTime, StoreError> {
        self.0
            .create(clock, bytes::Bytes::from_static(b"now"))
            .await?;
        let written = self.0.modified(clock).await?;
        self.0.delete(clock).await?;
        written.ok_or_else(|| StoreError::new("read", clock, Problem::Unavailable, None))
    }
}

impl Images {
    /// A key that nobody else uses.
    pub(crate) fn clock(&self) -> Key {
        self.keys.clock(Ulid::generate())
    }
}

impl Archive {
    /// One pass over a generation; `dry` changes nothing.
    ///
    /// # Errors
    /// Why it ended early.
    pub async fn prune(
        &self,
        generation: Generation,
        rules: Rules,
        dry: bool,
    ) -> Result<Pruned, PruneError> {
        let record = self.generation(generation).await?;
        let record = record.ok_or(PruneError::NoGeneration(generation))?;
        self.may_be_written(&record)?;
        let clock = self.images(generation).clock();
        let now = self.objects.now(&clock).await?;
        self.prune_at(now, generation, rules, dry).await
    }

    pub(crate) async fn prune_at(
        &self,
        now: SystemTime,
        generation: Generation,
        rules: Rules,
        dry: bool,
    ) -> Result<Pruned, PruneError> {
        let pass = Pass {
            objects: self.objects.clone(),
            log: self.log(generation),
            images: self.images(generation),
        };
        let aged = pass.aged().await?;
        let (boundary, planned) = pass.decide(now, rules, &aged, dry).await?;
        let mut pruned = Pruned {
            kept: planned.kept.iter().cloned().collect(),
            boundary: boundary.boundary,
            ..Pruned::default()
        };
        if dry {
            pruned.segments = boundary.boundary.0.saturating_sub(boundary.deleted.0);
            pruned.images = planned.dropped;
            return Ok(pruned);
        }
        pass.trim(&boundary, &mut pruned).await?;
        let lowest = aged
            .iter()
            .filter(|image| image.segment > boundary.boundary);
        if let Some(base) = lowest.map(|image| image.base).min() {
            pass.forget_beliefs(base, &mut pruned).await?;
        }
        for id in &planned.dropped {
            pass.drop_image(id, &planned.kept, &mut pruned).await?;
        }
        pass.end().await?;
        pass.sweep(now, &mut pruned).await?;
        Ok(pruned)
    }
}

struct Pass {
    objects: Objects,
    log: Log,
    images: Images,
}

impl Pass {
    async fn modified(&self, key: &Key) -> Result<Option<SystemTime>, StoreError> {
        self.objects.0.modified(key).await
    }

    /// The images, highest base first.
    async fn aged(&self) -> Result<Vec<Aged>, PruneError> {
        let mut aged = Vec::new();
        for image in self.images.all().await? {
            let published = self.modified(&self.images.manifest_key(&image.id)).await?;
            // Another pass deleted it meanwhile.
            let Some(published) = published else { continue };
            aged.push(Aged {
                base: image.base.position.seq,
                segment: image.base.segment,
                published,
                proved: self.modified(&self.images.mark_key(&image.id)).await?,
                id: image.id,
            });
        }
        Ok(aged)
    }

    /// Raises the boundary and names what goes, in one change: whoever reserves an image comes before or after it.
    async fn decide(
        &self,
        now: SystemTime,
        rules: Rules,
        images: &[Aged],
        dry: bool,
    ) -> Result<(Boundary, Plan), ArchiveError> {
        let key = self.log.keys.boundary();
        let change = |boundary: &mut Boundary| {
            boundary.pins.retain(|pin| pin.until_ms > millis(now));
            let pinned = boundary.pins.iter().map(|pin| pin.image.clone()).collect();
            let planned = plan(now, rules, images, &pinned);
            boundary.boundary = boundary.boundary.max(planned.boundary.unwrap_or_default());
            boundary.dropping.clone_from(&planned.dropped);
            planned
        };
        if dry {
            let mut boundary = boundary::read(&self.objects, &self.log.keys).await?;
            let planned = change(&mut boundary);
            return Ok((boundary, planned));
        }
        self.objects.change_boundary(&key, change).await
    }

    /// Nothing is being deleted any more.
    async fn end(&self) -> Result<(), ArchiveError> {
        let key = self.log.keys.boundary();
        let ended = self
            .objects
            .change_boundary(&key, |boundary| boundary.dropping.clear());
        ended.await.map(drop)
    }

    /// Deletes the log up to the boundary, but for fences.
    async fn trim(&self, boundary: &Boundary, pruned: &mut Pruned) -> Result<(), PruneError> {
        let key = self.log.keys.boundary();
        let mut next = boundary.deleted.next().0;
        while next <= boundary.boundary.0 {
            let last = boundary.boundary.0.min(next + NOTED_EVERY - 1);
            let gone = stream::iter((next..=last).map(|n| self.delete_segment(SegmentNo(n))));
            let gone: Vec<Gone> = gone.buffer_unordered(AT_ONCE).try_collect().await?;
            for gone in gone {
                match gone {
                    Gone::Nothing => {}
                    Gone::Segment { bulk_parts } => {
                        pruned.segments += 1;
                        pruned.bulk_parts += bulk_parts;
                    }
                    Gone::Left(what) => pruned.left.push(what),
                }
            }
            let noted = self.objects.change_boundary(&key, |boundary| {
                boundary.deleted = boundary.deleted.max(SegmentNo(last));
            });
            noted.await?;
            next = last + 1;
        }
        Ok(())
    }

    /// What a log object's copies list goes first, so that a pass that dies leaves the object for the next one.
    async fn delete_segment(&self, number: SegmentNo) -> Result<Gone, PruneError> {
        let key = self.log.keys.segment(number);
        let segment = match self.log.segment(number).await {
            Ok(Some(segment)) => segment,
            Ok(None) => return Ok(Gone::Nothing),
            Err(ReadError::Archive(error)) => return Err(error.into()),
            Err(error) => return Ok(Gone::Left(error.to_string())),
        };
        // A late writer must find what overtook it (rule 6).
        if segment.header.fence {
            return Ok(Gone::Nothing);
        }
        let mut frames = FrameReader::new();
        frames.push(segment.frames);
        let mut bulk_parts = 0;
        loop {
            let listed = match frames.next_frame() {
                Ok(None) => break,
                Ok(Some(frame)) => parts_of(&frame),
                Err(error) => Err(error.to_string()),
            };
            match listed {
                Err(what) => return Ok(Gone::Left(format!("{key}: {what}"))),
                Ok(None) => {}
                Ok(Some((attempt, parts))) => {
                    for part in parts {
                        let key = self.log.keys.bulk(attempt, part.number);
                        self.objects.0.delete(&key).await?;
                        bulk_parts += 1;
                    }
                }
            }
        }
        self.objects.0.delete(&key).await?;
        Ok(Gone::Segment { bulk_parts })
    }

    /// A start needs the newest one below what it reads, and none before that.
    async fn forget_beliefs(&self, base: Seq, pruned: &mut Pruned) -> Result<(), PruneError> {
        for seq in self.log.checkpoints(base).await?.into_iter().skip(1) {
            self.objects
                .0
                .delete(&self.log.keys.checkpoint(seq))
                .await?;
            pruned.checkpoints += 1;
        }
        Ok(())
    }

    /// An image goes only while one that is kept and proved has a higher base, which is looked for anew (rule 22).
    async fn drop_image(
        &self,
        id: &str,
        kept: &BTreeSet<String>,
        pruned: &mut Pruned,
    ) -> Result<(), PruneError> {
        let images = self.images.all().await?;
        let Some(image) = images.iter().find(|image| image.id == id) else {
            return Ok(());
        };
        let is_better = |other: &&ImageInfo| {
            other.verified
                && kept.contains(&other.id)
                && other.base.position.seq > image.base.position.seq
        };
        if !images.iter().any(|other| is_better(&other)) {
            return Ok(());
        }
        // Half an image is none.
        self.objects.0.delete(&self.images.manifest_key(id)).await?;
        self.objects.0.delete(&self.images.mark_key(id)).await?;
        for number in image.parts() {
            self.objects
                .0
                .delete(&self.images.part_key(image, number))
                .await?;
        }
        pruned.images.push(id.to_owned());
        Ok(())
    }

    /// Slices without a manifest: an upload that ended early, or a pass that did.
    async fn sweep(&self, now: SystemTime, pruned: &mut Pruned) -> Result<(), PruneError> {
        for id in self.images.ids().await? {
            if self.objects.exists(&self.images.manifest_key(&id)).await? {
                continue;
            }
            let slices = self.images.slice_keys(&id).await?;
            let mut newest = None;
            for key in &slices {
                newest = newest.max(self.modified(key).await?);
            }
            let is_old = |last: SystemTime| {
                now.duration_since(last)
                    .is_ok_and(|age| age >= ORPHANED_AFTER)
            };
            // Looked at again: it may have been published just now.
            if !newest.is_some_and(is_old)
                || self.objects.exists(&self.images.manifest_key(&id)).await?
            {
                continue;
            }
            for key in &slices {
                self.objects.0.delete(key).await?;
                pruned.orphans += 1;
            }
        }
        Ok(())
    }
}

/// What became of a log object at or below the boundary.
enum Gone {
    /// It is a fence, or was gone.
    Nothing,
    /// It is gone now, and these parts with it.
    Segment { bulk_parts: u64 },
    /// It cannot be read.
    Left(String),
}
