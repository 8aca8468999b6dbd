//! `rindle pg deprovision`: removes exactly what the ledger says was made for a source, and the source's slots.
//! What everything shares goes with the last source. Safe to run twice.

use std::collections::BTreeSet;

use rindle_proto::ids::SourceName;
use serde::{Deserialize, Serialize};
use tokio_postgres::Client;

use super::admission::Finding;
use super::error::{LifecycleError, Refusal};
use super::names::quote_literal;
use super::prepare::LOCK_KEY;
use super::slots;
use crate::pg::catalog::quote_ident;
use crate::pg::conn;
use crate::pg::endpoint::Endpoint;

/// Server error of a DROP that something depends on.
const DEPENDENT_OBJECTS: &str = "2BP01";

const LEDGER_EXISTS: &str = "SELECT to_regclass('rindle.ledger') IS NOT NULL";

/// What was made for the source, and, when no other source is left, for all. Dependents before what they depend on, and event
/// triggers first of all: they would tell of each other thing that goes.
const MADE: &str = "
SELECT jsonb_build_object('kind', l.kind, 'name', l.name)::text
FROM rindle.ledger l
WHERE l.source = $1 OR l.source = ''
    AND NOT EXISTS (SELECT FROM rindle.ledger o WHERE o.source NOT IN ('', $1))
ORDER BY array_position(ARRAY['event trigger', 'grant', 'publication', 'function', 'table', 'schema'], l.kind),
    l.name = 'rindle.ledger', l.name";

/// Other sources of this database.
const OTHERS: &str =
    "SELECT DISTINCT source::text FROM rindle.ledger WHERE source NOT IN ('', $1) ORDER BY 1";

/// Publications of others that send one of our tables. Postgres would take it out of them without a word.
const PUBLISHED_BY_OTHERS: &str = "
SELECT format('publication %I sends %I.%I', p.pubname, n.nspname, c.relname)
FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
JOIN pg_class c ON c.oid = r.prrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE format('%s.%s', n.nspname, c.relname) = ANY($1) AND p.pubname <> ALL($2) ORDER BY 1";

/// What to remove.
#[derive(Clone, Debug)]
pub struct DeprovisionRequest {
    /// Where Postgres is; the role must own what was made.
    pub endpoint: Endpoint,
    /// The source.
    pub source: SourceName,
    /// Do it; else only say what would be done.
    pub yes: bool,
}

/// What was removed, or would be.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Deprovisioned {
    /// The source.
    pub source: SourceName,
    /// It was done.
    pub done: bool,
    /// Statements, in one transaction.
    pub statements: Vec<String>,
    /// Slots, dropped after it.
    pub slots: Vec<String>,
    /// What an operator should know.
    pub findings: Vec<Finding>,
}

/// What a plan consists of.
#[derive(Debug, Default)]
struct Plan {
    statements: Vec<String>,
    findings: Vec<Finding>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
struct Made {
    kind: String,
    name: String,
}

/// Removes what was made for a source.
///
/// # Errors
/// When a slot is in use, or something of the user's depends on what was made: nothing is changed then.
pub async fn deprovision(request: &DeprovisionRequest) -> Result<Deprovisioned, LifecycleError> {
    let application_name = format!("rindle-deprovision {}", request.source);
    let client = conn::connect(&request.endpoint, &application_name).await?;
    let slots = slots::of_source(&client, &request.source).await?;
    let busy: Vec<Finding> = slots.iter().filter_map(slots::in_use).collect();
    if !busy.is_empty() {
        return Err(Refusal { findings: busy }.into());
    }
    // Before anything is removed: a gateway that starts just now holds its lock, or finds it taken.
    for slot in slots.iter().filter(|_| request.yes) {
        slots::lock(&client, slot.lock_key).await?;
    }
    let begin = format!("BEGIN; SELECT pg_catalog.pg_advisory_xact_lock({LOCK_KEY})");
    run(&client, &begin).await?;
    // Dropping the client before COMMIT rolls everything back.
    let Plan {
        statements,
        findings,
    } = plan(&client, &request.source).await?;
    for statement in &statements {
        run(&client, statement).await?;
    }
    run(&client, if request.yes { "COMMIT" } else { "ROLLBACK" }).await?;
    if request.yes {
        for slot in &slots {
            slots::drop(&client, slot).await?;
        }
    }
    Ok(Deprovisioned {
        source: request.source.clone(),
        done: request.yes,
        statements,
        slots: slots.into_iter().map(|slot| slot.name).collect(),
        findings,
    })
}

async fn plan(client: &Client, source: &SourceName) -> Result<Plan, LifecycleError> {
    let failed = LifecycleError::postgres("read the ledger");
    let there = client
        .query_one(LEDGER_EXISTS, &[])
        .await
        .map_err(&failed)?;
    if !there.try_get::<_, bool>(0).map_err(&failed)? {
        return Ok(Plan::default());
    }
    let rows = client
        .query(MADE, &[&source.as_str()])
        .await
        .map_err(&failed)?;
    let mut made: Vec<Made> = Vec::new();
    for row in rows {
        let text: String = row.try_get(0).map_err(&failed)?;
        made.push(
            serde_json::from_str(&text).map_err(|error| LifecycleError::Catalog(error.into()))?,
        );
    }
    refuse_what_others_publish(client, &made).await?;
    let takes_ledger = made.iter().any(|one| one.name == "rindle.ledger");
    let mut statements = made
        .iter()
        .map(drop_statement)
        .collect::<Result<Vec<String>, Refusal>>()?;
    if !made.is_empty() && !takes_ledger {
        let source = quote_literal(source.as_str());
        statements.push(format!("DELETE FROM rindle.ledger WHERE source = {source}"));
    }
    let others = client
        .query(OTHERS, &[&source.as_str()])
        .await
        .map_err(&failed)?;
    let others = others.iter().map(|row| row.try_get::<_, String>(0));
    let others: Vec<String> = others.collect::<Result<_, _>>().map_err(&failed)?;
    Ok(Plan {
        statements,
        findings: rights_of_others(&made, &others).into_iter().collect(),
    })
}

/// A source that was prepared while the role had a right already did not write it down, so nobody knows whether it needs it.
fn rights_of_others(made: &[Made], others: &[String]) -> Option<Finding> {
    let grants = made.iter().filter(|one| one.kind == "grant");
    let roles = grants.filter_map(|one| serde_json::from_str::<(String, String)>(&one.name).ok());
    let roles: BTreeSet<String> = roles.map(|(_, role)| role).collect();
    if roles.is_empty() || others.is_empty() {
        return None;
    }
    let roles = Vec::from_iter(roles).join(", ");
    let seen = format!(
        "rights of role {roles} are revoked, and source {} stays in this database",
        others.join(", ")
    );
    let why = "a gateway of that role may need them for a source that was prepared without --role, and would stop reading";
    let mend = format!("run rindle pg prepare --role {roles} for what stays, before or after this");
    Some(Finding::fatal("RightsOfOthers", seen, why, mend).warning())
}

/// RESTRICT is the default everywhere: nothing of the user's is taken along. IF EXISTS, for what was dropped by hand.
fn drop_statement(made: &Made) -> Result<String, Refusal> {
    let name = &made.name;
    let qualified = || {
        let parts = name.split('.').map(quote_ident);
        parts.collect::<Vec<_>>().join(".")
    };
    Ok(match &*made.kind {
        "grant" => revoke_statement(name).ok_or_else(|| unknown(made))?,
        "publication" => format!("DROP PUBLICATION IF EXISTS {}", quote_ident(name)),
        "event trigger" => format!("DROP EVENT TRIGGER IF EXISTS {}", quote_ident(name)),
        // Written down with its argument types.
        "function" => format!("DROP FUNCTION IF EXISTS {name}"),
        "table" => format!("DROP TABLE IF EXISTS {}", qualified()),
        "schema" => format!("DROP SCHEMA IF EXISTS {}", quote_ident(name)),
        _ => return Err(unknown(made)),
    })
}

fn unknown(made: &Made) -> Refusal {
    let Made { kind, name } = made;
    let seen = format!("the ledger names a {kind} {name:?}, which this program does not know");
    let why = "a newer program made it";
    let mend = "run deprovision of the program that prepared this source";
    Finding::fatal("LedgerUnknown", seen, why, mend).into()
}

/// What a right was given on, or to, may be gone; then so is the right.
fn revoke_statement(grant: &str) -> Option<String> {
    let (right, role): (String, String) = serde_json::from_str(grant).ok()?;
    Some(format!(
        "DO $rindle$ BEGIN REVOKE {right} FROM {role}; EXCEPTION WHEN undefined_table OR undefined_function OR \
         undefined_object OR invalid_schema_name THEN NULL; END $rindle$"
    ))
}

async fn refuse_what_others_publish(client: &Client, made: &[Made]) -> Result<(), LifecycleError> {
    let of = |kind: &str| -> Vec<&str> {
        let found = made.iter().filter(|one| one.kind == kind);
        found.map(|one| &*one.name).collect()
    };
    let (tables, ours) = (of("table"), of("publication"));
    let failed = LifecycleError::postgres("look for publications of these tables");
    let rows = client
        .query(PUBLISHED_BY_OTHERS, &[&tables, &ours])
        .await
        .map_err(&failed)?;
    let found = rows.iter().map(|row| row.try_get::<_, String>(0));
    let found: Vec<String> = found.collect::<Result<_, _>>().map_err(&failed)?;
    match found.is_empty() {
        true => Ok(()),
        false => Err(dependents(&found.join("; ")).into()),
    }
}

fn dependents(what: &str) -> Finding {
    let why = "it is not in the ledger, so it is not ours to remove";
    let mend = "drop it, or change it so that it does not need what goes, then run this again";
    Finding::fatal("Dependents", what.to_owned(), why, mend)
}

async fn run(client: &Client, statement: &str) -> Result<(), LifecycleError> {
    let done = client.batch_execute(statement).await;
    done.map_err(|error| match error.as_db_error() {
        Some(said) if said.code().code() == DEPENDENT_OBJECTS => {
            let detail = said.detail().unwrap_or_default().replace('\n', "; ");
            dependents(&format!("{}: {detail}", said.message())).into()
        }
        _ => LifecycleError::postgres(&format!("run {statement}"))(error),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dropped_is_quoted_and_known() {
        let made = |kind: &str, name: &str| Made {
            kind: kind.to_owned(),
            name: name.to_owned(),
        };
        let sql = drop_statement(&made("table", "public._rindle_client_mutations")).unwrap();
        assert_eq!(
            sql,
            r#"DROP TABLE IF EXISTS "public"."_rindle_client_mutations""#
        );
        let sql = drop_statement(&made("publication", "a\"b")).unwrap();
        assert_eq!(sql, r#"DROP PUBLICATION IF EXISTS "a""b""#);
        let grant = serde_json::json!(["SELECT ON public.t", "\"a TO b\""]).to_string();
        let sql = drop_statement(&made("grant", &grant)).unwrap();
        assert!(
            sql.contains(r#"REVOKE SELECT ON public.t FROM "a TO b";"#),
            "{sql}"
        );
        assert!(drop_statement(&made("grant", "SELECT")).is_err());
        assert!(drop_statement(&made("database", "x")).is_err());
    }

    #[test]
    fn rights_that_another_source_may_need_are_told() {
        let grant = Made {
            kind: "grant".to_owned(),
            name: serde_json::json!(["SELECT ON public.t", "gate"]).to_string(),
        };
        let publication = Made {
            kind: "publication".to_owned(),
            name: "rindle_app".to_owned(),
        };
        let others = ["other".to_owned()];
        let told = rights_of_others(&[grant.clone(), publication.clone()], &others).unwrap();
        assert!(!told.is_fatal());
        let told = told.to_string();
        assert!(
            told.contains("role gate") && told.contains("source other"),
            "{told}"
        );
        assert_eq!(rights_of_others(&[grant], &[]), None);
        assert_eq!(rights_of_others(&[publication], &others), None);
    }
}
