//! Rule 12: frozen bytes, one object at a time.

use rindle_proto::ids::{Lsn, SegmentNo, Seq};

use super::env::{Env, append, move_to, start};
use crate::error::Kind;
use crate::testkit::{Faults, Moment, Source, SourceTxn};
use crate::{AppendError, NewSegment};

#[tokio::test]
async fn lost_answer_is_resolved_by_reading_back() {
    let env = Env::new().await;
    let mut writer = env.take_over().await.writer;
    let mut source = Source::at(start());
    source.txn(SourceTxn(1), 1);
    env.flaky.plan(Faults::Once(1, Moment::After));
    assert_eq!(
        writer.append(source.take()).await.unwrap().segment,
        SegmentNo(2)
    );
    assert_eq!(env.contents().await.texts(), ["1.1"]);
}

/// C11: what lands late is what the retry sends.
#[tokio::test]
async fn late_landing_is_confirmed_by_the_retry() {
    let env = Env::new().await;
    let mut writer = env.take_over().await.writer;
    let mut source = Source::at(start());
    source.txn(SourceTxn(1), 1);
    env.flaky.plan(Faults::Once(1, Moment::Late));
    let error = writer.append(source.take()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Retry);
    assert!(writer.is_pending());
    env.flaky.land().await;
    assert_eq!(writer.retry().await.unwrap().segment, SegmentNo(2));
    append(&mut writer, &mut source, &[2]).await;
    assert_eq!(env.contents().await.texts(), ["1.1", "2.1"]);
}

#[tokio::test]
async fn append_waits_for_the_object_before() {
    let env = Env::new().await;
    let mut writer = env.take_over().await.writer;
    let mut source = Source::at(start());
    source.txn(SourceTxn(1), 1);
    let segment = source.take();
    env.flaky.plan(Faults::ForEver(1, Moment::Before));
    writer.append(segment.clone()).await.unwrap_err();
    let refused = writer.append(segment).await.unwrap_err();
    assert!(matches!(refused, AppendError::Pending(SegmentNo(2))));
    env.flaky.plan(Faults::Never);
    writer.retry().await.unwrap();
    assert!(matches!(
        writer.retry().await,
        Err(AppendError::NothingPending)
    ));
}

#[tokio::test]
async fn foreign_object_in_the_place_is_a_conflict() {
    let env = Env::new().await;
    let mut writer = env.take_over().await.writer;
    std::fs::write(env.segment_path(2), b"something else").unwrap();
    let mut source = Source::at(start());
    source.txn(SourceTxn(1), 1);
    let refused = writer.append(source.take()).await.unwrap_err();
    assert!(matches!(refused, AppendError::Conflict { .. }), "{refused}");
    assert!(
        matches!(writer.retry().await, Err(AppendError::Conflict { .. })),
        "for ever"
    );
}

#[tokio::test]
async fn frames_that_do_not_go_on_are_refused_and_nothing_is_written() {
    let env = Env::new().await;
    let mut writer = env.take_over().await.writer;
    let mut source = Source::at(start());
    source.txn(SourceTxn(1), 2);
    let good = source.take();
    let mut flipped = good.frames.to_vec();
    flipped[40] ^= 1;
    let bad = [
        NewSegment {
            first_seq: Seq(2),
            ..good.clone()
        },
        NewSegment {
            last: start(),
            ..good.clone()
        },
        NewSegment {
            frames: good.frames.slice(1..),
            ..good.clone()
        },
        NewSegment {
            frames: good.frames.slice(..good.frames.len() - 1),
            ..good.clone()
        },
        NewSegment {
            frames: flipped.into(),
            ..good.clone()
        },
        NewSegment {
            last_commit: None,
            ..good.clone()
        },
    ];
    for (at, segment) in bad.into_iter().enumerate() {
        let refused = writer.append(segment).await.unwrap_err();
        assert!(
            matches!(refused, AppendError::Invalid { .. }),
            "{at}: {refused}"
        );
        assert_eq!(refused.kind(), Kind::Bug);
    }
    writer.append(good).await.unwrap();
    assert_eq!(env.contents().await.texts(), ["1.1", "1.2"]);
}

#[tokio::test]
async fn ticks_carry_no_frames_and_never_go_back() {
    let env = Env::new().await;
    let mut writer = env.take_over().await.writer;
    let mut source = Source::at(start());
    append(&mut writer, &mut source, &[1]).await;
    writer.append(source.take_tick(Lsn(500))).await.unwrap();
    assert!(writer.append(source.take_tick(Lsn(499))).await.is_err());
    let head = env.fresh_log().head().await.unwrap().unwrap();
    assert_eq!(
        (head.tick, head.through_lsn, head.frames),
        (true, Lsn(500), 0)
    );
    assert_eq!(head.last_commit.unwrap().segment, SegmentNo(2));
    assert_eq!(env.contents().await.ticks, 1);
}

/// The directory is moved away for a while: nothing is made in its place, and it goes on afterwards.
#[tokio::test]
async fn lost_directory_is_waited_for() {
    let env = Env::new().await;
    if env.is_bucket() {
        // Nobody moves a bucket; one that is not there is told by tests::bucket::absence_is_not_guessed.
        return;
    }
    let mut writer = env.take_over().await.writer;
    let mut source = Source::at(start());
    append(&mut writer, &mut source, &[1]).await;
    let away = env.root().with_extension("away");
    move_to(&env.root(), &away);
    source.txn(SourceTxn(2), 1);
    assert_eq!(
        writer.append(source.take()).await.unwrap_err().kind(),
        Kind::Retry
    );
    assert_eq!(writer.retry().await.unwrap_err().kind(), Kind::Retry);
    assert!(!env.root().exists());
    move_to(&away, &env.root());
    writer.retry().await.unwrap();
    assert_eq!(env.contents().await.texts(), ["1.1", "2.1"]);
}

/// A file in the way is any other reason why nothing can be written.
#[tokio::test]
async fn unwritable_directory_is_waited_for() {
    let env = Env::new().await;
    let mut writer = env.take_over().await.writer;
    let log = env.segment_path(1).parent().unwrap().to_owned();
    let away = log.with_extension("away");
    move_to(&log, &away);
    std::fs::write(&log, b"in the way").unwrap();
    let mut source = Source::at(start());
    source.txn(SourceTxn(1), 1);
    assert_eq!(
        writer.append(source.take()).await.unwrap_err().kind(),
        Kind::Retry
    );
    std::fs::remove_file(&log).unwrap();
    move_to(&away, &log);
    writer.retry().await.unwrap();
    assert_eq!(env.contents().await.texts(), ["1.1"]);
}
