//! Operations of a transaction as bytes, one after the other. See `proto/README.md`, "Operations".
//!
//! ```text
//! insert   = 1 uvarint table, row
//! update   = 2 uvarint table, row              the key is in the row
//! rekey    = 3 uvarint table, key row, row     the key was another before
//! delete   = 4 uvarint table, key row
//! truncate = 5 uvarint count, tables
//! schema   = 6 uvarint length, JSON of a SchemaChange
//! ```
//! A key row holds the key columns only, in key order.

use crate::change::SchemaChange;
use crate::codec::{Input, put_uvarint};
use crate::error::DecodeError;
use crate::row::Row;
use crate::schema::TableId;

const INSERT: u8 = 1;
const UPDATE: u8 = 2;
const REKEY: u8 = 3;
const DELETE: u8 = 4;
const TRUNCATE: u8 = 5;
const SCHEMA: u8 = 6;

/// Most tables that one truncate may name.
const MAX_TRUNCATED: u64 = 1 << 20;

/// One operation, borrowed from the frame that carries it.
#[derive(Clone, Debug, PartialEq)]
pub enum Op<'a> {
    /// A new row, all cells given.
    Insert {
        /// The table.
        table: TableId,
        /// All columns.
        row: Row<'a>,
    },
    /// A row whose key stays; cells marked unchanged keep their value.
    Update {
        /// The table.
        table: TableId,
        /// All columns; key cells are given.
        row: Row<'a>,
    },
    /// A row whose key changes.
    Rekey {
        /// The table.
        table: TableId,
        /// The key until now.
        old_key: Row<'a>,
        /// All columns; key cells are given.
        row: Row<'a>,
    },
    /// A row goes.
    Delete {
        /// The table.
        table: TableId,
        /// Its key.
        key: Row<'a>,
    },
    /// All rows of several tables go at once.
    Truncate {
        /// The tables.
        tables: Vec<TableId>,
    },
    /// The schema changes; later operations follow the new one.
    Schema(Box<SchemaChange>),
}

/// Appends the head of an insert; a row must follow.
pub fn put_insert(out: &mut Vec<u8>, table: TableId) {
    put_head(out, INSERT, table);
}

/// Appends the head of an update; a row must follow.
pub fn put_update(out: &mut Vec<u8>, table: TableId) {
    put_head(out, UPDATE, table);
}

/// Appends the head of an update that changes the key; a key row and a row must follow.
pub fn put_rekey(out: &mut Vec<u8>, table: TableId) {
    put_head(out, REKEY, table);
}

/// Appends the head of a delete; a key row must follow.
pub fn put_delete(out: &mut Vec<u8>, table: TableId) {
    put_head(out, DELETE, table);
}

/// Appends a truncate of several tables.
pub fn put_truncate(out: &mut Vec<u8>, tables: &[TableId]) {
    out.push(TRUNCATE);
    put_uvarint(out, tables.len() as u64);
    tables
        .iter()
        .for_each(|table| put_uvarint(out, u64::from(table.0)));
}

/// Appends a schema change.
///
/// # Errors
/// Only if a string in it cannot be JSON, which Rust strings always can.
pub fn put_schema(out: &mut Vec<u8>, change: &SchemaChange) -> Result<(), serde_json::Error> {
    let json = serde_json::to_vec(change)?;
    out.push(SCHEMA);
    put_uvarint(out, json.len() as u64);
    out.extend_from_slice(&json);
    Ok(())
}

fn put_head(out: &mut Vec<u8>, kind: u8, table: TableId) {
    out.push(kind);
    put_uvarint(out, u64::from(table.0));
}

/// Iterator over the operations of a transaction part. It ends after the first error.
#[derive(Clone, Debug)]
pub struct Ops<'a> {
    input: Input<'a>,
    failed: bool,
}

impl<'a> Ops<'a> {
    /// Starts at the first of `bytes`, as [`crate::body::TxnPart`] gives them.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self {
            input: Input::new("operations", bytes),
            failed: false,
        }
    }
}

impl<'a> Iterator for Ops<'a> {
    type Item = Result<Op<'a>, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed || self.input.is_empty() {
            return None;
        }
        let op = take_op(&mut self.input);
        self.failed = op.is_err();
        Some(op)
    }
}

fn take_op<'a>(input: &mut Input<'a>) -> Result<Op<'a>, DecodeError> {
    match input.u8("an operation")? {
        INSERT => Ok(Op::Insert {
            table: take_table(input)?,
            row: Row::take(input)?,
        }),
        UPDATE => Ok(Op::Update {
            table: take_table(input)?,
            row: Row::take(input)?,
        }),
        REKEY => {
            let table = take_table(input)?;
            Ok(Op::Rekey {
                table,
                old_key: Row::take(input)?,
                row: Row::take(input)?,
            })
        }
        DELETE => Ok(Op::Delete {
            table: take_table(input)?,
            key: Row::take(input)?,
        }),
        TRUNCATE => {
            let count = input.uvarint("a table count")?;
            if count > MAX_TRUNCATED {
                return Err(input.error("at most 1048576 tables"));
            }
            let tables = (0..count)
                .map(|_| take_table(input))
                .collect::<Result<_, _>>()?;
            Ok(Op::Truncate { tables })
        }
        SCHEMA => {
            let len = input.uvarint("a document length")?;
            let len =
                usize::try_from(len).map_err(|_too_long| input.error("a length that fits"))?;
            let json = input.take(len, "a document of its length")?;
            let change = serde_json::from_slice(json);
            Ok(Op::Schema(Box::new(change.map_err(|_not_json| {
                input.error("a schema change before it")
            })?)))
        }
        _ => Err(input.error("an operation kind of 1 to 6 before it")),
    }
}

fn take_table(input: &mut Input<'_>) -> Result<TableId, DecodeError> {
    let id = input.uvarint("a table id")?;
    u32::try_from(id)
        .map(TableId)
        .map_err(|_too_big| input.error("a table id of 32 bits"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::{put_cell, put_row_head};
    use crate::value::ValueRef;
    use proptest::prelude::*;

    #[test]
    fn golden_bytes() {
        let mut out = Vec::new();
        put_rekey(&mut out, TableId(300));
        put_row_head(&mut out, 1);
        put_cell(&mut out, ValueRef::Int(1));
        put_row_head(&mut out, 2);
        put_cell(&mut out, ValueRef::Int(2));
        put_cell(&mut out, ValueRef::Unchanged);
        put_truncate(&mut out, &[TableId(1), TableId(2)]);
        assert_eq!(out, [3, 0xac, 2, 1, 2, 2, 2, 2, 4, 1, 5, 2, 1, 2]);
        let ops: Vec<_> = Ops::new(&out).map(Result::unwrap).collect();
        assert!(
            matches!(&ops[0], Op::Rekey { table: TableId(300), old_key, row } if old_key.len() == 1 && row.len() == 2)
        );
        assert_eq!(
            ops[1],
            Op::Truncate {
                tables: vec![TableId(1), TableId(2)]
            }
        );
    }

    #[test]
    fn schema_change_round_trips() {
        let change = SchemaChange::RenameTable {
            table: TableId(1),
            schema: "s".into(),
            name: "n\"\u{1}".into(),
        };
        let mut out = Vec::new();
        put_schema(&mut out, &change).unwrap();
        let ops: Vec<_> = Ops::new(&out).map(Result::unwrap).collect();
        assert_eq!(ops, [Op::Schema(Box::new(change))]);
    }

    proptest! {
        #[test]
        fn any_bytes_never_panic(bytes: Vec<u8>) {
            for op in Ops::new(&bytes) {
                let _ = op;
            }
        }
    }
}
