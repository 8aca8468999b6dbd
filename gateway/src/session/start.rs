//! Starting the stream of a generation whose first copy is complete: protocol rules 9 to 11.

use std::sync::Arc;

use rindle_archive::{LastCommit, Tail};
use rindle_proto::ids::{Epoch, Lsn, Timeline};
use tokio_postgres::Client;

use super::belief;
use super::checks::{Server, StartAt, start_at};
use super::open::broken;
use super::proof::{ProofError, prove};
use super::{Ended, Sessions};
use crate::assemble::Assembler;
use crate::ddl::Believed;
use crate::ddl::announce::AnnounceError;
use crate::halt::HaltReason;
use crate::lifecycle::admission::posture::Posture;
use crate::pg::catalog::{self, CatalogError};
use crate::pg::slot::{self, SlotState};
use crate::pg::walsender::{SystemIdentity, WalError, WalStream, sqlstate};
use crate::pump::drive::Started;
use crate::ship::chain;
use crate::state::Phase;

/// What was decided before START.
#[derive(Debug)]
pub(super) struct Plan {
    /// The slot's confirmed position.
    pub confirmed: Lsn,
    start: StartAt,
    last: LastCommit,
    /// At the archive's last commit; before it, when that must be proved.
    believed: Arc<Believed>,
    /// An ordinary connection to the same server.
    client: Client,
}

/// Checks the source against the archive's tail, on the session that will start.
pub(super) async fn plan(
    sessions: &Sessions,
    stream: &mut WalStream,
    (identity, switches): (SystemIdentity, Vec<(Timeline, Lsn)>),
    tail: &Tail,
    last: &LastCommit,
) -> Result<Plan, Ended> {
    let slot = slot::inspect_on(stream, &sessions.record.slot).await;
    let slot = slot.map_err(broken)?;
    fits(sessions, slot.as_ref(), &identity.dbname)?;
    let confirmed = confirmed(sessions, slot)?;
    let server = Server {
        timeline: identity.timeline,
        flushed: identity.xlogpos,
        switches,
        confirmed,
    };
    let start = start_at(tail, last, &server)?;
    let client = super::open::client(sessions, stream).await?;
    check_publication(sessions, &client).await?;
    let from = if start.proof {
        last.before
    } else {
        tail.position
    };
    let believed = belief::at(sessions, from).await?;
    Ok(Plan {
        confirmed,
        start,
        last: *last,
        believed,
        client,
    })
}

/// Starts, and makes sure that this gateway still is the newest and the slot still is what the plan saw.
pub(super) async fn start(
    sessions: &Sessions,
    stream: &mut WalStream,
    epoch: Epoch,
    tail: &Tail,
    plan: Plan,
) -> Result<Started, Ended> {
    let slot = &sessions.record.slot;
    let started = stream
        .start(slot, plan.start.lsn, &sessions.record.publication)
        .await;
    started.map_err(|error| not_started(&error, slot))?;
    let newer = sessions.archive.newer_epoch_exists(epoch).await;
    let newer = newer.map_err(|error| Ended::Retry(format!("archive: {}", chain(&error))))?;
    if newer {
        return Err(Ended::Halt(HaltReason::Fenced {
            mine: epoch,
            newer: Epoch(epoch.0 + 1),
        }));
    }
    let slot = slot::inspect(&plan.client, slot).await;
    let slot = slot.map_err(|error| Ended::Retry(chain(&error)))?;
    let confirmed = confirmed(sessions, slot)?;
    if confirmed != plan.confirmed {
        let (now, then) = (confirmed, plan.confirmed);
        return Err(Ended::Retry(format!(
            "the slot moved from {then} to {now} while this gateway started"
        )));
    }
    if confirmed > tail.through_lsn {
        return Err(Ended::Halt(HaltReason::ArchiveBehindSlot {
            confirmed,
            archived: tail.through_lsn,
        }));
    }
    if plan.start.proof {
        let at = plan.last.final_lsn;
        let what = format!("waiting for the last archived transaction, at {at}, to come again");
        sessions.state.set_phase(Phase::Connecting(what));
        let mut again = Assembler::new(plan.believed, plan.last.before);
        prove(stream, &mut again, &plan.last, &plan.client)
            .await
            .map_err(|error| match error {
                ProofError::Wal(error) => broken(error),
                ProofError::Announce(error) => unread(&error),
                ProofError::Differs(reason) => Ended::Halt(reason),
            })?;
        tracing::info!(at = %plan.last.final_lsn, "the source still holds the last archived transaction");
        // What is in the archive counts.
        if again.writer().position() != plan.last.position {
            let believed = belief::at(sessions, plan.last.position).await?;
            again = again.corrected(believed, plan.last.position);
        }
        return Ok(Started {
            assembler: again,
            start: plan.last.end_lsn.0,
            client: plan.client,
        });
    }
    let assembler = Assembler::new(plan.believed, tail.position);
    Ok(Started {
        assembler,
        start: plan.start.lsn,
        client: plan.client,
    })
}

/// The slot must be one of this database, and one that a failover keeps where the posture says so.
fn fits(sessions: &Sessions, slot: Option<&SlotState>, database: &str) -> Result<(), Ended> {
    let Some(slot) = slot else { return Ok(()) };
    let name = &slot.name;
    let refused = |detail: String| Err(Ended::Halt(HaltReason::SourceRefused { detail }));
    if let Some(own) = slot.database.as_deref().filter(|own| *own != database) {
        return refused(format!(
            "slot {name:?} is of database {own:?}, the gateway is connected to {database:?}: set postgres.database to {own:?}"
        ));
    }
    let kept = sessions.record.posture != Posture::Fencing.word();
    if kept && slot.failover == Some(false) {
        return refused(format!(
            "slot {name:?} would not survive a failover, and the generation's posture is {}: run ALTER_REPLICATION_SLOT \
             {name} (FAILOVER true) on a replication connection",
            sessions.record.posture
        ));
    }
    Ok(())
}

/// The slot's confirmed position; halts when there is no usable slot.
fn confirmed(sessions: &Sessions, slot: Option<SlotState>) -> Result<Lsn, Ended> {
    let name = sessions.record.slot.clone();
    match slot {
        Some(SlotState {
            lost: Some(why), ..
        }) => Err(Ended::Halt(HaltReason::SlotLost { slot: name, why })),
        Some(SlotState {
            confirmed_flush: Some(confirmed),
            ..
        }) => Ok(confirmed),
        Some(_) | None => Err(Ended::Halt(HaltReason::SlotMissing { slot: name })),
    }
}

/// The publication must be there: without it nothing is sent, and nothing says so.
async fn check_publication(sessions: &Sessions, client: &Client) -> Result<(), Ended> {
    let found = catalog::read_facts(client, &sessions.record.publication).await;
    found.map(drop).map_err(|error| match error {
        CatalogError::NoPublication { .. } => Ended::Halt(HaltReason::SourceRefused {
            detail: format!("{error}, with the tables and options that it had"),
        }),
        error => Ended::Retry(chain(&error)),
    })
}

/// What a migration did could not be read.
pub(crate) fn unread(error: &AnnounceError) -> Ended {
    match error.is_transient() {
        true => Ended::Retry(chain(error)),
        false => Ended::Halt(HaltReason::SourceRefused {
            detail: chain(error),
        }),
    }
}

fn not_started(error: &WalError, slot: &str) -> Ended {
    let code = match error {
        WalError::Server(error) => error.code.as_str(),
        _ => "",
    };
    match code {
        sqlstate::SLOT_IN_USE => Ended::Standby(format!("slot {slot:?} is in use: {error}")),
        sqlstate::NOT_FOUND => Ended::Halt(HaltReason::SlotMissing {
            slot: slot.to_owned(),
        }),
        sqlstate::NOT_IN_STATE => Ended::Halt(HaltReason::SlotLost {
            slot: slot.to_owned(),
            why: error.to_string(),
        }),
        _ => Ended::Retry(chain(error)),
    }
}
