//! The one screen of `rindle pg status`.

use std::time::Duration;

use indicatif::{HumanBytes, HumanDuration};
use rindle_gateway::fanout::FollowerView;
use rindle_gateway::lag::Waiting;
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
        ("followers", status.followers.as_deref().map(followers)),
        ("backfills", status.backfills.as_deref().map(backfills)),
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
    for (part, key) in [("not mirrored", "unmirrored"), ("capture", "capture")] {
        let told = status.gateway.as_ref().map(|said| &said[key]);
        for one in told.and_then(Value::as_array).into_iter().flatten() {
            let words = match one.as_array() {
                Some(pair) => pair
                    .iter()
                    .filter_map(Value::as_str)
                    .collect::<Vec<_>>()
                    .join(": "),
                None => one.as_str().unwrap_or_default().to_owned(),
            };
            lines.push(format!("{part:<11} {words}"));
        }
    }
    lines.extend(
        status
            .standby
            .as_ref()
            .map(|standby| format!("{:<11} {}", "standby", standby.sentence)),
    );
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

fn backfills(all: &[Value]) -> String {
    let one = |it: &Value| {
        let tables = it["tables"].as_array().into_iter().flatten();
        let tables: Vec<&str> = tables.filter_map(Value::as_str).collect();
        let number = |key: &str| it[key].as_u64().unwrap_or(0);
        let (rows, bytes) = (number("rows"), HumanBytes(number("bytes")));
        let waiting = it["waiting"]
            .as_str()
            .map_or_else(String::new, |why| format!(", {why}"));
        format!("{}: {rows} rows, {bytes}{waiting}", tables.join(", "))
    };
    match all.is_empty() {
        true => count(0),
        false => all.iter().map(one).collect::<Vec<_>>().join("; "),
    }
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
    words.extend(
        slot.seconds_left
            .map(|left| format!("at the present rate lost in {}", duration(left))),
    );
    words.extend(slot.lost.as_ref().map(|why| format!("LOST: {why}")));
    words.join(", ")
}

fn gateway(said: &Value) -> String {
    let word = |key: &str| said[key].as_str().unwrap_or("?").to_owned();
    let hop = |name: &str, hop: &str| {
        let waiting: Option<Waiting> = serde_json::from_value(said["lag"][hop].clone()).ok();
        format!("{name} {} ({})", word(hop), lag(waiting))
    };
    let mut words = vec![
        word("phase"),
        hop("received", "received"),
        hop("archived", "archived"),
        hop("acknowledged", "acked"),
    ];
    words.extend(said["reason"].as_str().map(str::to_owned));
    words.join(", ")
}

fn lag(waiting: Option<Waiting>) -> String {
    let told =
        |Waiting { bytes, seconds }| format!("{} and {seconds:.1} s behind", HumanBytes(bytes));
    waiting.map_or("lag unknown".to_owned(), told)
}

fn followers(all: &[FollowerView]) -> String {
    let line = |follower: &FollowerView| {
        let FollowerView { name, seq, .. } = follower;
        let peer = follower.peer.as_ref().filter(|peer| *peer != name);
        let peer = peer.map(|peer| format!(" ({peer})")).unwrap_or_default();
        let through = follower.through.map(|lsn| format!(", whole up to {lsn}"));
        let why = follower.why.as_ref().map(|why| format!(": {why}"));
        format!(
            "\n{:<11} {name}{peer} was sent frame {seq}{}, {}{}",
            "",
            through.unwrap_or_default(),
            lag(follower.lag),
            why.unwrap_or_default()
        )
    };
    let lines: String = all.iter().map(line).collect();
    format!("{} attached{lines}", all.len())
}

fn archive(log: &ArchiveStatus) -> String {
    let (segment, frame, through) = (log.segment, log.frame, log.through_lsn);
    let copy = log
        .last_commit_lsn
        .map_or(", first copy not complete", |_lsn| "");
    let age = log
        .age_seconds
        .map(|age| format!(", written {} ago", duration(age)));
    let bytes = log.bytes.map(|bytes| format!(" of {}", HumanBytes(bytes)));
    let proof = match &log.verification {
        Some(found) => format!(", scrubbed: {found}"),
        None => ", not scrubbed".to_owned(),
    };
    format!(
        "{} objects{}, last {segment} with frame {frame}, whole up to {through}{}{copy}{proof}",
        log.segments,
        bytes.unwrap_or_default(),
        age.unwrap_or_default()
    )
}

fn images(images: &[ImageStatus]) -> String {
    let about = |image: &ImageStatus| {
        let (at, age): (Lsn, _) = (image.base_lsn, duration(image.age_seconds));
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

fn duration(seconds: u64) -> HumanDuration {
    HumanDuration(Duration::from_secs(seconds))
}
