//! What Postgres says: the tables of a publication as a subscriber gets them, and their rows as text.

use anyhow::{Context, Result};

use super::types::{PgType, Rule};
use crate::postgres::{Session, quote_name, quote_text};

/// A column of a mirrored table.
#[derive(Debug, Clone)]
pub struct Column {
    pub name: String,
    pub rule: Rule,
    pub type_oid: i64,
}

/// One table of the mirror, and the relations of the source that its rows come from.
#[derive(Debug, Clone)]
pub struct Table {
    /// `t` for `public.t`, else `s.t`.
    pub mirror_name: String,
    pub columns: Vec<Column>,
    /// Places of the row key in `columns`; all of them when the table has none.
    pub key: Vec<usize>,
    /// A SELECT for each relation, columns in the order of `columns`.
    pub reads: Vec<String>,
}

/// One published relation: the table itself, a partitioned root, or a leaf.
struct Relation {
    oid: String,
    quoted: String,
    mirror_name: String,
    partitioned: bool,
    filter: Option<String>,
}

/// Every table that a subscriber of the publication has, in the order of their names.
pub async fn tables(session: &Session, publication: &str) -> Result<Vec<Table>> {
    let mut tables: Vec<Table> = Vec::new();
    for relation in relations(session, publication).await? {
        let columns = columns(session, publication, &relation).await?;
        match tables
            .iter_mut()
            .find(|table| table.mirror_name == relation.mirror_name)
        {
            Some(table) => table.reads.push(relation.read(&table.columns)),
            None => tables.push(Table {
                key: key(session, &relation, &columns).await?,
                reads: vec![relation.read(&columns)],
                mirror_name: relation.mirror_name,
                columns,
            }),
        }
    }
    Ok(tables)
}

impl Relation {
    fn read(&self, columns: &[Column]) -> String {
        let names: Vec<String> = columns.iter().map(|c| quote_name(&c.name)).collect();
        // A plain table that others inherit from publishes its own rows only.
        let only = if self.partitioned { "" } else { "only " };
        let filter = self
            .filter
            .as_ref()
            .map(|f| format!(" where {f}"))
            .unwrap_or_default();
        format!(
            "select {} from {only}{}{filter}",
            names.join(", "),
            self.quoted
        )
    }
}

async fn relations(session: &Session, publication: &str) -> Result<Vec<Relation>> {
    let name = quote_text(publication);
    // Our own tables are published with all tables, and are none of a subscriber's.
    // A leaf stands for the topmost of its ancestors that the publication names, in any of the three ways.
    let rows = session
        .rows(&format!(
            "select c.oid, quote_ident(n.nspname) || '.' || quote_ident(c.relname), c.relkind = 'p', t.rowfilter,
                    m.nspname, m.relname
             from pg_publication p
             join pg_publication_tables t on t.pubname = p.pubname
             join pg_namespace n on n.nspname = t.schemaname
             join pg_class c on c.relnamespace = n.oid and c.relname = t.tablename
             cross join lateral (
               select an.nspname, ac.relname
               from (select c.oid as relid, 0::bigint as nth
                     union all select a.relid, a.nth
                     from pg_partition_ancestors(c.oid) with ordinality a(relid, nth)) a
               join pg_class ac on ac.oid = a.relid join pg_namespace an on an.oid = ac.relnamespace
               where a.nth = 0 or p.puballtables
                  or exists (select from pg_publication_rel r where r.prpubid = p.oid and r.prrelid = a.relid)
                  or exists (select from pg_publication_namespace s
                             where s.pnpubid = p.oid and s.pnnspid = ac.relnamespace)
               order by a.nth desc limit 1) m
             where p.pubname = {name} and t.schemaname <> 'rindle' order by 2"
        ))
        .await?;
    rows.iter()
        .map(|row| {
            let text = |i: usize| row.get(i).context("a catalog column is null");
            let (schema, table) = (text(4)?, text(5)?);
            Ok(Relation {
                oid: text(0)?.to_owned(),
                quoted: text(1)?.to_owned(),
                partitioned: text(2)? == "t",
                filter: row.get(3).map(str::to_owned),
                mirror_name: if schema == "public" {
                    table.to_owned()
                } else {
                    format!("{schema}.{table}")
                },
            })
        })
        .collect()
}

async fn columns(session: &Session, publication: &str, of: &Relation) -> Result<Vec<Column>> {
    let (oid, publication) = (&of.oid, quote_text(publication));
    // Before 18 the view names stored generated columns that the stream never carries.
    let rows = session
        .rows(&format!(
            "select a.attname, t.oid,
                    case when t.typnamespace = 'pg_catalog'::regnamespace then t.typname else '' end, t.typtype,
                    case when e.typnamespace = 'pg_catalog'::regnamespace then e.typname else '' end, e.typtype,
                    e.typdelim
             from pg_attribute a
             join pg_class c on c.oid = a.attrelid join pg_namespace n on n.oid = c.relnamespace
             join pg_publication_tables p
               on p.pubname = {publication} and p.schemaname = n.nspname and p.tablename = c.relname
             join pg_type t on t.oid = a.atttypid
             left join pg_type e on e.oid = t.typelem and e.typarray = t.oid
             where a.attrelid = {oid} and a.attnum > 0 and not a.attisdropped and a.attname = any (p.attnames)
               and (a.attgenerated = '' or current_setting('server_version_num')::int >= 180000)
             order by a.attnum"
        ))
        .await?;
    rows.iter()
        .map(|row| {
            let text = |i: usize| row.get(i).unwrap_or_default().to_owned();
            let element = row.get(5).map(|class| {
                (
                    text(4),
                    class.to_owned(),
                    text(6).chars().next().unwrap_or(','),
                )
            });
            let pg_type = PgType {
                builtin_name: text(2),
                class: text(3),
                element,
            };
            Ok(Column {
                name: text(0),
                rule: pg_type.rule(),
                type_oid: text(1).parse()?,
            })
        })
        .collect()
}

/// The primary key, else a unique index that identifies every row, else every column.
async fn key(session: &Session, of: &Relation, columns: &[Column]) -> Result<Vec<usize>> {
    let rows = session
        .rows(&format!(
            "select i.indexrelid, a.attname
             from pg_index i
             cross join lateral unnest(i.indkey::int2[]) with ordinality k(attnum, nth)
             join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum
             where i.indexrelid = (
               select u.indexrelid from pg_index u
               where u.indrelid = {} and u.indisunique and u.indimmediate and u.indisvalid
                 and u.indpred is null and u.indexprs is null
                 and not exists (select from unnest(u.indkey::int2[]) with ordinality x(attnum, nth)
                                 join pg_attribute y on y.attrelid = u.indrelid and y.attnum = x.attnum
                                 where x.nth <= u.indnkeyatts and not y.attnotnull)
               order by u.indisprimary desc, u.indexrelid limit 1)
               and k.nth <= i.indnkeyatts
             order by k.nth",
            of.oid
        ))
        .await?;
    let mut key = Vec::new();
    for row in &rows {
        let name = row.get(1).context("a column has no name")?;
        key.extend(columns.iter().position(|column| column.name == name));
    }
    Ok(if key.is_empty() {
        (0..columns.len()).collect()
    } else {
        key
    })
}
