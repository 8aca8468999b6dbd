//! Messages of one walsender session to frames. Pure: bytes in, frames appended to a [`FrameWriter`].
//!
//! What a frame holds depends on the schema and the transaction alone (I3): the same transaction gives the same
//! bytes in every session. A transaction larger than memory leaves in parts of about [`PART_BYTES`]. Every shape
//! the walsender announces is checked against the schema that is believed.

mod relations;
#[cfg(test)]
mod tests;

use rindle_archive::{Commit, CommitKind};
use rindle_proto::body::{PgMicros, TxnStart, put_txn_end, put_txn_start};
use rindle_proto::frame::{FrameFlags, FrameKind, FrameWriter, PART_BYTES};
use rindle_proto::ids::{EndLsn, FinalLsn, Oid, Position};
use rindle_proto::op;
use rindle_proto::pgtype::convert;
use rindle_proto::row::{put_cell, put_row_head};
use rindle_proto::schema::{Schema, Table, TableId};
use rindle_proto::value::ValueRef;

use self::relations::{Known, Relations};
use crate::halt::HaltReason;
use crate::pg::pgoutput::{Cell, Message, Relation, Tuple};

pub use self::relations::LeafMap;

/// What to do about a value that cannot be mirrored.
const MEND: &str = ": mend the value, or take its column out of the publication";

/// Turns the messages of one session into frames.
#[derive(Debug)]
pub struct Assembler {
    schema: Schema,
    relations: Relations,
    writer: FrameWriter,
    open: Option<OpenTxn>,
    scratch: String,
}

/// The transaction between Begin and Commit.
#[derive(Debug)]
struct OpenTxn {
    final_lsn: FinalLsn,
    start: TxnStart,
    /// Position before its first frame.
    before: Position,
    /// No frame of it was finished yet.
    first: bool,
}

/// What a message did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Assembled {
    /// Nothing that matters to the position.
    Quiet,
    /// A transaction committed; with no commit when it changed nothing that is mirrored.
    Committed {
        /// End of its commit record.
        end_lsn: EndLsn,
        /// The commit as the archive records it.
        commit: Option<Commit>,
    },
}

impl Assembler {
    /// Continues after `position` under `schema`; `leaves` says which partitions belong to which root.
    pub fn new(schema: Schema, leaves: LeafMap, position: Position) -> Self {
        let relations = Relations::new(leaves);
        Self {
            schema,
            relations,
            writer: FrameWriter::new(position),
            open: None,
            scratch: String::new(),
        }
    }

    /// True between Begin and Commit.
    pub fn in_txn(&self) -> bool {
        self.open.is_some()
    }

    /// The frames made so far; finished ones may be taken out at any time.
    pub fn writer(&mut self) -> &mut FrameWriter {
        &mut self.writer
    }

    /// Takes in one message.
    ///
    /// # Errors
    /// When the message cannot be turned into frames without a guess. Nothing may be taken in afterwards.
    pub fn take(&mut self, message: Message<'_>) -> Result<Assembled, HaltReason> {
        match message {
            Message::Begin {
                final_lsn,
                commit_time,
                xid,
            } => self.begin(final_lsn, commit_time.0, xid)?,
            Message::Commit {
                commit_lsn,
                end_lsn,
                ..
            } => return self.commit(commit_lsn, end_lsn),
            Message::Relation(relation) => self.relations.learn(&relation, &self.schema)?,
            Message::Insert { rel, new } => self.insert(rel, new)?,
            Message::Update { rel, old, new } => {
                self.update(rel, old.map(|(_, tuple)| tuple), new)?
            }
            Message::Delete { rel, old, .. } => self.delete(rel, old)?,
            Message::Truncate { rels, .. } => self.truncate(&rels)?,
            // Messages of other software, and origins and types, which change no row.
            Message::Origin { .. } | Message::Type { .. } | Message::Logical { .. } => {}
        }
        Ok(Assembled::Quiet)
    }

    fn begin(&mut self, final_lsn: FinalLsn, commit_time: i64, xid: u32) -> Result<(), HaltReason> {
        if self.open.is_some() {
            return Err(damaged("a transaction begins inside another"));
        }
        let start = TxnStart {
            xid,
            commit_time: PgMicros(commit_time),
        };
        self.open = Some(OpenTxn {
            final_lsn,
            start,
            before: self.writer.position(),
            first: true,
        });
        Ok(())
    }

    fn commit(&mut self, commit_lsn: FinalLsn, end_lsn: EndLsn) -> Result<Assembled, HaltReason> {
        let txn = self
            .open
            .take()
            .ok_or_else(|| damaged("a commit outside a transaction"))?;
        if txn.final_lsn != commit_lsn {
            return Err(damaged("a commit of another transaction than began"));
        }
        let Some(payload) = self.writer.payload() else {
            return Ok(Assembled::Committed {
                end_lsn,
                commit: None,
            });
        };
        put_txn_end(payload, end_lsn);
        let flags = FrameFlags {
            first: txn.first,
            last: true,
        };
        let position = finish(&mut self.writer, flags, txn.final_lsn)?;
        let commit = Commit {
            kind: CommitKind::Txn,
            position,
            before: txn.before,
            final_lsn: txn.final_lsn,
            end_lsn,
            xid: txn.start.xid,
            commit_time: txn.start.commit_time,
        };
        Ok(Assembled::Committed {
            end_lsn,
            commit: Some(commit),
        })
    }

    fn insert(&mut self, rel: Oid, new: Tuple<'_>) -> Result<(), HaltReason> {
        let Some((known, table)) = self.relations.find(rel, &self.schema)? else {
            return Ok(());
        };
        let out = room(&mut self.writer, &mut self.open)?;
        op::put_insert(out, table.id);
        put_row(out, known, table, new, None, &mut self.scratch, |_| {
            "an inserted row lacks a large value: its update moved it into the row filter; set REPLICA IDENTITY FULL \
             on the table"
                .to_owned()
        })
    }

    fn update(
        &mut self,
        rel: Oid,
        old: Option<Tuple<'_>>,
        new: Tuple<'_>,
    ) -> Result<(), HaltReason> {
        let Some((known, table)) = self.relations.find(rel, &self.schema)? else {
            return Ok(());
        };
        let out = room(&mut self.writer, &mut self.open)?;
        match old.filter(|old| known.key_differs(table, *old, new)) {
            Some(old) => {
                op::put_rekey(out, table.id);
                put_key(out, known, table, old, &mut self.scratch)?;
            }
            None => op::put_update(out, table.id),
        }
        let no_key = |column: &str| {
            format!(
                "an update leaves the key column {column:?} out and sends no old key: set the replica identity to the \
                 row key's index"
            )
        };
        put_row(out, known, table, new, Some(old), &mut self.scratch, no_key)
    }

    fn delete(&mut self, rel: Oid, old: Tuple<'_>) -> Result<(), HaltReason> {
        let Some((known, table)) = self.relations.find(rel, &self.schema)? else {
            return Ok(());
        };
        let out = room(&mut self.writer, &mut self.open)?;
        op::put_delete(out, table.id);
        put_key(out, known, table, old, &mut self.scratch)
    }

    fn truncate(&mut self, rels: &[Oid]) -> Result<(), HaltReason> {
        let tables: Vec<TableId> = self.relations.truncated(rels, &self.schema)?;
        if !tables.is_empty() {
            op::put_truncate(room(&mut self.writer, &mut self.open)?, &tables);
        }
        Ok(())
    }
}

/// The payload of a frame in which the next operation may start. The cut depends on the transaction alone.
fn room<'w>(
    writer: &'w mut FrameWriter,
    open: &mut Option<OpenTxn>,
) -> Result<&'w mut Vec<u8>, HaltReason> {
    let txn = open
        .as_mut()
        .ok_or_else(|| damaged("a change outside a transaction"))?;
    if writer.payload_len() >= PART_BYTES {
        finish(
            writer,
            FrameFlags {
                first: txn.first,
                last: false,
            },
            txn.final_lsn,
        )?;
        txn.first = false;
    }
    if writer.payload().is_none() {
        let (first, start) = (txn.first, txn.start);
        let payload = writer.open();
        if first {
            put_txn_start(payload, start);
        }
    }
    writer.payload().ok_or_else(|| damaged("no frame is open"))
}

fn finish(
    writer: &mut FrameWriter,
    flags: FrameFlags,
    lsn: FinalLsn,
) -> Result<Position, HaltReason> {
    let finished = writer.finish(FrameKind::Txn, flags, lsn.0);
    finished.map_err(|too_long| damaged(&too_long.to_string()))
}

/// Appends all columns of a row. `old` is `None` for an insert, which must be complete; for an update it holds
/// the old tuple, if one came: a key cell that was left out (TOASTed and untouched) is in there.
fn put_row(
    out: &mut Vec<u8>,
    known: &Known,
    table: &Table,
    new: Tuple<'_>,
    old: Option<Option<Tuple<'_>>>,
    scratch: &mut String,
    incomplete: impl Fn(&str) -> String,
) -> Result<(), HaltReason> {
    known.check_width(table, new)?;
    put_row_head(out, table.columns.len());
    let mut put = |at: usize, cell: Cell<'_>| -> Result<(), HaltReason> {
        let cell = match (cell, old) {
            (Cell::Unchanged, Some(Some(old))) if table.key.contains(&at) => known.cell(old, at),
            (cell, _) => cell,
        };
        let must_come = old.is_none() || table.key.contains(&at);
        if cell == Cell::Unchanged && must_come {
            return Err(unusable(table, incomplete(&table.columns[at].name)));
        }
        put_value(out, table, at, cell, scratch)
    };
    match known.in_order() {
        true => new
            .iter()
            .enumerate()
            .try_for_each(|(at, cell)| put(at, cell)),
        false => {
            let cells: Vec<Cell<'_>> = new.iter().collect();
            (0..table.columns.len()).try_for_each(|at| put(at, cells[known.place(at)]))
        }
    }
}

/// Appends the key columns of an old tuple, in key order. Cells outside the identity are NULL whatever the row
/// held, so a NULL key cell means that the leaf's identity is not the root's row key.
fn put_key(
    out: &mut Vec<u8>,
    known: &Known,
    table: &Table,
    old: Tuple<'_>,
    scratch: &mut String,
) -> Result<(), HaltReason> {
    known.check_width(table, old)?;
    put_row_head(out, table.key.len());
    for &at in &table.key {
        let cell = known.cell(old, at);
        if !matches!(cell, Cell::Text(_)) {
            let detail = format!(
                "the old row comes without its key column {:?}: the replica identity (of the partition, if it is one) \
                 does not cover the row key; set it to the row key's index",
                table.columns[at].name
            );
            return Err(unusable(table, detail));
        }
        put_value(out, table, at, cell, scratch)?;
    }
    Ok(())
}

/// Appends one cell as the mirror will hold it: the one place where streamed and copied text become values.
pub(crate) fn put_value(
    out: &mut Vec<u8>,
    table: &Table,
    at: usize,
    cell: Cell<'_>,
    scratch: &mut String,
) -> Result<(), HaltReason> {
    let text = match cell {
        Cell::Null => ValueRef::Null,
        Cell::Unchanged => ValueRef::Unchanged,
        Cell::Text(bytes) => {
            let column = &table.columns[at];
            let text = std::str::from_utf8(bytes).map_err(|error| {
                unusable(
                    table,
                    format!("column {:?} is not UTF-8: {error}{MEND}", column.name),
                )
            })?;
            convert(column.kind, text, scratch).map_err(|error| {
                unusable(table, format!("column {:?}: {error}{MEND}", column.name))
            })?
        }
    };
    put_cell(out, text);
    Ok(())
}

fn damaged(detail: &str) -> HaltReason {
    HaltReason::StreamDamaged {
        detail: detail.to_owned(),
    }
}

fn unusable(table: &Table, detail: String) -> HaltReason {
    HaltReason::UnusableRow {
        table: format!("{}.{}", table.schema, table.name),
        detail,
    }
}

impl Relations {
    fn learn(&mut self, relation: &Relation, schema: &Schema) -> Result<(), HaltReason> {
        // The tool's own tables ride along under FOR ALL TABLES; their rows are not for the mirror.
        match relation.namespace.as_str() {
            "rindle" => self.ignore(relation.oid),
            _ => self.check(relation, schema)?,
        }
        Ok(())
    }
}
