//! One walsender session: one epoch, one takeover, one log (protocol rule 4).
//!
//! [`run`] opens sessions one after the other until told to stop. A session goes: connect, lock, take the archive
//! over (fence), check that the source still is the archive's source, copy if nothing was copied yet, START, prove
//! that nothing changed meanwhile, then pump until something ends it.

pub(crate) mod belief;
mod checks;
mod genesis;
pub(crate) mod open;
mod proof;
pub(crate) mod start;

use std::path::PathBuf;
use std::time::Duration;

use rindle_archive::{GenerationRecord, Log};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use crate::config::Limits;
use crate::halt::HaltReason;
use crate::pg::endpoint::Endpoint;
use crate::state::{Phase, State};

/// Conditions of the source are looked at again this often while halted on one.
const RECHECK_INTERVAL: Duration = Duration::from_secs(30);

/// Pauses between sessions that ended by themselves.
const RECONNECT_MIN: Duration = Duration::from_millis(200);
const RECONNECT_MAX: Duration = Duration::from_secs(10);

/// A session that streamed this long was a good one: the next pause is short again.
const GOOD_SESSION: Duration = Duration::from_secs(30);

/// What sessions need.
#[derive(Clone, Debug)]
pub struct Sessions {
    /// Where Postgres is.
    pub endpoint: Endpoint,
    /// The generation.
    pub record: GenerationRecord,
    /// Its archive log.
    pub archive: Log,
    /// Where the local log lies.
    pub log_dir: PathBuf,
    /// Limits of the log.
    pub limits: Limits,
    /// Where the gateway's state is told.
    pub state: State,
    /// The runtime of everything but the pump, which has a thread of its own.
    pub runtime: Handle,
}

/// Why a session ended.
#[derive(Debug)]
pub enum Ended {
    /// Told to stop.
    Stopped,
    /// Something passing: connect again. With the words for `/readyz`.
    Retry(String),
    /// Another gateway is at work: wait for it. With the words for `/readyz`.
    Standby(String),
    /// An operator must act.
    Halt(HaltReason),
}

impl From<HaltReason> for Ended {
    fn from(reason: HaltReason) -> Self {
        Ended::Halt(reason)
    }
}

/// Runs sessions until told to stop, or until another gateway took over.
///
/// # Errors
/// [`HaltReason::Fenced`] only: every other halt keeps the process serving what it has.
pub async fn run(sessions: Sessions, stop: CancellationToken) -> Result<(), HaltReason> {
    let state = sessions.state.clone();
    let mut pause = RECONNECT_MIN;
    while !stop.is_cancelled() {
        let began = tokio::time::Instant::now();
        let ended = open::run(&sessions, &stop).await;
        if began.elapsed() > GOOD_SESSION {
            pause = RECONNECT_MIN;
        }
        let wait = match ended {
            Ended::Stopped => break,
            Ended::Retry(why) => {
                // Followers stay with what the last session had, until the next one replaces it.
                tracing::warn!(why, "the session ended");
                state.set_phase(Phase::Connecting(why));
                pause = (pause * 2).min(RECONNECT_MAX);
                pause
            }
            Ended::Standby(why) => {
                state.set_live(None);
                state.set_phase(Phase::Standby(why));
                Duration::from_secs(1)
            }
            Ended::Halt(reason @ HaltReason::Fenced { .. }) => {
                state.set_live(None);
                state.set_phase(Phase::Halted(reason.clone()));
                return Err(reason);
            }
            Ended::Halt(reason) => {
                let clears = reason.clears_by_itself();
                state.set_phase(Phase::Halted(reason));
                match clears {
                    true => RECHECK_INTERVAL,
                    // I10: go on serving what there is; nothing else happens until an operator restarts us.
                    false => Duration::MAX,
                }
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(wait) => {}
        }
    }
    Ok(())
}
