//! What the catalog says and nothing announced.

use std::collections::{BTreeMap, BTreeSet};

use rindle_proto::change::SchemaChange;
use rindle_proto::ids::FinalLsn;
use rindle_proto::schema::Table;

use super::believed::{Around, Believed, Difference};
use super::plan::{Planner, Reasons};
use crate::halt::HaltReason;
use crate::pg::catalog::{Facts, Patch};

/// What is not as `believed` in a way that rows would show: what no message announced.
pub(super) fn unannounced(believed: &Believed, now: &Facts) -> Vec<Difference> {
    let around = Around {
        final_lsn: FinalLsn(rindle_proto::ids::Lsn(0)),
        strangers: &BTreeSet::new(),
        rewritten: &BTreeMap::new(),
        unsure: &BTreeSet::new(),
    };
    let reasons = Reasons::new(&believed.facts, now, &Patch::default(), around);
    let planned = Planner::new(believed, now.clone(), reasons, around.final_lsn).plan();
    let refused = |object: String, detail: String| Difference {
        table: None,
        object,
        detail,
    };
    match planned {
        Ok(learned) => {
            let changes = learned.changes.iter();
            changes
                .filter_map(|change| difference(believed, change))
                .collect()
        }
        Err(HaltReason::SchemaRefused { object, detail }) => vec![refused(object, detail)],
        Err(reason) => vec![refused(
            believed.facts.publication.name.clone(),
            reason.to_string(),
        )],
    }
}

fn difference(believed: &Believed, change: &SchemaChange) -> Option<Difference> {
    let (object, detail) = told(believed, change)?;
    let table = match change {
        SchemaChange::CreateTable { table } => Some(table.oid),
        change => believed.schema.table(change.table()).map(|it| it.oid),
    };
    Some(Difference {
        table,
        object,
        detail,
    })
}

/// A change of which rows would tell, in words.
fn told(believed: &Believed, change: &SchemaChange) -> Option<(String, String)> {
    let table = believed.schema.table(change.table());
    let name = |table: &Table| format!("{}.{}", table.schema, table.name);
    let detail = match change {
        // Neither changes a value or a name of a row.
        SchemaChange::CreateIndex { .. } | SchemaChange::DropIndex { .. } => return None,
        SchemaChange::AlterColumn {
            attnum,
            type_oid,
            typmod,
            ..
        } => {
            let mut columns = table?.columns.iter();
            let old = columns.find(|column| column.attnum == *attnum)?;
            if (old.type_oid, old.typmod) == (*type_oid, *typmod) {
                return None;
            }
            format!("column {:?} has another type", old.name)
        }
        SchemaChange::CreateTable { table } => {
            let detail = "it is published, or changed".to_owned();
            return Some((name(table), detail));
        }
        SchemaChange::DropTable { .. } => "it is no longer published".to_owned(),
        SchemaChange::RenameTable {
            schema, name: to, ..
        } => format!("it is called {schema}.{to} now"),
        SchemaChange::AddColumn { column, .. } => format!("column {:?} is new", column.name),
        SchemaChange::DropColumn { attnum, .. } => format!("column number {attnum} is gone"),
        SchemaChange::RenameColumn {
            attnum, name: to, ..
        } => format!("column number {attnum} is called {to:?} now"),
        SchemaChange::CreateLeaf { .. } | SchemaChange::DropLeaf { .. } => {
            "its partitions are others".to_owned()
        }
    };
    Some((table.map_or_else(String::new, name), detail))
}
