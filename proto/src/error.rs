//! What is wrong with bytes that do not decode.

/// Bytes that are not what the format says: where, and what was expected there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} at byte {offset}: expected {expected}")]
pub struct DecodeError {
    /// The thing that was being read, such as `frame header`.
    pub what: &'static str,
    /// Offset from the start of that thing, in bytes.
    pub offset: usize,
    /// What should have been there.
    pub expected: &'static str,
}

impl DecodeError {
    pub(crate) fn new(what: &'static str, offset: usize, expected: &'static str) -> Self {
        Self {
            what,
            offset,
            expected,
        }
    }
}
