//! From facts before and after to the changes that followers make. Pure.
//!
//! Tables are compared by oid and columns by number, so a rename is a rename whatever the names are. Changes come in an
//! order that SQLite can follow: what goes, indexes, columns that go, names (through free ones where they trade
//! places), columns that change, columns that come, partitions, tables that come, indexes.

mod steps;

use std::collections::{BTreeMap, BTreeSet};

use rindle_proto::change::SchemaChange;
use rindle_proto::ids::{FinalLsn, Oid};
use rindle_proto::schema::{Leaf, Table, TableId, Waiting};

use super::believed::{Around, Believed, Learned};
use super::shape::{key_of, prints_the_same, stored_value, without};
use crate::halt::HaltReason;
use crate::pg::catalog::{CatalogView, Facts, Patch, TableFacts};

/// `table_rewrite`'s reasons: a default was filled in, a column's values were made anew.
const REWROTE_DEFAULT: i32 = 2;
const REWROTE_VALUES: i32 = 4;

/// Why rows must be copied, by the table of the mirror.
#[derive(Debug, Default)]
pub(super) struct Reasons {
    /// The columns that were there keep their values.
    live: BTreeSet<Oid>,
    /// They may not.
    frozen: BTreeSet<Oid>,
    /// Made by this command, and empty as far as the stream tells.
    born: BTreeSet<Oid>,
}

impl Reasons {
    pub(super) fn new(old: &Facts, new: &Facts, patch: &Patch, around: Around<'_>) -> Self {
        let mut reasons = Self::default();
        let strangers = around.strangers;
        reasons.born = patch
            .created
            .iter()
            .copied()
            .filter(|oid| !strangers.contains(oid))
            .collect();
        let top = |oid: Oid| new.top(oid);
        for (oid, bits) in around.rewritten {
            let Some(top) = top(*oid) else { continue };
            match bits & (REWROTE_DEFAULT | REWROTE_VALUES) {
                0 => {}
                REWROTE_DEFAULT => drop(reasons.live.insert(top)),
                _ => drop(reasons.frozen.insert(top)),
            }
        }
        // By hand nobody tells of a rewrite, and of a TRUNCATE of a partition that is sent as its root nobody ever does:
        // another file is all that shows it, and VACUUM FULL makes one too.
        for relation in &patch.relations {
            let bits = around.rewritten.get(&relation.oid).copied();
            let is_told = bits.unwrap_or_default() & (REWROTE_DEFAULT | REWROTE_VALUES) != 0;
            let untold = patch.is_by_hand() || !is_told && new.root_of(relation).is_some();
            let before = old.relations.get(&relation.oid);
            if untold && before.is_some_and(|before| before.filenode != relation.filenode) {
                reasons.frozen.extend(top(relation.oid));
            }
        }
        let wanted = around.unsure.iter().chain(&patch.resync);
        reasons.frozen.extend(wanted.filter_map(|oid| top(*oid)));
        let reshaped: BTreeSet<Oid> = old
            .types
            .iter()
            .filter(|(oid, it)| reshaped(it, new.types.get(oid)))
            .map(|(oid, _)| *oid)
            .collect();
        for relation in new.relations.values().filter(|_| !reshaped.is_empty()) {
            if !new.used_types([relation]).is_disjoint(&reshaped) {
                reasons.frozen.extend(top(relation.oid));
            }
        }
        reasons
    }
}

/// Values of the type may print otherwise: a label is gone or renamed, an attribute came or went.
fn reshaped(
    old: &crate::pg::catalog::facts::TypeShape,
    new: Option<&crate::pg::catalog::facts::TypeShape>,
) -> bool {
    let Some(new) = new else { return false };
    match (old.typtype, old.shape.as_array(), new.shape.as_array()) {
        ('e', Some(old), Some(new)) => !old.iter().all(|label| new.contains(label)),
        _ => (&old.shape, &old.parts) != (&new.shape, &new.parts),
    }
}

/// Makes one plan.
pub(super) struct Planner<'a> {
    old: &'a Believed,
    next: Believed,
    /// What was published before, and what is now.
    before: CatalogView,
    view: CatalogView,
    reasons: Reasons,
    at: FinalLsn,
    changes: Vec<SchemaChange>,
    /// Tables of the mirror and what they come to, by id.
    targets: BTreeMap<TableId, Table>,
    /// Tables to make at the end.
    fresh: Vec<Table>,
}

impl<'a> Planner<'a> {
    pub(super) fn new(old: &'a Believed, facts: Facts, reasons: Reasons, at: FinalLsn) -> Self {
        let mut next = old.clone();
        next.forget(&facts);
        let view = facts.view();
        next.facts = facts;
        Self {
            before: old.facts.view(),
            old,
            next,
            view,
            reasons,
            at,
            changes: Vec::new(),
            targets: BTreeMap::new(),
            fresh: Vec::new(),
        }
    }

    pub(super) fn plan(mut self) -> Result<Learned, HaltReason> {
        let publication = &self.view.publication;
        if [
            publication.insert,
            publication.update,
            publication.delete,
            publication.truncate,
        ] != [true; 4]
        {
            let detail = "it no longer publishes insert, update, delete and truncate".to_owned();
            return Err(refused(format!("publication {}", publication.name), detail));
        }
        let view = std::mem::replace(&mut self.view, empty_view(&self.next.facts));
        self.drop_unpublished(&view)?;
        for facts in &view.tables {
            self.decide(&view, facts)?;
        }
        self.drop_columns()?;
        self.rename_tables()?;
        self.change_columns(&view)?;
        self.leaves()?;
        for table in std::mem::take(&mut self.fresh) {
            self.make(SchemaChange::CreateTable { table })?;
        }
        self.create_indexes()?;
        Ok(Learned {
            believed: self.next,
            changes: self.changes,
        })
    }

    fn make(&mut self, change: SchemaChange) -> Result<(), HaltReason> {
        self.next
            .change(&change, self.at)
            .map_err(|error| refused(error.object, error.reason))?;
        self.changes.push(change);
        Ok(())
    }

    fn next_id(&mut self) -> TableId {
        self.next.highest_id += 1;
        TableId(self.next.highest_id)
    }

    fn drop_unpublished(&mut self, view: &CatalogView) -> Result<(), HaltReason> {
        let published = |oid: Oid| view.tables.iter().any(|table| table.relation.oid == oid);
        let mut gone: Vec<&Table> = self
            .old
            .schema
            .tables
            .iter()
            .filter(|table| !published(table.oid))
            .collect();
        // A waiting one first: it may replace a shown one.
        gone.sort_by_key(|table| table.waiting.is_none());
        for table in gone {
            self.make(SchemaChange::DropTable { table: table.id })?;
        }
        Ok(())
    }

    /// What becomes of one published table.
    fn decide(&mut self, view: &CatalogView, facts: &TableFacts) -> Result<(), HaltReason> {
        let oid = facts.relation.oid;
        let of_oid = |waiting: bool| {
            let mut tables = self.old.schema.tables.iter();
            tables
                .find(|table| table.oid == oid && table.waiting.is_some() == waiting)
                .cloned()
        };
        let (shown, waiting) = (of_oid(false), of_oid(true));
        let wanted = match view.table(facts, TableId(0)) {
            Ok(wanted) => wanted,
            // It is told, and copied when it becomes fit.
            Err(_) if shown.is_none() && waiting.is_none() => return Ok(()),
            Err(unfit) => return Err(refused(facts.relation.full_name(), unfit.to_string())),
        };
        if let Some(shown) = &shown
            && key_of(shown) != key_of(&wanted)
        {
            return Err(refused(
                facts.relation.full_name(),
                "its row key is another one now".to_owned(),
            ));
        }
        if shown.is_none() && waiting.is_none() {
            let waits = !self.reasons.born.contains(&oid);
            let state = Waiting {
                replaces: None,
                live: false,
            };
            return self.add(facts, wanted, waits.then_some(state));
        }
        let newest = waiting.as_ref().or(shown.as_ref()).unwrap_or(&wanted);
        match self.must_copy(facts, newest, &wanted) {
            None => {
                if let Some(shown) = &shown {
                    let target = self.shown_target(shown, waiting.as_ref(), &wanted);
                    self.targets.insert(shown.id, target);
                }
                if let Some(waiting) = waiting {
                    self.targets.insert(
                        waiting.id,
                        Table {
                            waiting: waiting.waiting,
                            ..wanted
                        },
                    );
                }
                Ok(())
            }
            Some(live) => self.copy_anew(facts, shown, waiting.as_ref(), wanted, live),
        }
    }

    /// Rows must be copied; true when the shown ones can follow the source meanwhile.
    fn must_copy(&self, facts: &TableFacts, newest: &Table, wanted: &Table) -> Option<bool> {
        let oid = facts.relation.oid;
        let before = &self.before.tables;
        let before = before.binary_search_by_key(&oid, |table| table.relation.oid);
        let before = before.ok().map(|at| &self.before.tables[at]);
        let filters = |facts: &TableFacts| {
            let all = std::iter::once(&facts.relation).chain(&facts.leaves);
            all.map(|it| (it.oid, it.row_filter.clone()))
                .filter(|(_, filter)| filter.is_some())
                .collect::<Vec<_>>()
        };
        let filtered = before.is_some_and(|before| filters(before) != filters(facts));
        let retyped = wanted.columns.iter().any(|new| {
            let old = newest.columns.iter().find(|old| old.attnum == new.attnum);
            old.is_some_and(|old| !prints_the_same(old, new))
        });
        // A column that was there and was not sent, or is sent no more: who wrote before may have sent either.
        let known = |attnum: i16| {
            before.is_some_and(|it| it.relation.columns.iter().any(|c| c.attnum == attnum))
        };
        let is = |attnum: i16| {
            facts
                .relation
                .columns
                .iter()
                .any(|column| column.attnum == attnum)
        };
        let had =
            |table: &Table, attnum: i16| table.columns.iter().any(|column| column.attnum == attnum);
        let widened = wanted
            .columns
            .iter()
            .any(|new| !had(newest, new.attnum) && known(new.attnum));
        let narrowed = newest
            .columns
            .iter()
            .any(|old| !had(wanted, old.attnum) && is(old.attnum));
        let of = |table: &Table| {
            table
                .leaves
                .iter()
                .map(|leaf| leaf.oid)
                .collect::<BTreeSet<_>>()
        };
        let routes =
            facts.relation.kind == 'p' && (newest.leaves.is_empty() != wanted.leaves.is_empty());
        let (has, gets) = (of(newest), of(wanted));
        let attached = newest.waiting.is_some()
            && gets
                .iter()
                .any(|leaf| !has.contains(leaf) && !self.reasons.born.contains(leaf));
        let unsplit = facts.relation.kind == 'p'
            && self.next.facts.publication.via_root
            && before.is_some_and(|before| leaf_set(before) != self.unborn(before, facts));
        if self.reasons.frozen.contains(&oid)
            || filtered
            || retyped
            || widened
            || narrowed
            || unsplit
            || routes && !has.is_empty()
        {
            return Some(false);
        }
        let added = wanted.columns.iter().filter(|new| !had(newest, new.attnum));
        let unknown = added
            .clone()
            .any(|column| stored_value(facts, column).is_none());
        (self.reasons.live.contains(&oid) || unknown || attached).then_some(!attached)
    }

    /// The leaves now, without those that were made empty.
    fn unborn(&self, before: &TableFacts, now: &TableFacts) -> BTreeSet<Oid> {
        let had = leaf_set(before);
        leaf_set(now)
            .into_iter()
            .filter(|leaf| had.contains(leaf) || !self.reasons.born.contains(leaf))
            .collect()
    }

    /// A table that waits takes the place of what there is.
    fn copy_anew(
        &mut self,
        facts: &TableFacts,
        shown: Option<Table>,
        waiting: Option<&Table>,
        wanted: Table,
        live: bool,
    ) -> Result<(), HaltReason> {
        let was_live = waiting
            .and_then(|table| table.waiting)
            .is_none_or(|it| it.live);
        if let Some(waiting) = waiting {
            self.make(SchemaChange::DropTable { table: waiting.id })?;
        }
        let live = live && was_live && shown.is_some();
        if let Some(shown) = &shown {
            let target = match live {
                true => {
                    let hidden =
                        |attnum: i16| !shown.columns.iter().any(|column| column.attnum == attnum);
                    Table {
                        id: shown.id,
                        leaves: wanted.leaves.clone(),
                        ..without(&wanted, &hidden)
                    }
                }
                false => renamed(shown, &wanted),
            };
            self.targets.insert(shown.id, target);
        }
        let state = Waiting {
            replaces: shown.map(|shown| shown.id),
            live,
        };
        self.add(facts, wanted, Some(state))
    }

    fn shown_target(&self, shown: &Table, waiting: Option<&Table>, wanted: &Table) -> Table {
        let Some(waiting) = waiting else {
            return wanted.clone();
        };
        if !waiting.waiting.is_some_and(|it| it.live) {
            return renamed(shown, wanted);
        }
        let has =
            |table: &Table, attnum: i16| table.columns.iter().any(|column| column.attnum == attnum);
        // What only the waiting one has is hidden until its rows are there.
        without(wanted, &|attnum| {
            has(waiting, attnum) && !has(shown, attnum)
        })
    }

    fn add(
        &mut self,
        facts: &TableFacts,
        wanted: Table,
        waiting: Option<Waiting>,
    ) -> Result<(), HaltReason> {
        let id = self.next_id();
        let mut table = Table {
            id,
            waiting,
            ..wanted
        };
        for leaf in &mut table.leaves {
            self.next.highest_id += 1;
            *leaf = Leaf {
                id: TableId(self.next.highest_id),
                waiting: false,
                ..*leaf
            };
        }
        if table.waiting.is_none() && facts.relation.kind == 'p' && !facts.leaves.is_empty() {
            // A root is made without partitions; one that has some was there before.
            table.waiting = Some(Waiting {
                replaces: None,
                live: false,
            });
        }
        self.fresh.push(table);
        Ok(())
    }
}

/// A frozen table only follows its name.
fn renamed(shown: &Table, wanted: &Table) -> Table {
    Table {
        schema: wanted.schema.clone(),
        name: wanted.name.clone(),
        ..shown.clone()
    }
}

fn leaf_set(facts: &TableFacts) -> BTreeSet<Oid> {
    facts.leaves.iter().map(|leaf| leaf.oid).collect()
}

fn empty_view(facts: &Facts) -> CatalogView {
    CatalogView {
        server: facts.server.clone(),
        publication: facts.publication.clone(),
        tables: Vec::new(),
        types: BTreeMap::new(),
    }
}

fn refused(object: String, detail: String) -> HaltReason {
    HaltReason::SchemaRefused { object, detail }
}

fn bug(detail: &str) -> HaltReason {
    HaltReason::StreamDamaged {
        detail: detail.to_owned(),
    }
}
