//! One cell of a row, borrowed from the bytes that carry it. See `proto/README.md`, "Cells".

/// The value of one column in the form in which the mirror stores it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ValueRef<'a> {
    /// SQL NULL.
    Null,
    /// An UPDATE left this (TOASTed) value as it was; only found in the new row of an update.
    Unchanged,
    /// Booleans (0 or 1), int2, int4, int8 and oid.
    Int(i64),
    /// float4 and float8, never NaN (NaN is the text `NaN`) and never -0.
    Real(f64),
    /// Everything else.
    Text(&'a str),
}
