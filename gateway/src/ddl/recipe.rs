//! The objects of the capture recipe, and the statements that make them.

/// Version of what this build makes in a database; it stands in the ledger. A change of any object raises it.
pub(crate) const VERSION: u32 = 1;

/// The table of facts.
pub(crate) const TABLE: &str = "rindle.published_schema";

/// Append-only. Has a key, as every table of ours.
pub(crate) const CREATE_TABLE: &str = "\
CREATE TABLE rindle.published_schema (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    xid xid8 NOT NULL,
    facts jsonb NOT NULL,
    made_at timestamptz NOT NULL DEFAULT pg_catalog.now()
)";

/// So that everybody can call the hook; nothing else in the schema is for everybody.
pub(crate) const PUBLIC_USAGE: &str = "USAGE ON SCHEMA rindle";

/// What every function that is called from outside pins. First what names mean and how values are printed, as in
/// every session of ours; then how it is planned: once a session, through the indexes of the catalog, for a handful
/// of objects is looked at in a catalog of any size.
pub(crate) const SETTINGS: [(&str, &str); 14] = [
    ("search_path", "pg_catalog, pg_temp"),
    ("DateStyle", "ISO, MDY"),
    ("IntervalStyle", "postgres"),
    ("TimeZone", "UTC"),
    ("extra_float_digits", "3"),
    ("bytea_output", "hex"),
    ("lc_monetary", "C"),
    ("quote_all_identifiers", "off"),
    ("row_security", "off"),
    ("jit", "off"),
    ("plan_cache_mode", "force_generic_plan"),
    ("enable_seqscan", "off"),
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
];

/// Who calls a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Caller {
    /// Our other functions, as their owner.
    Ours,
    /// Postgres, or a role that was granted it; it runs as its owner.
    Granted,
    /// Everybody; it runs as its owner.
    Everybody,
}

/// One function in schema `rindle`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Function {
    pub(crate) name: &'static str,
    /// Names, types and defaults.
    pub(crate) arguments: &'static str,
    /// Types alone, as `oidvectortypes` prints them.
    pub(crate) types: &'static str,
    /// As `pg_get_function_result` prints it.
    pub(crate) result: &'static str,
    pub(crate) language: &'static str,
    pub(crate) writes: bool,
    pub(crate) caller: Caller,
    body: &'static str,
}

/// One event trigger.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trigger {
    pub(crate) name: &'static str,
    pub(crate) event: &'static str,
    pub(crate) function: &'static str,
}

/// Where the recipe is at home. Elsewhere (in a restored dump, in a copied database) it does nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
pub(crate) struct Home {
    pub(crate) database: u32,
    pub(crate) system: i64,
}

/// A query over the catalog.
const fn query(
    name: &'static str,
    types: &'static str,
    result: &'static str,
    body: &'static str,
) -> Function {
    Function {
        name,
        arguments: types,
        types,
        result,
        language: "sql",
        writes: false,
        caller: Caller::Ours,
        body,
    }
}

/// A step of ours.
const fn step(
    name: &'static str,
    [arguments, types]: [&'static str; 2],
    result: &'static str,
    body: &'static str,
) -> Function {
    Function {
        name,
        arguments,
        types,
        result,
        language: "plpgsql",
        writes: false,
        caller: Caller::Ours,
        body,
    }
}

const fn entry(
    name: &'static str,
    arguments: [&'static str; 2],
    result: &'static str,
    caller: Caller,
    body: &'static str,
) -> Function {
    Function {
        writes: true,
        caller,
        ..step(name, arguments, result, body)
    }
}

macro_rules! sql {
    ($name:literal) => {
        include_str!(concat!("sql/", $name, ".sql"))
    };
    (catalog $name:literal) => {
        include_str!(concat!("../pg/catalog/sql/", $name, ".sql"))
    };
}

/// Called before caller, so that each can be made when its turn comes.
pub(crate) const FUNCTIONS: [Function; 20] = [
    step("_is_home", ["", ""], "boolean", sql!("is_home")),
    query(
        "_relations",
        "oid[]",
        "SETOF jsonb",
        sql!(catalog "relations"),
    ),
    query("_types", "oid[]", "SETOF jsonb", sql!(catalog "types")),
    query(
        "_publications",
        "oid[]",
        "SETOF jsonb",
        sql!(catalog "publication"),
    ),
    query("_reach", "oid[], oid[]", "SETOF oid", sql!("reach")),
    query("_published", "oid[], oid[]", "SETOF oid", sql!("published")),
    step(
        "_concerned",
        [
            "named oid[], types oid[], altered oid[], created oid[]",
            "oid[], oid[], oid[], oid[]",
        ],
        "oid[]",
        sql!("concerned"),
    ),
    step(
        "_may_have_been_published",
        ["tables boolean, spaces text[]", "boolean, text[]"],
        "boolean",
        sql!("may_have_been_published"),
    ),
    step(
        "_facts",
        ["tag text, shown oid[], seen text", "text, oid[], text"],
        "jsonb",
        sql!("facts"),
    ),
    step(
        "_all_publications",
        ["", ""],
        "jsonb",
        sql!("all_publications"),
    ),
    step(
        "_everything",
        ["tag text", "text"],
        "jsonb",
        sql!("everything"),
    ),
    Function {
        writes: true,
        ..step(
            "_append",
            ["document jsonb", "jsonb"],
            "bigint",
            sql!("append"),
        )
    },
    entry(
        "_on_ddl",
        ["", ""],
        "event_trigger",
        Caller::Granted,
        sql!("on_ddl"),
    ),
    entry(
        "_on_drop",
        ["", ""],
        "event_trigger",
        Caller::Granted,
        sql!("on_drop"),
    ),
    entry(
        "_on_rewrite",
        ["", ""],
        "event_trigger",
        Caller::Granted,
        sql!("on_rewrite"),
    ),
    entry(
        "schema_hook",
        ["publication name DEFAULT NULL", "name"],
        "bigint",
        Caller::Everybody,
        sql!("schema_hook"),
    ),
    entry(
        "copied",
        ["document jsonb", "jsonb"],
        "bigint",
        Caller::Granted,
        sql!("copied"),
    ),
    entry(
        "resync",
        ["relation regclass", "regclass"],
        "bigint",
        Caller::Granted,
        sql!("resync"),
    ),
    entry(
        "retell",
        ["relations oid[]", "oid[]"],
        "bigint",
        Caller::Granted,
        sql!("retell"),
    ),
    entry(
        "forget",
        ["through bigint", "bigint"],
        "bigint",
        Caller::Granted,
        sql!("forget"),
    ),
];

/// The event triggers. None has a filter for tags: what they need not see they leave by themselves.
pub(crate) const TRIGGERS: [Trigger; 3] = [
    Trigger {
        name: "rindle_on_ddl",
        event: "ddl_command_end",
        function: "rindle._on_ddl()",
    },
    Trigger {
        name: "rindle_on_drop",
        event: "sql_drop",
        function: "rindle._on_drop()",
    },
    Trigger {
        name: "rindle_on_rewrite",
        event: "table_rewrite",
        function: "rindle._on_rewrite()",
    },
];

impl Function {
    /// Qualified, with its argument types: its name in the ledger.
    pub(crate) fn identity(&self) -> String {
        format!("rindle.{}({})", self.name, self.types)
    }

    pub(crate) fn is_definer(&self) -> bool {
        self.caller != Caller::Ours
    }

    /// What it does, in a database.
    pub(crate) fn body(&self, home: Home) -> String {
        self.body
            .replace("{database}", &home.database.to_string())
            .replace("{system}", &home.system.to_string())
    }

    /// What it pins, as the catalog writes it.
    pub(crate) fn settings(&self) -> Vec<String> {
        let pinned = SETTINGS.iter().filter(|_| self.is_definer());
        pinned
            .map(|(name, value)| format!("{name}={value}"))
            .collect()
    }

    pub(crate) fn volatility(&self) -> &'static str {
        if self.writes { "VOLATILE" } else { "STABLE" }
    }

    /// Makes it, or makes it again.
    pub(crate) fn create(&self, home: Home) -> String {
        let mut made = format!(
            "CREATE OR REPLACE FUNCTION rindle.{}({}) RETURNS {}\n    LANGUAGE {} {}",
            self.name,
            self.arguments,
            self.result,
            self.language,
            self.volatility()
        );
        if self.is_definer() {
            made.push_str(" SECURITY DEFINER");
            for (name, value) in SETTINGS {
                // A list of names must stand bare; other values may be words of SQL's, and lose their case.
                let value = match name {
                    "search_path" => value.to_owned(),
                    _ => format!("'{value}'"),
                };
                made.push_str(&format!("\n    SET {name} TO {value}"));
            }
        }
        made.push_str(&format!("\n    AS $rindle${}$rindle$", self.body(home)));
        made
    }

    /// Who may call it.
    pub(crate) fn rights(&self) -> String {
        let identity = self.identity();
        match self.caller {
            Caller::Ours | Caller::Granted => {
                format!("REVOKE ALL ON FUNCTION {identity} FROM PUBLIC")
            }
            Caller::Everybody => format!("GRANT EXECUTE ON FUNCTION {identity} TO PUBLIC"),
        }
    }
}

impl Trigger {
    pub(crate) fn create(&self) -> String {
        let Self {
            name,
            event,
            function,
        } = self;
        format!("CREATE EVENT TRIGGER {name} ON {event} EXECUTE FUNCTION {function}")
    }

    /// Also where a session replays changes of another server.
    pub(crate) fn enable(&self) -> String {
        format!("ALTER EVENT TRIGGER {} ENABLE ALWAYS", self.name)
    }

    pub(crate) fn drop(&self) -> String {
        format!("DROP EVENT TRIGGER IF EXISTS {}", self.name)
    }
}
