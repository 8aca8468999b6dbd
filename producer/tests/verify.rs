//! A mirror file brought to a position, and digested.

use std::time::{Duration, Instant};

use rindle_follower::mirror::{Mirror, MirrorOptions};
use rindle_producer::ProducerError;
use rindle_producer::verify::MirrorCopy;
use rindle_proto::ids::Lsn;
use rindle_proto::verify::TableDigest;
use tokio_util::sync::CancellationToken;

use crate::gateway::Gateway;
use crate::{publish, scratch};

async fn digest_at(
    gateway: &Gateway,
    lsn: u64,
    within: Duration,
) -> Result<TableDigest, ProducerError> {
    let copy = MirrorCopy::take(&scratch(gateway), &gateway.dir.path().join("copy.db"))?;
    assert_eq!(copy.generation(), gateway.generation);
    let deadline = Instant::now() + within;
    let digests = copy
        .digests_at(
            &gateway.archive,
            Lsn(lsn),
            deadline,
            CancellationToken::new(),
        )
        .await;
    let entries = std::fs::read_dir(gateway.dir.path()).unwrap();
    let left = entries.filter(|entry| {
        entry
            .as_ref()
            .unwrap()
            .file_name()
            .to_string_lossy()
            .starts_with("copy.db")
    });
    assert_eq!(left.count(), 0, "the copy is gone");
    digests.map(|mut found| found.digests.remove("t").unwrap())
}

async fn digest(gateway: &Gateway, lsn: u64) -> TableDigest {
    digest_at(gateway, lsn, Duration::from_secs(20))
        .await
        .unwrap()
}

#[tokio::test]
async fn a1_a_transaction_that_commits_at_the_snapshot_is_not_in_it() {
    let mut gateway = Gateway::copied(10).await;
    publish(&gateway).await;
    gateway.insert(2000, 11, "a");
    gateway.insert(3000, 12, "b");
    gateway.flush().await;
    gateway.tick(9000).await;
    assert_eq!(digest(&gateway, 2000).await.rows, 10);
    assert_eq!(digest(&gateway, 2008).await.rows, 11);
    assert_eq!(digest(&gateway, 3000).await.rows, 11);
    assert_eq!(digest(&gateway, 3001).await.rows, 12);
    assert_eq!(digest(&gateway, 9000).await.rows, 12);
    // The file itself stands where it stood.
    assert_eq!(crate::rows(&scratch(&gateway)).len(), 10);
}

#[tokio::test]
async fn an_archive_that_does_not_come_as_far_is_waited_for_and_then_told() {
    let mut gateway = Gateway::copied(10).await;
    publish(&gateway).await;
    let error = digest_at(&gateway, 2000, Duration::ZERO).await.unwrap_err();
    assert!(
        matches!(error, ProducerError::NotReached { wanted: Lsn(2000) }),
        "{error:?}"
    );
    let waiting = digest_at(&gateway, 2000, Duration::from_secs(20));
    let arriving = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        gateway_tick(&gateway.archive).await;
    };
    // The tick comes from another session, for the first one is borrowed here.
    let (digest, ()) = tokio::join!(waiting, arriving);
    assert_eq!(digest.unwrap().rows, 10);
    gateway.take_over().await;
}

async fn gateway_tick(archive: &rindle_archive::Archive) {
    let generation = archive.current().await.unwrap().unwrap().generation;
    let taken = archive
        .log(generation)
        .take_over(rindle_proto::ids::Timeline(1))
        .await
        .unwrap();
    let mut writer = taken.writer;
    let position = writer.position();
    let segment = rindle_archive::NewSegment {
        frames: bytes::Bytes::new(),
        first_seq: position.seq.next(),
        last: position,
        last_commit: None,
        through_lsn: Lsn(2000),
        tick: true,
    };
    writer.append(segment).await.unwrap();
}

#[tokio::test]
async fn one_planted_cell_changes_the_digest() {
    let mut gateway = Gateway::copied(10).await;
    publish(&gateway).await;
    gateway.tick(2000).await;
    let before = digest(&gateway, 2000).await;
    let plant = |v: &str| {
        let mirror = Mirror::open(scratch(&gateway), MirrorOptions::default()).unwrap();
        mirror
            .connection()
            .execute("UPDATE t SET v = ?1 WHERE id = 7", [v])
            .unwrap();
    };
    plant("Copied");
    assert_ne!(digest(&gateway, 2000).await, before);
    plant("copied");
    assert_eq!(digest(&gateway, 2000).await, before);
}

#[tokio::test]
async fn a_mirror_that_is_further_cannot_show_the_snapshot() {
    let mut gateway = Gateway::copied(10).await;
    gateway.insert(3000, 11, "a");
    gateway.flush().await;
    publish(&gateway).await;
    let error = digest_at(&gateway, 2000, Duration::ZERO).await.unwrap_err();
    assert!(
        matches!(error, ProducerError::Ahead { at: Lsn(3008), .. }),
        "{error:?}"
    );
}
