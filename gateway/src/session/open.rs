//! From nothing to a running pump: connect, lock, fence, check, copy if needed, start. Protocol rules 5 to 13.

use std::sync::Arc;
use std::time::Duration;

use rindle_archive::failpoint;
use rindle_archive::{History, Kind, Tail, TakeOverError, Taken};
use rindle_proto::ids::{Generation, Lsn, Timeline};
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;

use super::{Ended, Sessions, genesis, start};
use crate::halt::HaltReason;
use crate::live::Live;
use crate::pg::slot;
use crate::pg::walsender::{WalError, WalStream};
use crate::pump::{self, drive::Started};
use crate::ship::{Ship, chain, told};
use crate::state::Phase;

/// How long the end of a session waits for ship.
const SHIP_STOP: Duration = Duration::from_secs(5);

/// How often the advisory lock is tried.
const LOCK_POLL: Duration = Duration::from_millis(500);

/// A session that has fenced and knows where to start.
struct Opened {
    stream: WalStream,
    timeline: Timeline,
    taken: Taken,
    /// None when nothing was copied yet.
    plan: Option<start::Plan>,
}

/// Every so many tries of the lock its holder is looked at, and ended when it did nothing for this long.
const FROZEN_CHECK: u64 = 10;
const FROZEN_AFTER: &str = "60 s";

/// Runs one session to its end.
pub(super) async fn run(sessions: &Sessions, stop: &CancellationToken) -> Ended {
    let opened = tokio::select! {
        biased;
        () = stop.cancelled() => return Ended::Stopped,
        opened = open(sessions) => opened,
    };
    let served = match opened {
        Ok(opened) => serve(sessions, opened, stop).await,
        Err(ended) => return ended,
    };
    match served {
        Ok(()) => Ended::Stopped,
        Err(ended) => ended,
    }
}

/// Everything up to START, on the first host that is the primary of the cluster: no byte of the stream was read yet.
/// Another cluster's server, or an old primary that came back, keeps nobody from the hosts after it.
async fn open(sessions: &Sessions) -> Result<Opened, Ended> {
    let mut endpoint = sessions.endpoint.clone();
    let mut passed_over = None;
    loop {
        let connecting = WalStream::connect(&endpoint, &application_name(sessions)).await;
        let stream = match connecting {
            Ok(stream) => stream,
            // The right one may be among those that do not answer now.
            Err(error) => {
                let passed = passed_over.map_or_else(String::new, |reason| format!("; {reason}"));
                return Err(Ended::Retry(format!("{}{passed}", chain(&error))));
            }
        };
        let tried = endpoint.hosts.iter().position(|host| host == stream.host());
        match open_on(sessions, stream).await {
            Err(Ended::Halt(reason)) if is_wrong_server(&reason) => {
                endpoint.hosts.drain(..=tried.unwrap_or(0));
                let first = passed_over.unwrap_or(reason);
                if endpoint.hosts.is_empty() {
                    return Err(Ended::Halt(first));
                }
                passed_over = Some(first);
            }
            done => return done,
        }
    }
}

fn is_wrong_server(reason: &HaltReason) -> bool {
    matches!(
        reason,
        HaltReason::OtherCluster { .. } | HaltReason::TimelineBehind { .. }
    )
}

async fn open_on(sessions: &Sessions, mut stream: WalStream) -> Result<Opened, Ended> {
    let identity = stream.identify_system().await.map_err(broken)?;
    if identity.systemid != sessions.record.system_identifier {
        return Err(Ended::Halt(HaltReason::OtherCluster {
            generation: sessions.record.generation,
            minted: sessions.record.system_identifier.clone(),
            found: identity.systemid,
        }));
    }
    lock(sessions, &mut stream).await?;
    wait_for_slot(sessions, &mut stream).await?;
    let phase = |what: &str| sessions.state.set_phase(Phase::Connecting(what.to_owned()));
    phase("taking the archive over");
    // Read again: the wait for the lock may have been long.
    let identity = stream.identify_system().await.map_err(broken)?;
    let switches = stream.timeline_history(identity.timeline).await;
    let history = History {
        timeline: identity.timeline,
        switches: switches.map_err(broken)?,
    };
    let taking = told(&sessions.state, sessions.archive.take_over(history.clone()));
    let taken = taking.await.map_err(not_taken)?;
    sessions.state.set_archive_problem(None);
    tracing::info!(epoch = %taken.epoch, timeline = %identity.timeline, "took the archive over");
    failpoint::reach(failpoint::GATEWAY_FENCED);
    phase("comparing the source with the archive");
    let plan = match &taken.tail.last_commit {
        Some(last) => {
            let server = (identity, history.switches);
            Some(start::plan(sessions, &mut stream, server, &taken.tail, last).await?)
        }
        None => None,
    };
    let timeline = history.timeline;
    Ok(Opened {
        stream,
        timeline,
        taken,
        plan,
    })
}

/// A slot in use is waited for before anything is written: another program may hold it for long.
async fn wait_for_slot(sessions: &Sessions, stream: &mut WalStream) -> Result<(), Ended> {
    let slot = slot::inspect_on(stream, &sessions.record.slot).await;
    match slot.map_err(broken)?.and_then(|slot| slot.active_pid) {
        None => Ok(()),
        Some(pid) => Err(Ended::Standby(format!(
            "slot {:?} is in use by process {pid} of the source; this gateway goes on when it is free",
            sessions.record.slot
        ))),
    }
}

/// Takes the generation's advisory lock on this very session: it outlives START_REPLICATION and ends with it.
async fn lock(sessions: &Sessions, stream: &mut WalStream) -> Result<(), Ended> {
    let key = lock_key(sessions.record.generation);
    let sql = format!("SELECT pg_catalog.pg_try_advisory_lock({key})");
    for tries in 0u64.. {
        let rows = stream.query(&sql).await.map_err(broken)?;
        let taken = rows.first().and_then(|row| row.first());
        if taken.and_then(|cell| cell.as_deref()) == Some("t") {
            return Ok(());
        }
        let why =
            "another gateway of this generation is at work; this one takes over when it lets go";
        sessions.state.set_phase(Phase::Standby(why.to_owned()));
        if tries % FROZEN_CHECK == FROZEN_CHECK - 1 {
            end_frozen_holder(stream, key).await?;
        }
        tokio::time::sleep(LOCK_POLL).await;
    }
    Err(Ended::Retry("the lock was given up".to_owned()))
}

/// A holder that neither streams nor asks for anything is frozen or cut off; the server ends its session, so that a
/// standby need not wait for ever. Nothing rests on this: such a holder is fenced like any other.
async fn end_frozen_holder(stream: &mut WalStream, key: i64) -> Result<(), Ended> {
    let (high, low) = (key >> 32 & 0xffff_ffff, key & 0xffff_ffff);
    let sql = format!(
        "SELECT pg_catalog.pg_terminate_backend(a.pid) FROM pg_catalog.pg_locks l \
         JOIN pg_catalog.pg_stat_activity a USING (pid) \
         WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 AND l.classid = {high}::oid \
         AND l.objid = {low}::oid AND a.state = 'idle' \
         AND a.state_change < pg_catalog.now() - interval '{FROZEN_AFTER}' AND NOT EXISTS \
         (SELECT FROM pg_catalog.pg_replication_slots s WHERE s.active_pid = a.pid)"
    );
    let rows = stream.query(&sql).await.map_err(broken)?;
    if !rows.is_empty() {
        tracing::warn!("ended the session of a gateway that held the lock and did nothing");
    }
    Ok(())
}

/// The session after the fence. Ship runs beside the pump, and both end with it.
async fn serve(sessions: &Sessions, opened: Opened, stop: &CancellationToken) -> Result<(), Ended> {
    let Opened {
        mut stream,
        timeline,
        taken,
        plan,
    } = opened;
    let Taken {
        writer,
        epoch,
        tail,
    } = taken;
    let through = starting_through(&tail, plan.as_ref().map(|plan| plan.confirmed));
    let live = Live::create(
        sessions.record.generation,
        epoch,
        timeline,
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
        Ok(Ok(Err(fenced @ Ended::Halt(HaltReason::Fenced { .. })))) => Err(fenced),
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
        None => genesis::run(sessions, stream, live, tail).await,
    }
}

/// The session's `through_lsn` at its start: protocol rule 3.
fn starting_through(tail: &Tail, confirmed: Option<Lsn>) -> Lsn {
    let committed = tail.last_commit.map_or(Lsn(0), |last| last.end_lsn.0);
    committed.max(confirmed.unwrap_or(Lsn(0)))
}

fn ship_ended(shipped: Result<Result<(), Ended>, tokio::task::JoinError>) -> Ended {
    match shipped {
        Ok(Err(ended)) => ended,
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
        TakeOverError::SwitchUnknown(timeline) => Ended::Halt(HaltReason::SourceHistoryDiffers {
            detail: format!("timeline {timeline} of the archive is not in the server's history"),
        }),
        TakeOverError::Retired(generation) => {
            Ended::Halt(HaltReason::GenerationRetired { generation })
        }
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

/// An ordinary connection to the very server that `stream` is a session of. A name may lead elsewhere a moment
/// later, so the two are compared.
pub(super) async fn client(sessions: &Sessions, stream: &WalStream) -> Result<Client, Ended> {
    let name = application_name(sessions);
    let host = stream.host();
    let client = crate::pg::conn::connect_host(&sessions.endpoint, host, &name).await;
    let client = client.map_err(|error| Ended::Retry(chain(&error)))?;
    let seen = "SELECT EXISTS (SELECT FROM pg_catalog.pg_stat_activity WHERE pid = $1 AND application_name = $2)";
    let same = client
        .query_one(seen, &[&stream.backend_pid(), &name])
        .await;
    match same.and_then(|row| row.try_get(0)) {
        Ok(true) => Ok(client),
        Ok(false) => Err(Ended::Retry(format!(
            "{host} led to two servers; connecting again"
        ))),
        Err(error) => Err(Ended::Retry(chain(&error))),
    }
}

/// How sessions are seen in `pg_stat_activity`.
pub(super) fn application_name(sessions: &Sessions) -> String {
    format!("rindle-gateway {}", sessions.record.source)
}
