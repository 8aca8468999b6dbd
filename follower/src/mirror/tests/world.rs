//! The model: one partitioned table of a source, what the mirror shows of it, and the operations that say how it changes.

use std::collections::BTreeMap;

use rindle_proto::change::StoredValue;
use rindle_proto::schema::{Index, Waiting};

use super::*;

/// Rows by key: the partition's number, and a value for every column there ever was.
pub(super) type Rows = BTreeMap<i64, (usize, Vec<V>)>;

/// A table of the schema: the one that is shown, or the one that will take its place.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Side {
    pub(super) id: u32,
    /// Numbers of its columns; 0 is the key.
    pub(super) columns: Vec<usize>,
    /// Number of the partition, its id, and whether it waits by itself.
    pub(super) leaves: Vec<(usize, u32, bool)>,
}

/// What a copy of `target` read.
#[derive(Clone)]
pub(super) struct Snapshot {
    pub(super) target: u32,
    pub(super) lsn: u64,
    pub(super) shape: Table,
    pub(super) rows: Vec<(u32, Vec<V>)>,
}

#[derive(Clone)]
pub(super) struct World {
    ids: u32,
    columns: usize,
    leaves: usize,
    pub(super) shown: Side,
    pub(super) next: Option<Side>,
    /// The shown one follows the source; else it stands still.
    pub(super) live: bool,
    /// The source.
    rows: Rows,
    /// What the shown table holds.
    visible: Rows,
    snapshot: Option<Snapshot>,
}

pub(super) type Choice = (u8, u16, u16);

fn column_of(number: usize) -> Column {
    let kind = if number == 0 { Kind::Int } else { Kind::Text };
    column(number, &format!("c{number}"), kind)
}

impl Side {
    fn table(&self, waiting: Option<Waiting>) -> Table {
        let leaf = |(_, id, waiting): &(usize, u32, bool)| super::waiting::leaf(*id, *waiting);
        let index = Index {
            oid: Oid(7),
            name: "i".into(),
            columns: vec![0],
        };
        Table {
            columns: self.columns.iter().map(|at| column_of(*at)).collect(),
            leaves: self.leaves.iter().map(leaf).collect(),
            indexes: vec![index],
            waiting,
            ..table(self.id, "p", &[("k", Kind::Int)], &[0])
        }
    }

    fn leaf(&self, number: usize) -> Option<u32> {
        let found = self.leaves.iter().find(|(it, ..)| *it == number);
        found.map(|(_, id, _)| *id)
    }

    fn cells(&self, row: &[V]) -> Vec<V> {
        self.columns.iter().map(|at| row[*at].clone()).collect()
    }
}

impl World {
    pub(super) fn new() -> Self {
        Self {
            ids: 12,
            columns: 2,
            leaves: 2,
            shown: Side {
                id: 10,
                columns: vec![0, 1],
                leaves: vec![(0, 11, false), (1, 12, false)],
            },
            next: None,
            live: true,
            rows: Rows::new(),
            visible: Rows::new(),
            snapshot: None,
        }
    }

    fn id(&mut self) -> u32 {
        self.ids += 1;
        self.ids
    }

    pub(super) fn schema(&self) -> Schema {
        let waiting = Waiting {
            replaces: Some(TableId(self.shown.id)),
            live: self.live,
        };
        let next = self.next.iter().map(|side| side.table(Some(waiting)));
        Schema {
            tables: std::iter::once(self.shown.table(None))
                .chain(next)
                .collect(),
        }
    }

    /// The sides that changes are written for.
    fn sides(&self) -> Vec<Side> {
        let shown = self.live.then_some(&self.shown);
        shown.into_iter().chain(&self.next).cloned().collect()
    }

    fn newest(&self) -> &Side {
        self.next.as_ref().unwrap_or(&self.shown)
    }

    /// Makes a change to the source, and to what is shown if that follows.
    fn each(&mut self, change: impl Fn(&mut Rows)) {
        change(&mut self.rows);
        if self.live {
            change(&mut self.visible);
        }
    }

    fn each_side(&mut self, change: impl Fn(&mut Side)) {
        if self.live {
            change(&mut self.shown);
        }
        self.next.iter_mut().for_each(change);
    }

    fn value(&self, b: u16, column: usize) -> V {
        match (b as usize + column) % 4 {
            0 => V::Null,
            at => text(["", "007", "some text"][at - 1]),
        }
    }

    pub(super) fn op(&mut self, (verb, a, b): Choice) -> Vec<O> {
        let leaf = self
            .newest()
            .leaves
            .get(usize::from(b) % self.newest().leaves.len().max(1));
        let leaf = leaf.map(|(number, ..)| *number);
        let key = self
            .rows
            .keys()
            .nth(usize::from(a) % self.rows.len().max(1));
        let key = key.copied();
        match (verb, leaf, key) {
            (0..=11, Some(leaf), _) => self.insert(leaf, i64::from(a % 60), b),
            (12..=19, _, Some(key)) => self.update(key, None, b),
            (20..=22, _, Some(key)) => self.update(key, Some(i64::from(b % 60)), a),
            (23..=26, _, Some(key)) => self.delete(key),
            (27, Some(leaf), _) => self.truncate(leaf),
            (28, Some(_), _) => self.truncate_all(b),
            (29..=31, ..) => self.migrate(b),
            (32..=33, ..) => self.attach(a, b),
            (34, Some(leaf), _) => self.drop_leaf(leaf),
            (35..=36, ..) => self.add_column(b),
            (37, ..) => self.drop_column(a),
            _ => Vec::new(),
        }
    }

    fn insert(&mut self, leaf: usize, key: i64, b: u16) -> Vec<O> {
        if self.rows.contains_key(&key) {
            return Vec::new();
        }
        let mut row: Vec<V> = (0..self.columns).map(|at| self.value(b, at)).collect();
        row[0] = V::Int(key);
        self.each(|rows| drop(rows.insert(key, (leaf, row.clone()))));
        let op = |side: &Side| Some(O::Insert(side.leaf(leaf)?, side.cells(&row)));
        self.sides().iter().filter_map(op).collect()
    }

    fn update(&mut self, key: i64, to: Option<i64>, b: u16) -> Vec<O> {
        let to = to.filter(|to| !self.rows.contains_key(to));
        let (leaf, mut row) = self.rows[&key].clone();
        let mut sent = row.clone();
        for at in 1..self.columns {
            sent[at] = V::Same;
            if b >> at & 1 == 1 {
                row[at] = self.value(b / 3, at);
                sent[at] = row[at].clone();
            }
        }
        row[0] = V::Int(to.unwrap_or(key));
        sent[0] = row[0].clone();
        let new = to.unwrap_or(key);
        let changed = sent.clone();
        self.each(|rows| {
            let Some((leaf, mut old)) = rows.remove(&key) else {
                return;
            };
            for (cell, new) in old.iter_mut().zip(&changed) {
                if *new != V::Same {
                    *cell = new.clone();
                }
            }
            rows.insert(new, (leaf, old));
        });
        let op = |side: &Side| {
            let (leaf, cells) = (side.leaf(leaf)?, side.cells(&sent));
            Some(match to {
                None => O::Update(leaf, cells),
                Some(_) => O::Rekey(leaf, vec![V::Int(key)], cells),
            })
        };
        self.sides().iter().filter_map(op).collect()
    }

    fn delete(&mut self, key: i64) -> Vec<O> {
        let leaf = self.rows[&key].0;
        self.each(|rows| drop(rows.remove(&key)));
        let op = |side: &Side| Some(O::Delete(side.leaf(leaf)?, vec![V::Int(key)]));
        self.sides().iter().filter_map(op).collect()
    }

    fn truncate(&mut self, leaf: usize) -> Vec<O> {
        self.each(|rows| rows.retain(|_, (of, _)| *of != leaf));
        let sides = self.sides();
        vec![O::Truncate(
            sides.iter().filter_map(|side| side.leaf(leaf)).collect(),
        )]
    }

    fn truncate_all(&mut self, b: u16) -> Vec<O> {
        self.each(Rows::clear);
        let ids = |side: &Side| match b % 2 {
            0 => vec![side.id],
            _ => side.leaves.iter().map(|(_, id, _)| *id).collect(),
        };
        vec![O::Truncate(self.sides().iter().flat_map(ids).collect())]
    }

    /// A new table takes the place of the shown one, once it is copied: with a column of new values, or all rewritten.
    fn migrate(&mut self, b: u16) -> Vec<O> {
        let mut ops = Vec::new();
        if let Some(old) = self.next.take() {
            let table = TableId(old.id);
            ops.push(O::Schema(SchemaChange::DropTable { table }));
            self.put_next(&old, b, &mut ops);
        } else {
            let shown = self.shown.clone();
            self.put_next(&shown, b, &mut ops);
        }
        ops
    }

    fn put_next(&mut self, of: &Side, b: u16, ops: &mut Vec<O>) {
        // One that stands still already is not what the source has: it cannot go on.
        self.live = self.live && b.is_multiple_of(2);
        let id = self.id();
        let mut next = Side { id, ..of.clone() };
        for at in 0..next.leaves.len() {
            next.leaves[at] = (next.leaves[at].0, self.id(), false);
        }
        match self.live {
            true => {
                next.columns.push(self.columns);
                let put = |rows: &mut Rows, filled: bool| {
                    for (key, (_, row)) in rows {
                        row.push(if filled {
                            text(&format!("random {key}"))
                        } else {
                            V::Null
                        });
                    }
                };
                put(&mut self.rows, true);
                put(&mut self.visible, false);
                self.columns += 1;
            }
            false => self
                .rows
                .values_mut()
                .for_each(|(_, row)| row[1] = text("rewritten")),
        }
        self.next = Some(next);
        let table = self.schema().tables.pop().unwrap();
        ops.push(O::Schema(SchemaChange::CreateTable { table }));
    }

    /// A partition with rows of its own (or a new, empty one).
    fn attach(&mut self, a: u16, b: u16) -> Vec<O> {
        let empty = b.is_multiple_of(2);
        if !empty && self.next.is_some() || self.newest().leaves.len() > 4 {
            return Vec::new();
        }
        let number = self.leaves;
        self.leaves += 1;
        for key in (0..3).map(|at| i64::from(a % 50) + 60 + at * 50) {
            if !empty && !self.rows.contains_key(&key) {
                let mut row = vec![text("attached"); self.columns];
                row[0] = V::Int(key);
                self.each(|rows| drop(rows.insert(key, (number, row.clone()))));
            }
        }
        let mut ops = Vec::new();
        for side in self.sides() {
            let id = self.id();
            self.each_side(|it| {
                if it.id == side.id {
                    it.leaves.push((number, id, !empty));
                }
            });
            ops.push(O::Schema(SchemaChange::CreateLeaf {
                table: TableId(side.id),
                leaf: super::waiting::leaf(id, !empty),
            }));
        }
        ops
    }

    fn drop_leaf(&mut self, leaf: usize) -> Vec<O> {
        self.each(|rows| rows.retain(|_, (of, _)| *of != leaf));
        let op = |side: &Side| {
            Some(O::Schema(SchemaChange::DropLeaf {
                table: TableId(side.id),
                leaf: TableId(side.leaf(leaf)?),
            }))
        };
        let ops = self.sides().iter().filter_map(op).collect();
        self.each_side(|side| side.leaves.retain(|(number, ..)| *number != leaf));
        ops
    }

    fn add_column(&mut self, b: u16) -> Vec<O> {
        let number = self.columns;
        let (value, stored) = match b % 2 {
            0 => (V::Null, StoredValue::Null),
            _ => (text("stored"), StoredValue::Text("stored".into())),
        };
        self.columns += 1;
        let put = |rows: &mut Rows, value: &V| {
            rows.values_mut()
                .for_each(|(_, row)| row.push(value.clone()));
        };
        put(&mut self.rows, &value);
        put(&mut self.visible, &value);
        let op = |side: &Side| {
            O::Schema(SchemaChange::AddColumn {
                table: TableId(side.id),
                column: column_of(number),
                value: stored.clone(),
            })
        };
        let ops = self.sides().iter().map(op).collect();
        self.each_side(|side| side.columns.push(number));
        ops
    }

    fn drop_column(&mut self, a: u16) -> Vec<O> {
        let columns = &self.newest().columns;
        let number = columns[usize::from(a) % columns.len()];
        // Column 1 is what rewrites write.
        if number < 2 {
            return Vec::new();
        }
        let has = |side: &&Side| side.columns.contains(&number);
        let op = |side: &Side| {
            O::Schema(SchemaChange::DropColumn {
                table: TableId(side.id),
                attnum: number as i16 + 1,
            })
        };
        let ops = self.sides().iter().filter(has).map(op).collect();
        self.each_side(|side| side.columns.retain(|it| *it != number));
        ops
    }

    pub(super) fn take_snapshot(&mut self, lsn: u64) {
        let table = self.schema().tables.pop().unwrap();
        let leaf = self.shown.leaves.iter().find(|(.., waiting)| *waiting);
        let rows = |side: &Side, only: Option<usize>| {
            let of = |leaf: usize| only.is_none_or(|only| only == leaf);
            let rows = self.rows.values().filter(|(leaf, _)| of(*leaf));
            let mut rows: Vec<_> = rows
                .map(|(leaf, row)| (side.leaf(*leaf).unwrap(), side.cells(row)))
                .collect();
            rows.sort_by_key(|(leaf, _)| *leaf);
            rows
        };
        let (target, rows) = match (&self.next, leaf) {
            (Some(next), _) => (next.id, rows(next, None)),
            (None, Some((number, id, _))) => (*id, rows(&self.shown, Some(*number))),
            (None, None) => return,
        };
        self.snapshot = Some(Snapshot {
            target,
            lsn,
            shape: table,
            rows,
        });
    }

    /// The copy that can be complete now.
    pub(super) fn reveal(&mut self) -> Option<Snapshot> {
        let snapshot = self.snapshot.take()?;
        if self
            .next
            .as_ref()
            .is_some_and(|next| next.id == snapshot.target)
        {
            self.shown = self.next.take()?;
            self.visible = self.rows.clone();
            self.live = true;
            return Some(snapshot);
        }
        let mut leaves = self.shown.leaves.iter_mut();
        let leaf = leaves.find(|(_, id, waiting)| *id == snapshot.target && *waiting)?;
        leaf.2 = false;
        Some(snapshot)
    }

    /// What readers see: columns, and rows in key order.
    pub(super) fn seen(&self) -> Vec<Vec<V>> {
        let hidden = |leaf: usize| {
            let mut leaves = self.shown.leaves.iter();
            leaves.any(|(number, _, waiting)| *number == leaf && *waiting)
        };
        let rows = self.visible.values().filter(|(leaf, _)| !hidden(*leaf));
        rows.map(|(_, row)| self.shown.cells(row)).collect()
    }
}
