//! Rows as bytes: a cell count and that many cells. Both operations and bulk parts carry rows in this form.
//!
//! ```text
//! row  = uvarint cell count, cells
//! cell = 0                          NULL
//!      | 1                          unchanged (new row of an update only)
//!      | 2 uvarint zigzag(i64)      integer, boolean
//!      | 3 f64 little endian        float
//!      | 4 uvarint length, UTF-8    text
//! ```

use crate::codec::{Input, put_uvarint};
use crate::error::DecodeError;
use crate::value::ValueRef;

/// Most cells a row may have (Postgres stops at 1600 columns).
pub const MAX_CELLS: usize = 1664;

const NULL: u8 = 0;
const UNCHANGED: u8 = 1;
const INT: u8 = 2;
const REAL: u8 = 3;
const TEXT: u8 = 4;

/// Appends the head of a row; exactly `cells` calls of [`put_cell`] must follow.
pub fn put_row_head(out: &mut Vec<u8>, cells: usize) {
    put_uvarint(out, cells as u64);
}

/// Appends one cell.
pub fn put_cell(out: &mut Vec<u8>, value: ValueRef<'_>) {
    match value {
        ValueRef::Null => out.push(NULL),
        ValueRef::Unchanged => out.push(UNCHANGED),
        ValueRef::Int(number) => {
            out.push(INT);
            put_uvarint(out, ((number << 1) ^ (number >> 63)) as u64);
        }
        ValueRef::Real(number) => {
            out.push(REAL);
            out.extend_from_slice(&number.to_le_bytes());
        }
        ValueRef::Text(text) => {
            out.push(TEXT);
            put_uvarint(out, text.len() as u64);
            out.extend_from_slice(text.as_bytes());
        }
    }
}

/// A row inside the bytes that carry it. Its extent was checked; texts are checked when a cell is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row<'a> {
    cells: usize,
    bytes: &'a [u8],
}

impl<'a> Row<'a> {
    /// Takes one row from the front of `input`.
    pub fn take(input: &mut Input<'a>) -> Result<Self, DecodeError> {
        let cells = input.uvarint("a cell count")?;
        if cells > MAX_CELLS as u64 {
            return Err(input.error("at most 1664 cells"));
        }
        let mut rest = *input;
        for _ in 0..cells {
            skip_cell(&mut rest)?;
        }
        let bytes = input.take(rest.offset() - input.offset(), "a row")?;
        Ok(Self {
            cells: cells as usize,
            bytes,
        })
    }

    /// Number of cells.
    pub fn len(&self) -> usize {
        self.cells
    }

    /// True for a row without cells.
    pub fn is_empty(&self) -> bool {
        self.cells == 0
    }

    /// The cells in column order. An error is told once, by the cell that has it.
    pub fn cells(&self) -> Cells<'a> {
        Cells {
            input: Input::new("row", self.bytes),
        }
    }
}

/// Iterator over the cells of a [`Row`].
#[derive(Clone, Debug)]
pub struct Cells<'a> {
    input: Input<'a>,
}

impl<'a> Iterator for Cells<'a> {
    type Item = Result<ValueRef<'a>, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        (!self.input.is_empty()).then(|| take_cell(&mut self.input))
    }
}

fn take_cell<'a>(input: &mut Input<'a>) -> Result<ValueRef<'a>, DecodeError> {
    match input.u8("a cell")? {
        NULL => Ok(ValueRef::Null),
        UNCHANGED => Ok(ValueRef::Unchanged),
        INT => {
            let zigzag = input.uvarint("an integer")?;
            Ok(ValueRef::Int((zigzag >> 1) as i64 ^ -((zigzag & 1) as i64)))
        }
        REAL => Ok(ValueRef::Real(f64::from_le_bytes(
            input.array("a float of 8 bytes")?,
        ))),
        TEXT => {
            let text = take_text(input)?;
            let text =
                std::str::from_utf8(text).map_err(|_not_utf8| input.error("UTF-8 before it"))?;
            Ok(ValueRef::Text(text))
        }
        _ => Err(input.error("a cell tag of 0 to 4 before it")),
    }
}

fn take_text<'a>(input: &mut Input<'a>) -> Result<&'a [u8], DecodeError> {
    let len = input.uvarint("a text length")?;
    let len = usize::try_from(len).map_err(|_too_long| input.error("a text length that fits"))?;
    input.take(len, "a text of its length")
}

fn skip_cell(input: &mut Input<'_>) -> Result<(), DecodeError> {
    match input.u8("a cell")? {
        NULL | UNCHANGED => Ok(()),
        INT => input.uvarint("an integer").map(drop),
        REAL => input.take(8, "a float of 8 bytes").map(drop),
        TEXT => take_text(input).map(drop),
        _ => Err(input.error("a cell tag of 0 to 4 before it")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn encode(values: &[ValueRef<'_>]) -> Vec<u8> {
        let mut out = Vec::new();
        put_row_head(&mut out, values.len());
        values.iter().for_each(|value| put_cell(&mut out, *value));
        out
    }

    #[test]
    fn golden_bytes() {
        let values = [
            ValueRef::Null,
            ValueRef::Unchanged,
            ValueRef::Int(-1),
            ValueRef::Int(i64::MAX),
            ValueRef::Real(1.5),
            ValueRef::Text("é"),
        ];
        let bytes = encode(&values);
        let expected = [
            &[6, 0, 1, 2, 1, 2][..],
            &[0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01],
            &[3, 0, 0, 0, 0, 0, 0, 0xf8, 0x3f],
            &[4, 2, 0xc3, 0xa9],
        ];
        assert_eq!(bytes, expected.concat());
        let row = Row::take(&mut Input::new("row", &bytes)).unwrap();
        let back: Vec<_> = row.cells().map(Result::unwrap).collect();
        assert_eq!(back, values);
    }

    #[test]
    fn refuses_bad_utf8_and_bad_tags() {
        let row = [1, 4, 1, 0xff];
        let row = Row::take(&mut Input::new("row", &row)).unwrap();
        assert!(row.cells().next().unwrap().is_err());
        assert!(Row::take(&mut Input::new("row", &[1, 9])).is_err());
        assert!(Row::take(&mut Input::new("row", &[1, 4, 200, 1, 0])).is_err());
    }

    proptest! {
        #[test]
        fn integers_and_texts_round_trip(numbers: Vec<i64>, text: String) {
            let mut values: Vec<_> = numbers.iter().map(|n| ValueRef::Int(*n)).collect();
            values.push(ValueRef::Text(&text));
            let bytes = encode(&values);
            let row = Row::take(&mut Input::new("row", &bytes)).unwrap();
            prop_assert_eq!(row.cells().collect::<Result<Vec<_>, _>>().unwrap(), values);
        }

        #[test]
        fn any_bytes_never_panic(bytes: Vec<u8>) {
            if let Ok(row) = Row::take(&mut Input::new("row", &bytes)) {
                for cell in row.cells() {
                    let _ = cell;
                }
            }
        }
    }
}
