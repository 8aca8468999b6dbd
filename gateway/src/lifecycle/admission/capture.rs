//! The capture of schema changes: there, whole, and made by this version. Each is something that an operator or a
//! restored dump can do to it at any time.

use super::Finding;
use crate::ddl::found::{Drift, What};
use crate::ddl::{Found, VERSION};

const ANNOUNCED_BY_HAND: &str = "a schema change is not announced by itself: it must be announced with rindle pg \
                                 schema-hook, or it stops the stream";
const PREPARE: &str =
    "run rindle pg prepare again, as the role that ran it first or as a superuser";

/// Makes an event trigger, in a transaction that is rolled back: managed servers give the right in ways that no
/// catalog shows.
pub(in crate::lifecycle) const TRY_TRIGGER: &str = "\
CREATE FUNCTION pg_temp.rindle_probe() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN END'; \
CREATE EVENT TRIGGER rindle_probe ON ddl_command_end EXECUTE FUNCTION pg_temp.rindle_probe()";

/// What is wrong with the recipe.
pub(in crate::lifecycle) fn check(found: &Found) -> Vec<Finding> {
    if found.is_bare() {
        return vec![missing()];
    }
    match found.versions() {
        Some((_, newest)) if newest > VERSION => return vec![newer(newest)],
        Some((oldest, _)) if oldest < VERSION => return vec![old(oldest)],
        Some(_) | None => {}
    }
    let mut findings: Vec<Finding> = found.drift().iter().map(changed).collect();
    match found.triggers.is_empty() {
        true => findings.push(no_triggers()),
        false => findings.extend(found.trigger_drift().iter().map(changed)),
    }
    findings.extend((!found.usable).then(no_rights));
    findings
}

fn no_rights() -> Finding {
    let seen = "the role may not read rindle.published_schema or not execute rindle.copied(jsonb)";
    let why = "the gateway cannot tell what a schema change did, nor end a copy of a table";
    let mend = "run rindle pg prepare --role ROLE, with the role of the gateway";
    Finding::fatal("CaptureRights", seen, why, mend).warning()
}

fn missing() -> Finding {
    let seen = "schema changes are not captured: nothing was prepared in this database";
    let why = "a schema change is not announced, so it stops the stream; and no table can be copied again";
    Finding::fatal(
        "CaptureMissing",
        seen,
        why,
        "run rindle pg prepare as a superuser",
    )
    .warning()
}

fn no_triggers() -> Finding {
    let seen =
        "there are no event triggers: the role that prepared this database may not make them";
    let mend = "run rindle pg prepare as a superuser (or the provider's role of that kind)";
    Finding::fatal("CaptureByHand", seen, ANNOUNCED_BY_HAND, mend).warning()
}

fn old(version: u32) -> Finding {
    let seen =
        format!("it was prepared by version {version} of the recipe; this program has {VERSION}");
    let why = "what an older recipe does not tell may stop the stream at a schema change";
    Finding::fatal("CaptureOld", seen, why, PREPARE).warning()
}

fn newer(version: u32) -> Finding {
    let seen =
        format!("it was prepared by version {version} of the recipe; this program has {VERSION}");
    let why = "what a newer recipe tells may not be understood, and then stops the stream at a schema change";
    Finding::fatal(
        "CaptureNewer",
        seen,
        why,
        "run the program that prepared it",
    )
    .warning()
}

fn changed(drift: &Drift) -> Finding {
    let object = format!("{} {}", drift.kind, drift.name);
    if drift.name == "rindle._is_home()" && drift.what != What::Missing {
        let seen = "it was made for another database: this one is a restored dump or a copy";
        let why = "it announces nothing here, so a schema change stops the stream";
        return Finding::fatal("CaptureElsewhere", seen, why, PREPARE).about(object);
    }
    let seen = match &drift.what {
        What::Missing => "it is missing".to_owned(),
        What::Changed(how) => how.clone(),
    };
    let why = "a schema change may go unannounced, or be announced wrongly, and rows of a mirror be wrong without a word";
    Finding::fatal("CaptureChanged", seen, why, PREPARE).about(object)
}

/// The role may not make event triggers, as the server said when it was tried.
pub(in crate::lifecycle) fn no_right(error: &tokio_postgres::Error) -> Finding {
    let said = error
        .as_db_error()
        .map_or_else(|| error.to_string(), |said| said.message().to_owned());
    let seen = format!("the role may not make event triggers: {said}");
    let mend = "run rindle pg prepare as a superuser (or the provider's role of that kind)";
    Finding::fatal("NoEventTriggerRight", seen, ANNOUNCED_BY_HAND, mend).warning()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ddl::found::tests::whole;

    fn told(found: &Found) -> Vec<(&'static str, bool)> {
        let findings = check(found);
        findings.iter().map(|it| (it.id, it.is_fatal())).collect()
    }

    #[test]
    fn each_state_of_the_recipe_is_told() {
        assert_eq!(told(&whole()), []);
        assert_eq!(told(&Found::default()), [("CaptureMissing", false)]);

        let mut found = whole();
        found.triggers.clear();
        assert_eq!(told(&found), [("CaptureByHand", false)]);

        let mut found = whole();
        found.triggers.pop();
        found.triggers[0].enabled = 'D';
        found.functions[14].body.clear();
        let wanted = [("CaptureChanged", true); 3];
        assert_eq!(told(&found), wanted);

        // A restored dump: the functions came along, and are at home elsewhere.
        let mut found = whole();
        found.home.database += 1;
        assert_eq!(told(&found), [("CaptureElsewhere", true)]);

        for (version, id) in [(0, "CaptureOld"), (2, "CaptureNewer")] {
            let mut found = whole();
            let entries = found.ledger.iter_mut().flatten();
            entries.for_each(|entry| entry.version = version);
            found.functions.pop();
            assert_eq!(told(&found), [(id, false)]);
        }
        let mut found = whole();
        found.usable = false;
        assert_eq!(told(&found), [("CaptureRights", false)]);
        // Who may not read the ledger still sees what is there.
        let mut found = whole();
        found.ledger = None;
        found.functions[1].owner = "other".to_owned();
        assert_eq!(told(&found), [("CaptureChanged", true)]);
    }
}
