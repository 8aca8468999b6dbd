//! `prepare --role`: what the gateway's role needs and does not have. Only what was given here is written down, so
//! that only that is taken back.

use tokio_postgres::Client;

use super::{PrepareRequest, ledger};
use crate::lifecycle::admission::{self, Finding};
use crate::lifecycle::error::{LifecycleError, Refusal};
use crate::lifecycle::names::quote_literal;
use crate::pg::catalog::quote_ident;

const ROLE: &str = "SELECT rolreplication OR rolsuper FROM pg_catalog.pg_roles WHERE rolname = $1";

/// Every relation that holds rows of a table: a copy reads each leaf by itself.
const RIGHTS: &str = "
WITH RECURSIVE named AS (
    SELECT c.oid FROM unnest($2::text[], $3::text[]) w(schema, name)
    JOIN pg_namespace n ON n.nspname = w.schema JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = w.name
    UNION SELECT c.oid FROM pg_publication_tables t
    JOIN pg_namespace n ON n.nspname = t.schemaname
    JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename WHERE t.pubname = $4),
tree(oid) AS (SELECT oid FROM named UNION SELECT i.inhrelid FROM tree t
    JOIN pg_class p ON p.oid = t.oid AND p.relkind = 'p' JOIN pg_inherits i ON i.inhparent = t.oid),
held AS (SELECT c.oid, c.relname, c.relnamespace, n.nspname FROM tree JOIN pg_class c USING (oid)
    JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind = 'r' AND n.nspname <> 'rindle'),
-- What the role needs of ours: to know what is in the ledger, to read what was announced and take it away again,
-- to say what was copied, and what nobody told.
-- USAGE of the schema is its own, for what everybody has may be taken from everybody.
ours(name, has) AS (VALUES
    ('USAGE ON SCHEMA rindle', (SELECT pg_has_role($1::name, n.nspowner, 'USAGE')
        OR EXISTS (SELECT FROM aclexplode(n.nspacl) a WHERE a.privilege_type = 'USAGE' AND a.grantee <> 0
            AND pg_has_role($1::name, a.grantee, 'USAGE'))
        FROM pg_namespace n WHERE n.nspname = 'rindle')),
    ('SELECT ON rindle.ledger', has_table_privilege($1::name, to_regclass('rindle.ledger')::oid, 'SELECT')),
    ('SELECT ON rindle.published_schema',
        has_table_privilege($1::name, to_regclass('rindle.published_schema')::oid, 'SELECT')),
    ('EXECUTE ON FUNCTION rindle.copied(jsonb)',
        has_function_privilege($1::name, to_regprocedure('rindle.copied(jsonb)')::oid, 'EXECUTE')),
    ('EXECUTE ON FUNCTION rindle.retell(oid[])',
        has_function_privilege($1::name, to_regprocedure('rindle.retell(oid[])')::oid, 'EXECUTE')),
    ('EXECUTE ON FUNCTION rindle.forget(bigint)',
        has_function_privilege($1::name, to_regprocedure('rindle.forget(bigint)')::oid, 'EXECUTE')))
SELECT DISTINCT format('USAGE ON SCHEMA %I', nspname), NOT has_schema_privilege($1::name, relnamespace, 'USAGE'), false
    FROM held
UNION SELECT format('SELECT ON %I.%I', nspname, relname), NOT has_table_privilege($1::name, oid, 'SELECT'), false
    FROM held
UNION SELECT name, NOT coalesce(has, false), true FROM ours
UNION SELECT 'pg_read_all_stats', NOT pg_has_role($1::name, 'pg_read_all_stats', 'USAGE'), true
    WHERE (SELECT rolsuper FROM pg_roles WHERE rolname = current_user)
ORDER BY 1 DESC";

/// What to run for a role.
pub(super) struct Grants {
    pub(super) statements: Vec<String>,
    /// What only changes who our ledger says needs a right.
    pub(super) quiet: Vec<String>,
    /// What cannot be granted here.
    pub(super) findings: Vec<Finding>,
}

/// What the role lacks, in the transaction that the session is in. `schema_is_there` tells whether ours was made yet.
pub(super) async fn lacking(
    client: &Client,
    request: &PrepareRequest,
    publication: &str,
    role: &str,
    schema_is_there: bool,
) -> Result<Grants, LifecycleError> {
    let failed = LifecycleError::postgres("look at the role's rights");
    let found = client.query_opt(ROLE, &[&role]).await.map_err(&failed)?;
    let Some(found) = found else {
        return Err(Refusal::from(no_such_role(role)).into());
    };
    let replicates: bool = found.try_get(0).map_err(&failed)?;
    let tables = request.tables.iter();
    let (schemas, names): (Vec<&str>, Vec<&str>) =
        tables.map(|table| (&*table.schema, &*table.name)).unzip();
    let rows = client
        .query(RIGHTS, &[&role, &schemas, &names, &publication])
        .await
        .map_err(&failed)?;
    let (mut statements, mut quiet) = (Vec::new(), Vec::new());
    let role_name = quote_ident(role);
    for row in rows {
        let right: String = row.try_get(0).map_err(&failed)?;
        let (lacks, common) = (
            row.try_get(1).map_err(&failed)?,
            row.try_get(2).map_err(&failed)?,
        );
        // What several sources need goes with the last of them.
        let source = if common { "" } else { request.source.as_str() };
        match lacks {
            true => statements.extend(grant(&right, &role_name, source)),
            false if schema_is_there => quiet.push(shared(&right, &role_name, source)),
            false => {}
        }
    }
    let no_right = "its REPLICATION attribute is not set";
    let finding = (!replicates).then(|| admission::no_replication_right(role, no_right, None));
    Ok(Grants {
        statements,
        quiet,
        findings: finding.into_iter().map(Finding::warning).collect(),
    })
}

fn grant(right: &str, role: &str, source: &str) -> [String; 2] {
    let grant = format!("GRANT {right} TO {role}");
    [
        ledger::record("grant", &name(right, role), source, &grant),
        grant,
    ]
}

/// One that we gave for another source, if we did, stays until the last that needs it is gone.
fn shared(right: &str, role: &str, source: &str) -> String {
    let (name, source) = (quote_literal(&name(right, role)), quote_literal(source));
    format!(
        "UPDATE rindle.ledger SET source = '' WHERE kind = 'grant' AND name = {name} AND source NOT IN ('', {source})"
    )
}

/// Both parts may hold any character, so no separator would do.
pub(super) fn name(right: &str, role: &str) -> String {
    serde_json::json!([right, role]).to_string()
}

fn no_such_role(role: &str) -> Finding {
    let seen = format!("role {role:?} does not exist");
    let why = "rights are given to a role that is there";
    let mend = format!("CREATE ROLE {} LOGIN REPLICATION", quote_ident(role));
    Finding::fatal("NoSuchRole", seen, why, mend)
}
