//! zstd with a content checksum, into and out of one buffer.

use std::io::{self, Cursor, Read as _};

/// Fast enough for the gateway's hot path; a stronger level changes no digest.
const LEVEL: i32 = 1;

/// Room that a header may claim before bytes have come.
const TRUSTED_BYTES: usize = 64 << 20;

/// Appends `raw`, compressed, to `out`; nothing at all for nothing.
pub(crate) fn append(out: &mut Vec<u8>, raw: &[u8]) -> io::Result<()> {
    if raw.is_empty() {
        return Ok(());
    }
    let mut compressor = zstd::bulk::Compressor::new(LEVEL)?;
    compressor.include_checksum(true)?;
    out.reserve(zstd::zstd_safe::compress_bound(raw.len()));
    let mut end = Cursor::new(std::mem::take(out));
    end.set_position(end.get_ref().len() as u64);
    let written = compressor.compress_to_buffer(raw, &mut end);
    *out = end.into_inner();
    written.map(drop)
}

/// The `raw_len` bytes that were compressed into `body`. Anything else, longer or shorter, is an error.
pub(crate) fn expand(body: &[u8], raw_len: usize) -> io::Result<Vec<u8>> {
    if body.is_empty() && raw_len == 0 {
        return Ok(Vec::new());
    }
    let mut raw = Vec::with_capacity(raw_len.min(TRUSTED_BYTES));
    let decoder = zstd::stream::read::Decoder::with_buffer(body)?;
    decoder.take(raw_len as u64 + 1).read_to_end(&mut raw)?;
    match raw.len() == raw_len {
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
            let mut out = b"head".to_vec();
            append(&mut out, &raw).unwrap();
            prop_assert_eq!(&out[..4], b"head");
            prop_assert_eq!(expand(&out[4..], raw.len()).unwrap(), raw.clone());
            prop_assert!(expand(&out[4..], raw.len() + 1).is_err());
            prop_assert!(raw.is_empty() || expand(&out[4..], raw.len() - 1).is_err());
        }

        #[test]
        fn any_bytes_never_panic(body: Vec<u8>, len in 0usize..1000) {
            let _ = expand(&body, len);
        }
    }
}
