//! Reading what the checks look at. One snapshot, no lock on any table.

use std::collections::BTreeMap;

use rindle_proto::ids::Oid;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio_postgres::Client;
use tokio_postgres::types::ToSql;

use super::provider;
use crate::ddl::{self, Found};
use crate::lifecycle::error::LifecycleError;
use crate::lifecycle::names::TableName;
use crate::pg::catalog::{self, CatalogError, CatalogView, TableFacts};

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
    'role', current_user,
    'replication_right', (SELECT rolreplication OR rolsuper FROM pg_roles WHERE rolname = current_user)
        OR EXISTS (SELECT FROM pg_roles WHERE rolname = 'rds_replication' AND pg_has_role(oid, 'MEMBER')),
    'sees_all', pg_has_role('pg_read_all_stats', 'USAGE'),
    'settings', (SELECT jsonb_object_agg(name, setting) FROM pg_settings WHERE name = ANY($1)))::text
FROM pg_database d WHERE d.datname = current_database()";

/// Settings that the checks look at; those of later versions are left out by earlier ones. In their base units.
const SETTINGS: [&str; 5] = [
    "max_slot_wal_keep_size",
    "idle_replication_slot_timeout",
    "synchronous_standby_names",
    "synchronous_commit",
    "synchronized_standby_slots",
];

const RIGHTS: &str = "
SELECT jsonb_build_object('oid', c.oid::int8,
    'usage', has_schema_privilege(c.relnamespace, 'USAGE'),
    'select', has_table_privilege(c.oid, 'SELECT'),
    'row_security', row_security_active(c.oid))::text
FROM pg_class c WHERE c.oid = ANY($1) ORDER BY c.oid";

/// Who wrote and has not ended: every such transaction holds a lock on its own id, which all roles may see.
const OPEN: &str = "
SELECT jsonb_build_object('pid', l.pid, 'user', a.usename, 'database', a.datname, 'state', a.state,
    'seconds', coalesce(extract(epoch FROM now() - a.xact_start)::int8, 0), 'query', left(a.query, 120))::text
FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted
    AND l.pid IS NOT NULL AND l.pid <> pg_backend_pid()
ORDER BY a.xact_start, l.pid";

const PREPARED: &str = "
SELECT jsonb_build_object('gid', gid, 'owner', owner, 'database', database,
    'prepared', date_trunc('second', prepared)::text)::text
FROM pg_prepared_xacts ORDER BY prepared";

const FAILOVER: &str = "
SELECT jsonb_build_object('synchronous_standbys', (SELECT count(*) FROM pg_stat_replication
        WHERE sync_state IN ('sync', 'quorum')),
    'active_physical_slots', coalesce((SELECT jsonb_agg(slot_name) FROM pg_replication_slots
        WHERE slot_type = 'physical' AND active), '[]'))::text";

const FINGERPRINTS: &str = "
SELECT jsonb_build_object(
    'roles', coalesce((SELECT jsonb_agg(rolname) FROM pg_roles WHERE rolname = ANY($1)), '[]'),
    'settings', coalesce((SELECT jsonb_agg(name) FROM pg_settings WHERE name = ANY($2)), '[]'),
    'functions', coalesce((SELECT jsonb_agg(DISTINCT proname) FROM pg_proc WHERE proname = ANY($3)), '[]'),
    'extensions', coalesce((SELECT jsonb_agg(extname) FROM pg_extension WHERE extname = ANY($4)), '[]'))::text";

/// Relations of the schemas that a publication covers, and whose rows it can never send.
const UNSENT: &str = "
SELECT jsonb_build_object('schema', n.nspname, 'name', c.relname, 'foreign', c.relkind = 'f')::text
FROM pg_publication p, pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE p.pubname = $1 AND (c.relkind = 'r' AND c.relpersistence = 'u' OR c.relkind = 'f')
    AND NOT c.relispartition AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'rindle')
    AND (p.puballtables OR EXISTS (SELECT FROM pg_publication_namespace s
        WHERE s.pnpubid = p.oid AND s.pnnspid = n.oid))
ORDER BY n.nspname, c.relname";

/// A role that may not look into our schema is told nothing of it, and gets no error.
const LEDGER: &str = "
SELECT to_jsonb(EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = 'rindle' AND c.relname = 'ledger' AND has_schema_privilege(n.oid, 'USAGE')
        AND has_table_privilege(c.oid, 'SELECT')))::text";
const OURS: &str = "
SELECT to_jsonb(EXISTS (SELECT FROM rindle.ledger WHERE kind = 'publication' AND name = $1))::text";

const NAMED: &str = "
SELECT jsonb_build_array(w.schema, w.name, c.oid::int8)::text
FROM unnest($1::text[], $2::text[]) WITH ORDINALITY w(schema, name, at)
LEFT JOIN pg_class c ON c.relname = w.name AND c.relkind IN ('r', 'p')
    AND c.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = w.schema)
ORDER BY w.at";

/// Everything that the checks look at.
#[derive(Clone, Debug)]
pub struct SourceFacts {
    /// Server and role.
    pub session: SessionFacts,
    /// Name of the publication.
    pub publication: String,
    /// The publication and its tables; none when it does not exist.
    pub view: Option<CatalogView>,
    /// The publication is in the ledger: made by us.
    pub ours: bool,
    /// Tables that were named and that the publication does not carry, as it would send them.
    pub unpublished: Vec<TableFacts>,
    /// Tables that were named and do not exist.
    pub unknown: Vec<TableName>,
    /// Tables that the publication covers by its schemas, and cannot send.
    pub unsent: Vec<UnsentTable>,
    /// What the role may do with each relation that holds rows.
    pub rights: Vec<RelationRights>,
    /// Transactions that have written.
    pub open: Vec<OpenTransaction>,
    /// Prepared transactions.
    pub prepared: Vec<PreparedTransaction>,
    /// What a failover needs.
    pub failover: FailoverFacts,
    /// What tells providers apart.
    pub fingerprints: Fingerprints,
    /// What there is of the capture of schema changes.
    pub(crate) capture: Found,
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
    /// The role may open replication sessions, as far as the catalog tells.
    pub replication_right: bool,
    /// The role sees what other sessions do (`pg_read_all_stats`).
    pub sees_all: bool,
    /// Some settings, in their base units.
    #[serde(default)]
    pub settings: BTreeMap<String, String>,
}

/// A transaction that has written and is not ended.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct OpenTransaction {
    /// Its process.
    pub pid: i32,
    /// Its user; none of these four when the role may not see them.
    pub user: Option<String>,
    /// Its database.
    pub database: Option<String>,
    /// What it does.
    pub state: Option<String>,
    /// Its last query, shortened.
    pub query: Option<String>,
    /// How long it is open.
    pub seconds: i64,
}

/// A prepared transaction.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct PreparedTransaction {
    /// Its global id.
    pub gid: String,
    /// Who prepared it.
    pub owner: String,
    /// Its database.
    pub database: String,
    /// Since when.
    pub prepared: String,
}

/// What a failover needs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct FailoverFacts {
    /// Standbys that commits wait for.
    pub synchronous_standbys: u32,
    /// Physical slots that a standby uses.
    pub active_physical_slots: Vec<String>,
}

/// Names that providers leave in a catalog, of those that are looked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Fingerprints {
    /// Roles.
    pub roles: Vec<String>,
    /// Settings.
    pub settings: Vec<String>,
    /// Functions.
    pub functions: Vec<String>,
    /// Extensions.
    pub extensions: Vec<String>,
}

/// A table without a stream.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct UnsentTable {
    /// Schema.
    pub schema: String,
    /// Name.
    pub name: String,
    /// A foreign table; else an unlogged one.
    pub foreign: bool,
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

/// Reads everything, in the transaction that the session is in. `wanted` are tables that were named.
///
/// # Errors
/// When a query fails.
pub async fn read(
    client: &Client,
    publication: &str,
    wanted: &[TableName],
) -> Result<SourceFacts, LifecycleError> {
    let settings = SETTINGS.as_slice();
    let session: SessionFacts = one(client, SESSION, &[&settings]).await?;
    if let Some(finding) = super::too_old(session.version_num, &session.version) {
        // Its catalog lacks what is asked for next.
        return Err(finding.into());
    }
    let view = match catalog::read(client, publication).await {
        Ok(view) => Some(view),
        Err(CatalogError::NoPublication { .. }) => None,
        Err(error) => return Err(error.into()),
    };
    let carried = |table: &TableName| view.as_ref().is_some_and(|view| carries(view, table));
    let lacking: Vec<&TableName> = wanted.iter().filter(|table| !carried(table)).collect();
    let (unpublished, unknown) = read_named(client, &lacking).await?;
    let tables = view
        .iter()
        .flat_map(|view| &view.tables)
        .chain(&unpublished);
    let relations = tables.flat_map(super::tables::physical);
    let oids: Vec<u32> = relations.map(|relation| relation.oid.0).collect();
    let ours = one(client, LEDGER, &[]).await? && one(client, OURS, &[&publication]).await?;
    let [roles, names, functions, extensions] = [
        provider::ROLES.as_slice(),
        &provider::SETTINGS,
        &provider::FUNCTIONS,
        &provider::EXTENSIONS,
    ];
    let (open, prepared) = writers(client).await?;
    Ok(SourceFacts {
        session,
        publication: publication.to_owned(),
        ours,
        unpublished,
        unknown,
        unsent: all(client, UNSENT, &[&publication]).await?,
        rights: all(client, RIGHTS, &[&oids]).await?,
        open,
        prepared,
        failover: one(client, FAILOVER, &[]).await?,
        capture: ddl::read(client).await?,
        fingerprints: one(
            client,
            FINGERPRINTS,
            &[&roles, &names, &functions, &extensions],
        )
        .await?,
        view,
    })
}

/// Every transaction that has written and is not ended: what the creation of a slot waits for. Longest open first.
///
/// # Errors
/// When a query fails.
pub(crate) async fn writers(
    client: &Client,
) -> Result<(Vec<OpenTransaction>, Vec<PreparedTransaction>), LifecycleError> {
    Ok((
        all(client, OPEN, &[]).await?,
        all(client, PREPARED, &[]).await?,
    ))
}

/// So many of those that a slot waits for are named.
const NAMED_BLOCKERS: usize = 3;

/// Who keeps a slot from being created, in words: transactions of any database, and prepared ones.
///
/// # Errors
/// When a query fails.
pub(crate) async fn blockers(client: &Client) -> Result<String, LifecycleError> {
    let (open, prepared) = writers(client).await?;
    let unknown = |text: Option<String>| text.unwrap_or_else(|| "unknown".to_owned());
    let open = open.into_iter().map(|one| {
        let (user, database) = (unknown(one.user), unknown(one.database));
        let (pid, seconds, query) = (one.pid, one.seconds, unknown(one.query));
        format!("pid {pid} ({user} in {database}, open for {seconds} s): {query}")
    });
    let prepared = prepared.into_iter().map(|one| {
        format!(
            "prepared transaction '{}' ({} in {}, since {}): COMMIT PREPARED or ROLLBACK PREPARED it",
            one.gid, one.owner, one.database, one.prepared
        )
    });
    let names: Vec<String> = prepared.chain(open).take(NAMED_BLOCKERS).collect();
    Ok(match names.is_empty() {
        true => "slot creation waits for older transactions to end".to_owned(),
        false => format!(
            "slot creation waits for older transactions to end: {}",
            names.join("; ")
        ),
    })
}

/// True when the publication carries the table.
pub(super) fn carries(view: &CatalogView, table: &TableName) -> bool {
    let name = |facts: &TableFacts| TableName::new(&*facts.relation.schema, &*facts.relation.name);
    view.tables.iter().any(|facts| name(facts) == *table)
}

async fn read_named(
    client: &Client,
    names: &[&TableName],
) -> Result<(Vec<TableFacts>, Vec<TableName>), LifecycleError> {
    let schemas: Vec<&str> = names.iter().map(|table| &*table.schema).collect();
    let tables: Vec<&str> = names.iter().map(|table| &*table.name).collect();
    let found: Vec<(String, String, Option<Oid>)> =
        all(client, NAMED, &[&schemas, &tables]).await?;
    let oids: Vec<u32> = found
        .iter()
        .filter_map(|(.., oid)| Some(oid.as_ref()?.0))
        .collect();
    let unknown = found.iter().filter(|(.., oid)| oid.is_none());
    let unknown = unknown
        .map(|(schema, name, _)| TableName::new(&**schema, &**name))
        .collect();
    Ok((catalog::read_tables(client, &oids).await?, unknown))
}

async fn one<T: DeserializeOwned>(
    client: &Client,
    sql: &str,
    parameters: &[&(dyn ToSql + Sync)],
) -> Result<T, LifecycleError> {
    let found = all(client, sql, parameters).await?.into_iter().next();
    found.ok_or_else(|| LifecycleError::Changed {
        what: "the catalog".to_owned(),
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
