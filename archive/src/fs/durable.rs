//! The steps that make a file durable, each in one place: unique temporary name, fsync of the file, link or
//! rename, fsync of the directory. A file whose fsync failed is thrown away, never synced again: the kernel may
//! have dropped what it could not write and report success the second time.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Names of unfinished files start with this; nothing reads them.
pub(super) const TEMPORARY: &str = ".tmp-";

/// An unfinished file is left over by a crash when it is older than this.
const LEFT_OVER: Duration = Duration::from_secs(3600);

/// A new file under a temporary name beside its final one; removed when dropped.
#[derive(Debug)]
pub struct TempFile {
    path: PathBuf,
    directory: PathBuf,
    file: File,
}

impl TempFile {
    /// Creates one in `directory`, which must exist.
    ///
    /// # Errors
    /// Of the operating system.
    pub fn create(directory: &Path) -> io::Result<Self> {
        let name = format!("{TEMPORARY}{}", ulid::Ulid::generate());
        let path = directory.join(name);
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)?;
        Ok(Self {
            path,
            directory: directory.to_owned(),
            file,
        })
    }

    /// The open file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes `bytes` to a new temporary file and makes them durable.
    pub(super) fn holding(directory: &Path, bytes: &[u8]) -> io::Result<Self> {
        let temporary = Self::create(directory)?;
        (&temporary.file).write_all(bytes)?;
        temporary.file.sync_all()?;
        Ok(temporary)
    }

    /// Gives the synced file its final name unless something has it: false then.
    pub(super) fn link(self, to: &Path) -> io::Result<bool> {
        match fs::hard_link(&self.path, to) {
            Ok(()) => sync_directory(&self.directory).map(|()| true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Makes the content durable and gives the file its final name, replacing what has it.
    ///
    /// # Errors
    /// Of the operating system; the final name may be the old file or the new one then.
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the one place that renames"
    )]
    pub fn replace(self, to: &Path) -> io::Result<()> {
        self.file.sync_all()?;
        fs::rename(&self.path, to)?;
        sync_directory(&self.directory)
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        // After a rename it is gone already; a leftover is removed when the directory is used next.
        let _ = fs::remove_file(&self.path);
    }
}

/// Makes the names in a directory durable.
///
/// # Errors
/// Of the operating system; whether the names are durable is not known then.
pub fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// Creates a directory with its missing parents; each one created is durable in its own parent.
pub(super) fn create_directories(directory: &Path) -> io::Result<()> {
    match fs::create_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let Some(parent) = parent_of(directory) else {
                return Err(error);
            };
            create_directories(parent)?;
            create_directories(directory)
        }
        Err(error) => Err(error),
        Ok(()) => parent_of(directory).map_or(Ok(()), sync_directory),
    }
}

/// The directory that holds the name of `path`.
pub(super) fn parent_of(path: &Path) -> Option<&Path> {
    let parent = path.parent()?;
    let here = parent.as_os_str().is_empty();
    Some(if here { Path::new(".") } else { parent })
}

/// Removes unfinished files that a crash left.
pub(super) fn remove_left_over(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if !entry
            .file_name()
            .as_encoded_bytes()
            .starts_with(TEMPORARY.as_bytes())
        {
            continue;
        }
        let age = entry
            .metadata()
            .and_then(|meta| meta.modified())
            .map(|at| at.elapsed());
        if matches!(age, Ok(Ok(age)) if age > LEFT_OVER) {
            tracing::info!(path = %entry.path().display(), "removing an unfinished file");
            let _ = fs::remove_file(entry.path());
        }
    }
    Ok(())
}
