//! The last archived transaction comes again: is it the same? Protocol rule 9.

use rindle_archive::LastCommit;

use crate::assemble::{Assembled, Assembler};
use crate::halt::HaltReason;
use crate::pg::pgoutput;
use crate::pg::walsender::{WalError, WalMessage, WalStream};

/// What ended a proof without an answer, or with the answer no.
#[derive(Debug)]
pub(super) enum ProofError {
    /// The session broke.
    Wal(WalError),
    /// The transaction differs.
    Differs(HaltReason),
}

/// Reads the first transaction of the stream and compares it with the archive's last. The assembler stands before
/// that transaction, so that equal content gives an equal chain. Nothing is served or acknowledged meanwhile.
pub(super) async fn prove(
    stream: &mut WalStream,
    again: &mut Assembler,
    last: &LastCommit,
) -> Result<(), ProofError> {
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
            let assembled = again.take(message).map_err(ProofError::Differs)?;
            // Its frames are only counted and chained; a transaction larger than memory passes.
            drop(again.writer().take());
            if let Assembled::Committed {
                commit: Some(commit),
                ..
            } = assembled
            {
                let same = commit.final_lsn == last.final_lsn
                    && commit.end_lsn == last.end_lsn
                    && commit.xid == last.xid
                    && commit.commit_time == last.commit_time
                    && commit.position == last.position;
                let (at, found) = (last.final_lsn, commit.final_lsn);
                return match same {
                    true => Ok(()),
                    false => Err(differs(format!(
                        "the transaction at {at} in the archive came back as another one at {found}"
                    ))),
                };
            }
        }
        stream.fill().await.map_err(ProofError::Wal)?;
    }
}

fn differs(detail: String) -> ProofError {
    ProofError::Differs(HaltReason::SourceHistoryDiffers { detail })
}
