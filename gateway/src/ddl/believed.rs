//! What a gateway believes at one commit of the stream: the catalog's facts, and the mirror that followers have.
//!
//! A belief changes in two ways only: by what a transaction of the stream announces ([`Believed::learn`],
//! [`Believed::copied`]), or by reading again what an earlier session made of that ([`Believed::again`]). Both give the
//! same, so a session goes on where another one died.

use std::collections::{BTreeMap, BTreeSet};

use rindle_proto::body::Copied;
use rindle_proto::change::SchemaChange;
use rindle_proto::ids::{FinalLsn, Lsn, Oid};
use rindle_proto::op::Op;
use rindle_proto::schema::{Schema, Table, TableId};
use serde::{Deserialize, Serialize};

use super::difference::unannounced;
use super::former::Formers;
use super::plan::{Planner, Reasons};
use crate::halt::HaltReason;
use crate::pg::catalog::facts::PatchError;
use crate::pg::catalog::{Facts, Patch, RelationFacts, Unfit};
use crate::pg::visibility::Snapshot;

/// What is believed at one commit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Believed {
    /// What the catalog says.
    pub facts: Facts,
    /// What followers have.
    pub schema: Schema,
    /// The next table or partition gets a higher id.
    pub(super) highest_id: u32,
    /// What happened to each waiting table and partition since it waits.
    pub(super) waits: BTreeMap<u32, Wait>,
    /// Relations that were mirrored once: transactions from then may still bring rows of them.
    pub(super) gone: BTreeSet<Oid>,
    /// What relations were before: transactions from then may still say so.
    pub(super) formers: Formers,
}

/// What the first copy was made of; its frame carries it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct First {
    /// What the catalog said under the copy's snapshot.
    pub facts: Facts,
    /// That snapshot: a transaction that was open then may tell what it saw before.
    pub snapshot: Snapshot,
}

/// The history of something that waits for a copy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Wait {
    /// Its schema changes: those at or above a copy's snapshot are not in the copy.
    pub(super) changes: Vec<(Lsn, SchemaChange)>,
    /// The last transaction of which rows were passed over because they had another shape. A copy whose snapshot is not
    /// above it lacks them.
    pub(super) passed_over: Option<Lsn>,
}

/// What a transaction's announcement leads to.
#[derive(Debug)]
pub struct Learned {
    /// What is believed from here on.
    pub believed: Believed,
    /// What followers do.
    pub changes: Vec<SchemaChange>,
}

/// Something that the catalog says and nothing announced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Of which table, where it is one's own.
    pub table: Option<Oid>,
    /// Of what.
    pub object: String,
    /// What is other than believed.
    pub detail: String,
}

/// What stands in a facts operation of a frame.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Noted {
    /// The catalog changed.
    Patch(Box<Patch>),
    /// Rows of a waiting table or partition were passed over.
    PassedOver(TableId),
}

/// What is known of an announcement besides what it says itself.
#[derive(Clone, Copy, Debug)]
pub struct Around<'a> {
    /// Start of the transaction's commit record.
    pub final_lsn: FinalLsn,
    /// Relations of which rows came in this transaction before anything said what they are.
    pub strangers: &'a BTreeSet<Oid>,
    /// Relations that the transaction rewrote, with the reason's bits.
    pub rewritten: &'a BTreeMap<Oid, i32>,
    /// Relations about which the message may be wrong: their rows are copied.
    pub unsure: &'a BTreeSet<Oid>,
}

impl Believed {
    /// What a first copy begins with.
    ///
    /// # Errors
    /// The first table that cannot be mirrored.
    pub fn first(first: First) -> Result<Self, Unfit> {
        let schema = first.facts.view().schema()?;
        Ok(Self::new(first, schema))
    }

    /// What is believed once the first copy of `schema` is complete.
    pub fn new(first: First, schema: Schema) -> Self {
        Self {
            highest_id: schema.highest_id().0,
            facts: first.facts,
            schema,
            waits: BTreeMap::new(),
            gone: BTreeSet::new(),
            formers: Formers::since(first.snapshot),
        }
    }

    /// What is believed after `patch`, and what followers do.
    ///
    /// # Errors
    /// A change that no mirror follows: the stream stops before its commit.
    pub fn learn(&self, patch: &Patch, around: Around<'_>) -> Result<Learned, HaltReason> {
        let facts = self
            .facts
            .patched(patch)
            // Not a condition of the source that may clear: one that is made again has another past.
            .map_err(
                |PatchError::NoPublication(name)| HaltReason::SchemaRefused {
                    object: format!("publication {name}"),
                    detail: "it was dropped".to_owned(),
                },
            )?;
        let reasons = Reasons::new(&self.facts, &facts, patch, around);
        let mut learned = Planner::new(self, facts, reasons, around.final_lsn).plan()?;
        let believed = &mut learned.believed;
        believed.formers.note(&self.facts, &believed.facts, patch);
        Ok(learned)
    }

    /// What an announced end of a copy comes to; none when it is void.
    pub fn copied(&self, copied: &Copied) -> Option<Believed> {
        let fits = !copied.targets.is_empty()
            && copied
                .targets
                .iter()
                .all(|target| self.copy_fits(target.target, &target.shape, copied.snapshot));
        if !fits {
            return None;
        }
        let targets: Vec<TableId> = copied.targets.iter().map(|target| target.target).collect();
        let mut next = self.clone();
        next.reveal(&targets).ok()?;
        Some(next)
    }

    /// The rows of a copy, and what came since its snapshot, are what is believed of the target.
    fn copy_fits(&self, target: TableId, shape: &Table, snapshot: Lsn) -> bool {
        let (Some(wait), Some((table, leaf))) =
            (self.waits.get(&target.0), self.schema.owner(target))
        else {
            return false;
        };
        // `>=`: a transaction that commits exactly at the snapshot is not in it.
        if wait.passed_over.is_some_and(|lsn| lsn >= snapshot)
            || leaf.is_some_and(|leaf| !leaf.waiting)
        {
            return false;
        }
        let mut alone = Schema {
            tables: vec![Table {
                waiting: None,
                ..shape.clone()
            }],
        };
        let later = wait.changes.iter().filter(|(lsn, _)| *lsn >= snapshot);
        let applied = later
            .map(|(_, change)| change)
            .try_for_each(|change| alone.apply(change));
        let same = |found: &Table| found.differs(table, leaf.is_none()).is_none();
        applied.is_ok() && alone.tables.first().is_some_and(same)
    }

    fn reveal(&mut self, targets: &[TableId]) -> Result<(), HaltReason> {
        self.schema
            .reveal(targets)
            .map_err(|error| HaltReason::StreamDamaged {
                detail: error.to_string(),
            })?;
        for target in targets {
            self.waits.remove(&target.0);
        }
        // Partitions of what was replaced wait no more.
        self.forget_waits();
        Ok(())
    }

    /// Notes that rows of something that waits were passed over; true the first time in this transaction.
    pub fn pass_over(&mut self, target: TableId, at: FinalLsn) -> bool {
        let Some(wait) = self.waits.get_mut(&target.0) else {
            return false;
        };
        wait.passed_over.replace(at.0) != Some(at.0)
    }

    /// Goes over one operation of a transaction that an earlier session made.
    ///
    /// # Errors
    /// When it does not fit: the archive, or this program, is damaged.
    pub fn again(&mut self, op: Op<'_>, at: FinalLsn) -> Result<(), HaltReason> {
        let damaged = |error: &dyn std::fmt::Display| HaltReason::ArchiveDamaged {
            detail: format!("a schema change at {at}: {error}"),
        };
        match op {
            Op::Facts(json) => {
                match serde_json::from_slice(json).map_err(|error| damaged(&error))? {
                    Noted::Patch(patch) => {
                        let facts = self
                            .facts
                            .patched(&patch)
                            .map_err(|error| damaged(&error))?;
                        self.formers.note(&self.facts, &facts, &patch);
                        self.forget(&facts);
                        self.facts = facts;
                    }
                    Noted::PassedOver(target) => {
                        self.pass_over(target, at);
                    }
                }
            }
            Op::Schema(change) => self.change(&change, at).map_err(|error| damaged(&error))?,
            Op::Copied(copied) => {
                let targets: Vec<TableId> =
                    copied.targets.iter().map(|target| target.target).collect();
                self.reveal(&targets)?;
            }
            Op::Insert { .. }
            | Op::Update { .. }
            | Op::Rekey { .. }
            | Op::Delete { .. }
            | Op::Truncate { .. }
            | Op::Copying(_) => {}
        }
        Ok(())
    }

    /// Relations that are published no more.
    pub(super) fn forget(&mut self, next: &Facts) {
        let left = self
            .facts
            .relations
            .keys()
            .filter(|oid| !next.relations.contains_key(oid));
        self.gone.extend(left.copied());
        self.gone.retain(|oid| !next.relations.contains_key(oid));
    }

    /// Makes one change, and writes it down for what waits.
    pub(super) fn change(
        &mut self,
        change: &SchemaChange,
        at: FinalLsn,
    ) -> Result<(), rindle_proto::schema::SchemaError> {
        let concerned = self.waiting_in(change);
        self.schema.apply(change)?;
        let noted = (at.0, change.clone());
        for target in concerned {
            self.waits
                .entry(target.0)
                .or_default()
                .changes
                .push(noted.clone());
        }
        self.highest_id = self.highest_id.max(self.schema.highest_id().0);
        match change {
            SchemaChange::CreateTable { table } if table.waiting.is_some() => {
                self.waits.insert(table.id.0, Wait::default());
            }
            SchemaChange::CreateLeaf { leaf, .. } if leaf.waiting => {
                self.waits.insert(leaf.id.0, Wait::default());
            }
            SchemaChange::DropTable { .. } | SchemaChange::DropLeaf { .. } => {
                self.forget_waits();
            }
            _ => {}
        }
        Ok(())
    }

    fn forget_waits(&mut self) {
        let schema = &self.schema;
        self.waits
            .retain(|id, _| schema.owner(TableId(*id)).is_some());
    }

    /// What waits and is of the table that changes: the table itself, or its partitions.
    fn waiting_in(&self, change: &SchemaChange) -> Vec<TableId> {
        let Some(table) = self.schema.table(change.table()) else {
            return Vec::new();
        };
        match table.waiting {
            Some(_) => vec![table.id],
            None => table
                .leaves
                .iter()
                .filter(|leaf| leaf.waiting)
                .map(|leaf| leaf.id)
                .collect(),
        }
    }

    /// Tables and partitions that wait for a copy. A partition of a table that is replaced comes with what replaces it; a
    /// copy of its own might never fit the old table, which may stand still.
    pub fn waiting(&self) -> Vec<TableId> {
        let alone = |id: &TableId| match self.schema.owner(*id) {
            Some((table, Some(_))) => self.schema.successor(table.id).is_none(),
            Some((_, None)) | None => true,
        };
        self.waits
            .keys()
            .copied()
            .map(TableId)
            .filter(alone)
            .collect()
    }

    /// Their names, for people.
    pub fn waiting_names(&self) -> Vec<String> {
        self.names(&self.waiting())
    }

    /// Names of tables and partitions, for people.
    pub fn names(&self, ids: &[TableId]) -> Vec<String> {
        let name = |id: &TableId| {
            let (table, leaf) = self.schema.owner(*id)?;
            let of = |oid: Oid| self.facts.relations.get(&oid).map(RelationFacts::full_name);
            let own = || format!("{}.{}", table.schema, table.name);
            Some(leaf.and_then(|leaf| of(leaf.oid)).unwrap_or_else(own))
        };
        ids.iter().filter_map(name).collect()
    }

    /// Published tables that are not mirrored, and why.
    pub fn unmirrored(&self) -> Vec<(String, String)> {
        let view = self.facts.view();
        let known = |oid: Oid| self.schema.tables.iter().any(|table| table.oid == oid);
        let others = view
            .tables
            .iter()
            .filter(|table| !known(table.relation.oid));
        let why = |table| match view.table(table, TableId(0)) {
            Err(unfit) => unfit.to_string(),
            Ok(_) => "it is not part of this generation".to_owned(),
        };
        others
            .map(|table| (table.relation.full_name(), why(table)))
            .collect()
    }

    /// What the catalog says otherwise, in a way that rows would show.
    pub fn differences(&self, now: &Facts) -> Vec<Difference> {
        unannounced(self, now)
    }

    /// It waits for its first copy: nothing of it was ever shown, so whatever it was can still be told anew.
    pub fn is_young(&self, oid: Oid) -> bool {
        let mut here = self.schema.tables.iter().filter(|it| it.oid == oid);
        here.next().is_some_and(|it| it.waiting.is_some()) && here.next().is_none()
    }

    /// Two tables cannot have one name. Where `patch` gives one to another table, a young one of which it says nothing lost
    /// it, and nothing told: it was renamed or dropped while its schema was being published. It goes; the audit finds it
    /// again if it is still there.
    pub fn make_way(&self, patch: &mut Patch) {
        let lost = |named: &RelationFacts| {
            let mut tables = self.schema.tables.iter();
            let table = tables.find(|it| {
                it.oid != named.oid && (&it.schema, &it.name) == (&named.schema, &named.name)
            });
            table.map(|table| table.oid)
        };
        let lost: BTreeSet<Oid> = patch.relations.iter().filter_map(lost).collect();
        let goes = |oid: &Oid| self.is_young(*oid) && !patch.names(*oid);
        let gone: Vec<Oid> = lost.into_iter().filter(goes).collect();
        patch.dropped.extend(gone);
    }

    /// Somebody who reads the catalog under `snapshot` misses something that the stream told already.
    pub fn is_ahead_of(&self, snapshot: &Snapshot) -> bool {
        self.formers.are_ahead_of(snapshot)
    }

    /// A relation that was mirrored once.
    pub fn was_mirrored(&self, oid: Oid) -> bool {
        self.gone.contains(&oid)
    }
}
