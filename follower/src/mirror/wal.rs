//! SQLite's write-ahead log: how the writing connection is set up, and when the log is moved into the file.
//!
//! Automatic checkpoints are off, since they run inside whichever commit crosses a limit. Ours run between
//! commits. A reader that stays holds the log's older part back; it grows meanwhile, writing goes on, and the
//! first commit after the reader left starts the log anew and cuts the file to [`KEEP_BYTES`].

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use rusqlite::Connection;

use super::error::MirrorError;

/// Pages (4 KiB) written to the log before it is moved into the file.
const CHECKPOINT_PAGES: i32 = 16 << 10;

/// The log's file is cut to this length when it starts anew.
const KEEP_BYTES: i64 = 128 << 20;

/// Another program that holds the file's lock for longer than this is told as an error.
const BUSY_TIMEOUT_MS: u64 = 10_000;

/// Prepared statements kept: four a table and masks for the tables in use.
const STATEMENTS: usize = 1024;

#[derive(Debug)]
pub(super) struct Wal {
    /// Pages in the log after the last commit; written by SQLite's hook.
    pages: Arc<AtomicI32>,
    /// Pages in the log when it was last moved.
    moved_at: i32,
}

impl Wal {
    pub(super) fn set_up(conn: &mut Connection, cache_bytes: usize) -> Result<Self, MirrorError> {
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
        conn.busy_timeout(std::time::Duration::from_millis(BUSY_TIMEOUT_MS))
            .map_err(&failed)?;
        conn.execute_batch(&settings).map_err(&failed)?;
        conn.set_prepared_statement_cache_capacity(STATEMENTS);
        let pages = Arc::new(AtomicI32::new(0));
        let seen = Arc::clone(&pages);
        conn.wal_hook(Some(move |_wal: &mut rusqlite::hooks::Wal, count| {
            seen.store(count, Ordering::Relaxed);
            Ok(())
        }))
        .map_err(&failed)?;
        Ok(Self { pages, moved_at: 0 })
    }

    /// Moves the log when it has grown enough since the last time.
    pub(super) fn after_commit(&mut self, conn: &Connection) -> Result<(), MirrorError> {
        let pages = self.pages.load(Ordering::Relaxed);
        if pages < self.moved_at {
            self.moved_at = 0;
        }
        if pages - self.moved_at < CHECKPOINT_PAGES {
            return Ok(());
        }
        self.checkpoint(conn)
    }

    pub(super) fn checkpoint(&mut self, conn: &Connection) -> Result<(), MirrorError> {
        // PASSIVE never waits for a reader and never makes one wait.
        conn.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_row| Ok(()))
            .map_err(MirrorError::sqlite("move the write-ahead log"))?;
        self.moved_at = self.pages.load(Ordering::Relaxed);
        Ok(())
    }
}
