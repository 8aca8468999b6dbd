//! Postgres' array text to JSON text. Driven over the bytes once; every structural byte is ASCII, so a slice
//! between two of them is always whole characters.

use super::{ConvertError, Element};

/// Postgres' own limit on dimensions (`MAXDIM`).
const DEPTH_MAX: usize = 6;

/// Replaces `json` by the JSON text of the array that `text` prints.
pub(super) fn to_json(element: Element, text: &str, json: &mut String) -> Result<(), ConvertError> {
    json.clear();
    json.reserve(text.len());
    let mut reader = Reader {
        element,
        delimiter: element.delimiter(),
        text,
        at: 0,
    };
    reader.skip_bounds()?;
    reader.array(json)
}

struct Reader<'a> {
    element: Element,
    delimiter: u8,
    text: &'a str,
    /// Offset of the next byte to read; always on a character boundary.
    at: usize,
}

impl<'a> Reader<'a> {
    /// Steps over `[2:3][-1:0]=`, which Postgres prints when a lower bound is not 1.
    fn skip_bounds(&mut self) -> Result<(), ConvertError> {
        if self.peek() != Some(b'[') {
            return Ok(());
        }
        let bound = |b: &u8| matches!(b, b'0'..=b'9' | b'-' | b':' | b'[' | b']');
        self.at += self.rest().bytes().take_while(bound).count();
        match self.peek() {
            Some(b'=') => self.at += 1,
            _ => return Err(self.expected("= after the bounds")),
        }
        Ok(())
    }

    fn array(&mut self, json: &mut String) -> Result<(), ConvertError> {
        if self.rest() == "{}" {
            json.push_str("[]");
            return Ok(());
        }
        let mut depth = 0;
        let mut leaf_depth = None;
        loop {
            while self.peek() == Some(b'{') && depth < DEPTH_MAX {
                self.at += 1;
                depth += 1;
                json.push('[');
            }
            // All elements of a Postgres array lie equally deep.
            if depth == 0 || leaf_depth.is_some_and(|leaf| leaf != depth) {
                return Err(self.expected("{"));
            }
            leaf_depth = Some(depth);
            self.value(json)?;
            while self.peek() == Some(b'}') && depth > 0 {
                self.at += 1;
                depth -= 1;
                json.push(']');
            }
            match self.peek() {
                None if depth == 0 => return Ok(()),
                Some(b) if depth > 0 && b == self.delimiter => self.at += 1,
                _ if depth == 0 => return Err(self.expected("the end")),
                _ => return Err(self.expected("a delimiter or }")),
            }
            json.push(',');
        }
    }

    fn value(&mut self, json: &mut String) -> Result<(), ConvertError> {
        if self.peek() == Some(b'"') {
            return self.quoted(json);
        }
        let start = self.at;
        let delimiter = self.delimiter;
        let end = |b: u8| b == delimiter || b == b'}';
        let length = self
            .rest()
            .bytes()
            .position(end)
            .unwrap_or(self.rest().len());
        let word = &self.rest()[..length];
        // Postgres quotes an element that is empty or holds one of these.
        let needs_quotes = |b: u8| matches!(b, b'"' | b'\\' | b'{' | b' ' | b'\t'..=b'\r');
        if let Some(bad) = word.bytes().position(needs_quotes) {
            self.at += bad;
            return Err(self.expected("an element without this byte, or in quotes"));
        }
        let written = match (self.element, word) {
            (_, "") => false,
            (_, "NULL") => push(json, "null"),
            (Element::Bool, "t") => push(json, "true"),
            (Element::Bool, "f") => push(json, "false"),
            (Element::Bool, _) => false,
            (Element::Int, _) => is_integer(word.as_bytes()) && push(json, word),
            (Element::Float, "NaN" | "Infinity" | "-Infinity") => push_string(json, word),
            (Element::Float, _) => is_number(word.as_bytes()) && push(json, word),
            (Element::Other(_), _) => push_string(json, word),
        };
        self.at = start + length;
        match written {
            true => Ok(()),
            false => Err(ConvertError {
                offset: start,
                ..self.expected(self.wanted())
            }),
        }
    }

    /// An element in double quotes, in which a backslash takes the next character as it is.
    fn quoted(&mut self, json: &mut String) -> Result<(), ConvertError> {
        if !matches!(self.element, Element::Other(_)) {
            return Err(self.expected(self.wanted()));
        }
        self.at += 1;
        json.push('"');
        loop {
            let rest = self.rest();
            let Some(run) = memchr::memchr2(b'"', b'\\', rest.as_bytes()) else {
                self.at = self.text.len();
                return Err(self.expected("a closing quote"));
            };
            push_escaped(json, &rest[..run]);
            self.at += run + 1;
            if rest.as_bytes()[run] == b'"' {
                json.push('"');
                return Ok(());
            }
            let Some(taken) = self.rest().chars().next() else {
                return Err(self.expected("a character after the backslash"));
            };
            push_escaped(json, &self.rest()[..taken.len_utf8()]);
            self.at += taken.len_utf8();
        }
    }

    fn wanted(&self) -> &'static str {
        match self.element {
            Element::Int => "an integer",
            Element::Float => "a number",
            Element::Bool => "t or f",
            Element::Other(_) => "an element",
        }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn expected(&self, expected: &'static str) -> ConvertError {
        ConvertError::new("array", expected, self.at, self.text)
    }
}

fn push(json: &mut String, text: &str) -> bool {
    json.push_str(text);
    true
}

fn push_string(json: &mut String, text: &str) -> bool {
    json.push('"');
    push_escaped(json, text);
    json.push('"');
    true
}

/// Appends `text` with JSON's escapes. There is one form for each character, since equal values must have
/// equal text: the short escapes, `\u00xx` for other controls, everything else as it is.
fn push_escaped(json: &mut String, text: &str) {
    let mut plain = 0;
    for (at, byte) in text.bytes().enumerate() {
        if byte >= 0x20 && byte != b'"' && byte != b'\\' {
            continue;
        }
        json.push_str(&text[plain..at]);
        plain = at + 1;
        match byte {
            b'"' => json.push_str("\\\""),
            b'\\' => json.push_str("\\\\"),
            b'\n' => json.push_str("\\n"),
            b'\r' => json.push_str("\\r"),
            b'\t' => json.push_str("\\t"),
            0x08 => json.push_str("\\b"),
            0x0c => json.push_str("\\f"),
            control => {
                json.push_str("\\u00");
                for digit in [control >> 4, control & 0xf] {
                    json.extend(char::from_digit(u32::from(digit), 16));
                }
            }
        }
    }
    json.push_str(&text[plain..]);
}

/// A JSON number without fraction or exponent.
fn is_integer(text: &[u8]) -> bool {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let leading_zero = digits.len() > 1 && digits[0] == b'0';
    !digits.is_empty() && !leading_zero && digits.iter().all(u8::is_ascii_digit)
}

/// A JSON number.
fn is_number(text: &[u8]) -> bool {
    let digits = |part: &[u8]| !part.is_empty() && part.iter().all(u8::is_ascii_digit);
    let (mantissa, exponent) = split(text, b'e');
    let (whole, fraction) = split(mantissa, b'.');
    let signed = |part: &[u8]| {
        digits(
            part.strip_prefix(b"-")
                .or(part.strip_prefix(b"+"))
                .unwrap_or(part),
        )
    };
    is_integer(whole) && fraction.is_none_or(digits) && exponent.is_none_or(signed)
}

fn split(text: &[u8], at: u8) -> (&[u8], Option<&[u8]>) {
    match memchr::memchr(at, text) {
        Some(found) => (&text[..found], Some(&text[found + 1..])),
        None => (text, None),
    }
}
