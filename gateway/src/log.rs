//! The local log: the frames of this session, in files of the data directory.
//!
//! It is a cache. It is never fsynced, and every session starts with an empty one (protocol rule 4): what the
//! archive lacks comes again from the slot. One writer appends; readers read from their own offset and are never
//! waited for. Offsets count bytes since the session began.

mod file;
mod marks;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use rindle_archive::{Commit, buffer};
use rindle_proto::frame::FrameReader;
use rindle_proto::ids::Position;

use self::file::LogFile;
pub use self::marks::Mark;
use self::marks::Marks;

/// A log file is closed when it holds this many bytes.
const FILE_BYTES: u64 = 8 << 20;

/// Most bytes one read returns.
pub const READ_BYTES: usize = 256 << 10;

/// The log of one session. Cheap to share.
#[derive(Debug)]
pub struct Log {
    dir: PathBuf,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    files: VecDeque<Arc<LogFile>>,
    marks: Marks,
}

/// Where a follower's position lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Located {
    /// In the log: the next frame starts at this offset.
    At(u64),
    /// Its number is in the log under another chain.
    Differs,
    /// Before the log's first frame.
    Below,
    /// After the log's last frame.
    Above,
}

/// A run of whole appends, to become one segment.
#[derive(Clone, Debug)]
pub struct Run {
    /// Position before its first frame.
    pub from: Position,
    /// Offset of its first byte.
    pub from_offset: u64,
    /// The last append in it.
    pub end: Mark,
    /// The last commit in it.
    pub last_commit: Option<Commit>,
}

impl Log {
    /// Empties the directory and starts a log after `position`.
    ///
    /// # Errors
    /// When the directory cannot be made or emptied; the error names it.
    pub fn create(dir: &Path, position: Position) -> io::Result<Self> {
        file::empty_dir(dir)?;
        let inner = Inner {
            files: VecDeque::new(),
            marks: Marks::new(position),
        };
        Ok(Self {
            dir: dir.to_owned(),
            inner: Mutex::new(inner),
        })
    }

    /// Appends whole frames and says where the log ends now.
    ///
    /// # Errors
    /// When the file cannot be written; the log may then end in half a frame and is of no more use.
    pub fn append(
        &self,
        frames: &[u8],
        end: Position,
        last_commit: Option<Commit>,
    ) -> io::Result<Mark> {
        let file = self.file_to_append()?;
        file.append(frames)?;
        let mut inner = self.lock();
        let offset = inner.marks.head().offset + frames.len() as u64;
        Ok(inner.marks.push(offset, end, last_commit))
    }

    /// The end of the log.
    pub fn head(&self) -> Mark {
        self.lock().marks.head()
    }

    /// Offset of the first byte still held.
    pub fn base(&self) -> u64 {
        let inner = self.lock();
        inner
            .files
            .front()
            .map_or(inner.marks.head().offset, |file| file.start())
    }

    /// Reads from `offset` up to `limit`, at most [`READ_BYTES`]; `None` when that was trimmed away.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn read(&self, offset: u64, limit: u64) -> io::Result<Option<Bytes>> {
        let file = {
            let inner = self.lock();
            let at = inner.files.partition_point(|file| file.start() <= offset);
            match at.checked_sub(1) {
                Some(at) => Arc::clone(&inner.files[at]),
                None => return Ok((offset == limit).then(Bytes::new)),
            }
        };
        file.read(offset, limit.min(offset + READ_BYTES as u64))
            .map(Some)
    }

    /// Reads all of `from..to`; `None` when part of it was trimmed away.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn read_run(&self, from: u64, to: u64) -> io::Result<Option<Bytes>> {
        let mut is_whole = true;
        let run = buffer::filled((to - from) as usize, |bytes| {
            let mut filled = 0;
            while filled < bytes.len() {
                let at = from + filled as u64;
                let Some(piece) = self.read(at, to)? else {
                    is_whole = false;
                    break;
                };
                if piece.is_empty() {
                    return Err(io::Error::other(format!(
                        "the local log ends at {at}, before {to}"
                    )));
                }
                bytes[filled..filled + piece.len()].copy_from_slice(&piece);
                filled += piece.len();
            }
            Ok(filled)
        })?;
        Ok(is_whole.then_some(run))
    }

    /// The next run that is not archived: whole appends of at least one, up to `max_bytes`. A copy frame is
    /// always the last of its run, so that it ships at once.
    pub fn next_run(&self, max_bytes: u64) -> Option<Run> {
        self.lock().marks.next_run(max_bytes)
    }

    /// Marks everything up to `end` as archived, and drops whole files that lie more than `retain_bytes` behind.
    pub fn archived(&self, end: &Mark, retain_bytes: u64) {
        let mut inner = self.lock();
        inner.marks.archived(end);
        let keep_from = end.offset.saturating_sub(retain_bytes);
        while inner.files.len() > 1 && inner.files[1].start() <= keep_from {
            if let Some(file) = inner.files.pop_front() {
                file.remove();
            }
        }
        let base = inner.files.front().map_or(0, |file| file.start());
        inner.marks.trim(base);
    }

    /// Where a follower's position lies, by its number and chain.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn locate(&self, position: Position) -> io::Result<Located> {
        let (mark, head) = {
            let inner = self.lock();
            (inner.marks.before(position.seq), inner.marks.head())
        };
        if position.seq > head.position.seq {
            return Ok(Located::Above);
        }
        let Some(mark) = mark else {
            return Ok(Located::Below);
        };
        let (mut at, mut offset) = (mark.position, mark.offset);
        let mut reader = FrameReader::new();
        let mut read_to = offset;
        while at.seq < position.seq {
            let frame = reader.next_frame().map_err(io::Error::other)?;
            let Some(frame) = frame else {
                let Some(piece) = self.read(read_to, head.offset)? else {
                    return Ok(Located::Below);
                };
                read_to += piece.len() as u64;
                reader.push(piece);
                continue;
            };
            offset += (rindle_proto::frame::HEADER_BYTES + frame.payload.len()) as u64;
            at = at.after(&frame).map_err(io::Error::other)?;
        }
        Ok(match at == position {
            true => Located::At(offset),
            false => Located::Differs,
        })
    }

    fn file_to_append(&self) -> io::Result<Arc<LogFile>> {
        let mut inner = self.lock();
        let end = inner.marks.head().offset;
        let full = inner
            .files
            .back()
            .is_none_or(|file| end - file.start() >= FILE_BYTES);
        if full {
            inner
                .files
                .push_back(Arc::new(LogFile::create(&self.dir, end)?));
        }
        inner
            .files
            .back()
            .cloned()
            .ok_or_else(|| io::Error::other("no log file"))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // No code under the lock can leave the state half changed.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
