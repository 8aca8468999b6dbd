//! When a new mirror may take the place of the one that is served. Readers must not see the source go back, so the new
//! one first comes as far as the old one is. Pure: the clock is an argument.

use std::time::{Duration, Instant};

use rindle_proto::ids::Lsn;

use crate::mirror::Cursor;

/// A new mirror that has everything there is and still is behind the old one after this long will never come as far:
/// its source was set back.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
pub(crate) struct Reveal {
    /// Last commit of the mirror that is served; none when none is.
    floor: Option<Lsn>,
    /// Everything up to here was applied.
    through: Lsn,
    /// Since when it has everything there is.
    level_since: Option<Instant>,
}

impl Reveal {
    /// For a mirror beside one that shows `floor`.
    pub(crate) fn beside(floor: Option<Lsn>) -> Self {
        Self {
            floor,
            ..Self::default()
        }
    }

    /// Everything up to `through` was applied.
    pub(crate) fn progress(&mut self, through: Lsn) {
        if through > self.through {
            // It comes on: a gateway that catches up is level all the time.
            self.level_since = None;
        }
        self.through = self.through.max(through);
    }

    /// There is nothing more at present.
    pub(crate) fn level(&mut self, now: Instant) {
        self.level_since.get_or_insert(now);
    }

    /// True when a complete mirror that stands at `cursor` may be served.
    pub(crate) fn allows(&self, cursor: &Cursor, now: Instant) -> bool {
        let Some(floor) = self.floor else { return true };
        let at = cursor.end_lsn.0.max(self.through);
        if at >= floor {
            return true;
        }
        let set_back = self
            .level_since
            .is_some_and(|since| now.duration_since(since) >= PATIENCE);
        if set_back {
            tracing::warn!(%floor, %at, "the new mirror stays behind the one that is served; the source was set back");
        }
        set_back
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rindle_proto::ids::{EndLsn, Generation};

    fn at(lsn: u64) -> Cursor {
        Cursor {
            end_lsn: EndLsn(Lsn(lsn)),
            ..Cursor::start(Generation::from_bytes([1; 16]))
        }
    }

    #[test]
    fn readers_never_see_the_source_go_back() {
        let now = Instant::now();
        assert!(Reveal::beside(None).allows(&at(0), now));
        let mut reveal = Reveal::beside(Some(Lsn(100)));
        assert!(!reveal.allows(&at(99), now));
        assert!(reveal.allows(&at(100), now));
        // A quiet source commits nothing, and is known to have come as far.
        reveal.progress(Lsn(100));
        assert!(reveal.allows(&at(50), now));
    }

    #[test]
    fn a_source_that_was_set_back_is_shown_in_the_end() {
        let now = Instant::now();
        let mut reveal = Reveal::beside(Some(Lsn(100)));
        reveal.level(now);
        reveal.level(now + PATIENCE / 2);
        assert!(!reveal.allows(&at(50), now + PATIENCE / 2));
        // As long as it comes on it is waited for.
        reveal.progress(Lsn(60));
        reveal.level(now + PATIENCE / 2);
        assert!(!reveal.allows(&at(60), now + PATIENCE));
        assert!(reveal.allows(&at(60), now + PATIENCE * 2));
    }
}
