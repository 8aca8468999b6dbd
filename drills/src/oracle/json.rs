//! JSON, read just far enough to compare arrays: numbers keep their text, order counts, white space does not.

use anyhow::{Result, bail, ensure};

#[derive(Debug, Clone, PartialEq)]
pub enum Json {
    Null,
    Bool(bool),
    /// As written; who compares decides whether it is read as an integer or a float.
    Number(String),
    Text(String),
    Array(Vec<Json>),
}

/// Reads one value and nothing after it. Objects never stand in a mirrored array, so they are an error.
pub fn parse(text: &str) -> Result<Json> {
    let mut reader = Reader {
        bytes: text.as_bytes(),
        at: 0,
    };
    let value = reader.value()?;
    reader.blank();
    ensure!(
        reader.at == reader.bytes.len(),
        "more after the JSON value at {}",
        reader.at
    );
    Ok(value)
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn blank(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn eat(&mut self, word: &str) -> Result<()> {
        ensure!(
            self.bytes[self.at..].starts_with(word.as_bytes()),
            "no {word} at {}",
            self.at
        );
        self.at += word.len();
        Ok(())
    }

    fn value(&mut self) -> Result<Json> {
        self.blank();
        match self.peek() {
            Some(b'n') => self.eat("null").map(|()| Json::Null),
            Some(b't') => self.eat("true").map(|()| Json::Bool(true)),
            Some(b'f') => self.eat("false").map(|()| Json::Bool(false)),
            Some(b'"') => self.text().map(Json::Text),
            Some(b'[') => self.array(),
            Some(b'-' | b'0'..=b'9') => Ok(Json::Number(self.number())),
            other => bail!("no JSON value at {}: {other:?}", self.at),
        }
    }

    fn number(&mut self) -> String {
        let from = self.at;
        while matches!(
            self.peek(),
            Some(b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9')
        ) {
            self.at += 1;
        }
        String::from_utf8_lossy(&self.bytes[from..self.at]).into_owned()
    }

    fn array(&mut self) -> Result<Json> {
        self.eat("[")?;
        let mut items = Vec::new();
        self.blank();
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(Json::Array(items));
        }
        loop {
            items.push(self.value()?);
            self.blank();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b']') => {
                    self.at += 1;
                    return Ok(Json::Array(items));
                }
                other => bail!("neither , nor ] at {}: {other:?}", self.at),
            }
        }
    }

    fn text(&mut self) -> Result<String> {
        self.eat("\"")?;
        let mut out = Vec::new();
        loop {
            let Some(byte) = self.peek() else {
                bail!("the JSON text does not end")
            };
            self.at += 1;
            match byte {
                b'"' => return Ok(String::from_utf8(out)?),
                b'\\' => {
                    let c = self.escape()?;
                    out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                }
                0..=0x1f => bail!("a raw control character in a JSON text at {}", self.at),
                _ => out.push(byte),
            }
        }
    }

    fn escape(&mut self) -> Result<char> {
        let Some(byte) = self.peek() else {
            bail!("the escape does not end")
        };
        self.at += 1;
        Ok(match byte {
            b'"' | b'\\' | b'/' => char::from(byte),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let first = self.hex4()?;
                if (0xD800..0xDC00).contains(&first) {
                    self.eat("\\u")?;
                    let second = self.hex4()?;
                    ensure!((0xDC00..0xE000).contains(&second), "half a surrogate pair");
                    let code = 0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00);
                    char::from_u32(code).unwrap_or('\u{fffd}')
                } else {
                    match char::from_u32(first) {
                        Some(c) => c,
                        None => bail!("half a surrogate pair"),
                    }
                }
            }
            other => bail!("no such escape: {}", char::from(other)),
        })
    }

    fn hex4(&mut self) -> Result<u32> {
        ensure!(self.at + 4 <= self.bytes.len(), "a \\u escape is cut short");
        let digits = std::str::from_utf8(&self.bytes[self.at..self.at + 4])?;
        self.at += 4;
        Ok(u32::from_str_radix(digits, 16)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_arrays_hold() {
        let read =
            parse(" [1, -2.50e3 ,null,[true ,false],\"a\\\"b\\u00e9\\ud83d\\ude00é\",[]]").unwrap();
        let expected = Json::Array(vec![
            Json::Number("1".into()),
            Json::Number("-2.50e3".into()),
            Json::Null,
            Json::Array(vec![Json::Bool(true), Json::Bool(false)]),
            Json::Text("a\"bé😀é".into()),
            Json::Array(vec![]),
        ]);
        assert_eq!(read, expected);
    }

    #[test]
    fn refuses_what_is_not_json() {
        for bad in [
            "",
            "[1",
            "[1,]",
            "{}",
            "[1] 2",
            "\"a\nb\"",
            "nul",
            "\"\\ud800\"",
        ] {
            assert!(parse(bad).is_err(), "{bad} was read");
        }
    }
}
