//! The values of one row, in the order of its relation's columns.

/// One row whose bytes were checked when its message was decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuple<'a> {
    count: usize,
    bytes: &'a [u8],
}

/// One value of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell<'a> {
    /// SQL NULL.
    Null,
    /// A TOASTed value that the update left as it was; it was not sent.
    Unchanged,
    /// The value as Postgres prints it.
    Text(&'a [u8]),
}

/// Walks the values of a [`Tuple`].
#[derive(Clone, Debug)]
pub struct Cells<'a> {
    left: usize,
    rest: &'a [u8],
}

impl<'a> Tuple<'a> {
    /// `bytes` holds exactly `count` well-formed values.
    pub(super) fn new(count: usize, bytes: &'a [u8]) -> Self {
        Self { count, bytes }
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.count
    }

    /// True for a row without columns.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The values in order.
    pub fn iter(&self) -> Cells<'a> {
        Cells {
            left: self.count,
            rest: self.bytes,
        }
    }
}

impl<'a> IntoIterator for Tuple<'a> {
    type Item = Cell<'a>;
    type IntoIter = Cells<'a>;

    fn into_iter(self) -> Cells<'a> {
        self.iter()
    }
}

impl<'a> Iterator for Cells<'a> {
    type Item = Cell<'a>;

    #[inline]
    fn next(&mut self) -> Option<Cell<'a>> {
        // The decoder checked every value, so none of these is short.
        let (tag, rest) = self.rest.split_first()?;
        self.left -= 1;
        self.rest = rest;
        match tag {
            b'n' => Some(Cell::Null),
            b'u' => Some(Cell::Unchanged),
            _ => {
                let (length, rest) = rest.split_first_chunk()?;
                let (text, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
                self.rest = rest;
                Some(Cell::Text(text))
            }
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Cells<'_> {}
