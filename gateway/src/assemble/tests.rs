use super::*;
use crate::ddl::introduce::Introduced;
use crate::pg::catalog::RelationFacts;
use crate::pg::catalog::samples::{self, facts, relation};
use crate::pg::pgoutput::decode;
use rindle_proto::body::TxnPart;
use rindle_proto::frame::{Frame, FrameReader};
use rindle_proto::ids::{Generation, Lsn};
use rindle_proto::op::{Op, Ops};

const ROOT: u32 = 100;

/// A table (id int, v text); with `leaves` it is partitioned into them.
fn believed(leaves: &[u32], via_root: bool) -> Arc<Believed> {
    let kind = if leaves.is_empty() { 'r' } else { 'p' };
    let root = RelationFacts {
        name: "t".to_owned(),
        kind,
        ..relation(ROOT)
    };
    let leaf = |oid: &u32| RelationFacts {
        parent: Some(Oid(ROOT)),
        ..relation(*oid)
    };
    let mut facts = facts([root].into_iter().chain(leaves.iter().map(leaf)).collect());
    facts.publication.via_root = via_root;
    Arc::new(Believed::first(samples::first(facts)).unwrap())
}

fn assembler(leaves: &[u32]) -> Assembler {
    let position = Position::start(Generation::from_bytes([1; 16]));
    Assembler::new(believed(leaves, false), position)
}

fn begin(lsn: u64) -> Vec<u8> {
    [
        &b"B"[..],
        &lsn.to_be_bytes(),
        &5i64.to_be_bytes(),
        &9u32.to_be_bytes(),
    ]
    .concat()
}

fn commit(lsn: u64) -> Vec<u8> {
    [
        &b"C\0"[..],
        &lsn.to_be_bytes(),
        &(lsn + 8).to_be_bytes(),
        &5i64.to_be_bytes(),
    ]
    .concat()
}

fn announce(oid: u32, name: &str, identity: u8, columns: &[(bool, &str, u32)]) -> Vec<u8> {
    let mut out = [
        &b"R"[..],
        &oid.to_be_bytes(),
        b"public\0",
        name.as_bytes(),
        b"\0",
        &[identity],
    ]
    .concat();
    out.extend((columns.len() as u16).to_be_bytes());
    for (key, name, oid) in columns {
        out.push(u8::from(*key));
        out.extend(name.as_bytes());
        out.push(0);
        out.extend(oid.to_be_bytes());
        out.extend((-1i32).to_be_bytes());
    }
    out
}

fn t() -> Vec<u8> {
    announce(ROOT, "t", b'd', &[(true, "id", 23), (false, "v", 25)])
}

fn tuple(cells: &[&str]) -> Vec<u8> {
    let mut out = (cells.len() as u16).to_be_bytes().to_vec();
    for cell in cells {
        match *cell {
            "null" => out.push(b'n'),
            "same" => out.push(b'u'),
            text => {
                out.push(b't');
                out.extend((text.len() as u32).to_be_bytes());
                out.extend(text.as_bytes());
            }
        }
    }
    out
}

fn insert(oid: u32, new: &[&str]) -> Vec<u8> {
    [&b"I"[..], &oid.to_be_bytes(), b"N", &tuple(new)].concat()
}

fn update(old: Option<(u8, &[&str])>, new: &[&str]) -> Vec<u8> {
    let old = old.map_or_else(Vec::new, |(kind, cells)| {
        [&[kind][..], &tuple(cells)].concat()
    });
    [&b"U"[..], &ROOT.to_be_bytes(), &old, b"N", &tuple(new)].concat()
}

fn delete(kind: u8, old: &[&str]) -> Vec<u8> {
    [&b"D"[..], &ROOT.to_be_bytes(), &[kind], &tuple(old)].concat()
}

fn truncate(oids: &[u32]) -> Vec<u8> {
    let mut out = [&b"T"[..], &(oids.len() as u32).to_be_bytes(), &[0]].concat();
    oids.iter().for_each(|oid| out.extend(oid.to_be_bytes()));
    out
}

fn run(assembler: &mut Assembler, messages: &[Vec<u8>]) -> Result<Vec<Frame>, HaltReason> {
    for message in messages {
        assembler.take(decode(message).unwrap())?;
    }
    let mut reader = FrameReader::new();
    reader.push(assembler.writer().take().into());
    Ok(std::iter::from_fn(|| reader.next_frame().unwrap()).collect())
}

/// Operations in words.
fn words(frames: &[Frame]) -> Vec<String> {
    let cells = |row: rindle_proto::row::Row<'_>| {
        row.cells()
            .map(|cell| format!("{:?}", cell.unwrap()))
            .collect::<Vec<_>>()
            .join(" ")
    };
    let mut words = Vec::new();
    for frame in frames {
        for op in Ops::new(TxnPart::decode(frame).unwrap().ops) {
            words.push(match op.unwrap() {
                Op::Insert { row, .. } => format!("insert {}", cells(row)),
                Op::Update { row, .. } => format!("update {}", cells(row)),
                Op::Rekey { old_key, row, .. } => {
                    format!("rekey {} to {}", cells(old_key), cells(row))
                }
                Op::Delete { key, .. } => format!("delete {}", cells(key)),
                Op::Truncate { tables } => format!("truncate {tables:?}"),
                Op::Schema(change) => format!("{change:?}"),
                Op::Facts(json) => format!("facts {}", String::from_utf8_lossy(json)),
                Op::Copied(copied) | Op::Copying(copied) => format!("{copied:?}"),
            });
        }
    }
    words
}

#[test]
fn changes_become_operations() {
    let messages = [
        begin(50),
        t(),
        insert(ROOT, &["1", "a"]),
        update(None, &["1", "same"]),
        update(Some((b'K', &["1", "null"])), &["2", "b"]),
        update(Some((b'O', &["2", "b"])), &["2", "c"]),
        delete(b'K', &["2", "null"]),
        truncate(&[ROOT]),
        commit(50),
    ];
    let mut assembler = assembler(&[]);
    let frames = run(&mut assembler, &messages).unwrap();
    let expected = [
        "insert Int(1) Text(\"a\")",
        "update Int(1) Unchanged",
        "rekey Int(1) to Int(2) Text(\"b\")",
        "update Int(2) Text(\"c\")",
        "delete Int(2)",
        "truncate [TableId(1)]",
    ];
    assert_eq!(words(&frames), expected);
    let part = TxnPart::decode(&frames[0]).unwrap();
    assert_eq!(part.final_lsn, FinalLsn(Lsn(50)));
    assert_eq!(part.end_lsn, Some(EndLsn(Lsn(58))));
    assert_eq!(part.start.unwrap().xid, 9);
}

#[test]
fn a_large_key_that_was_left_out_is_the_old_one() {
    let messages = [
        begin(50),
        t(),
        update(Some((b'K', &["7", "null"])), &["same", "b"]),
        commit(50),
    ];
    let frames = run(&mut assembler(&[]), &messages).unwrap();
    assert_eq!(words(&frames), ["update Int(7) Text(\"b\")"]);
}

#[test]
fn a_transaction_without_rows_makes_no_frame() {
    let mut assembler = assembler(&[]);
    assert!(run(&mut assembler, &[begin(50)]).unwrap().is_empty());
    let ended = assembler.take(decode(&commit(50)).unwrap()).unwrap();
    assert_eq!(
        ended,
        Assembled::Committed {
            end_lsn: EndLsn(Lsn(58)),
            commit: None
        }
    );
}

#[test]
fn a2_the_same_transaction_gives_the_same_bytes_however_it_is_taken_out() {
    let big = "x".repeat(700_000);
    let rows = (0..5).map(|i| insert(ROOT, &[&i.to_string(), &big]));
    let messages: Vec<_> = [begin(50), t()]
        .into_iter()
        .chain(rows)
        .chain([commit(50)])
        .collect();
    let mut once = assembler(&[]);
    let frames = run(&mut once, &messages).unwrap();
    assert!(frames.len() > 2, "several parts");
    assert!(frames[0].flags.first && !frames[0].flags.last);
    let mut piecewise = assembler(&[]);
    let mut again = Vec::new();
    for message in &messages {
        again.extend(run(&mut piecewise, std::slice::from_ref(message)).unwrap());
    }
    assert_eq!(frames, again);
    assert_eq!(once.writer().position(), piecewise.writer().position());
}

#[test]
fn c2_a_leaf_with_another_column_order_is_its_root() {
    let leaf = announce(200, "t_leaf", b'd', &[(false, "v", 25), (true, "id", 23)]);
    let messages = [
        begin(50),
        leaf,
        insert(200, &["a", "1"]),
        truncate(&[200]),
        commit(50),
    ];
    let frames = run(&mut assembler(&[200, 201]), &messages).unwrap();
    assert_eq!(
        words(&frames),
        ["insert Int(1) Text(\"a\")", "truncate [TableId(2)]"]
    );
}

/// What a backfill will read is not known yet, so nothing of a table that waits for it is left out.
#[test]
fn a2_changes_of_a_waiting_table_are_written_from_its_announcement_on() {
    let rewritten = || {
        Some(Announced {
            xid: 9,
            patch: Patch {
                v: 1,
                rewritten: vec![(Oid(ROOT), 4)],
                ..Patch::default()
            },
            unsure: BTreeSet::new(),
        })
    };
    let written = |first: &[Vec<u8>]| {
        let mut assembler = assembler(&[]);
        run(&mut assembler, &[begin(50), t(), announcement(1)]).unwrap();
        assembler.announced(1, rewritten()).unwrap();
        run(&mut assembler, &[announcement(2)]).unwrap();
        assembler.announced(2, says(true)).unwrap();
        let mut frames = run(&mut assembler, first).unwrap();
        let later = [
            begin(70),
            update(Some((b'K', &["1", "null"])), &["2", "same"]),
            delete(b'K', &["2", "null"]),
            truncate(&[ROOT]),
            commit(70),
        ];
        frames.extend(run(&mut assembler, &later).unwrap());
        (frames, assembler.writer().position())
    };
    let first = [t(), insert(ROOT, &["1", "a"]), commit(50)];
    let (frames, position) = written(&first);
    let rows: Vec<String> = (words(&frames).into_iter())
        .filter(|it| it.starts_with(|first: char| first.is_lowercase()) && !it.starts_with("facts"))
        .collect();
    let expected = [
        "insert Int(1) Text(\"a\")",
        "rekey Int(1) to Int(2) Unchanged",
        "delete Int(2)",
        "truncate [TableId(2)]",
    ];
    assert_eq!(rows, expected);
    // Nor does the moment at which they come matter: the chain is the same.
    assert_eq!(written(&first).1, position);
}

#[test]
fn b7_shapes_that_nothing_announced_are_refused_by_name() {
    let table = [
        (
            announce(ROOT, "t", b'd', &[(true, "id", 23), (false, "w", 25)]),
            "\"v\"",
        ),
        (
            announce(ROOT, "t", b'd', &[(true, "id", 20), (false, "v", 25)]),
            "\"id\" is no longer",
        ),
        (
            announce(
                ROOT,
                "t",
                b'd',
                &[(true, "id", 23), (false, "v", 25), (false, "new", 25)],
            ),
            "\"new\"",
        ),
        (
            announce(ROOT, "u", b'd', &[(true, "id", 23), (false, "v", 25)]),
            "public.u",
        ),
        (
            announce(ROOT, "t", b'i', &[(false, "id", 23), (true, "v", 25)]),
            "no longer covers",
        ),
        (
            announce(ROOT, "t", b'n', &[(false, "id", 23), (false, "v", 25)]),
            "NOTHING",
        ),
    ];
    for (message, said) in table {
        let row = insert(ROOT, &["1", "a"]);
        let error = run(&mut assembler(&[]), &[begin(50), message, row]).unwrap_err();
        assert_eq!(error.name(), "SchemaChanged");
        assert!(error.to_string().contains(said), "{error}");
    }
}

/// Somebody may have published its schema beside the transaction that made the table.
#[test]
fn b3_rows_of_a_stranger_wait_for_what_the_catalog_says() {
    let mut facts = believed(&[], false).facts.clone();
    facts.publication.schemas = vec![Oid(2200)];
    let believed = Arc::new(Believed::first(samples::first(facts)).unwrap());
    let position = Position::start(Generation::from_bytes([1; 16]));
    let stranger = announce(20_300, "stranger", b'd', &[(true, "id", 23)]);
    let messages = [begin(50), stranger, insert(20_300, &["1"])];
    let asked = |assembler: &mut Assembler| {
        assert!(run(assembler, &messages).unwrap().is_empty());
        assembler.take(decode(&commit(50)).unwrap()).unwrap()
    };
    let found = |relations: Vec<RelationFacts>, gone: &[u32]| Introduced {
        patch: Patch {
            v: 1,
            relations,
            ..Patch::default()
        },
        unsure: BTreeSet::new(),
        gone: gone.iter().copied().map(Oid).collect(),
        dropped: gone.iter().copied().map(Oid).collect(),
    };
    let mut one = Assembler::new(Arc::clone(&believed), position);
    let unknown = Unknown {
        xid: 9,
        relations: BTreeMap::from([(Oid(20_300), ("public".to_owned(), "stranger".to_owned()))]),
    };
    assert_eq!(asked(&mut one), Assembled::Strange(unknown));
    let ended = one.introduced(found(vec![relation(20_300)], &[])).unwrap();
    let is_there = |ended: &Assembled| {
        matches!(
            ended,
            Assembled::Committed {
                commit: Some(_),
                ..
            }
        )
    };
    assert!(is_there(&ended));
    assert_eq!(one.believed().waiting_names(), ["public.t20300"]);
    assert!(one.is_provisional());
    // Dropped since: there is nothing to mirror.
    let mut one = Assembler::new(Arc::clone(&believed), position);
    asked(&mut one);
    let ended = one.introduced(found(vec![], &[20_300])).unwrap();
    assert!(!is_there(&ended));
    // It is asked once: more of its rows may come.
    let more = run(&mut one, &[begin(60), insert(20_300, &["2"])]).unwrap();
    assert!(more.is_empty());
    let ended = one.take(decode(&commit(60)).unwrap()).unwrap();
    assert!(matches!(ended, Assembled::Committed { commit: None, .. }));
    // Published in no way that the stream told.
    let mut one = Assembler::new(believed, position);
    asked(&mut one);
    let elsewhere = RelationFacts {
        namespace: Oid(7),
        ..relation(20_300)
    };
    let error = one.introduced(found(vec![elsewhere], &[])).unwrap_err();
    assert_eq!(error.name(), "SchemaChanged");
    assert!(error.to_string().contains("public.stranger"), "{error}");
}

#[test]
fn rows_that_need_a_guess_are_refused() {
    let cases = [
        insert(ROOT, &["1", "same"]),
        update(None, &["same", "v"]),
        delete(b'K', &["null", "null"]),
        insert(ROOT, &["no number", "v"]),
    ];
    for message in cases {
        let error = run(&mut assembler(&[]), &[begin(50), t(), message]).unwrap_err();
        assert_eq!(error.name(), "UnusableRow");
        assert!(error.to_string().contains("public.t"), "{error}");
    }
}

#[test]
fn rows_outside_a_transaction_are_damage() {
    let mut assembler = assembler(&[]);
    run(&mut assembler, &[begin(1), t(), commit(1)]).unwrap();
    let error = run(&mut assembler, &[insert(ROOT, &["1", "a"])]).unwrap_err();
    assert_eq!(error.name(), "StreamDamaged");
}

fn announcement(id: i64) -> Vec<u8> {
    let content = id.to_string();
    let mut out = [&b"M\x01"[..], &40u64.to_be_bytes(), b"rindle\0"].concat();
    out.extend((content.len() as u32).to_be_bytes());
    out.extend(content.as_bytes());
    out
}

/// The table with its key, or without.
fn says(key: bool) -> Option<Announced> {
    let mut table = RelationFacts {
        name: "t".to_owned(),
        ..relation(ROOT)
    };
    if !key {
        table.indexes.clear();
    }
    let patch = Patch {
        v: 1,
        relations: vec![table],
        ..Patch::default()
    };
    Some(Announced {
        xid: 9,
        patch,
        unsure: BTreeSet::new(),
    })
}

#[test]
fn a_key_that_is_dropped_and_made_again_in_one_transaction_changes_nothing() {
    let mut assembler = assembler(&[]);
    run(&mut assembler, &[begin(50), t(), insert(ROOT, &["1", "a"])]).unwrap();
    run(&mut assembler, &[announcement(1)]).unwrap();
    assembler.announced(1, says(false)).unwrap();
    run(&mut assembler, &[announcement(2)]).unwrap();
    assembler.announced(2, says(true)).unwrap();
    run(
        &mut assembler,
        &[t(), insert(ROOT, &["2", "b"]), commit(50)],
    )
    .unwrap();
}

#[test]
fn a_key_that_stays_away_is_refused_at_the_next_row_or_at_the_commit() {
    for last in [
        insert(ROOT, &["2", "b"]),
        truncate(&[ROOT]),
        t(),
        commit(50),
    ] {
        let mut assembler = assembler(&[]);
        run(&mut assembler, &[begin(50), t(), announcement(1)]).unwrap();
        assembler.announced(1, says(false)).unwrap();
        let error = run(&mut assembler, &[last]).unwrap_err();
        assert_eq!(error.name(), "SchemaRefused");
    }
}
