use super::*;
use proptest::prelude::*;

const SEMICOLON: Kind = Kind::Array(Element::Other(Delimiter(b';')));
const STRINGS: Kind = Kind::Array(Element::Other(Delimiter::COMMA));
const INTS: Kind = Kind::Array(Element::Int);
const FLOATS: Kind = Kind::Array(Element::Float);
const BOOLS: Kind = Kind::Array(Element::Bool);

fn base(oid: u32) -> TypeFacts {
    TypeFacts {
        oid: Oid(oid),
        typtype: 'b',
        array_of: None,
    }
}

fn array(oid: u32, element: u32, delimiter: char) -> TypeFacts {
    let array_of = Some(ElementFacts {
        oid: Oid(element),
        delimiter,
    });
    TypeFacts {
        array_of,
        ..base(oid)
    }
}

fn check(kind: Kind, text: &str, wanted: ValueRef<'_>) {
    let mut scratch = "left over".to_owned();
    assert_eq!(
        convert(kind, text, &mut scratch),
        Ok(wanted),
        "{kind:?} {text}"
    );
}

fn refuse(kind: Kind, text: &str, message: &str) {
    let error = convert(kind, text, &mut String::new()).expect_err(text);
    assert_eq!(error.to_string(), message, "{kind:?} {text}");
}

#[test]
fn types_are_sorted_as_the_contract_says() {
    let table = [
        (base(16), Kind::Bool),
        (base(21), Kind::Int),
        (base(23), Kind::Int),
        (base(20), Kind::Int),
        (base(26), Kind::Int),
        (base(700), Kind::Float),
        (base(701), Kind::Float),
        (base(17), Kind::Bytea),
        (base(114), Kind::Json),
        (base(3802), Kind::Json),
        (base(1700), Kind::Text),
        (base(1114), Kind::Text),
        (base(2205), Kind::Text),
        (base(22), Kind::Text),
        (array(1007, 23, ','), INTS),
        (array(1028, 26, ','), INTS),
        (array(1022, 701, ','), FLOATS),
        (array(1000, 16, ','), BOOLS),
        (array(1009, 25, ','), STRINGS),
        (array(1231, 1700, ','), STRINGS),
        (array(1020, 603, ';'), SEMICOLON),
        (array(70_000, 69_999, '"'), Kind::Text),
        (array(70_000, 69_999, 'é'), Kind::Text),
        (
            TypeFacts {
                typtype: 'd',
                ..array(70_000, 23, ',')
            },
            Kind::Text,
        ),
        (
            TypeFacts {
                typtype: 'd',
                ..base(70_000)
            },
            Kind::Text,
        ),
        (
            TypeFacts {
                typtype: 'e',
                ..base(70_000)
            },
            Kind::Text,
        ),
    ];
    for (facts, kind) in table {
        assert_eq!(Kind::of(&facts), kind, "{facts:?}");
    }
}

#[test]
fn codes_are_stable_and_lead_back() {
    let known = [
        (0x80, Kind::Bool),
        (0x83, Kind::Text),
        (0x92, BOOLS),
        (0x2c, STRINGS),
        (0x3b, SEMICOLON),
    ];
    for (code, kind) in known {
        assert_eq!(kind.code(), code);
    }
    for code in 0..=u8::MAX {
        if let Some(kind) = Kind::from_code(code) {
            assert_eq!(kind.code(), code);
            let word = serde_json::to_string(&kind).unwrap();
            assert_eq!(serde_json::from_str::<Kind>(&word).unwrap(), kind);
        }
    }
    assert_eq!(INTS.to_string(), "int[]");
    assert_eq!(STRINGS.to_string(), "text[]");
    assert_eq!(SEMICOLON.to_string(), "text[;]");
    assert_eq!(Kind::from_code(0), None);
    assert_eq!(Kind::from_code(b'{'), None);
    assert_eq!(Kind::from_code(0xff), None);
}

#[test]
fn scalars_become_values() {
    check(Kind::Bool, "t", ValueRef::Int(1));
    check(Kind::Bool, "f", ValueRef::Int(0));
    check(Kind::Int, "-9223372036854775808", ValueRef::Int(i64::MIN));
    check(Kind::Int, "4294967295", ValueRef::Int(4_294_967_295));
    check(Kind::Float, "0.1", ValueRef::Real(0.1));
    check(Kind::Float, "1e+20", ValueRef::Real(1e20));
    check(Kind::Float, "5e-324", ValueRef::Real(5e-324));
    check(Kind::Float, "Infinity", ValueRef::Real(f64::INFINITY));
    check(Kind::Float, "-Infinity", ValueRef::Real(f64::NEG_INFINITY));
    check(Kind::Float, "NaN", ValueRef::Text("NaN"));
    check(Kind::Bytea, "\\x", ValueRef::Text(""));
    check(Kind::Bytea, "\\x00ff", ValueRef::Text("00ff"));
    check(Kind::Json, "null", ValueRef::Text("null"));
    check(Kind::Text, " 1.10 ", ValueRef::Text(" 1.10 "));
}

#[test]
fn negative_zero_reads_as_zero() {
    let mut scratch = String::new();
    let Ok(ValueRef::Real(zero)) = convert(Kind::Float, "-0", &mut scratch) else {
        panic!()
    };
    assert!(zero == 0.0 && zero.is_sign_positive());
}

#[test]
fn scalars_that_postgres_does_not_print_are_refused() {
    for (kind, text) in [
        (Kind::Bool, "true"),
        (Kind::Bool, ""),
        (Kind::Int, ""),
        (Kind::Int, "+1"),
        (Kind::Int, "1.0"),
        (Kind::Int, "9223372036854775808"),
        (Kind::Float, ""),
        (Kind::Float, "inf"),
        (Kind::Float, "nan"),
        (Kind::Float, "1e400"),
        (Kind::Bytea, ""),
        (Kind::Bytea, "abc"),
        (Kind::Bytea, "\\x0"),
    ] {
        assert!(
            convert(kind, text, &mut String::new()).is_err(),
            "{kind:?} {text}"
        );
    }
    refuse(
        Kind::Bytea,
        "\\x0G",
        "text of 4 bytes is no bytea: expected a lower-case hex digit at byte 3",
    );
}

#[test]
fn arrays_become_json() {
    let table = [
        (INTS, "{}", "[]"),
        (
            INTS,
            "{1,-2,NULL,9223372036854775807}",
            "[1,-2,null,9223372036854775807]",
        ),
        (INTS, "{{1,2},{3,4}}", "[[1,2],[3,4]]"),
        (INTS, "[2:3]={7,8}", "[7,8]"),
        (INTS, "[-1:0][2:2]={{7},{8}}", "[[7],[8]]"),
        (FLOATS, "{1.10,-0,1e+20,1.5e-05}", "[1.10,-0,1e+20,1.5e-05]"),
        (
            FLOATS,
            "{NaN,Infinity,-Infinity}",
            r#"["NaN","Infinity","-Infinity"]"#,
        ),
        (BOOLS, "{t,f,NULL}", "[true,false,null]"),
        (
            STRINGS,
            r#"{a,"NULL",NULL,"","b c"}"#,
            r#"["a","NULL",null,"","b c"]"#,
        ),
        (STRINGS, r#"{"a\"b\\c","{x,y}"}"#, r#"["a\"b\\c","{x,y}"]"#),
        (
            STRINGS,
            "{\"a\nb\tc\u{1}\u{7f}\",é}",
            "[\"a\\nb\\tc\\u0001\u{7f}\",\"é\"]",
        ),
        (STRINGS, r#"{"\é"}"#, r#"["é"]"#),
        (STRINGS, "{1;2,3}", r#"["1;2","3"]"#),
        (
            SEMICOLON,
            "{(1,1),(0,0);(2,2),(1,1)}",
            r#"["(1,1),(0,0)","(2,2),(1,1)"]"#,
        ),
        (STRINGS, "{1.10,NaN}", r#"["1.10","NaN"]"#),
    ];
    for (kind, text, json) in table {
        check(kind, text, ValueRef::Text(json));
        serde_json::from_str::<serde_json::Value>(json).expect("the expectation is JSON");
    }
}

#[test]
fn malformed_arrays_are_named() {
    let table = [
        (
            INTS,
            "",
            "text of 0 bytes is no array: expected { at byte 0",
        ),
        (
            INTS,
            "1",
            "text of 1 bytes is no array: expected { at byte 0",
        ),
        (
            INTS,
            "{1",
            "text of 2 bytes is no array: expected a delimiter or } at byte 2",
        ),
        (
            INTS,
            "{1}x",
            "text of 4 bytes is no array: expected the end at byte 3",
        ),
        (
            INTS,
            "{1,}",
            "text of 4 bytes is no array: expected an integer at byte 3",
        ),
        (
            INTS,
            "{01}",
            "text of 4 bytes is no array: expected an integer at byte 1",
        ),
        (
            INTS,
            r#"{"1"}"#,
            "text of 5 bytes is no array: expected an integer at byte 1",
        ),
        (
            BOOLS,
            "{x}",
            "text of 3 bytes is no array: expected t or f at byte 1",
        ),
        (
            FLOATS,
            "{1.}",
            "text of 4 bytes is no array: expected a number at byte 1",
        ),
        (
            STRINGS,
            "{\"a",
            "text of 3 bytes is no array: expected a closing quote at byte 3",
        ),
        (
            STRINGS,
            "[1:1{a}",
            "text of 7 bytes is no array: expected = after the bounds at byte 4",
        ),
    ];
    for (kind, text, message) in table {
        refuse(kind, text, message);
    }
}

#[test]
fn arrays_of_odd_nesting_or_quoting_are_refused() {
    for text in [
        "{{1},2}",
        "{1,{2}}",
        "{{}}",
        "{{{{{{{1}}}}}}}",
        "{a b}",
        "{a\"b}",
        "}",
        "{1}}",
        "[1:1]",
    ] {
        assert!(
            convert(STRINGS, text, &mut String::new()).is_err(),
            "{text}"
        );
    }
}

/// Prints elements as `array_out` does.
fn printed(elements: &[Option<String>], delimiter: char) -> String {
    let quoted = |text: &str| {
        let special =
            |c: char| c == delimiter || matches!(c, '"' | '\\' | '{' | '}' | ' ' | '\t'..='\r');
        match text.is_empty() || text.eq_ignore_ascii_case("null") || text.contains(special) {
            true => format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"")),
            false => text.to_owned(),
        }
    };
    let texts = elements
        .iter()
        .map(|it| it.as_deref().map_or("NULL".to_owned(), quoted));
    format!(
        "{{{}}}",
        texts.collect::<Vec<_>>().join(&delimiter.to_string())
    )
}

proptest! {
    #[test]
    fn string_arrays_keep_every_element(elements: Vec<Option<String>>, semicolon: bool) {
        let (kind, delimiter) = if semicolon { (SEMICOLON, ';') } else { (STRINGS, ',') };
        let mut scratch = String::new();
        convert(kind, &printed(&elements, delimiter), &mut scratch).unwrap();
        let back: Vec<Option<String>> = serde_json::from_str(&scratch).unwrap();
        prop_assert_eq!(back, elements);
        // Exactly serde's own escapes, so that there is one form for each value.
        prop_assert_eq!(&scratch, &serde_json::to_string(&serde_json::from_str::<serde_json::Value>(&scratch).unwrap()).unwrap());
    }

    #[test]
    fn conversion_never_panics_and_arrays_are_json(text in r#"(\PC|[\[\]{}",\\ 1tN:=;-]){0,40}"#, code: u8) {
        if let Some(kind) = Kind::from_code(code) {
            let mut scratch = String::new();
            let is_array = matches!(kind, Kind::Array(_));
            if let (Ok(ValueRef::Text(json)), true) = (convert(kind, &text, &mut scratch), is_array) {
                prop_assert!(serde_json::from_str::<serde_json::Value>(json).is_ok(), "{}", json);
            }
        }
    }

    #[test]
    fn printed_floats_lead_back(value: f64) {
        let text = format!("{value:?}");
        if value.is_finite() {
            let mut scratch = String::new();
            prop_assert_eq!(convert(Kind::Float, &text, &mut scratch), Ok(ValueRef::Real(value + 0.0)));
        }
    }
}
