//! What the mirror is, given the catalog. Pure.

use rindle_proto::ids::Oid;
use rindle_proto::schema::{Column, Index, Leaf, Schema, SchemaError, Table, TableId};

use super::{CatalogView, ColumnFacts, RelationFacts, TableFacts};
use crate::copy::CopyTable;

/// First version whose publications can send stored generated columns, and say so truly.
const GENERATED_SINCE: u32 = 180_000;

/// Why a table cannot be mirrored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// A condition of the source.
    #[error("table {table}: {why}")]
    Table {
        /// Name in Postgres.
        table: String,
        /// What is wrong and what to do.
        why: String,
    },
    /// SQLite could not hold it.
    #[error(transparent)]
    Schema(#[from] SchemaError),
}

impl CatalogView {
    /// The schema of a generation that begins now: tables numbered from 1 in the order of their oids.
    ///
    /// # Errors
    /// The first table that cannot be mirrored.
    pub fn schema(&self) -> Result<Schema, Unfit> {
        let numbered = self.tables.iter().zip(1..);
        let tables = numbered.map(|(table, id)| self.table(table, TableId(id)));
        Self::numbered(tables.collect::<Result<_, _>>()?)
    }

    /// The same, without tables that cannot be mirrored.
    ///
    /// # Errors
    /// When two of them cannot be mirrored together.
    pub fn schema_of_fit(&self) -> Result<Schema, Unfit> {
        let numbered = self.tables.iter().zip(1..);
        let tables = numbered.filter_map(|(table, id)| self.table(table, TableId(id)).ok());
        Self::numbered(tables.collect())
    }

    fn numbered(tables: Vec<Table>) -> Result<Schema, Unfit> {
        let mut schema = Schema { tables };
        let mut last = schema.highest_id().0;
        for leaf in schema.tables.iter_mut().flat_map(|table| &mut table.leaves) {
            last += 1;
            leaf.id = TableId(last);
        }
        schema.check()?;
        Ok(schema)
    }

    /// One table as it is mirrored. Its partitions get their numbers from the caller.
    ///
    /// # Errors
    /// When it cannot be mirrored.
    pub fn table(&self, facts: &TableFacts, id: TableId) -> Result<Table, Unfit> {
        let relation = &facts.relation;
        let unfit = |why: String| Unfit::Table {
            table: relation.full_name(),
            why,
        };
        let columns = self.mirrored(facts);
        let place = |attnum: i16| columns.iter().position(|column| column.attnum == attnum);
        let Some(row_key) = relation.row_key() else {
            return Err(unfit(
                "it has no row key: add a primary key, or a unique index over NOT NULL columns"
                    .to_owned(),
            ));
        };
        let key: Option<Vec<usize>> = row_key
            .columns
            .iter()
            .map(|attnum| place(*attnum))
            .collect();
        let Some(key) = key else {
            return Err(unfit(format!(
                "the publication leaves out a column of its row key {:?}",
                row_key.name
            )));
        };
        let names: Vec<&str> = key.iter().map(|at| &*columns[*at].name).collect();
        let physical = facts
            .leaves
            .iter()
            .chain((relation.kind != 'p').then_some(relation));
        for rel in physical {
            check_relation(rel, &names, &facts.published)?;
        }
        let carried = relation.indexes.iter().filter(|index| {
            index.valid
                && index.plain
                && index.method == "btree"
                && index.columns != row_key.columns
        });
        let indexes = carried.filter_map(|index| {
            let columns: Option<Vec<usize>> = index.columns.iter().map(|it| place(*it)).collect();
            Some(Index {
                oid: index.oid,
                name: index.name.clone(),
                columns: columns?,
            })
        });
        Ok(Table {
            id,
            oid: relation.oid,
            schema: relation.schema.clone(),
            name: relation.name.clone(),
            indexes: indexes.collect(),
            columns: columns.into_iter().map(column).collect(),
            key,
            leaves: self.leaves(facts),
            waiting: None,
        })
    }

    /// The columns that the stream carries. Up to 17 the catalog also lists generated ones, which never come;
    /// from 18 on it lists stored ones only when they are sent.
    fn mirrored<'a>(&self, table: &'a TableFacts) -> Vec<&'a ColumnFacts> {
        let sends_stored = self.server.version_num >= GENERATED_SINCE;
        let sent = |column: &&ColumnFacts| {
            let generated = column.generated.is_empty() || column.generated == "s" && sends_stored;
            generated && table.published.contains(&column.name)
        };
        table.relation.columns.iter().filter(sent).collect()
    }

    /// Partitions whose rows are told apart: sent under their own name.
    fn leaves(&self, facts: &TableFacts) -> Vec<Leaf> {
        let own = facts.relation.kind == 'p' && !self.publication.via_root;
        let leaves = facts.leaves.iter().filter(|_| own);
        leaves
            .map(|leaf| Leaf {
                id: TableId(0),
                oid: leaf.oid,
                waiting: false,
            })
            .collect()
    }

    /// Each leaf with the table of the mirror that holds its rows.
    pub fn leaf_pairs(&self) -> Vec<(Oid, Oid)> {
        let pairs = |table: &TableFacts| {
            let root = table.relation.oid;
            table
                .leaves
                .iter()
                .map(move |leaf| (leaf.oid, root))
                .collect::<Vec<_>>()
        };
        self.tables.iter().flat_map(pairs).collect()
    }

    /// The physical tables to copy for `schema`, which [`CatalogView::schema`] gave.
    pub fn copy_plan(&self, schema: &Schema) -> Vec<CopyTable> {
        let tables = schema.tables.iter();
        tables.flat_map(|table| self.copy_plan_of(table)).collect()
    }

    /// The physical tables that hold the rows of one table.
    pub fn copy_plan_of(&self, table: &Table) -> Vec<CopyTable> {
        let facts = self
            .tables
            .iter()
            .find(|facts| facts.relation.oid == table.oid);
        let target = |oid: Oid| {
            let leaf = table.leaves.iter().find(|leaf| leaf.oid == oid);
            leaf.map_or(table.id, |leaf| leaf.id)
        };
        // A filter of the root holds for its leaves.
        let members = &self.publication.tables;
        let has_filter = |oid: Oid| {
            members
                .iter()
                .any(|it| it.oid == oid && it.filter.is_some())
        };
        let filtered_as = |oid: Oid| {
            if has_filter(table.oid) {
                table.oid
            } else {
                oid
            }
        };
        let physical = facts.into_iter().flat_map(|facts| {
            let own = (facts.relation.kind != 'p').then_some(&facts.relation);
            facts.leaves.iter().chain(own)
        });
        let read = |rel: &RelationFacts| CopyTable {
            table: table.clone(),
            target: target(rel.oid),
            rel: rel.oid,
            quoted_name: rel.quoted_name(),
            filtered_as: rel.row_filter.as_ref().map(|_| filtered_as(rel.oid)),
            filter: None,
            pages: u64::try_from(rel.pages).unwrap_or(0),
        };
        physical.map(read).collect()
    }

    /// Names what is not as it was and no table lock keeps: tables, leaves, enum labels, attributes of
    /// composites. A copy between the two readings may be wrong then.
    pub fn copy_facts_differ(&self, later: &CatalogView) -> Option<String> {
        let tables = |view: &CatalogView| {
            let own = view
                .tables
                .iter()
                .map(|table| (table.relation.oid, table.relation.oid));
            own.chain(view.leaf_pairs())
                .collect::<std::collections::BTreeSet<_>>()
        };
        if tables(self) != tables(later) {
            return Some("the set of published tables and partitions".to_owned());
        }
        let changed = self
            .types
            .iter()
            .find(|(name, shape)| later.types.get(*name) != Some(*shape));
        let fresh = later
            .types
            .keys()
            .find(|name| !self.types.contains_key(*name));
        changed
            .map(|(name, _)| name)
            .or(fresh)
            .map(|name| format!("type {name}"))
    }
}

/// What must hold for every relation that holds rows, leaf or not.
fn check_relation(rel: &RelationFacts, key: &[&str], published: &[String]) -> Result<(), Unfit> {
    let unfit = |why: String| {
        Err(Unfit::Table {
            table: rel.full_name(),
            why,
        })
    };
    if rel.kind != 'r' {
        return unfit("it is no ordinary table: take it out of the publication".to_owned());
    }
    if rel.persistence != 'p' {
        return unfit(
            "it is unlogged, so its changes are not in the stream: ALTER TABLE … SET LOGGED"
                .to_owned(),
        );
    }
    for name in key {
        match rel.column(name) {
            Some(column) if !column.generated.is_empty() => {
                return unfit(format!("column {name:?} of its row key is generated"));
            }
            Some(column) if rel.identifies(column.attnum) => {}
            _ => {
                return unfit(format!(
                    "its replica identity does not hold column {name:?} of the row key: \
                     ALTER TABLE … REPLICA IDENTITY DEFAULT, USING INDEX or FULL"
                ));
            }
        }
    }
    // A row that an update moves into the filter comes as an insert without its untouched large values.
    let lost = |column: &&ColumnFacts| {
        column.toastable && published.contains(&column.name) && !rel.identifies(column.attnum)
    };
    match rel.columns.iter().find(lost) {
        Some(column) if rel.row_filter.is_some() => unfit(format!(
            "it has a row filter, and column {:?} can be stored out of line: ALTER TABLE … REPLICA IDENTITY FULL",
            column.name
        )),
        _ => Ok(()),
    }
}

fn column(facts: &ColumnFacts) -> Column {
    Column {
        attnum: facts.attnum,
        name: facts.name.clone(),
        type_name: facts.type_name.clone(),
        type_oid: facts.type_oid,
        typmod: facts.typmod,
        kind: facts.kind(),
        not_null: facts.not_null,
    }
}
