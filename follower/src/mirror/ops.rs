//! The operations of a transaction, each to where it belongs: into the rows and the schema of a shown table, or, for
//! what waits for a copy, onto the list of pending ones.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use rindle_proto::change::SchemaChange;
use rindle_proto::error::DecodeError;
use rindle_proto::frame::Frame;
use rindle_proto::ids::{FinalLsn, Lsn, Seq};
use rindle_proto::op::{self, Op, Ops};
use rindle_proto::schema::{Leaf, Schema, SchemaError, Table, TableId};
use rusqlite::Connection;

use super::ddl::{self, Place, quote, run};
use super::error::MirrorError;
use super::local::LocalIndex;
use super::rows::{Held, Plan, RowError};
use super::{leaf, load, meta, pending};

/// What operations act on.
pub(super) struct Tables<'m> {
    pub(super) conn: &'m Connection,
    pub(super) schema: &'m mut Schema,
    pub(super) plans: &'m mut Plans,
    pub(super) local: &'m [LocalIndex],
    pub(super) place: Place<'m>,
}

/// Which frame the operations are of, for errors; and which transaction.
#[derive(Clone, Copy, Debug)]
pub(super) struct At {
    seq: Seq,
    lsn: Lsn,
    /// Of the transaction that the source made them in: earlier than the frame's for what waited.
    txn: FinalLsn,
}

/// What a part's operations did.
#[derive(Default)]
pub(super) struct Done {
    pub(super) ops: u64,
    pub(super) schema_changed: bool,
}

/// What is to be done with row operations, by the id that they name.
#[derive(Debug, Default)]
pub(super) struct Plans(HashMap<TableId, Target>);

#[derive(Debug)]
enum Target {
    Rows(Box<Plan>),
    /// They wait with this table or partition.
    Waits(TableId),
}

impl At {
    pub(super) fn new(frame: &Frame) -> Self {
        Self {
            seq: frame.seq,
            lsn: frame.lsn,
            txn: FinalLsn(frame.lsn),
        }
    }

    /// For operations of an earlier transaction that this frame brings to light.
    pub(super) fn of(self, txn: FinalLsn) -> Self {
        Self { txn, ..self }
    }

    pub(super) fn bad(self, reason: String) -> MirrorError {
        MirrorError::BadFrame {
            seq: self.seq,
            lsn: self.lsn,
            reason,
        }
    }

    fn decode(self, source: DecodeError) -> MirrorError {
        MirrorError::Decode {
            seq: self.seq,
            lsn: self.lsn,
            source,
        }
    }

    pub(super) fn schema(self, source: SchemaError) -> MirrorError {
        MirrorError::Schema {
            seq: self.seq,
            lsn: self.lsn,
            source,
        }
    }

    pub(super) fn row(self, table: &str, error: RowError) -> MirrorError {
        let divergence = |what| MirrorError::Divergence {
            table: table.to_owned(),
            what,
            seq: self.seq,
            lsn: self.lsn,
        };
        match error {
            RowError::Decode(error) => self.decode(error),
            RowError::Sqlite(source) => MirrorError::Sqlite {
                doing: "apply an operation",
                source,
            },
            RowError::Bad(reason) => self.bad(format!("table {table:?}: {reason}")),
            RowError::Duplicate => divergence("a row with the new row's key exists"),
            RowError::Missing => divergence("no row has the key of an update or delete"),
        }
    }
}

impl Plans {
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    fn get<'p>(
        &'p mut self,
        schema: &Schema,
        place: Place<'_>,
        id: TableId,
        at: At,
    ) -> Result<&'p mut Target, MirrorError> {
        match self.0.entry(id) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(free) => Ok(free.insert(target(schema, place, id, at)?)),
        }
    }
}

fn target(schema: &Schema, place: Place<'_>, id: TableId, at: At) -> Result<Target, MirrorError> {
    let (table, leaf) = owner(schema, id, at)?;
    if let Some(waits) = waits(table, leaf) {
        return Ok(Target::Waits(waits));
    }
    if leaf.is_none() && !table.leaves.is_empty() {
        let name = table.mirror_name();
        return Err(at.bad(format!(
            "table {name:?}: a row names none of its partitions"
        )));
    }
    let plan = Plan::new(table, &place.name(table), leaf.map(|leaf| leaf.id));
    Ok(Target::Rows(Box::new(
        plan.map_err(|error| at.schema(error))?,
    )))
}

fn owner(schema: &Schema, id: TableId, at: At) -> Result<(&Table, Option<&Leaf>), MirrorError> {
    let found = schema.owner(id);
    found.ok_or_else(|| at.bad(format!("table #{} is not mirrored", id.0)))
}

/// With what the operations of a table or partition wait: partitions of a waiting table wait with it.
fn waits(table: &Table, leaf: Option<&Leaf>) -> Option<TableId> {
    match (table.waiting, leaf) {
        (Some(_), _) => Some(table.id),
        (None, Some(leaf)) => leaf.waiting.then_some(leaf.id),
        (None, None) => None,
    }
}

fn waiting_leaves(table: &Table) -> impl Iterator<Item = TableId> {
    let waiting = table.leaves.iter().filter(|leaf| leaf.waiting);
    waiting.map(|leaf| leaf.id)
}

/// Applies the operations of one part, in order.
pub(super) fn apply(mut tables: Tables<'_>, bytes: &[u8], at: At) -> Result<Done, MirrorError> {
    let mut done = Done::default();
    let mut held = Held::new(tables.conn);
    let mut ops = Ops::new(bytes);
    let mut start = 0;
    while let Some(op) = ops.next() {
        let op = op.map_err(|error| at.decode(error))?;
        let own = &bytes[start..ops.offset()];
        start = ops.offset();
        done.ops += 1;
        match op {
            Op::Insert { table, .. }
            | Op::Update { table, .. }
            | Op::Rekey { table, .. }
            | Op::Delete { table, .. } => {
                match tables.plans.get(tables.schema, tables.place, table, at)? {
                    Target::Rows(plan) => held
                        .row(table, plan, &op)
                        .map_err(|error| at.row(plan.name(), error))?,
                    Target::Waits(target) => pending::put(tables.conn, *target, at.txn, own)?,
                }
            }
            Op::Truncate { tables: list } => {
                for table in list {
                    tables.truncate(table, at)?;
                }
            }
            Op::Schema(change) => {
                held.release();
                done.schema_changed = true;
                tables.change(&change, own, at)?;
            }
            // For gateways.
            Op::Facts(_) | Op::Copying(_) => done.ops -= 1,
            Op::Copied(_) => {
                return Err(at.bad("a copy ends in the middle of a transaction".to_owned()));
            }
        }
    }
    Ok(done)
}

impl Tables<'_> {
    /// Each table of a truncate by itself: some may wait.
    fn truncate(&mut self, id: TableId, at: At) -> Result<(), MirrorError> {
        let (table, leaf) = owner(self.schema, id, at)?;
        let mut op = Vec::new();
        op::put_truncate(&mut op, &[id]);
        if let Some(target) = waits(table, leaf) {
            return pending::put(self.conn, target, at.txn, &op);
        }
        let name = self.place.name(table);
        match leaf {
            Some(leaf) => {
                let sql = leaf::clear_sql(table, &name, leaf.id);
                run(self.conn, &sql.map_err(|error| at.schema(error))?)
            }
            None => {
                run(self.conn, &format!("DELETE FROM {}", quote(&name)))?;
                // All of it is empty now, and what is copied of it later may be of before.
                let mut leaves = waiting_leaves(table);
                leaves.try_for_each(|leaf| pending::put(self.conn, leaf, at.txn, &op))
            }
        }
    }

    fn change(&mut self, change: &SchemaChange, op: &[u8], at: At) -> Result<(), MirrorError> {
        self.plans.clear();
        self.conn.flush_prepared_statement_cache();
        let before = self.schema.clone();
        self.schema
            .apply(change)
            .map_err(|error| at.schema(error))?;
        let id = change.table();
        let waiting = |schema: &Schema| schema.table(id).and_then(|table| table.waiting);
        if let Some(waiting) = waiting(&before).or(waiting(self.schema)) {
            self.change_hidden(&before, change, op, at)?;
            return match waiting.replaces {
                Some(shown) => meta::put_state(self.conn, self.schema, shown),
                None => Ok(()),
            };
        }
        ddl::change(&ddl::Step {
            conn: self.conn,
            before: &before,
            after: self.schema,
            change,
            place: self.place,
            local: self.local,
        })?;
        self.change_partitions(&before, change, op, at)
    }

    /// A change of a waiting table waits with its rows.
    fn change_hidden(
        &self,
        before: &Schema,
        change: &SchemaChange,
        op: &[u8],
        at: At,
    ) -> Result<(), MirrorError> {
        match change {
            SchemaChange::CreateTable { .. } => Ok(()),
            SchemaChange::DropTable { table } => {
                let leaves = before.table(*table).into_iter().flat_map(|it| &it.leaves);
                let ids = leaves.map(|leaf| leaf.id).chain([*table]);
                ids.into_iter().try_for_each(|id| self.forget(id))
            }
            other => pending::put(self.conn, other.table(), at.txn, op),
        }
    }

    /// What a change of a shown table means for the partitions that have ids of their own.
    fn change_partitions(
        &self,
        before: &Schema,
        change: &SchemaChange,
        op: &[u8],
        at: At,
    ) -> Result<(), MirrorError> {
        let Some(table) = before.table(change.table()) else {
            return Ok(());
        };
        let mut waiting = waiting_leaves(table);
        match change {
            SchemaChange::CreateLeaf { leaf, .. } => {
                leaf::check(table, leaf.id).map_err(|error| at.schema(error))
            }
            SchemaChange::DropLeaf { leaf, .. } => self.drop_leaf(table, *leaf, at),
            SchemaChange::DropTable { .. } => waiting.try_for_each(|leaf| self.forget(leaf)),
            SchemaChange::AddColumn { .. }
            | SchemaChange::DropColumn { .. }
            | SchemaChange::RenameColumn { .. }
            | SchemaChange::AlterColumn { .. } => {
                waiting.try_for_each(|leaf| pending::put(self.conn, leaf, at.txn, op))
            }
            SchemaChange::CreateTable { .. }
            | SchemaChange::RenameTable { .. }
            | SchemaChange::CreateIndex { .. }
            | SchemaChange::DropIndex { .. } => Ok(()),
        }
    }

    fn drop_leaf(&self, table: &Table, id: TableId, at: At) -> Result<(), MirrorError> {
        let name = table.mirror_name();
        match table.leaves.iter().find(|leaf| leaf.id == id) {
            None => Err(at.bad(format!("table {name:?} has no partition #{}", id.0))),
            Some(leaf) if leaf.waiting => self.forget(id),
            Some(_) => {
                let sql = leaf::clear_sql(table, &self.place.name(table), id);
                run(self.conn, &sql.map_err(|error| at.schema(error))?)
            }
        }
    }

    fn forget(&self, target: TableId) -> Result<(), MirrorError> {
        pending::forget(self.conn, target)?;
        load::drop_of(self.conn, target)
    }
}
