//! Operations of a transaction as bytes, one after the other. See `proto/README.md`, "Operations".
//!
//! ```text
//! insert   = 1 uvarint table, row
//! update   = 2 uvarint table, row              the key is in the row
//! rekey    = 3 uvarint table, key row, row     the key was another before
//! delete   = 4 uvarint table, key row
//! truncate = 5 uvarint count, tables
//! schema   = 6 uvarint length, JSON of a SchemaChange
//! facts    = 7 uvarint length, JSON of what the catalog was found to say; followers pass over it
//! copied   = 8 uvarint length, JSON of a Copied
//! copying  = 9 uvarint length, JSON of a Copied that will be said: its parts are durable
//! ```
//! Rows of a partition with an id of its own name that id. Facts stand before the changes that follow from them; copied
//! and copying are the first operation of their transaction.
//! A key row holds the key columns only, in key order.

use crate::body::{Copied, TxnPart};
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
const FACTS: u8 = 7;
const COPIED: u8 = 8;
const COPYING: u8 = 9;

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
    /// What a gateway learned of the catalog here, for the gateway that comes after it.
    Facts(&'a [u8]),
    /// Waiting tables are complete: reveal them.
    Copied(Box<Copied>),
    /// The parts of a copy are durable, and its end will likely follow: what may be loaded ahead, hidden. Changes nothing.
    Copying(Box<Copied>),
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
    put_document(out, SCHEMA, &serde_json::to_vec(change)?);
    Ok(())
}

/// Appends facts: JSON that only gateways read.
pub fn put_facts(out: &mut Vec<u8>, json: &[u8]) {
    put_document(out, FACTS, json);
}

/// Appends the end of a copy.
///
/// # Errors
/// As [`put_schema`].
pub fn put_copied(out: &mut Vec<u8>, copied: &Copied) -> Result<(), serde_json::Error> {
    put_document(out, COPIED, &serde_json::to_vec(copied)?);
    Ok(())
}

/// Appends what a copy that is about to end will say.
///
/// # Errors
/// As [`put_schema`].
pub fn put_copying(out: &mut Vec<u8>, copied: &Copied) -> Result<(), serde_json::Error> {
    put_document(out, COPYING, &serde_json::to_vec(copied)?);
    Ok(())
}

fn put_document(out: &mut Vec<u8>, kind: u8, json: &[u8]) {
    out.push(kind);
    put_uvarint(out, json.len() as u64);
    out.extend_from_slice(json);
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

    /// Where the next operation begins: what lies between two of these is one operation's own bytes.
    pub fn offset(&self) -> usize {
        self.input.offset()
    }
}

/// True when this is the start of a transaction that ends a copy: its bulk parts will be asked for.
pub fn begins_copied(part: &TxnPart<'_>) -> bool {
    part.start.is_some() && part.ops.first() == Some(&COPIED)
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
            let change = serde_json::from_slice(take_document(input)?);
            let change = change.map_err(|_not_json| input.error("a schema change before it"))?;
            Ok(Op::Schema(Box::new(change)))
        }
        FACTS => Ok(Op::Facts(take_document(input)?)),
        COPIED => {
            let copied = Copied::decode(take_document(input)?);
            let copied = copied.map_err(|_not_json| input.error("the end of a copy before it"))?;
            Ok(Op::Copied(Box::new(copied)))
        }
        COPYING => {
            let copied = Copied::decode(take_document(input)?);
            let copied =
                copied.map_err(|_not_json| input.error("the parts of a copy before it"))?;
            Ok(Op::Copying(Box::new(copied)))
        }
        _ => Err(input.error("an operation kind of 1 to 9 before it")),
    }
}

fn take_document<'a>(input: &mut Input<'a>) -> Result<&'a [u8], DecodeError> {
    let len = input.uvarint("a document length")?;
    let len = usize::try_from(len).map_err(|_too_long| input.error("a length that fits"))?;
    input.take(len, "a document of its length")
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
    use crate::body::{Attempt, PgMicros, TxnStart};
    use crate::ids::{Epoch, FinalLsn, Lsn};
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

    #[test]
    fn documents_round_trip() {
        let copied = Copied {
            attempt: Attempt {
                epoch: Epoch(2),
                number: 1,
            },
            snapshot: Lsn(9),
            targets: Vec::new(),
            parts: Vec::new(),
        };
        let mut out = Vec::new();
        put_copying(&mut out, &copied).unwrap();
        put_copied(&mut out, &copied).unwrap();
        put_facts(&mut out, b"{}");
        let mut ops = Ops::new(&out);
        let copied = Box::new(copied);
        assert_eq!(ops.next(), Some(Ok(Op::Copying(copied.clone()))));
        assert_eq!(ops.next(), Some(Ok(Op::Copied(copied))));
        assert_eq!(&out[ops.offset()..], b"\x07\x02{}");
        assert_eq!(ops.next(), Some(Ok(Op::Facts(b"{}"))));
        assert_eq!((ops.next(), ops.offset()), (None, out.len()));
    }

    #[test]
    fn only_the_start_of_a_transaction_can_begin_with_a_copy() {
        let start = TxnStart {
            xid: 1,
            commit_time: PgMicros(0),
        };
        let part = |start, ops: &'static [u8]| TxnPart {
            final_lsn: FinalLsn(Lsn(1)),
            start,
            ops,
            end_lsn: None,
        };
        assert!(begins_copied(&part(Some(start), &[COPIED, 0])));
        assert!(!begins_copied(&part(None, &[COPIED, 0])));
        assert!(!begins_copied(&part(Some(start), &[FACTS, 0])));
        assert!(!begins_copied(&part(Some(start), &[])));
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
