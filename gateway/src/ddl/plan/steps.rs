//! The steps from tables as they are to what they come to, in an order that SQLite can follow.

use std::collections::BTreeSet;

use rindle_proto::change::SchemaChange;
use rindle_proto::schema::{Column, Index, Leaf, Table, TableId};

use super::{Planner, bug};
use crate::ddl::shape::stored_value;
use crate::halt::HaltReason;
use crate::pg::catalog::CatalogView;

/// A schema name for the moment between two names.
const BETWEEN: &str = "rindle";

impl Planner<'_> {
    fn pairs(&self) -> Vec<(Table, Table)> {
        let pair = |(id, target): (&TableId, &Table)| {
            Some((self.next.schema.table(*id)?.clone(), target.clone()))
        };
        self.targets.iter().filter_map(pair).collect()
    }

    pub(super) fn drop_columns(&mut self) -> Result<(), HaltReason> {
        for (table, target) in self.pairs() {
            let stays = |attnum: i16| target.columns.iter().any(|column| column.attnum == attnum);
            for index in &table.indexes {
                if !target
                    .indexes
                    .iter()
                    .any(|other| same_index(&table, index, &target, other))
                {
                    self.make(SchemaChange::DropIndex {
                        table: table.id,
                        oid: index.oid,
                    })?;
                }
            }
            for column in table.columns.iter().filter(|column| !stays(column.attnum)) {
                self.make(SchemaChange::DropColumn {
                    table: table.id,
                    attnum: column.attnum,
                })?;
            }
        }
        Ok(())
    }

    pub(super) fn rename_tables(&mut self) -> Result<(), HaltReason> {
        let renamed = |(table, target): &(Table, Table)| {
            (&table.schema, &table.name) != (&target.schema, &target.name)
        };
        let pairs: Vec<(Table, Table)> = self.pairs().into_iter().filter(renamed).collect();
        let rename = |table: &Table, schema: &str, name: &str| SchemaChange::RenameTable {
            table: table.id,
            schema: schema.to_owned(),
            name: name.to_owned(),
        };
        let taken: BTreeSet<String> = pairs
            .iter()
            .map(|(table, _)| table.mirror_name().to_ascii_lowercase())
            .collect();
        let trade = pairs.iter().any(|(table, target)| {
            let (from, to) = (
                table.mirror_name().to_ascii_lowercase(),
                target.mirror_name().to_ascii_lowercase(),
            );
            from != to && taken.contains(&to)
        });
        for (table, _) in pairs.iter().filter(|_| trade) {
            self.make(rename(table, BETWEEN, &format!("renaming_{}", table.id.0)))?;
        }
        // Shown ones first: a waiting one may take a name only where its forerunner has it.
        let (waiting, shown): (Vec<_>, Vec<_>) =
            pairs.iter().partition(|(table, _)| table.waiting.is_some());
        for (table, target) in shown.into_iter().chain(waiting) {
            self.make(rename(table, &target.schema, &target.name))?;
        }
        Ok(())
    }

    pub(super) fn change_columns(&mut self, view: &CatalogView) -> Result<(), HaltReason> {
        for (table, target) in self
            .pairs()
            .into_iter()
            .filter(|(table, target)| table.columns != target.columns)
        {
            self.rename_columns(&table, &target)?;
            for column in &target.columns {
                let old = table.columns.iter().find(|old| old.attnum == column.attnum);
                let Some(old) = old else {
                    let facts = view
                        .tables
                        .iter()
                        .find(|facts| facts.relation.oid == table.oid);
                    let value = facts.and_then(|facts| stored_value(facts, column));
                    let value = value.ok_or_else(|| bug("a new column without a value"))?;
                    self.make(SchemaChange::AddColumn {
                        table: table.id,
                        column: column.clone(),
                        value,
                    })?;
                    continue;
                };
                let said = |column: &Column| {
                    (
                        column.type_name.clone(),
                        column.type_oid,
                        column.typmod,
                        column.not_null,
                    )
                };
                if said(old) != said(column) {
                    let (type_name, type_oid, typmod, not_null) = said(column);
                    let (table, attnum) = (table.id, column.attnum);
                    self.make(SchemaChange::AlterColumn {
                        table,
                        attnum,
                        type_name,
                        type_oid,
                        typmod,
                        not_null,
                    })?;
                }
            }
        }
        Ok(())
    }

    fn rename_columns(&mut self, table: &Table, target: &Table) -> Result<(), HaltReason> {
        let name_now = |attnum: i16| {
            let column = target.columns.iter().find(|column| column.attnum == attnum);
            column.map(|column| column.name.clone())
        };
        let renamed: Vec<(i16, &str, String)> = (table.columns.iter())
            .filter_map(|column| Some((column.attnum, &*column.name, name_now(column.attnum)?)))
            .filter(|(_, old, new)| old != new)
            .collect();
        let taken = |name: &str| {
            renamed
                .iter()
                .any(|(_, old, _)| old.eq_ignore_ascii_case(name))
        };
        let trade = renamed
            .iter()
            .any(|(_, old, new)| !old.eq_ignore_ascii_case(new) && taken(new));
        let rename = |attnum: i16, name: String| SchemaChange::RenameColumn {
            table: table.id,
            attnum,
            name,
        };
        for (attnum, ..) in renamed.iter().filter(|_| trade) {
            self.make(rename(*attnum, format!("_rindle_renaming_{attnum}")))?;
        }
        for (attnum, _, name) in &renamed {
            self.make(rename(*attnum, name.clone()))?;
        }
        Ok(())
    }

    pub(super) fn leaves(&mut self) -> Result<(), HaltReason> {
        for (table, target) in self.pairs() {
            let stays = |leaf: &Leaf| target.leaves.iter().any(|other| other.oid == leaf.oid);
            for leaf in table.leaves.iter().filter(|leaf| !stays(leaf)) {
                self.make(SchemaChange::DropLeaf {
                    table: table.id,
                    leaf: leaf.id,
                })?;
            }
            let known = |leaf: &&Leaf| table.leaves.iter().any(|other| other.oid == leaf.oid);
            for leaf in target.leaves.iter().filter(|leaf| !known(leaf)) {
                let id = self.next_id();
                // In a table that waits all rows wait.
                let waiting = table.waiting.is_none() && !self.reasons.born.contains(&leaf.oid);
                self.make(SchemaChange::CreateLeaf {
                    table: table.id,
                    leaf: Leaf {
                        id,
                        oid: leaf.oid,
                        waiting,
                    },
                })?;
            }
        }
        Ok(())
    }

    pub(super) fn create_indexes(&mut self) -> Result<(), HaltReason> {
        for (table, target) in self.pairs() {
            for index in &target.indexes {
                if !table
                    .indexes
                    .iter()
                    .any(|other| same_index(&table, other, &target, index))
                {
                    let index = moved(index, &target, &table);
                    self.make(SchemaChange::CreateIndex {
                        table: table.id,
                        index,
                    })?;
                }
            }
        }
        Ok(())
    }
}

/// An index of `target` by the positions that `table` has: its columns may stand in another order.
fn moved(index: &Index, target: &Table, table: &Table) -> Index {
    let place = |at: &usize| {
        let attnum = target.columns[*at].attnum;
        table
            .columns
            .iter()
            .position(|column| column.attnum == attnum)
            .unwrap_or(*at)
    };
    Index {
        columns: index.columns.iter().map(place).collect(),
        ..index.clone()
    }
}

fn same_index(table: &Table, index: &Index, other_table: &Table, other: &Index) -> bool {
    let columns = |table: &Table, index: &Index| {
        index
            .columns
            .iter()
            .filter_map(|at| table.columns.get(*at))
            .map(|column| column.attnum)
            .collect::<Vec<_>>()
    };
    index.oid == other.oid && columns(table, index) == columns(other_table, other)
}
