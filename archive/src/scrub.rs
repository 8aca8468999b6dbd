//! Looking through an archive: everything that it must have, and whether it is what was written. It only reads, so it can
//! run anywhere, with rights to read alone; it goes on behind damage, so that one run names all of it.

use std::time::{Duration, Instant};

use rindle_proto::body::{Attempt, BulkPart, CopyDone, TxnPart};
use rindle_proto::frame::{Frame, FrameKind, FrameReader};
use rindle_proto::ids::{Epoch, Generation, SegmentNo, Seq};
use rindle_proto::op::{Op, Ops};
use serde_json::Value;

use crate::archive::Archive;
use crate::bulk::BulkError;
use crate::error::{ArchiveError, Kind};
use crate::image::{ImageError, Images};
use crate::layout::number_of;
use crate::log::Log;
use crate::reader::ReadError;
use crate::segment::{Predecessor, Segment, SegmentHeader};
use crate::store::StoreError;

/// How closely to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Headers and records: whether everything is there and fits together.
    Light,
    /// Every byte.
    Deep,
}

/// What was looked at in one generation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scrubbed {
    /// Log objects.
    pub segments: u64,
    /// The last of them.
    pub head: u64,
    /// Parts of copies that the log lists; none in a light look.
    pub bulk_parts: u64,
    /// Images.
    pub images: u64,
    /// Their slices.
    pub slices: u64,
    /// Bytes read, as they are stored; none in a light look.
    pub bytes: u64,
    /// What is wrong.
    pub damage: Vec<Damage>,
}

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Of which object.
    pub key: String,
    /// What.
    pub what: String,
}

/// How to look.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// How closely.
    pub depth: Depth,
    /// Bytes read a second at most, so that nobody else has to wait; none for as fast as it goes.
    pub bytes_per_second: Option<u64>,
}

/// Why the archive could not be looked through. Damage is no error.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct ScrubError(#[from] StoreError);

impl ScrubError {
    /// What the caller does about it.
    pub fn kind(&self) -> Kind {
        self.0.kind()
    }
}

impl Archive {
    /// Looks through one generation; `told` hears of each object.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn scrub(
        &self,
        generation: Generation,
        look: Look,
        told: &mut (dyn FnMut(&Scrubbed) + Send),
    ) -> Result<Scrubbed, ScrubError> {
        let mut scrub = Scrub {
            log: self.log(generation),
            look,
            began: Instant::now(),
            found: Scrubbed::default(),
            epoch: Epoch(0),
            told,
        };
        let key = scrub.log.keys.record().to_string();
        let record = self.generation(generation).await;
        if let Some(None) = scrub.keep(record, &key)? {
            scrub.damaged(&key, "is missing");
        }
        scrub.log().await?;
        scrub.epochs().await?;
        scrub.checkpoints().await?;
        scrub.images(&self.images(generation)).await?;
        Ok(scrub.found)
    }

    /// Looks at what all generations share.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn scrub_current(&self) -> Result<Option<Damage>, ScrubError> {
        match self.current().await {
            Ok(_) => Ok(None),
            Err(error) => damage_of(error, &self.keys.current().to_string()).map(Some),
        }
    }
}

struct Scrub<'a> {
    log: Log,
    look: Look,
    began: Instant,
    found: Scrubbed,
    /// The highest that a log object has.
    epoch: Epoch,
    told: &'a mut (dyn FnMut(&Scrubbed) + Send),
}

const MISSING: &str = "is missing although later objects exist";

/// What is known of the object before.
enum Before {
    /// Nothing: it is damaged, or was trimmed.
    Unknown,
    /// What its successor must name.
    Start(Predecessor),
    /// Its header.
    Header(Box<SegmentHeader>),
}

/// Any error that is about an object and not about the way to it.
trait About: std::error::Error + Sized {
    fn store(self) -> Result<StoreError, Self>;
}

impl About for ArchiveError {
    fn store(self) -> Result<StoreError, Self> {
        match self {
            ArchiveError::Store(error) if error.kind() == Kind::Retry => Ok(error),
            other => Err(other),
        }
    }
}

impl About for ReadError {
    fn store(self) -> Result<StoreError, Self> {
        match self {
            ReadError::Archive(error) => error.store().map_err(ReadError::Archive),
            other => Err(other),
        }
    }
}

impl About for ImageError {
    fn store(self) -> Result<StoreError, Self> {
        match self {
            ImageError::Archive(error) => error.store().map_err(ImageError::Archive),
            other => Err(other),
        }
    }
}

impl About for BulkError {
    fn store(self) -> Result<StoreError, Self> {
        match self {
            BulkError::Store(error) if error.kind() == Kind::Retry => Ok(error),
            other => Err(other),
        }
    }
}

fn damage_of<E: About>(error: E, key: &str) -> Result<Damage, ScrubError> {
    let error = match error.store() {
        Ok(store) => return Err(ScrubError(store)),
        Err(error) => error,
    };
    let causes = std::iter::successors(Some(&error as &dyn std::error::Error), |it| it.source());
    let what: Vec<String> = causes.map(ToString::to_string).collect();
    Ok(Damage {
        key: key.to_owned(),
        what: what.join(": "),
    })
}

impl Scrub<'_> {
    fn damaged(&mut self, key: &str, what: &str) {
        self.found.damage.push(Damage {
            key: key.to_owned(),
            what: what.to_owned(),
        });
    }

    /// What was read; damage is noted and gives nothing.
    fn keep<T, E: About>(
        &mut self,
        read: Result<T, E>,
        key: &str,
    ) -> Result<Option<T>, ScrubError> {
        match read {
            Ok(read) => Ok(Some(read)),
            Err(error) => {
                let damage = damage_of(error, key)?;
                self.found.damage.push(damage);
                Ok(None)
            }
        }
    }

    async fn log(&mut self) -> Result<(), ScrubError> {
        let key = self.log.keys.boundary().to_string();
        let boundary = self.log.boundary().await;
        let boundary = self.keep(boundary, &key)?.unwrap_or(SegmentNo(0));
        let found = self.log.find_head(boundary).await?;
        let head = self.log.listed_last(found).await?.unwrap_or(found);
        self.found.head = head.0;
        let mut before = match boundary.0 {
            0 => Before::Start(Predecessor::none(self.log.generation)),
            _ => Before::Unknown,
        };
        for number in boundary.0 + 1..=head.0 {
            before = match self.look.depth {
                Depth::Light => self.header(SegmentNo(number), before).await?,
                Depth::Deep => self.segment(SegmentNo(number), before).await?,
            };
            self.rest().await;
        }
        Ok(())
    }

    /// Tells how far it is, and keeps to the rate.
    async fn rest(&mut self) {
        (self.told)(&self.found);
        if let Some(rate) = self.look.bytes_per_second {
            let due = Duration::from_secs_f64(self.found.bytes as f64 / rate.max(1) as f64);
            tokio::time::sleep(due.saturating_sub(self.began.elapsed())).await;
        }
    }

    /// The header of a log object, and whether it may follow the one before it.
    async fn header(&mut self, number: SegmentNo, before: Before) -> Result<Before, ScrubError> {
        let key = self.log.keys.segment(number).to_string();
        let read = self.log.header(number).await;
        let header = match self.keep(read, &key)? {
            Some(Some(header)) => header,
            Some(None) => {
                self.damaged(&key, MISSING);
                return Ok(Before::Unknown);
            }
            None => return Ok(Before::Unknown),
        };
        self.found.segments += 1;
        self.epoch = self.epoch.max(header.epoch);
        if let Before::Header(before) = before
            && (header.epoch < before.epoch || header.start != before.end)
        {
            self.damaged(&key, "does not go on where the object before it ends");
        }
        Ok(Before::Header(Box::new(header)))
    }

    /// One log object, and whether it follows the one before it.
    async fn segment(&mut self, number: SegmentNo, before: Before) -> Result<Before, ScrubError> {
        let key = self.log.keys.segment(number).to_string();
        let read = self.log.segment(number).await;
        let segment = match self.keep(read, &key)? {
            Some(Some(segment)) => segment,
            Some(None) => {
                self.damaged(&key, MISSING);
                return Ok(Before::Unknown);
            }
            None => return Ok(Before::Unknown),
        };
        self.found.segments += 1;
        self.found.bytes += segment.header.body_bytes;
        self.epoch = self.epoch.max(segment.header.epoch);
        if let Before::Start(before) = before
            && let Err(flaw) = segment.follows(Some(&before))
        {
            self.damaged(&key, &flaw.to_string());
        }
        self.copies(&segment, &key).await?;
        Ok(Before::Start(segment.predecessor()))
    }

    /// The parts of every copy that ends in a log object.
    async fn copies(&mut self, segment: &Segment, key: &str) -> Result<(), ScrubError> {
        let mut frames = FrameReader::new();
        frames.push(segment.frames.clone());
        loop {
            let frame = match frames.next_frame() {
                Ok(Some(frame)) => frame,
                Ok(None) => return Ok(()),
                Err(error) => {
                    self.damaged(key, &error.to_string());
                    return Ok(());
                }
            };
            match parts_of(&frame) {
                Ok(None) => {}
                Ok(Some((attempt, parts))) => self.bulk(attempt, &parts).await?,
                Err(what) => self.damaged(key, &what),
            }
        }
    }

    async fn bulk(&mut self, attempt: Attempt, parts: &[BulkPart]) -> Result<(), ScrubError> {
        for part in parts {
            let key = self.log.keys.bulk(attempt, part.number).to_string();
            let read = self.log.fetch_bulk(attempt, part).await;
            if self.keep(read, &key)?.is_some() {
                self.found.bulk_parts += 1;
                self.found.bytes += part.stored_bytes;
            }
            self.rest().await;
        }
        Ok(())
    }

    /// Every session claimed an epoch, and none of the claims ever goes.
    async fn epochs(&mut self) -> Result<(), ScrubError> {
        let newest = self.log.newest_epoch().await?.max(self.epoch);
        for epoch in 1..=newest.0 {
            let key = self.log.keys.epoch(Epoch(epoch));
            if !self.log.objects.exists(&key).await? {
                self.damaged(&key.to_string(), "is missing although later sessions began");
            }
        }
        Ok(())
    }

    async fn checkpoints(&mut self) -> Result<(), ScrubError> {
        let keys = self.log.keys.clone();
        for name in self.log.objects.0.list(&keys.checkpoints(), None).await? {
            let Some(seq) = number_of(&name, ".json").map(Seq) else {
                continue;
            };
            let read = self.log.checkpoint::<Value>(seq).await;
            self.keep(read, &keys.checkpoint(seq).to_string())?;
        }
        Ok(())
    }

    async fn images(&mut self, images: &Images) -> Result<(), ScrubError> {
        for id in images.ids().await? {
            let key = images.manifest_key(&id);
            let read = images.open(&id).await;
            let image = match self.keep(read, &key)? {
                Some(Some(image)) => image,
                // One that is being made, or was given up.
                Some(None) if !images.is_marked(&id).await? => continue,
                Some(None) => {
                    self.damaged(&key, "is missing although its image was proved");
                    continue;
                }
                None => continue,
            };
            self.found.images += 1;
            if image.base.segment.0 > self.found.head {
                let (base, head) = (image.base.segment, self.found.head);
                self.damaged(
                    &key,
                    &format!("shows log object {base}, the log ends at {head}"),
                );
            }
            for part in image.parts() {
                let read = images
                    .look(&image, part, self.look.depth == Depth::Deep)
                    .await;
                let key = images.part_key(&image, part);
                if let Some(bytes) = self.keep(read, &key)? {
                    self.found.slices += 1;
                    self.found.bytes += bytes;
                }
                self.rest().await;
            }
        }
        Ok(())
    }
}

/// The parts that a frame lists, if it ends a copy.
fn parts_of(frame: &Frame) -> Result<Option<(Attempt, Vec<BulkPart>)>, String> {
    let text = |error: rindle_proto::error::DecodeError| error.to_string();
    match frame.kind {
        FrameKind::CopyBegin => Ok(None),
        FrameKind::CopyDone => {
            let done = CopyDone::decode(&frame.payload).map_err(text)?;
            Ok(Some((done.attempt, done.parts)))
        }
        FrameKind::Txn => {
            let part = TxnPart::decode(frame).map_err(text)?;
            match Ops::new(part.ops).next() {
                Some(Ok(Op::Copied(copied))) => Ok(Some((copied.attempt, copied.parts))),
                Some(Err(error)) => Err(error.to_string()),
                Some(Ok(_)) | None => Ok(None),
            }
        }
    }
}
