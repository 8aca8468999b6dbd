//! One sentence about a source: the worst thing that is known, and what to do about it. Pure.

use rindle_archive::freshness::Stale;
use serde::Serialize;
use serde_json::Value;

use super::{
    ArchiveStatus, GATEWAY_NOT_ASKED, GenerationStatus, NOT_MINTED, POSTGRES_NOT_ASKED, SlotStatus,
    Status,
};

/// One sentence.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Verdict {
    /// Nothing is wrong, as far as was looked.
    pub ok: bool,
    /// What is so.
    pub sentence: String,
    /// Stable name of what is wrong.
    pub reason: Option<String>,
    /// What to do about it.
    pub next_step: Option<String>,
}

impl Verdict {
    fn bad(reason: &str, sentence: impl Into<String>, next_step: impl Into<String>) -> Self {
        Self {
            ok: false,
            sentence: sentence.into(),
            reason: Some(reason.to_owned()),
            next_step: Some(next_step.into()),
        }
    }
}

/// The first thing that is wrong, with the time that is left for it.
pub(super) fn verdict(status: &Status, stale: Option<&Stale>) -> Verdict {
    let mut verdict = worst(status, stale);
    let left = status.slot.as_ref().and_then(|slot| slot.seconds_left);
    if let Some(left) = left.filter(|_| !verdict.ok) {
        verdict.sentence += &match left {
            0 => "; no time is left before Postgres drops the slot".to_owned(),
            left => format!(
                "; at the present rate Postgres drops the slot in {}",
                about(left)
            ),
        };
    }
    verdict
}

/// The first thing that is wrong, in the order in which an operator must mend them.
fn worst(status: &Status, stale: Option<&Stale>) -> Verdict {
    let Some(generation) = &status.generation else {
        return no_generation(status);
    };
    let Some(archive) = &status.archive else {
        return unreadable(status, "archive");
    };
    let slot = status.slot.as_ref();
    let wrong = slot.and_then(|slot| slot_trouble(slot, archive));
    let wrong = wrong.or_else(|| match &status.gateway {
        Some(said) => gateway_trouble(said, generation),
        None => silent_gateway(status),
    });
    let wrong = wrong
        .or_else(|| slot.and_then(at_risk))
        .or_else(|| unknown_postgres(status));
    wrong
        .or_else(|| first_copy(archive))
        .or_else(|| standby_not_ready(status))
        .or_else(|| stale.map(not_fresh))
        .unwrap_or_else(|| well(status, archive))
}

fn no_generation(status: &Status) -> Verdict {
    match status.why("generation") == NOT_MINTED {
        true => {
            let sentence = format!("source {} has no generation in this archive", status.source);
            Verdict::bad("NotMinted", sentence, "run rindle pg mint")
        }
        false => unreadable(status, "generation"),
    }
}

fn unreadable(status: &Status, part: &str) -> Verdict {
    let sentence = format!("the archive cannot be read: {}", status.why(part));
    let next = "look at the store; nothing is acknowledged meanwhile, and nothing is lost";
    Verdict::bad("ArchiveUnreadable", sentence, next)
}

fn slot_trouble(slot: &SlotStatus, archive: &ArchiveStatus) -> Option<Verdict> {
    let name = &slot.name;
    let mint = "mint a new generation";
    if let Some(why) = &slot.lost {
        let sentence = format!("slot {name:?} was invalidated by Postgres ({why})");
        return Some(Verdict::bad("SlotLost", sentence, mint));
    }
    // Before its first copy is complete a generation has no slot that counts: the gateway makes it anew.
    archive.last_commit_lsn?;
    let through = archive.through_lsn;
    match (slot.exists, slot.confirmed_flush) {
        (false, _) => {
            let sentence = format!("slot {name:?} does not exist on the source");
            Some(Verdict::bad("SlotMissing", sentence, mint))
        }
        (true, Some(confirmed)) if confirmed > through => {
            let sentence = format!(
                "slot {name:?} is acknowledged up to {confirmed}, the archive ends at {through}"
            );
            Some(Verdict::bad("ArchiveBehindSlot", sentence, mint))
        }
        (true, _) => None,
    }
}

fn gateway_trouble(said: &Value, generation: &GenerationStatus) -> Option<Verdict> {
    let word = |key: &str| said[key].as_str().unwrap_or_default();
    let (serves, reason) = (word("generation"), word("reason"));
    if serves != generation.id.to_string() {
        let sentence = format!(
            "the gateway serves generation {serves}, current is {}",
            generation.id
        );
        let next = "restart the gateway, or ask the one of this generation";
        return Some(Verdict::bad("OtherGeneration", sentence, next));
    }
    if said["ready"].as_bool() == Some(true) {
        return None;
    }
    Some(match word("phase") {
        // A halt reason is `Name: what is so; the next step`.
        "halted" => {
            let name = reason.split(':').next().unwrap_or("Halted");
            let next = reason.rsplit(';').next().unwrap_or(reason).trim();
            Verdict::bad(name, format!("the gateway is halted: {reason}"), next)
        }
        "copying" => Verdict::bad("FirstCopy", reason, "wait; the copy goes on by itself"),
        "standby" => Verdict::bad("Standby", reason, "ask the gateway that is at work"),
        phase => {
            let sentence = format!("the gateway is not ready ({phase}): {reason}");
            Verdict::bad(
                "GatewayNotReady",
                sentence,
                "wait; it tries again by itself",
            )
        }
    })
}

/// A gateway that was asked and did not answer, or that nobody asked and that does not hold its slot.
fn silent_gateway(status: &Status) -> Option<Verdict> {
    let why = status.why("gateway");
    if why != GATEWAY_NOT_ASKED {
        let sentence = format!("the gateway does not answer: {why}");
        return Some(Verdict::bad(
            "GatewayUnreachable",
            sentence,
            "start it, or look at its log",
        ));
    }
    let idle = status.slot.as_ref().filter(|slot| !slot.active)?;
    let sentence = format!("no gateway is at work: slot {:?} is not in use", idle.name);
    Some(Verdict::bad(
        "NoGateway",
        sentence,
        "start rindle-pg-gateway",
    ))
}

/// A slot keeps more than a server has WAL for by itself, and there is a limit to that. Without a limit it is no risk to
/// the slot.
fn at_risk(slot: &SlotStatus) -> Option<Verdict> {
    let when = match (slot.wal_status.as_deref(), slot.safe_wal_bytes) {
        (Some("unreserved"), _) => "at its next checkpoint".to_owned(),
        (Some("extended"), Some(safe)) => format!("after {safe} more"),
        (_, _) => return None,
    };
    let kept = slot.retained_bytes.unwrap_or(0);
    let sentence = format!(
        "Postgres keeps {kept} bytes of WAL for slot {:?} and may drop it {when}",
        slot.name
    );
    let next = "let the gateway catch up, or raise max_slot_wal_keep_size now";
    Some(Verdict::bad("SlotAtRisk", sentence, next))
}

/// Postgres was asked and did not answer.
fn unknown_postgres(status: &Status) -> Option<Verdict> {
    let why = status.why("postgres");
    let asked = status.postgres.is_none() && why != POSTGRES_NOT_ASKED;
    asked.then(|| {
        let sentence = format!("Postgres does not answer: {why}");
        Verdict::bad("PostgresUnreachable", sentence, "look at the server")
    })
}

fn first_copy(archive: &ArchiveStatus) -> Option<Verdict> {
    archive.last_commit_lsn.is_none().then(|| {
        let next = "start rindle-pg-gateway, or wait for it";
        Verdict::bad("FirstCopy", "the first copy is not complete", next)
    })
}

/// A time in the largest unit that leaves two or more of it.
fn about(seconds: u64) -> String {
    let units = [(86_400, "days"), (3_600, "h"), (60, "min")];
    let unit = units.into_iter().find(|(unit, _)| seconds >= 2 * unit);
    let (unit, name) = unit.unwrap_or((1, "s"));
    format!("about {} {name}", seconds / unit)
}

fn standby_not_ready(status: &Status) -> Option<Verdict> {
    let standby = status.standby.as_ref().filter(|standby| !standby.ready)?;
    let next = standby.next_step.clone().unwrap_or_default();
    Some(Verdict::bad("StandbyNotReady", &*standby.sentence, next))
}

fn not_fresh(stale: &Stale) -> Verdict {
    let next = match stale {
        Stale::ProducerSilent { .. } => "look at the producer's last line, and at what starts it",
        Stale::SnapshotStale { .. } => "run rindle backup producer, and more often",
    };
    Verdict::bad(stale.name(), stale.sentence(), next)
}

fn well(status: &Status, archive: &ArchiveStatus) -> Verdict {
    let source = &status.source;
    let sentence = match (&status.postgres, &status.gateway) {
        (Some(postgres), _) => {
            let behind = postgres.wal_end.bytes_since(archive.through_lsn);
            format!("source {source} is mirrored; the archive is {behind} bytes of WAL behind it")
        }
        (None, Some(said)) => {
            let unshipped = said
                .get("unshippedBytes")
                .and_then(Value::as_u64)
                .unwrap_or(0);
            format!("source {source} is mirrored; {unshipped} bytes wait for the archive")
        }
        (None, None) => format!(
            "the archive of source {source} is whole up to {}; neither Postgres nor the gateway was asked",
            archive.through_lsn
        ),
    };
    Verdict {
        ok: true,
        sentence,
        reason: None,
        next_step: None,
    }
}
