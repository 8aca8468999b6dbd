//! Retention: what no kept image, no restore and no start needs goes. See `designs/009-retention.md`.
//!
//! A pass may die anywhere, and several may run at once: the boundary is raised first and never falls, readers take nothing
//! at or below it, and what goes goes from the lowest number on.

mod plan;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use rindle_proto::frame::FrameReader;
use rindle_proto::ids::{Generation, SegmentNo, Seq};
use serde_json::Value;
use ulid::Ulid;

use crate::archive::Archive;
use crate::boundary::{self, Boundary, Pin, millis};
use crate::bulk::parts_of;
use crate::error::ArchiveError;
use crate::image::{ImageError, Images};
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

/// Beliefs that stay for a start.
const STARTS: usize = 2;

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
    /// Of the log.
    #[error(transparent)]
    Log(ReadError),
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
        let now = bytes::Bytes::from_static(b"now");
        self.put(clock, &now, now.len() as u64).await?;
        let written = self.0.modified(clock).await?;
        if let Err(error) = self.0.delete(clock).await {
            tracing::warn!(error = %error, "an object that told the time is left; the next pass of retention takes it away");
        }
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
        let now = match dry {
            // Whoever only asks may have no right to write.
            true => SystemTime::now(),
            false => {
                self.prove_once(&record).await?;
                self.objects.now(&self.images(generation).clock()).await?
            }
        };
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
        let starts = loop {
            match pass.starts().await {
                // Another pass raised the boundary meanwhile: it only rises.
                Err(PruneError::Log(ReadError::Trimmed { .. })) => {}
                starts => break starts?,
            }
        };
        let limit = starts.first().map(|(_, segment)| *segment);
        let limit = SegmentNo(limit.unwrap_or_default().0.saturating_sub(1));
        let (boundary, planned) = pass.decide(now, rules, &aged, limit, dry).await?;
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
        pass.forget_beliefs(&starts, &mut pruned).await?;
        for id in &planned.dropped {
            pass.drop_image(id, now, planned.best.as_ref(), &mut pruned)
                .await?;
        }
        pass.sweep(now, &mut pruned).await?;
        Ok(pruned)
    }
}

/// What the store says of an object that must be read.
fn unreadable(error: ReadError) -> PruneError {
    match error {
        ReadError::Archive(error) => error.into(),
        error => PruneError::Log(error),
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

    async fn clocks(&self) -> Result<Vec<Key>, StoreError> {
        let names = self.objects.0.list(&self.log.keys.clocks(), None).await?;
        let clock = |name: &String| Some(self.log.keys.clock(name.parse().ok()?));
        Ok(names.iter().filter_map(clock).collect())
    }

    /// The images, highest base first.
    async fn aged(&self) -> Result<Vec<Aged>, PruneError> {
        let mut aged = Vec::new();
        for image in self.images.all().await? {
            let published = self.modified(&self.images.manifest_key(&image.id)).await?;
            // Another pass deleted it meanwhile.
            let Some(published) = published else { continue };
            let made = u64::try_from(image.created_at_ms).unwrap_or_default();
            aged.push(Aged {
                made: UNIX_EPOCH + Duration::from_millis(made),
                base: image.base.position.seq,
                segment: image.base.segment,
                published,
                proved: self.modified(&self.images.mark_key(&image.id)).await?,
                id: image.id,
            });
        }
        Ok(aged)
    }

    /// What a gateway may start from, lowest first: the newest two readable beliefs below the log's last commit, for the
    /// proof at a start needs what was believed before that one, and one may be damaged; and the object of each.
    async fn starts(&self) -> Result<Vec<(Seq, SegmentNo)>, PruneError> {
        let boundary = self.log.boundary().await?;
        let head = self.log.head().await.map_err(unreadable)?;
        let Some((head, last)) = head.and_then(|head| Some((head.segment, head.last_commit?)))
        else {
            return Ok(Vec::new());
        };
        let mut starts = Vec::new();
        for seq in self.log.checkpoints(last.before.seq).await? {
            if starts.len() == STARTS {
                break;
            }
            if !matches!(self.log.checkpoint::<Value>(seq).await, Ok(Some(_))) {
                continue;
            }
            let found = self.log.find_commit(boundary, head, seq).await;
            let segment = found.map_err(unreadable)?;
            starts.extend(segment.map(|segment| (seq, segment)));
        }
        starts.reverse();
        Ok(starts)
    }

    /// Raises the boundary, not beyond `limit`, and names what goes, in one change: whoever reserves an image comes before
    /// or after it. What was named once goes: passes that overlap take nothing back.
    async fn decide(
        &self,
        now: SystemTime,
        rules: Rules,
        images: &[Aged],
        limit: SegmentNo,
        dry: bool,
    ) -> Result<(Boundary, Plan), ArchiveError> {
        let key = self.log.keys.boundary();
        let change = |boundary: &mut Boundary| {
            boundary.pins.retain(|pin| pin.until_ms > millis(now));
            let pinned = boundary.pins.iter().map(|pin| pin.image.clone()).collect();
            let named = std::mem::take(&mut boundary.dropping);
            let (going, left): (Vec<Aged>, Vec<Aged>) = images
                .iter()
                .cloned()
                .partition(|image| named.contains(&image.id));
            let mut planned = plan(now, rules, &left, &pinned);
            let better = left
                .iter()
                .filter(|image| planned.best.as_ref() == Some(&image.id));
            let best = better.map(|image| image.base).next();
            // One that is the best of what is left stays after all.
            let going = going
                .into_iter()
                .filter(|it| best.is_some_and(|best| best > it.base));
            planned.dropped.extend(going.map(|image| image.id));
            let raised = planned.boundary.unwrap_or_default().min(limit);
            boundary.boundary = boundary.boundary.max(raised);
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

    /// What no start needs: all below those that it may begin with.
    async fn forget_beliefs(
        &self,
        starts: &[(Seq, SegmentNo)],
        pruned: &mut Pruned,
    ) -> Result<(), PruneError> {
        let Some((lowest, _)) = starts.first() else {
            return Ok(());
        };
        for seq in self.log.checkpoints(*lowest).await? {
            if seq < *lowest {
                self.objects
                    .0
                    .delete(&self.log.keys.checkpoint(seq))
                    .await?;
                pruned.checkpoints += 1;
            }
        }
        Ok(())
    }

    /// An image goes only while the best that is kept stands, proved, with a higher base, which is looked for anew (rule 22);
    /// and while it is still named, and nobody has reserved it.
    async fn drop_image(
        &self,
        id: &str,
        now: SystemTime,
        best: Option<&String>,
        pruned: &mut Pruned,
    ) -> Result<(), PruneError> {
        let Some(best) = best else { return Ok(()) };
        let boundary = boundary::read(&self.objects, &self.log.keys).await?;
        let is_pinned = |pin: &Pin| pin.image == id && pin.until_ms > millis(now);
        if !boundary.dropping.iter().any(|it| it == id) || boundary.pins.iter().any(is_pinned) {
            return Ok(());
        }
        let stands = self.objects.exists(&self.images.manifest_key(best)).await?
            && self.images.is_marked(best).await?;
        if !stands {
            return Ok(());
        }
        let Some(image) = self.images.open(id).await? else {
            return Ok(());
        };
        // A proof without an image would be told as damage, and half an image is none.
        self.objects.0.delete(&self.images.mark_key(id)).await?;
        self.objects.0.delete(&self.images.manifest_key(id)).await?;
        for number in image.parts() {
            self.objects
                .0
                .delete(&self.images.part_key(&image, number))
                .await?;
        }
        pruned.images.push(id.to_owned());
        Ok(())
    }

    /// Slices without a manifest: an upload that ended early, or a pass that did; and objects that only told the time.
    async fn sweep(&self, now: SystemTime, pruned: &mut Pruned) -> Result<(), PruneError> {
        let is_old = |last: SystemTime| {
            now.duration_since(last)
                .is_ok_and(|age| age >= ORPHANED_AFTER)
        };
        for key in self.clocks().await? {
            if self.modified(&key).await?.is_some_and(is_old) {
                self.objects.0.delete(&key).await?;
            }
        }
        for id in self.images.ids().await? {
            if self.objects.exists(&self.images.manifest_key(&id)).await? {
                continue;
            }
            let slices = self.images.slice_keys(&id).await?;
            let mut newest = None;
            for key in &slices {
                newest = newest.max(self.modified(key).await?);
            }
            if slices.is_empty() {
                // A proof that came after the image went.
                self.objects.0.delete(&self.images.mark_key(&id)).await?;
                continue;
            }
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
