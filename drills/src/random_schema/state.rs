//! What a session sees of the database at this moment. Everything is ordered by name: oids differ from run to run.

use anyhow::Result;
use serde::Deserialize;

use crate::{cluster::MARKER, postgres::Session};

/// Schemas whose objects belong to the drill's server and not to the drill.
const OTHERS: &str = "'pg_catalog', 'information_schema', 'pg_toast', 'rindle'";

/// What there is to change.
#[derive(Debug, Deserialize)]
pub struct State {
    pub tables: Vec<Table>,
    pub types: Vec<Type>,
    pub schemas: Vec<String>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Table {
    pub schema: String,
    pub name: String,
    /// `r` or `p`.
    pub kind: String,
    /// The root, for a partition.
    pub parent: Option<String>,
    /// For a partition the values of its list.
    pub bound: Option<String>,
    /// Named by the publication itself.
    pub published: bool,
    /// With a row filter.
    pub filtered: bool,
    pub columns: Vec<Column>,
    /// Indexes besides the key's.
    pub indexes: Vec<String>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Column {
    pub name: String,
    /// As Postgres writes it.
    pub of: String,
    pub key: bool,
    pub generated: bool,
    pub identity: bool,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Type {
    pub name: String,
    /// `e`, `c` or `d`.
    pub kind: String,
    pub labels: Vec<String>,
    pub attributes: Vec<String>,
}

impl Table {
    pub fn full(&self) -> String {
        format!("{}.{}", self.schema, self.name)
    }

    /// The first column of the key, which no statement of the drill drops.
    pub fn id(&self) -> &str {
        self.columns
            .iter()
            .find(|column| column.key)
            .map_or("id", |column| &column.name)
    }

    pub fn plain(&self) -> Vec<&Column> {
        self.columns.iter().filter(|column| !column.key).collect()
    }
}

impl State {
    pub async fn read(session: &Session, publication: &str) -> Result<Self> {
        let text = session.text(&query(publication)).await?;
        Ok(serde_json::from_str(&text)?)
    }

    /// The type that a column is of, as Postgres writes it: without its schema in `public`.
    pub fn of_type(&self, of: &str) -> Option<&Type> {
        let is_it = |it: &&Type| it.name == of || it.name.strip_prefix("public.") == Some(of);
        self.types.iter().find(is_it)
    }

    pub fn leaves<'a>(&'a self, root: &'a Table) -> impl Iterator<Item = &'a Table> {
        let full = root.full();
        self.tables
            .iter()
            .filter(move |it| it.parent.as_ref() == Some(&full))
    }
}

fn query(publication: &str) -> String {
    format!(
        "select json_build_object(
         'schemas', (select coalesce(json_agg(nspname order by nspname), '[]') from pg_namespace
            where nspname not in ({OTHERS}) and nspname !~ '^pg_'),
         'types', (select coalesce(json_agg(json_build_object('name', n.nspname || '.' || t.typname, 'kind', t.typtype,
               'labels', (select coalesce(json_agg(enumlabel order by enumsortorder), '[]') from pg_enum where enumtypid = t.oid),
               'attributes', (select coalesce(json_agg(attname order by attnum), '[]') from pg_attribute
                  where attrelid = t.typrelid and attnum > 0 and not attisdropped))
               order by n.nspname, t.typname), '[]')
            from pg_type t join pg_namespace n on n.oid = t.typnamespace left join pg_class c on c.oid = t.typrelid
            where n.nspname not in ({OTHERS}) and (t.typtype in ('e', 'd') or t.typtype = 'c' and c.relkind = 'c')),
         'tables', (select coalesce(json_agg(json_build_object('schema', n.nspname, 'name', c.relname, 'kind', c.relkind,
               'parent', (select pn.nspname || '.' || p.relname from pg_inherits i join pg_class p on p.oid = i.inhparent
                  join pg_namespace pn on pn.oid = p.relnamespace where i.inhrelid = c.oid),
               'bound', pg_get_expr(c.relpartbound, c.oid),
               'published', r.oid is not null, 'filtered', r.prqual is not null,
               'columns', (select coalesce(json_agg(json_build_object('name', a.attname, 'of', format_type(a.atttypid, a.atttypmod),
                     'key', a.attnum = any (x.indkey::int2[]), 'generated', a.attgenerated <> '', 'identity', a.attidentity <> '')
                     order by a.attnum), '[]')
                  from pg_attribute a where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped),
               'indexes', (select coalesce(json_agg(n.nspname || '.' || ic.relname order by ic.relname), '[]')
                  from pg_index i join pg_class ic on ic.oid = i.indexrelid where i.indrelid = c.oid and not i.indisprimary))
               order by n.nspname, c.relname), '[]')
            from pg_class c join pg_namespace n on n.oid = c.relnamespace
            join pg_index x on x.indrelid = c.oid and x.indisprimary
            left join pg_publication_rel r on r.prrelid = c.oid
               and r.prpubid = (select oid from pg_publication where pubname = '{publication}')
            where c.relkind in ('r', 'p') and c.relname <> '{MARKER}' and n.nspname not in ({OTHERS})))::text"
    )
}
