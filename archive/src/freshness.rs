//! Whether the images are made, and new enough that followers find a start near the head. The verdict is pure; what it needs is
//! read beside it.

use std::time::Duration;

use rindle_proto::ids::{EndLsn, Generation, SegmentNo};
use serde::{Deserialize, Serialize};

use crate::archive::Archive;
use crate::error::ArchiveError;
use crate::image::{ImageError, ImageInfo};
use crate::layout::segment_name;
use crate::objects::{MAX_RECORD_BYTES, now_ms, parse, to_json};
use crate::store::Swap;

/// Runs that may be missed before somebody is told.
const MISSED: u64 = 3;

/// How often a producer is taken to run that does not say.
const CADENCE_SECONDS: u64 = 3600;

/// The newest proved image is not older than that.
const OLDEST_SECONDS: u64 = 24 * 3600;

/// Whoever asks in trouble does not wait for millions of names.
pub const WEIGHED_WITHIN: Duration = Duration::from_secs(5);

/// Content of `producer.json`: the last run that came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Run {
    /// When, milliseconds since 1970, by the producer's clock.
    pub at_ms: i64,
    /// How often it runs, seconds; none when it does not know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every_seconds: Option<u64>,
}

/// What is known of a generation's images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Images {
    /// When the generation was minted, milliseconds since 1970.
    pub minted_at_ms: i64,
    /// The producer's last run; none before the first.
    pub run: Option<Run>,
    /// When the newest image was published that was proved, milliseconds since 1970.
    pub proved_at_ms: Option<i64>,
    /// It shows the log's last commit: there is nothing newer to make an image of.
    pub is_newest: bool,
    /// Length of the log after it, bytes; none where that is not known.
    pub log_after_bytes: Option<u64>,
    /// Longest log that a follower is sent where a newer image could be.
    pub catch_up_max_bytes: u64,
}

/// Something is not as new as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stale {
    /// No run came to its end for three times its cadence.
    ProducerSilent {
        /// For so many seconds.
        seconds: u64,
        /// It should run every so many.
        every_seconds: u64,
    },
    /// The newest proved image is too far behind.
    SnapshotStale {
        /// In words.
        why: String,
    },
}

impl Stale {
    /// Its name in `status` and in alerts.
    pub fn name(&self) -> &'static str {
        match self {
            Stale::ProducerSilent { .. } => "ProducerSilent",
            Stale::SnapshotStale { .. } => "SnapshotStale",
        }
    }

    /// What is so.
    pub fn sentence(&self) -> String {
        match self {
            Stale::ProducerSilent {
                seconds,
                every_seconds,
            } => format!(
                "no run of the producer came to its end for {seconds} s, and one is due every {every_seconds} s"
            ),
            Stale::SnapshotStale { why } => {
                format!("new and recovering followers start far behind: {why}")
            }
        }
    }
}

impl Images {
    /// The first thing that is not as it should be, by a clock.
    pub fn stale(&self, now_ms: i64) -> Option<Stale> {
        // A moment in the future is one of another machine's clock.
        let since = |at_ms: i64| u64::try_from(now_ms.saturating_sub(at_ms)).unwrap_or(0) / 1000;
        let every_seconds = self.run.and_then(|run| run.every_seconds);
        let every_seconds = every_seconds.unwrap_or(CADENCE_SECONDS);
        let seconds = since(self.run.map_or(self.minted_at_ms, |run| run.at_ms));
        if seconds > MISSED.saturating_mul(every_seconds) {
            return Some(Stale::ProducerSilent {
                seconds,
                every_seconds,
            });
        }
        if self.is_newest {
            return None;
        }
        let age = since(self.proved_at_ms.unwrap_or(self.minted_at_ms));
        let why = if age > OLDEST_SECONDS && self.proved_at_ms.is_none() {
            format!("no image was proved since the generation was minted {age} s ago")
        } else if age > OLDEST_SECONDS {
            format!("the newest proved image is {age} s old")
        } else {
            let long = self
                .log_after_bytes
                .filter(|bytes| *bytes > self.catch_up_max_bytes)?;
            format!(
                "the log behind the newest proved image is {long} bytes long, archiveCatchUpMaxBytes is {}",
                self.catch_up_max_bytes
            )
        };
        Some(Stale::SnapshotStale { why })
    }
}

impl Archive {
    /// Notes that a run of the producer came to its end. Another producer's note of this moment is as good.
    ///
    /// # Errors
    /// Of the store, or when the record is damaged.
    pub async fn note_run(
        &self,
        generation: Generation,
        every_seconds: Option<u64>,
    ) -> Result<(), ArchiveError> {
        let key = self.keys.generation(generation).producer();
        let found = self.objects.0.get_versioned(&key, MAX_RECORD_BYTES).await?;
        let run = Run {
            at_ms: now_ms(),
            every_seconds,
        };
        let version = found.map(|found| found.version);
        let noted = self
            .objects
            .0
            .compare_and_set(&key, version.as_ref(), to_json(&run))
            .await?;
        match noted {
            Swap::Done(_) | Swap::Lost => Ok(()),
        }
    }

    /// What is known of a generation's images; `catch_up_max_bytes` is the gateway's setting.
    ///
    /// # Errors
    /// Of the store, or when a record is damaged.
    pub async fn freshness(
        &self,
        generation: Generation,
        minted_at_ms: i64,
        images: &[ImageInfo],
        last_commit: Option<EndLsn>,
        catch_up_max_bytes: u64,
    ) -> Result<Images, ImageError> {
        let key = self.keys.generation(generation).producer();
        let run = self.objects.0.get(&key, MAX_RECORD_BYTES).await?;
        // It decides nothing: one that cannot be read is as good as none.
        let run = run.and_then(|bytes| parse(&key, &bytes).ok());
        let proved = images.iter().find(|image| image.verified);
        let base = proved.map_or(SegmentNo(0), |image| image.base.segment);
        Ok(Images {
            minted_at_ms,
            run,
            proved_at_ms: proved.map(|image| image.created_at_ms),
            is_newest: proved.is_some_and(|image| Some(image.base.end_lsn) == last_commit),
            log_after_bytes: self.log_bytes(generation, base).await?,
            catch_up_max_bytes,
        })
    }

    /// Length of the log objects behind `after`, as they are stored; none when there are too many to be listed in
    /// [`WEIGHED_WITHIN`].
    ///
    /// # Errors
    /// Of the store.
    pub async fn log_bytes(
        &self,
        generation: Generation,
        after: SegmentNo,
    ) -> Result<Option<u64>, ArchiveError> {
        let log = self.keys.generation(generation).log();
        let after = segment_name(after);
        let weighed = self.objects.0.weigh(&log, Some(&after));
        match tokio::time::timeout(WEIGHED_WITHIN, weighed).await {
            Ok(bytes) => Ok(Some(bytes?)),
            Err(_elapsed) => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3600;

    fn fresh() -> Images {
        Images {
            minted_at_ms: 0,
            run: Some(Run {
                at_ms: 100 * HOUR as i64 * 1000,
                every_seconds: Some(900),
            }),
            proved_at_ms: Some(100 * HOUR as i64 * 1000),
            is_newest: false,
            log_after_bytes: Some(10),
            catch_up_max_bytes: 10,
        }
    }

    fn name(images: Images, seconds: u64) -> Option<&'static str> {
        let now = (100 * HOUR + seconds) as i64 * 1000;
        images.stale(now).map(|stale| stale.name())
    }

    #[test]
    fn a_producer_that_misses_three_runs_is_silent() {
        assert_eq!(name(fresh(), 3 * 900), None);
        assert_eq!(name(fresh(), 3 * 900 + 1), Some("ProducerSilent"));
        let unknown = Images {
            run: Some(Run {
                every_seconds: None,
                ..fresh().run.unwrap()
            }),
            ..fresh()
        };
        assert_eq!(name(unknown, 3 * HOUR), None);
        assert_eq!(name(unknown, 3 * HOUR + 1), Some("ProducerSilent"));
        // One that never ran is waited for from the mint on.
        let never = Images {
            minted_at_ms: 99 * HOUR as i64 * 1000,
            run: None,
            proved_at_ms: None,
            ..fresh()
        };
        assert_eq!(name(never, 2 * HOUR), None);
        assert_eq!(name(never, 2 * HOUR + 1), Some("ProducerSilent"));
    }

    #[test]
    fn an_image_that_is_old_or_far_behind_is_stale() {
        let running = |proved_at_ms: Option<i64>, now: u64| Images {
            run: Some(Run {
                at_ms: (100 * HOUR + now) as i64 * 1000,
                every_seconds: None,
            }),
            proved_at_ms,
            ..fresh()
        };
        let proved = fresh().proved_at_ms;
        assert_eq!(name(running(proved, 24 * HOUR), 24 * HOUR), None);
        let late = 24 * HOUR + 1;
        assert_eq!(name(running(proved, late), late), Some("SnapshotStale"));
        assert_eq!(name(running(None, 0), 0), Some("SnapshotStale"));
        let far = Images {
            log_after_bytes: Some(11),
            ..fresh()
        };
        assert_eq!(name(far, 0), Some("SnapshotStale"));
        // There is nothing newer, however old it is.
        let newest = Images {
            is_newest: true,
            ..running(proved, late)
        };
        assert_eq!(name(newest, late), None);
        // Somebody else's clock is ahead.
        assert_eq!(name(running(proved, HOUR), 0), None);
    }
}
