//! How far the log was trimmed, and who needs more of it: one object, changed by compare-and-set (rule 21).

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rindle_proto::ids::SegmentNo;
use serde::{Deserialize, Serialize};

use crate::error::{ArchiveError, Kind};
use crate::image::{ImageError, ImageInfo, Images};
use crate::layout::{GenerationKeys, Key};
use crate::log::Log;
use crate::objects::{MAX_RECORD_BYTES, Objects, parse, to_json};
use crate::store::{Problem, StoreError, Swap};

/// How long a reservation holds; a restore that takes longer makes it again in time.
pub(crate) const RESERVED_FOR: Duration = Duration::from_secs(6 * 3600);

/// Changes that lose against others are made again, so often.
const TRIES: u32 = 20;

/// The longest pause before that, milliseconds.
const LONGEST_PAUSE_MS: u64 = if cfg!(test) { 4 } else { 400 };

/// Content of `boundary.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Boundary {
    /// Log objects up to this one may be gone; readers take none of them.
    pub(crate) boundary: SegmentNo,
    /// Up to this one they are gone, but for fences.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) deleted: SegmentNo,
    /// Images that somebody restores.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) pins: Vec<Pin>,
    /// Images that passes delete: nobody may reserve one any more.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) dropping: Vec<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "what serde calls")]
fn is_zero(segment: &SegmentNo) -> bool {
    segment.0 == 0
}

/// An image that retention leaves alone until then.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Pin {
    pub(crate) image: String,
    /// Milliseconds since 1970, of the store's clock.
    pub(crate) until_ms: u64,
}

/// Milliseconds since 1970.
pub(crate) fn millis(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// What stands; an archive that was never trimmed has no record.
pub(crate) async fn read(
    objects: &Objects,
    keys: &GenerationKeys,
) -> Result<Boundary, ArchiveError> {
    let found = objects.record(&keys.boundary()).await?;
    Ok(found.unwrap_or_default())
}

impl Log {
    /// The last segment that was given up; 0 when the log is whole.
    pub(crate) async fn boundary(&self) -> Result<SegmentNo, ArchiveError> {
        Ok(read(&self.objects, &self.keys).await?.boundary)
    }
}

impl Objects {
    /// Changes a boundary's record, until nobody else did meanwhile; gives what stands then, and what `change` said last.
    pub(crate) async fn change_boundary<T>(
        &self,
        key: &Key,
        mut change: impl FnMut(&mut Boundary) -> T,
    ) -> Result<(Boundary, T), ArchiveError> {
        for _ in 0..TRIES {
            let found = self.0.get_versioned(key, MAX_RECORD_BYTES).await?;
            let before: Boundary = match &found {
                Some(found) => parse(key, &found.bytes)?,
                None => Boundary::default(),
            };
            let mut after = before.clone();
            let said = change(&mut after);
            if after == before {
                return Ok((after, said));
            }
            let (bytes, version) = (to_json(&after), found.map(|found| found.version));
            let answer = self
                .0
                .compare_and_set(key, version.as_ref(), bytes.clone())
                .await;
            if let Ok(Swap::Done(_)) = answer {
                return Ok((after, said));
            }
            // It may have taken effect. Two that write the same bytes want the same.
            let now = self.0.get_versioned(key, MAX_RECORD_BYTES).await?;
            if now.is_some_and(|now| now.bytes == bytes) {
                self.0.settle(key).await?;
                return Ok((after, said));
            }
            match answer {
                Err(error)
                    if error.kind() != Kind::Retry || error.problem == Problem::Unauthorized =>
                {
                    return Err(error.into());
                }
                Err(_) | Ok(_) => {}
            }
            // Those who met go on at different moments.
            let pause = ulid::Ulid::generate().random() % u128::from(LONGEST_PAUSE_MS);
            tokio::time::sleep(Duration::from_millis(pause as u64)).await;
        }
        Err(StoreError::new("change", key, Problem::Conflict, None).into())
    }
}

impl Images {
    /// Reserves an image, so that retention leaves it and the log behind it alone for [`RESERVED_FOR`]; false when it is
    /// gone already, or going.
    ///
    /// # Errors
    /// Of the store; without rights to write nothing can be reserved.
    pub async fn reserve(&self, image: &ImageInfo) -> Result<bool, ImageError> {
        let now = self.objects.now(&self.clock()).await?;
        let until_ms = millis(now + RESERVED_FOR);
        let key = self.keys.boundary();
        let (_, reserved) = self
            .objects
            .change_boundary(&key, |boundary| {
                boundary.pins.retain(|pin| pin.until_ms > millis(now));
                let is_going = boundary.dropping.contains(&image.id)
                    || image.base.segment <= boundary.boundary;
                if is_going {
                    return false;
                }
                let mut pins = boundary.pins.iter_mut();
                match pins.find(|pin| pin.image == image.id) {
                    Some(pin) => pin.until_ms = pin.until_ms.max(until_ms),
                    None => boundary.pins.push(Pin {
                        image: image.id.clone(),
                        until_ms,
                    }),
                }
                true
            })
            .await?;
        // One that was deleted before has no manifest any more.
        Ok(reserved && self.objects.exists(&self.manifest_key(&image.id)).await?)
    }
}
