//! Case files: SQL that once broke somebody's mirror, with the end state that is right. Each runs as a stream after the
//! first copy, as the first copy, and as an image.
//!
//! A file is a few lines of words and these sections:
//!
//! | section | content |
//! |---|---|
//! | `--@db` | what follows the name in CREATE DATABASE |
//! | `--@setup` | SQL before the first copy; a publication made here is used as it is |
//! | `--@prepare T, T` | no publication in the setup: `rindle pg prepare` makes one of these tables |
//! | `--@stream` | SQL while the gateway streams |
//! | `--@check` | a query for people who run the file by hand |
//! | `--@expect T: c, c` | rows of the mirror at the end, one JSON array a line, in any order |
//! | `--@refused WORD WORD` | `mint` must refuse with a message that has these words |
//! | `--@halts WORD WORD` | the stream must stop with a reason that has these words; `--@expect` holds after a cutover |
//! | `--@frozen T: c, c` | rows of the mirror when the stream stopped, as in `--@expect` |
//!
//! A value in `--@expect` is compared with its storage class: `1` is an integer, `1.0` a real, `"1"` a text. `{"array": …}`
//! is a text that holds this JSON; `{"length": n, "starts": "…"}` describes a long text.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use rusqlite::{Connection, OpenFlags, types::ValueRef};
use serde_json::{Value, json};

use crate::{
    cluster::Cluster,
    postgres::{Server, quote_name},
};

const READY_WITHIN: Duration = Duration::from_secs(60);

#[derive(Debug, Default, Clone)]
pub struct Case {
    pub name: String,
    pub database_options: String,
    pub setup: String,
    pub stream: String,
    /// Tables for `prepare`; empty when the setup makes a publication.
    pub prepare: Vec<String>,
    pub expect: Vec<Expect>,
    pub refused: Vec<String>,
    pub halts: Vec<String>,
    pub frozen: Vec<Expect>,
}

/// The literal end state of one table.
#[derive(Debug, Default, Clone)]
pub struct Expect {
    pub table: String,
    pub columns: Vec<String>,
    pub rows: Vec<Vec<Value>>,
}

impl Case {
    pub fn load(file: &Path) -> Result<Self> {
        let text = fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
        let name = file
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        Self::parse(&name, &text).with_context(|| format!("read the case {name}"))
    }

    pub fn parse(name: &str, text: &str) -> Result<Self> {
        let mut case = Self {
            name: name.to_owned(),
            ..Self::default()
        };
        let mut section = String::new();
        for line in text.lines() {
            if let Some(head) = line.strip_prefix("--@") {
                let (word, rest) = head.split_once(' ').unwrap_or((head, ""));
                word.clone_into(&mut section);
                match word {
                    "db" | "setup" | "stream" | "check" => {}
                    "prepare" => case.prepare = list(rest),
                    "refused" => case.refused = words(rest),
                    "halts" => case.halts = words(rest),
                    "expect" => case.expect.push(Expect::head(rest)?),
                    "frozen" => case.frozen.push(Expect::head(rest)?),
                    other => bail!("no such section: {other}"),
                }
                continue;
            }
            match section.as_str() {
                "db" => case.database_options.push_str(line),
                "setup" => case.setup.push_str(&format!("{line}\n")),
                "stream" => case.stream.push_str(&format!("{line}\n")),
                "expect" => Expect::line(&mut case.expect, line)?,
                "frozen" => Expect::line(&mut case.frozen, line)?,
                _ => {}
            }
        }
        Ok(case)
    }

    /// The publication that the setup makes.
    pub fn publication(&self) -> Option<String> {
        let lower = self.setup.to_lowercase();
        let at = lower.find("create publication ")? + "create publication ".len();
        self.setup[at..]
            .split_whitespace()
            .next()
            .map(|name| name.trim_matches(['"', ';']).to_owned())
    }

    fn database(&self, way: &str) -> String {
        let name: String = self
            .name
            .to_lowercase()
            .chars()
            .filter(char::is_ascii_alphanumeric)
            .take(24)
            .collect();
        format!("{name}{way}")
    }

    /// Database, setup, publication, marker: everything before `mint`.
    async fn lay_out(&self, server: &Server, way: &str) -> Result<Cluster> {
        let name = self.database(way);
        server
            .create_database(&name, &self.database_options)
            .await?;
        self.psql(server, &name, &self.setup)?;
        let mut cluster = Cluster::new(server, &name, &name).await?;
        match self.publication() {
            Some(publication) => {
                cluster.add_marker(Some(&publication)).await?;
                cluster.publication = publication;
                if self.refused.is_empty() {
                    cluster.prepare_as_it_is().await?;
                }
            }
            None => {
                ensure!(
                    !self.prepare.is_empty(),
                    "neither a publication nor tables to prepare"
                );
                let tables: Vec<&str> = self.prepare.iter().map(String::as_str).collect();
                cluster.prepare(&tables).await?;
            }
        }
        Ok(cluster)
    }

    fn psql(&self, server: &Server, database: &str, sql: &str) -> Result<()> {
        let errors = server.psql(database, sql)?;
        ensure!(
            !errors.contains("ERROR"),
            "the case's own SQL failed: {errors}"
        );
        Ok(())
    }

    /// The SQL comes while the gateway streams; then a follower starts anew from an image of it.
    pub async fn streamed_then_imaged(&self, server: &Server) -> Result<()> {
        let mut cluster = self.lay_out(server, "s").await?;
        cluster.mint().await?;
        cluster.start_gateway().await?;
        let first = cluster.add_follower().await?;
        cluster.follower(first)?.until_ready(READY_WITHIN).await?;
        self.psql(server, &cluster.database, &self.stream)?;
        cluster.must_follow(first).await.context("by stream")?;
        self.expected_in(&cluster, first).context("by stream")?;

        cluster.produce().await?;
        let second = cluster.add_follower_from_image().await?;
        cluster.must_be_equal(second).await.context("by image")?;
        self.expected_in(&cluster, second).context("by image")
    }

    /// All of the SQL comes before the first copy.
    pub async fn copied(&self, server: &Server) -> Result<()> {
        let mut cluster = self.lay_out(server, "c").await?;
        self.psql(server, &cluster.database, &self.stream)?;
        cluster.mint().await?;
        cluster.start_gateway().await?;
        let follower = cluster.add_follower().await?;
        cluster
            .follower(follower)?
            .until_ready(READY_WITHIN)
            .await?;
        cluster.must_be_equal(follower).await.context("by copy")?;
        self.expected_in(&cluster, follower).context("by copy")
    }

    /// The stream stops by name; a new generation has the source's state, and so has an image of it.
    pub async fn stops_then_moves(&self, server: &Server) -> Result<()> {
        let mut cluster = self.lay_out(server, "h").await?;
        cluster.mint().await?;
        cluster.start_gateway().await?;
        cluster.know_the_next_gateway();
        let first = cluster.add_follower().await?;
        cluster.follower(first)?.until_ready(READY_WITHIN).await?;
        self.psql(server, &cluster.database, &self.stream)?;
        let end = cluster.session.text("select pg_current_wal_insert_lsn()");
        let end = end.await?;
        let words: Vec<&str> = self.halts.iter().map(String::as_str).collect();
        let reason = cluster.must_stop(&words, &end, READY_WITHIN).await?;
        cluster.must_stop_again(&reason, &end).await?;
        let mirror = open(&cluster.mirror(first))?;
        for frozen in &self.frozen {
            frozen.must_hold(&mirror).context("at the halt")?;
        }
        cluster.move_on(first).await?;
        self.expected_in(&cluster, first).context("by cutover")?;
        let second = cluster.add_follower_from_image().await?;
        cluster.must_be_equal(second).await.context("by image")?;
        self.expected_in(&cluster, second).context("by image")
    }

    /// `mint` must refuse, by name.
    pub async fn is_refused(&self, server: &Server) -> Result<()> {
        let cluster = self.lay_out(server, "r").await?;
        let outcome = cluster.try_mint().await?;
        ensure!(
            outcome.status.code() == Some(2),
            "mint ended with {}: {outcome:?}",
            outcome.status
        );
        let words = outcome.stdout + &outcome.stderr;
        for word in &self.refused {
            ensure!(
                words.contains(word.as_str()),
                "{word} is not named in: {words}"
            );
        }
        Ok(())
    }

    fn expected_in(&self, cluster: &Cluster, follower: usize) -> Result<()> {
        self.must_expect(&cluster.followers[follower].db)
    }

    /// Every literal of the case holds in this mirror file.
    pub fn must_expect(&self, file: &Path) -> Result<()> {
        let mirror = open(file)?;
        for expect in &self.expect {
            expect.must_hold(&mirror)?;
        }
        Ok(())
    }
}

impl Expect {
    fn head(text: &str) -> Result<Self> {
        let (table, columns) = text.split_once(':').context("expect TABLE: columns")?;
        Ok(Self {
            table: table.trim().to_owned(),
            columns: list(columns),
            rows: Vec::new(),
        })
    }

    fn line(all: &mut [Self], line: &str) -> Result<()> {
        if !line.trim().is_empty() {
            let row = serde_json::from_str(line).with_context(|| line.to_owned())?;
            let last = all.last_mut().context("rows before their table")?;
            last.rows.push(row);
        }
        Ok(())
    }

    fn must_hold(&self, mirror: &Connection) -> Result<()> {
        let columns: Vec<String> = self.columns.iter().map(|c| quote_name(c)).collect();
        let table = quote_name(&self.table);
        let sql = format!("select {} from {table}", columns.join(", "));
        let mut statement = mirror.prepare(&sql)?;
        let mut found = statement.query([])?;
        let mut left = self.rows.clone();
        while let Some(row) = found.next()? {
            let mut values = Vec::new();
            for i in 0..columns.len() {
                values.push(value(row.get_ref(i)?));
            }
            let at = left.iter().position(|wanted| {
                wanted.len() == values.len()
                    && wanted
                        .iter()
                        .zip(&values)
                        .all(|(wanted, found)| is_as_told(wanted, found))
            });
            let at =
                at.with_context(|| format!("{}: a row not expected: {values:?}", self.table))?;
            left.swap_remove(at);
        }
        ensure!(left.is_empty(), "{}: rows missing: {left:?}", self.table);
        Ok(())
    }
}

fn value(found: ValueRef<'_>) -> Value {
    match found {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(n) => n.into(),
        ValueRef::Real(x) => x.into(),
        ValueRef::Text(text) => String::from_utf8_lossy(text).into(),
        ValueRef::Blob(bytes) => json!({"blob": bytes}),
    }
}

fn is_as_told(wanted: &Value, found: &Value) -> bool {
    let Some(told) = wanted.as_object() else {
        return wanted == found;
    };
    let Some(text) = found.as_str() else {
        return false;
    };
    if let Some(array) = told.get("array") {
        return serde_json::from_str::<Value>(text).is_ok_and(|read| read == *array);
    }
    let length = told.get("length").and_then(Value::as_u64);
    let starts = told
        .get("starts")
        .and_then(Value::as_str)
        .unwrap_or_default();
    length == Some(text.chars().count() as u64) && text.starts_with(starts)
}

fn open(file: &Path) -> Result<Connection> {
    Ok(Connection::open_with_flags(
        file,
        OpenFlags::SQLITE_OPEN_READ_ONLY,
    )?)
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

fn list(text: &str) -> Vec<String> {
    text.split(',')
        .map(|item| item.trim().to_owned())
        .filter(|item| !item.is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "words\n--@db\nencoding 'LATIN1'\n--@setup\ncreate table t(a int);\n\
        create publication \"p\" for table t;\n--@stream\ninsert into t values (1);\n--@check\nselect 1;\n\
        --@expect t: a, b\n[1, \"x\"]\n[2, {\"array\": [1, null]}]\n--@refused t name\n";

    #[test]
    fn reads_every_section() {
        let case = Case::parse("x", TEXT).unwrap();
        assert_eq!(case.database_options, "encoding 'LATIN1'");
        assert_eq!(case.publication().as_deref(), Some("p"));
        assert_eq!(case.stream.trim(), "insert into t values (1);");
        assert_eq!(case.expect[0].columns, ["a", "b"]);
        assert_eq!(case.expect[0].rows.len(), 2);
        assert_eq!(case.refused, ["t", "name"]);
        assert!(Case::parse("x", "--@what\n").is_err());
    }

    #[test]
    fn an_expected_row_is_held_to_its_storage_class() {
        let case = Case::parse("x", TEXT).unwrap();
        let mirror = Connection::open_in_memory().unwrap();
        mirror.execute_batch("create table t(a, b)").unwrap();
        mirror
            .execute_batch("insert into t values (2, '[1 ,null]'), (1, 'x')")
            .unwrap();
        case.expect[0].must_hold(&mirror).unwrap();
        for change in [
            "update t set a = '1' where a = 1",
            "delete from t where a = '1'",
        ] {
            mirror.execute_batch(change).unwrap();
            assert!(case.expect[0].must_hold(&mirror).is_err(), "{change}");
        }
    }
}
