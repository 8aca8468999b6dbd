use super::*;
use proptest::prelude::*;

fn generation() -> Generation {
    "01ARZ3NDEKTSV4RRFFQ69G5FAV".parse().unwrap()
}

fn write(payloads: &[Vec<u8>]) -> (Vec<u8>, Position) {
    let mut writer = FrameWriter::new(Position::start(generation()));
    for (i, payload) in payloads.iter().enumerate() {
        writer.open().extend_from_slice(payload);
        let flags = FrameFlags {
            first: i == 0,
            last: i + 1 == payloads.len(),
        };
        writer.finish(FrameKind::Txn, flags, Lsn(7)).unwrap();
    }
    (writer.take(), writer.position())
}

#[test]
fn golden_bytes() {
    let (bytes, position) = write(&[b"abc".to_vec()]);
    let expected = [
        &b"RNDF\x01\x01\x03\x00\x03\x00\x00\x00"[..],
        &bytes[12..16],
        &[1, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0],
        b"abc",
    ];
    assert_eq!(bytes, expected.concat());
    assert_eq!(
        u32::from_le_bytes(bytes[12..16].try_into().unwrap()),
        0x8b6c_4003
    );
    assert_eq!(
        position.chain.to_hex(),
        "6af3b7e4989d9f30c3a3371d3062dc0fe8a81ae690a801fc775adefbdda21470"
    );
}

#[test]
fn refuses_a_gap() {
    let (bytes, _) = write(&[b"a".to_vec(), b"b".to_vec()]);
    let mut reader = FrameReader::new();
    reader.push(bytes.into());
    reader.next_frame().unwrap();
    let second = reader.next_frame().unwrap().unwrap();
    assert!(Position::start(generation()).after(&second).is_err());
}

#[test]
fn a_frame_that_is_too_long_leaves_the_finished_ones_alone() {
    let (good, position) = write(&[b"one".to_vec()]);
    let mut writer = FrameWriter::new(Position::start(generation()));
    writer.open().extend_from_slice(b"one");
    let flags = FrameFlags {
        first: true,
        last: true,
    };
    writer.finish(FrameKind::Txn, flags, Lsn(7)).unwrap();
    writer.open().extend_from_slice(b"too long");
    let refused = writer.finish_within(7, FrameKind::Txn, flags, Lsn(7));
    assert_eq!(refused, Err(TooLong { bytes: 8 }));
    assert_eq!((writer.position(), writer.take()), (position, good));
}

#[test]
fn take_leaves_an_open_frame() {
    let mut writer = FrameWriter::new(Position::start(generation()));
    writer.open().extend_from_slice(b"one");
    writer
        .finish(FrameKind::Txn, FrameFlags::WHOLE, Lsn(1))
        .unwrap();
    writer.open().extend_from_slice(b"tw");
    let mut bytes = writer.take();
    writer.payload().unwrap().push(b'o');
    assert_eq!(writer.payload_len(), 3);
    writer
        .finish(FrameKind::Txn, FrameFlags::WHOLE, Lsn(2))
        .unwrap();
    bytes.extend(writer.take());
    let mut reader = FrameReader::new();
    reader.push(bytes.into());
    let payloads: Vec<_> = std::iter::from_fn(|| reader.next_frame().unwrap())
        .map(|f| f.payload)
        .collect();
    assert_eq!(payloads, [&b"one"[..], b"two"]);
}

proptest! {
    #[test]
    fn round_trips_split_anywhere(payloads: Vec<Vec<u8>>, cuts: Vec<prop::sample::Index>) {
        let (bytes, written) = write(&payloads);
        let bytes = Bytes::from(bytes);
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let mut reader = FrameReader::new();
        let mut position = Position::start(generation());
        let mut read = Vec::new();
        for pair in cuts.windows(2) {
            reader.push(bytes.slice(pair[0]..pair[1]));
            while let Some(frame) = reader.next_frame().unwrap() {
                position = position.after(&frame).unwrap();
                read.push(frame.payload.to_vec());
            }
        }
        prop_assert_eq!(read, payloads);
        prop_assert_eq!(position, written);
        prop_assert!(reader.is_empty());
    }

    #[test]
    fn a_flipped_byte_is_never_accepted(payload: Vec<u8>, at: prop::sample::Index, flip in 1u8..) {
        let (mut bytes, _) = write(&[payload]);
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        let mut reader = FrameReader::new();
        reader.push(bytes.into());
        prop_assert!(!matches!(reader.next_frame(), Ok(Some(_))));
    }

    #[test]
    fn any_bytes_never_panic(bytes: Vec<u8>) {
        let mut reader = FrameReader::new();
        reader.push([&b"RNDF\x01"[..], &bytes].concat().into());
        while let Ok(Some(_)) = reader.next_frame() {}
    }
}
