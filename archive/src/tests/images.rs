//! Images.

use std::path::PathBuf;

use rindle_proto::ids::{Digest, EndLsn, Epoch, Lsn, Position, SegmentNo, Seq};

use super::env::{Env, generation};
use crate::error::Kind;
use crate::image::{SLICE_BYTES, TableRows};
use crate::testkit::{Faults, Moment};
use crate::{ImageBase, ImageError, Images};

fn base(seq: u64) -> ImageBase {
    ImageBase {
        segment: SegmentNo(seq + 1),
        position: Position {
            seq: Seq(seq),
            chain: Digest([seq as u8; 32]),
        },
        epoch: Epoch(1),
        end_lsn: EndLsn(Lsn(seq * 100)),
        tables: vec![TableRows {
            table: "t".to_owned(),
            rows: 3,
        }],
    }
}

fn file(env: &Env, bytes: &[u8]) -> PathBuf {
    let path = env.root().with_extension("db");
    std::fs::write(&path, bytes).unwrap();
    path
}

fn images(env: &Env) -> Images {
    env.archive.images(generation())
}

#[tokio::test]
async fn image_comes_back() {
    let env = Env::new().await;
    let images = images(&env);
    let slices = 2 * SLICE_BYTES as usize + 12345;
    let bytes: Vec<u8> = (0..slices).map(|at| (at >> 12) as u8).collect();
    let path = file(&env, &bytes);
    let mut told = Vec::new();
    let image = images
        .publish(&path, base(5), |p| told.push(p.done_bytes))
        .await
        .unwrap();
    assert_eq!((told.len(), *told.last().unwrap()), (3, bytes.len() as u64));
    assert_eq!(
        (image.file_bytes, image.verified),
        (bytes.len() as u64, false)
    );
    assert_eq!(images.newest().await.unwrap().unwrap(), image);
    let to = path.with_extension("restored");
    std::fs::write(&to, b"an older mirror").unwrap();
    images.restore(&image, &to, |_| ()).await.unwrap();
    assert!(std::fs::read(&to).unwrap() == bytes);

    assert_eq!(images.newest_verified().await.unwrap(), None);
    images.mark_verified(&image).await.unwrap();
    images.mark_verified(&image).await.unwrap();
    assert!(images.newest_verified().await.unwrap().unwrap().verified);
}

/// C19: the newest image is the one with the highest base, whoever was slow.
#[tokio::test]
async fn images_rank_by_base() {
    let env = Env::new().await;
    let images = images(&env);
    let path = file(&env, b"");
    for seq in [10, 9, 200] {
        images.publish(&path, base(seq), |_| ()).await.unwrap();
    }
    let ranked = images.list().await.unwrap();
    let ranked: Vec<u64> = ranked
        .iter()
        .map(|image| image.base.position.seq.0)
        .collect();
    assert_eq!(ranked, [200, 10, 9]);
}

#[tokio::test]
async fn damaged_slice_is_named_and_leaves_nothing() {
    let env = Env::new().await;
    let images = images(&env);
    let path = file(&env, &[7; 5000]);
    let image = images.publish(&path, base(5), |_| ()).await.unwrap();
    let part = env.path(&env.keys().image(&image.id).part(0));
    let kept = std::fs::read(&part).unwrap();
    let to = env.root().with_extension("restored");
    for at in 0..kept.len() {
        let mut flipped = kept.clone();
        flipped[at] ^= 1;
        std::fs::write(&part, flipped).unwrap();
        // A flip of zstd's header that changes nothing is none.
        match images.restore(&image, &to, |_| ()).await {
            Err(error) => assert!(matches!(error, ImageError::Damaged { .. }), "{at}: {error}"),
            Ok(()) => assert!(std::fs::read(&to).unwrap() == [7; 5000]),
        }
        let _ = std::fs::remove_file(&to);
    }
    std::fs::remove_file(&part).unwrap();
    let missing = images.restore(&image, &to, |_| ()).await.unwrap_err();
    assert_eq!(missing.kind(), Kind::Corrupt);
    assert!(!to.exists());
    let left = std::fs::read_dir(to.parent().unwrap()).unwrap();
    assert!(
        left.into_iter()
            .all(|entry| !entry.unwrap().path().display().to_string().contains("tmp-"))
    );
}

#[tokio::test]
async fn damaged_manifest_leaves_the_others() {
    let env = Env::new().await;
    let images = images(&env);
    let path = file(&env, b"image");
    let good = images.publish(&path, base(5), |_| ()).await.unwrap();
    let bad = images.publish(&path, base(6), |_| ()).await.unwrap();
    let manifest = env.path(&env.keys().image(&bad.id).manifest());
    let text = std::fs::read_to_string(&manifest).unwrap();
    for damaged in ["{", &text.replace("\"bytes\": 5", "\"bytes\": 6")] {
        std::fs::write(&manifest, damaged).unwrap();
        assert_eq!(images.list().await.unwrap(), std::slice::from_ref(&good));
    }
}

#[tokio::test]
async fn publish_survives_any_fault() {
    for call in 1.. {
        let mut fired = false;
        for moment in [Moment::Before, Moment::After, Moment::Late] {
            for plan in [Faults::Once(call, moment), Faults::ForEver(call, moment)] {
                let env = Env::new().await;
                let images = images(&env);
                let path = file(&env, b"image");
                env.flaky.plan(plan);
                let published = images.publish(&path, base(5), |_| ()).await;
                fired |= env.flaky.fired() > 0;
                env.flaky.plan(Faults::Never);
                env.flaky.land().await;
                if let Err(error) = &published {
                    assert_eq!(error.kind(), Kind::Retry, "{plan:?}: {error}");
                }
                let image = match images.newest().await.unwrap() {
                    Some(image) => image,
                    None => images.publish(&path, base(5), |_| ()).await.unwrap(),
                };
                let to = path.with_extension("restored");
                images.restore(&image, &to, |_| ()).await.unwrap();
                assert_eq!(std::fs::read(&to).unwrap(), b"image");
            }
        }
        if !fired {
            return;
        }
    }
}
