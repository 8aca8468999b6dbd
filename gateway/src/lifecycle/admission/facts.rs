//! Reading what the checks look at. One snapshot, no lock on any table.

use rindle_proto::ids::Oid;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio_postgres::Client;
use tokio_postgres::types::ToSql;

use crate::lifecycle::error::LifecycleError;
use crate::pg::catalog::{self, CatalogError, CatalogView};

const SESSION: &str = "
SELECT jsonb_build_object('version_num', current_setting('server_version_num')::int,
    'version', current_setting('server_version'), 'wal_level', current_setting('wal_level'),
    'in_recovery', pg_is_in_recovery(), 'encoding', pg_encoding_to_char(d.encoding),
    'reads_as_utf8', d.encoding = pg_char_to_encoding('UTF8') OR EXISTS (
        SELECT FROM pg_conversion c WHERE c.condefault AND c.conforencoding = d.encoding
            AND c.contoencoding = pg_char_to_encoding('UTF8')),
    'slots', (SELECT count(*) FROM pg_replication_slots),
    'slots_max', current_setting('max_replication_slots')::int,
    'senders', (SELECT count(*) FROM pg_stat_replication),
    'senders_max', current_setting('max_wal_senders')::int,
    'role', current_user)::text
FROM pg_database d WHERE d.datname = current_database()";

const RIGHTS: &str = "
SELECT jsonb_build_object('oid', c.oid::int8,
    'usage', has_schema_privilege(c.relnamespace, 'USAGE'),
    'select', has_table_privilege(c.oid, 'SELECT'),
    'row_security', row_security_active(c.oid))::text
FROM pg_class c WHERE c.oid = ANY($1) ORDER BY c.oid";

/// Everything that the checks look at.
#[derive(Clone, Debug)]
pub struct SourceFacts {
    /// Server and role.
    pub session: SessionFacts,
    /// Name of the publication.
    pub publication: String,
    /// The publication and its tables; none when it does not exist.
    pub view: Option<CatalogView>,
    /// What the role may do with each relation that holds rows.
    pub rights: Vec<RelationRights>,
}

/// The server, and who we are there.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct SessionFacts {
    /// `server_version_num`, such as 150018.
    pub version_num: u32,
    /// `server_version`, for people.
    pub version: String,
    /// `wal_level`.
    pub wal_level: String,
    /// It is a standby.
    pub in_recovery: bool,
    /// Encoding of the database.
    pub encoding: String,
    /// Postgres converts that encoding to UTF-8.
    pub reads_as_utf8: bool,
    /// Replication slots that exist.
    pub slots: u32,
    /// `max_replication_slots`.
    pub slots_max: u32,
    /// WAL senders at work.
    pub senders: u32,
    /// `max_wal_senders`.
    pub senders_max: u32,
    /// The role.
    pub role: String,
}

/// What the role may do with a relation.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct RelationRights {
    /// The relation.
    pub oid: Oid,
    /// USAGE on its schema.
    pub usage: bool,
    /// SELECT on it.
    pub select: bool,
    /// Row-level security hides rows from this role.
    pub row_security: bool,
}

/// Reads everything, in the transaction that the session is in.
///
/// # Errors
/// When a query fails.
pub async fn read(client: &Client, publication: &str) -> Result<SourceFacts, LifecycleError> {
    let session = all(client, SESSION, &[]).await?.into_iter().next();
    let session = session.expect("a session's own database is in pg_database");
    let view = match catalog::read(client, publication).await {
        Ok(view) => Some(view),
        Err(CatalogError::NoPublication { .. }) => None,
        Err(error) => return Err(error.into()),
    };
    let relations = view
        .iter()
        .flat_map(|view| &view.tables)
        .flat_map(super::tables::physical);
    let oids: Vec<u32> = relations.map(|relation| relation.oid.0).collect();
    let rights = all(client, RIGHTS, &[&oids]).await?;
    Ok(SourceFacts {
        session,
        publication: publication.to_owned(),
        view,
        rights,
    })
}

async fn all<T: DeserializeOwned>(
    client: &Client,
    sql: &str,
    parameters: &[&(dyn ToSql + Sync)],
) -> Result<Vec<T>, LifecycleError> {
    let failed = LifecycleError::postgres("read settings and rights");
    let rows = client.query(sql, parameters).await.map_err(&failed)?;
    let text = |row: &tokio_postgres::Row| row.try_get::<_, String>(0).map_err(&failed);
    let document = |text: String| {
        serde_json::from_str(&text).map_err(|error| LifecycleError::Catalog(error.into()))
    };
    rows.iter()
        .map(|row| text(row).and_then(document))
        .collect()
}
