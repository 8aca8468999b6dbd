//! The part of the plan that makes the capture of schema changes, or makes it again as it should be. Pure.

use super::ledger;
use super::plan::Plan;
use super::present::Present;
use crate::ddl::found::{Drift, Entry, FoundTrigger};
use crate::ddl::recipe::{self, FUNCTIONS, Function, TRIGGERS, Trigger};
use crate::ddl::{Found, VERSION};
use crate::lifecycle::admission::Finding;
use crate::pg::catalog::quote_ident;

/// Adds what makes it to the plan, or gives what forbids it. `by_hand` prints what another role is to run, so this
/// one's rights do not matter.
pub(super) fn plan(present: &Present, by_hand: bool, plan: &mut Plan) -> Vec<Finding> {
    let found = &present.capture;
    let refused = refusals(found);
    if !refused.is_empty() {
        return refused;
    }
    let (drift, triggers) = (found.drift(), found.trigger_drift());
    let left_over = found.left_over();
    let lacks_right = present.no_trigger_right.as_ref().filter(|_| !by_hand);
    if !found.is_bare() {
        let lines = drift.iter().chain(&triggers).map(ToString::to_string);
        plan.repaired.extend(lines);
    }
    if let Some(no_right) = lacks_right {
        plan.told
            .extend((!triggers.is_empty()).then(|| no_right.clone()));
    }
    let statements = &mut plan.statements;
    // A trigger must not call what is half made.
    let rebuilds = !drift.is_empty() || !left_over.is_empty();
    if rebuilds && lacks_right.is_none() {
        statements.extend(found.triggers.iter().filter_map(known).map(Trigger::drop));
    }
    left_over
        .iter()
        .for_each(|entry| drop_left_over(entry, statements));
    table(found, &drift, statements);
    for function in &FUNCTIONS {
        let identity = function.identity();
        if differs(&drift, &identity) || is_old(found, "function", &identity) {
            make(found, function, statements);
        }
    }
    if !found.usage {
        let grant = format!("GRANT {} TO PUBLIC", recipe::PUBLIC_USAGE);
        let name = super::grants::name(recipe::PUBLIC_USAGE, "PUBLIC");
        statements.extend([ledger::record("grant", &name, "", &grant), grant]);
    }
    if lacks_right.is_none() {
        for trigger in &TRIGGERS {
            let old = is_old(found, "event trigger", trigger.name);
            if rebuilds || old || differs(&triggers, trigger.name) {
                make_trigger(found, trigger, rebuilds, statements);
            }
        }
    }
    // Without triggers what this changes in a publication is announced by hand, as anybody would have to.
    plan.announces = lacks_right.is_some() && found.triggers.is_empty();
    Vec::new()
}

/// Names that are taken, a newer recipe, a table that cannot be mended.
fn refusals(found: &Found) -> Vec<Finding> {
    if let Some((_, newest)) = found.versions().filter(|(_, newest)| *newest > VERSION) {
        let seen =
            format!("version {newest} of the capture recipe is there; this program has {VERSION}");
        let why = "what a newer program made is not replaced by what an older one knows";
        let mend = "run the program that prepared this database";
        return vec![Finding::fatal("PreparedByNewer", seen, why, mend)];
    }
    let functions = found.functions.iter().map(|it| ("function", &*it.identity));
    let ours = functions.filter(|(_, name)| FUNCTIONS.iter().any(|made| made.identity() == *name));
    let triggers = found.triggers.iter().filter(|it| known(it).is_some());
    let triggers = triggers.map(|it| ("event trigger", &*it.name));
    let table = found.table.iter().map(|_| ("table", recipe::TABLE));
    let there = ours.chain(triggers).chain(table);
    let strangers = there.filter(|(kind, name)| found.entry(kind, name).is_none());
    let mut refused: Vec<Finding> = strangers.map(|(kind, name)| taken(kind, name)).collect();
    if let Some(table) = &found.table
        && !table.sound
    {
        let why = "the gateway proves announcements by its rows";
        let seen = "its columns, triggers or rules are not those it was made with";
        let mend = format!("DROP TABLE {}, and run this again", recipe::TABLE);
        refused.push(Finding::fatal("CaptureTable", seen, why, mend).about(recipe::TABLE));
    }
    refused
}

fn taken(kind: &str, name: &str) -> Finding {
    let seen = format!("there is a {kind} of this name, and it is not in the ledger");
    let why = "what is not in the ledger is somebody else's and is not replaced";
    let mend = format!("rename or drop the {kind} {name}, and run this again");
    Finding::fatal("NameTaken", seen, why, mend).about(name)
}

/// The trigger of the recipe of that name.
fn known(found: &FoundTrigger) -> Option<&'static Trigger> {
    TRIGGERS.iter().find(|made| made.name == found.name)
}

fn differs(drift: &[Drift], name: &str) -> bool {
    drift.iter().any(|one| one.name == name)
}

fn is_old(found: &Found, kind: &str, name: &str) -> bool {
    found
        .entry(kind, name)
        .is_some_and(|entry| entry.version < VERSION)
}

fn table(found: &Found, drift: &[Drift], statements: &mut Vec<String>) {
    let record = || ledger::record("table", recipe::TABLE, "", recipe::CREATE_TABLE);
    match &found.table {
        None => statements.extend([recipe::CREATE_TABLE.to_owned(), record()]),
        Some(table) => {
            let revoke = |writer: &String| {
                let writer = match &**writer {
                    "PUBLIC" => writer.clone(),
                    role => quote_ident(role),
                };
                format!(
                    "REVOKE INSERT, UPDATE, DELETE, TRUNCATE, TRIGGER ON {} FROM {writer}",
                    recipe::TABLE
                )
            };
            let writers = table
                .writers
                .iter()
                .filter(|_| differs(drift, recipe::TABLE));
            statements.extend(writers.map(revoke));
            statements.extend(is_old(found, "table", recipe::TABLE).then(record));
        }
    }
}

fn make(found: &Found, function: &Function, statements: &mut Vec<String>) {
    let identity = function.identity();
    let there = found.functions.iter().find(|it| it.identity == identity);
    if there.is_some_and(|it| it.result != function.result) {
        statements.push(format!("DROP FUNCTION {identity}"));
    }
    let create = function.create(found.home);
    statements.extend([ledger::record("function", &identity, "", &create), create]);
    statements.push(function.rights());
    // They write as one role, the table's owner.
    if let Some(table) = &found.table {
        let owner = quote_ident(&table.owner);
        statements.push(format!("ALTER FUNCTION {identity} OWNER TO {owner}"));
    }
}

fn make_trigger(found: &Found, made: &Trigger, dropped: bool, statements: &mut Vec<String>) {
    let there = found.triggers.iter().any(|it| it.name == made.name);
    if there && !dropped {
        statements.push(made.drop());
    }
    let create = made.create();
    statements.push(ledger::record("event trigger", made.name, "", &create));
    statements.extend([create, made.enable()]);
}

fn drop_left_over(entry: &Entry, statements: &mut Vec<String>) {
    let Entry { kind, name, .. } = entry;
    let what = match &**kind {
        "function" => format!("FUNCTION IF EXISTS {name}"),
        "event trigger" => format!("EVENT TRIGGER IF EXISTS {}", quote_ident(name)),
        _ => return,
    };
    statements.push(format!("DROP {what}"));
    statements.push(ledger::forget(kind, name));
}
