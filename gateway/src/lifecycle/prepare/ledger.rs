//! `rindle.ledger`: everything that was made in a database, so that it can be taken away again and nothing else.

use sha2::{Digest as _, Sha256};

use crate::ddl::VERSION;
use crate::lifecycle::names::quote_literal;

pub(super) const CREATE_SCHEMA: &str = "CREATE SCHEMA rindle";

/// Has a key, as every table of ours: a publication FOR ALL TABLES would otherwise break writes to it.
pub(super) const CREATE_LEDGER: &str = "\
CREATE TABLE rindle.ledger (
    kind text NOT NULL,
    name text NOT NULL,
    source text NOT NULL,
    version integer NOT NULL,
    definition_hash text NOT NULL,
    made_at timestamptz NOT NULL DEFAULT pg_catalog.now(),
    PRIMARY KEY (kind, name)
)";

/// The statement that writes down what was made. `source` is empty for what all sources of a database share.
pub(super) fn record(kind: &str, name: &str, source: &str, definition: &str) -> String {
    let hash: String = Sha256::digest(definition)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let values = [kind, name, source].map(quote_literal).join(", ");
    format!(
        "INSERT INTO rindle.ledger (kind, name, source, version, definition_hash) \
         VALUES ({values}, {VERSION}, '{hash}') ON CONFLICT (kind, name) DO UPDATE SET \
         source = excluded.source, version = excluded.version, \
         definition_hash = excluded.definition_hash, made_at = excluded.made_at"
    )
}

/// The statement that takes a line out.
pub(super) fn forget(kind: &str, name: &str) -> String {
    let [kind, name] = [kind, name].map(quote_literal);
    format!("DELETE FROM rindle.ledger WHERE kind = {kind} AND name = {name}")
}
