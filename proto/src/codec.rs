//! Reading and writing the integers all formats share: LEB128 and little-endian fields.

use crate::error::DecodeError;

/// Appends an unsigned LEB128 integer.
pub fn put_uvarint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// A cursor over bytes from outside: every read checks the length first.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    what: &'static str,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Input<'a> {
    /// Starts at the first byte of `bytes`; `what` names the thing in errors.
    pub fn new(what: &'static str, bytes: &'a [u8]) -> Self {
        Self { what, bytes, at: 0 }
    }

    /// True when everything was read.
    pub fn is_empty(&self) -> bool {
        self.at == self.bytes.len()
    }

    /// Offset of the next byte.
    pub fn offset(&self) -> usize {
        self.at
    }

    /// The error that `expected` was not found here.
    pub fn error(&self, expected: &'static str) -> DecodeError {
        DecodeError::new(self.what, self.at, expected)
    }

    /// The next `len` bytes.
    pub fn take(&mut self, len: usize, expected: &'static str) -> Result<&'a [u8], DecodeError> {
        let end = self
            .at
            .checked_add(len)
            .filter(|end| *end <= self.bytes.len());
        let end = end.ok_or_else(|| self.error(expected))?;
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    /// The next byte.
    pub fn u8(&mut self, expected: &'static str) -> Result<u8, DecodeError> {
        let byte = *self
            .bytes
            .get(self.at)
            .ok_or_else(|| self.error(expected))?;
        self.at += 1;
        Ok(byte)
    }

    /// The next N bytes as an array.
    pub fn array<const N: usize>(
        &mut self,
        expected: &'static str,
    ) -> Result<[u8; N], DecodeError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N, expected)?);
        Ok(array)
    }

    /// The next little-endian u16.
    pub fn u16(&mut self, expected: &'static str) -> Result<u16, DecodeError> {
        self.array(expected).map(u16::from_le_bytes)
    }

    /// The next little-endian u32.
    pub fn u32(&mut self, expected: &'static str) -> Result<u32, DecodeError> {
        self.array(expected).map(u32::from_le_bytes)
    }

    /// The next little-endian u64.
    pub fn u64(&mut self, expected: &'static str) -> Result<u64, DecodeError> {
        self.array(expected).map(u64::from_le_bytes)
    }

    /// The next unsigned LEB128 integer, in its shortest form only (equal values have equal bytes).
    pub fn uvarint(&mut self, expected: &'static str) -> Result<u64, DecodeError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8(expected)?;
            let bits = u64::from(byte & 0x7f);
            let overflows = shift == 63 && bits > 1;
            let padded = shift > 0 && byte == 0;
            if overflows || padded {
                return Err(self.error(expected));
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(self.error(expected))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn uvarint_round_trips(value: u64) {
            let mut bytes = Vec::new();
            put_uvarint(&mut bytes, value);
            let mut input = Input::new("test", &bytes);
            prop_assert_eq!(input.uvarint("a number").unwrap(), value);
            prop_assert!(input.is_empty());
        }

        #[test]
        fn uvarint_of_any_bytes_never_panics(bytes: Vec<u8>) {
            let _ = Input::new("test", &bytes).uvarint("a number");
        }
    }

    #[test]
    fn uvarint_refuses_longer_forms() {
        for bytes in [&[0x80, 0x00][..], &[0xff; 10], &[0x80]] {
            assert!(Input::new("test", bytes).uvarint("a number").is_err());
        }
    }
}
