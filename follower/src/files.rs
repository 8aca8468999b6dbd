//! Which file is the mirror. The configured path is the file itself at first. When a mirror must be replaced, the
//! new one is made beside it as `<db>.<n>` while the old one is read on, and then the path becomes a symbolic link
//! to the new file. SQLite keeps its side files by the file's own name, so neither readers that have the old
//! file open nor readers that come later ever see one file's log with the other's pages.

use std::io;
use std::path::{Path, PathBuf};

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

    /// Creates the folder, and removes files beside the mirror that an earlier run left.
    pub(crate) fn prepare(&self) -> io::Result<()> {
        std::fs::create_dir_all(self.directory())?;
        self.clear_restoring()?;
        if self.db.is_symlink() && !self.exists() {
            std::fs::remove_file(&self.db)?;
        }
        let live = std::fs::read_link(&self.db).ok();
        let live = live.as_deref().and_then(Path::file_name);
        for (number, path) in self.numbered()? {
            if path.file_name() != live {
                tracing::info!(number, path = %path.display(), "removing a mirror that is no longer used");
                remove(&path)?;
            }
        }
        Ok(())
    }

    /// A path for a mirror that is to replace the present one: nothing is there.
    pub(crate) fn next(&self) -> io::Result<PathBuf> {
        let last = self.numbered()?.into_iter().map(|(number, _)| number).max();
        Ok(self.path(last.unwrap_or(0) + 1))
    }

    /// Where an image is put before it becomes a mirror, in a folder of its own that is empty now.
    pub(crate) fn restoring(&self) -> io::Result<PathBuf> {
        let folder = self.restoring_folder();
        self.clear_restoring()?;
        std::fs::create_dir(&folder)?;
        Ok(folder.join("image.db"))
    }

    fn restoring_folder(&self) -> PathBuf {
        self.directory().join(format!("{}.restoring", self.name()))
    }

    fn clear_restoring(&self) -> io::Result<()> {
        match std::fs::remove_dir_all(self.restoring_folder()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Makes `new` what the path leads to; in one step, and kept over a crash.
    pub(crate) fn swap(&self, new: &Path) -> io::Result<()> {
        let link = self.directory().join(format!("{}.link", self.name()));
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
        self.directory().join(format!("{}.{number}", self.name()))
    }

    fn numbered(&self) -> io::Result<Vec<(u64, PathBuf)>> {
        let prefix = format!("{}.", self.name());
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

/// Removes a SQLite file with its side files; what is not there is no error.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    for suffix in ["", "-wal", "-shm", "-journal"] {
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
        assert_eq!(files.next().unwrap(), dir.path().join("m.db.3"));
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
