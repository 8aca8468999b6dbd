//! Reading of pages before the apply thread needs them. What is deleted was often not looked at for a long time, and each
//! page that has to come from a busy disk would hold up a transaction. A thread with a connection of its own reads it
//! first; then it is in the kernel's cache.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;

use rusqlite::{Connection, InterruptHandle, OpenFlags};

use super::ddl::quote;

/// Rows read at a time, and bytes of them.
const ROWS: usize = 8192;
const BYTES: usize = 4 << 20;

/// What is to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// All of an index.
    Index {
        /// Its table.
        table: String,
        /// Its name.
        index: String,
    },
    /// Some rows at the end of a table.
    LastRows {
        /// Its name.
        table: String,
        /// What its row ids are called.
        row_id: &'static str,
    },
}

/// The thread, until this value goes.
pub(super) struct Warmer {
    /// `None` only while it is dropped.
    wants: Option<Sender<Wanted>>,
    warm: Receiver<(Wanted, usize)>,
    asked: Option<Wanted>,
    interrupt: Option<InterruptHandle>,
    thread: Option<JoinHandle<()>>,
}

impl Warmer {
    /// Reads the file at `path`. One that cannot be read is nothing to wait for: whoever deletes then tells why.
    pub(super) fn start(path: &Path) -> Self {
        let (wants, wanted) = channel();
        let (tell, warm) = channel();
        let conn = open(path.to_owned());
        let interrupt = conn.as_ref().map(Connection::get_interrupt_handle);
        let thread = std::thread::Builder::new().name("read ahead".to_owned());
        let thread = thread.spawn(move || {
            let Some(conn) = conn else { return };
            for wanted in wanted {
                let rows = read(&conn, &wanted).unwrap_or_else(|error| {
                    tracing::debug!(%error, ?wanted, "not read ahead");
                    usize::MAX
                });
                if tell.send((wanted, rows)).is_err() {
                    return;
                }
            }
        });
        Self {
            wants: Some(wants),
            warm,
            asked: None,
            interrupt,
            thread: thread.ok(),
        }
    }

    /// Rows that were read of what is wanted, at least one; none while it is being read.
    pub(super) fn poll(&mut self, wanted: &Wanted) -> Option<usize> {
        loop {
            if self.asked.is_none() {
                let sent = self
                    .wants
                    .as_ref()
                    .map(|wants| wants.send(wanted.clone()).is_ok());
                self.asked = Some(wanted.clone());
                if sent != Some(true) {
                    return Some(usize::MAX);
                }
            }
            match self.warm.try_recv() {
                // What was wanted before something else was.
                Ok((read, _)) if read != *wanted => self.asked = None,
                Ok((_, rows)) => {
                    self.asked = None;
                    return Some(rows.max(1));
                }
                Err(TryRecvError::Empty) => return None,
                Err(TryRecvError::Disconnected) => return Some(usize::MAX),
            }
        }
    }
}

impl fmt::Debug for Warmer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Warmer")
            .field("asked", &self.asked)
            .finish_non_exhaustive()
    }
}

impl Drop for Warmer {
    fn drop(&mut self) {
        self.wants = None;
        if let Some(interrupt) = &self.interrupt {
            interrupt.interrupt();
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn open(path: PathBuf) -> Option<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    Connection::open_with_flags(path, flags).ok()
}

fn read(conn: &Connection, wanted: &Wanted) -> rusqlite::Result<usize> {
    match wanted {
        Wanted::Index { table, index } => {
            let (table, index) = (quote(table), quote(index));
            let all = format!("SELECT count(*) FROM {table} INDEXED BY {index}");
            conn.query_row(&all, [], |_count| Ok(usize::MAX))
        }
        Wanted::LastRows { table, row_id } => {
            let table = quote(table);
            let last =
                format!("SELECT * FROM {table} NOT INDEXED ORDER BY {row_id} DESC LIMIT {ROWS}");
            let mut select = conn.prepare(&last)?;
            let width = select.column_count();
            let mut found = select.query([])?;
            let (mut rows, mut bytes) = (0, 0);
            while bytes < BYTES
                && let Some(row) = found.next()?
            {
                // The last value too: it may lie on pages of its own.
                for at in 0..width {
                    bytes += 8 + row.get_ref(at)?.as_bytes().map_or(0, <[u8]>::len);
                }
                rows += 1;
            }
            Ok(rows)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn polled(warmer: &mut Warmer, wanted: &Wanted) -> usize {
        let asked = Instant::now();
        loop {
            if let Some(rows) = warmer.poll(wanted) {
                return rows;
            }
            assert!(asked.elapsed().as_secs() < 60, "nothing comes");
            std::thread::yield_now();
        }
    }

    #[test]
    fn rows_are_read_from_the_end_until_they_are_enough() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let conn = Connection::open(&path).unwrap();
        let setup = "CREATE TABLE narrow(a); CREATE TABLE wide(a, b); CREATE INDEX w ON wide(a); CREATE TABLE empty(a);
            WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10000)
            INSERT INTO narrow SELECT i FROM n;
            INSERT INTO wide SELECT a, zeroblob(1000000) FROM narrow LIMIT 20;";
        conn.execute_batch(setup).unwrap();
        let last = |table: &str| Wanted::LastRows {
            table: table.to_owned(),
            row_id: "rowid",
        };
        let mut warmer = Warmer::start(&path);
        assert_eq!(polled(&mut warmer, &last("narrow")), ROWS);
        assert_eq!(polled(&mut warmer, &last("wide")), 5);
        assert_eq!(polled(&mut warmer, &last("empty")), 1);
        let index = Wanted::Index {
            table: "wide".to_owned(),
            index: "w".to_owned(),
        };
        assert_eq!(polled(&mut warmer, &index), usize::MAX);
        // Another table was wanted, and is not any more.
        assert!(warmer.poll(&last("wide")).is_none_or(|rows| rows == 5));
        assert_eq!(polled(&mut warmer, &last("narrow")), ROWS);
    }

    #[test]
    fn what_cannot_be_read_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let gone = Wanted::LastRows {
            table: "gone".to_owned(),
            row_id: "rowid",
        };
        let path = dir.path().join("file");
        assert_eq!(polled(&mut Warmer::start(&path), &gone), usize::MAX);
        Connection::open(&path).unwrap();
        assert_eq!(polled(&mut Warmer::start(&path), &gone), usize::MAX);
    }
}
