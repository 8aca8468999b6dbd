//! From nothing to a running pump: connect, lock, fence, check, copy if needed, start. Protocol rules 5 to 13.

use std::sync::Arc;
use std::time::Duration;

use rindle_archive::failpoint;
use rindle_archive::{History, Kind, Tail, TakeOverError, Taken};
use rindle_proto::ids::{Generation, Lsn};
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;

use super::{Ended, Sessions, genesis, start};
use crate::halt::HaltReason;
use crate::live::Live;
use crate::pg::walsender::{SystemIdentity, WalError, WalStream};
use crate::pump::{self, drive::Started};
use crate::ship::{Ship, chain};
use crate::state::Phase;

/// How long the end of a session waits for ship.
const SHIP_STOP: Duration = Duration::from_secs(5);

/// How often the advisory lock is tried.
const LOCK_POLL: Duration = Duration::from_millis(500);

/// Runs one session to its end.
pub(super) async fn run(sessions: &Sessions, stop: &CancellationToken) -> Ended {
    let result = tokio::select! {
        biased;
        () = stop.cancelled() => return Ended::Stopped,
        opened = open(sessions) => opened,
    };
    let (stream, identity, taken) = match result {
        Ok(opened) => opened,
        Err(ended) => return ended,
    };
    match serve(sessions, stream, &identity, taken, stop).await {
        Ok(()) => Ended::Stopped,
        Err(ended) => ended,
    }
}

/// Everything up to the fence: no byte of the stream was read yet.
async fn open(sessions: &Sessions) -> Result<(WalStream, SystemIdentity, Taken), Ended> {
    let connecting = WalStream::connect(&sessions.endpoint, &application_name(sessions)).await;
    let mut stream = connecting.map_err(|error| Ended::Retry(chain(&error)))?;
    let identity = stream.identify_system().await.map_err(broken)?;
    if identity.systemid != sessions.record.system_identifier {
        return Err(Ended::Halt(HaltReason::OtherCluster {
            generation: sessions.record.generation,
            minted: sessions.record.system_identifier.clone(),
            found: identity.systemid,
        }));
    }
    lock(sessions, &mut stream).await?;
    // Read again: the wait for the lock may have been long.
    let identity = stream.identify_system().await.map_err(broken)?;
    let history = stream
        .timeline_history(identity.timeline)
        .await
        .map_err(broken)?;
    let history = History {
        timeline: identity.timeline,
        switches: history,
    };
    let taken = sessions
        .archive
        .take_over(history)
        .await
        .map_err(not_taken)?;
    tracing::info!(epoch = %taken.epoch, timeline = %identity.timeline, "took the archive over");
    Ok((stream, identity, taken))
}

/// Takes the generation's advisory lock on this very session: it outlives START_REPLICATION and ends with it.
async fn lock(sessions: &Sessions, stream: &mut WalStream) -> Result<(), Ended> {
    let key = lock_key(sessions.record.generation);
    let sql = format!("SELECT pg_catalog.pg_try_advisory_lock({key})");
    loop {
        let rows = stream.query(&sql).await.map_err(broken)?;
        if rows
            .first()
            .and_then(|row| row.first())
            .and_then(|cell| cell.as_deref())
            == Some("t")
        {
            return Ok(());
        }
        let why =
            "another gateway of this generation is at work; this one takes over when it lets go";
        sessions.state.set_phase(Phase::Standby(why.to_owned()));
        tokio::time::sleep(LOCK_POLL).await;
    }
}

/// The session after the fence. Ship runs beside the pump, and both end with it.
async fn serve(
    sessions: &Sessions,
    mut stream: WalStream,
    identity: &SystemIdentity,
    taken: Taken,
    stop: &CancellationToken,
) -> Result<(), Ended> {
    let Taken {
        writer,
        epoch,
        tail,
    } = taken;
    failpoint::reach(failpoint::GATEWAY_FENCED);
    let plan = match &tail.last_commit {
        Some(last) => Some(start::plan(sessions, &mut stream, identity, &tail, last).await?),
        None => None,
    };
    let through = starting_through(&tail, plan.as_ref().map(|plan| plan.confirmed));
    let live = Live::create(
        sessions.record.generation,
        epoch,
        identity.timeline,
        tail.position,
        through,
        &sessions.log_dir,
    );
    let live = Arc::new(live.map_err(|error| Ended::Retry(format!("local log: {error}")))?);
    let ship_stop = CancellationToken::new();
    let ship = Ship::new(
        Arc::clone(&live),
        writer,
        sessions.limits,
        sessions.state.clone(),
        through,
    );
    let mut ship = sessions.runtime.spawn(ship.run(ship_stop.clone()));
    let work = async {
        let starting = begin(sessions, &mut stream, &live, &tail, plan);
        let started = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            started = starting => started?,
        };
        sessions.state.set_live(Some(Arc::clone(&live)));
        sessions.state.set_phase(Phase::Streaming);
        pump::drive::run(stream, started, &live, sessions, stop).await
    };
    let ended = tokio::select! {
        ended = work => ended,
        shipped = &mut ship => return Err(ship_ended(shipped)),
    };
    ship_stop.cancel();
    match tokio::time::timeout(SHIP_STOP, ship).await {
        Ok(Ok(Err(fenced @ HaltReason::Fenced { .. }))) => Err(Ended::Halt(fenced)),
        Ok(_) | Err(_) => ended,
    }
}

/// Makes the stream run: after the last commit of the archive, or after a first copy.
async fn begin(
    sessions: &Sessions,
    stream: &mut WalStream,
    live: &Arc<Live>,
    tail: &Tail,
    plan: Option<start::Plan>,
) -> Result<Started, Ended> {
    match plan {
        Some(plan) => start::start(sessions, stream, live.epoch, tail, plan).await,
        None => genesis::run(sessions, stream, live).await,
    }
}

/// The session's `through_lsn` at its start: protocol rule 3.
fn starting_through(tail: &Tail, confirmed: Option<Lsn>) -> Lsn {
    let committed = tail.last_commit.map_or(Lsn(0), |last| last.end_lsn.0);
    committed.max(confirmed.unwrap_or(Lsn(0)))
}

fn ship_ended(shipped: Result<Result<(), HaltReason>, tokio::task::JoinError>) -> Ended {
    match shipped {
        Ok(Err(reason)) => Ended::Halt(reason),
        Ok(Ok(())) => Ended::Retry("shipping ended".to_owned()),
        Err(error) => Ended::Retry(format!("shipping failed: {error}")),
    }
}

fn not_taken(error: TakeOverError) -> Ended {
    match error {
        // This session never was at work: it waits for the one that is.
        TakeOverError::Fenced { .. } => Ended::Standby(error.to_string()),
        TakeOverError::TimelineBehind { server, log } => Ended::Halt(HaltReason::TimelineBehind {
            found: server,
            archived: log,
        }),
        error if error.kind() == Kind::Retry => Ended::Retry(format!("archive: {}", chain(&error))),
        error => Ended::Halt(HaltReason::ArchiveDamaged {
            detail: chain(&error),
        }),
    }
}

/// A broken session is tried again.
#[expect(clippy::needless_pass_by_value, reason = "used with map_err")]
pub(super) fn broken(error: WalError) -> Ended {
    Ended::Retry(chain(&error))
}

/// Key of the generation's advisory lock: the last eight bytes of its id.
pub(crate) fn lock_key(generation: Generation) -> i64 {
    let bytes = generation.to_bytes();
    let mut low = [0; 8];
    low.copy_from_slice(&bytes[8..]);
    i64::from_be_bytes(low)
}

/// An ordinary connection to the source's primary.
pub(super) async fn client(sessions: &Sessions) -> Result<Client, Ended> {
    let name = application_name(sessions);
    crate::pg::conn::connect(&sessions.endpoint, &name)
        .await
        .map_err(|error| Ended::Retry(chain(&error)))
}

/// How sessions are seen in `pg_stat_activity`.
pub(super) fn application_name(sessions: &Sessions) -> String {
    format!("rindle-gateway {}", sessions.record.source)
}
