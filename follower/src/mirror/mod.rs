//! The mirror: one SQLite file that holds the source's rows at one commit, and the cursor that says which.
//!
//! Owns the file's only writing connection. Rows, schema and cursor move in the same SQLite commit (I6). Many
//! source transactions may share a commit; one is never split over two. No network, no runtime, no clock: frames
//! come in through [`Mirror::apply`], bulk rows through a [`BulkSource`].
//!
//! What is open between two commits is either a group of whole transactions, or the parts so far of one
//! transaction, or a copy that has begun; never two of these. So a break costs only what was incomplete.

mod ahead;
mod awaiting;
mod copied;
mod copy;
mod cursor;
pub mod ddl;
pub mod digest;
mod discard;
mod error;
pub mod image;
mod leaf;
mod load;
mod local;
mod meta;
mod ops;
mod pending;
mod rows;
mod wal;
mod warm;

#[cfg(test)]
pub(crate) mod tests;

use std::path::{Path, PathBuf};

use bytes::Bytes;
use rindle_proto::body::{Attempt, BulkPart, CopyBegin, PgMicros, TxnPart};
use rindle_proto::error::DecodeError;
use rindle_proto::frame::{Frame, FrameKind};
use rindle_proto::ids::{EndLsn, Epoch, FinalLsn, Generation, Position, SegmentNo};
use rindle_proto::op;
use rindle_proto::schema::Schema;
use rusqlite::{Connection, OpenFlags};

pub use ahead::Slice;
pub use awaiting::{Awaiting, awaiting, awaits};
pub use copied::loads_parts;
pub use cursor::Cursor;
pub use error::{BulkError, ErrorKind, MirrorError};
pub use local::LocalIndex;
pub use meta::{Stored, check_mark, read as stored};

/// How a mirror is opened. The default is that of a follower.
#[derive(Clone, Debug)]
pub struct MirrorOptions {
    /// Name of the source, as `_rindle_source_offsets` shows it.
    pub source: String,
    /// SQLite's page cache in bytes.
    pub cache_bytes: usize,
    /// Indexes besides those carried from Postgres.
    pub indexes: Vec<LocalIndex>,
}

impl Default for MirrorOptions {
    fn default() -> Self {
        Self {
            source: "main".to_owned(),
            cache_bytes: 64 << 20,
            indexes: Vec::new(),
        }
    }
}

/// Gives the rows of a bulk part: from an archive, or through a gateway.
pub trait BulkSource {
    /// The uncompressed rows of `part`.
    ///
    /// # Errors
    /// When they cannot be had now, or are not what was written.
    fn rows(&mut self, attempt: Attempt, part: &BulkPart) -> Result<Bytes, BulkError>;

    /// Told once before a copy is loaded: its parts in the order in which they will be asked for.
    fn expect(&mut self, _attempt: Attempt, _parts: &[&BulkPart]) {}

    /// As [`BulkSource::rows`], or nothing while they are on their way.
    ///
    /// # Errors
    /// As [`BulkSource::rows`].
    fn poll(&mut self, attempt: Attempt, part: &BulkPart) -> Result<Option<Bytes>, BulkError> {
        self.rows(attempt, part).map(Some)
    }

    /// Told now and then while a copy is loaded: tables complete, and how many there are.
    fn progress(&mut self, _what: Copying, _tables_done: usize, _tables: usize) {}
}

/// Which copy is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copying {
    /// The first one of a generation.
    First,
    /// Of tables or partitions that wait.
    Backfill,
}

/// What one call of [`Mirror::apply`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// The frame was applied before: nothing was done (I5).
    pub skipped: bool,
    /// A source transaction (or a copy) is complete with this frame. It is in the file after the next
    /// [`Mirror::commit`]; a copy is already.
    pub committed_txn: bool,
    /// Operations applied, or rows loaded.
    pub ops: u64,
    /// When the transaction that is now complete committed in Postgres.
    pub commit_time: Option<PgMicros>,
}

/// What is applied and not yet committed in SQLite.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pending {
    /// Whole source transactions.
    pub txns: u64,
    /// Operations, those of an incomplete transaction too.
    pub ops: u64,
    /// Payload bytes.
    pub bytes: u64,
}

/// One mirror file, open for writing.
#[derive(Debug)]
pub struct Mirror {
    conn: Connection,
    path: PathBuf,
    options: MirrorOptions,
    /// As of the last SQLite commit.
    cursor: Option<Cursor>,
    /// As of the last frame applied.
    schema: Schema,
    /// `schema` is not yet the one in the file.
    schema_changed: bool,
    /// Hidden tables of a copy are in the file, and no commit has shown them yet.
    loaded: bool,
    /// Rises whenever `schema` becomes another.
    schema_edits: u64,
    ahead: ahead::Ahead,
    /// The schema that `ahead` was last held against.
    ahead_checked: u64,
    plans: ops::Plans,
    open: Open,
    pending: Pending,
    wal: wal::Wal,
}

/// What was applied since the last SQLite commit.
#[derive(Debug)]
enum Open {
    Nothing,
    /// Whole transactions; the cursor after them.
    Group(Cursor),
    /// The parts so far of one transaction.
    Txn(OpenTxn),
    /// A copy that has begun. Nothing of it is in SQLite.
    Copy(Position, Box<CopyBegin>),
}

#[derive(Clone, Copy, Debug)]
struct OpenTxn {
    position: Position,
    final_lsn: FinalLsn,
    commit_time: PgMicros,
}

impl Mirror {
    /// Opens the mirror at `path`, or makes an empty one. What a crash left half done is gone afterwards.
    ///
    /// # Errors
    /// When the file is no mirror, is damaged, or cannot be written.
    pub fn open(path: impl AsRef<Path>, options: MirrorOptions) -> Result<Self, MirrorError> {
        let path = path.as_ref().to_path_buf();
        match meta::holds_bytes(&path) {
            true => meta::check_mark(&path)?,
            false => meta::create(&path)?,
        }
        let mut conn =
            Connection::open(&path).map_err(MirrorError::sqlite("open the mirror file"))?;
        meta::check_format(&conn, &path)?;
        let wal = wal::Wal::set_up(&mut conn, &path, options.cache_bytes)?;
        let mut mirror = Self {
            conn,
            path,
            options,
            cursor: None,
            schema: Schema::default(),
            schema_changed: false,
            loaded: false,
            schema_edits: 0,
            ahead: ahead::Ahead::default(),
            // Whatever it is, what the file holds is looked at.
            ahead_checked: u64::MAX,
            plans: ops::Plans::default(),
            open: Open::Nothing,
            pending: Pending::default(),
            wal,
        };
        mirror.reload()?;
        load::clear(&mirror.conn)?;
        local::ensure(&mirror.conn, &mirror.schema, &mirror.options.indexes)?;
        Ok(mirror)
    }

    /// Where the file stands, as of its last commit. `None` before [`Mirror::start`].
    pub fn cursor(&self) -> Option<Cursor> {
        self.cursor
    }

    /// The last frame applied, committed or not. `None` before [`Mirror::start`].
    pub fn position(&self) -> Option<Position> {
        match &self.open {
            Open::Nothing => self.cursor.map(|cursor| cursor.position),
            Open::Group(cursor) => Some(cursor.position),
            Open::Txn(txn) => Some(txn.position),
            Open::Copy(position, _) => Some(*position),
        }
    }

    /// The schema after the last frame applied. Empty until the first copy is complete.
    pub fn schema(&self) -> &Schema {
        &self.schema
    }

    /// Rises whenever [`Mirror::schema`] becomes another.
    pub fn schema_edits(&self) -> u64 {
        self.schema_edits
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The writing connection, for statements that only read.
    pub fn connection(&self) -> &Connection {
        &self.conn
    }

    /// What waits for [`Mirror::commit`].
    pub fn pending(&self) -> Pending {
        self.pending
    }

    /// True while a transaction or a copy has begun and its end has not come. [`Mirror::commit`] does nothing then.
    pub fn has_open_txn(&self) -> bool {
        matches!(self.open, Open::Txn(_) | Open::Copy(..))
    }

    /// The `final_lsn` of the transaction whose first parts are applied and whose end has not come.
    pub fn open_final_lsn(&self) -> Option<FinalLsn> {
        match &self.open {
            Open::Txn(txn) => Some(txn.final_lsn),
            Open::Nothing | Open::Group(_) | Open::Copy(..) => None,
        }
    }

    /// Indexes that were asked for and name a table or column that is not mirrored.
    pub fn unfit_indexes(&self) -> impl Iterator<Item = &LocalIndex> {
        let fits = |index: &&LocalIndex| !index.fits(&self.schema);
        self.options.indexes.iter().filter(fits)
    }

    /// Makes an empty mirror follow `generation` from its first frame.
    ///
    /// # Errors
    /// When it follows one already, or SQLite refuses.
    pub fn start(&mut self, generation: Generation) -> Result<(), MirrorError> {
        if let Some(cursor) = self.cursor {
            return Err(MirrorError::AlreadyStarted(cursor.generation));
        }
        let cursor = Cursor::start(generation);
        meta::write_cursor(&self.conn, &self.options.source, &cursor)?;
        self.cursor = Some(cursor);
        Ok(())
    }

    /// Applies the next frame. One that was applied before is a no-op.
    ///
    /// # Errors
    /// See [`MirrorError`]. The mirror then stands at its last commit.
    pub fn apply(
        &mut self,
        frame: &Frame,
        bulk: &mut dyn BulkSource,
    ) -> Result<Applied, MirrorError> {
        let here = self.position().ok_or(MirrorError::NotStarted)?;
        // `<=`: a reconnect may send again what stands in the file (I5).
        if frame.seq <= here.seq {
            return Ok(Applied {
                skipped: true,
                ..Applied::default()
            });
        }
        let after = here.after(frame)?;
        let applied = match frame.kind {
            FrameKind::Txn => self.apply_txn(frame, after, bulk),
            FrameKind::CopyBegin => self.begin_copy(frame, after),
            FrameKind::CopyDone => self.finish_copy(frame, after, bulk),
        };
        if applied.is_err() {
            // What failed may have changed the schema in memory before.
            self.schema_changed = true;
            self.rollback()?;
        }
        applied
    }

    /// Commits the whole transactions applied so far, with their cursor. Does nothing while one is incomplete.
    /// True when something was committed.
    ///
    /// # Errors
    /// When SQLite refuses; the mirror then stands at its last commit.
    pub fn commit(&mut self) -> Result<bool, MirrorError> {
        let Open::Group(cursor) = self.open else {
            return Ok(false);
        };
        if let Err(error) = self.write_commit(&cursor) {
            self.rollback()?;
            return Err(error);
        }
        self.cursor = Some(cursor);
        self.loaded = false;
        self.settle();
        self.wal.after_commit(&self.conn)?;
        Ok(true)
    }

    /// Drops everything since the last SQLite commit.
    ///
    /// # Errors
    /// When SQLite can no longer read the file.
    pub fn rollback(&mut self) -> Result<(), MirrorError> {
        if !self.conn.is_autocommit() {
            self.conn
                .execute_batch("ROLLBACK")
                .map_err(MirrorError::sqlite("roll back"))?;
        }
        self.settle();
        if self.schema_changed {
            self.plans.clear();
            self.reload()?;
        }
        if std::mem::take(&mut self.loaded) {
            self.ahead.clear();
            load::clear(&self.conn)?;
        }
        Ok(())
    }

    /// Drops the transaction or copy that is incomplete and keeps the whole ones: what a broken stream and a
    /// fence ask for. A mirror whose first copy is not complete is empty afterwards.
    ///
    /// # Errors
    /// When SQLite refuses.
    pub fn discard(&mut self) -> Result<(), MirrorError> {
        match self.commit()? {
            true => Ok(()),
            false => self.rollback(),
        }
    }

    /// Notes an epoch that was seen; the highest one is kept with the cursor and survives restarts.
    ///
    /// # Errors
    /// When SQLite refuses.
    pub fn note_epoch(&mut self, epoch: Epoch) -> Result<(), MirrorError> {
        self.amend(|cursor| cursor.epoch = cursor.epoch.max(epoch))
    }

    /// Notes the log object that holds the last frame applied, for readers of an archive.
    ///
    /// # Errors
    /// When SQLite refuses.
    pub fn note_segment(&mut self, segment: SegmentNo) -> Result<(), MirrorError> {
        self.amend(|cursor| cursor.segment = Some(segment))
    }

    /// Moves the write-ahead log into the file as far as readers allow: for quiet moments and a clean stop.
    ///
    /// # Errors
    /// When SQLite refuses.
    pub fn checkpoint(&mut self) -> Result<(), MirrorError> {
        self.wal.checkpoint(&self.conn)
    }

    fn amend(&mut self, change: impl Fn(&mut Cursor)) -> Result<(), MirrorError> {
        let before = self.cursor.ok_or(MirrorError::NotStarted)?;
        let mut after = before;
        change(&mut after);
        if let Open::Group(cursor) = &mut self.open {
            change(cursor);
            return Ok(());
        }
        self.cursor = Some(after);
        // Inside an open transaction the row would be rolled back with it; the commit that ends it writes it.
        if after != before && self.conn.is_autocommit() {
            meta::write_cursor(&self.conn, &self.options.source, &after)?;
        }
        Ok(())
    }

    fn apply_txn(
        &mut self,
        frame: &Frame,
        after: Position,
        bulk: &mut dyn BulkSource,
    ) -> Result<Applied, MirrorError> {
        let part = TxnPart::decode(frame).map_err(decode_error(frame))?;
        let txn = self.next_txn(frame, &part, after)?;
        let copied = match op::begins_copied(&part) {
            true => Some(self.show_copied(frame, &part, bulk)?),
            false => None,
        };
        let (ops, loaded) = copied.unwrap_or((part.ops, 0));
        self.note_copying(frame, &part);
        self.enter_txn(&part)?;
        let done = ops::apply(self.tables(), ops, ops::At::new(frame))?;
        if done.schema_changed {
            self.edited();
        }
        self.pending.ops += done.ops + loaded;
        self.pending.bytes += frame.payload.len() as u64;
        let mut applied = Applied {
            ops: done.ops + loaded,
            ..Applied::default()
        };
        match part.end_lsn {
            None => self.open = Open::Txn(txn),
            Some(end_lsn) => {
                let cursor = self.cursor_after(txn, end_lsn)?;
                self.open = Open::Group(cursor);
                self.pending.txns += 1;
                applied.committed_txn = true;
                applied.commit_time = Some(txn.commit_time);
            }
        }
        if self.loaded {
            // Else a later frame that fails would have all of it loaded again.
            self.commit()?;
        }
        Ok(applied)
    }

    /// The schema is no longer the one in the file.
    fn edited(&mut self) {
        self.schema_changed = true;
        self.schema_edits += 1;
    }

    fn tables(&mut self) -> ops::Tables<'_> {
        ops::Tables {
            conn: &self.conn,
            schema: &mut self.schema,
            plans: &mut self.plans,
            local: &self.options.indexes,
            place: ddl::Place::Shown,
        }
    }

    /// The transaction after `part`, which has to be what comes next.
    fn next_txn(
        &self,
        frame: &Frame,
        part: &TxnPart<'_>,
        after: Position,
    ) -> Result<OpenTxn, MirrorError> {
        let complete = self.cursor.is_some_and(|cursor| cursor.complete);
        match (&self.open, part.start) {
            (Open::Copy(..), _) => Err(bad_frame(frame, "a transaction inside a copy")),
            _ if !complete => Err(bad_frame(frame, "a transaction before the first copy")),
            (Open::Txn(_), Some(_)) => {
                Err(bad_frame(frame, "a first part inside another transaction"))
            }
            (Open::Nothing | Open::Group(_), None) => {
                Err(bad_frame(frame, "a later part without a first one"))
            }
            (Open::Txn(txn), None) if txn.final_lsn != part.final_lsn => {
                Err(bad_frame(frame, "a part of another transaction"))
            }
            (Open::Txn(txn), None) => Ok(OpenTxn {
                position: after,
                ..*txn
            }),
            (Open::Nothing | Open::Group(_), Some(start)) => Ok(OpenTxn {
                position: after,
                final_lsn: part.final_lsn,
                commit_time: start.commit_time,
            }),
        }
    }

    /// Opens the SQLite transaction that `part` goes into.
    fn enter_txn(&mut self, part: &TxnPart<'_>) -> Result<(), MirrorError> {
        // A transaction of several parts gets a SQLite transaction of its own from its first part on, so
        // that dropping it never drops whole ones (I6).
        if part.start.is_some() && part.end_lsn.is_none() {
            self.commit()?;
        }
        match self.conn.is_autocommit() {
            true => self.begin(),
            false => Ok(()),
        }
    }

    fn begin(&self) -> Result<(), MirrorError> {
        self.conn
            .execute_batch("BEGIN IMMEDIATE")
            .map_err(MirrorError::sqlite("begin a transaction"))
    }

    fn cursor_after(&self, txn: OpenTxn, end_lsn: EndLsn) -> Result<Cursor, MirrorError> {
        let noted = match &self.open {
            Open::Group(cursor) => Some(*cursor),
            Open::Nothing | Open::Txn(_) | Open::Copy(..) => self.cursor,
        };
        let noted = noted.ok_or(MirrorError::NotStarted)?;
        Ok(Cursor {
            position: txn.position,
            end_lsn,
            commit_time: Some(txn.commit_time),
            // Of an earlier frame; whoever reads an archive notes the new one.
            segment: None,
            ..noted
        })
    }

    fn write_commit(&mut self, cursor: &Cursor) -> Result<(), MirrorError> {
        meta::write_cursor(&self.conn, &self.options.source, cursor)?;
        if self.schema_changed {
            meta::write_schema(&self.conn, &self.schema)?;
        }
        self.conn
            .execute_batch("COMMIT")
            .map_err(MirrorError::sqlite("commit"))?;
        self.schema_changed = false;
        Ok(())
    }

    /// Nothing is open any more.
    fn settle(&mut self) {
        self.open = Open::Nothing;
        self.pending = Pending::default();
    }

    fn reload(&mut self) -> Result<(), MirrorError> {
        let stored = meta::read(&self.conn, &self.path)?;
        // What was noted in memory only is at least as new as what the file says.
        let noted = self.cursor;
        (self.cursor, self.schema) = match stored {
            Some(stored) => (Some(noted.unwrap_or(stored.cursor)), stored.schema),
            None => (None, Schema::default()),
        };
        self.schema_changed = false;
        self.schema_edits += 1;
        Ok(())
    }
}

/// Opens a mirror file for reading only: no statement can change it, whoever wrote the statement.
///
/// # Errors
/// When SQLite cannot open it.
pub fn open_reader(path: &Path) -> Result<Connection, MirrorError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let failed = MirrorError::sqlite("open the mirror file for reading");
    let conn = Connection::open_with_flags(path, flags).map_err(&failed)?;
    conn.pragma_update(None, "query_only", true)
        .and_then(|()| conn.pragma_update(None, "trusted_schema", false))
        .map_err(&failed)?;
    Ok(conn)
}

fn bad_frame(frame: &Frame, reason: &str) -> MirrorError {
    MirrorError::BadFrame {
        seq: frame.seq,
        lsn: frame.lsn,
        reason: reason.to_owned(),
    }
}

fn decode_error(frame: &Frame) -> impl Fn(DecodeError) -> MirrorError {
    let (seq, lsn) = (frame.seq, frame.lsn);
    move |source| MirrorError::Decode { seq, lsn, source }
}
