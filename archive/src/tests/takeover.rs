//! Rules 4 to 8.

use rindle_proto::ids::{Epoch, Lsn, SegmentNo, Seq, Timeline};

use super::env::{Env, ONE, append, start};
use crate::error::Kind;
use crate::segment::CommitKind;
use crate::takeover::{History, TakeOverError};
use crate::testkit::{Faults, Moment, Source, SourceTxn};
use crate::{AppendError, ReadError};

#[tokio::test]
async fn first_takeover_fences_an_empty_log() {
    let env = Env::new().await;
    let taken = env.take_over().await;
    assert_eq!(taken.epoch, Epoch(1));
    assert_eq!(taken.tail.segment, SegmentNo(1));
    assert_eq!(taken.tail.position, start());
    assert_eq!(taken.tail.last_commit, None);
    assert!(!env.log.newer_epoch_exists(taken.epoch).await.unwrap());
    assert_eq!(env.contents().await.frames, []);
}

#[tokio::test]
async fn generation_without_a_record_is_not_taken_over() {
    let env = Env::new().await;
    std::fs::remove_file(env.path(&env.keys().record())).unwrap();
    let refused = env.log.take_over(ONE).await.unwrap_err();
    assert!(
        matches!(refused, TakeOverError::NoGeneration(_)),
        "{refused}"
    );
}

#[tokio::test]
async fn a_sealed_log_is_read_and_taken_over_by_nobody() {
    let env = Env::new().await;
    let mut first = env.take_over().await;
    let mut source = Source::at(first.tail.position);
    append(&mut first.writer, &mut source, &[1, 2]).await;
    for _ in 0..2 {
        env.fresh_log().seal(ONE).await.unwrap();
    }
    source.txn(SourceTxn(3), 1);
    let fenced = first.writer.append(source.take()).await.unwrap_err();
    assert!(matches!(fenced, AppendError::Fenced { .. }), "{fenced}");
    let refused = env.fresh_log().take_over(ONE).await.unwrap_err();
    assert!(matches!(refused, TakeOverError::Retired(_)), "{refused}");
    assert_eq!(env.contents().await.frames.len(), 2);
    assert!(env.fresh_log().head().await.unwrap().unwrap().seal);
}

#[tokio::test]
async fn next_writer_goes_on_at_the_last_commit() {
    let env = Env::new().await;
    let mut first = env.take_over().await;
    append(
        &mut first.writer,
        &mut Source::at(first.tail.position),
        &[1, 2],
    )
    .await;

    let mut second = env.take_over().await;
    assert_eq!(
        (second.epoch, second.tail.segment),
        (Epoch(2), SegmentNo(4))
    );
    let commit = second.tail.last_commit.unwrap();
    assert_eq!((commit.kind, commit.xid), (CommitKind::Txn, 2));
    assert_eq!((commit.position.seq, commit.before.seq), (Seq(2), Seq(1)));
    assert_eq!((commit.segment, commit.timeline), (SegmentNo(3), ONE));
    assert_eq!(second.tail.through_lsn, SourceTxn(2).end_lsn().0);
    let mut again = Source::at(commit.before);
    again.txn(SourceTxn(2), 1);
    assert_eq!(
        again.position(),
        commit.position,
        "a redelivered transaction has the same chain"
    );
    append(
        &mut second.writer,
        &mut Source::at(second.tail.position),
        &[3],
    )
    .await;
    assert_eq!(env.contents().await.texts(), ["1.1", "2.1", "3.1"]);
    assert!(env.log.newer_epoch_exists(Epoch(1)).await.unwrap());
}

#[tokio::test]
async fn older_writer_is_fenced() {
    let env = Env::new().await;
    let mut older = env.take_over().await;
    let mut newer = env.take_over().await;
    let mut source = Source::at(start());
    source.txn(SourceTxn(1), 1);
    let refused = older.writer.append(source.take()).await.unwrap_err();
    assert!(
        matches!(
            refused,
            AppendError::Fenced {
                by: Epoch(2),
                segment: SegmentNo(2),
                ..
            }
        ),
        "{refused}"
    );
    assert_eq!(refused.kind(), Kind::Halt);
    assert!(matches!(
        older.writer.retry().await,
        Err(AppendError::Fenced { .. })
    ));
    append(&mut newer.writer, &mut Source::at(start()), &[1]).await;
    assert_eq!(env.contents().await.texts(), ["1.1"]);
}

/// C6: the fence is built anew from an object that landed in its place.
#[tokio::test]
async fn late_object_of_a_lower_epoch_is_adopted() {
    let env = Env::new().await;
    let mut older = env.take_over().await;
    let mut source = Source::at(start());
    source.txn(SourceTxn(1), 1);
    env.flaky.plan(Faults::Once(1, Moment::Late));
    older.writer.append(source.take()).await.unwrap_err();

    // It lands while the newcomer is about to put its fence: after the claim, the search and the listing.
    let newer = env.fresh_log();
    let claimed = newer.claim(ONE).await.unwrap();
    env.flaky.land().await;
    let fence = newer
        .fence_behind(claimed, &ONE.into(), SegmentNo(0), SegmentNo(1), false)
        .await
        .unwrap();
    assert_eq!(fence.header.segment, SegmentNo(3));
    assert_eq!(fence.header.end.seq, Seq(1), "its commit is kept");
    assert_eq!(
        older.writer.retry().await.unwrap().segment,
        SegmentNo(2),
        "and was confirmed"
    );
    assert_eq!(env.contents().await.texts(), ["1.1"]);
}

#[tokio::test]
async fn late_object_after_the_fence_is_refused() {
    let env = Env::new().await;
    let mut older = env.take_over().await;
    let mut source = Source::at(start());
    source.txn(SourceTxn(1), 1);
    env.flaky.plan(Faults::Once(1, Moment::Late));
    older.writer.append(source.take()).await.unwrap_err();
    let newer = env.take_over().await;
    env.flaky.land().await;
    assert_eq!(newer.tail.segment, SegmentNo(2));
    assert!(matches!(
        older.writer.retry().await,
        Err(AppendError::Fenced { .. })
    ));
    assert_eq!(env.contents().await.frames, []);
}

/// C8: the half transaction at the tail comes again whole, with the same numbers.
#[tokio::test]
async fn half_transaction_is_discarded() {
    let env = Env::new().await;
    let mut first = env.take_over().await;
    let mut source = Source::at(start());
    append(&mut first.writer, &mut source, &[1]).await;
    source.part(SourceTxn(2), 1, 2);
    first.writer.append(source.take()).await.unwrap();

    let mut reader = env.fresh_log().reader(crate::ReadFrom::Start);
    let mut seen = super::env::Contents::default();
    seen.follow(&mut reader).await.unwrap();
    assert_eq!(seen.texts(), ["1.1", "2.1"]);

    let mut second = env.take_over().await;
    assert_eq!(second.tail.position.seq, Seq(1));
    let mut source = Source::at(second.tail.position);
    source.txn(SourceTxn(2), 2);
    second.writer.append(source.take()).await.unwrap();
    seen.follow(&mut reader).await.unwrap();
    assert_eq!(
        (seen.texts(), seen.discards),
        (vec!["1.1", "2.1", "2.2"], 1)
    );
    assert_eq!(env.contents().await.texts(), ["1.1", "2.1", "2.2"]);
}

/// Rule 19: a first copy without its end is discarded to the start.
#[tokio::test]
async fn unfinished_first_copy_is_discarded() {
    let env = Env::new().await;
    let mut first = env.take_over().await;
    let mut source = Source::at(start());
    source.begin_copy(Lsn(100));
    first.writer.append(source.take()).await.unwrap();
    source.txn(SourceTxn(2), 1);
    let told = source.take();
    let commit = told.last_commit;
    let held = first.writer.append(told.clone()).await.unwrap_err();
    assert!(
        matches!(held, AppendError::Invalid { .. }),
        "it must not count before the copy is done"
    );
    assert!(commit.is_some());
    first
        .writer
        .append(crate::NewSegment {
            last_commit: None,
            ..told
        })
        .await
        .unwrap();

    let mut second = env.take_over().await;
    assert_eq!(
        (second.tail.position, second.tail.last_commit),
        (start(), None)
    );
    let mut source = Source::at(start());
    source.begin_copy(Lsn(300));
    source.end_copy(Lsn(300));
    second.writer.append(source.take()).await.unwrap();
    append(&mut second.writer, &mut source, &[4]).await;
    let contents = env.contents().await;
    assert_eq!(
        (contents.texts(), contents.discards),
        (vec!["copy", "copy", "4.1"], 1)
    );

    let third = env.take_over().await;
    assert_eq!(third.tail.position, source.position());
}

#[tokio::test]
async fn finished_first_copy_is_a_commit() {
    let env = Env::new().await;
    let mut first = env.take_over().await;
    let mut source = Source::at(start());
    source.begin_copy(Lsn(100));
    source.end_copy(Lsn(100));
    first.writer.append(source.take()).await.unwrap();
    let commit = env.take_over().await.tail.last_commit.unwrap();
    assert_eq!(
        (commit.kind, commit.end_lsn.0),
        (CommitKind::CopyDone, Lsn(100))
    );
}

/// C9: an epoch that is already overtaken writes nothing.
#[tokio::test]
async fn slow_takeover_sees_a_later_epoch_at_the_tail() {
    let env = Env::new().await;
    let slow = env.fresh_log();
    let claimed = slow.claim(ONE).await.unwrap();
    env.take_over().await;
    let refused = slow
        .fence_behind(claimed, &ONE.into(), SegmentNo(0), SegmentNo(1), false)
        .await
        .unwrap_err();
    assert!(
        matches!(refused, TakeOverError::Fenced { by: Epoch(2), .. }),
        "{refused}"
    );
    assert_eq!(
        env.fresh_log().head().await.unwrap().unwrap().segment,
        SegmentNo(1)
    );
}

/// And so does one that loses the slot of its fence to a later epoch.
#[tokio::test]
async fn slow_fence_is_refused_by_a_later_one() {
    let env = Env::new().await;
    let slow = env.fresh_log();
    let claimed = slow.claim(ONE).await.unwrap();
    env.take_over().await;
    let refused = slow
        .fence_behind(claimed, &ONE.into(), SegmentNo(0), SegmentNo(0), false)
        .await
        .unwrap_err();
    assert!(
        matches!(refused, TakeOverError::Fenced { by: Epoch(2), .. }),
        "{refused}"
    );
}

/// C3: the old primary came back.
#[tokio::test]
async fn server_on_an_older_timeline_is_refused() {
    let env = Env::new().await;
    env.fresh_log().take_over(Timeline(2)).await.unwrap();
    let refused = env.fresh_log().take_over(ONE).await.unwrap_err();
    assert!(
        matches!(refused, TakeOverError::TimelineBehind { .. }),
        "{refused}"
    );
    assert_eq!(refused.kind(), Kind::Halt);
}

/// Rule 3: a fence carries `through_lsn`, capped where its timeline was left.
#[tokio::test]
async fn fence_caps_the_idle_position_at_the_switch() {
    let env = Env::new().await;
    let mut first = env.take_over().await;
    let mut source = Source::at(start());
    append(&mut first.writer, &mut source, &[1]).await;
    first
        .writer
        .append(source.take_tick(Lsn(900)))
        .await
        .unwrap();
    let kept = env.take_over().await.tail;
    assert_eq!((kept.through_lsn, kept.through_timeline), (Lsn(900), ONE));

    let bare = env.fresh_log().take_over(Timeline(2)).await.unwrap_err();
    assert!(matches!(bare, TakeOverError::SwitchUnknown(ONE)), "{bare}");
    let history = History {
        timeline: Timeline(2),
        switches: vec![(ONE, Lsn(500))],
    };
    let capped = env.fresh_log().take_over(history).await.unwrap().tail;
    assert_eq!(
        (capped.through_lsn, capped.through_timeline),
        (Lsn(500), ONE)
    );
    assert_eq!(capped.last_commit.unwrap().timeline, ONE);
}

/// C15: whichever of its calls is slow, while the older writer goes on and the log is trimmed, the fence ends up
/// above the boundary and behind everything that was confirmed.
#[tokio::test]
async fn fence_below_the_boundary_is_not_enough() {
    let mut stray = 0;
    for call in 1.. {
        let env = Env::new().await;
        let mut older = env.take_over().await;
        let mut source = Source::at(start());
        env.flaky.plan(Faults::Once(call, Moment::Stalled));
        let log = env.fresh_log();
        let slow = tokio::spawn(async move { log.take_over(ONE).await });
        while env.flaky.fired() == 0 && !slow.is_finished() {
            tokio::task::yield_now().await;
        }
        if slow.is_finished() {
            assert!(call > 8, "every call was slow once");
            assert!(stray > 0, "once the fence landed below the boundary");
            return;
        }
        let mut confirmed = 0;
        for txn in 1..=4 {
            source.txn(SourceTxn(txn), 1);
            match older.writer.append(source.take()).await {
                Ok(_) => confirmed = txn,
                Err(_fenced) => break,
            }
        }
        if confirmed == 4 {
            env.trim(3);
        }
        env.flaky.land().await;
        let taken = slow.await.unwrap().unwrap();
        stray += u64::from(taken.epoch > Epoch(2));
        assert_eq!(taken.tail.position.seq, Seq(confirmed), "call {call}");
        assert_eq!(taken.tail.segment, SegmentNo(confirmed + 2), "call {call}");
        source.txn(SourceTxn(5), 1);
        assert!(
            older.writer.append(source.take()).await.is_err(),
            "call {call}"
        );
    }
}

/// A fence is never put into a hole: either the takeover stops there, or its search passed over it, and readers
/// stop there.
#[tokio::test]
async fn hole_is_never_fenced() {
    let mut stopped = 0;
    for hole in 1..9 {
        let env = Env::new().await;
        let mut first = env.take_over().await;
        append(
            &mut first.writer,
            &mut Source::at(start()),
            &[1, 2, 3, 4, 5, 6, 7, 8],
        )
        .await;
        std::fs::remove_file(env.segment_path(hole)).unwrap();
        let key = env.keys().segment(SegmentNo(hole)).to_string();
        match env.fresh_log().take_over(ONE).await {
            Ok(taken) => assert_eq!(taken.tail.segment, SegmentNo(10)),
            Err(error) => {
                assert_eq!(error.kind(), Kind::Corrupt);
                assert!(
                    matches!(error, TakeOverError::Read(ReadError::Gap { key: k }) if k == key)
                );
                stopped += 1;
            }
        }
        assert!(!env.segment_path(hole).exists());
    }
    assert!(stopped > 0);
}

#[tokio::test]
async fn damaged_head_stops_a_takeover() {
    let env = Env::new().await;
    let mut first = env.take_over().await;
    append(&mut first.writer, &mut Source::at(start()), &[1]).await;
    let path = env.segment_path(2);
    let mut bytes = std::fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let refused = env.fresh_log().take_over(ONE).await.unwrap_err();
    assert!(
        matches!(refused, TakeOverError::Read(ReadError::Corrupt { .. })),
        "{refused}"
    );
}
