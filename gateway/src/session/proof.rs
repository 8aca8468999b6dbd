//! The last archived transaction comes again: is it the same? Protocol rule 9.

use std::time::Duration;

use rindle_archive::LastCommit;
use rindle_proto::ids::Lsn;
use tokio_postgres::Client;

use crate::assemble::{Assembled, Assembler};
use crate::ddl::announce::{self, AnnounceError};
use crate::ddl::introduce;
use crate::halt::HaltReason;
use crate::pg::pgoutput;
use crate::pg::walsender::{WalError, WalMessage, WalStream};

/// The server is told this often that we are there, and asked how far it is.
const ALIVE_INTERVAL: Duration = Duration::from_secs(2);

/// What ended a proof without an answer, or with the answer no.
#[derive(Debug)]
pub(super) enum ProofError {
    /// The session broke.
    Wal(WalError),
    /// What a migration did could not be read.
    Announce(AnnounceError),
    /// The transaction differs.
    Differs(HaltReason),
}

/// Reads the first transaction of the stream and compares it with the archive's last. The assembler stands before
/// that transaction, so that equal content gives an equal chain. Nothing is served or acknowledged meanwhile.
///
/// Content that may honestly differ is not compared: position, id and time say enough.
pub(super) async fn prove(
    stream: &mut WalStream,
    again: &mut Assembler,
    last: &LastCommit,
    client: &Client,
) -> Result<(), ProofError> {
    let mut alive = tokio::time::interval(ALIVE_INTERVAL);
    loop {
        while let Some(message) = stream.next().map_err(ProofError::Wal)? {
            let payload = match message {
                WalMessage::Data { payload, .. } => payload,
                WalMessage::Keepalive { wal_end, .. }
                    if wal_end >= last.end_lsn.0 && !again.in_txn() =>
                {
                    let at = last.final_lsn;
                    return Err(differs(format!(
                        "the transaction at {at} in the archive is not in the source"
                    )));
                }
                WalMessage::Keepalive { .. } => continue,
            };
            let message = pgoutput::decode(payload).map_err(|error| {
                ProofError::Differs(HaltReason::StreamDamaged {
                    detail: error.to_string(),
                })
            })?;
            let mut assembled = again.take(message).map_err(ProofError::Differs)?;
            if let Assembled::Announced(asked) = &assembled {
                let row = announce::read(client, *asked, again.believed()).await;
                again
                    .announced(asked.id, row.map_err(ProofError::Announce)?)
                    .map_err(ProofError::Differs)?;
            }
            if let Assembled::Strange(unknown) = &assembled {
                // Seldom, and large.
                let found = Box::pin(introduce::read(client, unknown, again.believed())).await;
                assembled = again
                    .introduced(found.map_err(ProofError::Announce)?)
                    .map_err(ProofError::Differs)?;
            }
            // Its frames are only counted and chained; a transaction larger than memory passes.
            drop(again.writer().take());
            if let Assembled::Committed {
                commit: None,
                end_lsn,
            } = assembled
                && end_lsn == last.end_lsn
                && again.is_provisional()
            {
                // What it announced, or whom it had rows of, is gone by now: it says nothing this time.
                return Ok(());
            }
            if let Assembled::Committed {
                commit: Some(commit),
                ..
            } = assembled
            {
                let same = commit.final_lsn == last.final_lsn
                    && commit.end_lsn == last.end_lsn
                    && commit.xid == last.xid
                    && commit.commit_time == last.commit_time
                    && (commit.position == last.position || again.is_provisional());
                let (at, found) = (last.final_lsn, commit.final_lsn);
                return match same {
                    true => Ok(()),
                    false => Err(differs(format!(
                        "the transaction at {at} in the archive came back as another one at {found}"
                    ))),
                };
            }
        }
        tokio::select! {
            filled = stream.fill() => filled.map_err(ProofError::Wal)?,
            // We are there, and acknowledge nothing.
            _ = alive.tick() => stream.status(Lsn(0), Lsn(0), Lsn(0), true).await.map_err(ProofError::Wal)?,
        }
    }
}

fn differs(detail: String) -> ProofError {
    ProofError::Differs(HaltReason::SourceHistoryDiffers { detail })
}
