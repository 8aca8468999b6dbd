//! Which tables await a copy, in words: for `/readyz`, and for verify, which leaves them out.

use rindle_proto::schema::{Schema, Table};
use serde::Serialize;

/// A table that is not, or not wholly, what the source has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Awaiting {
    /// Its mirror name.
    pub table: String,
    /// What is copied, and what is shown until then.
    pub state: String,
}

/// True for a shown table that is not what the source has: another will take its place, or some of its partitions wait.
pub fn awaits(schema: &Schema, table: &Table) -> bool {
    schema.successor(table.id).is_some() || table.leaves.iter().any(|leaf| leaf.waiting)
}

/// All tables that await a copy, those that are not shown yet among them.
pub fn awaiting(schema: &Schema) -> Vec<Awaiting> {
    let state = |table: &Table| match table.waiting {
        Some(waiting) if waiting.replaces.is_some() => None,
        Some(_) => Some("copying; not shown yet".to_owned()),
        None => state_of_shown(schema, table),
    };
    let told = |table: &Table| {
        state(table).map(|state| Awaiting {
            table: table.mirror_name(),
            state,
        })
    };
    schema.tables.iter().filter_map(told).collect()
}

fn state_of_shown(schema: &Schema, table: &Table) -> Option<String> {
    let successor = schema.successor(table.id).and_then(|next| next.waiting);
    if let Some(waiting) = successor {
        let until_then = match waiting.live {
            true => "until then it follows the source in its old shape",
            false => "until then it stands still",
        };
        return Some(format!("copying anew; {until_then}"));
    }
    match table.leaves.iter().filter(|leaf| leaf.waiting).count() {
        0 => None,
        count => Some(format!("copying {count} of its partitions; not shown yet")),
    }
}
