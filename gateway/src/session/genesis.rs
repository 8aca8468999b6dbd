//! The first copy: slot with an exported snapshot, rows to bulk objects, then the stream from exactly that point.
//! Protocol rule 19. One attempt is one session: whatever ends it leaves nothing marked done, and the next session
//! begins anew at frame 1.

use std::sync::Arc;
use std::time::Duration;

use rindle_archive::failpoint;
use rindle_archive::{Commit, CommitKind, Tail};
use rindle_proto::body::{Attempt, BulkPart, CopyBegin, CopyDone, CopyScope, PgMicros};
use rindle_proto::frame::{FrameFlags, FrameKind, FrameWriter};
use rindle_proto::ids::{EndLsn, FinalLsn, Lsn, Position, SegmentNo};
use rindle_proto::schema::Schema;
use tokio_postgres::Client;
use tokio_util::task::AbortOnDropHandle;

use super::open::{application_name, broken, client};
use super::{Ended, Sessions};
use crate::assemble::Assembler;
use crate::copy::{self, Progress};
use crate::ddl::Believed;
use crate::ddl::believed::First;
use crate::halt::HaltReason;
use crate::lifecycle::admission::facts;
use crate::lifecycle::admission::posture::Posture;
use crate::live::Live;
use crate::log::Mark;
use crate::pg::catalog;
use crate::pg::walsender::{CreatedSlot, WalError, WalStream, sqlstate};
use crate::pg::{slot, snapshot};
use crate::pump::drive::Started;
use crate::ship::chain;
use crate::state::{CopyProgress, Phase, State};

/// Bounds of one wait for old transactions: the first is short, so that the reason is told soon.
const SLOT_WAITS: [&str; 2] = ["5s", "30s"];

/// While the copy runs the server is told that often that we are there.
const ALIVE_INTERVAL: Duration = Duration::from_secs(2);

/// What is published, as plain rows: functions that list published tables look at the present, whatever snapshot
/// they run under, so the copy's snapshot and the present are compared by these.
const PUBLICATION_FACTS: &str = "SELECT pg_catalog.concat_ws('|', \
    (SELECT pg_catalog.string_agg(p::text, ';' ORDER BY p.oid) FROM pg_catalog.pg_publication p), \
    (SELECT pg_catalog.string_agg(r::text, ';' ORDER BY r.oid) FROM pg_catalog.pg_publication_rel r), \
    (SELECT pg_catalog.string_agg(n::text, ';' ORDER BY n.oid) FROM pg_catalog.pg_publication_namespace n))";

/// Copies everything and leaves the stream running from the snapshot.
pub(super) async fn run(
    sessions: &Sessions,
    stream: &mut WalStream,
    live: &Arc<Live>,
    tail: &Tail,
) -> Result<Started, Ended> {
    let copying = Phase::Copying(CopyProgress::default());
    sessions.state.set_phase(copying);
    let slot = create_slot(sessions, stream, tail).await?;
    failpoint::reach(failpoint::GATEWAY_SLOT_CREATED);
    let snapshot = slot.consistent_point;
    let (keeper, shared_snapshot) = keep_snapshot(sessions, stream, &slot).await?;
    // Only now: a further command ends the exported snapshot. Decoding must not inherit the bound.
    stream.query("SET lock_timeout = 0").await.map_err(broken)?;
    // As soon as the keeper holds the snapshot: an idle slot can be invalidated.
    let record = &sessions.record;
    let started = stream.start(&record.slot, snapshot, &record.publication);
    started.await.map_err(broken)?;
    let mut facts = catalog::read_facts(&keeper, &record.publication)
        .await
        .map_err(|error| Ended::Retry(chain(&error)))?;
    let sized = catalog::read_sizes(&keeper, &mut facts).await;
    sized.map_err(|error| Ended::Retry(chain(&error)))?;
    let shown = snapshot::shown(&keeper).await;
    let first = First {
        facts,
        snapshot: shown.map_err(|error| Ended::Retry(chain(&error)))?,
    };
    let view = first.facts.view();
    let begun = first.clone();
    let believed = Believed::first(first).map_err(|refused| HaltReason::SourceRefused {
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
    frames.begin(attempt, &begun, &believed.schema)?;
    let mut plan = view.copy_plan(&believed.schema);
    let filtered = catalog::read_filters(&keeper, view.publication.oid, &mut plan).await;
    filtered.map_err(|error| Ended::Retry(chain(&error)))?;
    let job = copy::Job {
        endpoint: sessions.endpoint.at(stream.host()),
        application_name: application_name(sessions),
        archive: sessions.archive.clone(),
        state: sessions.state.clone(),
        snapshot: shared_snapshot,
        attempt,
        plan,
        progress: first_copy(&sessions.state),
        pace: copy::Pace::Fast,
    };
    let copying = AbortOnDropHandle::new(sessions.runtime.spawn(copy::run(job)));
    let copied = stay_alive(stream, snapshot, copying).await?;
    let parts = copied_parts(copied)?;
    failpoint::reach(failpoint::GATEWAY_COPIED);
    let client = client(sessions, stream).await?;
    check_facts(sessions, &view, &keeper, &client).await?;
    drop(keeper);
    let done = frames.done(attempt, parts)?;
    let position = stay_alive(stream, snapshot, frames.archived(done)).await??;
    failpoint::reach(failpoint::GATEWAY_DONE_DURABLE);
    let assembler = Assembler::new(Arc::new(believed), position);
    Ok(Started {
        assembler,
        start: snapshot,
        client,
    })
}

/// The first copy is the gateway's phase.
fn first_copy(state: &State) -> Progress {
    let state = state.clone();
    Progress::new(move |progress| state.set_phase(Phase::Copying(progress)))
}

/// Drops the slot of an earlier attempt and creates it anew, on the session that holds the lock.
async fn create_slot(
    sessions: &Sessions,
    stream: &mut WalStream,
    tail: &Tail,
) -> Result<CreatedSlot, Ended> {
    let name = &sessions.record.slot;
    if let Some(slot) = slot::inspect_on(stream, name).await.map_err(broken)? {
        // A slot is only ever made above a fence. With no object below ours the log is gone, not young, and the WAL
        // that this slot keeps may be what a restored archive needs.
        if tail.segment == SegmentNo(1) {
            return Err(Ended::Halt(HaltReason::ArchiveBehindSlot {
                confirmed: slot.confirmed_flush.unwrap_or_default(),
                archived: tail.through_lsn,
            }));
        }
        let literal = name.replace('\'', "''");
        let drop = format!("SELECT pg_catalog.pg_drop_replication_slot('{literal}')");
        stream.query(&drop).await.map_err(broken)?;
    }
    let failover = sessions.record.posture != Posture::Fencing.word();
    for bound in SLOT_WAITS.iter().chain(std::iter::repeat(&SLOT_WAITS[1])) {
        stream
            .query(&format!("SET lock_timeout = '{bound}'"))
            .await
            .map_err(broken)?;
        match stream.create_slot(name, false, failover).await {
            Ok(slot) => return Ok(slot),
            Err(WalError::Server(error)) if error.code == sqlstate::LOCK_TIMEOUT => {
                let client = client(sessions, stream).await?;
                let blockers = facts::blockers(&client).await;
                let waiting = Some(blockers.map_err(|error| Ended::Retry(chain(&error)))?);
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

/// A connection that imports the exported snapshot and shares it with the workers: it, not the slot's session,
/// keeps the snapshot from now on.
async fn keep_snapshot(
    sessions: &Sessions,
    stream: &WalStream,
    slot: &CreatedSlot,
) -> Result<(Client, String), Ended> {
    let keeper = client(sessions, stream).await?;
    let waits = |transactions: &str| {
        sessions.state.set_phase(Phase::Copying(CopyProgress {
            waiting: Some(snapshot::waits(transactions)),
            ..CopyProgress::default()
        }));
    };
    let shared = snapshot::keep(&keeper, &slot.snapshot_name, waits)
        .await
        .map_err(|error| Ended::Retry(chain(&error)))?;
    Ok((keeper, shared))
}

/// Waits for `work`. The stream is not read meanwhile, so Postgres keeps the WAL; nothing beyond the snapshot is
/// acknowledged.
async fn stay_alive<T>(
    stream: &mut WalStream,
    snapshot: Lsn,
    work: impl Future<Output = T>,
) -> Result<T, Ended> {
    let mut timer = tokio::time::interval(ALIVE_INTERVAL);
    tokio::pin!(work);
    loop {
        tokio::select! {
            result = &mut work => return Ok(result),
            _ = timer.tick() => {
                stream.status(snapshot, snapshot, snapshot, false).await.map_err(broken)?;
            }
        }
    }
}

/// The parts of a copy, or why there are none.
fn copied_parts(
    copied: Result<Result<Vec<BulkPart>, copy::CopyError>, tokio::task::JoinError>,
) -> Result<Vec<BulkPart>, Ended> {
    match copied {
        Ok(Ok(parts)) => Ok(parts),
        Ok(Err(copy::CopyError::Row(reason))) => Err(Ended::Halt(reason)),
        Ok(Err(error)) if error.is_refusal() => Err(Ended::Halt(HaltReason::SourceRefused {
            detail: format!("first copy: {}: {}", chain(&error), copy::RIGHTS),
        })),
        Ok(Err(error)) => Err(Ended::Retry(format!("first copy: {}", chain(&error)))),
        Err(error) => Err(Ended::Retry(format!("first copy: {error}"))),
    }
}

/// Facts that no lock of the copy holds still (publication, types, leaf sets) must be at its end what they were
/// under its snapshot; otherwise rows may be wrong or missing in silence.
async fn check_facts(
    sessions: &Sessions,
    under_snapshot: &catalog::CatalogView,
    keeper: &Client,
    client: &Client,
) -> Result<(), Ended> {
    let failed = |error: tokio_postgres::Error| Ended::Retry(chain(&error));
    let now = catalog::read(client, &sessions.record.publication).await;
    let now = now.map_err(|error| Ended::Retry(chain(&error)))?;
    let published = async |client: &Client| {
        let row = client.query_one(PUBLICATION_FACTS, &[]).await?;
        row.try_get::<_, String>(0)
    };
    let publications_differ =
        published(keeper).await.map_err(failed)? != published(client).await.map_err(failed)?;
    let changed = match publications_differ {
        true => Some("a publication".to_owned()),
        false => under_snapshot.copy_facts_differ(&now),
    };
    match changed {
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
    fn begin(&mut self, attempt: Attempt, first: &First, schema: &Schema) -> Result<(), Ended> {
        let facts = serde_json::to_value(first);
        let facts = facts.map_err(|error| Ended::Retry(format!("copy frame: {error}")))?;
        let begin = CopyBegin {
            attempt,
            snapshot: self.snapshot,
            scope: CopyScope::Genesis(schema.clone()),
            facts,
        };
        self.append(FrameKind::CopyBegin, &begin, false).map(drop)
    }

    fn done(&mut self, attempt: Attempt, parts: Vec<BulkPart>) -> Result<Mark, Ended> {
        let done = CopyDone {
            attempt,
            snapshot: self.snapshot,
            parts,
        };
        self.append(FrameKind::CopyDone, &done, true)
    }

    /// Waits until the archive holds Done: a copy counts as done only then.
    async fn archived(&self, done: Mark) -> Result<Position, Ended> {
        let mut durable = self.live.durable();
        let reached = durable
            .wait_for(|durable| durable.mark.offset >= done.offset)
            .await;
        reached.map_err(|_closed| Ended::Retry("shipping ended".to_owned()))?;
        Ok(done.position)
    }

    fn append<T: serde::Serialize>(
        &mut self,
        kind: FrameKind,
        body: &T,
        commits: bool,
    ) -> Result<Mark, Ended> {
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
