//! Moments at which a drill may kill a program. Compiled in always, so that what is drilled is what runs; a program
//! that was not asked to die pays one load of a static.
//!
//! `RINDLE_FAILPOINT=name` dies the first time the moment is reached, `name=3` the third time. Dying is an abort:
//! nothing is flushed, closed or told.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// After the fence, before anything of the stream is asked for.
pub const GATEWAY_FENCED: &str = "gateway.session.fenced";
/// The slot of a first copy exists, nothing was copied.
pub const GATEWAY_SLOT_CREATED: &str = "gateway.genesis.slot_created";
/// A part of a first copy is durable.
pub const GATEWAY_PART_DURABLE: &str = "gateway.copy.part_durable";
/// All parts are durable, Done is not in the log.
pub const GATEWAY_COPIED: &str = "gateway.genesis.copied";
/// Done is durable, nothing was acknowledged or served.
pub const GATEWAY_DONE_DURABLE: &str = "gateway.genesis.done_durable";
/// Frames are in the local log, the archive and followers do not have them.
pub const GATEWAY_APPENDED: &str = "gateway.pump.appended";
/// A segment is about to be written.
pub const GATEWAY_PUT: &str = "gateway.ship.put";
/// A segment is in the archive, the gateway does not know yet.
pub const GATEWAY_STORED: &str = "gateway.ship.stored";
/// The archive holds a segment, the slot was not told.
pub const GATEWAY_ARCHIVED: &str = "gateway.pump.archived";

/// Frames were received, the mirror has not begun with them.
pub const FOLLOWER_RECEIVED: &str = "follower.apply.received";
/// Transactions are applied in the open SQLite transaction.
pub const FOLLOWER_APPLIED: &str = "follower.apply.applied";
/// The SQLite commit is done, nobody was told.
pub const FOLLOWER_COMMITTED: &str = "follower.apply.committed";
/// An image is downloaded, its file not yet in place.
pub const FOLLOWER_IMAGE_FETCHED: &str = "follower.bootstrap.image_fetched";

/// The scratch mirror is level, no image was begun.
pub const PRODUCER_REPLAYED: &str = "producer.cycle.replayed";
/// The image file is made, nothing was uploaded.
pub const PRODUCER_IMAGE_MADE: &str = "producer.cycle.image_made";
/// The image is in the archive, not proved.
pub const PRODUCER_PUBLISHED: &str = "producer.cycle.published";

/// Every moment there is, for drills that go through all of them.
pub const ALL: [&str; 16] = [
    GATEWAY_FENCED,
    GATEWAY_SLOT_CREATED,
    GATEWAY_PART_DURABLE,
    GATEWAY_COPIED,
    GATEWAY_DONE_DURABLE,
    GATEWAY_APPENDED,
    GATEWAY_PUT,
    GATEWAY_STORED,
    GATEWAY_ARCHIVED,
    FOLLOWER_RECEIVED,
    FOLLOWER_APPLIED,
    FOLLOWER_COMMITTED,
    FOLLOWER_IMAGE_FETCHED,
    PRODUCER_REPLAYED,
    PRODUCER_IMAGE_MADE,
    PRODUCER_PUBLISHED,
];

struct Armed {
    name: String,
    left: AtomicU64,
}

/// Dies here if a drill asked for it.
pub fn reach(name: &str) {
    static ARMED: OnceLock<Option<Armed>> = OnceLock::new();
    let armed = ARMED.get_or_init(|| {
        std::env::var("RINDLE_FAILPOINT")
            .ok()
            .map(|text| parse(&text))
    });
    let Some(armed) = armed.as_ref().filter(|armed| armed.name == name) else {
        return;
    };
    if armed.left.fetch_sub(1, Ordering::Relaxed) == 1 {
        // Straight to stderr: a logger may buffer.
        eprintln!("failpoint {name} reached");
        std::process::abort();
    }
}

fn parse(text: &str) -> Armed {
    let (name, times) = text.split_once('=').unwrap_or((text, "1"));
    let left = times.parse().unwrap_or(1).max(1);
    Armed {
        name: name.to_owned(),
        left: AtomicU64::new(left),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_counts_are_read() {
        assert_eq!(parse("a.b").left.into_inner(), 1);
        assert_eq!(parse("a.b=3").left.into_inner(), 3);
        assert_eq!(parse("a.b=3").name, "a.b");
    }
}
