//! Bulk objects.

use rindle_proto::body::{Attempt, BulkPart};
use rindle_proto::ids::{Epoch, Generation};
use rindle_proto::schema::TableId;

use super::env::{Env, generation};
use crate::bulk::{self, BulkError, BulkFlaw};

const ATTEMPT: Attempt = Attempt {
    epoch: Epoch(3),
    number: 1,
};

#[tokio::test]
async fn rows_come_back_and_parts_are_put_once() {
    let env = Env::new().await;
    let rows = vec![7u8; 100_000];
    let part = env
        .log
        .put_bulk(ATTEMPT, 4, TableId(2), 10, rows.clone())
        .await
        .unwrap();
    assert_eq!((part.number, part.table, part.rows), (4, TableId(2), 10));
    assert_eq!(part.raw_bytes, 100_000);
    assert_eq!(env.log.fetch_bulk(ATTEMPT, &part).await.unwrap(), rows);
    let again = env
        .log
        .put_bulk(ATTEMPT, 4, TableId(2), 10, rows)
        .await
        .unwrap();
    assert_eq!(again, part);
    let other = env
        .log
        .put_bulk(ATTEMPT, 4, TableId(2), 10, b"other".to_vec())
        .await;
    assert!(matches!(other, Err(BulkError::Exists { .. })));
    let missing = BulkPart {
        number: 5,
        ..part.clone()
    };
    let missing = env.log.fetch_bulk(ATTEMPT, &missing).await;
    assert!(matches!(missing, Err(BulkError::Missing { .. })));
    let empty = env
        .log
        .put_bulk(ATTEMPT, 6, TableId(2), 0, Vec::new())
        .await
        .unwrap();
    assert!(
        env.log
            .fetch_bulk(ATTEMPT, &empty)
            .await
            .unwrap()
            .is_empty()
    );
}

#[tokio::test]
async fn damage_and_other_parts_are_named() {
    let env = Env::new().await;
    let part = env
        .log
        .put_bulk(ATTEMPT, 0, TableId(2), 1, b"some rows".to_vec())
        .await
        .unwrap();
    let stored = env.log.fetch_bulk_stored(ATTEMPT, 0).await.unwrap();
    assert_eq!(
        bulk::decode(&stored, generation(), ATTEMPT, &part).unwrap(),
        "some rows"
    );
    for at in 0..stored.len() {
        let mut flipped = stored.to_vec();
        flipped[at] ^= 1;
        assert!(
            bulk::decode(&flipped.into(), generation(), ATTEMPT, &part).is_err(),
            "{at}"
        );
        let cut = stored.slice(..at);
        assert!(
            bulk::decode(&cut, generation(), ATTEMPT, &part).is_err(),
            "{at}"
        );
    }
    let others = [
        (Generation::from_bytes([1; 16]), ATTEMPT, part.clone()),
        (
            generation(),
            Attempt {
                number: 2,
                ..ATTEMPT
            },
            part.clone(),
        ),
        (
            generation(),
            ATTEMPT,
            BulkPart {
                rows: 2,
                ..part.clone()
            },
        ),
        (
            generation(),
            ATTEMPT,
            BulkPart {
                table: TableId(9),
                ..part
            },
        ),
    ];
    for (generation, attempt, part) in others {
        let flaw = bulk::decode(&stored, generation, attempt, &part).unwrap_err();
        assert!(matches!(flaw, BulkFlaw::Other), "{flaw}");
    }
}
