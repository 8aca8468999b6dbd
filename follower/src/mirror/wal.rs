//! SQLite's write-ahead log: how the writing connection is set up, and when the log is moved into the file.
//!
//! Automatic checkpoints are off, since they stop whichever commit crosses a limit for as long as the disk
//! takes. A thread with a connection of its own moves the log while commits go on. It cannot empty it while
//! commits never pause; so a commit that finds the log long moves the little that is left itself, and the log
//! starts anew. Another thread syncs the log in small steps, since a commit that meets a long sync of the file it
//! writes to may wait for all of it. A reader that stays holds the older part back; the log grows meanwhile, writing goes on, and
//! once it has left the log starts anew and its file is cut to [`KEEP_BYTES`].

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};

use super::error::MirrorError;

/// Pages (4 KiB) written to the log before the thread moves them: 32 MiB.
const BACKGROUND_PAGES: i32 = 8 << 10;

/// Pages written to the log before it is synced: 2 MiB.
const SYNC_PAGES: i32 = 512;

/// Pages in the log before a commit moves what the thread left: 256 MiB.
const FOREGROUND_PAGES: i32 = 64 << 10;

/// Such a commit waits until the thread has left no more than this: 2 MiB. The thread is woken again and again until
/// then; each time it takes less, since less was written meanwhile.
const LEFT_PAGES: i32 = 512;

/// Beyond this a commit waits no more, and moves whatever was left: 512 MiB.
const AT_MOST_PAGES: i32 = 2 * FOREGROUND_PAGES;

/// The log's file is cut to this length when it starts anew.
const KEEP_BYTES: i64 = 256 << 20;

/// Another program that holds the file's lock for longer than this is told as an error.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// Prepared statements kept: four a table in use, and those of masks.
const STATEMENTS: usize = 1024;

const MOVE: &str = "PRAGMA wal_checkpoint(PASSIVE)";

#[derive(Debug)]
pub(super) struct Wal {
    /// Pages in the log after the last commit; written by SQLite's hook.
    pages: Arc<AtomicI32>,
    /// Pages of the log that the thread has moved, or tried to.
    through: Arc<AtomicI32>,
    /// Pages in the log when the thread was last woken, and when a commit last moved it.
    woken_at: i32,
    moved_at: i32,
    /// Pages in the log when it was last given to be synced.
    synced_at: i32,
    mover: Helper,
    syncer: Helper,
}

impl Wal {
    pub(super) fn set_up(
        conn: &mut Connection,
        path: &Path,
        cache_bytes: usize,
    ) -> Result<Self, MirrorError> {
        let failed = MirrorError::sqlite("set up the mirror file");
        let settings = format!(
            "PRAGMA journal_mode = WAL;
             PRAGMA synchronous = NORMAL;
             PRAGMA wal_autocheckpoint = 0;
             PRAGMA journal_size_limit = {KEEP_BYTES};
             PRAGMA cache_size = -{};
             PRAGMA foreign_keys = OFF;
             PRAGMA trusted_schema = OFF;",
            cache_bytes / 1024
        );
        conn.busy_timeout(BUSY_TIMEOUT).map_err(&failed)?;
        conn.execute_batch(&settings).map_err(&failed)?;
        conn.set_prepared_statement_cache_capacity(STATEMENTS);
        let pages = Arc::new(AtomicI32::new(0));
        let seen = Arc::clone(&pages);
        conn.wal_hook(Some(move |_wal: &mut rusqlite::hooks::Wal, count| {
            seen.store(count, Ordering::Relaxed);
            Ok(())
        }))
        .map_err(&failed)?;
        let mover = open_mover(path).map_err(&failed)?;
        let through = Arc::new(AtomicI32::new(0));
        let threads = |source| MirrorError::Thread { source };
        let moves = Moves {
            file: kept_open(path).map_err(threads)?,
            pages: Arc::clone(&pages),
            through: Arc::clone(&through),
        };
        let log = log_of(path).map_err(threads)?;
        Ok(Self {
            pages,
            through,
            woken_at: 0,
            moved_at: 0,
            synced_at: 0,
            mover: Helper::spawn("checkpoint", move || moves.run(&mover)).map_err(threads)?,
            syncer: Helper::spawn("log sync", move || sync(&log)).map_err(threads)?,
        })
    }

    /// Sees to the log after a commit, when it has grown enough.
    pub(super) fn after_commit(&mut self, conn: &Connection) -> Result<(), MirrorError> {
        let pages = self.pages.load(Ordering::Relaxed);
        if pages < self.woken_at {
            // It has started anew.
            (self.woken_at, self.moved_at, self.synced_at) = (0, 0, 0);
            self.through.store(0, Ordering::Relaxed);
        }
        // Stale for a moment when the log has just started anew: then it is short, and nothing follows from it.
        let through = self.through.load(Ordering::Relaxed);
        if pages - self.synced_at >= SYNC_PAGES {
            self.synced_at = pages;
            self.syncer.wake();
        }
        let is_long = pages >= FOREGROUND_PAGES && pages - self.moved_at >= BACKGROUND_PAGES;
        let is_idle = through >= self.woken_at;
        let left = pages - through;
        if pages - self.woken_at >= BACKGROUND_PAGES || (is_long && is_idle && left > LEFT_PAGES) {
            self.woken_at = pages;
            self.mover.wake();
        }
        if is_long && (left <= LEFT_PAGES || pages - self.moved_at >= AT_MOST_PAGES) {
            self.checkpoint(conn)?;
        }
        Ok(())
    }

    pub(super) fn checkpoint(&mut self, conn: &Connection) -> Result<(), MirrorError> {
        // PASSIVE never waits for a reader and never makes one wait.
        conn.query_row(MOVE, [], |_row| Ok(()))
            .map_err(MirrorError::sqlite("move the write-ahead log"))?;
        self.moved_at = self.pages.load(Ordering::Relaxed);
        Ok(())
    }
}

/// A thread that does the same thing each time it is woken, until this value goes.
#[derive(Debug)]
struct Helper {
    /// `None` only while it is dropped.
    wake: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Helper {
    fn spawn(name: &str, work: impl Fn() + Send + 'static) -> io::Result<Self> {
        let (wake, woken) = sync_channel(1);
        let thread = std::thread::Builder::new().name(name.to_owned());
        let thread = thread.spawn(move || woken.iter().for_each(|()| work()))?;
        Ok(Self {
            wake: Some(wake),
            thread: Some(thread),
        })
    }

    fn wake(&self) {
        if let Some(wake) = &self.wake {
            // A full channel means that it is woken already.
            let _ = wake.try_send(());
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.wake = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn open_mover(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags)?;
    conn.busy_timeout(Duration::ZERO)?;
    // NORMAL: the log is synced before it is moved, the file before the log is written over.
    conn.execute_batch("PRAGMA wal_autocheckpoint = 0; PRAGMA synchronous = NORMAL;")?;
    Ok(conn)
}

/// The file itself, beside SQLite's own handles. It stays open until the file has no name any more: closing any handle
/// of a file drops all locks that this process has on it, SQLite's among them.
fn kept_open(path: &Path) -> io::Result<Arc<File>> {
    static OPEN: Mutex<Vec<Arc<File>>> = Mutex::new(Vec::new());
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    open.retain(|file| file.metadata().map_or(true, |found| found.nlink() > 0));
    let wanted = std::fs::metadata(path)?;
    let same = |file: &&Arc<File>| {
        let found = file.metadata();
        found.is_ok_and(|found| (found.dev(), found.ino()) == (wanted.dev(), wanted.ino()))
    };
    if let Some(file) = open.iter().find(same) {
        return Ok(Arc::clone(file));
    }
    let file = Arc::new(File::open(path)?);
    open.push(Arc::clone(&file));
    Ok(file)
}

/// What the thread is told, and tells.
struct Moves {
    file: Arc<File>,
    pages: Arc<AtomicI32>,
    through: Arc<AtomicI32>,
}

impl Moves {
    fn run(&self, conn: &Connection) {
        let pages = self.pages.load(Ordering::Relaxed);
        if let Err(error) = conn.query_row(MOVE, [], |_row| Ok(())) {
            // What the disk refuses here, the next commit meets too and tells.
            tracing::warn!(%error, "the write-ahead log was not moved into the mirror file and grows; it is tried again: look at the disk");
        }
        // SQLite syncs the file only once all of the log is in it: all of this would fall on that one commit.
        if let Err(error) = self.file.sync_data() {
            tracing::warn!(%error, "the mirror file was not synced; it is tried again: look at the disk");
        }
        self.through.store(pages, Ordering::Relaxed);
    }
}

fn sync(log: &File) {
    if let Err(error) = log.sync_data() {
        tracing::warn!(%error, "the write-ahead log was not synced; it is tried again: look at the disk");
    }
}

/// The log's file. SQLite holds no lock on it, and keeps the file for as long as it has the mirror open.
fn log_of(path: &Path) -> io::Result<File> {
    let mut name = std::fs::canonicalize(path)?.into_os_string();
    name.push("-wal");
    File::open(name)
}
