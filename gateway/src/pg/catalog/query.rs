//! The queries. Each gives JSON documents, which carry nested facts without one query for each table.

use std::collections::{BTreeMap, BTreeSet};

use rindle_proto::ids::Oid;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio_postgres::Client;
use tokio_postgres::types::ToSql;

use super::{CatalogView, PublicationFacts, RelationFacts, ServerFacts, TableFacts};

/// Schema of our own tables: published by FOR ALL TABLES, never mirrored.
const OUR_SCHEMA: &str = "rindle";

const SERVER: &str = "
SELECT jsonb_build_object('version_num', current_setting('server_version_num')::int,
    'encoding', pg_encoding_to_char(encoding), 'database_oid', oid::int8,
    'in_recovery', pg_is_in_recovery())::text
FROM pg_database WHERE datname = current_database()";

const PUBLICATION: &str = "
SELECT (to_jsonb(p) || jsonb_build_object('oid', p.oid::int8))::text
FROM pg_publication p WHERE p.pubname = $1";

/// The relations that are sent under their own oid, each with the topmost ancestor that is published too.
const PUBLISHED: &str = "
SELECT jsonb_build_object('oid', c.oid::int8, 'columns', to_jsonb(t.attnames), 'filter', t.rowfilter,
    'top', coalesce((
        SELECT a.relid::oid::int8
        FROM pg_partition_ancestors(c.oid) WITH ORDINALITY a(relid, above)
        JOIN pg_class ac ON ac.oid = a.relid
        WHERE c.relispartition AND (p.puballtables
            OR EXISTS (SELECT FROM pg_publication_rel r WHERE r.prpubid = p.oid AND r.prrelid = ac.oid)
            OR EXISTS (SELECT FROM pg_publication_namespace s
                       WHERE s.pnpubid = p.oid AND s.pnnspid = ac.relnamespace))
        ORDER BY a.above DESC LIMIT 1), c.oid::int8))::text
FROM pg_publication_tables t
JOIN pg_publication p ON p.pubname = t.pubname
JOIN pg_namespace n ON n.nspname = t.schemaname
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
WHERE t.pubname = $1 AND n.nspname <> $2
ORDER BY c.oid";

/// The leaves below partitioned tables.
const LEAVES: &str = "
WITH RECURSIVE tree(root, oid) AS (
    SELECT c.oid, c.oid FROM pg_class c WHERE c.oid = ANY($1) AND c.relkind = 'p'
    UNION ALL
    SELECT t.root, i.inhrelid FROM tree t JOIN pg_inherits i ON i.inhparent = t.oid)
SELECT jsonb_build_array(t.root::int8, t.oid::int8)::text
FROM tree t JOIN pg_class c ON c.oid = t.oid WHERE c.relkind <> 'p' ORDER BY t.oid";

const RELATIONS: &str = "
SELECT jsonb_build_object('oid', c.oid::int8, 'schema', n.nspname, 'name', c.relname,
    'kind', c.relkind, 'persistence', c.relpersistence, 'replident', c.relreplident,
    'owner', pg_get_userbyid(c.relowner), 'row_security', c.relrowsecurity,
    'force_row_security', c.relforcerowsecurity, 'filenode', c.relfilenode::int8,
    'pages', greatest(c.relpages, 0),
    'columns', coalesce((
        SELECT jsonb_agg(jsonb_build_object('attnum', a.attnum, 'name', a.attname,
            'type_oid', a.atttypid::int8, 'type_name', format_type(a.atttypid, a.atttypmod),
            'typmod', a.atttypmod, 'not_null', a.attnotnull, 'generated', a.attgenerated,
            'toastable', a.attstorage <> 'p', 'typtype', t.typtype,
            'element', CASE WHEN e.oid IS NOT NULL
                THEN jsonb_build_array(e.oid::int8, e.typdelim) END) ORDER BY a.attnum)
        FROM pg_attribute a
        JOIN pg_type t ON t.oid = a.atttypid
        LEFT JOIN pg_type e ON e.oid = t.typelem AND t.typlen = -1
            AND t.typsubscript = 'array_subscript_handler'::regproc
            AND t.typoutput = 'array_out'::regproc
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped), '[]'),
    'indexes', coalesce((
        SELECT jsonb_agg(jsonb_build_object('oid', i.indexrelid::int8, 'name', ic.relname,
            'method', am.amname, 'columns', to_jsonb(k.columns),
            'not_null', NOT EXISTS (
                SELECT FROM unnest(k.columns) AS key(attnum)
                LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = key.attnum
                WHERE a.attnotnull IS NOT TRUE),
            'unique', i.indisunique, 'primary', i.indisprimary, 'immediate', i.indimmediate,
            'plain', i.indexprs IS NULL AND i.indpred IS NULL,
            'valid', i.indisvalid AND i.indislive, 'identity', i.indisreplident)
            ORDER BY i.indexrelid)
        FROM pg_index i
        JOIN pg_class ic ON ic.oid = i.indexrelid
        JOIN pg_am am ON am.oid = ic.relam
        CROSS JOIN LATERAL (SELECT (string_to_array(i.indkey::text, ' ')::int2[])
            [1:i.indnkeyatts::int] AS columns) k
        WHERE i.indrelid = c.oid), '[]'))::text
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = ANY($1) ORDER BY c.oid";

/// Enums and composites used by columns, also inside arrays, domains, ranges and composites.
const TYPES: &str = "
WITH RECURSIVE used(oid) AS (
    SELECT a.atttypid FROM pg_attribute a
    WHERE a.attrelid = ANY($1) AND a.attnum > 0 AND NOT a.attisdropped
    UNION
    SELECT part.oid
    FROM used u JOIN pg_type t ON t.oid = u.oid
    CROSS JOIN LATERAL (
        SELECT t.typelem UNION ALL SELECT t.typbasetype
        UNION ALL SELECT r.rngsubtype FROM pg_range r
            WHERE r.rngtypid = t.oid OR r.rngmultitypid = t.oid
        UNION ALL SELECT a.atttypid FROM pg_attribute a
            WHERE t.typtype = 'c' AND a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
        ) part(oid)
    WHERE part.oid <> 0)
SELECT jsonb_build_array(format('%s %I.%I', t.oid, n.nspname, t.typname), CASE t.typtype
    WHEN 'e' THEN (SELECT jsonb_agg(e.enumlabel ORDER BY e.enumsortorder)::text
        FROM pg_enum e WHERE e.enumtypid = t.oid)
    ELSE (SELECT jsonb_agg(jsonb_build_array(a.attnum, a.atttypid, a.atttypmod) ORDER BY a.attnum)::text
        FROM pg_attribute a WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped)
    END)::text
FROM used u JOIN pg_type t ON t.oid = u.oid JOIN pg_namespace n ON n.oid = t.typnamespace
WHERE t.typtype IN ('e', 'c')";

/// Takes a shared lock on each table for a moment, so it waits behind an ALTER.
const SIZES: &str = "
SELECT jsonb_build_array(oid::int8,
    coalesce(pg_relation_size(oid), 0) / current_setting('block_size')::int8)::text
FROM pg_class WHERE oid = ANY($1) AND relkind = 'r'";

/// Why the catalog could not be read.
#[derive(Debug, thiserror::Error)]
pub enum CatalogError {
    /// A query failed.
    #[error("read the catalog")]
    Query(#[from] tokio_postgres::Error),
    /// There is no such publication.
    #[error("publication {name:?} does not exist: run rindle pg prepare")]
    NoPublication {
        /// Its name.
        name: String,
    },
    /// A document of the catalog is not what it is in every version known: a bug, or a newer server.
    #[error("a catalog query gave facts that are not understood")]
    Facts(#[from] serde_json::Error),
}

#[derive(Deserialize)]
struct Published {
    oid: Oid,
    top: Oid,
    columns: Option<Vec<String>>,
    filter: Option<String>,
}

/// Reads everything about a publication. Locks no table.
///
/// # Errors
/// When there is no such publication or a query fails.
pub async fn read(client: &Client, publication: &str) -> Result<CatalogView, CatalogError> {
    let server: ServerFacts = one(client, SERVER, &[])
        .await?
        .unwrap_or_else(|| unreachable!("a session's own database is in pg_database"));
    let found: Option<PublicationFacts> = one(client, PUBLICATION, &[&publication]).await?;
    let missing = || CatalogError::NoPublication {
        name: publication.to_owned(),
    };
    let facts = found.ok_or_else(missing)?;
    let sent: Vec<Published> = all(client, PUBLISHED, &[&publication, &OUR_SCHEMA]).await?;
    let tops: BTreeSet<u32> = sent.iter().map(|one| one.top.0).collect();
    let tops: Vec<u32> = tops.into_iter().collect();
    let leaves: Vec<(Oid, Oid)> = all(client, LEAVES, &[&tops]).await?;
    let oids: BTreeSet<u32> = tops
        .iter()
        .copied()
        .chain(leaves.iter().map(|(_, leaf)| leaf.0))
        .collect();
    let oids: Vec<u32> = oids.into_iter().collect();
    let relations: Vec<RelationFacts> = all(client, RELATIONS, &[&oids]).await?;
    let types: Vec<(String, Option<String>)> = all(client, TYPES, &[&oids]).await?;
    Ok(CatalogView {
        server,
        publication: facts,
        tables: assemble(&sent, &leaves, relations),
        types: types
            .into_iter()
            .map(|(name, shape)| (name, shape.unwrap_or_default()))
            .collect(),
    })
}

/// As [`read`], with the present size of every table. Waits behind whoever has a table for himself.
///
/// # Errors
/// As [`read`].
pub async fn read_with_sizes(
    client: &Client,
    publication: &str,
) -> Result<CatalogView, CatalogError> {
    let mut view = read(client, publication).await?;
    let relations = || {
        view.tables
            .iter()
            .flat_map(|table| std::iter::once(&table.relation).chain(&table.leaves))
    };
    let oids: Vec<u32> = relations().map(|relation| relation.oid.0).collect();
    let sizes: Vec<(Oid, i64)> = all(client, SIZES, &[&oids]).await?;
    let sizes: BTreeMap<Oid, i64> = sizes.into_iter().collect();
    for table in &mut view.tables {
        for relation in std::iter::once(&mut table.relation).chain(&mut table.leaves) {
            relation.pages = sizes.get(&relation.oid).copied().unwrap_or(relation.pages);
        }
    }
    Ok(view)
}

/// Puts leaves to their tables, and what the publication says to both.
fn assemble(
    sent: &[Published],
    leaves: &[(Oid, Oid)],
    relations: Vec<RelationFacts>,
) -> Vec<TableFacts> {
    let mut relations: BTreeMap<Oid, RelationFacts> = relations
        .into_iter()
        .map(|relation| (relation.oid, relation))
        .collect();
    let mut tables: BTreeMap<Oid, TableFacts> = BTreeMap::new();
    for one in sent {
        let columns = one.columns.clone().unwrap_or_default();
        if let Some(table) = tables.get_mut(&one.top) {
            table.published.retain(|name| columns.contains(name));
        } else if let Some(relation) = relations.remove(&one.top) {
            let table = TableFacts {
                relation,
                leaves: Vec::new(),
                published: columns,
            };
            tables.insert(one.top, table);
        }
    }
    let filters: BTreeMap<Oid, &String> = sent
        .iter()
        .filter_map(|one| Some((one.oid, one.filter.as_ref()?)))
        .collect();
    for (root, leaf) in leaves {
        if let (Some(table), Some(leaf)) = (tables.get_mut(root), relations.remove(leaf)) {
            table.leaves.push(leaf);
        }
    }
    for table in tables.values_mut() {
        let filter = |oid| filters.get(&oid).map(|filter| (*filter).clone());
        table.relation.row_filter = filter(table.relation.oid);
        for leaf in &mut table.leaves {
            // A filter of the root holds for its leaves, which are sent as the root.
            leaf.row_filter = table
                .relation
                .row_filter
                .clone()
                .or_else(|| filter(leaf.oid));
        }
    }
    tables.into_values().collect()
}

async fn all<T: DeserializeOwned>(
    client: &Client,
    sql: &str,
    parameters: &[&(dyn ToSql + Sync)],
) -> Result<Vec<T>, CatalogError> {
    let rows = client.query(sql, parameters).await?;
    let document = |row: &tokio_postgres::Row| Ok(serde_json::from_str(row.try_get(0)?)?);
    rows.iter().map(document).collect()
}

async fn one<T: DeserializeOwned>(
    client: &Client,
    sql: &str,
    parameters: &[&(dyn ToSql + Sync)],
) -> Result<Option<T>, CatalogError> {
    all(client, sql, parameters)
        .await
        .map(|found| found.into_iter().next())
}
