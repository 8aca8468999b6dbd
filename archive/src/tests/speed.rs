//! How fast segments go in and out. Run with `cargo test -p rindle-archive -- --ignored --nocapture speed`.

use std::time::Instant;

use rindle_proto::frame::{FrameFlags, FrameKind, FrameWriter, PART_BYTES};
use rindle_proto::ids::{Lsn, Position};

use super::env::{ONE, generation, start};
use crate::testkit::generation_record;
use crate::{Archive, BackupConfig, NewSegment, ReadFrom, ReadStep};

const SEGMENTS: usize = 24;
const PARTS: usize = 8;

#[tokio::test]
#[ignore = "a measurement"]
async fn speed() {
    let directory = tempfile::tempdir().unwrap();
    let config = BackupConfig::Filesystem {
        path: directory.path().to_owned(),
    };
    let archive = Archive::open(&config, &"app".parse().unwrap())
        .await
        .unwrap();
    archive
        .create_generation(&generation_record(generation()))
        .await
        .unwrap();
    let log = archive.log(generation());
    let mut writer = log.take_over(ONE).await.unwrap().writer;
    let mut position = start();
    let segments: Vec<_> = (0..SEGMENTS).map(|_| segment(&mut position)).collect();
    let bytes: usize = segments.iter().map(|segment| segment.frames.len()).sum();
    let report = |what, since: Instant| {
        let rate = bytes as f64 / since.elapsed().as_secs_f64() / 1e6;
        eprintln!("{what}: {rate:.0} MB/s");
    };
    let since = Instant::now();
    let mut stored = 0;
    for segment in segments {
        stored += writer.append(segment).await.unwrap().stored_bytes;
    }
    report("append", since);
    eprintln!(
        "compressed to {:.0} %",
        100.0 * stored as f64 / bytes as f64
    );
    let since = Instant::now();
    let mut reader = log.reader(ReadFrom::Start);
    while !matches!(reader.next().await.unwrap(), ReadStep::End) {}
    report("read", since);
}

fn segment(position: &mut Position) -> NewSegment {
    let first_seq = position.seq.next();
    let mut writer = FrameWriter::new(*position);
    for part in 0..PARTS {
        let payload = writer.open();
        let end = payload.len() + PART_BYTES;
        let mut id = first_seq.0 * 7919 + part as u64;
        while payload.len() < end {
            id = id.wrapping_mul(6364136223846793005).wrapping_add(1);
            payload.extend_from_slice(format!("row {} name-{:x} ok\n", id >> 40, id).as_bytes());
        }
        let flags = FrameFlags {
            first: part == 0,
            last: false,
        };
        *position = writer.finish(FrameKind::Txn, flags, Lsn(1)).unwrap();
    }
    NewSegment {
        frames: writer.take().into(),
        first_seq,
        last: *position,
        last_commit: None,
        through_lsn: Lsn(1),
        tick: false,
    }
}
