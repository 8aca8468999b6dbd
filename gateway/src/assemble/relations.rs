//! Which relation of the stream is which table of the mirror, and in which order its columns come.
//!
//! What the walsender announced is kept; what it comes to is worked out when the first row comes, anew after each
//! change of what is believed.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use rindle_proto::ids::Oid;
use rindle_proto::schema::{Table, TableId};

use crate::ddl::Believed;
use crate::halt::HaltReason;
use crate::pg::catalog::Facts;
use crate::pg::pgoutput::{Cell, Relation, RelationColumn, Tuple};

/// Schema of our own tables, whose rows ride along under FOR ALL TABLES and are not for the mirror.
const OURS: &str = "rindle";

/// The relations announced in this session.
#[derive(Debug, Default)]
pub(super) struct Relations {
    announced: HashMap<Oid, Relation>,
    known: HashMap<Oid, Rows>,
}

/// What becomes of a relation's rows.
#[derive(Debug)]
pub(super) enum Rows {
    /// They are left out.
    Ignored,
    /// Nothing has said yet what they are.
    Strange,
    /// They go to these: a shown table, a waiting one, or both.
    Go(Vec<Known>),
}

/// One announced relation as one table of the mirror.
#[derive(Debug)]
pub(super) struct Known {
    /// The table.
    pub(super) table: TableId,
    /// The table, or the partition of it, that the rows are of.
    pub(super) target: TableId,
    /// For each column of the table its place in the tuples; none for a waiting table of another shape.
    places: Option<Vec<usize>>,
    in_order: bool,
    /// Text of its values depends on names that a type gives.
    pub(super) has_labels: bool,
    /// Cells of a tuple.
    width: usize,
}

impl Relations {
    /// Remembers the shape of a relation. Its name is looked at now only: a schema that is renamed is not announced again.
    pub(super) fn learn(
        &mut self,
        relation: Relation,
        believed: &Believed,
    ) -> Result<(), HaltReason> {
        let is_it = |table: &&Table| table.oid == relation.oid && table.waiting.is_none();
        let shown = believed.schema.tables.iter().find(is_it);
        // A schema is renamed while others write to its tables: both names come, and the audit knows better.
        let named = |table: &&Table| table.name != relation.name;
        if let Some(table) = shown.filter(named) {
            return Err(HaltReason::SchemaChanged {
                table: format!("{}.{}", relation.namespace, relation.name),
                detail: format!(
                    "it was {}.{}, and nothing announced another name",
                    table.schema, table.name
                ),
            });
        }
        self.known.remove(&relation.oid);
        self.announced.insert(relation.oid, relation);
        Ok(())
    }

    /// Schema and name that the stream gave a relation.
    pub(super) fn name(&self, rel: Oid) -> (String, String) {
        let relation = self.announced.get(&rel);
        relation.map_or_else(Default::default, |it| {
            (it.namespace.clone(), it.name.clone())
        })
    }

    /// Something else is believed.
    pub(super) fn forget(&mut self) {
        self.known.clear();
    }

    /// Where the rows of a relation go.
    pub(super) fn find(&mut self, rel: Oid, believed: &Believed) -> Result<&Rows, HaltReason> {
        match self.known.entry(rel) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(place) => {
                let relation = self.announced.get(&rel);
                let relation = relation.ok_or_else(|| HaltReason::StreamDamaged {
                    detail: format!("a row of relation {rel}, never announced"),
                })?;
                Ok(place.insert(resolve(relation, believed)?))
            }
        }
    }
}

fn resolve(relation: &Relation, believed: &Believed) -> Result<Rows, HaltReason> {
    if relation.namespace == OURS {
        return Ok(Rows::Ignored);
    }
    let Some(top) = believed.facts.top(relation.oid) else {
        // Transactions from before it left may still bring its rows.
        return Ok(match believed.was_mirrored(relation.oid) {
            true => Rows::Ignored,
            false => Rows::Strange,
        });
    };
    let tables: Vec<&Table> = believed
        .schema
        .tables
        .iter()
        .filter(|table| table.oid == top)
        .collect();
    let follows = |table: &&&Table| {
        let successor = believed
            .schema
            .successor(table.id)
            .and_then(|it| it.waiting);
        successor.is_none_or(|waiting| waiting.live)
    };
    let known = tables
        .iter()
        .filter(follows)
        .map(|table| known(relation, table, &believed.facts, tables.len() > 1));
    let known = known.collect::<Result<Vec<_>, _>>()?;
    // A table without a row key is published and not mirrored.
    Ok(match known.is_empty() {
        true => Rows::Ignored,
        false => Rows::Go(known),
    })
}

/// A relation as one table. `replaced` when the table is one of two: then columns may come that it does not have yet.
fn known(
    relation: &Relation,
    table: &Table,
    facts: &Facts,
    replaced: bool,
) -> Result<Known, HaltReason> {
    let leaf = table.leaves.iter().find(|leaf| leaf.oid == relation.oid);
    let waits = table.waiting.is_some() || leaf.is_some_and(|leaf| leaf.waiting);
    let target = leaf.map_or(table.id, |leaf| leaf.id);
    let more = replaced && table.waiting.is_none();
    let width = relation.columns.len();
    let passed_over = Known {
        table: table.id,
        target,
        places: None,
        in_order: false,
        has_labels: has_labels(relation.oid, facts),
        width,
    };
    match places(relation, table, facts, more) {
        Ok(places) => {
            let in_order =
                places.len() == width && places.iter().enumerate().all(|(at, place)| at == *place);
            Ok(Known {
                places: Some(places),
                in_order,
                ..passed_over
            })
        }
        // Its rows come with a copy whose snapshot is above this transaction, or the copy is void.
        Err(_) if waits => Ok(passed_over),
        Err(detail) => Err(HaltReason::SchemaChanged {
            table: format!("{}.{}", relation.namespace, relation.name),
            detail,
        }),
    }
}

/// True when a column is of an enum, or of something that holds one.
fn has_labels(oid: Oid, facts: &Facts) -> bool {
    let used = facts.used_types(facts.relations.get(&oid));
    let is_enum = |oid: &Oid| facts.types.get(oid).is_some_and(|it| it.typtype == 'e');
    used.iter().any(is_enum)
}

/// Checks an announced shape against the table that is believed.
fn places(
    relation: &Relation,
    table: &Table,
    facts: &Facts,
    more: bool,
) -> Result<Vec<usize>, String> {
    let is_root = relation.oid == table.oid;
    let splits = !facts.publication.via_root;
    if !is_root && splits && !table.leaves.iter().any(|leaf| leaf.oid == relation.oid) {
        return Err("it sends rows as a partition that nothing announced".to_owned());
    }
    if relation.columns.len() != table.columns.len() && !more {
        let stranger = relation
            .columns
            .iter()
            .find(|it| !table.columns.iter().any(|c| c.name == it.name));
        let what = stranger.map_or_else(String::new, |it| format!(", {:?} among them", it.name));
        let (now, then) = (relation.columns.len(), table.columns.len());
        return Err(format!("it sends {now} columns{what}, {then} are known"));
    }
    let places: Vec<usize> = (0..table.columns.len())
        .map(|at| place(&relation.columns, table, at, is_root))
        .collect::<Result<_, _>>()?;
    if relation.replident == 'n' {
        return Err("its replica identity is NOTHING".to_owned());
    }
    if let Some(at) = table
        .key
        .iter()
        .find(|at| !relation.columns[places[**at]].is_key)
    {
        let column = &table.columns[*at].name;
        return Err(format!(
            "its replica identity no longer covers the key column {column:?}"
        ));
    }
    Ok(places)
}

impl Known {
    /// Its rows have another shape: a copy brings them.
    pub(super) fn passes_over(&self) -> bool {
        self.places.is_none()
    }

    /// True when the tuples hold the columns in the table's own order.
    pub(super) fn in_order(&self) -> bool {
        self.in_order
    }

    /// Place of a column in the tuples.
    pub(super) fn place(&self, at: usize) -> usize {
        self.places.as_ref().map_or(at, |places| places[at])
    }

    /// The cell of a column. For the few cells of a key: it walks the tuple.
    pub(super) fn cell<'a>(&self, tuple: Tuple<'a>, at: usize) -> Cell<'a> {
        tuple.iter().nth(self.place(at)).unwrap_or(Cell::Null)
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
        if tuple.len() == self.width {
            return Ok(());
        }
        let (found, expected) = (tuple.len(), self.width);
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
        return Err(format!("column {:?} is no longer sent", wanted.name));
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
