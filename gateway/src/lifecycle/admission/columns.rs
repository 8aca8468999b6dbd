//! Columns whose mirrored values need a word of warning.

use super::Finding;
use crate::pg::catalog::{ColumnFacts, TableFacts};

/// First version that sends stored generated columns.
pub(super) const GENERATED_SINCE: u32 = 180_000;

/// The types whose text is the name of an object: regproc, regprocedure, regoper, regoperator, regclass, regtype,
/// regconfig, regdictionary, regnamespace, regrole, regcollation.
const NAMES_OF_OBJECTS: [u32; 11] = [
    24, 2202, 2203, 2204, 2205, 2206, 3734, 3769, 4089, 4096, 4191,
];

pub(super) fn check(version_num: u32, tables: &[&TableFacts]) -> Vec<Finding> {
    let found = tables
        .iter()
        .flat_map(|table| check_table(version_num, table));
    found.collect()
}

fn check_table(version_num: u32, table: &TableFacts) -> impl Iterator<Item = Finding> {
    let columns = table.relation.columns.iter();
    columns.filter_map(move |column| {
        let published = table.published.contains(&column.name);
        let mut found = generated(version_num, column, published)
            .or_else(|| (published && is_name(column)).then(|| name_of_object(column)))?;
        found.object = Some(table.relation.full_name());
        Some(found)
    })
}

/// A generated column that never comes. One that a column list leaves out on purpose is nobody's surprise.
fn generated(version_num: u32, column: &ColumnFacts, published: bool) -> Option<Finding> {
    let stored = column.generated == "s";
    let comes = stored && version_num >= GENERATED_SINCE && published;
    (!column.generated.is_empty() && !comes).then(|| {
        let seen = format!(
            "column {:?} is generated, and the publication does not send it",
            column.name
        );
        let why = "the mirror does not have it";
        let mend = match (stored, version_num >= GENERATED_SINCE) {
            (true, true) => "ALTER PUBLICATION … SET (publish_generated_columns = stored), or do without it",
            (true, false) => "upgrade to PostgreSQL 18, which can send stored generated columns, or do without it",
            (false, _) => "make it STORED, or compute it in the query of the mirror",
        };
        Finding::fatal("GeneratedColumn", seen, why, mend).warning()
    })
}

fn is_name(column: &ColumnFacts) -> bool {
    let element = column.element.map(|(oid, _)| oid.0);
    NAMES_OF_OBJECTS.contains(&element.unwrap_or(column.type_oid.0))
}

fn name_of_object(column: &ColumnFacts) -> Finding {
    let seen = format!("column {:?} is of type {}", column.name, column.type_name);
    let why = "its text is the name of an object of the source at the moment it is read; a rename there changes the \
               text without changing the row, and the mirror keeps the old one";
    let mend = "store the oid, or the name as text";
    Finding::fatal("NameOfObject", seen, why, mend).warning()
}
