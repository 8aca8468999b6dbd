//! Loading ahead: the rows of a backfill go into their hidden tables in small slices, between transactions, before the
//! stream says that it is complete. Nothing of this is part of a position: what was loaded is used when the end of the
//! copy names the same parts, and dropped when it does not. A restart drops it too.
//!
//! Hidden tables have their indexes from the beginning: an index over rows that are there cannot be made in slices.

use std::collections::VecDeque;

use bytes::Bytes;
use rindle_proto::body::{BulkPart, Copied, TxnPart};
use rindle_proto::codec::Input;
use rindle_proto::frame::Frame;
use rindle_proto::ids::FinalLsn;
use rindle_proto::op::{Op, Ops};
use rindle_proto::row::Row;
use rindle_proto::schema::{Schema, TableId};
use rusqlite::Connection;
use sha2::{Digest as _, Sha256};

use super::ddl::{self, Place, run};
use super::error::MirrorError;
use super::load::{self, Load, bad_part, bad_row, load_error};
use super::ops::{self, At, Plans, Tables};
use super::rows::{self, Plan};
use super::{BulkSource, Mirror, Open, copied, discard, pending};

/// Rows between two looks at the clock.
const STEP_ROWS: usize = 32;

/// What one slice came to.
#[derive(Debug)]
pub enum Slice {
    /// There is nothing to load.
    Nothing,
    /// The next part, or page, is on its way.
    Waits,
    /// Some was loaded, and there may be more.
    Some,
    /// What was loaded is dropped: all of it is loaded at the end of its copy, which tells what is wrong.
    Dropped(MirrorError),
    /// A table that nobody is shown stays in the file until a later start, or change of a schema.
    Kept(MirrorError),
}

/// What is known of copies that are about to end.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    /// Not looked at yet.
    announced: VecDeque<Announced>,
    /// In the order in which they were announced.
    copies: VecDeque<Copy>,
    /// Tables of the file that nobody is shown any more.
    old: discard::Old,
}

#[derive(Debug)]
struct Announced {
    at: At,
    copied: Copied,
}

/// One copy that is loaded ahead.
#[derive(Debug)]
pub(super) struct Copy {
    at: At,
    copied: Copied,
    targets: Vec<Target>,
    /// Not begun yet, with the number of their target.
    parts: VecDeque<(usize, BulkPart)>,
    part: Option<OpenPart>,
}

#[derive(Debug)]
struct Target {
    load: Load,
    /// Its hidden table and its indexes are in the file.
    made: bool,
    plans: Plans,
    /// Last entry of what waits that is applied already.
    done: i64,
    /// What was read of what comes after it.
    next: VecDeque<pending::Entry>,
    /// The rest of what waits is for the commit that shows the table.
    replayed: bool,
}

/// The part whose rows go in at present.
#[derive(Debug)]
struct OpenPart {
    part: BulkPart,
    bytes: Bytes,
    plan: Plan,
    /// Rows before it are loaded.
    offset: usize,
    rows: u64,
    digest: Sha256,
}

impl Ahead {
    /// Forgets all; the hidden tables are the caller's.
    pub(super) fn clear(&mut self) {
        self.announced.clear();
        self.copies.clear();
    }
}

impl Mirror {
    /// Notes what the first operation of `part` announces. It is void by itself when its transaction is.
    pub(super) fn note_copying(&mut self, frame: &Frame, part: &TxnPart<'_>) {
        if part.start.is_some()
            && let Some(Ok(Op::Copying(copied))) = Ops::new(part.ops).next()
        {
            self.ahead.announced.push_back(Announced {
                at: At::new(frame),
                copied: *copied,
            });
        }
    }

    /// Loads rows of a copy that was announced, or does away with what nobody is shown any more, until `go_on` says no.
    /// Does nothing unless all is committed.
    ///
    /// # Errors
    /// When SQLite can no longer roll back.
    pub fn load_ahead(
        &mut self,
        bulk: &mut dyn BulkSource,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Slice, MirrorError> {
        if !matches!(self.open, Open::Nothing) || !self.conn.is_autocommit() {
            return Ok(Slice::Nothing);
        }
        match self.slice(bulk, go_on) {
            Ok(Slice::Nothing) => {}
            Ok(slice) => return Ok(slice),
            Err(error) => {
                self.rollback()?;
                self.drop_ahead()?;
                return Ok(Slice::Dropped(error));
            }
        }
        match self.discard_some(go_on) {
            Ok(slice) => Ok(slice),
            Err(error) => {
                self.rollback()?;
                self.ahead.old.clear();
                Ok(Slice::Kept(error))
            }
        }
    }

    /// Does away with some of what nobody is shown any more.
    fn discard_some(&mut self, go_on: &mut dyn FnMut() -> bool) -> Result<Slice, MirrorError> {
        let slice = self.ahead.old.slice(&self.conn, &self.path, go_on)?;
        if matches!(slice, Slice::Some) {
            self.wal.after_commit(&self.conn)?;
        }
        Ok(slice)
    }

    /// Drops all that was loaded ahead.
    pub(super) fn drop_ahead(&mut self) -> Result<(), MirrorError> {
        if self.ahead.copies.is_empty() {
            return Ok(());
        }
        self.ahead.clear();
        load::clear(&self.conn)
    }

    /// What was loaded of exactly this; what it makes void is dropped. Nothing may be open.
    pub(super) fn take_ahead(
        &mut self,
        copied: &Copied,
        loads: &[Load],
    ) -> Result<Option<Copy>, MirrorError> {
        let names = |copy: &Copied| copy.targets.iter().any(|it| names(copied, it.target));
        self.ahead.announced.retain(|it| !names(&it.copied));
        let (fits, rest): (VecDeque<Copy>, VecDeque<Copy>) = std::mem::take(&mut self.ahead.copies)
            .into_iter()
            .partition(|copy| names(&copy.copied));
        self.ahead.copies = rest;
        let mut found = None;
        for copy in fits {
            match found.is_none() && copy.copied == *copied && copy.loads_are(loads) {
                true => found = Some(copy),
                false => copy.drop(&self.conn)?,
            }
        }
        Ok(found)
    }

    fn slice(
        &mut self,
        bulk: &mut dyn BulkSource,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Slice, MirrorError> {
        self.look_at_announced()?;
        for copy in &mut self.ahead.copies {
            match copy.step(&self.conn, bulk, go_on)? {
                Slice::Nothing => {}
                other => {
                    self.wal.after_commit(&self.conn)?;
                    return Ok(other);
                }
            }
        }
        Ok(Slice::Nothing)
    }

    fn look_at_announced(&mut self) -> Result<(), MirrorError> {
        let schema = &self.schema;
        let waits = |copy: &Copy| {
            let loads = copied::awaited(schema, &copy.copied.targets);
            loads.is_ok_and(|(loads, _)| copy.loads_are(&loads))
        };
        let checked = std::mem::replace(&mut self.ahead_checked, self.schema_edits);
        if checked != self.schema_edits {
            let copies = std::mem::take(&mut self.ahead.copies);
            let (wanted, void): (VecDeque<_>, VecDeque<_>) = copies.into_iter().partition(waits);
            self.ahead.copies = wanted;
            void.into_iter()
                .try_for_each(|copy| copy.drop(&self.conn))?;
            self.ahead.old.look(&self.conn)?;
        }
        while let Some(Announced { at, copied }) = self.ahead.announced.pop_front() {
            let known = |copy: &Copy| copy.copied == copied;
            if self.ahead.copies.iter().any(known) {
                continue;
            }
            let Ok((loads, _)) = copied::awaited(&self.schema, &copied.targets) else {
                // Dropped meanwhile, or nothing that this mirror has; its end will tell.
                continue;
            };
            if let Some(before) = self.take_ahead(&copied, &loads)? {
                before.drop(&self.conn)?;
            }
            if let Some(copy) = Copy::new(at, copied, loads) {
                self.ahead.copies.push_back(copy);
            }
        }
        Ok(())
    }
}

impl Copy {
    /// None when a part is of nothing that is copied: its end tells.
    fn new(at: At, copied: Copied, loads: Vec<Load>) -> Option<Self> {
        let in_order = load::in_order(&loads, &copied.parts);
        if in_order.len() != copied.parts.len() {
            return None;
        }
        let parts = in_order.into_iter().map(|(at, part)| (at, part.clone()));
        let parts = parts.collect();
        let targets = loads.into_iter().map(|load| Target {
            // What waits for a partition is handed on by the commit that shows its table.
            replayed: load.shape.leaves.iter().any(|leaf| leaf.waiting),
            load,
            made: false,
            plans: Plans::default(),
            done: 0,
            next: VecDeque::new(),
        });
        Some(Self {
            at,
            targets: targets.collect(),
            parts,
            part: None,
            copied,
        })
    }

    fn loads_are(&self, loads: &[Load]) -> bool {
        self.targets.iter().map(|target| &target.load).eq(loads)
    }

    fn drop(&self, conn: &Connection) -> Result<(), MirrorError> {
        let mut targets = self.copied.targets.iter();
        targets.try_for_each(|it| load::drop_of(conn, it.target))
    }

    /// The last entry of what waits for a target that is in its hidden table.
    pub(super) fn done(&self, target: TableId) -> i64 {
        let mut targets = self.targets.iter();
        let found = targets.find(|it| it.load.target == target);
        found.map_or(0, |it| it.done)
    }

    /// Loads what is left of its rows, however long that takes.
    pub(super) fn finish(
        &mut self,
        conn: &Connection,
        wal: &mut super::wal::Wal,
        bulk: &mut dyn BulkSource,
    ) -> Result<(), MirrorError> {
        (0..self.targets.len()).try_for_each(|at| self.make(conn, at))?;
        let left: Vec<&BulkPart> = self.parts.iter().map(|(_, part)| part).collect();
        bulk.expect(self.copied.attempt, &left);
        let open = self
            .part
            .as_ref()
            .map_or(0, |open| open.part.rows - open.rows);
        let rows = open + left.iter().map(|part| part.rows).sum::<u64>();
        if rows > 0 {
            tracing::info!(
                rows,
                "a copy ended before all its rows were loaded; what comes after it waits for the rest"
            );
        }
        loop {
            if self.part.is_some() {
                load::begin(conn)?;
                self.rows(conn, &mut || true)?;
                load::commit(conn)?;
                wal.after_commit(conn)?;
            }
            let Some((at, part)) = self.parts.pop_front() else {
                return Ok(());
            };
            let bytes = bulk.rows(self.copied.attempt, &part);
            let bytes = bytes.map_err(|source| MirrorError::Bulk {
                number: part.number,
                source,
            })?;
            self.open(at, part, bytes)?;
        }
    }

    /// One commit of its own.
    fn step(
        &mut self,
        conn: &Connection,
        bulk: &mut dyn BulkSource,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Slice, MirrorError> {
        if self.part.is_none()
            && let Some((at, part)) = self.parts.front()
        {
            let bytes = bulk.poll(self.copied.attempt, part);
            let bytes = bytes.map_err(|source| MirrorError::Bulk {
                number: part.number,
                source,
            })?;
            let Some(bytes) = bytes else {
                return Ok(Slice::Waits);
            };
            let (at, part) = (*at, part.clone());
            self.parts.pop_front();
            self.make(conn, at)?;
            self.open(at, part, bytes)?;
        }
        load::begin(conn)?;
        let some = match self.part.is_some() {
            true => {
                self.rows(conn, go_on)?;
                true
            }
            false => self.replay(conn, go_on)?,
        };
        load::commit(conn)?;
        Ok(match some {
            true => Slice::Some,
            false => Slice::Nothing,
        })
    }

    fn make(&mut self, conn: &Connection, at: usize) -> Result<(), MirrorError> {
        let target = &mut self.targets[at];
        if !target.made {
            load::drop_of(conn, target.load.target)?;
            run(
                conn,
                &ddl::create_table(&target.load.shape, &target.load.name()),
            )?;
            for sql in target.load.indexes() {
                run(conn, &sql)?;
            }
            target.made = true;
        }
        Ok(())
    }

    fn open(&mut self, at: usize, part: BulkPart, bytes: Bytes) -> Result<(), MirrorError> {
        if bytes.len() as u64 != part.raw_bytes {
            return Err(bad_part(&part, "its length is not what the log says"));
        }
        let plan = self.targets[at].load.plan(&part)?;
        self.part = Some(OpenPart {
            part,
            bytes,
            plan,
            offset: 0,
            rows: 0,
            digest: Sha256::new(),
        });
        Ok(())
    }

    /// Rows of the part that is open. The digest is made as they go: that of a whole part takes too long.
    fn rows(
        &mut self,
        conn: &Connection,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<(), MirrorError> {
        let Some(open) = &mut self.part else {
            return Ok(());
        };
        let rest = open.bytes.slice(open.offset..);
        let mut input = Input::new("bulk rows", &rest);
        {
            let mut insert = conn
                .prepare_cached(open.plan.insert())
                .map_err(MirrorError::sqlite("prepare an insert"))?;
            while !input.is_empty() {
                let row = Row::take(&mut input).map_err(|error| bad_row(&open.part, &error))?;
                rows::insert(conn, &mut insert, &mut open.plan, &row)
                    .map_err(|error| load_error(&open.part, error))?;
                open.rows += 1;
                if open.rows.is_multiple_of(STEP_ROWS as u64) && !go_on() {
                    break;
                }
            }
        }
        open.digest.update(&rest[..input.offset()]);
        open.offset += input.offset();
        if open.offset < open.bytes.len() {
            return Ok(());
        }
        let found = open.digest.clone().finalize();
        if found[..] != open.part.rows_digest.0 {
            return Err(bad_part(&open.part, "its digest is not what the log says"));
        }
        if open.rows != open.part.rows {
            return Err(bad_part(
                &open.part,
                "its row count is not what the log says",
            ));
        }
        self.part = None;
        Ok(())
    }

    /// Applies changes of rows that wait. False when there were none.
    fn replay(
        &mut self,
        conn: &Connection,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<bool, MirrorError> {
        let (at, snapshot) = (self.at, FinalLsn(self.copied.snapshot));
        for target in self.targets.iter_mut().filter(|target| target.made) {
            if target.replay(conn, at, snapshot, go_on)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl Target {
    /// Up to the first change of a schema.
    fn replay(
        &mut self,
        conn: &Connection,
        at: At,
        snapshot: FinalLsn,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<bool, MirrorError> {
        let name = self.load.name();
        let mut some = false;
        while !self.replayed && (!some || go_on()) {
            if self.next.is_empty() {
                self.next = pending::after(conn, self.load.target, self.done)?.into();
            }
            let Some(entry) = self.next.front() else {
                break;
            };
            let first = Ops::new(&entry.op).next();
            if matches!(first, Some(Ok(Op::Schema(_)))) {
                self.replayed = true;
                break;
            }
            // Strict, as at the end.
            if entry.final_lsn >= snapshot {
                let mut schema = Schema {
                    tables: vec![self.load.shape.clone()],
                };
                let tables = Tables {
                    conn,
                    schema: &mut schema,
                    plans: &mut self.plans,
                    local: &[],
                    place: Place::Hidden(&name),
                };
                ops::apply(tables, &entry.op, at.of(entry.final_lsn))?;
            }
            self.done = entry.id;
            self.next.pop_front();
            some = true;
        }
        Ok(some)
    }
}

fn names(copied: &Copied, target: TableId) -> bool {
    copied.targets.iter().any(|it| it.target == target)
}
