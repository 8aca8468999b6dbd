//! Tuples of the stream, and lines of a copy, as rows of frames.

use rindle_proto::pgtype::convert;
use rindle_proto::row::{put_cell, put_row_head};
use rindle_proto::schema::Table;
use rindle_proto::value::ValueRef;

use super::relations::Known;
use crate::halt::HaltReason;
use crate::pg::pgoutput::{Cell, Tuple};

/// What to do about a value that cannot be mirrored.
const MEND: &str = ": mend the value, or take its column out of the publication";

/// Appends all columns of a row. `old` is `None` for an insert, which must be complete; for an update it holds
/// the old tuple, if one came: a key cell that was left out (TOASTed and untouched) is in there.
pub(super) fn put_row(
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
pub(super) fn put_key(
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

fn unusable(table: &Table, detail: String) -> HaltReason {
    HaltReason::UnusableRow {
        table: format!("{}.{}", table.schema, table.name),
        detail,
    }
}
