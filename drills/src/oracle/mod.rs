//! The oracle of all drills: the rows of a publication, read from Postgres as text under pinned settings, against the
//! rows of a mirror, value by value and with their storage class. It uses no crate of the project.
//!
//! The source must be quiet, and the mirror level with it, when it is asked ([`crate::cluster`] sees to both).

pub mod array;
pub mod json;
pub mod mirror;
pub mod source;
pub mod types;

use std::{
    collections::{BTreeMap, btree_map::Entry},
    fmt,
    path::Path,
};

use anyhow::{Result, bail};

use self::{mirror::Mirror, source::Table, types::Cell};
use crate::postgres::Session;

/// More differences than this are counted, not told.
const TOLD: usize = 20;

/// What a comparison looked at and what it found.
#[derive(Debug, Default)]
pub struct Report {
    pub tables: usize,
    pub rows: usize,
    pub cells: usize,
    pub differences: usize,
    /// The first differences in words.
    pub told: Vec<String>,
}

impl Report {
    fn differs(&mut self, what: impl FnOnce() -> String) {
        self.differences += 1;
        if self.told.len() < TOLD {
            self.told.push(what());
        }
    }

    pub fn must_be_equal(self) -> Result<Self> {
        if self.differences > 0 {
            bail!("the mirror differs from the source: {self}");
        }
        Ok(self)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            tables,
            rows,
            cells,
            differences,
            told,
        } = self;
        write!(
            f,
            "{tables} tables, {rows} rows, {cells} values, {differences} differences"
        )?;
        for line in told {
            write!(f, "\n  {line}")?;
        }
        Ok(())
    }
}

/// Compares every table of a publication with the mirror, both at one moment.
pub async fn compare(session: &Session, publication: &str, mirror: &Path) -> Result<Report> {
    session
        .run("begin isolation level repeatable read read only")
        .await?;
    let tables = source::tables(session, publication).await?;
    let mut expected = Vec::new();
    for table in &tables {
        expected.push(expected_rows(session, table).await?);
    }
    session.run("commit").await?;

    let mirror = Mirror::open(mirror)?;
    let mut report = Report::default();
    let present = mirror.tables()?;
    for name in &present {
        if !tables.iter().any(|table| table.mirror_name == *name) {
            report.differs(|| format!("{name}: a table that is not published"));
        }
    }
    for (table, rows) in tables.iter().zip(expected) {
        report.tables += 1;
        if !present.contains(&table.mirror_name) {
            report.differs(|| format!("{}: no such table in the mirror", table.mirror_name));
        } else if compare_columns(&mirror, table, &mut report)? {
            compare_rows(&mirror, table, rows, &mut report)?;
        }
    }
    Ok(report)
}

/// Writes what a mirror of the publication must hold, by this type table, into a new SQLite file.
pub async fn write_model(session: &Session, publication: &str, file: &Path) -> Result<()> {
    let mut tables = Vec::new();
    for table in source::tables(session, publication).await? {
        let rows = expected_rows(session, &table).await?;
        tables.push((table, rows));
    }
    mirror::write_model(file, &tables)
}

type Rows = BTreeMap<String, Vec<Cell>>;

async fn expected_rows(session: &Session, table: &Table) -> Result<Rows> {
    let mut rows = Rows::new();
    for read in &table.reads {
        for row in session.rows(read).await? {
            let mut cells = Vec::with_capacity(table.columns.len());
            for (i, column) in table.columns.iter().enumerate() {
                cells.push(types::expected(&column.rule, row.get(i))?);
            }
            insert_row(&mut rows, table, cells);
        }
    }
    Ok(rows)
}

/// A row that is there already gets a number: equal rows of a table without a key are counted that way, and a key that
/// the mirror holds twice shows as a row too many.
fn insert_row(rows: &mut Rows, table: &Table, cells: Vec<Cell>) {
    let key = key_of(table, &cells);
    let mut nth = 0;
    loop {
        let key = if nth == 0 {
            key.clone()
        } else {
            format!("{key} (number {nth})")
        };
        if let Entry::Vacant(free) = rows.entry(key) {
            free.insert(cells);
            return;
        }
        nth += 1;
    }
}

fn key_of(table: &Table, cells: &[Cell]) -> String {
    let parts: Vec<String> = table.key.iter().map(|i| cells[*i].key_text()).collect();
    parts.join(" | ")
}

/// Names, declared types and the sidecar; false when the rows cannot be read by name.
fn compare_columns(mirror: &Mirror, table: &Table, report: &mut Report) -> Result<bool> {
    let name = &table.mirror_name;
    let present = mirror.columns(name)?;
    let mut readable = true;
    for column in &table.columns {
        if !present.iter().any(|(there, _)| *there == column.name) {
            report.differs(|| format!("{name}.{}: no such column in the mirror", column.name));
            readable = false;
        }
    }
    for (column, declared) in &present {
        if !table.columns.iter().any(|c| c.name == *column) {
            report.differs(|| format!("{name}.{column}: a column that is not published"));
        }
        if !mirror::is_declared_well(declared) {
            report.differs(|| format!("{name}.{column}: declared as {declared:?}"));
        }
    }
    let oids = mirror.type_oids(name)?;
    for column in &table.columns {
        let told = oids.get(&column.name).copied();
        if told != Some(column.type_oid) {
            report.differs(|| {
                let name = format!("{name}.{}", column.name);
                format!(
                    "{name}: the sidecar says type {told:?}, Postgres {}",
                    column.type_oid
                )
            });
        }
    }
    Ok(readable)
}

fn compare_rows(
    mirror: &Mirror,
    table: &Table,
    mut expected: Rows,
    report: &mut Report,
) -> Result<()> {
    let name = &table.mirror_name;
    let mut found = Rows::new();
    mirror.rows(table, |cells| insert_row(&mut found, table, cells))?;
    for (key, cells) in found {
        report.rows += 1;
        report.cells += cells.len();
        let Some(wanted) = expected.remove(&key) else {
            report.differs(|| format!("{name} [{key}]: a row that the source does not have"));
            continue;
        };
        for ((column, wanted), cell) in table.columns.iter().zip(&wanted).zip(&cells) {
            if wanted != cell {
                report.differs(|| {
                    let (wanted, cell) = (shown(wanted), shown(cell));
                    format!(
                        "{name} [{key}].{}: {wanted} in Postgres, {cell} in the mirror",
                        column.name
                    )
                });
            }
        }
    }
    for key in expected.keys() {
        report.differs(|| format!("{name} [{key}]: a row that the mirror lacks"));
    }
    Ok(())
}

fn shown(cell: &Cell) -> String {
    let text = format!("{cell:?}");
    if text.chars().count() <= 200 {
        return text;
    }
    let head: String = text.chars().take(200).collect();
    format!("{head}… ({} bytes)", text.len())
}
