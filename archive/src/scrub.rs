//! Looking through an archive: everything that it must have, and whether it is what was written. It only reads, so it can
//! run anywhere, with rights to read alone; it goes on behind damage, so that one run names all of it. A gateway may write
//! meanwhile, a producer publish, and retention trim: what comes or goes in the proper way is no damage.

use std::time::{Duration, Instant};

use rindle_proto::body::{Attempt, BulkPart};
use rindle_proto::frame::FrameReader;
use rindle_proto::ids::{Epoch, Generation, SegmentNo, Seq};
use serde_json::Value;

use crate::archive::Archive;
use crate::bulk::{BulkError, parts_of};
use crate::error::{ArchiveError, Kind, chain};
use crate::image::{ImageError, ImageInfo, Images};
use crate::layout::{Key, number_of};
use crate::log::Log;
use crate::reader::ReadError;
use crate::segment::{Predecessor, Segment, SegmentHeader};
use crate::store::StoreError;

/// Attempts at an object that the store does not give, and the pause before the second.
const ATTEMPTS: u32 = 3;
const PAUSE: Duration = Duration::from_millis(if cfg!(test) { 1 } else { 500 });

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
    /// Why the look ended early: the store did not answer.
    pub stopped: Option<String>,
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

impl Archive {
    /// Looks through one generation; `told` hears of each object.
    pub async fn scrub(
        &self,
        generation: Generation,
        look: Look,
        told: &mut (dyn FnMut(&Scrubbed) + Send),
    ) -> Scrubbed {
        let mut scrub = Scrub {
            log: self.log(generation),
            look,
            began: Instant::now(),
            found: Scrubbed::default(),
            epoch: Epoch(0),
            only_fences: true,
            last: Seq(0),
            told,
        };
        if let Err(error) = scrub.all(self, generation).await {
            scrub.found.stopped = Some(chain(&error));
        }
        scrub.found
    }

    /// Looks at the pointer to the current generation: it is set with the first mint, and names one that there is.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn scrub_current(&self) -> Result<Option<Damage>, ArchiveError> {
        let key = self.keys.current().to_string();
        let ids = self.generation_ids().await?;
        let what = match self.current().await {
            Ok(Some(current)) if ids.contains(&current.generation) => return Ok(None),
            Ok(Some(current)) => format!(
                "names generation {}, of which there is nothing",
                current.generation
            ),
            Ok(None) => {
                for id in &ids {
                    if self
                        .log(*id)
                        .checked_head()
                        .await
                        .is_ok_and(|head| head.is_none())
                    {
                        continue;
                    }
                    let what = "is missing although a generation has a log".to_owned();
                    return Ok(Some(Damage { key, what }));
                }
                return Ok(None);
            }
            Err(error) => match error.store() {
                Ok(store) => return Err(store.into()),
                Err(error) => chain(&error),
            },
        };
        Ok(Some(Damage { key, what }))
    }
}

struct Scrub<'a> {
    log: Log,
    look: Look,
    began: Instant,
    found: Scrubbed,
    /// The highest that a log object has.
    epoch: Epoch,
    /// No other log object was met yet.
    only_fences: bool,
    /// Last frame of the last commit.
    last: Seq,
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
trait About: std::error::Error + Sized + 'static {
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

impl Scrub<'_> {
    async fn all(&mut self, archive: &Archive, generation: Generation) -> Result<(), StoreError> {
        // Before the log: one that is published meanwhile shows objects that are looked at later.
        let images = archive.images(generation);
        let ids = images.ids().await?;
        self.log().await?;
        let epochs = self.epochs().await?;
        let key = self.log.keys.record();
        let record = self
            .read(&key, async || archive.generation(generation).await)
            .await?;
        // Without anything else a mint is on its way, or was given up.
        if matches!(record, Some(None)) && (epochs > 0 || self.found.segments > 0) {
            self.damaged(&key, "is missing");
        }
        self.checkpoints().await?;
        for id in &ids {
            self.image(&images, id).await?;
        }
        Ok(())
    }

    fn damaged(&mut self, key: &Key, what: impl Into<String>) {
        self.found.damage.push(Damage {
            key: key.to_string(),
            what: what.into(),
        });
    }

    /// What was read; damage is noted and gives nothing. An object that cannot be read while others can is damaged too.
    async fn read<T, E: About>(
        &mut self,
        key: &Key,
        mut read: impl AsyncFnMut() -> Result<T, E>,
    ) -> Result<Option<T>, StoreError> {
        let mut attempt = 1;
        let away = loop {
            let error = match read().await {
                Ok(read) => return Ok(Some(read)),
                Err(error) => error,
            };
            match error.store() {
                Ok(away) if attempt == ATTEMPTS => break away,
                Ok(_away) => tokio::time::sleep(PAUSE * attempt).await,
                Err(error) => {
                    self.damaged(key, chain(&error));
                    return Ok(None);
                }
            }
            attempt += 1;
        };
        match self.log.exists().await {
            Ok(true) => self.damaged(key, format!("cannot be read: {}", chain(&away))),
            Ok(false) | Err(_) => return Err(away),
        }
        Ok(None)
    }

    async fn log(&mut self) -> Result<(), StoreError> {
        let log = self.log.clone();
        let key = log.keys.boundary();
        let boundary = self.read(&key, async || log.boundary().await);
        let boundary = boundary.await?.unwrap_or(SegmentNo(0));
        // What comes later is for the next look.
        let mut numbers = log.listed(boundary).await?;
        numbers.sort_unstable();
        let mut before = match boundary.0 {
            0 => Before::Start(Predecessor::none(log.generation)),
            _ => Before::Unknown,
        };
        let mut next = boundary.next();
        for number in numbers {
            if number > next {
                self.gap(next, number).await?;
                before = Before::Unknown;
            }
            before = match self.look.depth {
                Depth::Light => self.header(number, before).await?,
                Depth::Deep => self.segment(number, before).await?,
            };
            self.found.head = number.0;
            next = number.next();
            self.rest().await;
        }
        Ok(())
    }

    /// Numbers from `next` on are not there, and `number` is.
    async fn gap(&mut self, next: SegmentNo, number: SegmentNo) -> Result<(), StoreError> {
        let (log, key) = (self.log.clone(), self.log.keys.segment(next));
        let why = async || match log.header(next).await? {
            Some(_) => Ok(None),
            None => log.absent(next).await.map(Some),
        };
        let what = match self.read(&key, why).await? {
            // Trimmed while this went on, or not in the listing.
            Some(Some(ReadError::Trimmed { .. }) | None) | None => return Ok(()),
            Some(Some(_)) if number.0 - next.0 == 1 => MISSING.to_owned(),
            Some(Some(_)) => format!("and all up to number {} {MISSING}", number.0 - 1),
        };
        self.damaged(&key, what);
        let key = self.log.keys.boundary();
        // Fences stay for ever, so a trimmed log without its boundary begins with one.
        let is_first = self.only_fences && !self.log.objects.exists(&key).await?;
        if is_first {
            self.damaged(
                &key,
                "is missing, or the first log objects are; rindle backup prune writes it anew",
            );
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
    async fn header(&mut self, number: SegmentNo, before: Before) -> Result<Before, StoreError> {
        let (log, key) = (self.log.clone(), self.log.keys.segment(number));
        let read = self.read(&key, async || log.header(number).await).await?;
        let Some(Some(header)) = read else {
            return Ok(Before::Unknown);
        };
        self.saw(&header);
        if let Before::Header(before) = before
            && (header.epoch < before.epoch || header.start != before.end)
        {
            self.damaged(&key, "does not go on where the object before it ends");
        }
        Ok(Before::Header(Box::new(header)))
    }

    /// One log object, and whether it follows the one before it.
    async fn segment(&mut self, number: SegmentNo, before: Before) -> Result<Before, StoreError> {
        let (log, key) = (self.log.clone(), self.log.keys.segment(number));
        let read = self.read(&key, async || log.segment(number).await).await?;
        let Some(Some(segment)) = read else {
            return Ok(Before::Unknown);
        };
        self.saw(&segment.header);
        self.found.bytes += segment.header.body_bytes;
        if let Before::Start(before) = before
            && let Err(flaw) = segment.follows(Some(&before))
        {
            self.damaged(&key, format!("or the object before it: {flaw}"));
        }
        self.copies(&segment, &key).await?;
        Ok(Before::Start(segment.predecessor()))
    }

    fn saw(&mut self, header: &SegmentHeader) {
        self.found.segments += 1;
        self.epoch = self.epoch.max(header.epoch);
        self.only_fences &= header.fence;
        if let Some(commit) = &header.last_commit {
            self.last = self.last.max(commit.position.seq);
        }
    }

    /// The parts of every copy that ends in a log object.
    async fn copies(&mut self, segment: &Segment, key: &Key) -> Result<(), StoreError> {
        let mut frames = FrameReader::new();
        frames.push(segment.frames.clone());
        loop {
            let frame = match frames.next_frame() {
                Ok(Some(frame)) => frame,
                Ok(None) => return Ok(()),
                Err(error) => {
                    self.damaged(key, error.to_string());
                    return Ok(());
                }
            };
            match parts_of(&frame) {
                Ok(None) => {}
                Ok(Some((attempt, parts))) => {
                    let known = self.found.damage.len();
                    self.bulk(attempt, &parts).await?;
                    // They went first, as retention does it, and the object that lists them is about to.
                    let (log, key) = (self.log.clone(), self.log.keys.boundary());
                    let boundary = self.read(&key, async || log.boundary().await);
                    if boundary
                        .await?
                        .is_some_and(|boundary| segment.header.segment <= boundary)
                    {
                        self.found.damage.truncate(known);
                    }
                }
                Err(what) => self.damaged(key, what),
            }
        }
    }

    async fn bulk(&mut self, attempt: Attempt, parts: &[BulkPart]) -> Result<(), StoreError> {
        for part in parts {
            let (log, key) = (self.log.clone(), self.log.keys.bulk(attempt, part.number));
            let read = self.read(&key, async || log.fetch_bulk(attempt, part).await);
            if read.await?.is_some() {
                self.found.bulk_parts += 1;
                self.found.bytes += part.stored_bytes;
            }
            self.rest().await;
        }
        Ok(())
    }

    /// Every session claimed an epoch, and none of the claims ever goes. How many there are.
    async fn epochs(&mut self) -> Result<u64, StoreError> {
        let (log, keys) = (self.log.clone(), self.log.keys.clone());
        let names = log.objects.0.list(&keys.epochs(), None).await?;
        let mut numbers: Vec<u64> = names
            .iter()
            .filter_map(|it| number_of(it, ".json"))
            .collect();
        numbers.sort_unstable();
        let mut next = 1;
        for number in &numbers {
            if *number > next {
                let key = keys.epoch(Epoch(next));
                self.damaged(
                    &key,
                    format!("and all up to number {} {MISSING}", number - 1),
                );
            }
            next = number.saturating_add(1);
            let key = keys.epoch(Epoch(*number));
            self.read(&key, async || log.objects.record::<Value>(&key).await)
                .await?;
        }
        if self.epoch.0 >= next {
            let key = keys.epoch(Epoch(next));
            self.damaged(
                &key,
                format!("is missing although the log has epoch {}", self.epoch),
            );
        }
        Ok(numbers.len() as u64)
    }

    async fn checkpoints(&mut self) -> Result<(), StoreError> {
        let (log, keys) = (self.log.clone(), self.log.keys.clone());
        for name in log.objects.0.list(&keys.checkpoints(), None).await? {
            let Some(seq) = number_of(&name, ".json").map(Seq) else {
                continue;
            };
            let key = keys.checkpoint(seq);
            self.read(&key, async || log.checkpoint::<Value>(seq).await)
                .await?;
            if seq > self.last {
                self.beyond(&key, format!("was believed at frame {seq}"))
                    .await?;
            }
        }
        Ok(())
    }

    /// Something was made of what the log does not hold, unless that came since.
    async fn beyond(&mut self, key: &Key, what: String) -> Result<(), StoreError> {
        let (log, head) = (
            self.log.clone(),
            self.log.keys.segment(SegmentNo(self.found.head)),
        );
        let now = self
            .read(&head, async || log.checked_head().await)
            .await?
            .flatten();
        if now.is_none_or(|now| now.segment.0 <= self.found.head) {
            let head = self.found.head;
            self.damaged(
                key,
                format!("{what}, which the log does not hold: it ends with object {head}"),
            );
        }
        Ok(())
    }

    async fn image(&mut self, images: &Images, id: &str) -> Result<(), StoreError> {
        let key = images.manifest_key(id);
        let image = match self.read(&key, async || images.open(id).await).await? {
            Some(Some(image)) => image,
            // One that is being made, or was given up; or it went, as retention does it, since it was listed.
            Some(None) if !images.is_marked(id).await? => return Ok(()),
            // Another producer's proof of what went meanwhile.
            Some(None) if images.slice_keys(id).await?.is_empty() => return Ok(()),
            Some(None) => {
                self.damaged(&key, "is missing although its image was proved");
                return Ok(());
            }
            None => return Ok(()),
        };
        self.found.images += 1;
        let mark = images.mark_key(id);
        if image.verified {
            self.read(&mark, async || images.mark(id).await).await?;
        }
        if image.base.segment.0 > self.found.head {
            let what = format!("shows log object {}", image.base.segment);
            self.beyond(&key, what).await?;
        }
        self.slices(images, &image).await
    }

    async fn slices(&mut self, images: &Images, image: &ImageInfo) -> Result<(), StoreError> {
        let whole = self.look.depth == Depth::Deep;
        for part in image.parts() {
            let key = images.part_key(image, part);
            let before = self.found.damage.len();
            let read = self.read(&key, async || images.look(image, part, whole).await);
            if let Some(bytes) = read.await? {
                self.found.slices += 1;
                self.found.bytes += bytes;
            } else if images.open(&image.id).await.is_ok_and(|now| now.is_none()) {
                // Retention took it meanwhile.
                self.found.damage.truncate(before);
                return Ok(());
            }
            self.rest().await;
        }
        Ok(())
    }
}
