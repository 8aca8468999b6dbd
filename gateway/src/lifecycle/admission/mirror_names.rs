//! Names that a SQLite file cannot hold side by side, or not at all.

use std::collections::BTreeMap;

use rindle_proto::row::MAX_CELLS;

use super::Finding;
use super::columns::GENERATED_SINCE;
use crate::pg::catalog::TableFacts;

/// The table that a publication may carry although its name is ours.
const CLIENT_MUTATIONS: &str = "_rindle_client_mutations";

const WHY_CASE: &str = "SQLite does not tell names apart that differ in case only";

/// Checks the names of all tables and their columns.
pub(super) fn check(version_num: u32, tables: &[&TableFacts]) -> Vec<Finding> {
    let names = tables
        .iter()
        .map(|table| (mirror_name(table), table.relation.full_name()));
    let mut findings: Vec<Finding> = collisions(names)
        .map(|(_, tables)| {
            let seen = format!("tables {} have one name in a mirror", quoted(&tables));
            let mend = "rename one of them, or take it out of the publication";
            Finding::fatal("TableNamesCollide", seen, WHY_CASE, mend).about(tables.join(", "))
        })
        .collect();
    for table in tables {
        let name = table.relation.full_name();
        findings.extend(
            check_table(version_num, table)
                .into_iter()
                .map(|found| found.about(&*name)),
        );
    }
    findings
}

fn check_table(version_num: u32, table: &TableFacts) -> Vec<Finding> {
    let mut findings = Vec::new();
    let lower = mirror_name(table).to_ascii_lowercase();
    let ours = lower.starts_with("_rindle_") && lower != CLIENT_MUTATIONS;
    if ours || lower.starts_with("sqlite_") {
        let seen = format!("its name in a mirror would be {lower:?}");
        let why = "names that start with sqlite_ belong to SQLite, those that start with _rindle_ to the mirror";
        let mend = "rename the table, or take it out of the publication";
        findings.push(Finding::fatal("ReservedName", seen, why, mend));
    }
    let sends_stored = version_num >= GENERATED_SINCE;
    let columns = table.relation.columns.iter().filter(|column| {
        let sent = column.generated.is_empty() || column.generated == "s" && sends_stored;
        sent && table.published.contains(&column.name)
    });
    let columns: Vec<&String> = columns.map(|column| &column.name).collect();
    if columns.len() > MAX_CELLS {
        let seen = format!("{} columns are published", columns.len());
        let why = "a row of a mirror has at most 1664 columns";
        let mend = "publish fewer columns with a column list";
        findings.push(Finding::fatal("TooManyColumns", seen, why, mend));
    }
    let pairs = columns
        .iter()
        .map(|name| ((*name).clone(), (*name).clone()));
    findings.extend(collisions(pairs).map(|(_, columns)| {
        let seen = format!("columns {} have one name in a mirror", quoted(&columns));
        let mend = "rename all but one of them, or publish only one with a column list";
        Finding::fatal("ColumnNamesCollide", seen, WHY_CASE, mend)
    }));
    findings
}

fn mirror_name(table: &TableFacts) -> String {
    match table.relation.schema.as_str() {
        "public" => table.relation.name.clone(),
        schema => format!("{schema}.{}", table.relation.name),
    }
}

/// Objects whose names are one name once ASCII letters lose their case, as SQLite compares them.
fn collisions(
    names: impl Iterator<Item = (String, String)>,
) -> impl Iterator<Item = (String, Vec<String>)> {
    let mut groups: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, object) in names {
        groups
            .entry(name.to_ascii_lowercase())
            .or_default()
            .push(object);
    }
    groups.into_iter().filter(|(_, objects)| objects.len() > 1)
}

fn quoted(names: &[String]) -> String {
    names
        .iter()
        .map(|name| format!("{name:?}"))
        .collect::<Vec<_>>()
        .join(", ")
}
