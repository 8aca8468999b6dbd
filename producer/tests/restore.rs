//! Plain files of the source as it was.

use std::path::PathBuf;

use rindle_archive::Kind;
use rindle_producer::restore::{At, Restored, Wanted, restore};
use rindle_producer::{ProducerError, Watch};
use rindle_proto::body::PgMicros;
use rindle_proto::ids::{EndLsn, Generation, Lsn};
use tokio_util::sync::CancellationToken;

use crate::gateway::{Gateway, SNAPSHOT};
use crate::{files, publish, rows};

/// Rows of the first copy.
const COPIED: i64 = 10;

fn out(gateway: &Gateway) -> PathBuf {
    gateway.dir.path().join("out.db")
}

async fn try_restore(gateway: &Gateway, at: At) -> Result<Restored, ProducerError> {
    let wanted = Wanted {
        archive: gateway.archive.clone(),
        source: "app".parse().unwrap(),
        generation: None,
        at,
        out: out(gateway),
    };
    restore(wanted, Watch::nobody(), CancellationToken::new()).await
}

/// How many rows the source had then, and the image that was used.
async fn restored(gateway: &Gateway, at: At) -> (i64, Option<String>) {
    let restored = try_restore(gateway, at).await.unwrap();
    let found = rows(&out(gateway)).len();
    assert_eq!(restored.rows, found as u64);
    std::fs::remove_file(out(gateway)).unwrap();
    let left = std::fs::read_dir(gateway.dir.path()).unwrap();
    let mut left = left.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert!(left.all(|name| name == "archive" || name.starts_with("scratch.db")));
    (found as i64, restored.image)
}

/// `(final_lsn, commit time)` of 20 transactions with a row each: two objects in three hold several, the clock goes back
/// now and then, and two images are made on the way.
async fn history() -> (Gateway, Vec<(u64, i64)>) {
    let mut gateway = Gateway::copied(COPIED).await;
    let mut commits = Vec::new();
    for nth in 0..20 {
        let lsn = 2000 + 100 * nth;
        gateway.clock = match nth % 7 {
            3 => 250,
            4 => -130,
            _ => 0,
        };
        commits.push((lsn, lsn as i64 + gateway.clock));
        gateway.insert(lsn, 100 + nth as i64, "row");
        if nth % 3 == 0 {
            gateway.flush().await;
        }
        if [6, 12].contains(&nth) {
            publish(&gateway).await;
        }
    }
    gateway.flush().await;
    (gateway, commits)
}

#[tokio::test]
async fn a_position_shows_what_ended_before_it() {
    let (gateway, commits) = history().await;
    let mut used = std::collections::BTreeSet::new();
    for (nth, (lsn, _)) in (COPIED..).zip(&commits) {
        for (at, rows) in [(*lsn, nth), (lsn + 7, nth), (lsn + 8, nth + 1)] {
            let (found, image) = restored(&gateway, At::Lsn(Lsn(at))).await;
            assert_eq!(found, rows, "at {at}");
            used.insert(image);
        }
    }
    assert_eq!(used.len(), 3, "no image, one, the other: {used:?}");
    let all = COPIED + commits.len() as i64;
    assert_eq!(restored(&gateway, At::Newest).await.0, all);
    assert_eq!(restored(&gateway, At::Lsn(Lsn(SNAPSHOT))).await.0, COPIED);
}

#[tokio::test]
async fn a_time_shows_what_came_before_the_first_commit_that_is_later() {
    let (gateway, commits) = history().await;
    for (_, time) in &commits {
        for at in [time - 1, *time, time + 1] {
            let before = commits.iter().take_while(|(_, time)| *time <= at).count();
            let found = restored(&gateway, At::Time(PgMicros(at))).await.0;
            assert_eq!(found, COPIED + before as i64, "at {at}");
        }
    }
    assert_eq!(restored(&gateway, At::Time(PgMicros(0))).await.0, COPIED);
}

#[tokio::test]
async fn what_a_fence_discarded_never_was_a_commit() {
    let mut gateway = Gateway::copied(COPIED).await;
    gateway.insert(2000, 100, "before");
    gateway.clock = 90_000;
    gateway.insert_part(2100, 101, true, false);
    gateway.insert_part(2100, 102, false, false);
    gateway.flush().await;
    gateway.take_over().await;
    gateway.clock = 0;
    gateway.insert(2200, 103, "after");
    gateway.insert(2300, 104, "last");
    gateway.flush().await;
    for (at, rows) in [(2008, 1), (2208, 2), (2307, 2), (2308, 3)] {
        let found = restored(&gateway, At::Lsn(Lsn(at))).await.0;
        assert_eq!(found, COPIED + rows, "at {at}");
    }
    for (at, rows) in [(2000, 1), (2200, 2), (2299, 2), (2300, 3), (50_000, 3)] {
        let found = restored(&gateway, At::Time(PgMicros(at))).await.0;
        assert_eq!(found, COPIED + rows, "at {at}");
    }
}

#[tokio::test]
async fn an_idle_source_shows_the_same_at_each_later_position() {
    let mut gateway = Gateway::copied(COPIED).await;
    gateway.insert(2000, 100, "last");
    gateway.flush().await;
    gateway.tick(9000).await;
    assert_eq!(restored(&gateway, At::Lsn(Lsn(9000))).await.0, COPIED + 1);
    let error = try_restore(&gateway, At::Lsn(Lsn(9001))).await.unwrap_err();
    assert!(matches!(error, ProducerError::NotReached { .. }), "{error}");
    assert_eq!(error.kind(), Kind::Retry);
}

#[tokio::test]
async fn what_is_not_there_is_refused_and_nothing_is_left() {
    let gateway = Gateway::minted().await;
    let error = try_restore(&gateway, At::Newest).await.unwrap_err();
    assert!(
        matches!(error, ProducerError::NotComplete { .. }),
        "{error}"
    );
    let gateway = Gateway::copied(COPIED).await;
    let error = try_restore(&gateway, At::Lsn(Lsn(SNAPSHOT - 1)))
        .await
        .unwrap_err();
    assert!(matches!(error, ProducerError::TooOld { .. }), "{error}");
    assert_eq!(error.kind(), Kind::Refused);
    let wanted = Wanted {
        archive: gateway.archive.clone(),
        source: "app".parse().unwrap(),
        generation: Some(Generation::from_bytes([9; 16])),
        at: At::Newest,
        out: out(&gateway),
    };
    let error = restore(wanted, Watch::nobody(), CancellationToken::new())
        .await
        .unwrap_err();
    assert!(
        matches!(error, ProducerError::NoGeneration { .. }),
        "{error}"
    );
    assert!(!out(&gateway).exists());
    std::fs::write(out(&gateway), "mine").unwrap();
    let error = try_restore(&gateway, At::Newest).await.unwrap_err();
    assert!(matches!(error, ProducerError::Exists { .. }), "{error}");
    assert_eq!(std::fs::read(out(&gateway)).unwrap(), b"mine");
}

/// A damaged image is passed over; a damaged log is told, never skipped.
#[tokio::test]
async fn damage_is_passed_over_or_told() {
    let mut gateway = Gateway::copied(COPIED).await;
    gateway.insert(2000, 100, "row");
    gateway.flush().await;
    publish(&gateway).await;
    let slices = files(&gateway.dir.path().join("archive"));
    let slices = slices.iter().filter(|path| {
        path.to_string_lossy().contains("images") && path.extension().is_none_or(|it| it != "json")
    });
    for slice in slices {
        let mut bytes = std::fs::read(slice).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(slice, bytes).unwrap();
    }
    assert_eq!(restored(&gateway, At::Newest).await, (COPIED + 1, None));
    gateway.damage_log();
    let error = try_restore(&gateway, At::Newest).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Corrupt, "{error}");
    assert!(!out(&gateway).exists());
}

/// Whichever log object is missing, a restore that needs it says so; it never gives an older state instead.
#[tokio::test]
async fn a_missing_log_object_is_never_the_end_of_the_log() {
    let (gateway, commits) = history().await;
    let all = COPIED + commits.len() as i64;
    let archive = gateway.dir.path().join("archive");
    let mut log = files(&archive);
    log.retain(|path| path.to_string_lossy().contains("/log/") && path.extension().is_some());
    log.sort();
    assert!(log.len() > 7, "{log:?}");
    let last = log.pop().unwrap();
    let mut refused = 0;
    for path in &log {
        let bytes = std::fs::read(path).unwrap();
        std::fs::remove_file(path).unwrap();
        for at in [At::Newest, At::Time(PgMicros(1 << 40)), At::Lsn(Lsn(3908))] {
            match try_restore(&gateway, at).await {
                Err(error) => {
                    assert_eq!(error.kind(), Kind::Corrupt, "{}: {error}", path.display());
                    refused += 1;
                }
                // An image has what it held.
                Ok(restored) => {
                    assert!(restored.image.is_some(), "{}", path.display());
                    assert_eq!(rows(&out(&gateway)).len() as i64, all);
                    std::fs::remove_file(out(&gateway)).unwrap();
                }
            }
        }
        std::fs::write(path, bytes).unwrap();
    }
    assert!(refused > log.len(), "{refused} refused");
    // An image that shows it tells that it was there.
    publish(&gateway).await;
    let bytes = std::fs::read(&last).unwrap();
    std::fs::remove_file(&last).unwrap();
    let error = try_restore(&gateway, At::Newest).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Corrupt, "{error}");
    std::fs::write(&last, bytes).unwrap();
    assert_eq!(restored(&gateway, At::Newest).await.0, all);
}

/// SQLite would take them for the new file's.
#[tokio::test]
async fn side_files_of_another_database_are_refused() {
    let gateway = Gateway::copied(COPIED).await;
    for ending in ["-wal", "-shm", "-journal"] {
        let beside = gateway.dir.path().join(format!("out.db{ending}"));
        std::fs::write(&beside, "left").unwrap();
        let error = try_restore(&gateway, At::Newest).await.unwrap_err();
        assert!(matches!(error, ProducerError::Exists { .. }), "{error}");
        std::fs::remove_file(&beside).unwrap();
    }
}

/// The file needs nothing beside it, and says where it stands.
#[tokio::test]
async fn the_file_is_plain() {
    let (gateway, commits) = history().await;
    let restored = try_restore(&gateway, At::Newest).await.unwrap();
    let last = commits[commits.len() - 1];
    assert_eq!(restored.cursor.end_lsn, EndLsn(Lsn(last.0 + 8)));
    assert_eq!(restored.cursor.commit_time, Some(PgMicros(last.1)));
    let header = std::fs::read(out(&gateway)).unwrap();
    assert_eq!(header[18..20], [1, 1], "journal mode delete");
}

#[tokio::test]
async fn what_a_killed_restore_left_is_removed_and_what_another_one_has_is_not() {
    let (gateway, _) = history().await;
    let place = |name: &str| {
        let path = gateway.dir.path().join(name);
        std::fs::create_dir(&path).unwrap();
        std::fs::write(path.join("mirror.db"), "half").unwrap();
        path
    };
    let dead = place(".rindle-restore-dead");
    std::fs::write(dead.join("mirror.db.lock"), "").unwrap();
    let alive = place(".rindle-restore-alive");
    let lock = std::fs::File::create(alive.join("mirror.db.lock")).unwrap();
    lock.lock().unwrap();
    let begun = place(".rindle-restore-begun");
    let other = place("rindle-restore-of-mine");
    std::fs::write(other.join("mirror.db.lock"), "").unwrap();
    try_restore(&gateway, At::Newest).await.unwrap();
    assert!(!dead.exists());
    for kept in [alive, begun, other] {
        assert!(kept.join("mirror.db").exists(), "{}", kept.display());
    }
}
