//! One file of the local log.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;

#[derive(Debug)]
pub(super) struct LogFile {
    path: PathBuf,
    file: File,
    start: u64,
}

impl LogFile {
    pub(super) fn create(dir: &Path, start: u64) -> io::Result<Self> {
        let path = dir.join(format!("{start:020}.frames"));
        let file = OpenOptions::new()
            .read(true)
            .append(true)
            .create_new(true)
            .open(&path);
        let file = file.map_err(|error| named(&path, &error))?;
        Ok(Self { path, file, start })
    }

    /// Offset of its first byte.
    pub(super) fn start(&self) -> u64 {
        self.start
    }

    pub(super) fn append(&self, bytes: &[u8]) -> io::Result<()> {
        (&self.file)
            .write_all(bytes)
            .map_err(|error| named(&self.path, &error))
    }

    /// What the file holds of `from..to`; fewer bytes where the file ends earlier.
    pub(super) fn read(&self, from: u64, to: u64) -> io::Result<Bytes> {
        let mut bytes = vec![0; (to - from) as usize];
        let mut filled = 0;
        while filled < bytes.len() {
            let at = from - self.start + filled as u64;
            match self.file.read_at(&mut bytes[filled..], at) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(named(&self.path, &error)),
            }
        }
        bytes.truncate(filled);
        Ok(bytes.into())
    }

    /// Unlinks the file; readers that hold it read on.
    pub(super) fn remove(&self) {
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove an archived log file; it only takes space");
        }
    }
}

/// Makes the directory, and removes what an earlier session left in it.
pub(super) fn empty_dir(dir: &Path) -> io::Result<()> {
    fs::create_dir_all(dir).map_err(|error| named(dir, &error))?;
    for entry in fs::read_dir(dir).map_err(|error| named(dir, &error))? {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "frames")
        {
            fs::remove_file(&path).map_err(|error| named(&path, &error))?;
        }
    }
    Ok(())
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}
