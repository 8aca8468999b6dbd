//! What a column's change does to the values that are stored already.

use rindle_proto::change::StoredValue;
use rindle_proto::ids::Oid;
use rindle_proto::pgtype::convert;
use rindle_proto::schema::{Column, Table};
use rindle_proto::value::ValueRef;

use crate::pg::catalog::TableFacts;

const TEXT: Oid = Oid(25);
const VARCHAR: Oid = Oid(1043);

/// True when Postgres prints every stored value as before, given that it rewrote nothing: another modifier of the same
/// type, or `varchar` and `text`. Any other pair of types may print otherwise (a zone, padding, a domain's kind).
pub(super) fn prints_the_same(old: &Column, new: &Column) -> bool {
    let texts = [TEXT, VARCHAR];
    let types = old.type_oid == new.type_oid
        || texts.contains(&old.type_oid) && texts.contains(&new.type_oid);
    old.kind == new.kind && types
}

/// Numbers of the key's columns.
pub(super) fn key_of(table: &Table) -> Vec<i16> {
    table
        .key
        .iter()
        .map(|at| table.columns[*at].attnum)
        .collect()
}

/// `table` without some columns: indexes and key keep what they can.
pub(super) fn without(table: &Table, hidden: &dyn Fn(i16) -> bool) -> Table {
    let kept: Vec<usize> = (0..table.columns.len())
        .filter(|at| !hidden(table.columns[*at].attnum))
        .collect();
    let place = |at: &usize| kept.iter().position(|kept| kept == at);
    let moved = |list: &[usize]| list.iter().map(place).collect::<Option<Vec<usize>>>();
    let indexes = table.indexes.iter().filter_map(|index| {
        let columns = moved(&index.columns)?;
        Some(rindle_proto::schema::Index {
            columns,
            ..index.clone()
        })
    });
    Table {
        columns: kept.iter().map(|at| table.columns[*at].clone()).collect(),
        key: moved(&table.key).unwrap_or_default(),
        indexes: indexes.collect(),
        ..table.clone()
    }
}

/// The value that every existing row has in a column that was added without a rewrite. None when the partitions do not
/// agree, or the value does not fit its type: then the rows are copied.
pub(super) fn stored_value(facts: &TableFacts, column: &Column) -> Option<StoredValue> {
    let holds_rows = (facts.relation.kind != 'p').then_some(&facts.relation);
    let mut texts = facts.leaves.iter().chain(holds_rows).map(|relation| {
        let found = relation.column(&column.name);
        found.and_then(|column| column.missing.clone())
    });
    let first = texts.next().flatten();
    if !texts.all(|other| other == first) {
        return None;
    }
    let Some(text) = first else {
        return Some(StoredValue::Null);
    };
    let mut scratch = String::new();
    Some(match convert(column.kind, &text, &mut scratch).ok()? {
        ValueRef::Null | ValueRef::Unchanged => StoredValue::Null,
        ValueRef::Int(number) => StoredValue::Int(number),
        ValueRef::Real(number) => StoredValue::RealBits(number.to_bits()),
        ValueRef::Text(text) => StoredValue::Text(text.to_owned()),
    })
}
