//! What is in the database before anything is made.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio_postgres::Client;
use tokio_postgres::types::ToSql;

use crate::ddl::{self, Found};
use crate::lifecycle::admission::{self, Finding};
use crate::lifecycle::error::LifecycleError;
use crate::lifecycle::names::TableName;
use crate::pg::catalog::CatalogError;

const OURS: &str = "
SELECT jsonb_build_object('version_num', current_setting('server_version_num')::int,
    'version', current_setting('server_version'),
    'schema', to_regnamespace('rindle') IS NOT NULL,
    'ledger', to_regclass('rindle.ledger') IS NOT NULL)::text";

const LEDGER: &str = "SELECT jsonb_build_array(kind, name)::text FROM rindle.ledger";

const PUBLICATION: &str = "
SELECT jsonb_build_object('all_tables', p.puballtables,
    'whole', p.pubinsert AND p.pubupdate AND p.pubdelete AND p.pubtruncate AND NOT p.pubviaroot,
    'tables', coalesce((SELECT jsonb_agg(jsonb_build_array(n.nspname, c.relname) ORDER BY n.nspname, c.relname)
        FROM pg_publication_rel r JOIN pg_class c ON c.oid = r.prrelid
        JOIN pg_namespace n ON n.oid = c.relnamespace WHERE r.prpubid = p.oid), '[]'),
    'schemas', coalesce((SELECT jsonb_agg(n.nspname ORDER BY n.nspname)
        FROM pg_publication_namespace s JOIN pg_namespace n ON n.oid = s.pnnspid
        WHERE s.pnpubid = p.oid), '[]'))::text
FROM pg_publication p WHERE p.pubname = $1";

/// Each wanted table, with its ancestors when it is a partition.
const RELATIONS: &str = "
SELECT jsonb_build_object('schema', w.schema, 'name', w.name, 'kind', c.relkind,
    'persistence', c.relpersistence, 'ancestors', coalesce((
        SELECT jsonb_agg(jsonb_build_array(n.nspname, a.relname) ORDER BY up.above DESC)
        FROM pg_partition_ancestors(c.oid) WITH ORDINALITY up(relid, above)
        JOIN pg_class a ON a.oid = up.relid JOIN pg_namespace n ON n.oid = a.relnamespace
        WHERE c.relispartition AND up.relid <> c.oid), '[]'),
    'similar', coalesce((SELECT jsonb_agg(format('%I.%I', n.nspname, s.relname) ORDER BY s.oid)
        FROM pg_class s JOIN pg_namespace n ON n.oid = s.relnamespace
        WHERE c.oid IS NULL AND s.relkind IN ('r', 'p') AND lower(s.relname) = lower(w.name)), '[]'))::text
FROM unnest($1::text[], $2::text[]) WITH ORDINALITY w(schema, name, at)
LEFT JOIN pg_class c ON c.relname = w.name
    AND c.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = w.schema)
ORDER BY w.at";

const CLIENT_MUTATIONS: &str = "
SELECT jsonb_agg(jsonb_build_array(a.attname, format_type(a.atttypid, a.atttypmod),
    EXISTS (SELECT FROM pg_index i WHERE i.indrelid = a.attrelid AND i.indisprimary
        AND i.indnkeyatts = 1 AND i.indkey[0] = a.attnum)) ORDER BY a.attnum)::text
FROM pg_attribute a
WHERE a.attrelid = to_regclass('public._rindle_client_mutations') AND a.attnum > 0 AND NOT a.attisdropped
HAVING count(*) > 0";

/// What is there.
#[derive(Clone, Debug, Default)]
pub(super) struct Present {
    pub(super) server: Ours,
    /// Kind and name of everything in the ledger.
    pub(super) ledger: Vec<(String, String)>,
    pub(super) publication: Option<Publication>,
    /// The wanted tables, in their order.
    pub(super) relations: Vec<Relation>,
    /// Columns of `public._rindle_client_mutations`, when it exists: name, type, whether it is the primary key.
    pub(super) client_mutations: Option<Vec<(String, String, bool)>>,
    /// What there is of the capture of schema changes.
    pub(super) capture: Found,
    /// Why no event trigger can be made; none when the role may.
    pub(super) no_trigger_right: Option<Finding>,
}

/// The server, and where our own objects are.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Ours {
    pub(super) version_num: u32,
    pub(super) version: String,
    pub(super) schema: bool,
    pub(super) ledger: bool,
}

/// A publication.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Publication {
    pub(super) all_tables: bool,
    /// It sends every operation, and partitions under their own name.
    pub(super) whole: bool,
    pub(super) tables: Vec<(String, String)>,
    pub(super) schemas: Vec<String>,
}

/// A wanted table.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Relation {
    pub(super) schema: String,
    pub(super) name: String,
    /// `relkind`; none when it does not exist.
    pub(super) kind: Option<char>,
    pub(super) persistence: Option<char>,
    /// What it is a partition of, topmost first.
    pub(super) ancestors: Vec<(String, String)>,
    /// Tables of nearly that name, when it does not exist.
    pub(super) similar: Vec<String>,
}

impl Present {
    pub(super) fn is_ours(&self, kind: &str, name: &str) -> bool {
        self.ledger.iter().any(|(k, n)| k == kind && n == name)
    }
}

/// Reads what is there, in the transaction that the session is in.
pub(super) async fn read(
    client: &Client,
    publication: &str,
    wanted: &[TableName],
) -> Result<Present, LifecycleError> {
    let server: Ours = all(client, OURS, &[])
        .await?
        .into_iter()
        .next()
        .unwrap_or_default();
    let ledger = match server.ledger {
        true => all(client, LEDGER, &[]).await?,
        false => Vec::new(),
    };
    let schemas: Vec<&str> = wanted.iter().map(|table| &*table.schema).collect();
    let names: Vec<&str> = wanted.iter().map(|table| &*table.name).collect();
    Ok(Present {
        server,
        ledger,
        publication: all(client, PUBLICATION, &[&publication])
            .await?
            .into_iter()
            .next(),
        relations: all(client, RELATIONS, &[&schemas, &names]).await?,
        client_mutations: all(client, CLIENT_MUTATIONS, &[]).await?.into_iter().next(),
        capture: ddl::read(client).await?,
        no_trigger_right: try_trigger(client).await?,
    })
}

async fn try_trigger(client: &Client) -> Result<Option<Finding>, LifecycleError> {
    let failed = LifecycleError::postgres("try to make an event trigger");
    let begun = client.batch_execute("SAVEPOINT rindle_probe").await;
    begun.map_err(&failed)?;
    let tried = client.batch_execute(admission::capture::TRY_TRIGGER).await;
    let undone = client
        .batch_execute("ROLLBACK TO SAVEPOINT rindle_probe; RELEASE SAVEPOINT rindle_probe")
        .await;
    undone.map_err(&failed)?;
    Ok(tried
        .err()
        .map(|error| admission::capture::no_right(&error)))
}

async fn all<T: DeserializeOwned>(
    client: &Client,
    sql: &str,
    parameters: &[&(dyn ToSql + Sync)],
) -> Result<Vec<T>, LifecycleError> {
    let failed = LifecycleError::postgres("read what is there");
    let rows = client.query(sql, parameters).await.map_err(&failed)?;
    let text = |row: &tokio_postgres::Row| row.try_get::<_, String>(0).map_err(&failed);
    let document = |text: String| {
        serde_json::from_str(&text).map_err(|error| LifecycleError::from(CatalogError::from(error)))
    };
    rows.iter()
        .map(|row| text(row).and_then(document))
        .collect()
}
