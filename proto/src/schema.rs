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
    /// Partitions whose rows are told apart, so that one of them can go, or come, by itself. In the order of their ids.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leaves: Vec<Leaf>,
    /// Set while its rows are not all there: it is shown to nobody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<Waiting>,
}

/// One partition of a mirrored table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Leaf {
    /// Number by which operations on its rows name it; from the same numbers as those of tables.
    pub id: TableId,
    /// Object id in Postgres.
    pub oid: Oid,
    /// Its rows are not all there, and hidden.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub waiting: bool,
}

/// A table that waits for a copy of its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Waiting {
    /// The shown table whose place it takes.
    pub replaces: Option<TableId>,
    /// That table's rows still follow the source; else it stands still until the swap.
    pub live: bool,
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

    /// The table of which `id` is the id, or that of a partition.
    pub fn owner(&self, id: TableId) -> Option<(&Table, Option<&Leaf>)> {
        let own = self.table(id).map(|table| (table, None));
        own.or_else(|| {
            let of = |table: &'_ Table| table.leaves.binary_search_by_key(&id, |leaf| leaf.id);
            let found = self
                .tables
                .iter()
                .find_map(|table| Some((table, of(table).ok()?)));
            found.map(|(table, at)| (table, Some(&table.leaves[at])))
        })
    }

    /// The tables that readers see.
    pub fn shown(&self) -> impl Iterator<Item = &Table> {
        self.tables.iter().filter(|table| table.waiting.is_none())
    }

    /// The waiting table that takes the place of `id`.
    pub fn successor(&self, id: TableId) -> Option<&Table> {
        let replaces = |table: &&Table| {
            table
                .waiting
                .is_some_and(|waiting| waiting.replaces == Some(id))
        };
        self.tables.iter().find(replaces)
    }

    /// The highest id in use.
    pub fn highest_id(&self) -> TableId {
        let ids = self.tables.iter().flat_map(|table| {
            std::iter::once(table.id).chain(table.leaves.iter().map(|leaf| leaf.id))
        });
        ids.max().unwrap_or(TableId(0))
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
        self.check_ids()?;
        let replaced = |table: &&Table| self.successor(table.id).is_none();
        let shown = self.shown().collect::<Vec<_>>();
        let in_the_end = self.tables.iter().filter(replaced).collect::<Vec<_>>();
        for tables in [shown, in_the_end] {
            let mut names = std::collections::HashSet::new();
            for name in tables.into_iter().map(Table::mirror_name) {
                if !names.insert(name.to_ascii_lowercase()) {
                    return Err(SchemaError::new(
                        &name,
                        "another table has this name in SQLite, which folds case",
                    ));
                }
            }
        }
        self.tables.iter().try_for_each(Table::check)
    }

    fn check_ids(&self) -> Result<(), SchemaError> {
        let mut ids = std::collections::HashSet::new();
        for table in &self.tables {
            let in_order = table.leaves.windows(2).all(|pair| pair[0].id < pair[1].id);
            let mut own = std::iter::once(table.id).chain(table.leaves.iter().map(|leaf| leaf.id));
            let fresh = own.all(|id| ids.insert(id));
            if !in_order || !fresh {
                return Err(SchemaError::new(
                    &table.mirror_name(),
                    "an id is used twice or out of order",
                ));
            }
            let replaces = table.waiting.and_then(|waiting| waiting.replaces);
            let shown = |id| self.table(id).is_some_and(|table| table.waiting.is_none());
            if replaces.is_some_and(|id| !shown(id)) {
                return Err(SchemaError::new(
                    &table.mirror_name(),
                    "it replaces a table that is not shown",
                ));
            }
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

    /// What tells this table from one that should hold the same rows, if anything does. What the table, its types and its
    /// indexes are called holds no row; partitions and indexes are looked at for a `whole` table only.
    pub fn differs(&self, other: &Table, whole: bool) -> Option<&'static str> {
        let columns = |table: &Table| {
            let stored = table.columns.iter();
            let stored =
                stored.map(|it| (it.attnum, it.name.clone(), it.type_oid, it.typmod, it.kind));
            stored.collect::<Vec<_>>()
        };
        let indexes = |table: &Table| {
            let parts = table.indexes.iter();
            let mut parts: Vec<_> = parts.map(|it| (it.oid, it.columns.clone())).collect();
            parts.sort();
            parts
        };
        if columns(self) != columns(other) {
            Some("columns")
        } else if self.key != other.key {
            Some("key columns")
        } else if whole && indexes(self) != indexes(other) {
            Some("indexes")
        } else if whole && self.leaves != other.leaves {
            Some("partitions")
        } else {
            None
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
