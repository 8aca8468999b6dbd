//! The end of a backfill: what waited is shown. The copied rows are loaded beside everything, in commits of their
//! own; then, in the commit of the transaction that says that the copy is complete, what waited of transactions at
//! or after its snapshot is applied on top of them, and they take their place.

use rindle_proto::body::{CopyTarget, TxnPart};
use rindle_proto::frame::{Frame, FrameKind};
use rindle_proto::ids::{FinalLsn, Lsn};
use rindle_proto::op::{Op, Ops, begins_copied};
use rindle_proto::schema::{Leaf, Schema, SchemaError, TableId};
use rusqlite::Connection;

use super::ahead::Copy;
use super::ddl::{self, Place, quote, run};
use super::error::MirrorError;
use super::load::{self, Load};
use super::ops::{self, At, Plans, Tables};
use super::rows::RowError;
use super::{BulkSource, Copying, Mirror, bad_frame, decode_error};
use super::{leaf, local, meta, pending};

impl Mirror {
    /// Loads what the first operation of `part` names and shows it, in the SQLite transaction that is open
    /// afterwards. Gives the operations behind it, and how many rows were loaded.
    pub(super) fn show_copied<'a>(
        &mut self,
        frame: &Frame,
        part: &TxnPart<'a>,
        bulk: &mut dyn BulkSource,
    ) -> Result<(&'a [u8], u64), MirrorError> {
        let mut ops = Ops::new(part.ops);
        let copied = match ops.next() {
            Some(Ok(Op::Copied(copied))) => copied,
            Some(Err(error)) => return Err(decode_error(frame)(error)),
            Some(Ok(_)) | None => return Err(bad_frame(frame, "it ends no copy")),
        };
        let unfit = |error: SchemaError| bad_frame(frame, &error.to_string());
        let (loads, after) = awaited(&self.schema, &copied.targets).map_err(unfit)?;
        // What came before does not wait for the load.
        self.commit()?;
        self.loaded = true;
        let mut ahead = self.take_ahead(&copied, &loads)?;
        match &mut ahead {
            Some(ahead) => ahead.finish(&self.conn, &mut self.wal, bulk)?,
            None => {
                let mut parts = load::Parts {
                    what: Copying::Backfill,
                    attempt: copied.attempt,
                    parts: &copied.parts,
                    bulk,
                };
                load::parts(&self.conn, &mut self.wal, &loads, &mut parts)?;
            }
        }
        let rows = copied.parts.iter().map(|part| part.rows).sum();
        self.begin()?;
        self.plans.clear();
        self.conn.flush_prepared_statement_cache();
        let swap = Swap {
            conn: &self.conn,
            at: At::new(frame),
            snapshot: copied.snapshot,
            before: &self.schema,
            after: &after,
            ahead: ahead.as_ref(),
        };
        swap.run(&loads)?;
        local::ensure(&self.conn, &after, &self.options.indexes)?;
        self.schema = after;
        self.edited();
        Ok((&part.ops[ops.offset()..], rows))
    }
}

/// True for a frame that ends a copy: its bulk parts will be asked for, and that may take long. One that does not
/// decode is told by [`Mirror::apply`].
pub fn loads_parts(frame: &Frame) -> bool {
    match frame.kind {
        FrameKind::CopyBegin => false,
        FrameKind::CopyDone => true,
        FrameKind::Txn => TxnPart::decode(frame).is_ok_and(|part| begins_copied(&part)),
    }
}

/// What is to be loaded, and the schema in which it is shown.
pub(super) fn awaited(
    schema: &Schema,
    targets: &[CopyTarget],
) -> Result<(Vec<Load>, Schema), SchemaError> {
    let ids: Vec<TableId> = targets.iter().map(|it| it.target).collect();
    let mut after = schema.clone();
    after.reveal(&ids)?;
    Ok((loads(schema, targets)?, after))
}

/// What is to be loaded: tables first, for what waits for one of their partitions may be among what waits for them.
fn loads(schema: &Schema, targets: &[CopyTarget]) -> Result<Vec<Load>, SchemaError> {
    let mut loads = targets
        .iter()
        .map(|target| load_of(schema, target))
        .collect::<Result<Vec<_>, _>>()?;
    loads.sort_by_key(Load::is_leaf);
    Ok(loads)
}

fn load_of(schema: &Schema, target: &CopyTarget) -> Result<Load, SchemaError> {
    let id = target.target;
    let (owner, leaf) = schema.owner(id).expect("reveal found what waits");
    let mut shape = target.shape.clone();
    if shape.id != owner.id {
        return Err(SchemaError {
            object: owner.mirror_name(),
            reason: format!("it is copied in the shape of table #{}", shape.id.0),
        });
    }
    shape.waiting = None;
    match leaf {
        Some(leaf) => {
            shape.leaves = vec![Leaf {
                waiting: false,
                ..*leaf
            }];
        }
        // Whatever the copy thinks: those that wait by themselves do so until their own copy is complete.
        None => shape.leaves.iter_mut().for_each(|it| {
            let known = owner.leaves.iter().find(|leaf| leaf.id == it.id);
            it.waiting = known.is_some_and(|leaf| leaf.waiting);
        }),
    }
    let alone = Schema {
        tables: vec![shape],
    };
    alone.check()?;
    let mut tables = alone.tables.into_iter();
    let shape = tables.next().expect("it was put there");
    Ok(Load { target: id, shape })
}

/// The commit in which loaded tables take their places.
struct Swap<'s> {
    conn: &'s Connection,
    at: At,
    snapshot: Lsn,
    before: &'s Schema,
    after: &'s Schema,
    ahead: Option<&'s Copy>,
}

impl Swap<'_> {
    fn run(&self, loads: &[Load]) -> Result<(), MirrorError> {
        let tables = || loads.iter().filter(|load| !load.is_leaf());
        tables().try_for_each(|load| self.replay(load))?;
        // All old ones first: a new one may have another old one's name.
        tables().try_for_each(|load| self.drop_replaced(load.target))?;
        for load in tables() {
            let table = self.after.table(load.target).expect("reveal kept it");
            let name = table.mirror_name();
            ddl::rename_table(self.conn, &load.name(), &name)?;
            meta::put_table(self.conn, &name, self.after, table)?;
        }
        for load in loads.iter().filter(|load| load.is_leaf()) {
            // A table that came with all its partitions may have taken the place of this one's.
            if self.after.owner(load.target).is_none() {
                load::drop_of(self.conn, load.target)?;
                continue;
            }
            self.replay(load)?;
            self.move_rows(load)?;
        }
        let targets = loads.iter().map(|load| load.target);
        targets
            .into_iter()
            .try_for_each(|target| pending::forget(self.conn, target))
    }

    /// Applies what waits for a target onto its loaded rows.
    fn replay(&self, load: &Load) -> Result<(), MirrorError> {
        let name = load.name();
        let mut schema = Schema {
            tables: vec![load.shape.clone()],
        };
        let mut plans = Plans::default();
        let mut done = self.ahead.map_or(0, |ahead| ahead.done(load.target));
        loop {
            let entries = pending::after(self.conn, load.target, done)?;
            let Some(last) = entries.last() else { break };
            done = last.id;
            // Strict: a transaction that is at the snapshot is not in the copy.
            let missing = |entry: &&pending::Entry| entry.final_lsn >= FinalLsn(self.snapshot);
            for entry in entries.iter().filter(missing) {
                let tables = Tables {
                    conn: self.conn,
                    schema: &mut schema,
                    plans: &mut plans,
                    local: &[],
                    place: Place::Hidden(&name),
                };
                ops::apply(tables, &entry.op, self.at.of(entry.final_lsn))?;
            }
        }
        let (believed, _) = self
            .before
            .owner(load.target)
            .expect("reveal found what waits");
        let found = &schema.tables[0];
        match found.differs(believed, !load.is_leaf()) {
            None => Ok(()),
            Some(what) => Err(self.at.schema(SchemaError {
                object: believed.mirror_name(),
                reason: format!("its copy, with what waited on top, has other {what}"),
            })),
        }
    }

    fn drop_replaced(&self, target: TableId) -> Result<(), MirrorError> {
        let waiting = self.before.table(target).and_then(|table| table.waiting);
        let replaced = waiting.and_then(|waiting| waiting.replaces);
        let Some(table) = replaced.and_then(|id| self.before.table(id)) else {
            return Ok(());
        };
        let mut leaves = table.leaves.iter();
        leaves.try_for_each(|leaf| pending::forget(self.conn, leaf.id))?;
        ddl::drop_table(self.conn, table)
    }

    /// Rows of a partition go into the table that it is of, under the row ids that they have already.
    fn move_rows(&self, load: &Load) -> Result<(), MirrorError> {
        let (table, _) = self.after.owner(load.target).expect("reveal kept it");
        let names = table.columns.iter().map(|column| quote(&column.name));
        let row_id = leaf::column(table).map_err(|error| self.at.schema(error))?;
        let columns: Vec<String> = std::iter::once(row_id.to_owned()).chain(names).collect();
        let columns = columns.join(", ");
        let name = table.mirror_name();
        let sql = format!(
            "INSERT INTO {} ({columns}) SELECT {columns} FROM {}",
            quote(&name),
            quote(&load.name())
        );
        let moved = self.conn.execute(&sql, []);
        moved.map_err(|error| self.at.row(&name, RowError::from(error)))?;
        run(self.conn, &format!("DROP TABLE {}", quote(&load.name())))
    }
}
