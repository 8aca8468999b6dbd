//! Changes of rows: one prepared statement a table and verb, one more for each set of columns that masked
//! updates bring. Values go from the frame's bytes into SQLite without a copy of ours.
//!
//! Nothing here repairs: a row that is not there, or one that is there already, is a divergence.

use rindle_proto::error::DecodeError;
use rindle_proto::op::Op;
use rindle_proto::pgtype::Kind;
use rindle_proto::row::Row;
use rindle_proto::schema::{SchemaError, Table, TableId};
use rindle_proto::value::ValueRef;
use rusqlite::{CachedStatement, Connection, ffi};

use super::ddl::quote;
use super::leaf::{self, RowIds};

/// Masks remembered a table. An application updates few sets of columns; beyond this the oldest is forgotten.
const MASKS: usize = 64;

/// The statements of one table.
#[derive(Debug)]
pub(super) struct Plan {
    name: String,
    fields: Vec<Field>,
    /// Positions in `fields`, in key order.
    key: Vec<usize>,
    insert: String,
    update: String,
    rekey: String,
    delete: String,
    /// Newest first.
    masks: Vec<(Mask, String)>,
    /// Of a partition that has an id of its own.
    row_ids: Option<RowIds>,
}

/// Which columns an update brings, and whether it changes the key.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mask {
    rekey: bool,
    given: Vec<bool>,
}

#[derive(Debug)]
struct Field {
    /// Quoted.
    name: String,
    store: Store,
    in_key: bool,
}

/// What a column's values are in SQLite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Store {
    Int,
    Real,
    Text,
}

/// Why an operation on a row failed.
#[derive(Debug)]
pub(super) enum RowError {
    Decode(DecodeError),
    Sqlite(rusqlite::Error),
    /// The row does not fit its table.
    Bad(&'static str),
    /// A row with this key is there already.
    Duplicate,
    /// No row with this key is there.
    Missing,
}

impl From<DecodeError> for RowError {
    fn from(error: DecodeError) -> Self {
        Self::Decode(error)
    }
}

impl From<rusqlite::Error> for RowError {
    fn from(error: rusqlite::Error) -> Self {
        let code = error.sqlite_error().map(|error| error.extended_code);
        match code {
            Some(
                ffi::SQLITE_CONSTRAINT_PRIMARYKEY
                | ffi::SQLITE_CONSTRAINT_ROWID
                | ffi::SQLITE_CONSTRAINT_UNIQUE,
            ) => Self::Duplicate,
            _ => Self::Sqlite(error),
        }
    }
}

/// The statement used last stays at hand: most operations follow one of their own kind.
pub(super) struct Held<'c> {
    conn: &'c Connection,
    last: Option<((TableId, Verb), CachedStatement<'c>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    Insert,
    Update,
    Rekey,
    Delete,
    Masked,
}

impl<'c> Held<'c> {
    pub(super) fn new(conn: &'c Connection) -> Self {
        Self { conn, last: None }
    }

    /// Gives the statement back: the schema is about to change.
    pub(super) fn release(&mut self) {
        self.last = None;
    }

    pub(super) fn row(
        &mut self,
        table: TableId,
        plan: &mut Plan,
        op: &Op<'_>,
    ) -> Result<(), RowError> {
        match op {
            Op::Insert { row, .. } => {
                let conn = self.conn;
                let statement = self.statement(table, Verb::Insert, &plan.insert)?;
                insert(conn, statement, plan, row)
            }
            Op::Update { row, .. } => self.update(table, plan, None, row),
            Op::Rekey { old_key, row, .. } => self.update(table, plan, Some(old_key), row),
            Op::Delete { key, .. } => {
                let statement = self.statement(table, Verb::Delete, &plan.delete)?;
                plan.bind_key(statement, key, 0)?;
                one_row(statement)
            }
            Op::Truncate { .. } | Op::Schema(_) | Op::Facts(_) | Op::Copied(_) | Op::Copying(_) => {
                Ok(())
            }
        }
    }

    /// Most updates bring every cell: that is tried first, and given up at the first cell left unchanged.
    fn update(
        &mut self,
        table: TableId,
        plan: &mut Plan,
        old_key: Option<&Row<'_>>,
        row: &Row<'_>,
    ) -> Result<(), RowError> {
        plan.check_len(row)?;
        let (verb, sql) = match old_key {
            None => (Verb::Update, &plan.update),
            Some(_) => (Verb::Rekey, &plan.rekey),
        };
        let statement = self.statement(table, verb, sql)?;
        for (at, cell) in row.cells().enumerate() {
            if !plan.bind(statement, at, cell?)? {
                return self.masked_update(table, plan, old_key, row);
            }
        }
        if let Some(key) = old_key {
            plan.bind_key(statement, key, plan.fields.len())?;
        }
        one_row(statement)
    }

    fn masked_update(
        &mut self,
        table: TableId,
        plan: &mut Plan,
        old_key: Option<&Row<'_>>,
        row: &Row<'_>,
    ) -> Result<(), RowError> {
        let given: Result<Vec<bool>, DecodeError> = row
            .cells()
            .map(|cell| Ok(cell? != ValueRef::Unchanged))
            .collect();
        let mask = Mask {
            rekey: old_key.is_some(),
            given: given?,
        };
        if plan.key.iter().any(|at| !mask.given[*at]) {
            return Err(RowError::Bad("a key cell is marked unchanged"));
        }
        if plan.choose_mask(mask) {
            self.last = None;
        }
        let statement = self.statement(table, Verb::Masked, &plan.masks[0].1)?;
        for (at, cell) in row.cells().enumerate() {
            plan.bind(statement, at, cell?)?;
        }
        if let Some(key) = old_key {
            plan.bind_key(statement, key, plan.fields.len())?;
        }
        one_row(statement)
    }

    fn statement(
        &mut self,
        table: TableId,
        verb: Verb,
        sql: &str,
    ) -> Result<&mut CachedStatement<'c>, RowError> {
        let same = matches!(&self.last, Some((key, _)) if *key == (table, verb));
        if !same {
            // Given back first, so that the cache has it should it be wanted again.
            self.last = None;
            self.last = Some(((table, verb), self.conn.prepare_cached(sql)?));
        }
        Ok(&mut self.last.as_mut().expect("set just now").1)
    }
}

/// Runs a bound insert.
pub(super) fn insert(
    conn: &Connection,
    statement: &mut CachedStatement<'_>,
    plan: &mut Plan,
    row: &Row<'_>,
) -> Result<(), RowError> {
    plan.check_len(row)?;
    for (at, cell) in row.cells().enumerate() {
        if !plan.bind(statement, at, cell?)? {
            return Err(RowError::Bad("a cell of a new row is marked unchanged"));
        }
    }
    if let Some(row_ids) = &mut plan.row_ids {
        statement.raw_bind_parameter(plan.fields.len() + 1, row_ids.take(conn)?)?;
    }
    one_row(statement)
}

fn one_row(statement: &mut CachedStatement<'_>) -> Result<(), RowError> {
    match statement.raw_execute()? {
        0 => Err(RowError::Missing),
        _ => Ok(()),
    }
}

impl Plan {
    /// The statements of `table`, whose name in the file is `name`; new rows are those of partition `leaf`.
    pub(super) fn new(
        table: &Table,
        name: &str,
        leaf: Option<TableId>,
    ) -> Result<Self, SchemaError> {
        let field = |at: usize| {
            let column = &table.columns[at];
            Field {
                name: quote(&column.name),
                store: match column.kind {
                    Kind::Bool | Kind::Int => Store::Int,
                    Kind::Float => Store::Real,
                    Kind::Text | Kind::Bytea | Kind::Json | Kind::Array(_) => Store::Text,
                },
                in_key: table.key.contains(&at),
            }
        };
        let mut plan = Self {
            name: name.to_owned(),
            fields: (0..table.columns.len()).map(field).collect(),
            key: table.key.clone(),
            insert: String::new(),
            update: String::new(),
            rekey: String::new(),
            delete: String::new(),
            masks: Vec::new(),
            row_ids: None,
        };
        let mut names: Vec<&str> = plan.fields.iter().map(|f| f.name.as_str()).collect();
        if let Some(leaf) = leaf {
            names.push(leaf::column(table)?);
            plan.row_ids = Some(RowIds::new(table, name, leaf)?);
        }
        let places: Vec<String> = (1..=names.len()).map(|at| format!("?{at}")).collect();
        plan.insert = format!(
            "INSERT INTO {} ({}) VALUES ({})",
            quote(name),
            names.join(", "),
            places.join(", ")
        );
        plan.delete = format!(
            "DELETE FROM {} WHERE {}",
            quote(name),
            plan.where_key(|place, _| place + 1)
        );
        plan.update = plan.update_sql(false, |_| true);
        plan.rekey = plan.update_sql(true, |_| true);
        Ok(plan)
    }

    pub(super) fn insert(&self) -> &str {
        &self.insert
    }

    /// Of the table, in the file.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Cells are bound by their position from 1, the old key of a rekey after all cells.
    fn update_sql(&self, rekey: bool, given: impl Fn(usize) -> bool) -> String {
        let changed = |at: &usize| given(*at) && (rekey || !self.fields[*at].in_key);
        let mut sets: Vec<String> = (0..self.fields.len())
            .filter(changed)
            .map(|at| format!("{} = ?{}", self.fields[at].name, at + 1))
            .collect();
        if sets.is_empty() {
            // Nothing changes, but the row must be there.
            let key = &self.fields[self.key[0]].name;
            sets.push(format!("{key} = {key}"));
        }
        let cells = self.fields.len();
        let key = match rekey {
            true => self.where_key(|place, _| cells + place + 1),
            false => self.where_key(|_, at| at + 1),
        };
        format!(
            "UPDATE {} SET {} WHERE {key}",
            quote(&self.name),
            sets.join(", ")
        )
    }

    /// `parameter` gives a key column's parameter from its place in the key and its position in the row.
    fn where_key(&self, parameter: impl Fn(usize, usize) -> usize) -> String {
        let terms: Vec<String> = (self.key.iter().enumerate())
            .map(|(place, at)| format!("{} = ?{}", self.fields[*at].name, parameter(place, *at)))
            .collect();
        terms.join(" AND ")
    }

    /// Puts the statement of `mask` in front. True when another was there.
    fn choose_mask(&mut self, mask: Mask) -> bool {
        match self.masks.iter().position(|(known, _)| *known == mask) {
            Some(0) => false,
            Some(at) => {
                self.masks[..=at].rotate_right(1);
                true
            }
            None => {
                let sql = self.update_sql(mask.rekey, |at| mask.given[at]);
                self.masks.truncate(MASKS - 1);
                self.masks.insert(0, (mask, sql));
                true
            }
        }
    }

    fn check_len(&self, row: &Row<'_>) -> Result<(), RowError> {
        match row.len() == self.fields.len() {
            true => Ok(()),
            false => Err(RowError::Bad(
                "a row has another number of cells than the table",
            )),
        }
    }

    /// False for a cell that is left unchanged: nothing is bound then.
    fn bind(
        &self,
        statement: &mut CachedStatement<'_>,
        at: usize,
        cell: ValueRef<'_>,
    ) -> Result<bool, RowError> {
        self.fields[at].bind(statement, at + 1, cell)
    }

    fn bind_key(
        &self,
        statement: &mut CachedStatement<'_>,
        key: &Row<'_>,
        offset: usize,
    ) -> Result<(), RowError> {
        if key.len() != self.key.len() {
            return Err(RowError::Bad(
                "a key has another number of cells than the row key",
            ));
        }
        for (place, cell) in key.cells().enumerate() {
            let field = &self.fields[self.key[place]];
            if !field.bind(statement, offset + place + 1, cell?)? {
                return Err(RowError::Bad("a key cell is marked unchanged"));
            }
        }
        Ok(())
    }
}

impl Field {
    fn bind(
        &self,
        statement: &mut CachedStatement<'_>,
        parameter: usize,
        cell: ValueRef<'_>,
    ) -> Result<bool, RowError> {
        match (cell, self.store) {
            (ValueRef::Unchanged, _) => return Ok(false),
            (ValueRef::Null, _) if self.in_key => {
                return Err(RowError::Bad("a key cell is null"));
            }
            (ValueRef::Null, _) => {
                statement.raw_bind_parameter(parameter, rusqlite::types::Null)?;
            }
            (ValueRef::Int(number), Store::Int) => {
                statement.raw_bind_parameter(parameter, number)?
            }
            (ValueRef::Real(number), Store::Real) => {
                statement.raw_bind_parameter(parameter, number)?;
            }
            (ValueRef::Text(text), Store::Text) => statement.raw_bind_parameter(parameter, text)?,
            (ValueRef::Text("NaN"), Store::Real) => {
                statement.raw_bind_parameter(parameter, "NaN")?;
            }
            // SQLite would convert what looks like another type; a value that is not its column's is no
            // value of ours.
            (ValueRef::Int(_) | ValueRef::Real(_) | ValueRef::Text(_), _) => {
                return Err(RowError::Bad("a cell is not of its column's kind"));
            }
        }
        Ok(true)
    }
}
