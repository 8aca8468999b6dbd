//! Values keep their exact form and type, whatever SQLite's affinities would make of them.

use super::*;
use rindle_proto::pgtype::Element;
use rusqlite::limits::Limit;

fn all_kinds() -> Schema {
    let columns = [
        ("id", Kind::Int),
        ("b", Kind::Bool),
        ("f", Kind::Float),
        ("t", Kind::Text),
        ("h", Kind::Bytea),
        ("j", Kind::Json),
        ("l", Kind::Array(Element::Int)),
    ];
    Schema {
        tables: vec![table(1, "all", &columns, &[0])],
    }
}

fn tricky() -> Vec<Vec<V>> {
    let texts = [
        "007",
        "1.10",
        "1e5",
        "NaN",
        "",
        " 1 ",
        "0x10",
        "null",
        "9223372036854775808",
        "\u{1f600}'\"\\",
    ];
    let floats = [
        V::Real(0.0),
        V::Real(5e-324),
        V::Real(f64::MAX),
        V::Real(f64::INFINITY),
        V::Real(f64::NEG_INFINITY),
        V::Real(9_007_199_254_740_993.0),
        text("NaN"),
        V::Null,
        V::Real(0.1),
        V::Real(-1.0),
    ];
    let ints = [
        i64::MIN,
        i64::MAX,
        0,
        -1,
        1 << 53,
        (1 << 53) + 1,
        7,
        8,
        9,
        10,
    ];
    let rows = texts.iter().zip(floats).zip(ints);
    rows.map(|((word, float), id)| {
        let t = text(word);
        vec![
            V::Int(id),
            V::Int(id & 1),
            float,
            t.clone(),
            t.clone(),
            t.clone(),
            t,
        ]
    })
    .collect()
}

fn check(env: &Env, expected: &[Vec<V>]) {
    let mut expected = expected.to_vec();
    expected.sort_by(|a, b| a.partial_cmp(b).unwrap());
    assert_eq!(env.rows("SELECT * FROM \"all\" ORDER BY id"), expected);
    let types = "SELECT DISTINCT typeof(id), typeof(b), typeof(t), typeof(h), typeof(j), typeof(l) FROM \"all\"";
    let text_type = || text("text");
    let expected = [
        text("integer"),
        text("integer"),
        text_type(),
        text_type(),
        text_type(),
        text_type(),
    ];
    assert_eq!(env.rows(types), [expected]);
    let floats = "SELECT DISTINCT typeof(f) FROM \"all\" ORDER BY 1";
    assert_eq!(
        env.rows(floats),
        [[text("null")], [text("real")], [text_type()]]
    );
}

#[test]
fn values_come_out_as_they_went_in_by_copy_and_by_stream() {
    let rows: Vec<_> = tricky().into_iter().map(|row| (1, row)).collect();
    check(&Env::with(&all_kinds(), &rows), &tricky());

    let mut env = Env::with(&all_kinds(), &[]);
    let inserts: Vec<_> = tricky().into_iter().map(|row| O::Insert(1, row)).collect();
    env.run(&inserts);
    check(&env, &tricky());

    let updates: Vec<_> = tricky().into_iter().map(|row| O::Update(1, row)).collect();
    env.run(&updates);
    check(&env, &tricky());
}

#[test]
fn masked_update_changes_only_what_came() {
    let mut env = Env::with(&two_tables(), &[(1, row(1, "toasted"))]);
    env.run(&[O::Update(
        1,
        vec![V::Int(1), V::Same, V::Real(9.5), V::Null],
    )]);
    assert_eq!(
        env.rows("SELECT * FROM t"),
        [[V::Int(1), text("toasted"), V::Real(9.5), V::Null]]
    );
    env.run(&[O::Rekey(
        1,
        vec![V::Int(1)],
        vec![V::Int(2), V::Same, V::Same, V::Int(0)],
    )]);
    assert_eq!(
        env.rows("SELECT * FROM t"),
        [[V::Int(2), text("toasted"), V::Real(9.5), V::Int(0)]]
    );
}

#[test]
fn many_masks_are_each_right() {
    let columns: Vec<_> = (0..9).map(|at| format!("c{at}")).collect();
    let columns: Vec<_> = columns
        .iter()
        .map(|name| (name.as_str(), Kind::Int))
        .collect();
    let schema = Schema {
        tables: vec![table(1, "wide", &columns, &[0])],
    };
    let mut model: Vec<V> = (0..9).map(V::Int).collect();
    let mut env = Env::with(&schema, &[(1, model.clone())]);
    for mask in 0..256u32 {
        let given = |at: usize| at == 0 || mask & 1 << (at - 1) != 0;
        let value = |at: usize| {
            V::Int(if at == 0 {
                0
            } else {
                i64::from(mask) * 10 + at as i64
            })
        };
        let row: Vec<_> = (0..9)
            .map(|at| if given(at) { value(at) } else { V::Same })
            .collect();
        (0..9)
            .filter(|at| given(*at))
            .for_each(|at| model[at] = value(at));
        env.run(&[O::Update(1, row)]);
        assert_eq!(env.rows("SELECT * FROM wide"), [model.clone()]);
    }
}

#[test]
fn key_of_every_kind_finds_its_row() {
    for (kind, keys) in [
        (Kind::Bool, [V::Int(0), V::Int(1)]),
        (Kind::Float, [V::Real(f64::INFINITY), text("NaN")]),
        (Kind::Float, [V::Real(0.1), V::Real(0.0)]),
        (Kind::Text, [text("007"), text("7")]),
        (Kind::Bytea, [text(""), text("00")]),
        (Kind::Int, [V::Int(i64::MIN), V::Int(i64::MAX)]),
    ] {
        let schema = Schema {
            tables: vec![table(1, "k", &[("k", kind), ("v", Kind::Text)], &[0])],
        };
        let [a, b] = keys;
        let mut env = Env::with(&schema, &[(1, vec![a.clone(), text("a")])]);
        env.run(&[O::Insert(1, vec![b.clone(), text("b")])]);
        env.run(&[
            O::Update(1, vec![a.clone(), text("A")]),
            O::Update(1, vec![b.clone(), text("B")]),
        ]);
        assert_eq!(
            env.rows("SELECT v FROM k ORDER BY v"),
            [[text("A")], [text("B")]]
        );
        env.run(&[
            O::Delete(1, vec![a.clone()]),
            O::Rekey(1, vec![b], vec![a, text("C")]),
        ]);
        assert_eq!(env.rows("SELECT v FROM k"), [[text("C")]]);
    }
}

#[test]
fn names_are_taken_as_they_are() {
    let hostile = [
        "a\"b\"\"", "x.y", "$1", ":x", "?1", "select", "rowid", "a'b;--", " ", "é\n", "[b]", "`c`",
    ];
    let columns: Vec<_> = hostile.iter().map(|name| (*name, Kind::Text)).collect();
    let mut tables = Vec::new();
    for (at, name) in hostile.iter().enumerate() {
        let mut one = table(at as u32 + 1, name, &columns, &[at, 0]);
        one.schema = "s\"$1".into();
        tables.push(one);
    }
    let mut env = Env::with(&Schema { tables }, &[]);
    for id in 1..=hostile.len() as u32 {
        let at = id as usize - 1;
        let cells: Vec<V> = (0..hostile.len()).map(|at| text(&at.to_string())).collect();
        let mut masked = cells.clone();
        masked[(at + 1) % hostile.len()] = V::Same;
        masked[0] = cells[0].clone();
        let key = vec![cells[at].clone(), cells[0].clone()];
        let mut moved = cells.clone();
        moved[at] = text("moved");
        env.run(&[O::Insert(id, cells), O::Update(id, masked)]);
        env.run(&[O::Rekey(id, key, moved.clone())]);
        let name = ddl::quote(&format!("s\"$1.{}", hostile[at]));
        assert_eq!(env.rows(&format!("SELECT * FROM {name}")), [moved.clone()]);
        env.run(&[O::Delete(id, vec![text("moved"), moved[0].clone()])]);
    }
    let sidecar = env.rows(
        "SELECT column_name FROM _rindle_columns WHERE table_name = 's\"$1.$1' ORDER BY ordinal",
    );
    assert_eq!(sidecar, hostile.map(|name| [text(name)]));
}

#[test]
fn sqlite_takes_values_as_long_as_a_frame_carries() {
    let env = Env::with(&two_tables(), &[]);
    for conn in [env.mirror.connection(), &env.reader()] {
        assert_eq!(conn.limit(Limit::SQLITE_LIMIT_LENGTH).unwrap(), i32::MAX);
        assert!(conn.limit(Limit::SQLITE_LIMIT_VARIABLE_NUMBER).unwrap() >= 32_766);
        assert!(conn.limit(Limit::SQLITE_LIMIT_COLUMN).unwrap() >= 1664);
    }
}

#[test]
fn text_of_100_mb_passes() {
    let mut env = Env::with(&two_tables(), &[]);
    let long = "0123456789".repeat(10 << 20);
    env.run(&[O::Insert(1, row(1, &long))]);
    let found = env.rows("SELECT length(a), substr(a, -3) FROM t");
    assert_eq!(found, [[V::Int(long.len() as i64), text("789")]]);
}

#[test]
fn table_of_1600_columns_passes() {
    let names: Vec<_> = (0..1600).map(|at| format!("column \"{at}\"")).collect();
    let columns: Vec<_> = names
        .iter()
        .map(|name| (name.as_str(), Kind::Text))
        .collect();
    let schema = Schema {
        tables: vec![table(1, "wide", &columns, &[0, 1599])],
    };
    let cells = |word: &str| {
        (0..1600)
            .map(|at| text(&format!("{word}{at}")))
            .collect::<Vec<_>>()
    };
    let mut env = Env::with(&schema, &[(1, cells("a"))]);
    env.run(&[O::Rekey(1, vec![text("a0"), text("a1599")], cells("b"))]);
    assert_eq!(env.rows("SELECT * FROM wide"), [cells("b")]);
}

/// Deeper than SQLite's own functions of JSON read; nothing here may read it with them.
#[test]
fn h10_json_nested_3000_deep_is_text_like_any_other() {
    let nested = |word: &str| format!("{}\"{word}\"{}", "[".repeat(3000), "]".repeat(3000));
    let row = |id: i64, word: &str| {
        let mut row: Vec<V> = tricky().remove(0);
        (row[0], row[5]) = (V::Int(id), text(&nested(word)));
        row
    };
    let mut env = Env::with(&all_kinds(), &[(1, row(1, "copied"))]);
    env.run(&[O::Insert(1, row(2, "streamed")), O::Insert(1, row(3, "x"))]);
    env.run(&[
        O::Update(1, row(3, "updated")),
        O::Delete(1, vec![V::Int(2)]),
    ]);
    let json = env.rows("SELECT j FROM \"all\" ORDER BY id");
    assert_eq!(
        json,
        [[text(&nested("copied"))], [text(&nested("updated"))]]
    );
    let refused = env
        .reader()
        .query_row("SELECT json_valid(j) FROM \"all\"", [], |row| {
            row.get::<_, bool>(0)
        });
    assert!(
        !refused.unwrap_or(false),
        "SQLite reads it, so this shows nothing"
    );
}
