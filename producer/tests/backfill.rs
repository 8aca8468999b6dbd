//! Images in the middle of a backfill, and what comes of them.

use std::time::{Duration, Instant};

use rindle_follower::mirror::{Mirror, MirrorOptions, image};
use rindle_producer::verify::MirrorCopy;
use rindle_proto::ids::Lsn;
use tokio_util::sync::CancellationToken;

use crate::gateway::Gateway;
use crate::{publish, rows_of_newest_image, scratch};

/// `t` is copied anew, as of 2500, into table 2.
async fn migrated() -> Gateway {
    let mut gateway = Gateway::copied(10).await;
    gateway.migrate(2000);
    gateway.insert_waiting(2400, 11, "in the copy");
    gateway.insert_waiting(2500, 12, "at the snapshot");
    gateway.flush().await;
    gateway
}

#[tokio::test]
async fn image_of_the_middle_of_a_backfill_ends_as_the_log_does() {
    let mut gateway = migrated().await;
    let (image, _) = publish(&gateway).await;
    assert_eq!(image.base.tables.len(), 1, "of what is shown");
    assert_eq!(rows_of_newest_image(&gateway).await.len(), 10);
    let file = gateway.dir.path().join("restored.db");
    let facts = image::prove(&file).unwrap();
    assert_eq!(facts.schema.tables.len(), 2);

    gateway.insert_waiting(2600, 13, "after it");
    gateway.end_copy(3000, 2500, 100).await;
    gateway.flush().await;
    // From the scratch mirror, which was there in the middle; and from the first frame.
    let (_, applied) = publish(&gateway).await;
    assert_eq!(applied, 1 + 100);
    let from_the_middle = rows_of_newest_image(&gateway).await;
    assert_eq!(from_the_middle.len(), 102);
    assert!(from_the_middle.contains(&"12:at the snapshot".to_owned()));
    assert!(from_the_middle.contains(&"13:after it".to_owned()));
    let restored = Mirror::open(&file, MirrorOptions::default()).unwrap();
    assert_eq!(restored.schema().tables.len(), 1);
}

#[tokio::test]
async fn table_that_awaits_a_copy_is_left_out_of_verify() {
    let mut gateway = migrated().await;
    publish(&gateway).await;
    for (at, count) in [(2700, 0), (9000, 1)] {
        if at == 9000 {
            gateway.end_copy(3000, 2500, 100).await;
            gateway.flush().await;
        }
        gateway.tick(at).await;
        let copy = MirrorCopy::take(&scratch(&gateway), &gateway.dir.path().join("copy.db"));
        let deadline = Instant::now() + Duration::from_secs(20);
        let digests = copy
            .unwrap()
            .digests_at(
                &gateway.archive,
                Lsn(at),
                deadline,
                CancellationToken::new(),
            )
            .await;
        assert_eq!(digests.unwrap().digests.len(), count);
    }
}
