//! Tables as operators name them, and the names that follow from a source's.

use std::fmt;
use std::str::FromStr;

use rindle_proto::ids::SourceName;
use serde::Serialize;

use crate::pg::catalog::quote_ident;

/// A table: schema and name, each taken as it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableName {
    /// Schema; `public` when none was given.
    pub schema: String,
    /// Name.
    pub name: String,
}

/// A list of tables that does not parse.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("table {text:?} is not valid: {expected}")]
pub struct NameError {
    text: String,
    expected: &'static str,
}

/// Name of the publication that `prepare` makes for a source.
pub fn publication_name(source: &SourceName) -> String {
    format!("rindle_{}", source.as_str().replace('-', "_"))
}

/// Text in single quotes, for SQL.
pub(crate) fn quote_literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

impl TableName {
    /// A table of a schema.
    pub fn new(schema: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            schema: schema.into(),
            name: name.into(),
        }
    }

    /// Reads names between commas.
    ///
    /// # Errors
    /// When one of them is none.
    pub fn parse_list(text: &str) -> Result<Vec<Self>, NameError> {
        let parts = split_outside_quotes(text, ',');
        parts.iter().map(|part| part.trim().parse()).collect()
    }

    /// Quoted and qualified, for SQL.
    pub fn quoted(&self) -> String {
        format!("{}.{}", quote_ident(&self.schema), quote_ident(&self.name))
    }
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.schema, self.name)
    }
}

impl Serialize for TableName {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// `schema.table` or `table`. A part in double quotes may hold dots, commas and spaces; letters keep their case
/// with and without quotes.
impl FromStr for TableName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let bad = |expected| NameError {
            text: text.to_owned(),
            expected,
        };
        let parts = split_outside_quotes(text, '.');
        let parts: Option<Vec<String>> = parts.iter().map(|part| unquote(part)).collect();
        let parts = parts.ok_or_else(|| bad("a quote is not closed or stands inside a name"))?;
        match <[String; 2]>::try_from(parts) {
            Ok([schema, name]) if !schema.is_empty() && !name.is_empty() => {
                Ok(Self { schema, name })
            }
            Err(parts) if parts.len() == 1 && !parts[0].is_empty() => {
                Ok(Self::new("public", parts[0].clone()))
            }
            Ok(_) | Err(_) => Err(bad(
                "expected schema.table; put names with dots into double quotes",
            )),
        }
    }
}

fn split_outside_quotes(text: &str, separator: char) -> Vec<&str> {
    let mut quoted = false;
    text.split(|c| {
        quoted ^= c == '"';
        c == separator && !quoted
    })
    .collect()
}

fn unquote(part: &str) -> Option<String> {
    match part.strip_prefix('"') {
        None => (!part.contains('"')).then(|| part.to_owned()),
        Some(rest) => {
            let inner = rest.strip_suffix('"')?.replace("\"\"", "\u{0}");
            (!inner.contains('"')).then(|| inner.replace('\u{0}', "\""))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_as_they_are() {
        let list = TableName::parse_list(r#"public.issue, Sales.Order,t,"a.b"."c,""d""#);
        let wanted = [
            ("public", "issue"),
            ("Sales", "Order"),
            ("public", "t"),
            ("a.b", "c,\"d"),
        ];
        let wanted: Vec<_> = wanted.iter().map(|(s, n)| TableName::new(*s, *n)).collect();
        assert_eq!(list.unwrap(), wanted);
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for bad in [
            "",
            ".",
            "a.",
            ".b",
            "a.b.c",
            "a,,b",
            "\"a",
            "a\"b\"",
            "\"a\"b\".c",
        ] {
            assert!(TableName::parse_list(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn publication_is_that_of_the_contract() {
        assert_eq!(
            publication_name(&"my-app".parse().unwrap()),
            "rindle_my_app"
        );
    }
}
