//! SQLite's write-ahead log: how the writing connection is set up, and when the log is moved into the file.
//!
//! Automatic checkpoints are off, since they stop whichever commit crosses a limit for as long as the disk
//! takes. A thread with a connection of its own moves the log while commits go on. It cannot empty it while
//! commits never pause; so a commit that finds the log long moves the little that is left itself, and the log
//! starts anew. A reader that stays holds the older part back; the log grows meanwhile, writing goes on, and
//! once it has left the log starts anew and its file is cut to [`KEEP_BYTES`].

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};

use super::error::MirrorError;

/// Pages (4 KiB) written to the log before the thread moves them: 32 MiB.
const BACKGROUND_PAGES: i32 = 8 << 10;

/// Pages in the log before a commit moves what the thread left: 256 MiB.
const FOREGROUND_PAGES: i32 = 64 << 10;

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
    /// Pages in the log when the thread was last woken, and when a commit last moved it.
    woken_at: i32,
    moved_at: i32,
    /// `None` only while it is dropped.
    wake: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
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
        let (wake, woken) = sync_channel(1);
        let thread = std::thread::Builder::new()
            .name("checkpoint".to_owned())
            .spawn(move || move_when_woken(&mover, &woken));
        let thread = thread.map_err(|source| MirrorError::Thread { source })?;
        Ok(Self {
            pages,
            woken_at: 0,
            moved_at: 0,
            wake: Some(wake),
            thread: Some(thread),
        })
    }

    /// Sees to the log after a commit, when it has grown enough.
    pub(super) fn after_commit(&mut self, conn: &Connection) -> Result<(), MirrorError> {
        let pages = self.pages.load(Ordering::Relaxed);
        if pages < self.woken_at {
            // It has started anew.
            (self.woken_at, self.moved_at) = (0, 0);
        }
        if pages - self.woken_at >= BACKGROUND_PAGES {
            self.woken_at = pages;
            if let Some(wake) = &self.wake {
                // A full channel means that it is woken already.
                let _ = wake.try_send(());
            }
        }
        if pages >= FOREGROUND_PAGES && pages - self.moved_at >= BACKGROUND_PAGES {
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

impl Drop for Wal {
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

fn move_when_woken(conn: &Connection, woken: &Receiver<()>) {
    while woken.recv().is_ok() {
        if let Err(error) = conn.query_row(MOVE, [], |_row| Ok(())) {
            // What the disk refuses here, the next commit meets too and tells.
            tracing::warn!(%error, "the write-ahead log was not moved into the mirror file");
        }
    }
}
