//! Moving an image between a file and the store, several slices at once.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rindle_proto::ids::Digest;
use sha2::{Digest as _, Sha256};
use tokio::task::JoinSet;
use ulid::Ulid;

use super::manifest::{Manifest, Part};
use super::{ImageBase, ImageError, ImageInfo, Images, SLICE_BYTES};
use crate::fs::TempFile;
use crate::layout::{Key, image_id};
use crate::objects::{MAX_RECORD_BYTES, Objects, Stands, busy, now_ms, patiently, to_json};
use crate::segment::MAX_BODY_BYTES;
use crate::{buffer, compress};

/// Slices that move at once: bounds memory to this many times a slice, twice.
const AT_ONCE: u32 = 3;

const OTHERS: &str = "was written by somebody else";

/// A reservation is made again while a restore goes on.
const RENEWED_EVERY: Duration = Duration::from_secs(3600);

/// How far a transfer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of the file that are done.
    pub done_bytes: u64,
    /// Bytes of the file.
    pub total_bytes: u64,
}

impl Images {
    /// Publishes a SQLite file that nobody writes to. The image exists once this returns; after an error it does
    /// not, and publishing again makes another one.
    ///
    /// # Errors
    /// Why not; see [`ImageError`].
    pub async fn publish(
        &self,
        path: &Path,
        base: ImageBase,
        mut progress: impl FnMut(Progress) + Send,
    ) -> Result<ImageInfo, ImageError> {
        let id = image_id(base.segment, base.position.seq, Ulid::generate());
        let keys = self.keys.image(&id);
        let (file, total_bytes) = open(path).await?;
        let numbers = slices(total_bytes);
        let mut moving = JoinSet::new();
        let mut parts = Vec::with_capacity(numbers as usize);
        let mut next = 0;
        while next < numbers || !moving.is_empty() {
            if next < numbers && moving.len() < AT_ONCE as usize {
                let (objects, file) = (self.objects.clone(), Arc::clone(&file));
                let (key, path) = (keys.part(next), path.display().to_string());
                let len = slice_len(next, total_bytes);
                moving.spawn(async move { put_part(objects, key, file, path, next, len).await });
                next += 1;
                continue;
            }
            parts.extend(joined(moving.join_next().await)?);
            let done_bytes = parts.iter().map(|part: &Part| part.bytes).sum();
            progress(Progress {
                done_bytes,
                total_bytes,
            });
        }
        parts.sort_by_key(|part| part.number);
        let manifest = Manifest::new(self.generation, base, parts, now_ms());
        let (key, bytes) = (keys.manifest(), to_json(&manifest));
        match self.objects.put(&key, &bytes, MAX_RECORD_BYTES).await? {
            Stands::Mine => Ok(manifest.info(&id, false)),
            Stands::Other(_) => Err(damaged(&key, OTHERS)),
        }
    }

    /// As [`Images::fetch`], for a reader that goes on in the log behind it: retention leaves both alone meanwhile. Whoever
    /// may only read reserves nothing, and begins again when it loses the image.
    ///
    /// # Errors
    /// Why not; [`ImageError::Going`] when retention is about to delete it.
    pub async fn restore(
        &self,
        image: &ImageInfo,
        to: &Path,
        progress: impl FnMut(Progress) + Send,
    ) -> Result<(), ImageError> {
        match self.reserve(image).await {
            Ok(true) => {}
            Ok(false) => {
                return Err(ImageError::Going {
                    image: image.id.clone(),
                });
            }
            Err(error) if error.may_not_write() => tracing::info!(
                image = %image.id,
                error = %error,
                "the image is not reserved, for we may only read: should retention take it away, the restore begins again"
            ),
            Err(error) => return Err(error),
        }
        let renewing = async {
            loop {
                tokio::time::sleep(RENEWED_EVERY).await;
                // It holds for hours yet.
                let _renewed = self.reserve(image).await;
            }
        };
        tokio::select! {
            done = self.fetch(image, to, progress) => done,
            () = renewing => unreachable!("it has no end"),
        }
    }

    /// Writes an image to `to`, which appears whole or not at all and replaces what has that name.
    ///
    /// # Errors
    /// Why not; see [`ImageError`].
    pub async fn fetch(
        &self,
        image: &ImageInfo,
        to: &Path,
        mut progress: impl FnMut(Progress) + Send,
    ) -> Result<(), ImageError> {
        let temporary = create(to, image.file_bytes).await?;
        let keys = self.keys.image(&image.id);
        let total_bytes = image.file_bytes;
        let mut moving = JoinSet::new();
        let mut waiting = image.parts.iter();
        let mut done_bytes = 0;
        loop {
            while moving.len() < AT_ONCE as usize
                && let Some(part) = waiting.next()
            {
                let (objects, temporary) = (self.objects.clone(), Arc::clone(&temporary));
                let (key, part) = (keys.part(part.number), part.clone());
                let manifest = keys.manifest();
                let image = image.id.clone();
                moving.spawn(async move {
                    match get_part(&objects, &key, temporary, part).await? {
                        Some(bytes) => Ok(bytes),
                        // Retention deletes the manifest first.
                        None if !objects.exists(&manifest).await? => {
                            Err(ImageError::Going { image })
                        }
                        None => Err(damaged(&key, "is missing")),
                    }
                });
            }
            let Some(done) = joined(moving.join_next().await)? else {
                break;
            };
            done_bytes += done;
            progress(Progress {
                done_bytes,
                total_bytes,
            });
        }
        drop(moving);
        let temporary = Arc::into_inner(temporary).expect("every slice has ended");
        let path = to.to_owned();
        busy(move || {
            temporary
                .replace(&path)
                .map_err(|error| file_error("write", &path, error))
        })
        .await
    }
}

impl Images {
    /// Looks at one slice: whether it is there, or, `whole`, what is in it. Gives how many bytes were read.
    pub(crate) async fn look(
        &self,
        image: &ImageInfo,
        number: u32,
        whole: bool,
    ) -> Result<u64, ImageError> {
        let key = self.keys.image(&image.id).part(number);
        let part = image.parts[number as usize].clone();
        if !whole {
            return match self.objects.exists(&key).await? {
                true => Ok(0),
                false => Err(damaged(&key, "is missing")),
            };
        }
        let object = self.objects.0.get(&key, part.stored_bytes).await?;
        let object = object.ok_or_else(|| damaged(&key, "is missing"))?;
        busy(move || slice_of(&key, &object, &part).map(|_slice| part.stored_bytes)).await
    }
}

fn joined<T>(
    ended: Option<Result<Result<T, ImageError>, tokio::task::JoinError>>,
) -> Result<Option<T>, ImageError> {
    match ended {
        None => Ok(None),
        Some(Ok(done)) => done.map(Some),
        Some(Err(error)) => std::panic::resume_unwind(error.into_panic()),
    }
}

fn slices(total: u64) -> u32 {
    u32::try_from(total.div_ceil(SLICE_BYTES)).unwrap_or(u32::MAX)
}

fn slice_len(number: u32, total: u64) -> u64 {
    (total - u64::from(number) * SLICE_BYTES).min(SLICE_BYTES)
}

async fn open(path: &Path) -> Result<(Arc<File>, u64), ImageError> {
    let path = path.to_owned();
    busy(move || {
        let opened = File::open(&path).and_then(|file| Ok((file.metadata()?.len(), file)));
        match opened {
            Ok((len, file)) => Ok((Arc::new(file), len)),
            Err(error) => Err(file_error("read", &path, error)),
        }
    })
    .await
}

async fn create(to: &Path, len: u64) -> Result<Arc<TempFile>, ImageError> {
    let to = to.to_owned();
    busy(move || {
        let directory = to.parent().filter(|parent| !parent.as_os_str().is_empty());
        let created = TempFile::create(directory.unwrap_or(Path::new(".")));
        let sized = created.and_then(|file| file.file().set_len(len).map(|()| file));
        sized
            .map(Arc::new)
            .map_err(|error| file_error("write", &to, error))
    })
    .await
}

async fn put_part(
    objects: Objects,
    key: Key,
    file: Arc<File>,
    path: String,
    number: u32,
    len: u64,
) -> Result<Part, ImageError> {
    let packed = busy(move || pack(&file, u64::from(number) * SLICE_BYTES, len)).await;
    let (sha256, object) = match packed {
        Ok(packed) => packed,
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            return Err(ImageError::Changed { path });
        }
        Err(source) => {
            return Err(ImageError::File {
                action: "read",
                path,
                source,
            });
        }
    };
    let stored_bytes = object.len() as u64;
    match objects.put(&key, &object, MAX_BODY_BYTES).await? {
        Stands::Mine => Ok(Part {
            number,
            bytes: len,
            stored_bytes,
            sha256,
        }),
        Stands::Other(_) => Err(damaged(&key, OTHERS)),
    }
}

fn pack(file: &File, at: u64, len: u64) -> io::Result<(Digest, Bytes)> {
    let slice = buffer::filled(len as usize, |slice| {
        file.read_exact_at(slice, at).map(|()| slice.len())
    })?;
    let sha256 = Digest(Sha256::digest(&slice).into());
    Ok((sha256, compress::behind(&slice, |_body_bytes| [])?))
}

/// None when there is no such object.
async fn get_part(
    objects: &Objects,
    key: &Key,
    temporary: Arc<TempFile>,
    part: Part,
) -> Result<Option<u64>, ImageError> {
    let read = || objects.0.get(key, part.stored_bytes);
    let Some(object) = patiently(read).await? else {
        return Ok(None);
    };
    let key = key.clone();
    busy(move || unpack(&key, &object, &temporary, &part).map(Some)).await
}

fn unpack(key: &Key, object: &[u8], temporary: &TempFile, part: &Part) -> Result<u64, ImageError> {
    let slice = slice_of(key, object, part)?;
    let at = u64::from(part.number) * SLICE_BYTES;
    let written = temporary.file().write_all_at(&slice, at);
    written.map_err(|error| file_error("write", temporary.path(), error))?;
    Ok(part.bytes)
}

fn slice_of(key: &Key, object: &[u8], part: &Part) -> Result<Bytes, ImageError> {
    if object.len() as u64 != part.stored_bytes {
        return Err(damaged(key, "is not as long as its manifest says"));
    }
    let slice = compress::expand(object, part.bytes as usize).map_err(|error| {
        tracing::debug!(%key, %error, "a slice does not expand");
        damaged(key, "does not expand to its slice")
    })?;
    if Digest(Sha256::digest(&slice).into()) != part.sha256 {
        return Err(damaged(key, "has another digest than its manifest says"));
    }
    Ok(slice)
}

fn damaged(key: &Key, what: &'static str) -> ImageError {
    ImageError::Damaged {
        key: key.to_string(),
        what,
    }
}

fn file_error(action: &'static str, path: &Path, source: io::Error) -> ImageError {
    ImageError::File {
        action,
        path: path.display().to_string(),
        source,
    }
}
