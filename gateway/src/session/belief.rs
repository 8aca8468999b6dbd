//! What is believed at a commit of the archive's log: the newest checkpoint at or before it, and what the log says since.

use std::sync::Arc;

use rindle_archive::{Checkpoint, Kind, ReadError, ReadFrom, ReadStep, Reader};
use rindle_proto::body::{CopyBegin, CopyScope, TxnPart};
use rindle_proto::frame::{Frame, FrameKind, FrameReader};
use rindle_proto::ids::{FinalLsn, Position};
use rindle_proto::op::Ops;

use super::{Ended, Sessions};
use crate::ddl::Believed;
use crate::halt::HaltReason;
use crate::ship::chain;

/// What is believed after the commit at `position`.
pub(super) async fn at(sessions: &Sessions, position: Position) -> Result<Arc<Believed>, Ended> {
    let log = &sessions.archive;
    let kept = log
        .checkpoints(position.seq)
        .await
        .map_err(|error| archive(&error, error.kind()))?;
    for seq in kept {
        let Ok(Some(found)) = log.checkpoint::<Believed>(seq).await else {
            tracing::warn!(frame = %seq, "a checkpoint is damaged or gone; an older one will do");
            continue;
        };
        let from = ReadFrom::Position {
            position: found.position(),
        };
        match fold(log.reader(from), Some(found.believed), position).await {
            // Of an attempt that the log gave up.
            Err(Failed::Read(ReadError::ChainDiffers { .. })) => {}
            other => return other.map(Arc::new).map_err(Ended::from),
        }
    }
    let folded = fold(log.reader(ReadFrom::Start), None, position).await;
    folded.map(Arc::new).map_err(Ended::from)
}

/// The checkpoint of a commit.
pub(crate) fn checkpoint(position: Position, believed: &Believed) -> Checkpoint<&Believed> {
    Checkpoint {
        seq: position.seq,
        chain: position.chain,
        believed,
    }
}

enum Failed {
    Read(ReadError),
    Halt(HaltReason),
}

impl From<Failed> for Ended {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Read(error) => archive(&error, error.kind()),
            Failed::Halt(reason) => Ended::Halt(reason),
        }
    }
}

/// Goes over the log up to `until`.
async fn fold(
    mut reader: Reader,
    from: Option<Believed>,
    until: Position,
) -> Result<Believed, Failed> {
    let mut fold = Fold {
        committed: from,
        open: None,
        begun: None,
    };
    let mut at = reader.position();
    while at != until || fold.committed.is_none() {
        match reader.next().await.map_err(Failed::Read)? {
            ReadStep::Frames { bytes, .. } => {
                let mut frames = FrameReader::new();
                frames.push(bytes);
                while let Some(frame) = frames.next_frame().map_err(|error| damaged(&error))? {
                    at = at.after(&frame).map_err(|error| damaged(&error))?;
                    fold.take(&frame)?;
                    if at == until && fold.open.is_none() {
                        break;
                    }
                }
            }
            ReadStep::Discard { to, .. } => {
                fold.open = None;
                at = to;
            }
            ReadStep::Tick { .. } => {}
            ReadStep::End => {
                return Err(damaged(
                    &"the log holds a commit and no complete first copy",
                ));
            }
        }
    }
    fold.committed
        .ok_or_else(|| damaged(&"the log holds a commit and no complete first copy"))
}

struct Fold {
    /// After the last commit; none before the first copy is complete.
    committed: Option<Believed>,
    /// After the parts so far of a transaction that changed something.
    open: Option<Believed>,
    begun: Option<CopyBegin>,
}

impl Fold {
    fn take(&mut self, frame: &Frame) -> Result<(), Failed> {
        match frame.kind {
            FrameKind::CopyBegin => {
                self.begun =
                    Some(CopyBegin::decode(&frame.payload).map_err(|error| damaged(&error))?);
            }
            FrameKind::CopyDone => {
                let begun = self
                    .begun
                    .take()
                    .ok_or_else(|| damaged(&"a copy is done that never began"))?;
                let CopyScope::Genesis(schema) = begun.scope;
                let first = serde_json::from_value(begun.facts).map_err(|error| damaged(&error))?;
                self.committed = Some(Believed::new(first, schema));
            }
            FrameKind::Txn => {
                let part = TxnPart::decode(frame).map_err(|error| damaged(&error))?;
                for op in Ops::new(part.ops) {
                    self.op(op.map_err(|error| damaged(&error))?, part.final_lsn)?;
                }
                if part.end_lsn.is_some() {
                    self.committed = self.open.take().or(self.committed.take());
                }
            }
        }
        Ok(())
    }

    fn op(&mut self, op: rindle_proto::op::Op<'_>, at: FinalLsn) -> Result<(), Failed> {
        use rindle_proto::op::Op;
        if !matches!(op, Op::Facts(_) | Op::Schema(_) | Op::Copied(_)) {
            return Ok(());
        }
        let committed = self.committed.as_ref();
        let committed =
            committed.ok_or_else(|| damaged(&"a schema change before the first copy"))?;
        let open = self.open.get_or_insert_with(|| committed.clone());
        open.again(op, at).map_err(Failed::Halt)
    }
}

fn archive(error: &dyn std::error::Error, kind: Kind) -> Ended {
    match kind == Kind::Retry {
        true => Ended::Retry(format!("archive: {}", chain(error))),
        false => Ended::Halt(HaltReason::ArchiveDamaged {
            detail: chain(error),
        }),
    }
}

fn damaged(error: &dyn std::fmt::Display) -> Failed {
    Failed::Halt(HaltReason::ArchiveDamaged {
        detail: error.to_string(),
    })
}
