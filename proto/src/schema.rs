//! The tables of a mirror, and the typed changes that turn one schema into the next.
//!
//! Documents of this module travel as JSON inside frames: they are rare, small, and read by people at 3 a.m.
//! Field order is fixed by these structs, so that equal schemas have equal bytes (I3).

use serde::{Deserialize, Serialize};

use crate::ids::Oid;
use crate::pgtype::Kind;

/// Number of a table in its generation; never reused there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TableId(pub u32);

/// The mirrored tables of a generation at one position.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Schema {
    /// Tables in the order of their ids.
    pub tables: Vec<Table>,
}

/// One mirrored table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// Number by which operations name it.
    pub id: TableId,
    /// Object id in Postgres: the root's for a partitioned table.
    pub oid: Oid,
    /// Postgres schema.
    pub schema: String,
    /// Postgres name.
    pub name: String,
    /// Mirrored columns in the order in which rows carry them.
    pub columns: Vec<Column>,
    /// The row key: positions in `columns`, in key order. Never empty.
    pub key: Vec<usize>,
    /// Plain b-tree indexes carried as non-unique indexes.
    pub indexes: Vec<Index>,
}

/// One mirrored column.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Column {
    /// `pg_attribute.attnum`: the column's identity through renames.
    pub attnum: i16,
    /// Postgres name, which is the mirror's name too.
    pub name: String,
    /// Exact type as `format_type` prints it, such as `numeric(12,2)`.
    pub type_name: String,
    /// `pg_attribute.atttypid`: a domain's own oid.
    pub type_oid: Oid,
    /// `pg_attribute.atttypmod`.
    pub typmod: i32,
    /// How values are stored in the mirror.
    pub kind: Kind,
    /// NOT NULL in Postgres.
    pub not_null: bool,
}

/// One carried index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Index {
    /// Object id in Postgres.
    pub oid: Oid,
    /// Postgres name.
    pub name: String,
    /// Positions in the table's `columns`, in index order.
    pub columns: Vec<usize>,
}

impl Schema {
    /// The table of an id.
    pub fn table(&self, id: TableId) -> Option<&Table> {
        let found = self.tables.binary_search_by_key(&id, |table| table.id);
        found.ok().map(|at| &self.tables[at])
    }

    /// Says by name what makes this schema one that no mirror can hold, if anything does.
    ///
    /// # Errors
    /// A [`SchemaError`] that names the table: ids out of order, a key or index that points at no column,
    /// or two names that SQLite takes for one.
    pub fn check(&self) -> Result<(), SchemaError> {
        let in_order = self.tables.windows(2).all(|pair| pair[0].id < pair[1].id);
        if !in_order {
            return Err(SchemaError::new("schema", "table ids do not rise"));
        }
        let mut names = std::collections::HashSet::new();
        for table in &self.tables {
            let name = table.mirror_name();
            if !names.insert(name.to_ascii_lowercase()) {
                return Err(SchemaError::new(
                    &name,
                    "another table has this name in SQLite, which folds case",
                ));
            }
            table.check()?;
        }
        Ok(())
    }
}

impl Table {
    /// Name in the mirror: `t` for `public.t`, else `s.t`.
    pub fn mirror_name(&self) -> String {
        match self.schema.as_str() {
            "public" => self.name.clone(),
            schema => format!("{schema}.{}", self.name),
        }
    }

    fn check(&self) -> Result<(), SchemaError> {
        let name = self.mirror_name();
        let lower = name.to_ascii_lowercase();
        if lower.starts_with("sqlite_")
            || lower.starts_with("_rindle_") && lower != "_rindle_client_mutations"
        {
            return Err(SchemaError::new(
                &name,
                "names that start with sqlite_ or _rindle_ are reserved",
            ));
        }
        let valid = |at: &usize| *at < self.columns.len();
        if self.key.is_empty() || !self.key.iter().all(valid) {
            return Err(SchemaError::new(
                &name,
                "the row key names no mirrored column",
            ));
        }
        if !self
            .indexes
            .iter()
            .all(|index| !index.columns.is_empty() && index.columns.iter().all(valid))
        {
            return Err(SchemaError::new(&name, "an index names no mirrored column"));
        }
        if self.columns.len() > crate::row::MAX_CELLS {
            return Err(SchemaError::new(&name, "more columns than a row may have"));
        }
        let mut names = std::collections::HashSet::new();
        for column in &self.columns {
            if !names.insert(column.name.to_ascii_lowercase()) {
                let reason = format!(
                    "column {:?} collides with another in SQLite, which folds case",
                    column.name
                );
                return Err(SchemaError {
                    object: name,
                    reason,
                });
            }
        }
        Ok(())
    }
}

/// A schema that no mirror can hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("table {object:?}: {reason}")]
pub struct SchemaError {
    /// Mirror name of the table.
    pub object: String,
    /// What is wrong with it.
    pub reason: String,
}

impl SchemaError {
    fn new(object: &str, reason: &str) -> Self {
        Self {
            object: object.to_owned(),
            reason: reason.to_owned(),
        }
    }
}
