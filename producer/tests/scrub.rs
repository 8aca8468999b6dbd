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
    found.await.unwrap()
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
    let mut looked = 0;
    for path in &all {
        // An image that was not proved, and a pointer that was never set, are nothing wrong.
        if is(path, "verified.json") || is(path, "current.json") {
            continue;
        }
        let bytes = std::fs::read(path).unwrap();
        std::fs::remove_file(path).unwrap();
        let found = look(&gateway, Depth::Deep).await;
        let expected = match path.to_string_lossy().contains("/log/") && found.head < 6 {
            // The last one can only be missed by what was made of it.
            true => found
                .damage
                .iter()
                .all(|it| it.key.ends_with("manifest.json")),
            false => named(&gateway, &found).contains(path),
        };
        assert!(
            expected && !found.damage.is_empty(),
            "{}: {found:?}",
            path.display()
        );
        if !path.to_string_lossy().contains("/bulk/") {
            let light = look(&gateway, Depth::Light).await;
            assert!(!light.damage.is_empty(), "{}", path.display());
        }
        std::fs::write(path, bytes).unwrap();
        looked += 1;
    }
    assert!(looked > 12, "{looked}");
    assert_eq!(look(&gateway, Depth::Deep).await.damage, []);
}

#[tokio::test]
async fn each_byte_that_turned_is_named() {
    let (gateway, all) = archive().await;
    for path in &all {
        let bytes = std::fs::read(path).unwrap();
        // What says only that it is there has no content to be wrong.
        if is(path, "verified.json") || path.to_string_lossy().contains("/e/") {
            continue;
        }
        let step = (bytes.len() / 40).max(1);
        for at in (0..bytes.len()).step_by(step) {
            let mut turned = bytes.clone();
            turned[at] ^= 0x40;
            std::fs::write(path, turned).unwrap();
            let found = look(&gateway, Depth::Deep).await;
            let found = match is(path, "current.json") {
                true => gateway.archive.scrub_current().await.unwrap().is_some(),
                false => named(&gateway, &found).contains(path),
            };
            assert!(found, "byte {at} of {}", path.display());
        }
        std::fs::write(path, bytes).unwrap();
    }
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
    assert_eq!(found.await.unwrap().bytes, bytes);
    assert!(began.elapsed().as_millis() >= 400, "{:?}", began.elapsed());
}
