//! What is kept and what goes. Pure.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rindle_proto::ids::{SegmentNo, Seq};

/// What is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// So many of the newest images.
    pub newest: usize,
    /// The newest image of each of so many days.
    pub days: u64,
    /// Nothing goes before it was dispensable for so long.
    pub grace: Duration,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            newest: 3,
            days: 7,
            grace: Duration::from_secs(3600),
        }
    }
}

/// An image, and when what of it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Aged {
    pub(super) id: String,
    pub(super) base: Seq,
    pub(super) segment: SegmentNo,
    pub(super) published: SystemTime,
    /// When it was made, by its maker's clock: a copy of the archive has other times, and the same days.
    pub(super) made: SystemTime,
    pub(super) proved: Option<SystemTime>,
}

/// What one pass does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) kept: BTreeSet<String>,
    /// Of the kept and proved ones that with the highest base.
    pub(super) best: Option<String>,
    /// The log up to here goes.
    pub(super) boundary: Option<SegmentNo>,
    /// Images that go.
    pub(super) dropped: Vec<String>,
}

const DAY: u64 = 24 * 3600;

/// `images` come highest base first; ages are of one clock.
pub(super) fn plan(
    now: SystemTime,
    rules: Rules,
    images: &[Aged],
    pinned: &BTreeSet<String>,
) -> Plan {
    let proved = || images.iter().filter(|image| image.proved.is_some());
    let day = |time: SystemTime| {
        time.duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs()
            / DAY
    };
    let is_old = |time: SystemTime| now.duration_since(time).is_ok_and(|age| age >= rules.grace);
    let today = day(now);
    let newest = proved().take(rules.newest.max(1));
    let daily = (0..rules.days).filter_map(|back| {
        let wanted = today.checked_sub(back)?;
        proved().find(|image| day(image.made.min(image.published)) == wanted)
    });
    let pinned = images.iter().filter(|image| pinned.contains(&image.id));
    let kept: BTreeSet<String> = newest
        .chain(daily)
        .chain(pinned)
        .map(|image| image.id.clone())
        .collect();
    let is_kept = |image: &&Aged| kept.contains(&image.id);
    // The log goes behind images that were proved a while ago: what was proved just now may still be looked at.
    let lowest = images
        .iter()
        .filter(is_kept)
        .map(|image| image.segment)
        .min();
    let settled = proved()
        .filter(is_kept)
        .any(|image| image.proved.is_some_and(is_old));
    let boundary = lowest
        .filter(|_| settled)
        .map(|lowest| SegmentNo(lowest.0.saturating_sub(1)));
    let best = proved().find(is_kept);
    let goes = |image: &&Aged| {
        !is_kept(image)
            && is_old(image.published)
            && best.is_some_and(|best| best.base > image.base)
    };
    let dropped = images
        .iter()
        .filter(goes)
        .map(|image| image.id.clone())
        .collect();
    Plan {
        best: best.map(|image| image.id.clone()),
        kept,
        boundary: boundary.filter(|boundary| boundary.0 > 0),
        dropped,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(hours: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1_000 * DAY + hours * 3600)
    }

    /// An image an hour, each proved at once; the n-th has base n and segment n * 10.
    fn images(hours: impl IntoIterator<Item = u64>) -> Vec<Aged> {
        let image = |hour: u64| Aged {
            id: hour.to_string(),
            base: Seq(hour),
            segment: SegmentNo(hour * 10),
            published: at(hour),
            made: at(hour),
            proved: Some(at(hour)),
        };
        let mut images: Vec<Aged> = hours.into_iter().map(image).collect();
        images.sort_by_key(|image| std::cmp::Reverse(image.base));
        images
    }

    fn kept(plan: &Plan) -> Vec<u64> {
        let mut kept: Vec<u64> = plan.kept.iter().map(|id| id.parse().unwrap()).collect();
        kept.sort_unstable();
        kept
    }

    #[test]
    fn the_newest_and_one_of_each_day_stay() {
        let none = BTreeSet::new();
        let found = plan(at(250), Rules::default(), &images(1..=250), &none);
        // Days begin at 0, 24, …, 240: the last of each of the six before today, and today's last three.
        assert_eq!(kept(&found), [119, 143, 167, 191, 215, 239, 248, 249, 250]);
        assert_eq!(found.boundary, Some(SegmentNo(1189)));
        assert_eq!(found.dropped.len(), 250 - 9);
        // Once more, with what is left: nothing changes.
        let left = images(kept(&found));
        let again = plan(at(250), Rules::default(), &left, &none);
        assert_eq!((again.boundary, again.dropped.len()), (found.boundary, 0));
    }

    #[test]
    fn nothing_goes_before_its_hour_and_without_a_proof() {
        let none = BTreeSet::new();
        let rules = Rules {
            newest: 1,
            days: 1,
            ..Rules::default()
        };
        let mut two = images([1, 2]);
        let just = |minutes: u64| at(2) + Duration::from_secs(minutes * 60);
        let found = plan(just(59), rules, &two, &none);
        assert_eq!((found.boundary, found.dropped.len()), (None, 1));
        let found = plan(just(60), rules, &two, &none);
        assert_eq!(found.boundary, Some(SegmentNo(19)));
        // The newer one is not proved: it counts for nothing, and stays.
        two[0].proved = None;
        let found = plan(at(9), rules, &two, &none);
        assert_eq!(
            (kept(&found), found.boundary),
            (vec![1], Some(SegmentNo(9)))
        );
        assert_eq!(found.dropped, Vec::<String>::new());
        two[1].proved = None;
        let found = plan(at(9), rules, &two, &none);
        assert_eq!(found, Plan::default());
    }

    #[test]
    fn what_is_reserved_stays_with_its_log() {
        let rules = Rules {
            newest: 1,
            days: 0,
            ..Rules::default()
        };
        let pinned = BTreeSet::from(["3".to_owned()]);
        let found = plan(at(99), rules, &images(1..=9), &pinned);
        assert_eq!(
            (kept(&found), found.boundary),
            (vec![3, 9], Some(SegmentNo(29)))
        );
    }

    #[test]
    fn a_copy_of_the_archive_keeps_its_days() {
        let mut copied = images(1..=250);
        for image in &mut copied {
            image.published = at(249);
            image.proved = Some(at(249));
        }
        let found = plan(at(250), Rules::default(), &copied, &BTreeSet::new());
        assert_eq!(kept(&found), [119, 143, 167, 191, 215, 239, 248, 249, 250]);
    }

    /// A clock that was set back makes everything young, and one ahead only the days wrong.
    #[test]
    fn images_of_the_future_are_kept() {
        let found = plan(
            at(1),
            Rules::default(),
            &images(100..=120),
            &BTreeSet::new(),
        );
        assert_eq!((found.boundary, found.dropped.len()), (None, 0));
    }
}
