//! What a database has of the recipe, and how it differs from what was made.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio_postgres::Client;

use super::recipe::{Caller, FUNCTIONS, Function, Home, TABLE, TRIGGERS, Trigger, VERSION};
use crate::pg::catalog::CatalogError;

const HOME: &str = "
SELECT jsonb_build_object('database', d.oid::int8, 'system', s.system_identifier)::text
FROM pg_database d, pg_control_system() s WHERE d.datname = current_database()";

const FOUND_FUNCTIONS: &str = "
SELECT jsonb_build_object('identity', format('rindle.%s(%s)', p.proname, oidvectortypes(p.proargtypes)),
    'body', p.prosrc, 'result', pg_get_function_result(p.oid), 'language', l.lanname,
    'volatile', p.provolatile = 'v', 'definer', p.prosecdef,
    'settings', coalesce(to_jsonb(p.proconfig), '[]'), 'owner', pg_get_userbyid(p.proowner),
    'everybody', EXISTS (SELECT FROM aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
        WHERE a.grantee = 0 AND a.privilege_type = 'EXECUTE'))::text
FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace JOIN pg_language l ON l.oid = p.prolang
WHERE n.nspname = 'rindle' ORDER BY p.oid";

const FOUND_TRIGGERS: &str = "
SELECT jsonb_build_object('name', t.evtname, 'event', t.evtevent, 'enabled', t.evtenabled,
    'filtered', t.evttags IS NOT NULL,
    'function', format('%s.%s()', n.nspname, p.proname))::text
FROM pg_event_trigger t JOIN pg_proc p ON p.oid = t.evtfoid JOIN pg_namespace n ON n.oid = p.pronamespace
WHERE t.evtname LIKE 'rindle%' ORDER BY t.oid";

/// Its shape, and who owns it.
const FOUND_TABLE: &str = "
SELECT jsonb_build_object('owner', pg_get_userbyid(c.relowner), 'sound', c.relkind = 'r' AND c.relpersistence = 'p'
    AND (SELECT string_agg(format('%s %s %s', a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull), ','
        ORDER BY a.attnum) FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped)
        = 'id bigint t,xid xid8 t,facts jsonb t,made_at timestamp with time zone t'
    AND NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = c.oid)
    AND NOT EXISTS (SELECT FROM pg_rewrite r WHERE r.ev_class = c.oid)
    AND NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum = 1 AND a.attidentity <> 'a'),
    'writers', coalesce((SELECT jsonb_agg(DISTINCT coalesce(r.rolname, 'PUBLIC'))
        FROM aclexplode(c.relacl) a LEFT JOIN pg_roles r ON r.oid = a.grantee
        WHERE a.privilege_type IN ('INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'TRIGGER')
            AND a.grantee <> c.relowner), '[]'))::text
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = 'rindle' AND c.relname = 'published_schema'";

const FOUND_USAGE: &str = "
SELECT to_jsonb(EXISTS (SELECT FROM pg_namespace n, aclexplode(n.nspacl) a
    WHERE n.nspname = 'rindle' AND a.grantee = 0 AND a.privilege_type = 'USAGE'))::text";

/// What the gateway does with it, may the role do it.
const USABLE: &str = "
SELECT to_jsonb(NOT EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = 'rindle' AND c.relname = 'published_schema'
            AND NOT (has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')))
    AND NOT EXISTS (SELECT FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
        WHERE n.nspname = 'rindle' AND p.proname IN ('copied', 'retell', 'forget') AND NOT has_function_privilege(p.oid, 'EXECUTE')))::text";

/// The ledger, where the role may read it.
const LEDGER_READABLE: &str = "
SELECT to_jsonb(EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = 'rindle' AND c.relname = 'ledger' AND has_schema_privilege(n.oid, 'USAGE')
        AND has_table_privilege(c.oid, 'SELECT')))::text";
const LEDGER: &str = "
SELECT jsonb_build_object('kind', kind, 'name', name, 'version', version)::text FROM rindle.ledger
WHERE kind IN ('function', 'event trigger') OR (kind, name) = ('table', 'rindle.published_schema')
ORDER BY kind, name";

/// What a database has of the recipe.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) home: Home,
    pub(crate) functions: Vec<FoundFunction>,
    pub(crate) triggers: Vec<FoundTrigger>,
    pub(crate) table: Option<FoundTable>,
    /// Everybody may use the schema.
    pub(crate) usage: bool,
    /// The role may read what was announced, and say that something was copied.
    pub(crate) usable: bool,
    /// What the ledger says was made; none when it is not there, or the role may not read it.
    pub(crate) ledger: Option<Vec<Entry>>,
}

/// A function in our schema.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct FoundFunction {
    pub(crate) identity: String,
    pub(crate) body: String,
    pub(crate) result: String,
    pub(crate) language: String,
    pub(crate) volatile: bool,
    pub(crate) definer: bool,
    pub(crate) settings: Vec<String>,
    pub(crate) owner: String,
    /// Everybody may call it.
    pub(crate) everybody: bool,
}

/// An event trigger of a name like ours.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct FoundTrigger {
    pub(crate) name: String,
    pub(crate) event: String,
    /// `evtenabled`: `A` always, `O` not in replica sessions, `R` only there, `D` never.
    pub(crate) enabled: char,
    pub(crate) filtered: bool,
    pub(crate) function: String,
}

/// The table of facts.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct FoundTable {
    pub(crate) owner: String,
    /// It has the columns that it was made with, no trigger and no rule.
    pub(crate) sound: bool,
    /// Who else may change it.
    pub(crate) writers: Vec<String>,
}

/// One line of the ledger.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct Entry {
    pub(crate) kind: String,
    pub(crate) name: String,
    pub(crate) version: u32,
}

/// How an object differs from what was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Drift {
    /// As in the ledger.
    pub(crate) kind: &'static str,
    pub(crate) name: String,
    pub(crate) what: What,
}

/// What is wrong with an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Missing,
    /// What differs.
    Changed(String),
}

impl std::fmt::Display for Drift {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { kind, name, what } = self;
        match what {
            What::Missing => write!(f, "{kind} {name} is missing"),
            What::Changed(how) => write!(f, "{kind} {name}: {how}"),
        }
    }
}

/// Reads what is there. Any role may; the ledger's part only one that may read it.
///
/// # Errors
/// When a query fails.
pub(crate) async fn read(client: &Client) -> Result<Found, CatalogError> {
    let readable: Option<bool> = first(client, LEDGER_READABLE).await?;
    let ledger = match readable {
        Some(true) => Some(all(client, LEDGER).await?),
        Some(false) | None => None,
    };
    Ok(Found {
        home: first(client, HOME).await?.unwrap_or_default(),
        functions: all(client, FOUND_FUNCTIONS).await?,
        triggers: all(client, FOUND_TRIGGERS).await?,
        table: first(client, FOUND_TABLE).await?,
        usage: first(client, FOUND_USAGE).await?.unwrap_or_default(),
        usable: first(client, USABLE).await?.unwrap_or_default(),
        ledger,
    })
}

async fn all<T: DeserializeOwned>(client: &Client, sql: &str) -> Result<Vec<T>, CatalogError> {
    let rows = client.query(sql, &[]).await?;
    let document = |row: &tokio_postgres::Row| Ok(serde_json::from_str(row.try_get(0)?)?);
    rows.iter().map(document).collect()
}

async fn first<T: DeserializeOwned>(client: &Client, sql: &str) -> Result<Option<T>, CatalogError> {
    Ok(all(client, sql).await?.into_iter().next())
}

impl Found {
    /// Nothing of the recipe is there.
    pub(crate) fn is_bare(&self) -> bool {
        self.table.is_none() && self.triggers.is_empty() && self.ours().next().is_none()
    }

    /// Functions of the recipe that are there.
    fn ours(&self) -> impl Iterator<Item = &FoundFunction> {
        let known =
            |it: &&FoundFunction| FUNCTIONS.iter().any(|made| made.identity() == it.identity);
        self.functions.iter().filter(known)
    }

    /// What stands in the ledger of an object.
    pub(crate) fn entry(&self, kind: &str, name: &str) -> Option<&Entry> {
        let mut entries = self.ledger.iter().flatten();
        entries.find(|entry| entry.kind == kind && entry.name == name)
    }

    /// The lowest and the highest version that the ledger names.
    pub(crate) fn versions(&self) -> Option<(u32, u32)> {
        let versions = || self.ledger.iter().flatten().map(|entry| entry.version);
        Some((versions().min()?, versions().max()?))
    }

    /// Functions and table that are not as they were made.
    pub(crate) fn drift(&self) -> Vec<Drift> {
        let drift = |kind, name: &str, what| Drift {
            kind,
            name: name.to_owned(),
            what,
        };
        let mut drifted = Vec::new();
        match &self.table {
            None => drifted.push(drift("table", TABLE, What::Missing)),
            Some(table) => drifted.extend(
                table
                    .change()
                    .map(|how| drift("table", TABLE, What::Changed(how))),
            ),
        }
        for made in &FUNCTIONS {
            let identity = made.identity();
            let found = self.functions.iter().find(|it| it.identity == identity);
            let what = match found {
                None => Some(What::Missing),
                Some(found) => self.change(made, found).map(What::Changed),
            };
            drifted.extend(what.map(|what| drift("function", &identity, what)));
        }
        if self.table.is_some() && !self.usage {
            let how = "not everybody may use it".to_owned();
            drifted.push(drift("schema", "rindle", What::Changed(how)));
        }
        drifted
    }

    /// Event triggers that are not as they were made.
    pub(crate) fn trigger_drift(&self) -> Vec<Drift> {
        let what = |made: &Trigger| match self.triggers.iter().find(|it| it.name == made.name) {
            None => Some(What::Missing),
            Some(found) => found.change(made).map(What::Changed),
        };
        let drift = |made: &Trigger| {
            Some(Drift {
                kind: "event trigger",
                name: made.name.to_owned(),
                what: what(made)?,
            })
        };
        TRIGGERS.iter().filter_map(drift).collect()
    }

    fn change(&self, made: &Function, found: &FoundFunction) -> Option<String> {
        let owner = self.table.as_ref().map(|table| &table.owner);
        let differences = [
            (found.body != made.body(self.home), "its body"),
            (
                found.result != made.result || found.language != made.language,
                "its result or language",
            ),
            (found.volatile != made.writes, "its volatility"),
            (found.definer != made.is_definer(), "whose rights it has"),
            (
                found.settings != made.settings(),
                "the settings that it pins",
            ),
            (
                found.everybody != (made.caller == Caller::Everybody),
                "who may call it",
            ),
            (
                owner.is_some_and(|owner| *owner != found.owner),
                "its owner, who is not the table's",
            ),
        ];
        let differing = differences.iter().filter(|(differs, _)| *differs);
        let differing: Vec<&str> = differing.map(|(_, what)| *what).collect();
        (!differing.is_empty()).then(|| format!("{} changed", differing.join(", ")))
    }

    /// The ledger names objects that this build does not make: an older one made them.
    pub(crate) fn left_over(&self) -> Vec<&Entry> {
        let known = |entry: &&Entry| {
            entry.name == TABLE
                || FUNCTIONS.iter().any(|made| made.identity() == entry.name)
                || TRIGGERS.iter().any(|made| made.name == entry.name)
        };
        let entries = self.ledger.iter().flatten();
        entries
            .filter(|entry| !known(entry) && entry.version <= VERSION)
            .collect()
    }
}

impl FoundTable {
    fn change(&self) -> Option<String> {
        match (self.sound, self.writers.is_empty()) {
            (true, true) => None,
            (false, _) => Some("its columns, triggers or rules changed".to_owned()),
            (true, false) => Some(format!("{} may change it", self.writers.join(", "))),
        }
    }
}

impl FoundTrigger {
    fn change(&self, made: &Trigger) -> Option<String> {
        if self.event != made.event || self.function != made.function || self.filtered {
            return Some("its event, function or filter changed".to_owned());
        }
        match self.enabled {
            'A' => None,
            'D' => Some("it is disabled".to_owned()),
            _ => Some("it is not enabled always".to_owned()),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A database in which everything is as it was made.
    pub(crate) fn whole() -> Found {
        let home = Home {
            database: 5,
            system: 7_000_000_000_000_000_000,
        };
        let owner = || "postgres".to_owned();
        let function = |made: &Function| FoundFunction {
            identity: made.identity(),
            body: made.body(home),
            result: made.result.to_owned(),
            language: made.language.to_owned(),
            volatile: made.writes,
            definer: made.is_definer(),
            settings: made.settings(),
            owner: owner(),
            everybody: made.caller == Caller::Everybody,
        };
        let trigger = |made: &Trigger| FoundTrigger {
            name: made.name.to_owned(),
            event: made.event.to_owned(),
            enabled: 'A',
            filtered: false,
            function: made.function.to_owned(),
        };
        let entry = |kind: &str, name: String| Entry {
            kind: kind.to_owned(),
            name,
            version: VERSION,
        };
        let functions = FUNCTIONS
            .iter()
            .map(|made| entry("function", made.identity()));
        let triggers = TRIGGERS
            .iter()
            .map(|made| entry("event trigger", made.name.to_owned()));
        let table = entry("table", TABLE.to_owned());
        Found {
            home,
            functions: FUNCTIONS.iter().map(function).collect(),
            triggers: TRIGGERS.iter().map(trigger).collect(),
            table: Some(FoundTable {
                owner: owner(),
                sound: true,
                writers: vec![],
            }),
            usage: true,
            usable: true,
            ledger: Some(functions.chain(triggers).chain([table]).collect()),
        }
    }

    #[test]
    fn what_was_made_does_not_differ() {
        let found = whole();
        assert_eq!((found.drift(), found.trigger_drift()), (vec![], vec![]));
        assert!(!found.is_bare() && found.left_over().is_empty());
    }

    #[test]
    fn each_difference_is_told() {
        let mut found = whole();
        found.functions[3].body.push(' ');
        found.functions[15].everybody = false;
        found.functions.remove(0);
        found.triggers[1].enabled = 'D';
        found.triggers[2].enabled = 'O';
        found.triggers.remove(0);
        let told: Vec<String> = found.drift().iter().map(ToString::to_string).collect();
        assert_eq!(
            told,
            [
                "function rindle._is_home() is missing",
                "function rindle._publications(oid[]): its body changed",
                "function rindle.schema_hook(name): who may call it changed",
            ]
        );
        let told = found.trigger_drift();
        let told: Vec<String> = told.iter().map(ToString::to_string).collect();
        assert_eq!(
            told,
            [
                "event trigger rindle_on_ddl is missing",
                "event trigger rindle_on_drop: it is disabled",
                "event trigger rindle_on_rewrite: it is not enabled always",
            ]
        );
    }

    #[test]
    fn bodies_can_be_quoted() {
        for function in &FUNCTIONS {
            let body = function.body(Home::default());
            let plain = !["$rindle$", "\\", "{database}", "{system}"]
                .iter()
                .any(|odd| body.contains(odd));
            assert!(plain, "{}", function.name);
        }
    }
}
