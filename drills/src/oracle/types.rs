//! The type table a second time: which SQLite value a Postgres text must have become. Written from the contract alone;
//! it shares no line with the table that the gateway uses.

use std::fmt::Write;

use anyhow::{Context, Result, bail};
use rusqlite::types::ValueRef;

use super::{array, array::Element, json, json::Json};

/// How the values of a column are mirrored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rule {
    Bool,
    Integer,
    Float,
    /// The text that Postgres prints, whatever the type is.
    Text,
    /// Hex digits without a prefix.
    Bytes,
    /// JSON text of the elements.
    Array {
        element: Scalar,
        delimiter: char,
    },
}

/// What an array's element becomes in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scalar {
    Bool,
    Integer,
    Float,
    Text,
}

/// A type as the catalog describes it.
#[derive(Debug, Clone, Default)]
pub struct PgType {
    /// Name of the type when it is one of pg_catalog's; empty for any other.
    pub builtin_name: String,
    /// `b` base, `d` domain, `e` enum, and so on.
    pub class: String,
    /// Of a true array: the element's name as in `builtin_name`, its class, and what parts elements in text.
    pub element: Option<(String, String, char)>,
}

impl PgType {
    pub fn rule(&self) -> Rule {
        // A domain is text whatever it is over.
        if self.class == "d" {
            return Rule::Text;
        }
        if let Some((name, class, delimiter)) = &self.element {
            let element = match (class.as_str(), name.as_str()) {
                ("b", "bool") => Scalar::Bool,
                ("b", "int2" | "int4" | "int8" | "oid") => Scalar::Integer,
                ("b", "float4" | "float8") => Scalar::Float,
                _ => Scalar::Text,
            };
            return Rule::Array {
                element,
                delimiter: *delimiter,
            };
        }
        match self.builtin_name.as_str() {
            "bool" => Rule::Bool,
            "int2" | "int4" | "int8" | "oid" => Rule::Integer,
            "float4" | "float8" => Rule::Float,
            "bytea" => Rule::Bytes,
            _ => Rule::Text,
        }
    }
}

/// A value in the form in which both sides are compared; the variant is SQLite's typeof().
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    Null,
    Integer(i64),
    Real(f64),
    Text(String),
    /// A text that holds an array, in one fixed way of writing JSON.
    Json(String),
    Blob(Vec<u8>),
}

impl Cell {
    /// A text that two equal cells share and two different ones do not; a row is found by it.
    pub fn key_text(&self) -> String {
        match self {
            Self::Null => "null".to_owned(),
            Self::Integer(n) => format!("integer {n}"),
            Self::Real(x) => format!("real {x:?}"),
            Self::Text(text) => format!("text {text}"),
            Self::Json(text) => format!("array {text}"),
            Self::Blob(bytes) => format!("blob {bytes:?}"),
        }
    }
}

/// What the mirror must hold for this text of Postgres.
pub fn expected(rule: &Rule, text: Option<&str>) -> Result<Cell> {
    let Some(text) = text else {
        return Ok(Cell::Null);
    };
    Ok(match rule {
        Rule::Bool => Cell::Integer(match text {
            "t" => 1,
            "f" => 0,
            _ => bail!("not a boolean: {text}"),
        }),
        Rule::Integer => Cell::Integer(
            text.parse()
                .with_context(|| format!("not an integer: {text}"))?,
        ),
        Rule::Float => float(text)?,
        Rule::Text => Cell::Text(text.to_owned()),
        Rule::Bytes => Cell::Text(
            text.strip_prefix("\\x")
                .context("bytea is not in hex")?
                .to_owned(),
        ),
        Rule::Array { element, delimiter } => {
            let mut out = String::new();
            write_expected(&array::parse(text, *delimiter)?, *element, &mut out)?;
            Cell::Json(out)
        }
    })
}

fn float(text: &str) -> Result<Cell> {
    Ok(match text {
        "NaN" => Cell::Text("NaN".to_owned()),
        "Infinity" => Cell::Real(f64::INFINITY),
        "-Infinity" => Cell::Real(f64::NEG_INFINITY),
        // Adding 0 turns -0 into 0.
        _ => Cell::Real(
            text.parse::<f64>()
                .with_context(|| format!("not a float: {text}"))?
                + 0.0,
        ),
    })
}

/// What the mirror holds.
pub fn found(rule: &Rule, value: ValueRef<'_>) -> Cell {
    match value {
        ValueRef::Null => Cell::Null,
        ValueRef::Integer(n) => Cell::Integer(n),
        ValueRef::Real(x) => Cell::Real(x + 0.0),
        ValueRef::Blob(bytes) => Cell::Blob(bytes.to_vec()),
        ValueRef::Text(bytes) => {
            let Ok(text) = std::str::from_utf8(bytes) else {
                return Cell::Blob(bytes.to_vec());
            };
            if let Rule::Array { element, .. } = rule
                && let Ok(value @ Json::Array(_)) = json::parse(text)
            {
                let mut out = String::new();
                write_found(&value, *element, &mut out);
                return Cell::Json(out);
            }
            Cell::Text(text.to_owned())
        }
    }
}

fn write_expected(element: &Element, scalar: Scalar, out: &mut String) -> Result<()> {
    match element {
        Element::Null => out.push_str("null"),
        Element::Nested(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_expected(item, scalar, out)?;
            }
            out.push(']');
        }
        Element::Text(text) => match scalar {
            Scalar::Bool => out.push_str(match text.as_str() {
                "t" => "true",
                "f" => "false",
                _ => bail!("not a boolean element: {text}"),
            }),
            Scalar::Integer => out.push_str(&text.parse::<i64>()?.to_string()),
            Scalar::Float => match float(text)? {
                Cell::Real(x) if x.is_finite() => write!(out, "{x:?}")?,
                _ => write!(out, "{text:?}")?,
            },
            Scalar::Text => write!(out, "{text:?}")?,
        },
    }
    Ok(())
}

fn write_found(value: &Json, scalar: Scalar, out: &mut String) {
    match value {
        Json::Null => out.push_str("null"),
        Json::Bool(yes) => out.push_str(if *yes { "true" } else { "false" }),
        Json::Text(text) => out.push_str(&format!("{text:?}")),
        // An integer stays as it is written, so 1.0 in an array of integers is a difference.
        Json::Number(text) => match text.parse::<f64>() {
            Ok(x) if scalar == Scalar::Float => out.push_str(&format!("{:?}", x + 0.0)),
            _ => out.push_str(text),
        },
        Json::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_found(item, scalar, out);
            }
            out.push(']');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(element: Scalar) -> Rule {
        Rule::Array {
            element,
            delimiter: ',',
        }
    }

    fn same(rule: &Rule, postgres: &str, mirror: &str) -> bool {
        expected(rule, Some(postgres)).unwrap() == found(rule, ValueRef::Text(mirror.as_bytes()))
    }

    #[test]
    fn knows_each_row_of_the_type_table() {
        let text = |t: &str| Cell::Text(t.to_owned());
        for (rule, postgres, cell) in [
            (Rule::Bool, "t", Cell::Integer(1)),
            (
                Rule::Integer,
                "-9223372036854775808",
                Cell::Integer(i64::MIN),
            ),
            (Rule::Integer, "4294967295", Cell::Integer(4_294_967_295)),
            (Rule::Float, "0.1", Cell::Real(0.1)),
            (Rule::Float, "-0", Cell::Real(0.0)),
            (Rule::Float, "NaN", text("NaN")),
            (Rule::Float, "-Infinity", Cell::Real(f64::NEG_INFINITY)),
            (Rule::Text, "1.10", text("1.10")),
            (Rule::Bytes, "\\x0012", text("0012")),
            (Rule::Bytes, "\\x", text("")),
        ] {
            assert_eq!(expected(&rule, Some(postgres)).unwrap(), cell, "{postgres}");
        }
        assert_eq!(expected(&Rule::Text, None).unwrap(), Cell::Null);
    }

    #[test]
    fn compares_arrays_as_parsed_json() {
        assert!(same(
            &array(Scalar::Integer),
            "{1,NULL,-2}",
            "[1, null,\t-2]"
        ));
        assert!(!same(&array(Scalar::Integer), "{1}", "[1.0]"));
        assert!(!same(&array(Scalar::Integer), "{1}", "[\"1\"]"));
        assert!(same(
            &array(Scalar::Float),
            "{1,0.1,NaN,-0}",
            "[1.0,1e-1,\"NaN\",0]"
        ));
        assert!(same(
            &array(Scalar::Bool),
            "{t,f,NULL}",
            "[true,false,null]"
        ));
        assert!(same(
            &array(Scalar::Text),
            "{\"NULL\",NULL,007}",
            "[\"NULL\",null,\"007\"]"
        ));
        assert!(!same(&array(Scalar::Text), "{007}", "[7]"));
        assert!(same(&array(Scalar::Integer), "[5:6]={1,2}", "[1,2]"));
        assert!(same(&array(Scalar::Text), "{}", "[]"));
        assert!(!same(&array(Scalar::Text), "{}", "[\"\"]"));
    }

    #[test]
    fn a_wrong_storage_class_is_a_difference() {
        let rule = Rule::Text;
        assert_ne!(
            expected(&rule, Some("007")).unwrap(),
            found(&rule, ValueRef::Integer(7))
        );
        let float = Rule::Float;
        assert_ne!(
            expected(&float, Some("1")).unwrap(),
            found(&float, ValueRef::Integer(1))
        );
        assert_ne!(
            expected(&float, Some("NaN")).unwrap(),
            found(&float, ValueRef::Null)
        );
    }

    #[test]
    fn domains_are_text_and_vectors_are_not_arrays() {
        let domain = PgType {
            class: "d".into(),
            ..PgType::default()
        };
        assert_eq!(domain.rule(), Rule::Text);
        let vector = PgType {
            builtin_name: "int2vector".into(),
            class: "b".into(),
            element: None,
        };
        assert_eq!(vector.rule(), Rule::Text);
    }
}
