//! The mirror's half of verify for a file at rest or in use: a copy of it is brought to one position of the source
//! from the archive, and digested there. The file itself is only read.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use rindle_archive::{Archive, ReadFrom};
use rindle_follower::mirror::{
    Mirror, MirrorError, MirrorOptions, awaiting, awaits, digest, open_reader,
};
use rindle_proto::ids::{Generation, Lsn, SegmentNo};
use rindle_proto::verify::TableDigest;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use crate::error::ProducerError;
use crate::progress::Watch;
use crate::replay::{Replay, Until, replay};
use crate::scratch::remove_mirror;

/// A mirror's tables at one position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Digested {
    /// By name.
    pub digests: BTreeMap<String, TableDigest>,
    /// Tables that await a copy: they are not as the source is.
    pub copying: Vec<String>,
}

/// A copy of a mirror file. It is removed with the value.
#[derive(Debug)]
pub struct MirrorCopy {
    /// None once it is being removed.
    mirror: Option<Mirror>,
    generation: Generation,
}

impl MirrorCopy {
    /// Copies the mirror at `file`, as of its last commit, to `copy`. Blocks.
    ///
    /// # Errors
    /// When the file is no mirror, or the copy cannot be written.
    pub fn take(file: &Path, copy: &Path) -> Result<Self, ProducerError> {
        remove_mirror(copy)?;
        let failed = |doing| move |source| MirrorError::Sqlite { doing, source };
        let reader = open_reader(file)?;
        // The connection still may not write to the file: it was opened for reading only.
        let writes = reader.pragma_update(None, "query_only", false);
        writes.map_err(failed("allow a copy"))?;
        let name = copy.to_string_lossy();
        let copied = reader.execute("VACUUM INTO ?1", [&*name]);
        let opened = copied
            .map_err(failed("copy the mirror"))
            .and_then(|_rows| Mirror::open(copy, MirrorOptions::default()))
            .and_then(|mirror| match mirror.cursor() {
                Some(cursor) => Ok((mirror, cursor.generation)),
                None => Err(MirrorError::NotStarted),
            });
        match opened {
            Ok((mirror, generation)) => Ok(Self {
                mirror: Some(mirror),
                generation,
            }),
            Err(error) => {
                // A full disk, above all, is not to stay full of half a copy.
                if let Err(stays) = remove_mirror(copy) {
                    tracing::warn!(error = %stays, "half a copy of the mirror stays behind");
                }
                Err(error.into())
            }
        }
    }

    /// The generation that it follows.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Replays the archive up to, and not including, the first transaction that a snapshot at `lsn` does not show,
    /// and digests every table, but for those that await a copy. Waits until the archive has come as far, at most until
    /// `deadline`.
    ///
    /// # Errors
    /// When the archive does not come as far in time, or cannot be read, or the mirror does not take its frames.
    pub async fn digests_at(
        mut self,
        archive: &Archive,
        lsn: Lsn,
        deadline: Instant,
        stop: CancellationToken,
    ) -> Result<Digested, ProducerError> {
        let ctx = Replay {
            log: archive.log(self.generation),
            runtime: Handle::current(),
            stop,
            watch: Watch::nobody(),
            last_segment: SegmentNo(0),
        };
        let work = tokio::task::spawn_blocking(move || self.advance(&ctx, lsn, deadline));
        match work.await {
            Ok(digests) => digests,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_cancelled) => Err(ProducerError::Stopped),
            },
        }
    }

    fn advance(
        &mut self,
        ctx: &Replay,
        lsn: Lsn,
        deadline: Instant,
    ) -> Result<Digested, ProducerError> {
        let mirror = self.mirror.as_mut().ok_or(MirrorError::NotStarted)?;
        let position = mirror.position().ok_or(MirrorError::NotStarted)?;
        let until = Until::Snapshot { lsn, deadline };
        replay(ctx, mirror, ReadFrom::Position { position }, until)?;
        let mut digests = BTreeMap::new();
        let schema = mirror.schema();
        let copying = awaiting(schema).into_iter().map(|table| table.table);
        for table in schema.shown().filter(|table| !awaits(schema, table)) {
            digests.insert(
                table.mirror_name(),
                digest::table(mirror.connection(), table)?,
            );
        }
        Ok(Digested {
            copying: copying.collect(),
            digests,
        })
    }
}

impl Drop for MirrorCopy {
    fn drop(&mut self) {
        let Some(mirror) = self.mirror.take() else {
            return;
        };
        let path = mirror.path().to_owned();
        drop(mirror);
        if let Err(error) = remove_mirror(&path) {
            tracing::warn!(%error, "the copy of the mirror stays behind");
        }
    }
}
