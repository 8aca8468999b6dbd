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
        wal_bytes_per_second: None,
        seconds_left: None,
        lost: None,
    };
    let archive = ArchiveStatus {
        segments: 3,
        bytes: None,
        segment: SegmentNo(3),
        epoch: Epoch(1),
        timeline: Timeline(1),
        frame: Seq(9),
        last_commit_lsn: Some(Lsn(90)),
        through_lsn: Lsn(100),
        made_at_ms: Some(2),
        age_seconds: Some(5),
        verification: None,
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
        gateway: Some(gateway()),
        archive: Some(archive),
        images: Some(vec![ImageStatus {
            id: "i".to_owned(),
            base_lsn: Lsn(80),
            frame: Seq(8),
            stored_bytes: 1000,
            verified: true,
            created_at_ms: 1,
            age_seconds: 6,
        }]),
        followers: followers(Some(&gateway())).ok(),
        standby: None,
        backfills: Some(vec![]),
        why: BTreeMap::new(),
        verdict: Verdict::default(),
    }
}

/// What a gateway says that streams, with a follower at the head and one in the archive.
fn gateway() -> Value {
    json!({
        "ready": true,
        "phase": "streaming",
        "generation": ID,
        "followers": [
            {"name": "near", "peer": "10.0.0.7:4242", "seq": 9, "through": "0/64",
             "lag": {"bytes": 0, "seconds": 0.0}},
            {"name": "far", "peer": null, "seq": 2, "through": null,
             "lag": null, "why": "it reads the archived tail"},
        ],
    })
}

/// The reason of the verdict after `change`; `ok` when all is well.
fn reason(change: impl FnOnce(&mut Status)) -> String {
    let mut status = well();
    change(&mut status);
    let verdict = verdict::verdict(&status, None);
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
    // Beyond max_wal_size is a risk where there is a limit to it.
    assert_eq!(
        slot(|slot| slot.wal_status = Some("extended".to_owned())),
        "ok"
    );
    let limited = |slot: &mut SlotStatus| {
        slot.wal_status = Some("extended".to_owned());
        slot.safe_wal_bytes = Some(1000);
    };
    assert_eq!(slot(limited), "SlotAtRisk");
    let idle = |status: &mut Status| {
        unknown(status, "gateway", GATEWAY_NOT_ASKED);
        status.slot.as_mut().unwrap().active = false;
    };
    assert_eq!(reason(idle), "NoGateway");
}

#[test]
fn trouble_comes_with_the_time_that_is_left() {
    let sentence = |left, change: fn(&mut Status)| {
        let mut status = well();
        let slot = status.slot.as_mut().unwrap();
        (slot.safe_wal_bytes, slot.seconds_left) = (Some(1000), left);
        change(&mut status);
        verdict::verdict(&status, None).sentence
    };
    let away = |status: &mut Status| unknown(status, "gateway", "refused");
    for (left, words) in [
        (Some(119), "drops the slot in about 119 s"),
        (Some(120), "drops the slot in about 2 min"),
        (Some(7200), "drops the slot in about 2 h"),
        (Some(200_000), "drops the slot in about 2 days"),
        (Some(0), "no time is left before Postgres drops the slot"),
    ] {
        let told = sentence(left, away);
        assert!(told.ends_with(words), "{told}");
    }
    assert!(!sentence(None, away).contains("drops the slot"));
    // A limit that is far away troubles nobody.
    assert!(!sentence(Some(7200), |_| {}).contains("drops the slot"));
}

#[test]
fn followers_of_another_version_are_unknown() {
    assert_eq!(followers(Some(&gateway())).unwrap().len(), 2);
    let why = followers(Some(&json!({"followers": 3}))).unwrap_err();
    assert!(why.contains("is it of this version?"), "{why}");
    assert!(followers(None).is_err());
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
    let keys = |part: &Value| {
        let keys = part.as_object().unwrap().keys().cloned();
        keys.collect::<Vec<_>>().join(" ")
    };
    for (part, wanted) in [
        (
            "",
            "archive backfills followers gateway generation images postgres slot source verdict why",
        ),
        (
            "/generation",
            "all current id mintedAtMs posture publication slot",
        ),
        ("/postgres", "database version walEnd"),
        (
            "/slot",
            "active confirmedFlush exists lost name retainedBytes safeWalBytes secondsLeft unacknowledgedBytes \
             walBytesPerSecond walStatus",
        ),
        (
            "/archive",
            "ageSeconds bytes epoch frame lastCommitLsn madeAtMs segment segments throughLsn timeline verification",
        ),
        (
            "/images/0",
            "ageSeconds baseLsn createdAtMs frame id storedBytes verified",
        ),
        ("/followers/0", "lag name peer seq through"),
        ("/followers/0/lag", "bytes seconds"),
        ("/followers/1", "lag name peer seq through why"),
        ("/verdict", "nextStep ok reason sentence"),
    ] {
        assert_eq!(keys(document.pointer(part).unwrap()), wanted, "{part}");
    }
    assert_eq!(document["slot"]["confirmedFlush"], "0/64");
    assert_eq!(document["archive"]["throughLsn"], "0/64");
    assert_eq!(document["followers"][0]["through"], "0/64");
    assert!(document["followers"][1]["lag"].is_null());
}

/// The gateway's own part, before it has a session: each hop is null, with a why.
#[test]
fn the_gateways_part_is_pinned() {
    let record = rindle_archive::GenerationRecord {
        generation: ID.parse().unwrap(),
        source: "app".parse().unwrap(),
        system_identifier: "7".to_owned(),
        timeline: Timeline(1),
        database: "d".to_owned(),
        slot: "rindle_app_x".to_owned(),
        publication: "rindle_app".to_owned(),
        posture: "fencing".to_owned(),
        minted_at_ms: 1,
        schema: rindle_proto::schema::Schema::default(),
        proved: None,
        format: 1,
    };
    let view = json!(crate::state::State::new(record).view());
    let keys: Vec<&String> = view.as_object().unwrap().keys().collect();
    let wanted = "acked archived backfills capture durableSeq epoch followers generation headSeq lag phase ready reason \
                  received source sourceEnd unmirrored unshippedBytes waiting";
    assert_eq!(keys, wanted.split_whitespace().collect::<Vec<_>>());
    for hop in ["received", "archived", "acked"] {
        assert!(view["lag"][hop].is_null(), "{view}");
        assert_eq!(view["lag"]["why"][hop], "starting");
    }
}
