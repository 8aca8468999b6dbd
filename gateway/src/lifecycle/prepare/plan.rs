//! From what is wanted and what is there to the statements to run. Pure.

use super::PrepareRequest;
use super::capture;
use super::ledger;
use super::present::{Present, Publication, Relation};
use crate::lifecycle::admission::{self, Finding};
use crate::lifecycle::error::Refusal;
use crate::lifecycle::names::TableName;
use crate::pg::catalog::quote_ident;

const CREATE_MUTATIONS: &str = "\
CREATE TABLE public._rindle_client_mutations (
    client_id text PRIMARY KEY,
    last_mutation_id bigint NOT NULL
)";
const MUTATIONS_SHAPE: [(&str, &str, bool); 2] = [
    ("client_id", "text", true),
    ("last_mutation_id", "bigint", false),
];

/// Partitions come under their own name, so that what happens to one of them is known.
const OPTIONS: &str =
    "publish = 'insert, update, delete, truncate', publish_via_partition_root = false";

/// What to run.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) ours: bool,
    pub(super) statements: Vec<String>,
    pub(super) added: Vec<TableName>,
    pub(super) removed: Vec<TableName>,
    pub(super) extra: Vec<TableName>,
    /// What of the capture of schema changes was not as it was made, and is made again.
    pub(super) repaired: Vec<String>,
    /// What an operator should know.
    pub(super) told: Vec<Finding>,
    /// Changes of a publication are to be announced by hand.
    pub(super) announces: bool,
}

/// Says what to run, or everything that forbids it.
pub(super) fn plan(
    request: &PrepareRequest,
    publication: &str,
    present: &Present,
) -> Result<Plan, Refusal> {
    let old = admission::too_old(present.server.version_num, &present.server.version);
    let mut findings: Vec<Finding> = old.into_iter().collect();
    let ours = present.publication.is_none() || present.is_ours("publication", publication);
    findings.extend(
        present
            .relations
            .iter()
            .filter_map(|table| unfit(table, ours)),
    );
    let mut wanted: Vec<TableName> = present.relations.iter().map(table_name).collect();
    if request.client_mutations {
        findings.extend(wrong_shape(present));
        if !wanted.contains(&client_mutations()) {
            wanted.push(client_mutations());
        }
    }
    let mut plan = Plan {
        ours,
        statements: Vec::new(),
        added: Vec::new(),
        removed: Vec::new(),
        extra: Vec::new(),
        repaired: Vec::new(),
        told: Vec::new(),
        announces: false,
    };
    base(present, &mut plan.statements);
    findings.extend(capture::plan(present, request.dry_run, &mut plan));
    if request.client_mutations && present.client_mutations.is_none() {
        plan.statements.push(CREATE_MUTATIONS.to_owned());
        let source = request.source.as_str();
        plan.statements.push(ledger::record(
            "table",
            "public._rindle_client_mutations",
            source,
            CREATE_MUTATIONS,
        ));
    }
    let before = plan.statements.len();
    match &present.publication {
        None if request.tables.is_empty() => findings.push(no_tables(publication)),
        None => create(request, publication, &wanted, &mut plan),
        Some(found) if ours => amend(request, publication, found, &wanted, &mut plan),
        Some(found) => {
            findings.extend(lacking(publication, found, &wanted, &present.relations));
        }
    }
    if plan.announces && plan.statements.len() > before {
        plan.statements
            .push("SELECT rindle.schema_hook()".to_owned());
    }
    match findings.is_empty() {
        true => Ok(plan),
        false => Err(Refusal { findings }),
    }
}

fn base(present: &Present, statements: &mut Vec<String>) {
    if !present.server.schema {
        statements.push(ledger::CREATE_SCHEMA.to_owned());
    }
    if !present.server.ledger {
        statements.push(ledger::CREATE_LEDGER.to_owned());
        statements.push(ledger::record(
            "table",
            "rindle.ledger",
            "",
            ledger::CREATE_LEDGER,
        ));
    }
    // A schema that was there before is somebody else's.
    if !present.server.schema {
        statements.push(ledger::record(
            "schema",
            "rindle",
            "",
            ledger::CREATE_SCHEMA,
        ));
    }
}

fn create(request: &PrepareRequest, name: &str, wanted: &[TableName], plan: &mut Plan) {
    let quoted = quote_ident(name);
    let tables = list(wanted);
    plan.statements.push(format!(
        "CREATE PUBLICATION {quoted} FOR TABLE {tables} WITH ({OPTIONS})"
    ));
    // Its tables come and go; what must not change is the rest.
    let definition = format!("CREATE PUBLICATION {quoted} WITH ({OPTIONS})");
    plan.statements.push(ledger::record(
        "publication",
        name,
        request.source.as_str(),
        &definition,
    ));
    plan.added = wanted.to_vec();
}

fn amend(
    request: &PrepareRequest,
    name: &str,
    found: &Publication,
    wanted: &[TableName],
    plan: &mut Plan,
) {
    let quoted = quote_ident(name);
    if !found.whole {
        plan.statements
            .push(format!("ALTER PUBLICATION {quoted} SET ({OPTIONS})"));
    }
    let has: Vec<TableName> = found
        .tables
        .iter()
        .map(|(s, n)| TableName::new(s, n))
        .collect();
    plan.added = wanted
        .iter()
        .filter(|table| !has.contains(table))
        .cloned()
        .collect();
    if !plan.added.is_empty() {
        let tables = list(&plan.added);
        plan.statements
            .push(format!("ALTER PUBLICATION {quoted} ADD TABLE {tables}"));
    }
    // Without named tables those of the publication are meant; ours is never too many.
    let extra = has
        .into_iter()
        .filter(|table| !wanted.contains(table) && *table != client_mutations());
    let extra: Vec<TableName> = match request.tables.is_empty() {
        true => Vec::new(),
        false => extra.collect(),
    };
    match request.prune && !extra.is_empty() {
        true => {
            let tables = list(&extra);
            plan.statements
                .push(format!("ALTER PUBLICATION {quoted} DROP TABLE {tables}"));
            plan.removed = extra;
        }
        false => plan.extra = extra,
    }
}

/// ONLY, so that the children of an inheritance parent come and go when they are named, and not otherwise.
fn list(tables: &[TableName]) -> String {
    tables
        .iter()
        .map(|table| format!("ONLY {}", table.quoted()))
        .collect::<Vec<_>>()
        .join(", ")
}

/// Tables that a publication of somebody else does not carry. It is never altered; the statement is for its owner.
fn lacking(
    name: &str,
    found: &Publication,
    wanted: &[TableName],
    relations: &[Relation],
) -> Vec<Finding> {
    let listed = |schema: &str, table: &str| {
        found.schemas.iter().any(|it| it == schema)
            || found.tables.iter().any(|(s, n)| s == schema && n == table)
    };
    let carried: Vec<TableName> = found
        .tables
        .iter()
        .map(|(s, n)| TableName::new(s, n))
        .collect();
    let carries = |table: &TableName| {
        let relation = relations
            .iter()
            .find(|relation| table_name(relation) == *table);
        let mut ancestors = relation.iter().flat_map(|relation| &relation.ancestors);
        found.all_tables
            || listed(&table.schema, &table.name)
            || ancestors.any(|(schema, name)| listed(schema, name))
    };
    let missing = wanted.iter().filter(|table| !carries(table));
    let finding = |table: &TableName| {
        let finding = admission::not_published(name, table, &carried);
        match *table == client_mutations() {
            // It cannot be published before it is there, and nothing is made when anything is refused.
            true => Finding {
                mend: format!("{CREATE_MUTATIONS}; {}", finding.mend),
                ..finding
            },
            false => finding,
        }
    };
    missing.map(finding).collect()
}

/// Why a named table cannot be published, if it cannot.
fn unfit(table: &Relation, ours: bool) -> Option<Finding> {
    let name = table_name(table);
    let why = "only ordinary, logged tables send changes";
    let found = match (table.kind, table.persistence) {
        (None, _) => {
            let mend = match table.similar.is_empty() {
                true => "check the name; names are taken as they are, letters' case too".to_owned(),
                false => format!("name it as it is: {}", table.similar.join(" or ")),
            };
            Finding::fatal(
                "NoSuchTable",
                "it does not exist",
                "only what exists is published",
                mend,
            )
        }
        (Some('r' | 'p'), Some('p')) if name.schema == "rindle" => {
            let why = "what this tool keeps for itself is not for mirrors";
            Finding::fatal(
                "ReservedName",
                "it is one of this tool's own tables",
                why,
                "leave it out",
            )
        }
        (Some('r' | 'p'), Some('p')) => match table.ancestors.first() {
            Some((schema, root)) if ours => {
                let root = TableName::new(schema, root);
                let seen = format!("it is a partition of {root}");
                let why = "partitions are mirrored as one table, by their root";
                Finding::fatal("IsPartition", seen, why, format!("name {root}"))
            }
            Some(_) | None => return None,
        },
        (Some('r' | 'p'), _) => {
            let mend = format!("ALTER TABLE {} SET LOGGED, or leave it out", name.quoted());
            Finding::fatal("Unlogged", "it is not logged", why, mend)
        }
        (Some(kind), _) => {
            let seen = format!("it is of relkind {kind:?}, not a table");
            Finding::fatal("NotATable", seen, why, "leave it out")
        }
    };
    Some(found.about(name.to_string()))
}

fn wrong_shape(present: &Present) -> Option<Finding> {
    let columns = present.client_mutations.as_ref()?;
    let same = columns
        .iter()
        .map(|(n, t, k)| (n.as_str(), t.as_str(), *k))
        .eq(MUTATIONS_SHAPE);
    (!same).then(|| {
        let seen = "it exists with other columns or another key";
        let why = "followers read confirmations from exactly this shape";
        let mend = format!("rename or drop it, or make it so: {CREATE_MUTATIONS}");
        Finding::fatal("ClientMutationsShape", seen, why, mend)
            .about(client_mutations().to_string())
    })
}

fn no_tables(publication: &str) -> Finding {
    let seen = format!("publication {publication:?} does not exist, and no table was named");
    let why = "the publication says which tables are mirrored";
    Finding::fatal(
        "NoTables",
        seen,
        why,
        "name them with --tables schema.table,…",
    )
}

fn client_mutations() -> TableName {
    TableName::new("public", "_rindle_client_mutations")
}

fn table_name(relation: &Relation) -> TableName {
    TableName::new(&relation.schema, &relation.name)
}
