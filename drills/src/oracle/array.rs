//! The text of a Postgres array, read into nested elements.

use anyhow::{Result, bail, ensure};

/// One element, or a dimension of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Element {
    Null,
    Text(String),
    Nested(Vec<Element>),
}

/// Reads `{…}`, with or without its bounds (`[2:3]={…}`), whose elements are parted by `delimiter`.
pub fn parse(text: &str, delimiter: char) -> Result<Element> {
    let body = match text.strip_prefix('[') {
        Some(_) => match text.split_once("]={") {
            Some((_, rest)) => format!("{{{rest}"),
            None => bail!("bounds without an array: {text}"),
        },
        None => text.to_owned(),
    };
    let chars: Vec<char> = body.chars().collect();
    let mut at = 0;
    let value = nested(&chars, &mut at, delimiter)?;
    ensure!(at == chars.len(), "more after the array: {text}");
    Ok(value)
}

fn nested(chars: &[char], at: &mut usize, delimiter: char) -> Result<Element> {
    ensure!(chars.get(*at) == Some(&'{'), "no {{ at {at}");
    *at += 1;
    let mut items = Vec::new();
    if chars.get(*at) == Some(&'}') {
        *at += 1;
        return Ok(Element::Nested(items));
    }
    loop {
        items.push(match chars.get(*at) {
            Some('{') => nested(chars, at, delimiter)?,
            Some('"') => quoted(chars, at)?,
            _ => bare(chars, at, delimiter)?,
        });
        match chars.get(*at) {
            Some('}') => {
                *at += 1;
                return Ok(Element::Nested(items));
            }
            Some(c) if *c == delimiter => *at += 1,
            other => bail!("neither delimiter nor end at {at}: {other:?}"),
        }
    }
}

fn quoted(chars: &[char], at: &mut usize) -> Result<Element> {
    *at += 1;
    let mut text = String::new();
    loop {
        match chars.get(*at) {
            Some('"') => {
                *at += 1;
                return Ok(Element::Text(text));
            }
            Some('\\') => {
                let Some(c) = chars.get(*at + 1) else {
                    bail!("the escape does not end")
                };
                text.push(*c);
                *at += 2;
            }
            Some(c) => {
                text.push(*c);
                *at += 1;
            }
            None => bail!("the quoted element does not end"),
        }
    }
}

fn bare(chars: &[char], at: &mut usize, delimiter: char) -> Result<Element> {
    let mut text = String::new();
    let mut escaped = false;
    while let Some(c) = chars.get(*at) {
        match c {
            '}' => break,
            c if *c == delimiter => break,
            '\\' => {
                escaped = true;
                *at += 1;
                let Some(c) = chars.get(*at) else {
                    bail!("the escape does not end")
                };
                text.push(*c);
            }
            c => text.push(*c),
        }
        *at += 1;
    }
    // Only the bare word is NULL; Postgres quotes a text that reads the same.
    if !escaped && text.eq_ignore_ascii_case("null") {
        return Ok(Element::Null);
    }
    Ok(Element::Text(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(s: &str) -> Element {
        Element::Text(s.to_owned())
    }

    #[test]
    fn reads_nulls_quotes_and_dimensions() {
        let read = parse(r#"{NULL,"NULL","a,b","c\"d","e\\f"," h ",x}"#, ',').unwrap();
        let expected = [
            text("NULL"),
            text("a,b"),
            text("c\"d"),
            text("e\\f"),
            text(" h "),
            text("x"),
        ];
        let Element::Nested(items) = read else {
            panic!("not an array")
        };
        assert_eq!(items[0], Element::Null);
        assert_eq!(items[1..], expected);
        let two = parse("[0:1][2:3]={{1,2},{3,NULL}}", ',').unwrap();
        let row = |a, b| Element::Nested(vec![a, b]);
        assert_eq!(
            two,
            row(row(text("1"), text("2")), row(text("3"), Element::Null))
        );
        assert_eq!(parse("{}", ',').unwrap(), Element::Nested(vec![]));
        let boxes = parse("{(1,1),(0,0);(2,2),(1,1)}", ';').unwrap();
        assert_eq!(boxes, row(text("(1,1),(0,0)"), text("(2,2),(1,1)")));
    }

    #[test]
    fn refuses_what_does_not_close() {
        for bad in ["", "{", "{1", "{1}x", "{\"a}", "[1:2]", "{1,2"] {
            assert!(parse(bad, ',').is_err(), "{bad} was read");
        }
    }
}
