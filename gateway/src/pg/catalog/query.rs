//! The queries. Each gives JSON documents, which carry nested facts without one query for each table.

use std::collections::BTreeMap;

use rindle_proto::ids::Oid;
use serde::de::DeserializeOwned;
use tokio_postgres::Client;
use tokio_postgres::types::ToSql;

use super::facts::OUR_SCHEMA;
use super::{CatalogView, Facts, Member, Patch, PublicationFacts, ServerFacts, TableFacts};
use crate::copy::CopyTable;

const SERVER: &str = "
SELECT jsonb_build_object('version_num', current_setting('server_version_num')::int,
    'encoding', pg_encoding_to_char(encoding), 'database_oid', oid::int8,
    'in_recovery', pg_is_in_recovery())::text
FROM pg_database WHERE datname = current_database()";

/// What each reads stands in its file: functions in the source are made of the same text.
const PUBLICATIONS: &str = include_str!("sql/publication.sql");
const RELATIONS: &str = include_str!("sql/relations.sql");
const TYPES: &str = include_str!("sql/types.sql");

const PUBLICATION_OID: &str = "SELECT oid::int8::text FROM pg_publication WHERE pubname = $1";

/// Every relation that a publication publishes by itself, and every partition of one.
const PUBLISHED: &str = "
WITH RECURSIVE sent(oid) AS (
    SELECT c.oid FROM pg_class c, pg_publication p
    WHERE p.oid = $1 AND c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND c.oid >= 16384
        AND (p.puballtables OR EXISTS (SELECT FROM pg_publication_namespace s
            WHERE s.pnpubid = p.oid AND s.pnnspid = c.relnamespace))
    UNION SELECT r.prrelid FROM pg_publication_rel r WHERE r.prpubid = $1
    UNION SELECT i.inhrelid FROM sent s JOIN pg_inherits i ON i.inhparent = s.oid
        JOIN pg_class c ON c.oid = i.inhrelid AND c.relispartition)
SELECT to_jsonb(s.oid::int8)::text FROM sent s JOIN pg_class c ON c.oid = s.oid
JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname <> $2 ORDER BY s.oid";

/// A partition tree is read whole.
const TREES: &str = "
WITH RECURSIVE up(oid) AS (
    SELECT unnest($1::oid[])
    UNION SELECT i.inhparent FROM up JOIN pg_class c ON c.oid = up.oid AND c.relispartition
        JOIN pg_inherits i ON i.inhrelid = up.oid),
tree(oid) AS (
    SELECT oid FROM up
    UNION SELECT i.inhrelid FROM tree JOIN pg_inherits i ON i.inhparent = tree.oid
        JOIN pg_class c ON c.oid = i.inhrelid AND c.relispartition)
SELECT to_jsonb(oid::int8)::text FROM tree";

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
    /// A row filter went away while a copy began.
    #[error("the row filter of {table} changed while a copy of it began")]
    FilterGone {
        /// The table.
        table: String,
    },
    /// A document of the catalog is not what it is in every version known: a bug, or a newer server.
    #[error("a catalog query gave facts that are not understood")]
    Facts(#[from] serde_json::Error),
}

/// Reads everything about a publication. Locks no table.
///
/// # Errors
/// When there is no such publication or a query fails.
pub async fn read(client: &Client, publication: &str) -> Result<CatalogView, CatalogError> {
    Ok(read_facts(client, publication).await?.view())
}

/// Reads the facts about a publication. Locks no table.
///
/// # Errors
/// As [`read`].
pub async fn read_facts(client: &Client, publication: &str) -> Result<Facts, CatalogError> {
    let oid: Option<u32> = one(client, PUBLICATION_OID, &[&publication]).await?;
    let missing = || CatalogError::NoPublication {
        name: publication.to_owned(),
    };
    let oid = oid.ok_or_else(missing)?;
    let facts: Option<PublicationFacts> = one(client, &text(PUBLICATIONS), &[&vec![oid]]).await?;
    let sent: Vec<u32> = all(client, PUBLISHED, &[&oid, &OUR_SCHEMA]).await?;
    let patch = relations(client, &sent).await?;
    facts_of(client, facts.ok_or_else(missing)?, patch).await
}

/// Facts of relations, of the whole partition trees that they are in, and of the types they use.
///
/// # Errors
/// When a query fails.
pub async fn read_relations(client: &Client, oids: &[Oid]) -> Result<Patch, CatalogError> {
    let oids: Vec<u32> = oids.iter().map(|oid| oid.0).collect();
    let trees: Vec<u32> = all(client, TREES, &[&oids]).await?;
    relations(client, &trees).await
}

/// One publication, by its oid, as a list: empty when it is gone.
///
/// # Errors
/// When the query fails.
pub async fn read_publications(
    client: &Client,
    oid: Oid,
) -> Result<Vec<PublicationFacts>, CatalogError> {
    all(client, &text(PUBLICATIONS), &[&vec![oid.0]]).await
}

async fn relations(client: &Client, oids: &[u32]) -> Result<Patch, CatalogError> {
    Ok(Patch {
        v: 1,
        relations: all(client, &text(RELATIONS), &[&oids]).await?,
        types: all(client, &text(TYPES), &[&oids]).await?,
        ..Patch::default()
    })
}

async fn facts_of(
    client: &Client,
    publication: PublicationFacts,
    patch: Patch,
) -> Result<Facts, CatalogError> {
    let server: ServerFacts = one(client, SERVER, &[])
        .await?
        .unwrap_or_else(|| unreachable!("a session's own database is in pg_database"));
    let mut none = Facts {
        server,
        publication,
        relations: BTreeMap::new(),
        types: BTreeMap::new(),
    };
    none.sort_members();
    Ok(none.patched(&patch).unwrap_or(none))
}

/// A query that gives documents, as one that gives their text.
fn text(query: &str) -> String {
    format!("SELECT document::text FROM ({query}) AS found(document)")
}

/// As [`read`], with the present size of every table. Waits behind whoever has a table for himself.
///
/// # Errors
/// As [`read`].
pub async fn read_with_sizes(
    client: &Client,
    publication: &str,
) -> Result<CatalogView, CatalogError> {
    let mut facts = read_facts(client, publication).await?;
    read_sizes(client, &mut facts).await?;
    Ok(facts.view())
}

/// Reads the present size of every relation. Waits behind whoever has a table for himself.
///
/// # Errors
/// When the query fails.
pub async fn read_sizes(client: &Client, facts: &mut Facts) -> Result<(), CatalogError> {
    let oids: Vec<u32> = facts.relations.keys().map(|oid| oid.0).collect();
    let sizes: Vec<(Oid, i64)> = all(client, SIZES, &[&oids]).await?;
    for (oid, pages) in sizes {
        if let Some(relation) = facts.relations.get_mut(&oid) {
            relation.pages = pages;
        }
    }
    Ok(())
}

const FILTERS: &str = "
SELECT jsonb_build_array(prrelid::int8, pg_get_expr(prqual, prrelid))::text
FROM pg_publication_rel WHERE prpubid = $1 AND prrelid = ANY($2) AND prqual IS NOT NULL";

/// Reads the row filters of a copy, as SQL. Waits behind whoever has such a table for himself, and reads the present:
/// that nothing changed meanwhile shows when the copy compares facts.
///
/// # Errors
/// When the query fails.
pub async fn read_filters(
    client: &Client,
    publication: Oid,
    plan: &mut [CopyTable],
) -> Result<(), CatalogError> {
    let filtered: Vec<u32> = plan
        .iter()
        .filter_map(|it| Some(it.filtered_as?.0))
        .collect();
    if filtered.is_empty() {
        return Ok(());
    }
    let found: Vec<(Oid, String)> = all(client, FILTERS, &[&publication.0, &filtered]).await?;
    let found: BTreeMap<Oid, String> = found.into_iter().collect();
    for table in plan {
        let Some(member) = table.filtered_as else {
            continue;
        };
        let filter = found.get(&member).cloned();
        table.filter = Some(filter.ok_or_else(|| CatalogError::FilterGone {
            table: table.quoted_name.clone(),
        })?);
    }
    Ok(())
}

/// Facts of tables, each with all its columns and rows, as if published by itself. Locks no table.
///
/// # Errors
/// When a query fails.
pub async fn read_tables(client: &Client, oids: &[u32]) -> Result<Vec<TableFacts>, CatalogError> {
    let member = |oid: &u32| Member {
        oid: Oid(*oid),
        columns: None,
        filter: None,
    };
    let publication = PublicationFacts {
        tables: oids.iter().map(member).collect(),
        ..PublicationFacts::default()
    };
    let named: Vec<Oid> = oids.iter().copied().map(Oid).collect();
    let patch = read_relations(client, &named).await?;
    let mut tables = facts_of(client, publication, patch).await?.view().tables;
    // Unlike a publication, whoever asks wants to know about every column.
    for table in &mut tables {
        let names = table
            .relation
            .columns
            .iter()
            .map(|column| column.name.clone());
        table.published = names.collect();
    }
    Ok(tables)
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
