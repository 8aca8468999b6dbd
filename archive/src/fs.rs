//! The directory backend. An object is a file that appears whole and durable under its name, or not at all:
//! written under a temporary name, synced, linked without overwriting, its directory synced.
//!
//! A directory that this process used and that is gone is not made anew: an archive on a lost mount would go on
//! in the empty directory below it, and the real log would get a hole.

mod durable;

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::SystemTime;

use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use crate::buffer;
use crate::layout::Key;
use crate::store::{Create, Problem, Store, StoreError, StoreFuture, Swap, Version, Versioned};

use durable::{TEMPORARY, create_directories, parent_of, remove_left_over};
pub use durable::{TempFile, sync_directory};

/// Held exclusively around a compare-and-set.
const LOCK: &str = ".lock";

/// Objects in a directory.
#[derive(Clone, Debug)]
pub struct DirStore(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    root: PathBuf,
    seen: Mutex<Seen>,
}

/// What this process knows of the directory.
#[derive(Debug, Default)]
struct Seen {
    /// Directories it created or found, synced into their parents.
    directories: HashSet<PathBuf>,
    /// Objects whose sync failed: their names or bytes may be in memory only, and another sync proves nothing.
    suspect: HashSet<Key>,
}

impl DirStore {
    /// Objects under `root`, which is created with the first object.
    pub fn new(root: &Path) -> Self {
        let inner = Inner {
            root: root.to_owned(),
            seen: Mutex::default(),
        };
        Self(Arc::new(inner))
    }

    /// Runs blocking file calls off the runtime's threads.
    fn run<T: Send + 'static>(
        &self,
        action: &'static str,
        key: &Key,
        work: impl FnOnce(&Inner, &Key) -> Result<T, StoreError> + Send + 'static,
    ) -> StoreFuture<'_, T> {
        let (inner, key) = (Arc::clone(&self.0), key.clone());
        Box::pin(async move {
            let named = key.clone();
            let done = tokio::task::spawn_blocking(move || work(&inner, &key)).await;
            done.unwrap_or_else(|error| {
                Err(StoreError::io(action, &named, io::Error::other(error)))
            })
        })
    }
}

impl Store for DirStore {
    fn create(&self, key: &Key, bytes: Bytes) -> StoreFuture<'_, Create> {
        self.run("create", key, move |inner, key| inner.create(key, &bytes))
    }

    fn settle(&self, key: &Key) -> StoreFuture<'_, ()> {
        self.run("make durable", key, Inner::settle)
    }

    fn get(&self, key: &Key, limit: u64) -> StoreFuture<'_, Option<Bytes>> {
        self.run("read", key, move |inner, key| inner.get(key, limit))
    }

    fn get_start(&self, key: &Key, len: usize) -> StoreFuture<'_, Option<Bytes>> {
        self.run("read", key, move |inner, key| {
            let Some(file) = inner.open(key)? else {
                return Ok(None);
            };
            let mut start = Vec::with_capacity(len);
            file.take(len as u64)
                .read_to_end(&mut start)
                .map_err(|error| StoreError::io("read", key, error))?;
            Ok(Some(start.into()))
        })
    }

    fn list(&self, directory: &Key, after: Option<&str>) -> StoreFuture<'_, Vec<String>> {
        let after = after.map(str::to_owned);
        self.run("list", directory, move |inner, key| {
            let names = names(&inner.path(key), after.as_deref());
            names.map_err(|error| StoreError::io("list", key, error))
        })
    }

    fn weigh(&self, directory: &Key, after: Option<&str>) -> StoreFuture<'_, u64> {
        let after = after.map(str::to_owned);
        self.run("list", directory, move |inner, key| {
            let path = inner.path(key);
            let weigh = |name: String| match path.join(name).metadata() {
                Ok(metadata) => Ok(metadata.len()),
                // Deleted meanwhile.
                Err(error) if absent(&error) => Ok(0),
                Err(error) => Err(error),
            };
            let names = names(&path, after.as_deref());
            let weighed = names.and_then(|names| names.into_iter().map(weigh).sum());
            weighed.map_err(|error| StoreError::io("list", key, error))
        })
    }

    fn get_versioned(&self, key: &Key, limit: u64) -> StoreFuture<'_, Option<Versioned>> {
        self.run("read", key, move |inner, key| {
            let bytes = inner.get(key, limit)?;
            Ok(bytes.map(|bytes| Versioned {
                version: version(&bytes),
                bytes,
            }))
        })
    }

    fn compare_and_set(
        &self,
        key: &Key,
        expected: Option<&Version>,
        bytes: Bytes,
    ) -> StoreFuture<'_, Swap> {
        let expected = expected.cloned();
        self.run("replace", key, move |inner, key| {
            inner.compare_and_set(key, expected.as_ref(), &bytes)
        })
    }

    fn modified(&self, key: &Key) -> StoreFuture<'_, Option<SystemTime>> {
        self.run("read", key, |inner, key| {
            let Some(file) = inner.open(key)? else {
                return Ok(None);
            };
            let modified = file.metadata().and_then(|it| it.modified());
            modified
                .map(Some)
                .map_err(|error| StoreError::io("read", key, error))
        })
    }

    fn delete(&self, key: &Key) -> StoreFuture<'_, ()> {
        self.run("delete", key, |inner, key| {
            let path = inner.path(key);
            match fs::remove_file(&path) {
                Ok(()) => sync_directory(parent(&path)),
                Err(error) if absent(&error) => Ok(()),
                Err(error) => Err(error),
            }
            .map_err(|error| StoreError::io("delete", key, error))
        })
    }
}

impl Inner {
    fn path(&self, key: &Key) -> PathBuf {
        self.root.join(key.as_str())
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn open(&self, key: &Key) -> Result<Option<File>, StoreError> {
        match File::open(self.path(key)) {
            Ok(file) => Ok(Some(file)),
            Err(error) if absent(&error) => self.absent(key).map(|()| None),
            Err(error) => Err(StoreError::io("read", key, error)),
        }
    }

    /// An object that is absent because its directory vanished is not absent.
    fn absent(&self, key: &Key) -> Result<(), StoreError> {
        let path = self.path(key);
        let known = self.seen().directories.contains(parent(&path));
        match known && !parent(&path).is_dir() {
            true => Err(StoreError::new("read", key, Problem::Vanished, None)),
            false => Ok(()),
        }
    }

    fn get(&self, key: &Key, limit: u64) -> Result<Option<Bytes>, StoreError> {
        let Some(mut file) = self.open(key)? else {
            return Ok(None);
        };
        let io = |error| StoreError::io("read", key, error);
        let len = file.metadata().map_err(io)?.len();
        if len > limit {
            return Err(StoreError::new("read", key, Problem::TooLong, None));
        }
        let bytes = buffer::filled(len as usize, |bytes| buffer::read_full(&mut file, bytes));
        Ok(Some(bytes.map_err(io)?))
    }

    fn create(&self, key: &Key, bytes: &[u8]) -> Result<Create, StoreError> {
        let path = self.path(key);
        self.prepare("create", key, parent(&path))?;
        let io = |error| StoreError::io("create", key, error);
        let temporary = TempFile::holding(parent(&path), bytes).map_err(io)?;
        match temporary.link(&path) {
            Ok(true) => Ok(Create::Created),
            Ok(false) => Ok(Create::Exists),
            Err(error) => {
                self.seen().suspect.insert(key.clone());
                Err(io(error))
            }
        }
    }

    /// Syncs a file that was found with the right content. One whose sync failed before is replaced by a fresh
    /// copy of itself, so that the sync that counts is the first one of new pages and a new name.
    fn settle(&self, key: &Key) -> Result<(), StoreError> {
        let path = self.path(key);
        self.prepare("make durable", key, parent(&path))?;
        let suspect = self.seen().suspect.contains(key);
        let settled = match suspect {
            true => fs::read(&path)
                .and_then(|bytes| TempFile::holding(parent(&path), &bytes)?.replace(&path)),
            false => File::open(&path)
                .and_then(|file| file.sync_all())
                .and_then(|()| sync_directory(parent(&path))),
        };
        match settled {
            Ok(()) => self.seen().suspect.remove(key),
            Err(_) => self.seen().suspect.insert(key.clone()),
        };
        settled.map_err(|error| StoreError::io("make durable", key, error))
    }

    fn compare_and_set(
        &self,
        key: &Key,
        expected: Option<&Version>,
        bytes: &[u8],
    ) -> Result<Swap, StoreError> {
        let path = self.path(key);
        self.prepare("replace", key, parent(&path))?;
        let io = |error| StoreError::io("replace", key, error);
        let lock = parent(&path).join(LOCK);
        let lock = File::options()
            .create(true)
            .append(true)
            .open(lock)
            .map_err(io)?;
        lock.lock().map_err(io)?;
        let found = self.get(key, u64::MAX)?.map(|bytes| version(&bytes));
        if found.as_ref() != expected {
            return Ok(Swap::Lost);
        }
        let temporary = TempFile::holding(parent(&path), bytes).map_err(io)?;
        temporary.replace(&path).map_err(io)?;
        Ok(Swap::Done(version(bytes)))
    }

    /// Makes a directory ready for new names, once a process.
    fn prepare(&self, action: &'static str, key: &Key, directory: &Path) -> Result<(), StoreError> {
        if self.seen().directories.contains(directory) {
            return match directory.is_dir() {
                true => Ok(()),
                false => Err(StoreError::new(action, key, Problem::Vanished, None)),
            };
        }
        self.parents_stand(action, key, directory)?;
        let io = |error| StoreError::io(action, key, error);
        create_directories(directory).map_err(io)?;
        // Whoever created them may have died before they were durable.
        for level in self.levels(directory) {
            match sync_directory(parent(level)) {
                Err(error) if level == self.root && denied(&error) => {}
                synced => synced.map_err(io)?,
            }
        }
        remove_left_over(directory).map_err(io)?;
        let levels = self.levels(directory).map(Path::to_owned);
        self.seen().directories.extend(levels);
        Ok(())
    }

    /// A directory and those above it, up to the root.
    fn levels<'a>(&'a self, directory: &'a Path) -> impl Iterator<Item = &'a Path> {
        directory
            .ancestors()
            .take_while(|level| level.starts_with(&self.root))
    }

    /// No directory that this process used may be missing above the one it needs now.
    fn parents_stand(
        &self,
        action: &'static str,
        key: &Key,
        directory: &Path,
    ) -> Result<(), StoreError> {
        let seen = self.seen();
        let gone = self
            .levels(directory)
            .any(|level| seen.directories.contains(level) && !level.is_dir());
        match gone {
            true => Err(StoreError::new(action, key, Problem::Vanished, None)),
            false => Ok(()),
        }
    }
}

/// Parent of a path in the archive: there always is one.
fn parent(path: &Path) -> &Path {
    parent_of(path).unwrap_or(path)
}

/// The directory above the root need not be ours to open.
fn denied(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied
}

fn absent(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}

/// Content names the version: a record that changes carries something that makes each content its own.
fn version(bytes: &[u8]) -> Version {
    let digest: [u8; 32] = Sha256::digest(bytes).into();
    Version(rindle_proto::ids::Digest(digest).to_hex())
}

fn names(directory: &Path, after: Option<&str>) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if absent(&error) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut names = Vec::new();
    for entry in entries {
        // Names that are not UTF-8 are not ours, nor are unfinished files and locks.
        let Ok(name) = entry?.file_name().into_string() else {
            continue;
        };
        let ours = !name.starts_with(TEMPORARY) && name != LOCK;
        if ours && after.is_none_or(|after| name.as_str() > after) {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

#[cfg(test)]
mod tests;
