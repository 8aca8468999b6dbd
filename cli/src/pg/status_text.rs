//! The one screen of `rindle pg status`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use indicatif::{HumanBytes, HumanDuration};
use rindle_gateway::lifecycle::status::{
    ArchiveStatus, GenerationStatus, ImageStatus, PostgresStatus, SlotStatus, Status,
};
use rindle_proto::ids::Lsn;
use serde_json::Value;

/// A line for each part, and the verdict.
pub(super) fn screen(status: &Status) -> String {
    let parts = [
        ("generation", status.generation.as_ref().map(generation)),
        ("postgres", status.postgres.as_ref().map(postgres)),
        ("slot", status.slot.as_ref().map(slot)),
        ("gateway", status.gateway.as_ref().map(gateway)),
        ("archive", status.archive.as_ref().map(archive)),
        ("images", status.images.as_deref().map(images)),
        (
            "followers",
            status
                .followers
                .map(|followers| format!("{} attached", followers.attached)),
        ),
        (
            "backfills",
            status.backfills.as_ref().map(|all| count(all.len())),
        ),
    ];
    let mut lines = vec![format!("source      {}", status.source)];
    for (part, known) in parts {
        let why = || {
            format!(
                "unknown: {}",
                status.why.get(part).map_or("", String::as_str)
            )
        };
        lines.push(format!("{part:<11} {}", known.unwrap_or_else(why)));
    }
    lines.push(format!("\n{}", status.verdict.sentence));
    lines.extend(
        status
            .verdict
            .next_step
            .iter()
            .map(|next| format!("next: {next}")),
    );
    lines.join("\n")
}

fn generation(of: &GenerationStatus) -> String {
    let mark = if of.current { "current" } else { "not current" };
    let others = match of.all.len() - 1 {
        0 => String::new(),
        others => format!(", {others} more"),
    };
    format!(
        "{} ({mark}{others}), publication {}, posture {}",
        of.id, of.publication, of.posture
    )
}

fn postgres(server: &PostgresStatus) -> String {
    format!(
        "{}, database {}, WAL ends at {}",
        server.version, server.database, server.wal_end
    )
}

fn slot(slot: &SlotStatus) -> String {
    if !slot.exists {
        return format!("{} does not exist", slot.name);
    }
    let used = if slot.active { "in use" } else { "not in use" };
    let mut words = vec![format!("{} {used}", slot.name)];
    words.extend(
        slot.confirmed_flush
            .map(|lsn| format!("acknowledged {lsn}")),
    );
    words.extend(
        slot.unacknowledged_bytes
            .map(|bytes| format!("{} behind", HumanBytes(bytes))),
    );
    words.extend(
        slot.retained_bytes
            .map(|bytes| format!("keeps {} of WAL", HumanBytes(bytes))),
    );
    words.extend(slot.wal_status.clone());
    words.extend(slot.lost.as_ref().map(|why| format!("LOST: {why}")));
    words.join(", ")
}

fn gateway(said: &Value) -> String {
    let word = |key: &str| said[key].as_str().unwrap_or("?").to_owned();
    let unshipped = HumanBytes(said["unshippedBytes"].as_u64().unwrap_or(0));
    let mut words = vec![
        word("phase"),
        format!("received {}", word("received")),
        format!("archived {}", word("archived")),
        format!("acknowledged {}", word("acked")),
        format!("{unshipped} wait for the archive"),
    ];
    words.extend(said["reason"].as_str().map(str::to_owned));
    words.join(", ")
}

fn archive(log: &ArchiveStatus) -> String {
    let (segment, frame, through) = (log.segment, log.frame, log.through_lsn);
    let copy = log
        .last_commit_lsn
        .map_or(", first copy not complete", |_lsn| "");
    let age = log
        .made_at_ms
        .map(|at| format!(", written {} ago", age(at)));
    format!(
        "object {segment}, frame {frame}, whole up to {through}{}{copy}",
        age.unwrap_or_default()
    )
}

fn images(images: &[ImageStatus]) -> String {
    let about = |image: &ImageStatus| {
        let (at, age): (Lsn, _) = (image.base_lsn, age(image.created_at_ms));
        format!("at {at}, {age} old")
    };
    match (images.first(), images.iter().find(|image| image.verified)) {
        (None, _) => count(0),
        (Some(_), Some(proved)) => format!("{}, newest proved {}", images.len(), about(proved)),
        (Some(newest), None) => format!("{}, none proved, newest {}", images.len(), about(newest)),
    }
}

fn count(items: usize) -> String {
    match items {
        0 => "none".to_owned(),
        items => items.to_string(),
    }
}

/// Age by this machine's clock; nothing for a moment in the future.
fn age(at_ms: i64) -> HumanDuration {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let at = Duration::from_millis(u64::try_from(at_ms).unwrap_or(0));
    HumanDuration(now.saturating_sub(at))
}
