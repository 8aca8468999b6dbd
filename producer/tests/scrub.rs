//! Whatever is missing or damaged in an archive is named, and nothing is made of it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use rindle_archive::scrub::{Depth, Look, Scrubbed};

use crate::gateway::Gateway;
use crate::{files, publish};

async fn look(gateway: &Gateway, depth: Depth) -> Scrubbed {
    let look = Look {
        depth,
        bytes_per_second: None,
    };
    let mut told = |_found: &Scrubbed| {};
    let found = gateway.archive.scrub(gateway.generation, look, &mut told);
    let mut found = found.await;
    found
        .damage
        .extend(gateway.archive.scrub_current().await.unwrap());
    found
}

/// A first copy, two sessions, a backfill, and an image of all that.
async fn archive() -> (Gateway, Vec<PathBuf>) {
    let mut gateway = Gateway::copied(50).await;
    gateway.insert(2000, 100, "row");
    gateway.flush().await;
    gateway.migrate(3000);
    gateway.flush().await;
    gateway.take_over().await;
    gateway.insert_waiting(4000, 200, "kept");
    gateway.end_copy(5000, 3500, 20).await;
    gateway.flush().await;
    publish(&gateway).await;
    let mut all = files(&gateway.dir.path().join("archive"));
    all.retain(|path| !path.file_name().unwrap().to_string_lossy().starts_with('.'));
    (gateway, all)
}

/// Keys that were named, and nothing else is.
fn named(gateway: &Gateway, found: &Scrubbed) -> BTreeSet<PathBuf> {
    let root = gateway.dir.path().join("archive");
    found.damage.iter().map(|it| root.join(&it.key)).collect()
}

fn is(path: &Path, name: &str) -> bool {
    path.file_name().is_some_and(|it| it == name)
}

#[tokio::test]
async fn a_whole_archive_has_no_damage() {
    let (gateway, _) = archive().await;
    for depth in [Depth::Light, Depth::Deep] {
        let found = look(&gateway, depth).await;
        assert_eq!(found.damage, [], "{depth:?}");
        assert_eq!(
            (found.segments, found.head, found.images),
            (found.head, found.head, 1)
        );
        assert_eq!(found.bulk_parts >= 4, depth == Depth::Deep);
    }
}

#[tokio::test]
async fn each_object_that_is_missing_is_named() {
    let (gateway, all) = archive().await;
    assert!(all.len() > 12, "{all:?}");
    let last = all.iter().filter(|it| in_log(it)).max().unwrap();
    for path in &all {
        // An image that was not proved is nothing wrong.
        if is(path, "verified.json") {
            continue;
        }
        let bytes = std::fs::read(path).unwrap();
        std::fs::remove_file(path).unwrap();
        let found = look(&gateway, Depth::Deep).await;
        let named = named(&gateway, &found);
        // The last one can only be missed by what was made of it.
        let is_named = match path == last {
            true => named.iter().any(|it| is(it, "manifest.json")),
            false => named.contains(path),
        };
        assert!(is_named, "{}: {found:?}", path.display());
        if !path.to_string_lossy().contains("/bulk/") {
            let light = look(&gateway, Depth::Light).await;
            assert!(!light.damage.is_empty(), "{}", path.display());
        }
        std::fs::write(path, bytes).unwrap();
    }
    assert_eq!(look(&gateway, Depth::Deep).await.damage, []);
}

fn in_log(path: &Path) -> bool {
    path.to_string_lossy().contains("/log/")
}

#[tokio::test]
async fn the_pointer_is_there_and_names_a_generation() {
    let (gateway, all) = archive().await;
    let what = async || {
        gateway
            .archive
            .scrub_current()
            .await
            .unwrap()
            .map(|it| it.what)
    };
    assert_eq!(what().await, None);
    let archive = &gateway.archive;
    let current = archive.current().await.unwrap().unwrap();
    let other = rindle_proto::ids::Generation::from_bytes([9; 16]);
    archive.set_current(Some(&current), other).await.unwrap();
    assert!(what().await.unwrap().contains("there is nothing"));
    std::fs::remove_file(all.iter().find(|it| is(it, "current.json")).unwrap()).unwrap();
    assert!(what().await.unwrap().contains("is missing"));
}

#[tokio::test]
async fn each_byte_that_turned_is_named() {
    let (gateway, all) = archive().await;
    for path in &all {
        let bytes = std::fs::read(path).unwrap();
        let step = (bytes.len() / 40).max(1);
        for at in (0..bytes.len()).step_by(step) {
            let mut turned = bytes.clone();
            turned[at] ^= 0x40;
            std::fs::write(path, turned).unwrap();
            let found = look(&gateway, Depth::Deep).await;
            assert!(
                named(&gateway, &found).contains(path),
                "byte {at} of {}: {found:?}",
                path.display()
            );
        }
        std::fs::write(path, bytes).unwrap();
    }
    assert_eq!(look(&gateway, Depth::Deep).await.damage, []);
}

/// A number out of nowhere, and an object that cannot be read: each is one line, and the rest is looked at.
#[tokio::test]
async fn strange_objects_end_no_look() {
    let (gateway, all) = archive().await;
    let segments = look(&gateway, Depth::Deep).await.segments;
    let log = all.iter().find(|it| in_log(it)).unwrap().parent().unwrap();
    let far = log.join("18446744073709551615.seg");
    std::fs::write(&far, "stray").unwrap();
    let found = look(&gateway, Depth::Deep).await;
    assert_eq!(
        (found.segments, found.damage.len()),
        (segments, 2),
        "{found:?}"
    );
    std::fs::remove_file(&far).unwrap();
    // A directory in an object's place is what a disk that fails looks like to root.
    let second = log.join("00000000000000000002.seg");
    let bytes = std::fs::read(&second).unwrap();
    std::fs::remove_file(&second).unwrap();
    std::fs::create_dir(&second).unwrap();
    let found = look(&gateway, Depth::Deep).await;
    assert!(found.damage[0].what.contains("cannot be read"), "{found:?}");
    assert_eq!((found.segments, found.stopped), (segments - 1, None));
    std::fs::remove_dir(&second).unwrap();
    std::fs::write(&second, bytes).unwrap();
    assert_eq!(look(&gateway, Depth::Deep).await.damage, []);
}

/// All of it is told in one run, not only the first.
#[tokio::test]
async fn it_goes_on_behind_damage() {
    let (gateway, all) = archive().await;
    let log: Vec<&PathBuf> = all
        .iter()
        .filter(|it| it.to_string_lossy().contains("/log/"))
        .collect();
    for path in &log[1..3] {
        std::fs::remove_file(path).unwrap();
    }
    let found = look(&gateway, Depth::Deep).await;
    assert!(found.damage.len() >= 2, "{found:?}");
    assert_eq!(found.segments + 2, found.head);
}

#[tokio::test]
async fn it_keeps_to_the_rate() {
    let (gateway, _) = archive().await;
    let bytes = look(&gateway, Depth::Deep).await.bytes;
    let look = Look {
        depth: Depth::Deep,
        bytes_per_second: Some(bytes * 2),
    };
    let began = std::time::Instant::now();
    let mut told = |_found: &Scrubbed| {};
    let found = gateway.archive.scrub(gateway.generation, look, &mut told);
    assert_eq!(found.await.bytes, bytes);
    assert!(began.elapsed().as_millis() >= 400, "{:?}", began.elapsed());
}
