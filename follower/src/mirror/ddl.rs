//! Tables and schema changes as SQLite statements. Every name is quoted here and nowhere else.
//!
//! The row key is a unique index beside a row-id table (figures and why in `designs/007-mirror.md`). Carried indexes
//! are not unique: in the middle of a transaction Postgres may hold what a unique index would refuse.

use rindle_proto::change::{SchemaChange, StoredValue};
use rindle_proto::schema::{Column, Index, Schema, Table, TableId};
use rusqlite::Connection;
use rusqlite::types::Value;

use super::error::MirrorError;
use super::local::{self, LocalIndex};
use super::{discard, meta};

/// A stored value up to this many bytes becomes the column's default; a longer one is written into each row,
/// since SQLite limits the length of a statement.
const MAX_DEFAULT_BYTES: usize = 64 << 10;

/// A table name for the moment between two names that SQLite takes for one.
const BETWEEN: &str = "_rindle_rename";

/// Under which name tables stand in the file.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place<'p> {
    /// Their own, with sidecars and local indexes.
    Shown,
    /// This one, for the one table that there is: it is being made, and nobody is told of it.
    Hidden(&'p str),
}

impl Place<'_> {
    pub(super) fn name(self, table: &Table) -> String {
        match self {
            Place::Shown => table.mirror_name(),
            Place::Hidden(name) => name.to_owned(),
        }
    }
}

/// A schema change of a table whose rows are in the file.
pub(super) struct Step<'s> {
    pub(super) conn: &'s Connection,
    pub(super) before: &'s Schema,
    pub(super) after: &'s Schema,
    pub(super) change: &'s SchemaChange,
    pub(super) place: Place<'s>,
    pub(super) local: &'s [LocalIndex],
}

/// A name as SQLite takes it literally, whatever characters it holds.
pub fn quote(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

pub(super) fn create_table(table: &Table, name: &str) -> String {
    let columns: Vec<String> = (0..table.columns.len())
        .map(|at| column_definition(table, at))
        .collect();
    format!("CREATE TABLE {} ({})", quote(name), columns.join(", "))
}

fn column_definition(table: &Table, at: usize) -> String {
    let column = &table.columns[at];
    let not_null = match table.key.contains(&at) {
        true => " NOT NULL",
        false => "",
    };
    format!(
        "{} {}{not_null}",
        quote(&column.name),
        column.kind.declared()
    )
}

/// The unique index of the row key.
pub(super) fn create_key(table: &Table, name: &str) -> String {
    create_key_named(&format!("_rindle_key_{}", table.id.0), table, name)
}

pub(super) fn create_key_named(index: &str, table: &Table, name: &str) -> String {
    let columns = column_names(table, &table.key);
    create_index_sql("UNIQUE INDEX", index, name, &columns)
}

pub(super) fn create_index(table: &Table, index: &Index, name: &str) -> String {
    create_index_sql(
        "INDEX",
        &index_name(table, index.oid.0),
        name,
        &column_names(table, &index.columns),
    )
}

fn index_name(table: &Table, oid: u32) -> String {
    format!("_rindle_index_{}_{oid}", table.id.0)
}

pub(super) fn create_index_sql(what: &str, index: &str, table: &str, columns: &[&str]) -> String {
    let columns: Vec<String> = columns.iter().map(|column| quote(column)).collect();
    format!(
        "CREATE {what} {} ON {} ({})",
        quote(index),
        quote(table),
        columns.join(", ")
    )
}

fn column_names<'t>(table: &'t Table, list: &[usize]) -> Vec<&'t str> {
    list.iter()
        .map(|at| table.columns[*at].name.as_str())
        .collect()
}

pub(super) fn rename_table(conn: &Connection, old: &str, new: &str) -> Result<(), MirrorError> {
    let rename =
        |from: &str, to: &str| format!("ALTER TABLE {} RENAME TO {};", quote(from), quote(to));
    if old == new {
        return Ok(());
    }
    let sql = match old.eq_ignore_ascii_case(new) {
        true => rename(old, BETWEEN) + &rename(BETWEEN, new),
        false => rename(old, new),
    };
    run(conn, &sql)
}

/// Makes a change in the file.
pub(super) fn change(step: &Step<'_>) -> Result<(), MirrorError> {
    let (conn, place) = (step.conn, step.place);
    let old = |id: TableId| step.before.table(id).expect("apply found the table");
    let new = |id: TableId| step.after.table(id).expect("apply kept the table");
    match step.change {
        SchemaChange::CreateTable { table } => create(step, table)?,
        SchemaChange::DropTable { table } => drop_table(conn, old(*table))?,
        SchemaChange::RenameTable { table, .. } => match place {
            Place::Hidden(_) => {}
            Place::Shown => {
                let name = old(*table).mirror_name();
                rename_table(conn, &name, &new(*table).mirror_name())?;
                meta::put_table(conn, &name, step.after, new(*table))?;
            }
        },
        SchemaChange::AddColumn {
            table,
            column,
            value,
        } => {
            add_column(conn, &place.name(new(*table)), column, value)?;
            step.put_sidecar(new(*table))?;
        }
        SchemaChange::DropColumn { table, attnum } => {
            let old = old(*table);
            drop_column(conn, &place.name(old), column(old, *attnum))?;
            step.put_sidecar(new(*table))?;
        }
        SchemaChange::RenameColumn { table, attnum, .. } => {
            let (old, new) = (old(*table), new(*table));
            let sql = format!(
                "ALTER TABLE {} RENAME COLUMN {} TO {}",
                quote(&place.name(old)),
                quote(&column(old, *attnum).name),
                quote(&column(new, *attnum).name)
            );
            run(conn, &sql)?;
            step.put_sidecar(new)?;
        }
        SchemaChange::AlterColumn { table, .. } => step.put_sidecar(new(*table))?,
        // Rows of partitions are the caller's.
        SchemaChange::CreateLeaf { .. } | SchemaChange::DropLeaf { .. } => {}
        SchemaChange::CreateIndex { table, index } => {
            let table = new(*table);
            run(conn, &create_index(table, index, &place.name(table)))?;
        }
        SchemaChange::DropIndex { table, oid } => {
            let index = index_name(old(*table), oid.0);
            run(conn, &format!("DROP INDEX IF EXISTS {}", quote(&index)))?;
        }
    }
    match place {
        Place::Shown => local::ensure(conn, step.after, step.local),
        Place::Hidden(_) => Ok(()),
    }
}

impl Step<'_> {
    fn put_sidecar(&self, table: &Table) -> Result<(), MirrorError> {
        match self.place {
            Place::Shown => meta::put_table(self.conn, &table.mirror_name(), self.after, table),
            Place::Hidden(_) => Ok(()),
        }
    }
}

fn create(step: &Step<'_>, table: &Table) -> Result<(), MirrorError> {
    let name = step.place.name(table);
    run(step.conn, &create_table(table, &name))?;
    let indexes = table
        .indexes
        .iter()
        .map(|index| create_index(table, index, &name));
    for sql in std::iter::once(create_key(table, &name)).chain(indexes) {
        run(step.conn, &sql)?;
    }
    step.put_sidecar(table)
}

/// Drops a shown table with its sidecar, or takes it out of sight.
pub(super) fn drop_table(conn: &Connection, table: &Table) -> Result<(), MirrorError> {
    let name = table.mirror_name();
    discard::put_away(conn, &name, table.id)?;
    meta::remove_table(conn, &name)
}

fn column(table: &Table, attnum: i16) -> &Column {
    let found = table.columns.iter().find(|column| column.attnum == attnum);
    found.expect("apply found the column")
}

fn drop_column(conn: &Connection, name: &str, column: &Column) -> Result<(), MirrorError> {
    // SQLite refuses to drop a column that an index names; those of the configuration are made again after.
    local::drop_on(conn, name)?;
    let (name, column) = (quote(name), quote(&column.name));
    run(conn, &format!("ALTER TABLE {name} DROP COLUMN {column}"))
}

fn add_column(
    conn: &Connection,
    name: &str,
    column: &Column,
    value: &StoredValue,
) -> Result<(), MirrorError> {
    let (name, field) = (quote(name), quote(&column.name));
    let add = format!(
        "ALTER TABLE {name} ADD COLUMN {field} {}",
        column.kind.declared()
    );
    let value = match value {
        StoredValue::Null => return run(conn, &add),
        StoredValue::Int(number) => Value::Integer(*number),
        StoredValue::RealBits(bits) => Value::Real(f64::from_bits(*bits)),
        StoredValue::Text(text) => Value::Text(text.clone()),
    };
    match default_literal(&value) {
        Some(literal) => run(conn, &format!("{add} DEFAULT {literal}")),
        None => {
            run(conn, &add)?;
            conn.execute(&format!("UPDATE {name} SET {field} = ?1"), [value])
                .map_err(MirrorError::sqlite("fill a new column"))?;
            Ok(())
        }
    }
}

/// The literal that SQLite reads back as exactly `value`; none where its reading may round, or the statement
/// would grow too long.
fn default_literal(value: &Value) -> Option<String> {
    match value {
        Value::Integer(number) => Some(number.to_string()),
        Value::Text(text) if text.len() <= MAX_DEFAULT_BYTES => {
            Some(format!("'{}'", text.replace('\'', "''")))
        }
        Value::Null | Value::Real(_) | Value::Text(_) | Value::Blob(_) => None,
    }
}

pub(super) fn run(conn: &Connection, sql: &str) -> Result<(), MirrorError> {
    conn.execute_batch(sql)
        .map_err(MirrorError::sqlite("change the mirror's schema"))
}
