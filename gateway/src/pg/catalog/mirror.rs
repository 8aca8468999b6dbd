//! What the mirror is, given the catalog. Pure.

use rindle_proto::body::CopySource;
use rindle_proto::ids::Oid;
use rindle_proto::schema::{Column, Index, Schema, SchemaError, Table, TableId};

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
        let schema = Schema {
            tables: tables.collect::<Result<_, _>>()?,
        };
        schema.check()?;
        Ok(schema)
    }

    /// One table as it is mirrored.
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

    /// What is not as `believed`, if anything is: the table and the difference. Indexes and NOT NULL do not
    /// count, nor does a table without a row key, since it is not mirrored.
    pub fn difference(&self, believed: &Schema) -> Option<(String, String)> {
        for old in &believed.tables {
            let name = format!("{}.{}", old.schema, old.name);
            let Some(facts) = self
                .tables
                .iter()
                .find(|table| table.relation.oid == old.oid)
            else {
                return Some((name, "it is no longer published".to_owned()));
            };
            match self.table(facts, old.id) {
                Err(unfit) => return Some((name, unfit.to_string())),
                Ok(new) => {
                    if let Some(detail) = changed(old, &new) {
                        return Some((name, detail));
                    }
                }
            }
        }
        let known = |table: &TableFacts| {
            believed
                .tables
                .iter()
                .any(|it| it.oid == table.relation.oid)
        };
        let mut others = self.tables.iter().filter(|table| !known(table));
        let added = others.find(|table| table.relation.row_key().is_some())?;
        Some((
            added.relation.full_name(),
            "it is published and not part of this generation".to_owned(),
        ))
    }

    /// The physical tables that hold the rows of `schema`, and the filters they are sent with.
    pub fn sources(&self, schema: &Schema) -> Vec<CopySource> {
        let source = |table: CopyTable| CopySource {
            rel: table.rel,
            table: table.table.id,
            row_filter: table.filter,
        };
        let mut sources: Vec<CopySource> = self.copy_plan(schema).into_iter().map(source).collect();
        sources.sort_by_key(|source| source.rel);
        sources
    }

    /// What the publication sends otherwise than when the copy began, if anything: a partition attached or detached,
    /// a row filter, a kind of change. No row of the stream shows these.
    pub fn sources_differ(
        &self,
        schema: &Schema,
        began: &[CopySource],
    ) -> Option<(String, String)> {
        let publication = &self.publication;
        let sent = [
            publication.insert,
            publication.update,
            publication.delete,
            publication.truncate,
        ];
        if sent != [true; 4] {
            let why = "it no longer publishes insert, update, delete and truncate".to_owned();
            return Some((format!("publication {:?}", publication.name), why));
        }
        let now = self.sources(schema);
        let only_in = |these: &[CopySource], those: &[CopySource]| {
            these
                .iter()
                .find(|source| !those.contains(source))
                .map(|source| source.table)
        };
        let table = only_in(began, &now).or_else(|| only_in(&now, began))?;
        let name = schema
            .table(table)
            .map_or_else(String::new, |it| format!("{}.{}", it.schema, it.name));
        Some((
            name,
            "its partitions or its row filter are others than when the generation began".to_owned(),
        ))
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
        let mut plan = Vec::new();
        for facts in &self.tables {
            let Some(table) = schema
                .tables
                .iter()
                .find(|table| table.oid == facts.relation.oid)
            else {
                continue;
            };
            let own = (facts.relation.kind != 'p').then_some(&facts.relation);
            plan.extend(facts.leaves.iter().chain(own).map(|rel| CopyTable {
                table: table.clone(),
                rel: rel.oid,
                quoted_name: rel.quoted_name(),
                filter: rel.row_filter.clone(),
                pages: u64::try_from(rel.pages).unwrap_or(0),
            }));
        }
        plan
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

fn changed(old: &Table, new: &Table) -> Option<String> {
    if (&old.schema, &old.name) != (&new.schema, &new.name) {
        return Some(format!("it is called {}.{} now", new.schema, new.name));
    }
    for column in &old.columns {
        let Some(now) = new.columns.iter().find(|now| now.attnum == column.attnum) else {
            return Some(format!("column {:?} is gone", column.name));
        };
        if now.name != column.name {
            return Some(format!(
                "column {:?} is called {:?} now",
                column.name, now.name
            ));
        }
        if (now.type_oid, now.typmod, now.kind) != (column.type_oid, column.typmod, column.kind) {
            let (was, is) = (&column.type_name, &now.type_name);
            return Some(format!(
                "column {:?} was {was} and is {is} now",
                column.name
            ));
        }
    }
    let known = |column: &&Column| !old.columns.iter().any(|old| old.attnum == column.attnum);
    if let Some(column) = new.columns.iter().find(known) {
        return Some(format!("column {:?} is new", column.name));
    }
    (old.key != new.key).then(|| "its row key is another one".to_owned())
}
