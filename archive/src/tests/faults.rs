//! Fault loops: call 1 fails, then call 2, until none does; once and for ever, before and after its effect, and
//! late. Whatever is confirmed stands, and the same work succeeds when the store answers again.

use rindle_proto::body::Attempt;
use rindle_proto::ids::{Epoch, SegmentNo, Seq};
use rindle_proto::schema::TableId;

use super::env::{Env, ONE, generation, start};
use crate::Writer;
use crate::error::Kind;
use crate::testkit::{Faults, FlakyStore, Moment, Source, SourceTxn};

const MOMENTS: [Moment; 3] = [Moment::Before, Moment::After, Moment::Late];

/// Every plan that fails call `call`.
fn plans(call: u64) -> impl Iterator<Item = Faults> {
    MOMENTS
        .into_iter()
        .flat_map(move |moment| [Faults::Once(call, moment), Faults::ForEver(call, moment)])
}

/// Tells whether any call failed, and lets everything happen.
async fn heal(flaky: &FlakyStore) -> bool {
    let fired = flaky.fired() > 0;
    flaky.plan(Faults::Never);
    flaky.land().await;
    fired
}

/// Appends as a gateway does: tries again a few times, and goes on when the store is healed.
async fn append_through(env: &Env, writer: &mut Writer, source: &mut Source, txns: u64) -> bool {
    let mut fired = false;
    for txn in 1..=txns {
        source.txn(SourceTxn(txn), 2);
        let mut result = writer.append(source.take()).await;
        for attempt in 0..4 {
            let Err(error) = &result else { break };
            assert_eq!(error.kind(), Kind::Retry, "{error}");
            if attempt == 2 {
                fired |= heal(&env.flaky).await;
            }
            result = writer.retry().await;
        }
        result.unwrap();
    }
    fired
}

#[tokio::test]
async fn append_survives_any_fault() {
    for call in 1.. {
        let mut fired = false;
        for plan in plans(call) {
            let env = Env::new().await;
            let mut writer = env.take_over().await.writer;
            env.flaky.plan(plan);
            let mut source = Source::at(start());
            fired |= append_through(&env, &mut writer, &mut source, 3).await;
            fired |= heal(&env.flaky).await;
            let expected = ["1.1", "1.2", "2.1", "2.2", "3.1", "3.2"];
            assert_eq!(env.contents().await.texts(), expected, "{plan:?}");
            assert_eq!(writer.segment(), SegmentNo(4), "{plan:?}");
        }
        if !fired {
            assert!(call > 3);
            return;
        }
    }
}

#[tokio::test]
async fn takeover_survives_any_fault() {
    for call in 1.. {
        let mut fired = false;
        for plan in plans(call) {
            let env = Env::new().await;
            let mut writer = env.take_over().await.writer;
            let mut source = Source::at(start());
            source.txn(SourceTxn(1), 1);
            source.part(SourceTxn(2), 1, 2);
            writer.append(source.take()).await.unwrap();

            env.flaky.plan(plan);
            for _ in 0..3 {
                if let Err(error) = env.fresh_log().take_over(ONE).await {
                    assert_eq!(error.kind(), Kind::Retry, "{plan:?}: {error}");
                }
            }
            fired |= heal(&env.flaky).await;
            let mut taken = env.take_over().await;
            assert_eq!(taken.tail.position.seq, Seq(1), "{plan:?}");
            assert!(!env.log.newer_epoch_exists(taken.epoch).await.unwrap());
            let mut source = Source::at(taken.tail.position);
            source.txn(SourceTxn(2), 2);
            taken.writer.append(source.take()).await.unwrap();
            assert_eq!(
                env.contents().await.texts(),
                ["1.1", "2.1", "2.2"],
                "{plan:?}"
            );
        }
        if !fired {
            assert!(call > 8);
            return;
        }
    }
}

#[tokio::test]
async fn bulk_survives_any_fault() {
    let attempt = Attempt {
        epoch: Epoch(1),
        number: 0,
    };
    for call in 1.. {
        let mut fired = false;
        for plan in plans(call) {
            let env = Env::new().await;
            env.flaky.plan(plan);
            let put = async || {
                env.log
                    .put_bulk(attempt, 0, TableId(1), 3, b"rows".to_vec())
                    .await
            };
            let mut result = put().await;
            for tried in 0..4 {
                let Err(error) = &result else { break };
                assert_eq!(error.kind(), Kind::Retry, "{plan:?}: {error}");
                if tried == 2 {
                    fired |= heal(&env.flaky).await;
                }
                result = put().await;
            }
            let part = result.unwrap();
            fired |= heal(&env.flaky).await;
            assert_eq!(
                env.log.fetch_bulk(attempt, &part).await.unwrap(),
                "rows",
                "{plan:?}"
            );
        }
        if !fired {
            return;
        }
    }
}

#[tokio::test]
async fn pointer_survives_any_fault() {
    for call in 1.. {
        let mut fired = false;
        for plan in plans(call) {
            let env = Env::new().await;
            env.flaky.plan(plan);
            for _ in 0..3 {
                match env.archive.set_current(None, generation()).await {
                    Ok(_) => break,
                    Err(error) => assert_ne!(error.kind(), Kind::Corrupt, "{plan:?}: {error}"),
                }
            }
            fired |= heal(&env.flaky).await;
            let current = env.archive.current().await.unwrap();
            if current.is_none() {
                env.archive.set_current(None, generation()).await.unwrap();
            }
            let current = env.archive.current().await.unwrap().unwrap();
            assert_eq!(current.generation, generation());
            let moved = env
                .archive
                .set_current(None, generation())
                .await
                .unwrap_err();
            assert_eq!(moved.kind(), Kind::Refused);
            let next = env
                .archive
                .set_current(Some(&current), generation())
                .await
                .unwrap();
            assert_eq!(next.previous, Some(generation()));
        }
        if !fired {
            return;
        }
    }
}
