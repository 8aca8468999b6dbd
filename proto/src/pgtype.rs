//! The type table: which Postgres type becomes which mirror value, and how Postgres' printed text becomes
//! that value. It is used for streamed rows, copied rows and stored defaults alike, so that one value has one
//! form however it came.
//!
//! The text is what a session prints whose settings are pinned (ISO dates, UTC, `extra_float_digits` 3, hex
//! bytea). Text that such a session cannot have printed is an error, never a guess.

mod array;
#[cfg(test)]
mod tests;

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::ids::Oid;
use crate::value::ValueRef;

/// What a column's values are in the mirror.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// `bool`: 0 or 1.
    Bool,
    /// `int2`, `int4`, `int8`, `oid`: an exact 64-bit integer.
    Int,
    /// `float4`, `float8`: a double; NaN is the text `NaN`.
    Float,
    /// Everything else: the text as Postgres prints it.
    Text,
    /// `bytea`: lower-case hex without a prefix.
    Bytea,
    /// `json`, `jsonb`: the raw text.
    Json,
    /// A true array: JSON text.
    Array(Element),
}

/// What the elements of an array are in its JSON text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Element {
    /// `int2`, `int4`, `int8`, `oid`: numbers.
    Int,
    /// `float4`, `float8`: numbers, digit for digit; strings where not finite.
    Float,
    /// `bool`: `true` and `false`.
    Bool,
    /// Anything else: strings, separated in Postgres' text by the element type's own delimiter.
    Other(Delimiter),
}

/// The byte that separates array elements in Postgres' text: a comma, but `;` for `box`, `:` for PostGIS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Delimiter(u8);

/// Facts of `pg_type` that decide a [`Kind`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TypeFacts {
    /// The type's `oid`.
    pub oid: Oid,
    /// The type's `typtype`: `b` base, `c` composite, `d` domain, `e` enum, `r` range, `m` multirange.
    pub typtype: char,
    /// Set for a true array: `typsubscript` is `array_subscript_handler`, `typlen` is -1 and `typoutput` is
    /// `array_out`. Not set for `int2vector` and `oidvector`, which print without braces.
    pub array_of: Option<ElementFacts>,
}

/// Facts of `pg_type` about an array's element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElementFacts {
    /// The element type's `oid`.
    pub oid: Oid,
    /// The element type's `typdelim`.
    pub delimiter: char,
}

/// Text that Postgres cannot have printed for a value of its type. The value itself is left out, since row
/// data does not belong in a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("text of {length} bytes is no {kind}: expected {expected} at byte {offset}")]
pub struct ConvertError {
    /// What the text should have been.
    pub kind: &'static str,
    /// What was expected where the reading stopped.
    pub expected: &'static str,
    /// Where the reading stopped, in bytes from the text's start.
    pub offset: usize,
    /// Length of the whole text in bytes.
    pub length: usize,
}

// Code and word of every kind but arrays of `Other`, whose code is their ASCII delimiter (1 to 127).
const CODES: [(u8, &str, Kind); 9] = [
    (0x80, "bool", Kind::Bool),
    (0x81, "int", Kind::Int),
    (0x82, "float", Kind::Float),
    (0x83, "text", Kind::Text),
    (0x84, "bytea", Kind::Bytea),
    (0x85, "json", Kind::Json),
    (0x90, "int[]", Kind::Array(Element::Int)),
    (0x91, "float[]", Kind::Array(Element::Float)),
    (0x92, "bool[]", Kind::Array(Element::Bool)),
];

impl Kind {
    /// The kind of a type. Built-in types are known by their fixed oid, so a user's type of the same name is
    /// not taken for one.
    pub fn of(facts: &TypeFacts) -> Kind {
        if facts.typtype == 'd' {
            return Kind::Text;
        }
        match (facts.oid.0, facts.array_of) {
            (16, _) => Kind::Bool,
            (20 | 21 | 23 | 26, _) => Kind::Int,
            (700 | 701, _) => Kind::Float,
            (17, _) => Kind::Bytea,
            (114 | 3802, _) => Kind::Json,
            (_, Some(element)) => Element::of(element).map_or(Kind::Text, Kind::Array),
            (_, None) => Kind::Text,
        }
    }

    /// The type that the mirror's column is declared with. From a small closed set, whose affinity changes no
    /// value of its kind.
    pub fn declared(self) -> &'static str {
        match self {
            Kind::Bool => "BOOLEAN",
            Kind::Int => "BIGINT",
            Kind::Float => "REAL",
            Kind::Text | Kind::Bytea | Kind::Json | Kind::Array(_) => "TEXT",
        }
    }

    /// The type that clients are told.
    pub fn wire(self) -> &'static str {
        match self {
            Kind::Bool => "boolean",
            Kind::Int => "int64",
            Kind::Float => "number",
            Kind::Text | Kind::Bytea => "string",
            Kind::Json | Kind::Array(_) => "json",
        }
    }

    /// The kind as one byte. Part of the stored format: a code never changes its meaning.
    pub fn code(self) -> u8 {
        match self {
            Kind::Array(Element::Other(delimiter)) => delimiter.0,
            other => CODES
                .iter()
                .find(|(_, _, kind)| *kind == other)
                .map(|(code, _, _)| *code)
                .expect("every kind but arrays of Other is in CODES"),
        }
    }

    /// The kind of a [`Kind::code`]; none for a byte that is no code.
    pub fn from_code(code: u8) -> Option<Kind> {
        let fixed = CODES
            .iter()
            .find(|(known, _, _)| *known == code)
            .map(|(_, _, kind)| *kind);
        fixed.or_else(|| Delimiter::new(char::from(code)).map(|it| Kind::Array(Element::Other(it))))
    }
}

/// The word that documents hold: `int`, `int[]`, `text[]`, and `text[;]` for another delimiter than a comma.
impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match CODES.iter().find(|(_, _, kind)| kind == self) {
            Some((_, word, _)) => f.write_str(word),
            None if self.code() == b',' => f.write_str("text[]"),
            None => write!(f, "text[{}]", char::from(self.code())),
        }
    }
}

impl Serialize for Kind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Kind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let word = String::deserialize(deserializer)?;
        let known = (0..=u8::MAX)
            .filter_map(Kind::from_code)
            .find(|kind| kind.to_string() == word);
        known.ok_or_else(|| serde::de::Error::custom(format!("{word:?} is no kind of value")))
    }
}

impl Element {
    fn of(facts: ElementFacts) -> Option<Element> {
        match facts.oid.0 {
            16 => Some(Element::Bool),
            20 | 21 | 23 | 26 => Some(Element::Int),
            700 | 701 => Some(Element::Float),
            _ => Delimiter::new(facts.delimiter).map(Element::Other),
        }
    }

    fn delimiter(self) -> u8 {
        match self {
            Element::Int | Element::Float | Element::Bool => b',',
            Element::Other(delimiter) => delimiter.0,
        }
    }
}

impl Delimiter {
    /// The delimiter of nearly every type.
    pub const COMMA: Delimiter = Delimiter(b',');

    /// A delimiter that keeps arrays readable: ASCII, and not one of the bytes that give an array its form.
    /// Postgres allows the others, but nobody can read such an array back; it stays text.
    pub fn new(delimiter: char) -> Option<Delimiter> {
        match delimiter {
            '\0' | '{' | '}' | '"' | '\\' => None,
            _ => u8::try_from(delimiter)
                .ok()
                .filter(u8::is_ascii)
                .map(Delimiter),
        }
    }
}

/// The mirror value of Postgres' printed `text`. The value borrows `text` where it can, and `scratch` (whose
/// content is replaced) where it cannot: only arrays need it.
pub fn convert<'a>(
    kind: Kind,
    text: &'a str,
    scratch: &'a mut String,
) -> Result<ValueRef<'a>, ConvertError> {
    match kind {
        Kind::Text | Kind::Json => Ok(ValueRef::Text(text)),
        Kind::Int => int(text).map(ValueRef::Int),
        Kind::Bool => match text {
            "t" => Ok(ValueRef::Int(1)),
            "f" => Ok(ValueRef::Int(0)),
            _ => Err(ConvertError::new("bool", "t or f", 0, text)),
        },
        Kind::Float => float(text),
        Kind::Bytea => bytea(text).map(ValueRef::Text),
        Kind::Array(element) => {
            array::to_json(element, text, scratch)?;
            Ok(ValueRef::Text(scratch))
        }
    }
}

impl ConvertError {
    fn new(kind: &'static str, expected: &'static str, offset: usize, text: &str) -> Self {
        Self {
            kind,
            expected,
            offset,
            length: text.len(),
        }
    }
}

fn int(text: &str) -> Result<i64, ConvertError> {
    match text.parse() {
        Ok(value) if !text.starts_with('+') => Ok(value),
        _ => Err(ConvertError::new(
            "integer",
            "a decimal number within 64 bits",
            0,
            text,
        )),
    }
}

fn float(text: &str) -> Result<ValueRef<'_>, ConvertError> {
    match text {
        "NaN" => return Ok(ValueRef::Text("NaN")),
        "Infinity" => return Ok(ValueRef::Real(f64::INFINITY)),
        "-Infinity" => return Ok(ValueRef::Real(f64::NEG_INFINITY)),
        _ => {}
    }
    let bad = || ConvertError::new("float", "a decimal number within a double", 0, text);
    // Rust's parser also takes words such as `inf`; Postgres prints none of them.
    if !text
        .bytes()
        .all(|b| matches!(b, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e'))
    {
        return Err(bad());
    }
    match text.parse::<f64>() {
        // Adding 0 turns -0 into 0 and changes nothing else.
        Ok(value) if value.is_finite() => Ok(ValueRef::Real(value + 0.0)),
        _ => Err(bad()),
    }
}

fn bytea(text: &str) -> Result<&str, ConvertError> {
    let Some(hex) = text.strip_prefix("\\x") else {
        return Err(ConvertError::new("bytea", "\\x", 0, text));
    };
    let digit = |b: &u8| matches!(b, b'0'..=b'9' | b'a'..=b'f');
    if !hex.as_bytes().iter().all(digit) {
        let at = hex.bytes().position(|b| !digit(&b)).unwrap_or(0);
        return Err(ConvertError::new(
            "bytea",
            "a lower-case hex digit",
            at + 2,
            text,
        ));
    }
    if !hex.len().is_multiple_of(2) {
        return Err(ConvertError::new(
            "bytea",
            "one more hex digit",
            text.len(),
            text,
        ));
    }
    Ok(hex)
}
