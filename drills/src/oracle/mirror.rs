//! What SQLite holds: opened read-only by stock SQLite calls, read in one transaction.

use std::{collections::BTreeMap, path::Path, time::Duration};

use anyhow::{Context, Result};
use rusqlite::{Connection, OpenFlags, types::Value};

use super::{
    source::Table,
    types::{self, Cell},
};

/// The declared types that keep SQLite's hands off the values.
const DECLARED: [&str; 4] = ["BOOLEAN", "BIGINT", "REAL", "TEXT"];

/// A mirror file, held at one commit from the first read on.
#[derive(Debug)]
pub struct Mirror {
    sqlite: Connection,
}

impl Mirror {
    pub fn open(file: &Path) -> Result<Self> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let sqlite = Connection::open_with_flags(file, flags)
            .with_context(|| format!("open the mirror {}", file.display()))?;
        sqlite.busy_timeout(Duration::from_secs(10))?;
        sqlite.execute_batch("begin")?;
        Ok(Self { sqlite })
    }

    /// Names of the tables that a user sees.
    pub fn tables(&self) -> Result<Vec<String>> {
        let mut names = self.sqlite.prepare(
            "select name from sqlite_schema where type = 'table'
             and (substr(name, 1, 8) <> '_rindle_' or name = '_rindle_client_mutations') and substr(name, 1, 7) <> 'sqlite_' order by name",
        )?;
        let names = names.query_map([], |row| row.get(0))?;
        Ok(names.collect::<Result<_, _>>()?)
    }

    /// Name and declared type of each column.
    pub fn columns(&self, table: &str) -> Result<Vec<(String, String)>> {
        let mut columns = self
            .sqlite
            .prepare("select name, type from pragma_table_xinfo(?1)")?;
        let columns = columns.query_map([table], |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok(columns.collect::<Result<_, _>>()?)
    }

    pub fn has_column(&self, table: &str, column: &str) -> Result<bool> {
        Ok(self.columns(table)?.iter().any(|(name, _)| name == column))
    }

    /// The sidecar's word on the Postgres type of each column of a table.
    pub fn type_oids(&self, table: &str) -> Result<BTreeMap<String, i64>> {
        let mut oids = self.sqlite.prepare(
            "select column_name, pg_type_oid from _rindle_columns where table_name = ?1",
        )?;
        let oids = oids.query_map([table], |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok(oids.collect::<Result<_, _>>()?)
    }

    /// Hands every row of a table to `each`, its cells in the order of the table's columns.
    pub fn rows(&self, table: &Table, mut each: impl FnMut(Vec<Cell>)) -> Result<()> {
        let names: Vec<String> = table.columns.iter().map(|c| quote(&c.name)).collect();
        let sql = format!(
            "select {} from {}",
            names.join(", "),
            quote(&table.mirror_name)
        );
        let mut statement = self.sqlite.prepare(&sql)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let mut cells = Vec::with_capacity(table.columns.len());
            for (i, column) in table.columns.iter().enumerate() {
                cells.push(types::found(&column.rule, row.get_ref(i)?));
            }
            each(cells);
        }
        Ok(())
    }

    pub fn sqlite(&self) -> &Connection {
        &self.sqlite
    }
}

/// Makes a mirror by hand: plain tables without declared types, which leave every value as it is bound.
pub fn write_model(file: &Path, tables: &[(Table, BTreeMap<String, Vec<Cell>>)]) -> Result<()> {
    let sqlite = Connection::open(file)?;
    sqlite.execute_batch("pragma synchronous = off; begin")?;
    for (table, rows) in tables {
        let names: Vec<String> = table.columns.iter().map(|c| quote(&c.name)).collect();
        let (name, holes) = (quote(&table.mirror_name), vec!["?"; names.len()].join(", "));
        sqlite.execute_batch(&format!("create table {name}({})", names.join(", ")))?;
        let mut insert = sqlite.prepare(&format!("insert into {name} values ({holes})"))?;
        for cells in rows.values() {
            let values = cells.iter().map(|cell| match cell {
                Cell::Null => Value::Null,
                Cell::Integer(n) => Value::Integer(*n),
                Cell::Real(x) => Value::Real(*x),
                Cell::Text(text) | Cell::Json(text) => Value::Text(text.clone()),
                Cell::Blob(bytes) => Value::Blob(bytes.clone()),
            });
            insert.execute(rusqlite::params_from_iter(values))?;
        }
    }
    sqlite.execute_batch("commit")?;
    Ok(())
}

pub fn is_declared_well(declared: &str) -> bool {
    DECLARED.contains(&declared)
}

fn quote(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
