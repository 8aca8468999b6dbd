use proptest::prelude::*;
use rindle_proto::ids::{Epoch, Lsn, Timeline};
use ulid::Ulid;

use super::*;
use crate::testkit::{Source, SourceTxn};

fn generation() -> Generation {
    Generation::from_bytes([7; 16])
}

fn sealed(frames_of: &[u64]) -> (Sealed, Bytes) {
    let start = Position::start(generation());
    let mut source = Source::at(start);
    for (at, parts) in frames_of.iter().enumerate() {
        source.txn(SourceTxn(at as u64 + 1), *parts);
    }
    let new = source.take();
    let commit = new
        .last_commit
        .map(|commit| commit.archived(Timeline(2), SegmentNo(1)));
    let header = SegmentHeader {
        generation: generation(),
        segment: SegmentNo(1),
        epoch: Epoch(3),
        put_id: Ulid(0x0123_4567_89ab_cdef),
        timeline: Timeline(2),
        fence: false,
        tick: false,
        seal: false,
        through_lsn: Lsn(0x16_0000_00AB),
        through_timeline: Timeline(2),
        start,
        end: new.last,
        previous: Digest::default(),
        frames: new.last.seq.0 as u32,
        last_commit: commit,
        raw_bytes: 0,
        body_bytes: 0,
        made_at_ms: 1_700_000_000_000,
    };
    (seal(header, &new.frames).unwrap(), new.frames)
}

/// The bytes of `proto/README.md`, "Segment".
#[test]
fn golden_header() {
    let (sealed, frames) = sealed(&[1]);
    let bytes = &sealed.bytes;
    assert_eq!(&bytes[..12], b"RNDS\x01\0\0\0\x80\x01\0\0");
    assert_eq!(bytes[12..16], [90, 196, 119, 75]);
    assert_eq!(bytes[16..32], [7; 16]);
    assert_eq!(bytes[32..48], 0x0123_4567_89ab_cdef_u128.to_be_bytes());
    assert_eq!(
        bytes[48..64],
        [1, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]
    );
    assert_eq!(
        bytes[64..80],
        [2, 0, 0, 0, 2, 0, 0, 0, 0xab, 0, 0, 0, 0x16, 0, 0, 0]
    );
    assert_eq!(bytes[80..88], [0; 8]);
    assert_eq!(bytes[88..120], Position::start(generation()).chain.0);
    assert_eq!(bytes[120..128], 1u64.to_le_bytes());
    assert_eq!(bytes[128..160], sealed.header.end.chain.0);
    assert_eq!(bytes[160..192], [0; 32]);
    assert_eq!(bytes[192..200], (frames.len() as u64).to_le_bytes());
    assert_eq!(
        bytes[200..208],
        ((bytes.len() - HEADER_BYTES) as u64).to_le_bytes()
    );
    assert_eq!(bytes[208..216], 1_700_000_000_000u64.to_le_bytes());
    assert_eq!(
        bytes[216..224],
        [1, 0, 0, 0, 1, 0, 0, 0],
        "frames, kind of the last commit"
    );
    assert_eq!(
        bytes[224..264],
        bytes[120..160],
        "position of the last commit"
    );
    assert_eq!(bytes[264..304], bytes[80..120], "position before it");
    assert_eq!(bytes[304..312], 92u64.to_le_bytes());
    assert_eq!(bytes[312..320], 100u64.to_le_bytes());
    assert_eq!(bytes[320..328], 1u64.to_le_bytes());
    assert_eq!(bytes[328..336], 1u64.to_le_bytes());
    assert_eq!(bytes[336..344], [1, 0, 0, 0, 2, 0, 0, 0]);
    assert_eq!(bytes[344..384], [0; 40]);
}

#[test]
fn after_cuts_at_a_frame() {
    let (sealed, frames) = sealed(&[2, 1]);
    let segment = open(&sealed.bytes, generation(), SegmentNo(1)).unwrap();
    assert_eq!(segment.after(Seq(0)).unwrap().0, frames);
    let (rest, chain) = segment.after(Seq(3)).unwrap();
    assert!(rest.is_empty());
    assert_eq!(chain, segment.header.end.chain);
    let (rest, _) = segment.after(Seq(1)).unwrap();
    assert!(frames.ends_with(&rest) && rest.len() < frames.len());
    assert!(segment.after(Seq(4)).is_err());
}

#[test]
fn other_name_or_generation_is_refused() {
    let (sealed, _) = sealed(&[1]);
    let number = open(&sealed.bytes, generation(), SegmentNo(2)).unwrap_err();
    assert!(matches!(number, Flaw::Number(SegmentNo(1))));
    let other = Generation::from_bytes([8; 16]);
    assert!(matches!(
        open(&sealed.bytes, other, SegmentNo(1)),
        Err(Flaw::Generation(_))
    ));
}

#[test]
fn commit_that_is_none_is_refused() {
    let (sealed, frames) = sealed(&[2]);
    let mut header = sealed.header;
    let commit = header.last_commit.as_mut().unwrap();
    commit.position = Position {
        seq: Seq(1),
        ..commit.position
    };
    assert!(matches!(
        seal(header, &frames),
        Err(Flaw::Commit { told: Seq(1) })
    ));
}

#[test]
fn length_beyond_the_limit_is_refused_before_anything_is_allocated() {
    let (sealed, _) = sealed(&[1]);
    let mut header = sealed.header;
    header.raw_bytes = u64::MAX;
    assert!(SegmentHeader::decode(&header.encode()).is_err());
}

proptest! {
    #[test]
    fn round_trips(frames_of in prop::collection::vec(1u64..4, 0..20)) {
        let (sealed, frames) = sealed(&frames_of);
        let segment = open(&sealed.bytes, generation(), SegmentNo(1)).unwrap();
        prop_assert_eq!(segment.header, sealed.header);
        prop_assert_eq!(segment.digest, sealed.digest);
        prop_assert_eq!(segment.frames, frames);
    }

    #[test]
    fn any_bytes_never_panic(bytes: Vec<u8>, header in prop::collection::vec(any::<u8>(), HEADER_BYTES)) {
        let _ = open(&bytes.into(), generation(), SegmentNo(1));
        let _ = SegmentHeader::decode(&header);
    }

    /// With the checksum made right, so that the fields behind it are read.
    #[test]
    fn any_fields_never_panic(at in 16..HEADER_BYTES, value: u8, body in prop::collection::vec(any::<u8>(), 0..50)) {
        let (sealed, _) = sealed(&[1]);
        let mut bytes = sealed.bytes.to_vec();
        bytes[at] = value;
        let mut crc = crc32fast::Hasher::new();
        crc.update(&bytes[..12]);
        crc.update(&bytes[16..HEADER_BYTES]);
        bytes[12..16].copy_from_slice(&crc.finalize().to_le_bytes());
        let _ = open(&bytes.clone().into(), generation(), SegmentNo(1));
        bytes.truncate(HEADER_BYTES);
        bytes.extend_from_slice(&body);
        let _ = open(&bytes.into(), generation(), SegmentNo(1));
    }
}
