//! Images, and the archive's log without a gateway.

use rindle_archive::{Archive, Commit, CommitKind, ImageBase, ImageInfo, NewSegment, Writer};
use rindle_proto::body::PgMicros;
use rindle_proto::frame::{FrameFlags, FrameKind, FrameReader};
use rindle_proto::ids::{EndLsn, FinalLsn, Lsn, Position, SegmentNo, Seq, Timeline};
use rindle_proto::rpc::Restore;
use rindle_proto::rpc::restore::Reason;
use rindle_proto::rpc::subscribe_reply::Reply;
use serde_json::json;

use super::env::{Env, frames, opened};
use crate::mirror::image;
use crate::mirror::tests::{Env as Made, O, generation, row, two_tables};

/// Publishes what a mirror holds.
async fn publish(env: &Env, made: &mut Made, number: u64) -> ImageInfo {
    let file = env.dir.path().join(format!("image-{number}.db"));
    image::write(&mut made.mirror, &file).unwrap();
    let facts = image::prove(&file).unwrap();
    let base = ImageBase {
        segment: SegmentNo(number),
        position: facts.cursor.position,
        epoch: facts.cursor.epoch,
        end_lsn: facts.cursor.end_lsn,
        tables: Vec::new(),
    };
    let images = env.archive().await.images(generation());
    images.publish(&file, base, |_| {}).await.unwrap()
}

async fn mint(archive: &Archive) {
    let record = rindle_archive::testkit::generation_record(generation());
    archive.create_generation(&record).await.unwrap();
    archive.set_current(None, generation()).await.unwrap();
}

#[tokio::test]
async fn newest_image_is_restored_and_followed_from_its_base() {
    let mut env = Env::new(true, true).await;
    mint(&env.archive().await).await;
    let mut made = Made::with(&two_tables(), &[(1, row(1, "one"))]);
    publish(&env, &mut made, 1).await;
    made.run(&[O::Insert(1, row(2, "two"))]);
    publish(&env, &mut made, 2).await;
    made.run(&[O::Insert(1, row(3, "streamed"))]);
    let said = vec![opened(generation(), 1), frames(&made.log.raw[3..])];
    env.gateway.script(said, true);
    env.start().await;
    env.until_applied(4).await;
    let request = env.gateway.until_subscribed(1).await;
    assert_eq!((request.seq, request.can_restore), (3, true));
    assert_eq!(env.rows("SELECT count(*) FROM t").await, json!([[3]]));
    assert_eq!(env.state.view().warnings, Vec::<String>::new());
}

#[tokio::test]
async fn damaged_image_is_named_and_the_one_before_it_used() {
    let mut env = Env::new(true, true).await;
    mint(&env.archive().await).await;
    let mut made = Made::with(&two_tables(), &[(1, row(1, "one"))]);
    publish(&env, &mut made, 1).await;
    made.run(&[O::Insert(1, row(2, "two"))]);
    let newest = publish(&env, &mut made, 2).await;
    damage(&env, &newest);
    env.gateway.script(vec![opened(generation(), 1)], true);
    env.start().await;
    env.until_ready().await;
    assert_eq!(env.gateway.until_subscribed(1).await.seq, 2);
    assert_eq!(env.rows("SELECT count(*) FROM t").await, json!([[1]]));
    let warnings = env.state.view().warnings;
    assert!(
        warnings[0].contains(&newest.id) && warnings[0].contains("damaged"),
        "{warnings:?}"
    );
}

fn damage(env: &Env, image: &ImageInfo) {
    let slice = find(&env.dir.path().join("archive"), &image.id);
    let mut bytes = std::fs::read(&slice).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0xff;
    std::fs::write(&slice, bytes).unwrap();
}

#[tokio::test]
async fn served_mirror_never_goes_back_to_an_older_image() {
    let mut env = Env::new(true, true).await;
    mint(&env.archive().await).await;
    let mut made = Made::with(&two_tables(), &[(1, row(1, "one"))]);
    publish(&env, &mut made, 1).await;
    made.run(&[O::Insert(1, row(2, "two"))]);
    let said = vec![opened(generation(), 1), frames(&made.log.raw[2..])];
    env.gateway.script(said, true);
    env.start().await;
    env.until_applied(3).await;
    made.run(&[O::Insert(1, row(3, "three"))]);
    let newest = publish(&env, &mut made, 2).await;
    damage(&env, &newest);
    let behind = |reason: Reason| {
        Reply::Restore(Restore {
            reason: reason.into(),
            detail: String::new(),
            generation: generation().to_string(),
        })
    };
    env.gateway
        .script(vec![opened(generation(), 1), behind(Reason::Trimmed)], true);
    env.gateway.say(behind(Reason::TooFarBehind)).await;
    let request = env.gateway.until_subscribed(2).await;
    assert_eq!((request.seq, request.can_restore), (3, false));
    let reason = env.until_reason("no longer reaches back").await;
    assert!(reason.contains(&newest.id), "{reason}");
    assert_eq!(env.rows("SELECT count(*) FROM t").await, json!([[2]]));
}

#[tokio::test]
async fn gateway_of_another_generation_is_not_followed_while_the_pointer_cannot_be_read() {
    let mut env = Env::new(true, true).await;
    mint(&env.archive().await).await;
    let mut made = Made::with(&two_tables(), &[(1, row(1, "one"))]);
    publish(&env, &mut made, 1).await;
    env.gateway.script(vec![opened(generation(), 1)], true);
    env.start().await;
    env.until_ready().await;
    env.gateway.until_subscribed(1).await;
    env.stop().await;
    for entry in files_under(&env.dir.path().join("archive")) {
        if entry.to_string_lossy().contains("current") {
            std::fs::write(&entry, "no document").unwrap();
        }
    }
    let other = rindle_proto::ids::Generation::from_bytes([3; 16]);
    let served = Reply::Restore(Restore {
        reason: Reason::OtherGeneration.into(),
        detail: String::new(),
        generation: other.to_string(),
    });
    env.gateway.script(vec![opened(other, 1), served], true);
    env.gateway.script(vec![opened(generation(), 1)], true);
    env.start().await;
    let request = env.gateway.until_subscribed(3).await;
    assert_eq!(request.generation, generation().to_string());
    assert_eq!(env.rows("SELECT count(*) FROM t").await, json!([[1]]));
}

fn files_under(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let (mut folders, mut files) = (vec![folder.to_owned()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => files.push(path),
            }
        }
    }
    files
}

/// The one slice of an image.
fn find(folder: &std::path::Path, id: &str) -> std::path::PathBuf {
    let slice = files_under(folder).into_iter().find(|path| {
        let name = path.to_string_lossy();
        name.contains(id) && !name.ends_with("manifest.json")
    });
    slice.unwrap_or_else(|| panic!("image {id} has no slice"))
}

/// Appends raw frames as one segment.
async fn append(writer: &mut Writer, raw: &[bytes::Bytes]) {
    let bytes: bytes::Bytes = raw.concat().into();
    let mut reader = FrameReader::new();
    reader.push(bytes.clone());
    let (mut position, mut before) = (writer.position(), writer.position());
    let first_seq = Seq(position.seq.0 + 1);
    let mut last_commit = None;
    while let Some(frame) = reader.next_frame().unwrap() {
        if frame.flags.first && frame.kind != FrameKind::CopyDone {
            before = position;
        }
        position = position.after(&frame).unwrap();
        if frame.flags.last && frame.kind != FrameKind::CopyBegin {
            last_commit = Some(commit(frame.kind, frame.lsn, position, before));
        }
        assert_ne!(
            frame.flags,
            FrameFlags {
                first: false,
                last: false
            }
        );
    }
    let segment = NewSegment {
        frames: bytes,
        first_seq,
        last: position,
        last_commit,
        through_lsn: last_commit.map_or(Lsn(1018), |commit| commit.end_lsn.0),
        tick: false,
    };
    writer.append(segment).await.unwrap();
}

fn commit(kind: FrameKind, lsn: Lsn, position: Position, before: Position) -> Commit {
    let copy = kind == FrameKind::CopyDone;
    Commit {
        kind: if copy {
            CommitKind::CopyDone
        } else {
            CommitKind::Txn
        },
        position,
        before,
        final_lsn: FinalLsn(lsn),
        end_lsn: EndLsn(Lsn(lsn.0 + if copy { 0 } else { 8 })),
        xid: if copy { 0 } else { 7 },
        commit_time: PgMicros(if copy { 0 } else { lsn.0 as i64 }),
    }
}

#[tokio::test]
async fn archive_is_followed_without_a_gateway() {
    let mut env = Env::new(false, true).await;
    let archive = env.archive().await;
    mint(&archive).await;
    let mut made = Made::with(&two_tables(), &[]);
    let log = archive.log(generation());
    let mut writer = log.take_over(Timeline(1)).await.unwrap().writer;
    append(&mut writer, &made.log.raw).await;
    env.start().await;
    env.until_applied(2).await;
    made.run(&[O::Insert(1, row(1, "one"))]);
    append(&mut writer, &made.log.raw[2..]).await;
    env.until_applied(3).await;
    assert_eq!(env.rows("SELECT a FROM t").await, json!([["one"]]));
    let cursor = *env.state.applied().borrow();
    assert!(cursor.unwrap().segment.is_some());

    // A transaction that a crash of its gateway cut off never shows, and its numbers come again.
    let position = made.log.writer.position();
    let half = made.log.parts(
        &[O::Insert(1, row(2, "cut")), O::Insert(1, row(3, "cut"))],
        &[1],
    );
    append(&mut writer, &made.log.raw[3..4]).await;
    drop((half, writer));
    let mut writer = archive
        .log(generation())
        .take_over(Timeline(1))
        .await
        .unwrap()
        .writer;
    made.log.writer = rindle_proto::frame::FrameWriter::new(position);
    made.log.txn(&[O::Insert(1, row(9, "whole"))]);
    append(&mut writer, &made.log.raw[5..]).await;
    env.until_applied(4).await;
    assert_eq!(
        env.rows("SELECT id FROM t ORDER BY id").await,
        json!([[1], [9]])
    );
    env.stop().await;
    env.start().await;
    env.until_ready().await;
    assert_eq!(env.state.applied().borrow().unwrap().position.seq, Seq(4));
}
