//! One row of `COPY … TO STDOUT` in text format to its fields. Pure. A row is the content of one `CopyData`
//! without its newline; the session's encoding is UTF-8, in which no escape can be part of a character.

use std::ops::Range;

/// Decodes rows; keeps its buffers from row to row.
#[derive(Debug, Default)]
pub struct RowDecoder {
    fields: Vec<Place>,
    /// Fields that held a backslash, unescaped.
    unescaped: Vec<u8>,
}

/// Where a field's bytes lie.
#[derive(Clone, Debug)]
enum Place {
    Null,
    Line(Range<usize>),
    Unescaped(Range<usize>),
}

/// The fields of one row.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    line: &'a [u8],
    unescaped: &'a [u8],
    fields: &'a [Place],
}

/// Bytes that are no row of the COPY that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RowError {
    /// The row has another number of fields than the COPY has columns.
    #[error("COPY row has {found} fields, expected {expected}")]
    FieldCount {
        /// Fields in the row.
        found: usize,
        /// Columns of the COPY.
        expected: usize,
    },
    /// A backslash with nothing behind it.
    #[error("COPY row: expected a character after the backslash at byte {offset}")]
    LoneBackslash {
        /// Where, in bytes from the row's start.
        offset: usize,
    },
    /// A newline inside the row: it is more than one row, or its newline was not taken off.
    #[error("COPY row: newline at byte {offset}, expected one row without its newline")]
    Newline {
        /// Where, in bytes from the row's start.
        offset: usize,
    },
}

impl RowDecoder {
    /// A decoder with empty buffers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Splits `line` into the fields of `columns` columns.
    ///
    /// # Errors
    /// When the row has another number of fields, or its escapes do not make sense.
    pub fn decode<'a>(&'a mut self, line: &'a [u8], columns: usize) -> Result<Row<'a>, RowError> {
        self.fields.clear();
        self.unescaped.clear();
        // A table without columns has rows without fields, which look like one empty field.
        if !(columns == 0 && line.is_empty()) {
            self.split(line)?;
        }
        match self.fields.len() == columns {
            true => Ok(Row {
                line,
                unescaped: &self.unescaped,
                fields: &self.fields,
            }),
            false => Err(RowError::FieldCount {
                found: self.fields.len(),
                expected: columns,
            }),
        }
    }

    fn split(&mut self, line: &[u8]) -> Result<(), RowError> {
        let mut start = 0;
        let mut escaped = false;
        for at in memchr::memchr3_iter(b'\t', b'\\', b'\n', line) {
            match line[at] {
                b'\\' => escaped = true,
                b'\n' => return Err(RowError::Newline { offset: at }),
                _ => {
                    self.field(line, start..at, escaped)?;
                    start = at + 1;
                    escaped = false;
                }
            }
        }
        self.field(line, start..line.len(), escaped)
    }

    fn field(&mut self, line: &[u8], range: Range<usize>, escaped: bool) -> Result<(), RowError> {
        let place = match &line[range.clone()] {
            b"\\N" => Place::Null,
            field if escaped => {
                let start = self.unescaped.len();
                unescape(field, &mut self.unescaped).map_err(|at| RowError::LoneBackslash {
                    offset: range.start + at,
                })?;
                Place::Unescaped(start..self.unescaped.len())
            }
            _ => Place::Line(range),
        };
        self.fields.push(place);
        Ok(())
    }
}

impl<'a> Row<'a> {
    /// The fields in order; `None` is SQL NULL.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Option<&'a [u8]>> + use<'a> {
        let (line, unescaped) = (self.line, self.unescaped);
        self.fields.iter().map(move |place| match place {
            Place::Null => None,
            Place::Line(range) => Some(&line[range.clone()]),
            Place::Unescaped(range) => Some(&unescaped[range.clone()]),
        })
    }

    /// Number of fields.
    pub fn len(&self) -> usize {
        self.fields.len()
    }

    /// True for a row without columns.
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }
}

/// Appends `field` without its escapes; fails with the offset of a backslash that ends the field.
fn unescape(field: &[u8], out: &mut Vec<u8>) -> Result<(), usize> {
    let mut at = 0;
    while let Some(run) = memchr::memchr(b'\\', &field[at..]) {
        out.extend_from_slice(&field[at..at + run]);
        at += run + 1;
        let Some(&escape) = field.get(at) else {
            return Err(at - 1);
        };
        at += 1;
        match escape {
            b'b' => out.push(0x08),
            b'f' => out.push(0x0c),
            b'n' => out.push(b'\n'),
            b'r' => out.push(b'\r'),
            b't' => out.push(b'\t'),
            b'v' => out.push(0x0b),
            b'0'..=b'7' => {
                let (value, used) = number(&field[at - 1..], 3, 8);
                out.push(value);
                at += used - 1;
            }
            b'x' => match number(&field[at..], 2, 16) {
                (_, 0) => out.push(b'x'),
                (value, used) => {
                    out.push(value);
                    at += used;
                }
            },
            other => out.push(other),
        }
    }
    out.extend_from_slice(&field[at..]);
    Ok(())
}

/// The number at the start of `digits`, at most `most` digits of it, modulo 256; and how many there were.
fn number(digits: &[u8], most: usize, radix: u32) -> (u8, usize) {
    let mut value = 0_u8;
    let mut used = 0;
    for byte in digits.iter().take(most) {
        let Some(digit) = char::from(*byte).to_digit(radix) else {
            break;
        };
        value = value.wrapping_mul(radix as u8).wrapping_add(digit as u8);
        used += 1;
    }
    (value, used)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fields(line: &[u8], columns: usize) -> Result<Vec<Option<Vec<u8>>>, RowError> {
        let mut decoder = RowDecoder::new();
        let row = decoder.decode(line, columns)?;
        Ok(row.iter().map(|field| field.map(<[u8]>::to_vec)).collect())
    }

    #[test]
    fn fields_and_nulls_are_told_apart() {
        type Case<'a> = (&'a [u8], &'a [Option<&'a [u8]>]);
        let table: [Case<'_>; 7] = [
            (b"", &[Some(b"")]),
            (b"\\N", &[None]),
            (b"\\\\N", &[Some(b"\\N")]),
            (b"a\t\tc", &[Some(b"a"), Some(b""), Some(b"c")]),
            (b"\\N\tx\t\\N", &[None, Some(b"x"), None]),
            (b"\\Nx", &[Some(b"Nx")]),
            ("é\t\\.".as_bytes(), &[Some("é".as_bytes()), Some(b".")]),
        ];
        for (line, wanted) in table {
            let found = fields(line, wanted.len()).unwrap();
            let found: Vec<_> = found.iter().map(Option::as_deref).collect();
            assert_eq!(found, wanted, "{line:?}");
        }
        assert_eq!(fields(b"", 0), Ok(vec![]));
    }

    #[test]
    fn every_escape_is_undone() {
        let table: [(&[u8], &[u8]); 8] = [
            (br"\b\f\n\r\t\v\\", b"\x08\x0c\n\r\t\x0b\\"),
            (br"\101\60\7z", b"A0\x07z"),
            (br"\1019", b"A9"),
            (br"\400", b"\0"),
            (br"\x41\xff\x4g", b"A\xff\x04g"),
            (br"\xg\x", b"xgx"),
            (br"\q\8", b"q8"),
            (br"a\\b\\", br"a\b\"),
        ];
        for (line, wanted) in table {
            assert_eq!(fields(line, 1), Ok(vec![Some(wanted.to_vec())]), "{line:?}");
        }
    }

    #[test]
    fn malformed_rows_are_named() {
        assert_eq!(
            fields(b"a\tb", 1),
            Err(RowError::FieldCount {
                found: 2,
                expected: 1
            })
        );
        assert_eq!(
            fields(b"a", 0),
            Err(RowError::FieldCount {
                found: 1,
                expected: 0
            })
        );
        assert_eq!(
            fields(b"", 2),
            Err(RowError::FieldCount {
                found: 1,
                expected: 2
            })
        );
        assert_eq!(
            fields(b"ab\tc\\", 2),
            Err(RowError::LoneBackslash { offset: 4 })
        );
        assert_eq!(fields(b"a\n", 1), Err(RowError::Newline { offset: 1 }));
    }

    /// Prints fields as `COPY TO` does.
    fn printed(row: &[Option<Vec<u8>>]) -> Vec<u8> {
        let field = |field: &Option<Vec<u8>>| match field {
            None => b"\\N".to_vec(),
            Some(bytes) => bytes.iter().flat_map(|byte| escaped(*byte)).collect(),
        };
        row.iter().map(field).collect::<Vec<_>>().join(&b'\t')
    }

    fn escaped(byte: u8) -> Vec<u8> {
        match byte {
            0x08 => b"\\b".to_vec(),
            0x0c => b"\\f".to_vec(),
            b'\n' => b"\\n".to_vec(),
            b'\r' => b"\\r".to_vec(),
            b'\t' => b"\\t".to_vec(),
            0x0b => b"\\v".to_vec(),
            b'\\' => b"\\\\".to_vec(),
            other => vec![other],
        }
    }

    proptest! {
        #[test]
        fn printed_rows_lead_back(row in prop::collection::vec(any::<Option<Vec<u8>>>(), 1..6)) {
            prop_assert_eq!(fields(&printed(&row), row.len()), Ok(row));
        }

        #[test]
        fn decoding_never_panics(line in prop::collection::vec(prop_oneof![any::<u8>(), Just(b'\\'), Just(b'\t'), Just(b'x'), Just(b'1')], 0..60), columns in 0..6_usize) {
            let _ = fields(&line, columns);
        }
    }
}
