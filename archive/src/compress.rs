//! zstd with a content checksum, into and out of one buffer.

use std::io::{self, Read as _};

use bytes::Bytes;

use crate::buffer;

/// Fast enough for the gateway's hot path; a stronger level changes no digest.
const LEVEL: i32 = 1;

/// `raw`, compressed, behind the header that is made of the compressed length. Nothing is compressed to nothing.
pub(crate) fn behind<const N: usize>(
    raw: &[u8],
    header: impl FnOnce(u64) -> [u8; N],
) -> io::Result<Bytes> {
    let mut compressor = zstd::bulk::Compressor::new(LEVEL)?;
    compressor.include_checksum(true)?;
    buffer::filled(N + zstd::zstd_safe::compress_bound(raw.len()), |object| {
        let (start, body) = object.split_at_mut(N);
        let len = match raw.is_empty() {
            true => 0,
            false => compressor.compress_to_buffer(raw, body)?,
        };
        start.copy_from_slice(&header(len as u64));
        Ok(N + len)
    })
}

/// The `raw_len` bytes that were compressed into `body`. Anything else, longer or shorter, is an error.
pub(crate) fn expand(body: &[u8], raw_len: usize) -> io::Result<Bytes> {
    if body.is_empty() && raw_len == 0 {
        return Ok(Bytes::new());
    }
    let mut decoder = zstd::stream::read::Decoder::with_buffer(body)?;
    let raw = buffer::filled(raw_len, |raw| buffer::read_full(&mut decoder, raw))?;
    let is_longer = decoder.read(&mut [0])? > 0;
    match raw.len() == raw_len && !is_longer {
        true => Ok(raw),
        false => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "another length than told",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn round_trips_behind_a_header(raw: Vec<u8>) {
            let mut len = 0;
            let out = behind(&raw, |told| {
                len = told;
                *b"head"
            });
            let out = out.unwrap();
            prop_assert_eq!(&out[..4], b"head");
            prop_assert_eq!(out.len() as u64, 4 + len);
            prop_assert_eq!(&expand(&out[4..], raw.len()).unwrap()[..], &raw[..]);
            prop_assert!(expand(&out[4..], raw.len() + 1).is_err());
            prop_assert!(raw.is_empty() || expand(&out[4..], raw.len() - 1).is_err());
        }

        #[test]
        fn any_bytes_never_panic(body: Vec<u8>, len in 0usize..1000) {
            let _ = expand(&body, len);
        }
    }
}
