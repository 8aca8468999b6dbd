//! Which file is the mirror. The configured path is the file itself at first. When a mirror must be replaced, the
//! new one is made beside it as `<db>.rindle-<n>` while the old one is read on, and then the path becomes a symbolic link
//! to the new file. SQLite keeps its side files by the file's own name, so neither readers that have the old
//! file open nor readers that come later ever see one file's log with the other's pages.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

/// Keeps every other writer off the mirror; ends with the value, or with the process.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

/// The files of one mirror path.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    db: PathBuf,
}

impl Files {
    pub(crate) fn new(db: &Path) -> Self {
        Self { db: db.to_owned() }
    }

    /// The configured path: what readers open.
    pub(crate) fn db(&self) -> &Path {
        &self.db
    }

    /// True when there is something under the path.
    pub(crate) fn exists(&self) -> bool {
        self.db.exists()
    }

    fn directory(&self) -> &Path {
        match self.db.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        }
    }

    fn name(&self) -> String {
        let name = self.db.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }

    /// Creates the folder and takes `<db>.lock`, which the producer takes for its scratch too. `None` while
    /// another process has it.
    pub(crate) fn lock(&self) -> io::Result<Option<Lock>> {
        std::fs::create_dir_all(self.directory())?;
        // Never removed: whoever waits for a removed file would lock another one than the next run.
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(self.lock_path())?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Lock { _file: file })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// The file that is locked.
    pub(crate) fn lock_path(&self) -> PathBuf {
        self.directory().join(format!("{}.lock", self.name()))
    }

    /// Removes files beside the mirror that an earlier run left. Only for who has the lock.
    pub(crate) fn prepare(&self) -> io::Result<()> {
        self.clear_restoring()?;
        if self.db.is_symlink() && !self.exists() {
            std::fs::remove_file(&self.db)?;
        }
        self.clear_unused()
    }

    /// Removes the mirrors that the path does not lead to. Only while none is applied to.
    pub(crate) fn clear_unused(&self) -> io::Result<()> {
        let live = std::fs::read_link(&self.db).ok();
        let live = live.as_deref().and_then(Path::file_name);
        for (number, path) in self.numbered()? {
            if path.file_name() != live {
                tracing::info!(number, path = %path.display(), "removing a mirror that is no longer used");
                remove(&path)?;
            }
        }
        match live {
            Some(_) => remove_side_files(&self.db),
            None => Ok(()),
        }
    }

    /// The file that the path leads to.
    pub(crate) fn live(&self) -> PathBuf {
        std::fs::canonicalize(&self.db).unwrap_or_else(|_absent| self.db.clone())
    }

    /// Removes `old`, which the path led to before a swap, unless it leads there again.
    pub(crate) fn retire(&self, old: &Path) -> io::Result<()> {
        match (self.live() == old, old.is_symlink()) {
            (true, _) => Ok(()),
            // The link took its name; its side files are still there.
            (false, true) => remove_side_files(old),
            (false, false) => remove(old),
        }
    }

    /// A path for a mirror that is to replace the present one: nothing is there.
    pub(crate) fn next(&self) -> io::Result<PathBuf> {
        let last = self.numbered()?.into_iter().map(|(number, _)| number).max();
        Ok(self.path(last.unwrap_or(0) + 1))
    }

    /// A mirror where none is of use any more. The path is a link from the start: SQLite finds the log of a file by the
    /// name that the link leads to, so that a reader that opens the path during a swap never pairs two mirrors.
    pub(crate) fn begin(&self) -> io::Result<PathBuf> {
        remove(&self.live())?;
        remove(&self.db)?;
        let target = self.next()?;
        self.swap(&target)?;
        Ok(target)
    }

    /// Where an image is put before it becomes a mirror, in a folder of its own that is empty now.
    pub(crate) fn restoring(&self) -> io::Result<PathBuf> {
        let folder = self.restoring_folder();
        self.clear_restoring()?;
        std::fs::create_dir(&folder)?;
        Ok(folder.join("image.db"))
    }

    fn restoring_folder(&self) -> PathBuf {
        self.directory()
            .join(format!("{}.rindle-restoring", self.name()))
    }

    fn clear_restoring(&self) -> io::Result<()> {
        match std::fs::remove_dir_all(self.restoring_folder()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Makes `new` what the path leads to; in one step, and kept over a crash.
    pub(crate) fn swap(&self, new: &Path) -> io::Result<()> {
        let link = self
            .directory()
            .join(format!("{}.rindle-link", self.name()));
        match std::fs::remove_file(&link) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let target = new.file_name().unwrap_or_default();
        std::os::unix::fs::symlink(target, &link)?;
        self.rename(&link, &self.db)
    }

    /// Gives a file that nobody has open the name `to`, where nothing is yet.
    pub(crate) fn place(&self, file: &Path, to: &Path) -> io::Result<()> {
        self.rename(file, to)?;
        self.clear_restoring()
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "the content is synced by whoever made it; the folder is synced here"
    )]
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)?;
        std::fs::File::open(self.directory())?.sync_all()
    }

    fn path(&self, number: u64) -> PathBuf {
        self.directory()
            .join(format!("{}.rindle-{number}", self.name()))
    }

    fn numbered(&self) -> io::Result<Vec<(u64, PathBuf)>> {
        let prefix = format!("{}.rindle-", self.name());
        let mut found = Vec::new();
        for entry in std::fs::read_dir(self.directory())? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let number = name
                .strip_prefix(&prefix)
                .and_then(|rest| rest.parse().ok());
            if let Some(number) = number {
                found.push((number, path.clone()));
            }
        }
        Ok(found)
    }
}

/// Removes a SQLite file with its side files; these first, for a log without its file would be replayed into the
/// next one. What is not there is no error.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    remove_side_files(path)?;
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn remove_side_files(path: &Path) -> io::Result<()> {
    for suffix in ["-wal", "-shm", "-journal"] {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        match std::fs::remove_file(PathBuf::from(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rusqlite::Connection;

    fn make(path: &Path, word: &str) -> Connection {
        let conn = Connection::open(path).unwrap();
        conn.execute_batch(
            "PRAGMA journal_mode = WAL; PRAGMA wal_autocheckpoint = 0; CREATE TABLE t (x)",
        )
        .unwrap();
        conn.execute("INSERT INTO t VALUES (?1)", [word]).unwrap();
        conn
    }

    fn read(conn: &Connection) -> String {
        conn.query_row("SELECT x FROM t", [], |row| row.get(0))
            .unwrap()
    }

    #[test]
    fn swap_leaves_open_readers_on_the_old_file_and_new_ones_on_the_new() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::new(&dir.path().join("m.db"));
        files.prepare().unwrap();
        let old = make(files.db(), "old");
        let before = Connection::open(files.db()).unwrap();
        assert_eq!(read(&before), "old");
        for word in ["second", "third"] {
            let next = files.next().unwrap();
            let new = make(&next, word);
            files.swap(&next).unwrap();
            assert_eq!(read(&Connection::open(files.db()).unwrap()), word);
            assert_eq!((read(&before), read(&old)), ("old".into(), "old".into()));
            drop(new);
        }
        files.prepare().unwrap();
        assert_eq!(read(&Connection::open(files.db()).unwrap()), "third");
        assert_eq!(files.numbered().unwrap().len(), 1, "the second is gone");
        assert_eq!(files.next().unwrap(), dir.path().join("m.db.rindle-3"));
    }

    #[test]
    fn file_of_somebody_else_beside_the_mirror_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::new(&dir.path().join("m.db"));
        let theirs = dir.path().join("m.db.20260101");
        std::fs::write(&theirs, "a backup").unwrap();
        files.prepare().unwrap();
        assert!(theirs.exists());
    }

    #[test]
    fn mirror_that_was_swapped_out_is_removed_and_the_live_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::new(&dir.path().join("m.db"));
        for word in ["second", "third"] {
            let old = files.live();
            let next = files.next().unwrap();
            drop(make(&next, word));
            files.swap(&next).unwrap();
            files.retire(&old).unwrap();
            files.retire(&files.live()).unwrap();
            assert_eq!(files.numbered().unwrap().len(), 1, "{word}");
        }
        assert_eq!(read(&Connection::open(files.db()).unwrap()), "third");
    }

    #[test]
    fn second_writer_does_not_get_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::new(&dir.path().join("m.db"));
        let first = files.lock().unwrap();
        assert!(first.is_some());
        assert!(files.lock().unwrap().is_none());
        drop(first);
        assert!(files.lock().unwrap().is_some());
    }

    #[test]
    fn removed_link_target_counts_as_no_mirror() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::new(&dir.path().join("m.db"));
        let next = files.next().unwrap();
        drop(make(&next, "x"));
        files.swap(&next).unwrap();
        remove(&next).unwrap();
        files.prepare().unwrap();
        assert!(!files.exists() && !files.db().is_symlink());
    }
}
