//! Starting the stream of a generation whose first copy is complete: protocol rules 9 to 11.

use rindle_archive::{Kind, LastCommit, ReadFrom, ReadStep, Tail};
use rindle_proto::body::{CopyBegin, CopyScope};
use rindle_proto::frame::{FrameKind, FrameReader};
use rindle_proto::ids::{Epoch, Lsn, Timeline};
use rindle_proto::schema::Schema;
use tokio_postgres::Client;

use super::checks::{Server, StartAt, start_at};
use super::open::broken;
use super::proof::{ProofError, prove};
use super::{Ended, Sessions};
use crate::assemble::{Assembler, LeafMap};
use crate::halt::HaltReason;
use crate::pg::catalog;
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
    schema: Schema,
    leaves: LeafMap,
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
    let begun = archived_copy(sessions).await?;
    let slot = slot::inspect_on(stream, &sessions.record.slot).await;
    let confirmed = confirmed(sessions, slot.map_err(broken)?)?;
    let server = Server {
        timeline: identity.timeline,
        flushed: identity.xlogpos,
        switches,
        confirmed,
    };
    let start = start_at(tail, last, &server)?;
    let client = super::open::client(sessions, stream).await?;
    let leaves = check_catalog(sessions, &client, &begun).await?;
    let CopyScope::Genesis(schema) = begun.scope;
    Ok(Plan {
        confirmed,
        start,
        last: *last,
        schema,
        leaves,
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
        let mut again = Assembler::new(plan.schema.clone(), plan.leaves.clone(), plan.last.before);
        prove(stream, &mut again, &plan.last)
            .await
            .map_err(|error| match error {
                ProofError::Wal(error) => broken(error),
                ProofError::Differs(reason) => Ended::Halt(reason),
            })?;
        tracing::info!(at = %plan.last.final_lsn, "the source still holds the last archived transaction");
        return Ok(Started {
            assembler: again,
            start: plan.last.end_lsn.0,
            client: plan.client,
        });
    }
    let assembler = Assembler::new(plan.schema, plan.leaves, tail.position);
    Ok(Started {
        assembler,
        start: plan.start.lsn,
        client: plan.client,
    })
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

/// How the last complete copy in the archive began: schema and physical tables.
async fn archived_copy(sessions: &Sessions) -> Result<CopyBegin, Ended> {
    let mut reader = sessions.archive.reader(ReadFrom::Start);
    let mut begun = None;
    loop {
        let step = reader
            .next()
            .await
            .map_err(|error| match error.kind() == Kind::Retry {
                true => Ended::Retry(format!("archive: {}", chain(&error))),
                false => Ended::Halt(HaltReason::ArchiveDamaged {
                    detail: chain(&error),
                }),
            })?;
        let bytes = match step {
            ReadStep::Frames { bytes, .. } => bytes,
            ReadStep::Discard { .. } | ReadStep::Tick { .. } => continue,
            ReadStep::End => {
                let detail = "the log holds a commit and no complete first copy".to_owned();
                return Err(Ended::Halt(HaltReason::ArchiveDamaged { detail }));
            }
        };
        let mut frames = FrameReader::new();
        frames.push(bytes);
        while let Some(frame) = frames.next_frame().map_err(|error| damaged(&error))? {
            match frame.kind {
                FrameKind::CopyBegin => {
                    let begin = CopyBegin::decode(&frame.payload);
                    begun = Some(begin.map_err(|error| damaged(&error))?);
                }
                FrameKind::CopyDone => {
                    return begun.ok_or_else(|| damaged(&"a copy is done that never began"));
                }
                FrameKind::Txn => {}
            }
        }
    }
}

/// The catalog must show what is believed: a change that no message announced is found here at the latest.
async fn check_catalog(
    sessions: &Sessions,
    client: &Client,
    begun: &CopyBegin,
) -> Result<LeafMap, Ended> {
    let publication = &sessions.record.publication;
    let view = catalog::read(client, publication)
        .await
        .map_err(|error| Ended::Retry(chain(&error)))?;
    let CopyScope::Genesis(schema) = &begun.scope;
    let difference = view.difference(schema);
    match difference.or_else(|| view.sources_differ(schema, &begun.sources)) {
        Some((table, detail)) => Err(Ended::Halt(HaltReason::SchemaChanged { table, detail })),
        None => Ok(LeafMap::new(view.leaf_pairs())),
    }
}

fn damaged(error: &dyn std::fmt::Display) -> Ended {
    Ended::Halt(HaltReason::ArchiveDamaged {
        detail: error.to_string(),
    })
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
