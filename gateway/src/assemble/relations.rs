//! Which relation of the stream is which table of the mirror, and in which order its columns come.

use std::collections::{HashMap, HashSet};

use rindle_proto::ids::Oid;
use rindle_proto::schema::{Schema, Table, TableId};

use crate::halt::HaltReason;
use crate::pg::pgoutput::{Cell, Relation, RelationColumn, Tuple};

/// Partitions and their root, as the catalog knows them: rows of a leaf are the root's in the mirror.
#[derive(Clone, Debug, Default)]
pub struct LeafMap {
    roots: HashMap<Oid, Oid>,
}

impl LeafMap {
    /// A map of (leaf, root) pairs.
    pub fn new(pairs: impl IntoIterator<Item = (Oid, Oid)>) -> Self {
        Self {
            roots: pairs.into_iter().collect(),
        }
    }

    fn root_of(&self, rel: Oid) -> Oid {
        self.roots.get(&rel).copied().unwrap_or(rel)
    }

    fn leaves_of(&self, root: Oid) -> impl Iterator<Item = Oid> + '_ {
        self.roots
            .iter()
            .filter(move |(_, of)| **of == root)
            .map(|(leaf, _)| *leaf)
    }
}

/// The relations announced in this session.
#[derive(Debug)]
pub(super) struct Relations {
    leaves: LeafMap,
    known: HashMap<Oid, Option<Known>>,
}

/// One announced relation.
#[derive(Debug)]
pub(super) struct Known {
    table: TableId,
    /// For each column of the table its place in the tuples.
    places: Vec<usize>,
    in_order: bool,
}

impl Relations {
    pub(super) fn new(leaves: LeafMap) -> Self {
        Self {
            leaves,
            known: HashMap::new(),
        }
    }

    /// Rows of this relation are left out.
    pub(super) fn ignore(&mut self, rel: Oid) {
        self.known.insert(rel, None);
    }

    /// The table of a relation; `None` for one that is left out.
    pub(super) fn find<'a>(
        &'a self,
        rel: Oid,
        schema: &'a Schema,
    ) -> Result<Option<(&'a Known, &'a Table)>, HaltReason> {
        let stranger = || HaltReason::StreamDamaged {
            detail: format!("a row of relation {rel}, never announced"),
        };
        let Some(known) = self.known.get(&rel).ok_or_else(stranger)? else {
            return Ok(None);
        };
        let table = schema.table(known.table).ok_or_else(stranger)?;
        Ok(Some((known, table)))
    }

    /// Checks an announced shape against the schema that is believed, and remembers it.
    pub(super) fn check(&mut self, relation: &Relation, schema: &Schema) -> Result<(), HaltReason> {
        let root = self.leaves.root_of(relation.oid);
        let name = format!("{}.{}", relation.namespace, relation.name);
        let changed = |detail: String| HaltReason::SchemaChanged {
            table: name.clone(),
            detail,
        };
        let Some(table) = schema.tables.iter().find(|table| table.oid == root) else {
            return Err(changed(
                "it sends rows and is not part of this generation".to_owned(),
            ));
        };
        let is_root = relation.oid == table.oid;
        if is_root && (relation.namespace != table.schema || relation.name != table.name) {
            return Err(changed(format!(
                "it was {}.{} when the generation began",
                table.schema, table.name
            )));
        }
        if relation.columns.len() != table.columns.len() {
            let stranger = relation
                .columns
                .iter()
                .find(|it| !table.columns.iter().any(|c| c.name == it.name));
            let what =
                stranger.map_or_else(String::new, |it| format!(", {:?} among them", it.name));
            let (now, then) = (relation.columns.len(), table.columns.len());
            return Err(changed(format!(
                "it sends {now} columns{what}, the generation began with {then}"
            )));
        }
        let place_of = |at: usize| place(&relation.columns, table, at, is_root).map_err(&changed);
        let places: Vec<usize> = (0..table.columns.len())
            .map(place_of)
            .collect::<Result<_, _>>()?;
        if relation.replident == 'n' {
            return Err(changed("its replica identity is NOTHING".to_owned()));
        }
        if let Some(at) = table
            .key
            .iter()
            .find(|at| !relation.columns[places[**at]].is_key)
        {
            let column = &table.columns[*at].name;
            return Err(changed(format!(
                "its replica identity no longer covers the key column {column:?}"
            )));
        }
        let in_order = places.iter().enumerate().all(|(at, place)| at == *place);
        self.known.insert(
            relation.oid,
            Some(Known {
                table: table.id,
                places,
                in_order,
            }),
        );
        Ok(())
    }

    /// The tables that a truncate of `rels` empties.
    pub(super) fn truncated(
        &self,
        rels: &[Oid],
        schema: &Schema,
    ) -> Result<Vec<TableId>, HaltReason> {
        let named: HashSet<Oid> = rels.iter().copied().collect();
        let mut tables = Vec::new();
        for rel in rels {
            let Some((known, table)) = self.find(*rel, schema)? else {
                continue;
            };
            let whole = named.contains(&table.oid)
                || self
                    .leaves
                    .leaves_of(table.oid)
                    .all(|leaf| named.contains(&leaf));
            if !whole {
                let detail = "a partition was truncated, and which rows were in it is not known to the mirror".to_owned();
                return Err(HaltReason::SchemaChanged {
                    table: format!("{}.{}", table.schema, table.name),
                    detail,
                });
            }
            if !tables.contains(&known.table) {
                tables.push(known.table);
            }
        }
        Ok(tables)
    }
}

impl Known {
    /// True when the tuples hold the columns in the table's own order.
    pub(super) fn in_order(&self) -> bool {
        self.in_order
    }

    /// Place of a column in the tuples.
    pub(super) fn place(&self, at: usize) -> usize {
        self.places[at]
    }

    /// The cell of a column. For the few cells of a key: it walks the tuple.
    pub(super) fn cell<'a>(&self, tuple: Tuple<'a>, at: usize) -> Cell<'a> {
        tuple.iter().nth(self.places[at]).unwrap_or(Cell::Null)
    }

    /// True when a key cell of the new row was sent and is not the old one. A cell that was left out is the old.
    pub(super) fn key_differs(&self, table: &Table, old: Tuple<'_>, new: Tuple<'_>) -> bool {
        let differs = |at: &usize| match self.cell(new, *at) {
            Cell::Unchanged => false,
            cell => cell != self.cell(old, *at),
        };
        table.key.iter().any(differs)
    }

    /// A tuple has as many cells as its relation had columns when it was announced.
    pub(super) fn check_width(&self, table: &Table, tuple: Tuple<'_>) -> Result<(), HaltReason> {
        if tuple.len() == self.places.len() {
            return Ok(());
        }
        let (found, expected) = (tuple.len(), self.places.len());
        let detail = format!(
            "a row of {}.{} has {found} cells, {expected} were announced",
            table.schema, table.name
        );
        Err(HaltReason::StreamDamaged { detail })
    }
}

/// Where the tuples hold a column. A leaf may have other attribute numbers and orders; names and types agree.
fn place(
    columns: &[RelationColumn],
    table: &Table,
    at: usize,
    is_root: bool,
) -> Result<usize, String> {
    let wanted = &table.columns[at];
    let found = columns.iter().position(|column| column.name == wanted.name);
    let Some(place) = found else {
        return Err(format!(
            "column {:?} of the generation is no longer sent",
            wanted.name
        ));
    };
    let column = &columns[place];
    let same_type =
        column.type_oid == wanted.type_oid && (!is_root || column.typmod == wanted.typmod);
    match same_type {
        true => Ok(place),
        false => Err(format!(
            "column {:?} is no longer {}",
            wanted.name, wanted.type_name
        )),
    }
}
