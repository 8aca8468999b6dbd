//! Typed schema changes: a closed list, no SQL text. Whatever the gateway cannot say with one of these it
//! refuses, so a follower can apply every change there is (architecture decision 3).

use serde::{Deserialize, Serialize};

use crate::ids::Oid;
use crate::schema::{Column, Index, Leaf, Schema, SchemaError, Table, TableId};

/// One step from a schema to the next. Steps of one migration come in an order that SQLite can follow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "snake_case", deny_unknown_fields)]
pub enum SchemaChange {
    /// A new, empty table; a waiting one is hidden, and its later changes wait with it.
    CreateTable {
        /// The table, with an id above every id used before.
        table: Table,
    },
    /// The table and its rows go.
    DropTable {
        /// The table.
        table: TableId,
    },
    /// The table gets another name or schema.
    RenameTable {
        /// The table.
        table: TableId,
        /// New Postgres schema.
        schema: String,
        /// New Postgres name.
        name: String,
    },
    /// A column at the end; every existing row gets `value`.
    AddColumn {
        /// The table.
        table: TableId,
        /// The column.
        column: Column,
        /// The value of rows that exist already.
        value: StoredValue,
    },
    /// A column goes. It is in no key and no carried index any more.
    DropColumn {
        /// The table.
        table: TableId,
        /// The column.
        attnum: i16,
    },
    /// A column gets another name.
    RenameColumn {
        /// The table.
        table: TableId,
        /// The column.
        attnum: i16,
        /// New name.
        name: String,
    },
    /// A column's type or nullability changes and no stored value does. A change of its kind is no such change.
    AlterColumn {
        /// The table.
        table: TableId,
        /// The column.
        attnum: i16,
        /// New exact type.
        type_name: String,
        /// New type oid.
        type_oid: Oid,
        /// New type modifier.
        typmod: i32,
        /// NOT NULL from now on.
        not_null: bool,
    },
    /// The table gets a partition; a waiting one is hidden, and its later changes wait with it.
    CreateLeaf {
        /// The table.
        table: TableId,
        /// The partition, with an id above every id used before.
        leaf: Leaf,
    },
    /// A partition and its rows go.
    DropLeaf {
        /// The table.
        table: TableId,
        /// The partition.
        leaf: TableId,
    },
    /// A carried index appears.
    CreateIndex {
        /// The table.
        table: TableId,
        /// The index.
        index: Index,
    },
    /// A carried index goes.
    DropIndex {
        /// The table.
        table: TableId,
        /// The index.
        oid: Oid,
    },
}

impl SchemaChange {
    /// The table that it changes, or makes.
    pub fn table(&self) -> TableId {
        match self {
            SchemaChange::CreateTable { table } => table.id,
            SchemaChange::DropTable { table }
            | SchemaChange::RenameTable { table, .. }
            | SchemaChange::AddColumn { table, .. }
            | SchemaChange::DropColumn { table, .. }
            | SchemaChange::RenameColumn { table, .. }
            | SchemaChange::AlterColumn { table, .. }
            | SchemaChange::CreateLeaf { table, .. }
            | SchemaChange::DropLeaf { table, .. }
            | SchemaChange::CreateIndex { table, .. }
            | SchemaChange::DropIndex { table, .. } => *table,
        }
    }
}

/// A value that travels inside a schema change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StoredValue {
    /// SQL NULL.
    Null,
    /// A boolean or an integer.
    Int(i64),
    /// A float's eight bytes as an integer, so that every float survives JSON.
    RealBits(u64),
    /// Any other value.
    Text(String),
}

impl Schema {
    /// The schema after `change`.
    ///
    /// # Errors
    /// When the change does not fit this schema, or its result is one that no mirror can hold.
    pub fn apply(&mut self, change: &SchemaChange) -> Result<(), SchemaError> {
        match change {
            SchemaChange::CreateTable { table } => self.tables.push(table.clone()),
            SchemaChange::DropTable { table } => {
                let at = self.position(*table)?;
                self.tables.remove(at);
            }
            SchemaChange::RenameTable {
                table,
                schema,
                name,
            } => {
                let table = self.table_mut(*table)?;
                table.schema.clone_from(schema);
                table.name.clone_from(name);
            }
            SchemaChange::AddColumn { table, column, .. } => {
                self.table_mut(*table)?.columns.push(column.clone());
            }
            SchemaChange::DropColumn { table, attnum } => {
                self.table_mut(*table)?.drop_column(*attnum)?
            }
            SchemaChange::RenameColumn {
                table,
                attnum,
                name,
            } => {
                self.table_mut(*table)?
                    .column_mut(*attnum)?
                    .name
                    .clone_from(name);
            }
            SchemaChange::AlterColumn {
                table,
                attnum,
                type_name,
                type_oid,
                typmod,
                not_null,
            } => {
                let column = self.table_mut(*table)?.column_mut(*attnum)?;
                column.type_name.clone_from(type_name);
                (column.type_oid, column.typmod, column.not_null) = (*type_oid, *typmod, *not_null);
            }
            SchemaChange::CreateLeaf { table, leaf } => {
                self.table_mut(*table)?.leaves.push(*leaf);
            }
            SchemaChange::DropLeaf { table, leaf } => {
                self.table_mut(*table)?.leaves.retain(|it| it.id != *leaf);
            }
            SchemaChange::CreateIndex { table, index } => {
                self.table_mut(*table)?.indexes.push(index.clone())
            }
            SchemaChange::DropIndex { table, oid } => {
                self.table_mut(*table)?
                    .indexes
                    .retain(|index| index.oid != *oid);
            }
        }
        self.check()
    }

    /// The schema once the copies of `targets` (waiting tables and partitions) are complete: each is shown, in place of
    /// the table that it replaces.
    ///
    /// # Errors
    /// When one of them does not wait.
    pub fn reveal(&mut self, targets: &[TableId]) -> Result<(), SchemaError> {
        for target in targets {
            let absent = || SchemaError {
                object: format!("#{}", target.0),
                reason: "it does not wait for a copy".to_owned(),
            };
            let (table, leaf) = self.owner(*target).ok_or_else(absent)?;
            let (owner, is_leaf) = (table.id, leaf.is_some());
            let table = self.table_mut(owner)?;
            if is_leaf {
                let leaf = table
                    .leaves
                    .iter_mut()
                    .find(|leaf| leaf.id == *target && leaf.waiting);
                leaf.ok_or_else(absent)?.waiting = false;
                continue;
            }
            let waiting = table.waiting.take().ok_or_else(absent)?;
            if let Some(replaced) = waiting.replaces {
                let at = self.position(replaced)?;
                self.tables.remove(at);
            }
        }
        self.check()
    }

    fn position(&self, id: TableId) -> Result<usize, SchemaError> {
        let found = self.tables.binary_search_by_key(&id, |table| table.id);
        found.map_err(|_absent| SchemaError {
            object: format!("#{}", id.0),
            reason: "no such table".to_owned(),
        })
    }

    fn table_mut(&mut self, id: TableId) -> Result<&mut Table, SchemaError> {
        let at = self.position(id)?;
        Ok(&mut self.tables[at])
    }
}

impl Table {
    fn column_mut(&mut self, attnum: i16) -> Result<&mut Column, SchemaError> {
        let object = self.mirror_name();
        let found = self
            .columns
            .iter_mut()
            .find(|column| column.attnum == attnum);
        found.ok_or_else(|| SchemaError {
            object,
            reason: format!("no column with number {attnum}"),
        })
    }

    fn drop_column(&mut self, attnum: i16) -> Result<(), SchemaError> {
        let object = self.mirror_name();
        let fail = |reason: String| SchemaError { object, reason };
        let Some(at) = self
            .columns
            .iter()
            .position(|column| column.attnum == attnum)
        else {
            return Err(fail(format!("no column with number {attnum}")));
        };
        let lists =
            || std::iter::once(&self.key).chain(self.indexes.iter().map(|index| &index.columns));
        if lists().any(|list| list.contains(&at)) {
            return Err(fail(format!(
                "column with number {attnum} is still in the row key or an index"
            )));
        }
        self.columns.remove(at);
        let shift =
            |list: &mut Vec<usize>| list.iter_mut().filter(|i| **i > at).for_each(|i| *i -= 1);
        shift(&mut self.key);
        self.indexes
            .iter_mut()
            .for_each(|index| shift(&mut index.columns));
        Ok(())
    }
}
