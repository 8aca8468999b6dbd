use super::*;
use proptest::prelude::*;

fn bytes(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

fn text(value: &str) -> Vec<u8> {
    bytes(&[b"t", &(value.len() as u32).to_be_bytes(), value.as_bytes()])
}

fn insert(rel: u32, cells: &[Vec<u8>]) -> Vec<u8> {
    let count = (cells.len() as u16).to_be_bytes();
    bytes(&[b"I", &rel.to_be_bytes(), b"N", &count, &cells.concat()])
}

fn error(bytes: &[u8]) -> String {
    decode(bytes).expect_err("is malformed").to_string()
}

#[test]
fn begin_and_commit_carry_their_positions() {
    let begin = bytes(&[
        b"B",
        &0x16_0000_0010_u64.to_be_bytes(),
        &7_i64.to_be_bytes(),
        &9_u32.to_be_bytes(),
    ]);
    let wanted = Message::Begin {
        final_lsn: FinalLsn(Lsn(0x16_0000_0010)),
        commit_time: PgTime(7),
        xid: 9,
    };
    assert_eq!(decode(&begin), Ok(wanted));
    let commit = bytes(&[
        b"C\0",
        &1_u64.to_be_bytes(),
        &2_u64.to_be_bytes(),
        &3_i64.to_be_bytes(),
    ]);
    let wanted = Message::Commit {
        commit_lsn: FinalLsn(Lsn(1)),
        end_lsn: EndLsn(Lsn(2)),
        commit_time: PgTime(3),
    };
    assert_eq!(decode(&commit), Ok(wanted));
    assert_eq!(PgTime(0).unix_micros(), 946_684_800_000_000);
}

#[test]
fn relation_is_owned_and_complete() {
    let raw = bytes(&[
        b"R",
        &16_400_u32.to_be_bytes(),
        b"\0t\0d",
        &2_u16.to_be_bytes(),
        b"\x01id\0",
        &23_u32.to_be_bytes(),
        &(-1_i32).to_be_bytes(),
        b"\x00v\0",
        &1043_u32.to_be_bytes(),
        &14_i32.to_be_bytes(),
    ]);
    let column = |is_key, name: &str, oid, typmod| RelationColumn {
        is_key,
        name: name.to_owned(),
        type_oid: Oid(oid),
        typmod,
    };
    let wanted = Relation {
        oid: Oid(16_400),
        namespace: "pg_catalog".to_owned(),
        name: "t".to_owned(),
        replident: 'd',
        columns: vec![column(true, "id", 23, -1), column(false, "v", 1043, 14)],
    };
    assert_eq!(decode(&raw), Ok(Message::Relation(wanted)));
}

#[test]
fn rows_hold_null_unchanged_and_text() {
    let raw = insert(5, &[text("1"), b"n".to_vec(), b"u".to_vec(), text("")]);
    let Ok(Message::Insert { rel, new }) = decode(&raw) else {
        panic!()
    };
    assert_eq!((rel, new.len()), (Oid(5), 4));
    let cells: Vec<_> = new.iter().collect();
    assert_eq!(
        cells,
        [
            Cell::Text(b"1"),
            Cell::Null,
            Cell::Unchanged,
            Cell::Text(b"")
        ]
    );
}

#[test]
fn updates_and_deletes_tell_what_the_old_row_holds() {
    let one = bytes(&[&1_u16.to_be_bytes(), &text("1")]);
    let two = bytes(&[&1_u16.to_be_bytes(), &text("2")]);
    let head = 5_u32.to_be_bytes();
    for (tag, kind) in [(b"K", OldKind::Key), (b"O", OldKind::Full)] {
        let raw = bytes(&[b"U", &head, tag, &one, b"N", &two]);
        let Ok(Message::Update {
            old: Some((found, old)),
            new,
            ..
        }) = decode(&raw)
        else {
            panic!()
        };
        assert_eq!(found, kind);
        assert_eq!(old.iter().next(), Some(Cell::Text(b"1")));
        assert_eq!(new.iter().next(), Some(Cell::Text(b"2")));
        let raw = bytes(&[b"D", &head, tag, &one]);
        assert!(matches!(decode(&raw), Ok(Message::Delete { kind: found, .. }) if found == kind));
    }
    let raw = bytes(&[b"U", &head, b"N", &two]);
    assert!(matches!(
        decode(&raw),
        Ok(Message::Update { old: None, .. })
    ));
}

#[test]
fn truncate_message_origin_and_type() {
    let raw = bytes(&[
        b"T",
        &2_u32.to_be_bytes(),
        &[3],
        &7_u32.to_be_bytes(),
        &8_u32.to_be_bytes(),
    ]);
    let wanted = Message::Truncate {
        rels: vec![Oid(7), Oid(8)],
        cascade: true,
        restart: true,
    };
    assert_eq!(decode(&raw), Ok(wanted));
    let raw = bytes(&[
        b"M\x01",
        &9_u64.to_be_bytes(),
        b"rindle\0",
        &2_u32.to_be_bytes(),
        b"{}",
    ]);
    let wanted = Message::Logical {
        transactional: true,
        lsn: Lsn(9),
        prefix: "rindle",
        content: b"{}",
    };
    assert_eq!(decode(&raw), Ok(wanted));
    let raw = bytes(&[b"O", &9_u64.to_be_bytes(), b"far\0"]);
    assert_eq!(
        decode(&raw),
        Ok(Message::Origin {
            lsn: Lsn(9),
            name: "far"
        })
    );
    let raw = bytes(&[b"Y", &9_u32.to_be_bytes(), b"public\0mood\0"]);
    assert_eq!(
        decode(&raw),
        Ok(Message::Type {
            oid: Oid(9),
            namespace: "public",
            name: "mood"
        })
    );
}

#[test]
fn malformed_messages_are_named() {
    assert_eq!(
        error(b""),
        "pgoutput message ' ': expected a message of protocol 1 at byte 0 of 0"
    );
    assert_eq!(
        error(b"S"),
        "pgoutput message 'S': expected a message of protocol 1 at byte 0 of 1"
    );
    let binary = insert(1, &[bytes(&[b"b", &0_u32.to_be_bytes()])]);
    assert_eq!(
        error(&binary),
        "pgoutput message 'I': expected n, u or t before a value at byte 8 of 13"
    );
    let mut long = insert(1, &[b"n".to_vec()]);
    long.push(0);
    assert_eq!(
        error(&long),
        "pgoutput message 'I': expected the end of the message at byte 9 of 10"
    );
    let lying = bytes(&[b"T", &u32::MAX.to_be_bytes(), &[0]]);
    assert_eq!(
        error(&lying),
        "pgoutput message 'T': expected one oid for each relation counted at byte 6 of 6"
    );
    let huge = bytes(&[
        b"I",
        &1_u32.to_be_bytes(),
        b"N",
        &1_u16.to_be_bytes(),
        b"t",
        &[0xff; 4],
    ]);
    assert_eq!(
        error(&huge),
        "pgoutput message 'I': expected the value's bytes at byte 13 of 13"
    );
}

proptest! {
    #[test]
    fn every_prefix_of_a_message_is_refused(values in prop::collection::vec(".{0,9}", 0..5)) {
        let whole = insert(1, &values.iter().map(|it| text(it)).collect::<Vec<_>>());
        prop_assert!(decode(&whole).is_ok());
        for end in 0..whole.len() {
            prop_assert!(decode(&whole[..end]).is_err());
        }
    }

    #[test]
    fn decoding_never_panics_and_tuples_keep_their_word(
        tag in prop::sample::select(b"BCORYIUDTM".as_slice()),
        mut raw in prop::collection::vec(prop_oneof![any::<u8>(), Just(0), Just(b'N'), Just(b't')], 0..80),
    ) {
        raw.insert(0, tag);
        match decode(&raw) {
            Ok(Message::Insert { new, .. } | Message::Update { new, .. }) => {
                prop_assert_eq!(new.iter().count(), new.len());
            }
            Ok(Message::Delete { old, .. }) => prop_assert_eq!(old.iter().count(), old.len()),
            _ => {}
        }
    }
}
