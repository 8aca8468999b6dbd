//! The first copy: slot with an exported snapshot, rows to bulk objects, then the stream from exactly that point.
//! Protocol rule 19. One attempt is one session: whatever ends it leaves nothing marked done, and the next session
//! begins anew at frame 1.

use std::sync::Arc;
use std::time::Duration;

use rindle_archive::failpoint;
use rindle_archive::{Commit, CommitKind};
use rindle_proto::body::{Attempt, BulkPart, CopyBegin, CopyDone, CopyScope, PgMicros};
use rindle_proto::frame::{FrameFlags, FrameKind, FrameWriter};
use rindle_proto::ids::{EndLsn, FinalLsn, Lsn, Position};
use rindle_proto::schema::Schema;
use tokio_postgres::Client;
use tokio_util::task::AbortOnDropHandle;

use super::open::{application_name, broken, client};
use super::{Ended, Sessions};
use crate::assemble::{Assembler, LeafMap};
use crate::copy;
use crate::halt::HaltReason;
use crate::live::Live;
use crate::pg::catalog;
use crate::pg::walsender::{CreatedSlot, WalError, WalStream, sqlstate};
use crate::pump::drive::Started;
use crate::ship::chain;
use crate::state::{CopyProgress, Phase};

/// Bounds of one wait for old transactions: the first is short, so that the reason is told soon.
const SLOT_WAITS: [&str; 2] = ["5s", "30s"];

/// While the copy runs the server is told that often that we are there.
const ALIVE_INTERVAL: Duration = Duration::from_secs(2);

/// Copies everything and leaves the stream running from the snapshot.
pub(super) async fn run(
    sessions: &Sessions,
    stream: &mut WalStream,
    live: &Arc<Live>,
) -> Result<Started, Ended> {
    sessions
        .state
        .set_phase(Phase::Copying(CopyProgress::default()));
    let slot = create_slot(sessions, stream).await?;
    failpoint::reach(failpoint::GATEWAY_SLOT_CREATED);
    let snapshot = slot.consistent_point;
    let (keeper, shared_snapshot) = keep_snapshot(sessions, &slot).await?;
    // As soon as the keeper holds the snapshot: an idle slot can be invalidated.
    let started = stream
        .start(
            &sessions.record.slot,
            snapshot,
            &sessions.record.publication,
        )
        .await;
    started.map_err(broken)?;
    let view = catalog::read_with_sizes(&keeper, &sessions.record.publication).await;
    let view = view.map_err(|error| Ended::Retry(chain(&error)))?;
    let schema = view.schema().map_err(|refused| HaltReason::SourceRefused {
        detail: refused.to_string(),
    })?;
    let attempt = Attempt {
        epoch: live.epoch,
        number: 0,
    };
    let mut frames = Frames {
        writer: FrameWriter::new(live.start),
        live,
        snapshot,
    };
    frames.begin(attempt, &schema)?;

    let job = copy::Job {
        endpoint: sessions.endpoint.clone(),
        application_name: application_name(sessions),
        archive: sessions.archive.clone(),
        state: sessions.state.clone(),
        snapshot: shared_snapshot,
        attempt,
        plan: view.copy_plan(&schema),
    };
    let copying = AbortOnDropHandle::new(sessions.runtime.spawn(copy::run(job)));
    let parts = stay_alive(stream, snapshot, copying).await?;
    failpoint::reach(failpoint::GATEWAY_COPIED);
    check_facts(sessions, &view).await?;
    drop(keeper);
    let position = frames.done(attempt, parts).await?;
    failpoint::reach(failpoint::GATEWAY_DONE_DURABLE);
    let client = client(sessions).await?;
    let assembler = Assembler::new(schema, LeafMap::new(view.leaf_pairs()), position);
    Ok(Started {
        assembler,
        start: snapshot,
        client,
    })
}

/// Drops the slot of an earlier attempt and creates it anew, on the session that holds the lock.
async fn create_slot(sessions: &Sessions, stream: &mut WalStream) -> Result<CreatedSlot, Ended> {
    let name = &sessions.record.slot;
    let literal = name.replace('\'', "''");
    let drop = format!(
        "SELECT pg_catalog.pg_drop_replication_slot(slot_name) FROM pg_catalog.pg_replication_slots \
         WHERE slot_name = '{literal}'"
    );
    stream.query(&drop).await.map_err(broken)?;
    let failover = sessions.record.posture == "failover-slot";
    for bound in SLOT_WAITS.iter().chain(std::iter::repeat(&SLOT_WAITS[1])) {
        stream
            .query(&format!("SET lock_timeout = '{bound}'"))
            .await
            .map_err(broken)?;
        match stream.create_slot(name, false, failover).await {
            Ok(slot) => return Ok(slot),
            Err(WalError::Server(error)) if error.code == sqlstate::LOCK_TIMEOUT => {
                let waiting = Some(blockers(sessions).await?);
                sessions.state.set_phase(Phase::Copying(CopyProgress {
                    waiting,
                    ..CopyProgress::default()
                }));
            }
            Err(WalError::Server(error)) if !error.is_fatal() => {
                let detail = format!("slot {name:?} cannot be created: {error}");
                return Err(Ended::Halt(HaltReason::SourceRefused { detail }));
            }
            Err(error) => return Err(broken(error)),
        }
    }
    Err(Ended::Retry("slot creation was given up".to_owned()))
}

/// Who keeps the slot from being created: transactions of any database, and prepared ones.
async fn blockers(sessions: &Sessions) -> Result<String, Ended> {
    let client = client(sessions).await?;
    let sql = "SELECT pg_catalog.format('pid %s (%s in %s, open for %s): %s', pid, usename, datname, \
               pg_catalog.date_trunc('second', pg_catalog.now() - xact_start), pg_catalog.left(query, 120)), xact_start AS since \
               FROM pg_catalog.pg_stat_activity WHERE backend_xid IS NOT NULL AND pid <> pg_catalog.pg_backend_pid() \
               UNION ALL SELECT pg_catalog.format('prepared transaction %L (%s in %s, since %s): COMMIT PREPARED or \
               ROLLBACK PREPARED it', gid, owner, database, prepared), prepared FROM pg_catalog.pg_prepared_xacts \
               ORDER BY since LIMIT 3";
    let rows = client
        .query(sql, &[])
        .await
        .map_err(|error| Ended::Retry(chain(&error)))?;
    let names: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    Ok(match names.is_empty() {
        true => "slot creation waits for older transactions to end".to_owned(),
        false => format!(
            "slot creation waits for older transactions to end: {}",
            names.join("; ")
        ),
    })
}

/// A connection that imports the exported snapshot and shares it with the workers: it, not the slot's session,
/// keeps the snapshot from now on.
async fn keep_snapshot(sessions: &Sessions, slot: &CreatedSlot) -> Result<(Client, String), Ended> {
    let keeper = client(sessions).await?;
    let import = copy::import_snapshot(&slot.snapshot_name);
    keeper
        .batch_execute(&import)
        .await
        .map_err(|error| Ended::Retry(chain(&error)))?;
    let row = keeper
        .query_one("SELECT pg_catalog.pg_export_snapshot()", &[])
        .await;
    let shared = row
        .and_then(|row| row.try_get(0))
        .map_err(|error| Ended::Retry(chain(&error)))?;
    Ok((keeper, shared))
}

/// Waits for the copy. The stream is not read meanwhile, so Postgres keeps the WAL; nothing beyond the snapshot is
/// acknowledged.
async fn stay_alive(
    stream: &mut WalStream,
    snapshot: Lsn,
    mut copying: AbortOnDropHandle<Result<Vec<BulkPart>, copy::CopyError>>,
) -> Result<Vec<BulkPart>, Ended> {
    let mut timer = tokio::time::interval(ALIVE_INTERVAL);
    let result = loop {
        tokio::select! {
            result = &mut copying => break result,
            _ = timer.tick() => {
                stream.status(snapshot, snapshot, snapshot, false).await.map_err(broken)?;
            }
        }
    };
    match result {
        Ok(Ok(parts)) => Ok(parts),
        Ok(Err(copy::CopyError::Row(reason))) => Err(Ended::Halt(reason)),
        Ok(Err(error)) => Err(Ended::Retry(format!("first copy: {}", chain(&error)))),
        Err(error) => Err(Ended::Retry(format!("first copy: {error}"))),
    }
}

/// Facts that no lock of the copy holds still (types, leaf sets) must be at its end what they were under its
/// snapshot; otherwise rows may be wrong in silence.
async fn check_facts(
    sessions: &Sessions,
    under_snapshot: &catalog::CatalogView,
) -> Result<(), Ended> {
    let client = client(sessions).await?;
    let now = catalog::read(&client, &sessions.record.publication).await;
    let now = now.map_err(|error| Ended::Retry(chain(&error)))?;
    match under_snapshot.copy_facts_differ(&now) {
        None => Ok(()),
        Some(what) => Err(Ended::Retry(format!(
            "first copy: {what} changed while it ran; it starts afresh"
        ))),
    }
}

/// The two frames of the copy.
struct Frames<'a> {
    writer: FrameWriter,
    live: &'a Arc<Live>,
    snapshot: Lsn,
}

impl Frames<'_> {
    fn begin(&mut self, attempt: Attempt, schema: &Schema) -> Result<(), Ended> {
        let scope = CopyScope::Genesis(schema.clone());
        let begin = CopyBegin {
            attempt,
            snapshot: self.snapshot,
            scope,
        };
        self.append(FrameKind::CopyBegin, &begin, false).map(drop)
    }

    /// Appends Done and waits until the archive holds it: a copy counts as done only then.
    async fn done(&mut self, attempt: Attempt, parts: Vec<BulkPart>) -> Result<Position, Ended> {
        let done = CopyDone {
            attempt,
            snapshot: self.snapshot,
            parts,
        };
        let mark = self.append(FrameKind::CopyDone, &done, true)?;
        let mut durable = self.live.durable();
        let reached = durable
            .wait_for(|durable| durable.mark.offset >= mark.offset)
            .await;
        reached.map_err(|_closed| Ended::Retry("shipping ended".to_owned()))?;
        Ok(mark.position)
    }

    fn append<T: serde::Serialize>(
        &mut self,
        kind: FrameKind,
        body: &T,
        commits: bool,
    ) -> Result<crate::log::Mark, Ended> {
        let before = self.writer.position();
        let bug = |error: &dyn std::fmt::Display| Ended::Retry(format!("copy frame: {error}"));
        let json = serde_json::to_vec(body).map_err(|error| bug(&error))?;
        self.writer.open().extend_from_slice(&json);
        let finished = self.writer.finish(kind, FrameFlags::WHOLE, self.snapshot);
        let position = finished.map_err(|error| bug(&error))?;
        let commit = commits.then_some(Commit {
            kind: CommitKind::CopyDone,
            position,
            before,
            final_lsn: FinalLsn(self.snapshot),
            end_lsn: EndLsn(self.snapshot),
            xid: 0,
            commit_time: PgMicros(0),
        });
        let frames = self.writer.take();
        self.live
            .append(&frames, position, commit)
            .map_err(|error| bug(&error))
    }
}
