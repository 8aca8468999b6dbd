use rindle_proto::ids::{Epoch, Lsn, SegmentNo, Seq, Timeline};
use serde_json::json;

use super::*;

const ID: &str = "01ARZ3NDEKTSV4RRFFQ69G5FAV";

/// A source with which all is well, everything asked.
fn well() -> Status {
    let generation = GenerationStatus {
        id: ID.parse().unwrap(),
        current: true,
        slot: "rindle_app_x".to_owned(),
        publication: "rindle_app".to_owned(),
        posture: "fencing".to_owned(),
        minted_at_ms: 1,
        all: vec![ID.parse().unwrap()],
    };
    let slot = SlotStatus {
        name: "rindle_app_x".to_owned(),
        exists: true,
        active: true,
        confirmed_flush: Some(Lsn(100)),
        unacknowledged_bytes: Some(20),
        retained_bytes: Some(30),
        wal_status: Some("reserved".to_owned()),
        safe_wal_bytes: None,
        lost: None,
    };
    let archive = ArchiveStatus {
        segment: SegmentNo(3),
        epoch: Epoch(1),
        timeline: Timeline(1),
        frame: Seq(9),
        last_commit_lsn: Some(Lsn(90)),
        through_lsn: Lsn(100),
        made_at_ms: Some(2),
    };
    Status {
        source: "app".parse().unwrap(),
        generation: Some(generation),
        postgres: Some(PostgresStatus {
            version: "15.18".to_owned(),
            wal_end: Lsn(120),
            database: "d".to_owned(),
        }),
        slot: Some(slot),
        gateway: Some(json!({"ready": true, "phase": "streaming", "generation": ID})),
        archive: Some(archive),
        images: Some(vec![]),
        followers: Some(Followers { attached: 2 }),
        backfills: Some(vec![]),
        why: BTreeMap::new(),
        verdict: Verdict::default(),
    }
}

/// The reason of the verdict after `change`; `ok` when all is well.
fn reason(change: impl FnOnce(&mut Status)) -> String {
    let mut status = well();
    change(&mut status);
    let verdict = verdict::verdict(&status);
    assert_eq!(verdict.ok, verdict.reason.is_none());
    assert_eq!(verdict.ok, verdict.next_step.is_none());
    assert!(!verdict.sentence.is_empty());
    verdict.reason.unwrap_or_else(|| "ok".to_owned())
}

fn unknown(status: &mut Status, part: &'static str, why: &str) {
    status.why.insert(part, why.to_owned());
    match part {
        "generation" => status.generation = None,
        "postgres" => (status.postgres, status.slot) = (None, None),
        "gateway" => (status.gateway, status.followers) = (None, None),
        _ => status.archive = None,
    }
}

#[test]
fn all_is_well_whoever_was_asked() {
    assert_eq!(reason(|_| {}), "ok");
    assert_eq!(
        reason(|status| unknown(status, "gateway", GATEWAY_NOT_ASKED)),
        "ok"
    );
    assert_eq!(
        reason(|status| unknown(status, "postgres", POSTGRES_NOT_ASKED)),
        "ok"
    );
}

#[test]
fn the_worst_thing_is_told_first() {
    assert_eq!(
        reason(|status| unknown(status, "generation", NOT_MINTED)),
        "NotMinted"
    );
    assert_eq!(
        reason(|status| unknown(status, "generation", "denied")),
        "ArchiveUnreadable"
    );
    assert_eq!(
        reason(|status| unknown(status, "archive", "denied")),
        "ArchiveUnreadable"
    );
    assert_eq!(
        reason(|status| unknown(status, "gateway", "refused")),
        "GatewayUnreachable"
    );
    assert_eq!(
        reason(|status| unknown(status, "postgres", "refused")),
        "PostgresUnreachable"
    );
    let halted = "SlotMissing: slot \"s\" does not exist on the source; mint a new generation";
    let halted = json!({"ready": false, "phase": "halted", "generation": ID, "reason": halted});
    assert_eq!(
        reason(|status| status.gateway = Some(halted.clone())),
        "SlotMissing"
    );
    assert_eq!(
        reason(|status| status.gateway = Some(json!({}))),
        "OtherGeneration"
    );
}

#[test]
fn trouble_with_the_slot_is_named() {
    let slot = |change: fn(&mut SlotStatus)| reason(|status| change(status.slot.as_mut().unwrap()));
    assert_eq!(slot(|slot| slot.exists = false), "SlotMissing");
    assert_eq!(
        slot(|slot| slot.lost = Some("wal_removed".to_owned())),
        "SlotLost"
    );
    assert_eq!(
        slot(|slot| slot.confirmed_flush = Some(Lsn(101))),
        "ArchiveBehindSlot"
    );
    assert_eq!(
        slot(|slot| slot.wal_status = Some("unreserved".to_owned())),
        "SlotAtRisk"
    );
    let idle = |status: &mut Status| {
        unknown(status, "gateway", GATEWAY_NOT_ASKED);
        status.slot.as_mut().unwrap().active = false;
    };
    assert_eq!(reason(idle), "NoGateway");
}

#[test]
fn a_generation_that_was_just_minted_waits_for_its_first_copy() {
    let minted = |status: &mut Status| {
        status.archive.as_mut().unwrap().last_commit_lsn = None;
        status.slot.as_mut().unwrap().exists = false;
    };
    assert_eq!(reason(minted), "FirstCopy");
}

#[test]
fn the_document_is_pinned() {
    let document = json!(well());
    let keys: Vec<&String> = document.as_object().unwrap().keys().collect();
    let wanted = [
        "archive",
        "backfills",
        "followers",
        "gateway",
        "generation",
        "images",
        "postgres",
        "slot",
        "source",
        "verdict",
        "why",
    ];
    assert_eq!(keys, wanted);
    let verdict: Vec<&String> = document["verdict"].as_object().unwrap().keys().collect();
    assert_eq!(verdict, ["nextStep", "ok", "reason", "sentence"]);
    assert_eq!(document["slot"]["confirmedFlush"], "0/64");
    assert_eq!(document["archive"]["throughLsn"], "0/64");
}
