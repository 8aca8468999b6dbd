//! Rules 18 and 20, and that damage is named.

use rindle_proto::ids::{Digest, Generation, Lsn, Position, SegmentNo, Seq};

use super::env::{Contents, Env, append, start};
use crate::error::Kind;
use crate::testkit::{Faults, Moment, Source, SourceTxn};
use crate::{ReadError, ReadFrom, ReadStep};

/// Segments: 1 fence, 2-4 txns 1-3, 5 half of 4, 6 fence, 7 txn 4 (2 frames), 8 tick, 9 txn 5, 10 fence.
async fn some_log(env: &Env) -> Vec<Position> {
    let mut first = env.take_over().await;
    let mut source = Source::at(start());
    let mut commits = Vec::new();
    for txn in 1..=3 {
        append(&mut first.writer, &mut source, &[txn]).await;
        commits.push(source.position());
    }
    source.part(SourceTxn(4), 1, 2);
    first.writer.append(source.take()).await.unwrap();
    let mut second = env.take_over().await;
    let mut source = Source::at(second.tail.position);
    source.txn(SourceTxn(4), 2);
    commits.push(source.position());
    second.writer.append(source.take()).await.unwrap();
    second
        .writer
        .append(source.take_tick(Lsn(450)))
        .await
        .unwrap();
    append(&mut second.writer, &mut source, &[5]).await;
    commits.push(source.position());
    env.take_over().await;
    commits
}

const ALL: [&str; 6] = ["1.1", "2.1", "3.1", "4.1", "4.2", "5.1"];

async fn first_error(env: &Env, from: ReadFrom) -> ReadError {
    let mut reader = env.fresh_log().reader(from);
    loop {
        match reader.next().await {
            Ok(ReadStep::End) => panic!("nothing is wrong"),
            Ok(_) => {}
            Err(error) => return error,
        }
    }
}

#[tokio::test]
async fn reads_everything_over_fences() {
    let env = Env::new().await;
    some_log(&env).await;
    let contents = env.contents().await;
    assert_eq!(contents.texts(), ALL);
    assert_eq!((contents.discards, contents.ticks), (1, 1));
}

#[tokio::test]
async fn goes_on_after_any_commit() {
    let env = Env::new().await;
    let commits = some_log(&env).await;
    for trimmed in [0, 1] {
        env.trim(trimmed);
        for position in commits.clone() {
            let mut contents = Contents::default();
            let given = position.seq.0 as usize;
            contents.frames = vec![(position.seq, String::new()); given];
            let mut reader = env.fresh_log().reader(ReadFrom::Position { position });
            contents.follow(&mut reader).await.unwrap();
            assert_eq!(contents.texts()[given..], ALL[given..]);
            assert_eq!(reader.position().seq, Seq(6));
        }
    }
}

#[tokio::test]
async fn image_base_is_read_again_and_skipped() {
    let env = Env::new().await;
    let commits = some_log(&env).await;
    env.trim(6);
    let from = ReadFrom::Image {
        segment: SegmentNo(7),
        position: commits[3],
    };
    let mut contents = Contents {
        frames: vec![(Seq(5), String::new()); 5],
        ..Contents::default()
    };
    contents
        .follow(&mut env.fresh_log().reader(from))
        .await
        .unwrap();
    assert_eq!(contents.texts()[5..], ["5.1"]);
    let wrong = Position {
        chain: Digest([1; 32]),
        ..commits[3]
    };
    let from = ReadFrom::Image {
        segment: SegmentNo(7),
        position: wrong,
    };
    assert!(matches!(
        first_error(&env, from).await,
        ReadError::ChainDiffers { seq: Seq(5) }
    ));
}

#[tokio::test]
async fn other_history_is_told() {
    let env = Env::new().await;
    let commits = some_log(&env).await;
    let chain = Digest([1; 32]);
    for position in &commits {
        let from = ReadFrom::Position {
            position: Position { chain, ..*position },
        };
        assert!(matches!(
            first_error(&env, from).await,
            ReadError::ChainDiffers { .. }
        ));
    }
    let inside = Position { seq: Seq(4), chain };
    let from = ReadFrom::Position { position: inside };
    assert!(
        matches!(
            first_error(&env, from).await,
            ReadError::ChainDiffers { .. }
        ),
        "no commit"
    );
    let other = Position::start(Generation::from_bytes([1; 16]));
    let from = ReadFrom::Position { position: other };
    assert!(matches!(
        first_error(&env, from).await,
        ReadError::ChainDiffers { seq: Seq(0) }
    ));
}

#[tokio::test]
async fn position_beyond_the_log_is_waited_for() {
    let env = Env::new().await;
    some_log(&env).await;
    let position = Position {
        seq: Seq(7),
        chain: Digest([1; 32]),
    };
    let error = first_error(&env, ReadFrom::Position { position }).await;
    assert!(
        matches!(
            error,
            ReadError::NotYet {
                wanted: Seq(7),
                last_commit: Seq(6)
            }
        ),
        "{error}"
    );
    assert_eq!(error.kind(), Kind::Retry);
    let empty = Env::new().await;
    let error = first_error(&empty, ReadFrom::Position { position }).await;
    assert!(
        matches!(
            error,
            ReadError::NotYet {
                last_commit: Seq(0),
                ..
            }
        ),
        "{error}"
    );
}

#[tokio::test]
async fn trimmed_is_told() {
    let env = Env::new().await;
    let commits = some_log(&env).await;
    env.trim(3);
    assert!(matches!(
        first_error(&env, ReadFrom::Start).await,
        ReadError::Trimmed {
            segment: SegmentNo(1),
            boundary: SegmentNo(3)
        }
    ));
    let before = ReadFrom::Position {
        position: commits[0],
    };
    assert!(matches!(
        first_error(&env, before).await,
        ReadError::Trimmed { .. }
    ));
    let edge = ReadFrom::Position {
        position: commits[1],
    };
    let mut contents = Contents {
        frames: vec![(Seq(2), String::new()); 2],
        ..Contents::default()
    };
    contents
        .follow(&mut env.fresh_log().reader(edge))
        .await
        .unwrap();
    assert_eq!(contents.texts()[2..], ALL[2..]);
}

/// C16: an object below the boundary is not taken, even when it is there.
#[tokio::test]
async fn object_below_the_boundary_is_not_taken() {
    let env = Env::new().await;
    some_log(&env).await;
    let mut reader = env.fresh_log().reader(ReadFrom::Start);
    reader.next().await.unwrap();
    let kept = std::fs::read(env.segment_path(3)).unwrap();
    env.trim(3);
    std::fs::write(env.segment_path(3), kept).unwrap();
    assert!(matches!(
        reader.next().await,
        Err(ReadError::Trimmed { .. })
    ));
}

#[tokio::test]
async fn reader_at_the_end_sees_what_comes() {
    let env = Env::new().await;
    let mut reader = env.fresh_log().reader(ReadFrom::Start);
    let mut contents = Contents::default();
    contents.follow(&mut reader).await.unwrap();
    let mut taken = env.take_over().await;
    let mut source = Source::at(start());
    for txn in 1..=3 {
        append(&mut taken.writer, &mut source, &[txn]).await;
        contents.follow(&mut reader).await.unwrap();
    }
    assert_eq!(contents.texts(), ["1.1", "2.1", "3.1"]);
}

#[tokio::test]
async fn hole_is_named() {
    let env = Env::new().await;
    some_log(&env).await;
    for hole in 1..=9 {
        let path = env.segment_path(hole);
        let kept = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let key = env.keys().segment(SegmentNo(hole)).to_string();
        let error = first_error(&env, ReadFrom::Start).await;
        assert!(
            matches!(&error, ReadError::Gap { key: named } if *named == key),
            "{error}"
        );
        std::fs::write(&path, kept).unwrap();
    }
    assert_eq!(env.contents().await.texts(), ALL);
}

/// Any one byte flipped, and any object cut or made longer: a named stop.
#[tokio::test]
async fn damage_is_named() {
    let env = Env::new().await;
    some_log(&env).await;
    for segment in 1..=10 {
        let path = env.segment_path(segment);
        let kept = std::fs::read(&path).unwrap();
        let key = env.keys().segment(SegmentNo(segment)).to_string();
        let mut damaged: Vec<Vec<u8>> = vec![Vec::new(), kept[..kept.len() - 1].to_vec()];
        damaged.push([&kept[..], b"x"].concat());
        for at in (0..kept.len()).step_by(7).chain([kept.len() - 1]) {
            let mut flipped = kept.clone();
            flipped[at] ^= 0x10;
            damaged.push(flipped);
        }
        for bytes in damaged {
            std::fs::write(&path, bytes).unwrap();
            let error = first_error(&env, ReadFrom::Start).await;
            assert!(
                matches!(&error, ReadError::Corrupt { key: named, .. } if *named == key),
                "{segment}: {error}"
            );
            assert_eq!(error.kind(), Kind::Corrupt);
        }
        std::fs::write(&path, kept).unwrap();
    }
}

/// Second line: an object that is valid by itself but belongs elsewhere.
#[tokio::test]
async fn replaced_object_is_named() {
    let env = Env::new().await;
    some_log(&env).await;
    let other = Env::new().await;
    let mut writer = other.take_over().await.writer;
    let mut source = Source::at(start());
    append(&mut writer, &mut source, &[1, 2]).await;
    std::fs::copy(other.segment_path(3), env.segment_path(3)).unwrap();
    let error = first_error(&env, ReadFrom::Start).await;
    assert!(matches!(error, ReadError::Corrupt { .. }), "{error}");
    std::fs::copy(env.segment_path(2), env.segment_path(3)).unwrap();
    assert!(matches!(
        first_error(&env, ReadFrom::Start).await,
        ReadError::Corrupt { .. }
    ));
}

/// Whatever call fails, the reader that tries again misses and doubles nothing.
#[tokio::test]
async fn failed_reads_are_tried_again() {
    for forever in [false, true] {
        for call in 1.. {
            let env = Env::new().await;
            let commits = some_log(&env).await;
            let mut contents = Contents::default();
            let mut reader = env.fresh_log().reader(ReadFrom::Start);
            let mut late = env.fresh_log().reader(ReadFrom::Position {
                position: commits[3],
            });
            env.flaky.plan(match forever {
                true => Faults::ForEver(call, Moment::Before),
                false => Faults::Once(call, Moment::Before),
            });
            let mut tail = Contents {
                frames: vec![(Seq(5), String::new()); 5],
                ..Contents::default()
            };
            for _ in 0..2 {
                for (contents, reader) in [(&mut contents, &mut reader), (&mut tail, &mut late)] {
                    if let Err(error) = contents.follow(reader).await {
                        assert_eq!(error.kind(), Kind::Retry, "{error}");
                    }
                }
            }
            let fired = env.flaky.fired();
            env.flaky.plan(Faults::Never);
            contents.follow(&mut reader).await.unwrap();
            tail.follow(&mut late).await.unwrap();
            assert_eq!(contents.texts(), ALL, "call {call}");
            assert_eq!(tail.texts()[5..], ALL[5..], "call {call}");
            if fired == 0 {
                break;
            }
        }
    }
}
