//! Reads big-endian fields off a message and says where it stopped.

use rindle_proto::ids::{Lsn, Oid};

use super::DecodeError;
use super::tuple::Tuple;

pub(super) struct Reader<'a> {
    whole: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// A reader behind the message's first byte, the tag.
    pub(super) fn new(whole: &'a [u8]) -> Self {
        Self {
            whole,
            at: whole.len().min(1),
        }
    }

    /// The tag; 0, which no message has, when the message is empty.
    pub(super) fn tag(&self) -> u8 {
        self.whole.first().copied().unwrap_or(0)
    }

    pub(super) fn left(&self) -> usize {
        self.whole.len() - self.at
    }

    pub(super) fn bytes(
        &mut self,
        length: usize,
        expected: &'static str,
    ) -> Result<&'a [u8], DecodeError> {
        match self.whole[self.at..].get(..length) {
            Some(bytes) => {
                self.at += length;
                Ok(bytes)
            }
            None => Err(self.here(expected)),
        }
    }

    fn array<const N: usize>(&mut self, expected: &'static str) -> Result<[u8; N], DecodeError> {
        match self.whole[self.at..].first_chunk() {
            Some(bytes) => {
                self.at += N;
                Ok(*bytes)
            }
            None => Err(self.here(expected)),
        }
    }

    pub(super) fn u8(&mut self) -> Result<u8, DecodeError> {
        self.array("one byte").map(|[byte]| byte)
    }

    pub(super) fn u16(&mut self) -> Result<u16, DecodeError> {
        self.array("two bytes").map(u16::from_be_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, DecodeError> {
        self.array("four bytes").map(u32::from_be_bytes)
    }

    pub(super) fn i32(&mut self) -> Result<i32, DecodeError> {
        self.array("four bytes").map(i32::from_be_bytes)
    }

    pub(super) fn i64(&mut self) -> Result<i64, DecodeError> {
        self.array("eight bytes").map(i64::from_be_bytes)
    }

    pub(super) fn lsn(&mut self) -> Result<Lsn, DecodeError> {
        self.array("an LSN of eight bytes")
            .map(|bytes| Lsn(u64::from_be_bytes(bytes)))
    }

    pub(super) fn oid(&mut self) -> Result<Oid, DecodeError> {
        self.array("an oid of four bytes")
            .map(|bytes| Oid(u32::from_be_bytes(bytes)))
    }

    /// A two-byte count of items of at least `least` bytes each, refused when they cannot all be there.
    pub(super) fn count(&mut self, least: usize) -> Result<usize, DecodeError> {
        let count = usize::from(self.u16()?);
        match count * least <= self.left() {
            true => Ok(count),
            false => Err(self.before("no more items than the message has room for")),
        }
    }

    /// Text that ends with a zero byte.
    pub(super) fn text(&mut self) -> Result<&'a str, DecodeError> {
        let rest = &self.whole[self.at..];
        let length = memchr::memchr(0, rest).ok_or_else(|| self.here("text that ends with 0"))?;
        let text =
            std::str::from_utf8(&rest[..length]).map_err(|_utf8| self.here("text in UTF-8"))?;
        self.at += length + 1;
        Ok(text)
    }

    pub(super) fn tuple(&mut self) -> Result<Tuple<'a>, DecodeError> {
        let count = self.count(1)?;
        let start = self.at;
        for _ in 0..count {
            match self.u8()? {
                b'n' | b'u' => {}
                b't' => {
                    let length = self.u32()? as usize;
                    self.bytes(length, "the value's bytes")?;
                }
                _ => return Err(self.before("n, u or t before a value")),
            }
        }
        Ok(Tuple::new(count, &self.whole[start..self.at]))
    }

    pub(super) fn expect(&mut self, byte: u8, expected: &'static str) -> Result<(), DecodeError> {
        match self.u8()? == byte {
            true => Ok(()),
            false => Err(self.before(expected)),
        }
    }

    pub(super) fn end(&self) -> Result<(), DecodeError> {
        match self.left() {
            0 => Ok(()),
            _ => Err(self.here("the end of the message")),
        }
    }

    pub(super) fn here(&self, expected: &'static str) -> DecodeError {
        self.error(expected, self.at)
    }

    /// An error about the byte that was read last.
    pub(super) fn before(&self, expected: &'static str) -> DecodeError {
        self.error(expected, self.at.saturating_sub(1))
    }

    fn error(&self, expected: &'static str, offset: usize) -> DecodeError {
        let tag = self.whole.first().map_or(' ', |byte| char::from(*byte));
        DecodeError {
            tag,
            expected,
            offset,
            length: self.whole.len(),
        }
    }
}
