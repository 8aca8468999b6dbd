//! Values of every type of the type table as SQL expressions: the special ones, and random ones between them.

use crate::{postgres::quote_text, rng::Rng};

/// What the columns below need in the database.
pub const TYPES: &str = "
create extension if not exists citext;
create type mood as enum ('sad', 'so so', 'NULL', '1e5');
create domain small_number as int check (value < 1000000);
create domain short_text as text;
create domain price as numeric(10,2);
create domain numbers as int[];
create domain raw as bytea;
create type pair_of as (a int, b text);
";

type Random = fn(&mut Rng) -> String;

/// One type: its name in SQL, and where its values come from.
#[derive(Debug, Clone)]
pub struct Sample {
    pub sql_type: String,
    /// Texts of special values, or whole expressions when they start with `array[`.
    specials: Vec<String>,
    random: Random,
    /// For an array, the text of elements comes from `random`.
    is_array: bool,
}

impl Sample {
    /// NULL, then the special values: each is to be covered.
    pub fn special_count(&self) -> usize {
        self.specials.len() + 1
    }

    /// A special value by its number.
    pub fn special(&self, number: usize) -> String {
        match number.checked_sub(1) {
            None => "null".to_owned(),
            Some(at) => self.expression(&self.specials[at]),
        }
    }

    pub fn special_name(&self, number: usize) -> &str {
        number
            .checked_sub(1)
            .map_or("NULL", |at| &self.specials[at])
    }

    pub fn random(&self, rng: &mut Rng) -> String {
        if !self.is_array {
            return self.expression(&(self.random)(rng));
        }
        let width = rng.below(4) + 1;
        let row = |rng: &mut Rng| {
            let items: Vec<String> = (0..width)
                .map(|_| match rng.one_in(5) {
                    true => "null".to_owned(),
                    false => quote_text(&(self.random)(rng)),
                })
                .collect();
            format!("[{}]", items.join(","))
        };
        let array = if rng.one_in(4) {
            format!("[{},{}]", row(rng), row(rng))
        } else {
            row(rng)
        };
        format!("array{array}::{}", self.sql_type)
    }

    fn expression(&self, text: &str) -> String {
        if text.starts_with("array[") {
            return format!("{text}::{}", self.sql_type);
        }
        format!("{}::{}", quote_text(text), self.sql_type)
    }
}

/// Every type, in a fixed order; `x` is a type, then its special values, then its random ones.
pub fn all() -> Vec<Sample> {
    let mut samples = scalars();
    samples.extend(arrays());
    samples
}

fn scalar(sql_type: &str, specials: &[&str], random: Random) -> Sample {
    let specials = specials.iter().map(|s| (*s).to_owned()).collect();
    Sample {
        sql_type: sql_type.to_owned(),
        specials,
        random,
        is_array: false,
    }
}

fn array(element: &str, specials: &[&str], random: Random) -> Sample {
    let mut all = vec!["{}".to_owned(), "{NULL}".to_owned()];
    all.extend(specials.iter().map(|s| (*s).to_owned()));
    Sample {
        sql_type: format!("{element}[]"),
        specials: all,
        random,
        is_array: true,
    }
}

const TEXTS: [&str; 16] = [
    "",
    " ",
    "NULL",
    "null",
    "007",
    "1e5",
    "0x10",
    "1.10",
    "NaN",
    "\\N",
    "it's \"so\"",
    "a\\b\\\\c",
    "tab\there",
    "two\nlines\r\n",
    "{a,b}",
    "é日本😀\u{1}",
];
const FLOATS: [&str; 8] = [
    "NaN",
    "Infinity",
    "-Infinity",
    "-0",
    "0",
    "0.1",
    "1",
    "1e30",
];
const NUMERICS: [&str; 8] = [
    "NaN",
    "Infinity",
    "-Infinity",
    "0",
    "0.000",
    "1.10",
    "-123456789012345678901234567890.00000000001",
    "1e60",
];
const DATES: [&str; 7] = [
    "infinity",
    "-infinity",
    "4713-01-01 BC",
    "0001-12-31 BC",
    "0001-01-01",
    "1999-12-31",
    "12345-06-07",
];
const STAMPS: [&str; 6] = [
    "infinity",
    "-infinity",
    "0044-03-15 12:00:00 BC",
    "2024-02-29 23:59:59.999999",
    "20000-01-01",
    "epoch",
];
const JSONS: [&str; 9] = [
    "null",
    "{}",
    "[]",
    "\"\"",
    " { \"a\" : [ 1 , 2.50 ] } ",
    "1e2",
    "12345678901234567890.10",
    "\"\\u00e9\\n\"",
    "false",
];

fn scalars() -> Vec<Sample> {
    let mut all = numbers();
    all.extend([
        scalar("text", &TEXTS, text),
        scalar("varchar(40)", &TEXTS, short),
        scalar("char(9)", &["", "a", "123456789", "  x", "007"], nine),
        scalar("citext", &["", "MiXed", "007"], short),
        scalar(
            "uuid",
            &[
                "00000000-0000-0000-0000-000000000000",
                "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11",
            ],
            uuid,
        ),
        scalar("name", &["", "pg_catalog", "123"], |rng| rng.hex(12)),
        scalar("\"char\"", &["", "a", "1"], |rng| {
            char::from(b'a' + rng.below(26) as u8).to_string()
        }),
        scalar("json", &JSONS, json),
        scalar("jsonb", &JSONS, json),
        scalar("date", &DATES, date),
        scalar("time", &["00:00:00", "24:00:00", "23:59:59.999999"], clock),
        scalar(
            "timetz",
            &["00:00:00+15:59:59", "24:00:00-15:59", "12:00:00.5+05:30"],
            clock,
        ),
        scalar("timestamp", &STAMPS, stamp),
        scalar("timestamptz", &STAMPS, stamp),
        scalar(
            "interval",
            &[
                "0",
                "-1 day",
                "1 year -1 day",
                "00:00:00.000001",
                "-178000000 years",
            ],
            interval,
        ),
        scalar(
            "bytea",
            &["", "\\x00", "\\x0012", "\\x31e5", "\\x5c78"],
            |rng| format!("\\x{}", rng.hex(16)),
        ),
    ]);
    all.extend(others());
    all
}

fn numbers() -> Vec<Sample> {
    vec![
        scalar("bool", &["t", "f"], |rng| {
            if rng.one_in(2) { "t" } else { "f" }.to_owned()
        }),
        scalar("int2", &["-32768", "32767", "0"], |rng| {
            rng.between(-32768, 32767).to_string()
        }),
        scalar("int4", &["-2147483648", "2147483647", "0"], int4),
        scalar(
            "int8",
            &[
                "-9223372036854775808",
                "9223372036854775807",
                "9007199254740993",
                "0",
            ],
            int8,
        ),
        scalar("oid", &["0", "2147483648", "4294967295"], |rng| {
            rng.below(1 << 32).to_string()
        }),
        scalar(
            "float4",
            &[FLOATS.as_slice(), &["3.4028235e38", "1e-45", "16777216"]].concat(),
            float4,
        ),
        scalar(
            "float8",
            &[
                FLOATS.as_slice(),
                &["1.7976931348623157e308", "5e-324", "9007199254740993"],
            ]
            .concat(),
            float8,
        ),
        scalar("numeric", &NUMERICS, numeric),
        scalar(
            "numeric(14,4)",
            &["NaN", "0", "1.1", "-9999999999.9999"],
            cents,
        ),
        scalar("money", &["0", "-1", "92233720368547758.07"], cents),
    ]
}

/// What the mirror keeps as Postgres' text.
fn others() -> Vec<Sample> {
    vec![
        scalar("mood", &["sad", "so so", "NULL", "1e5"], mood),
        scalar("small_number", &["-5", "0"], |rng| {
            rng.below(1_000_000).to_string()
        }),
        scalar("short_text", &["", "007", "NULL"], short),
        scalar("price", &["1.1", "NaN", "-0.5"], |rng| {
            rng.between(-99999, 99999).to_string()
        }),
        scalar("numbers", &["{}", "{1,NULL}", "[2:2]={7}"], |rng| {
            format!("{{{},{}}}", rng.below(9), rng.below(9))
        }),
        scalar("raw", &["", "\\x0012"], |rng| format!("\\x{}", rng.hex(8))),
        scalar("int4range", &["empty", "(,)", "[1,5)"], |rng| {
            format!("[{},5000000)", rng.below(4_000_000))
        }),
        scalar("numrange", &["empty", "(1.10,2.0]"], |rng| {
            format!("[{}.50,)", rng.below(1000))
        }),
        scalar(
            "tstzrange",
            &["empty", "(,)", "[2024-01-01 00:00+00,infinity)"],
            |rng| format!("[{},)", stamp(rng)),
        ),
        scalar("int4multirange", &["{}", "{[1,2),[5,9)}"], |rng| {
            format!("{{[{},)}}", rng.below(99))
        }),
        scalar("pair_of", &["(,)", "(1,\"a,b\")", "(,\"\")"], |rng| {
            format!("({},x)", rng.below(99))
        }),
        scalar("bit(8)", &["00000000", "01010101"], |rng| {
            format!("{:08b}", rng.below(256))
        }),
        scalar("varbit", &["", "0", "01"], |rng| {
            format!("{:b}", rng.below(99999))
        }),
        scalar("inet", &["0.0.0.0/0", "::1", "10.0.0.1/8"], |rng| {
            format!("10.0.{}.1", rng.below(256))
        }),
        scalar("macaddr", &["00:00:00:00:00:00"], |rng| rng.hex(12)),
        scalar("point", &["(0,0)", "(-0,NaN)", "(Infinity,1e300)"], |rng| {
            format!("({},1)", rng.below(99))
        }),
        scalar("box", &["(1,1),(0,0)"], |rng| {
            format!("({},9),(0,0)", rng.below(99))
        }),
        scalar("tsvector", &["", "'a':1A 'b''c':2"], |rng| rng.hex(6)),
        scalar("jsonpath", &["$", "$.a[*]"], |rng| {
            format!("$.k{}", rng.below(99))
        }),
        scalar("pg_lsn", &["0/0", "FFFFFFFF/FFFFFFFF"], |rng| {
            format!("{:X}/{:X}", rng.below(99), rng.below(99))
        }),
        scalar("xid8", &["0", "18446744073709551615"], |rng| {
            rng.number().to_string()
        }),
        scalar("int2vector", &["", "1 2"], |rng| {
            format!("{} {}", rng.below(99), rng.below(99))
        }),
        scalar("oidvector", &["", "1 4294967295"], |rng| {
            rng.below(99).to_string()
        }),
    ]
}

fn arrays() -> Vec<Sample> {
    let texts = "array['','NULL',null,'null',' ','a,b','c\"d','e\\f','{g}','x\ny','007']";
    vec![
        array("bool", &["{{t,f},{NULL,t}}"], |rng| {
            if rng.one_in(2) { "t" } else { "f" }.to_owned()
        }),
        array("int2", &["[0:1]={1,-2}"], |rng| {
            rng.between(-32768, 32767).to_string()
        }),
        array(
            "int4",
            &["{{{1},{2}},{{3},{4}}}", "[-3:-2][5:5]={{1},{NULL}}"],
            int4,
        ),
        array(
            "int8",
            &["{-9223372036854775808,9223372036854775807,9007199254740993}"],
            int8,
        ),
        array("float4", &["{NaN,Infinity,-Infinity,-0,0.1}"], float4),
        array(
            "float8",
            &["{NaN,Infinity,-Infinity,-0,0.1,5e-324}"],
            float8,
        ),
        array("numeric", &["{NaN,Infinity,1.10,0.00}"], numeric),
        array("text", &["{\"\"}", texts], short),
        array("varchar", &[texts], short),
        array("char(3)", &["{a}"], |rng| rng.hex(2)),
        array("citext", &["{Ab,NULL}"], short),
        array("uuid", &[], uuid),
        array("json", &["array['{\"a\": 1}','null']"], json),
        array("jsonb", &["array['{\"a\": 1}','null','\"x\"']"], json),
        array("date", &["{infinity,\"0001-01-01 BC\"}"], date),
        array("timestamptz", &["{-infinity}"], stamp),
        array("interval", &["{\"1 day -1 mons\"}"], interval),
        array("bytea", &["array['\\x','\\x0012']"], |rng| {
            format!("\\x{}", rng.hex(8))
        }),
        array("mood", &["array['NULL',null,'so so']"], mood),
        array("small_number", &["{7}"], |rng| rng.below(999).to_string()),
        array("int4range", &["{empty}"], |rng| {
            format!("[{},900)", rng.below(800))
        }),
        array("pair_of", &["array['(1,\"x y\")','(,)']"], |rng| {
            format!("({},q)", rng.below(99))
        }),
        array("money", &["{-1}"], cents),
        array("box", &["{(1,1),(0,0);(2,2),(1,1)}"], |rng| {
            format!("({},9),(0,0)", rng.below(99))
        }),
        array("bit(4)", &["{0011}"], |rng| {
            format!("{:04b}", rng.below(16))
        }),
    ]
}

fn int4(rng: &mut Rng) -> String {
    (rng.number() as i32).to_string()
}

fn int8(rng: &mut Rng) -> String {
    (rng.number() as i64).to_string()
}

fn float4(rng: &mut Rng) -> String {
    let value = f32::from_bits(rng.number() as u32);
    if value.is_finite() {
        format!("{value:e}")
    } else {
        "2.5".to_owned()
    }
}

fn float8(rng: &mut Rng) -> String {
    let value = f64::from_bits(rng.number());
    if value.is_finite() {
        format!("{value:e}")
    } else {
        "2.5".to_owned()
    }
}

fn numeric(rng: &mut Rng) -> String {
    let sign = if rng.one_in(2) { "-" } else { "" };
    format!(
        "{sign}{}.{:0width$}",
        rng.number(),
        rng.below(1_000_000),
        width = rng.below(20) as usize
    )
}

fn cents(rng: &mut Rng) -> String {
    format!(
        "{}.{:02}",
        rng.between(-1_000_000, 1_000_000),
        rng.below(100)
    )
}

/// Mostly short and of odd characters; now and then too large for its row.
fn text(rng: &mut Rng) -> String {
    if rng.one_in(12) {
        rng.hex(9000)
    } else {
        short(rng)
    }
}

fn short(rng: &mut Rng) -> String {
    const CHARS: [char; 20] = [
        'a', 'Z', '0', '9', ' ', '\'', '"', '\\', '{', '}', ',', ';', '\n', '\t', '\u{7f}', 'ß',
        'Ω', '語', '😀', '\u{301}',
    ];
    (0..rng.below(12)).map(|_| *rng.pick(&CHARS)).collect()
}

fn nine(rng: &mut Rng) -> String {
    rng.hex(9)
}

fn uuid(rng: &mut Rng) -> String {
    rng.hex(32)
}

fn mood(rng: &mut Rng) -> String {
    (*rng.pick(&["sad", "so so", "NULL", "1e5"])).to_owned()
}

fn json(rng: &mut Rng) -> String {
    format!(
        "{{\"k{}\":  [{}, null, \"{}\"]}}",
        rng.below(9),
        rng.between(-99, 99),
        rng.hex(5)
    )
}

fn date(rng: &mut Rng) -> String {
    format!(
        "{:04}-{:02}-{:02}",
        1 + rng.below(9998),
        1 + rng.below(12),
        1 + rng.below(28)
    )
}

fn clock(rng: &mut Rng) -> String {
    format!(
        "{:02}:{:02}:{:02}.{:06}",
        rng.below(24),
        rng.below(60),
        rng.below(60),
        rng.below(1_000_000)
    )
}

fn stamp(rng: &mut Rng) -> String {
    format!("{} {}", date(rng), clock(rng))
}

fn interval(rng: &mut Rng) -> String {
    format!(
        "{} mons {} days {}",
        rng.between(-99, 99),
        rng.between(-99, 99),
        clock(rng)
    )
}
