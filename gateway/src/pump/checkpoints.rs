//! Keeps what is believed in the archive, so that a start reads only the end of the log.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rindle_archive::Log;
use rindle_proto::ids::Position;

use crate::ddl::Believed;
use crate::live::{Durable, Live};
use crate::session::belief::checkpoint;
use crate::ship::chain;

/// While nothing changes, a checkpoint is made each time this much was archived, or the archive moved after this time:
/// retention keeps the log from the newest ones on.
const EVERY_BYTES: u64 = 256 << 20;
const EVERY: Duration = Duration::from_secs(3600);

/// Makes checkpoints until dropped.
pub(super) async fn run(archive: Log, live: Arc<Live>) {
    let mut beliefs = live.beliefs();
    let mut durable = live.durable();
    // Of the last checkpoint that this session made, or began with.
    let mut last: Option<(Position, u64, Instant)> = None;
    loop {
        let belief = beliefs.borrow_and_update().clone();
        let now = *durable.borrow_and_update();
        if let Some(belief) = belief.filter(|belief| belief.offset <= now.mark.offset) {
            let changed = last.is_none_or(|(position, ..)| position.seq < belief.position.seq);
            let far = last.is_some_and(|(_, offset, made)| {
                let moved = now.mark.offset.saturating_sub(offset);
                moved >= EVERY_BYTES || moved > 0 && made.elapsed() >= EVERY
            });
            let at = match (changed, far) {
                (true, _) => Some(belief.position),
                (false, true) => commit_at(&now),
                (false, false) => None,
            };
            if let Some(at) = at
                && keep(&archive, at, &belief.believed).await
            {
                last = Some((at, now.mark.offset, Instant::now()));
            }
        }
        tokio::select! {
            changed = beliefs.changed() => if changed.is_err() { return },
            changed = durable.changed() => if changed.is_err() { return },
        }
    }
}

/// The archived end of the log, where it is a commit.
fn commit_at(durable: &Durable) -> Option<Position> {
    let commit = durable.mark.last_commit?.position;
    (commit == durable.mark.position).then_some(commit)
}

/// Nothing rests on it: a start reads more of the log.
async fn keep(archive: &Log, at: Position, believed: &Believed) -> bool {
    let kept = archive.put_checkpoint(&checkpoint(at, believed)).await;
    if let Err(error) = &kept {
        tracing::warn!(
            error = chain(error),
            "no checkpoint of the schema; a start has to read more of the log"
        );
    }
    kept.is_ok()
}
