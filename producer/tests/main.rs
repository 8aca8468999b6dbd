//! The producer on archives in temporary directories.
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something unexpected happens"
)]

mod backfill;
mod gateway;
mod restore;
mod scrub;
mod verify;

use std::path::{Path, PathBuf};

use rindle_archive::{ImageInfo, Kind};
use rindle_follower::mirror::{image, open_reader};
use rindle_producer::{Job, Produced, ProducerError, State, Watch};
use rindle_proto::ids::{Generation, Lsn};
use tokio_util::sync::CancellationToken;

use crate::gateway::Gateway;

fn scratch(gateway: &Gateway) -> PathBuf {
    gateway.dir.path().join("scratch.db")
}

async fn try_produce(gateway: &Gateway) -> Result<Produced, ProducerError> {
    let made = produce_all(gateway).await?.remove(0);
    match made.state {
        State::Failed(error) => Err(error),
        _ => Ok(made),
    }
}

async fn produce_all(gateway: &Gateway) -> Result<Vec<Produced>, ProducerError> {
    let job = Job {
        archive: gateway.archive.clone(),
        source: "app".parse().unwrap(),
        generation: None,
        scratch: scratch(gateway),
    };
    rindle_producer::run(job, Watch::nobody(), CancellationToken::new()).await
}

/// A run that must publish.
pub(crate) async fn publish(gateway: &Gateway) -> (ImageInfo, u64) {
    let made = try_produce(gateway).await.unwrap();
    match made.state {
        State::Published(image) => (image, made.replayed.rows),
        other => panic!("nothing was published: {other:?}"),
    }
}

/// `id:v` of every row in the newest image, restored.
async fn rows_of_newest_image(gateway: &Gateway) -> Vec<String> {
    let images = gateway.archive.images(gateway.generation);
    let newest = images
        .newest_verified()
        .await
        .unwrap()
        .expect("an image is proved");
    let file = gateway.dir.path().join("restored.db");
    images.restore(&newest, &file, |_| {}).await.unwrap();
    let facts = image::prove(&file).unwrap();
    assert_eq!(facts.cursor.position, newest.base.position);
    rows(&file)
}

pub(crate) fn rows(file: &Path) -> Vec<String> {
    let reader = open_reader(file).unwrap();
    let mut select = reader
        .prepare("SELECT id || ':' || v FROM t ORDER BY id")
        .unwrap();
    let rows = select.query_map([], |row| row.get(0)).unwrap();
    rows.map(Result::unwrap).collect()
}

fn no_leftovers(gateway: &Gateway) {
    let entries = std::fs::read_dir(gateway.dir.path()).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
    names.retain(|name| name != "archive" && name != "restored.db");
    names.sort();
    assert_eq!(names, ["scratch.db", "scratch.db.lock"]);
}

#[tokio::test]
async fn publishes_the_first_copy_then_only_what_is_new() {
    let mut gateway = Gateway::copied(100).await;
    let (image, rows) = publish(&gateway).await;
    assert_eq!(
        (rows, image.base.tables[0].rows, image.verified),
        (100, 100, true)
    );
    assert_eq!(rows_of_newest_image(&gateway).await.len(), 100);
    no_leftovers(&gateway);

    let again = try_produce(&gateway).await.unwrap();
    assert!(matches!(again.state, State::NothingNew(same) if same.id == image.id));
    // An idle source is nothing new either.
    gateway.tick(1500).await;
    assert!(matches!(
        try_produce(&gateway).await.unwrap().state,
        State::NothingNew(_)
    ));

    gateway.insert(2000, 101, "new");
    gateway.update(2100, 1, "changed");
    gateway.flush().await;
    let (image, rows) = publish(&gateway).await;
    assert_eq!((rows, image.base.end_lsn.0), (2, Lsn(2108)));
    let found = rows_of_newest_image(&gateway).await;
    assert_eq!(
        (found.len(), &*found[0], &*found[100]),
        (101, "1:changed", "101:new")
    );
    assert_eq!(
        gateway
            .archive
            .images(gateway.generation)
            .list()
            .await
            .unwrap()
            .len(),
        2
    );
}

#[tokio::test]
async fn without_a_complete_copy_there_is_no_image() {
    let gateway = Gateway::minted().await;
    assert!(matches!(
        try_produce(&gateway).await.unwrap().state,
        State::NotComplete
    ));
    assert_eq!(
        gateway
            .archive
            .images(gateway.generation)
            .list()
            .await
            .unwrap(),
        []
    );
}

#[tokio::test]
async fn an_unfinished_transaction_is_not_in_the_image_and_comes_with_the_next() {
    let mut gateway = Gateway::copied(10).await;
    gateway.insert(2000, 11, "whole");
    gateway.insert_part(3000, 12, true, false);
    gateway.flush().await;
    // Objects with middle parts only: the base must be the one that holds the last commit.
    gateway.insert_part(3000, 13, false, false);
    gateway.flush().await;
    let (image, _) = publish(&gateway).await;
    assert_eq!((image.base.end_lsn.0, image.base.segment.0), (Lsn(2008), 3));
    assert_eq!(rows_of_newest_image(&gateway).await.len(), 11);
    gateway.insert_part(3000, 14, false, true);
    gateway.flush().await;
    std::fs::remove_file(scratch(&gateway)).unwrap();
    let (image, rows) = publish(&gateway).await;
    assert_eq!((rows, image.base.end_lsn.0), (3, Lsn(3008)));
    assert_eq!(rows_of_newest_image(&gateway).await.len(), 14);
}

#[tokio::test]
async fn a_fence_drops_what_was_not_committed() {
    let mut gateway = Gateway::copied(10).await;
    gateway.insert_part(2000, 11, true, false);
    gateway.flush().await;
    publish(&gateway).await;
    gateway.take_over().await;
    gateway.insert(2500, 12, "after the fence");
    gateway.flush().await;
    publish(&gateway).await;
    let found = rows_of_newest_image(&gateway).await;
    assert_eq!((found.len(), &*found[10]), (11, "12:after the fence"));
}

#[tokio::test]
async fn a_lost_scratch_comes_back_from_the_newest_image() {
    let mut gateway = Gateway::copied(100).await;
    publish(&gateway).await;
    std::fs::remove_file(scratch(&gateway)).unwrap();
    gateway.insert(2000, 101, "new");
    gateway.flush().await;
    let (_, rows) = publish(&gateway).await;
    assert_eq!(rows, 1, "the copy was not loaded again");
    assert_eq!(rows_of_newest_image(&gateway).await.len(), 101);
}

#[tokio::test]
async fn a_scratch_of_another_generation_is_made_anew() {
    let gateway = Gateway::copied(10).await;
    let options = rindle_follower::mirror::MirrorOptions::default();
    let mut other = rindle_follower::mirror::Mirror::open(scratch(&gateway), options).unwrap();
    other.start(Generation::from_bytes([1; 16])).unwrap();
    drop(other);
    assert_eq!(publish(&gateway).await.1, 10);
}

/// Damage in every page but the first, which carries our mark, and in that page behind the mark.
#[tokio::test]
async fn a_damaged_scratch_is_made_anew() {
    for from in [4096, 100] {
        let mut gateway = Gateway::copied(1000).await;
        publish(&gateway).await;
        let mut bytes = std::fs::read(scratch(&gateway)).unwrap();
        assert!(bytes.len() > 8192);
        bytes[from..].fill(0xab);
        std::fs::write(scratch(&gateway), bytes).unwrap();
        gateway.insert(2000, 1001, "new");
        gateway.flush().await;
        publish(&gateway).await;
        assert_eq!(rows_of_newest_image(&gateway).await.len(), 1001);
        no_leftovers(&gateway);
    }
}

#[tokio::test]
async fn a_generation_that_fails_keeps_no_other_from_its_image() {
    let gateway = Gateway::copied(10).await;
    gateway.mint_another().await;
    let damaged = gateway.damage_log();
    let made = produce_all(&gateway).await.unwrap();
    assert!(
        matches!(
            &made[..],
            [
                Produced {
                    state: State::Failed(_),
                    ..
                },
                Produced {
                    state: State::NotComplete,
                    ..
                }
            ]
        ),
        "{made:?} with {} damaged",
        damaged.display()
    );
}

#[tokio::test]
async fn a_file_of_somebody_else_is_refused_and_kept() {
    let gateway = Gateway::copied(10).await;
    for content in [
        &b"my only copy of something, long enough to be read as a header of a database"[..],
        b"x",
    ] {
        std::fs::write(scratch(&gateway), content).unwrap();
        let error = try_produce(&gateway).await.unwrap_err();
        assert!(
            matches!(error, ProducerError::ForeignScratch { .. }),
            "{error:?}"
        );
        assert_eq!(error.kind(), Kind::Refused);
        assert_eq!(std::fs::read(scratch(&gateway)).unwrap(), content);
    }
}

#[tokio::test]
async fn a_second_run_on_one_scratch_is_refused() {
    let gateway = Gateway::copied(10).await;
    let lock = rindle_producer::scratch::Lock::take(&scratch(&gateway)).unwrap();
    let error = try_produce(&gateway).await.unwrap_err();
    assert!(matches!(error, ProducerError::Busy { .. }), "{error:?}");
    drop(lock);
    publish(&gateway).await;
}

#[tokio::test]
async fn an_image_that_was_not_proved_is_proved_by_the_next_run() {
    let gateway = Gateway::copied(10).await;
    let (image, _) = publish(&gateway).await;
    // As if killed between publishing and proving; also with what such a kill leaves here.
    let marks = marks(&gateway.dir.path().join("archive"));
    assert_eq!(marks.len(), 1);
    std::fs::remove_file(&marks[0]).unwrap();
    for ending in ["image", "proof", "proof-wal"] {
        std::fs::write(
            gateway.dir.path().join(format!("scratch.db.{ending}")),
            "left",
        )
        .unwrap();
    }
    let made = try_produce(&gateway).await.unwrap();
    assert!(matches!(made.state, State::Proved(same) if same.id == image.id && same.verified));
    let images = gateway
        .archive
        .images(gateway.generation)
        .list()
        .await
        .unwrap();
    assert!(images.len() == 1 && images[0].verified);
}

/// A source that stands still has no newer commit whose image would take the place of a damaged one.
#[tokio::test]
async fn a_damaged_image_that_was_not_proved_is_followed_by_another() {
    let gateway = Gateway::copied(10).await;
    let (image, _) = publish(&gateway).await;
    let archive = gateway.dir.path().join("archive");
    for mark in marks(&archive) {
        std::fs::remove_file(mark).unwrap();
    }
    let slices = files(&archive);
    let slice = slices.iter().find(|path| {
        path.to_string_lossy().contains(&image.id)
            && path.extension().is_none_or(|ending| ending != "json")
    });
    let slice = slice.unwrap();
    let mut bytes = std::fs::read(slice).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(slice, bytes).unwrap();
    let (other, _) = publish(&gateway).await;
    assert_ne!(other.id, image.id);
    assert_eq!(rows_of_newest_image(&gateway).await.len(), 10);
    let made = try_produce(&gateway).await.unwrap();
    assert!(matches!(made.state, State::NothingNew(same) if same.id == other.id));
}

/// The objects that say that an image was proved.
fn marks(dir: &Path) -> Vec<PathBuf> {
    let mut found = files(dir);
    found.retain(|path| path.file_stem().is_some_and(|stem| stem == "verified"));
    found
}

pub(crate) fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let found = entries.flat_map(|path| match path.is_dir() {
        true => files(&path),
        false => vec![path],
    });
    found.collect()
}

#[tokio::test]
async fn told_to_stop_it_keeps_what_was_committed() {
    let gateway = Gateway::copied(10).await;
    let stop = CancellationToken::new();
    stop.cancel();
    let job = Job {
        archive: gateway.archive.clone(),
        source: "app".parse().unwrap(),
        generation: Some(gateway.generation),
        scratch: scratch(&gateway),
    };
    let error = rindle_producer::run(job, Watch::nobody(), stop)
        .await
        .unwrap_err();
    assert!(matches!(error, ProducerError::Stopped), "{error:?}");
    publish(&gateway).await;
}

#[tokio::test]
async fn a_generation_that_is_not_there_is_refused_with_those_that_are() {
    let gateway = Gateway::copied(1).await;
    let job = Job {
        archive: gateway.archive.clone(),
        source: "app".parse().unwrap(),
        generation: Some(Generation::from_bytes([9; 16])),
        scratch: scratch(&gateway),
    };
    let error = rindle_producer::run(job, Watch::nobody(), CancellationToken::new()).await;
    let error = error.unwrap_err();
    assert_eq!(error.kind(), Kind::Refused);
    assert!(
        error.to_string().contains(&gateway.generation.to_string()),
        "{error}"
    );
}
