//! Buffers of segments and parts: megabytes long, and gone in a moment. Allocators keep what such buffers leave behind,
//! each thread's for itself, and memory would grow with what passes by. So a large one is pages of its own, which the
//! kernel takes back at once.

use std::io;

use bytes::Bytes;
use memmap2::MmapMut;

/// From here on a buffer is pages of its own: below, asking the kernel costs more than it saves.
const LARGE_BYTES: usize = 1 << 20;

/// The bytes that `fill` wrote: it is given `len` zeros and says how many of them it used, from the first on. What it
/// does not touch takes no memory, however large `len` is.
///
/// # Errors
/// Those of `fill`.
pub fn filled(len: usize, fill: impl FnOnce(&mut [u8]) -> io::Result<usize>) -> io::Result<Bytes> {
    let pages = match len < LARGE_BYTES {
        true => None,
        // Where the kernel gives no pages the allocator may have some; an error here would pass for damage.
        false => MmapMut::map_anon(len).ok(),
    };
    let Some(mut pages) = pages else {
        let mut bytes = vec![0; len];
        let used = fill(&mut bytes)?;
        bytes.truncate(used);
        return Ok(bytes.into());
    };
    let used = fill(&mut pages)?;
    let mut bytes = Bytes::from_owner(pages);
    bytes.truncate(used);
    Ok(bytes)
}

/// Reads until `bytes` are full or nothing comes; how many came.
pub(crate) fn read_full(from: &mut impl io::Read, bytes: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < bytes.len() {
        match from.read(&mut bytes[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_holds_what_was_written_whatever_its_length() {
        for len in [0, 1, LARGE_BYTES - 1, LARGE_BYTES, LARGE_BYTES + 1] {
            let bytes = filled(len, |bytes| {
                assert!(bytes.iter().all(|byte| *byte == 0));
                bytes.fill(7);
                Ok(bytes.len() - bytes.len().min(1))
            });
            assert_eq!(bytes.unwrap(), vec![7; len - len.min(1)]);
            assert!(filled(len, |_bytes| Err(io::Error::other("no"))).is_err());
        }
    }
}
