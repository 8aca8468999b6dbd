//! The mirror's half of verify for a file at rest or in use: a copy of it is brought to one position of the source
//! from the archive, and digested there. The file itself is only read.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use rindle_archive::{Archive, ReadFrom};
use rindle_follower::mirror::{Mirror, MirrorError, MirrorOptions, digest, open_reader};
use rindle_proto::ids::{Generation, Lsn, SegmentNo};
use rindle_proto::verify::TableDigest;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use crate::error::ProducerError;
use crate::progress::Watch;
use crate::replay::{Replay, Until, replay};
use crate::scratch::remove_mirror;

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
        copied.map_err(failed("copy the mirror"))?;
        let mirror = Mirror::open(copy, MirrorOptions::default())?;
        let generation = mirror.cursor().ok_or(MirrorError::NotStarted)?.generation;
        Ok(Self {
            mirror: Some(mirror),
            generation,
        })
    }

    /// The generation that it follows.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Replays the archive up to, and not including, the first transaction that a snapshot at `lsn` does not show,
    /// and digests every table. Waits until the archive has come as far, at most until `deadline`.
    ///
    /// # Errors
    /// When the archive does not come as far in time, or cannot be read, or the mirror does not take its frames.
    pub async fn digests_at(
        mut self,
        archive: &Archive,
        lsn: Lsn,
        deadline: Instant,
        stop: CancellationToken,
    ) -> Result<BTreeMap<String, TableDigest>, ProducerError> {
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
    ) -> Result<BTreeMap<String, TableDigest>, ProducerError> {
        let mirror = self.mirror.as_mut().ok_or(MirrorError::NotStarted)?;
        let position = mirror.position().ok_or(MirrorError::NotStarted)?;
        let until = Until::Snapshot { lsn, deadline };
        replay(ctx, mirror, ReadFrom::Position { position }, until)?;
        let mut digests = BTreeMap::new();
        for table in &mirror.schema().tables {
            digests.insert(
                table.mirror_name(),
                digest::table(mirror.connection(), table)?,
            );
        }
        Ok(digests)
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
