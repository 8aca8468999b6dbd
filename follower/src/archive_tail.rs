//! Frames from the archive to the apply thread, for a follower without a gateway.

use std::time::Duration;

use rindle_archive::{Kind, Log, ReadError, ReadFrom, ReadStep, Reader};
use rindle_proto::frame::FrameReader;
use rindle_proto::ids::{Lsn, Seq};

use crate::apply::{Gone, Handle, Input};
use crate::backoff::Backoff;
use crate::gateway::sentence;
use crate::mirror::Cursor;
use crate::state::{Head, State};
use crate::tail::Why;

/// Follows a log.
#[derive(Debug)]
pub(crate) struct ArchiveTail {
    pub(crate) log: Log,
    pub(crate) handle: Handle,
    pub(crate) state: State,
    pub(crate) poll_interval: Duration,
}

/// Why following came to an end.
#[derive(Debug)]
pub(crate) enum ArchiveEnd {
    /// The mirror cannot go on from where it stands.
    Restore(Why),
    /// The log cannot be read on.
    Damaged(String),
    /// The apply thread has ended.
    Gone,
}

impl From<Gone> for ArchiveEnd {
    fn from(_gone: Gone) -> Self {
        ArchiveEnd::Gone
    }
}

impl ArchiveTail {
    /// Follows until the mirror must be replaced. May be dropped at any await.
    pub(crate) async fn run(self) -> ArchiveEnd {
        let mut backoff = Backoff::default();
        loop {
            match self.follow(&mut backoff).await {
                Ok(()) => {}
                Err(end) => return end,
            }
            backoff.wait().await;
        }
    }

    /// Reads on; ends well when the store does not answer.
    async fn follow(&self, backoff: &mut Backoff) -> Result<(), ArchiveEnd> {
        let cursor = self.handle.rewind().await?;
        let mut reader = self.log.reader(read_from(&cursor));
        loop {
            let step = match reader.next().await {
                Ok(step) => step,
                Err(error) => return self.read_error(&error),
            };
            let end = matches!(step, ReadStep::End);
            self.take(step, &reader).await?;
            backoff.reset();
            if end {
                self.state.has_read();
                self.state.goes_on();
                tokio::time::sleep(self.poll_interval).await;
            }
        }
    }

    async fn take(&self, step: ReadStep, reader: &Reader) -> Result<(), ArchiveEnd> {
        match step {
            ReadStep::Frames {
                bytes,
                segment,
                epoch,
                through_lsn,
                ..
            } => {
                self.handle.send(Input::Epoch(epoch)).await?;
                let mut frames = FrameReader::new();
                frames.push(bytes);
                let mut whole = Vec::new();
                loop {
                    match frames.next_frame() {
                        Ok(Some(frame)) => whole.push(frame),
                        Ok(None) => break,
                        Err(error) => {
                            let text = format!("log object {segment} is damaged: {error}");
                            return Err(ArchiveEnd::Damaged(text));
                        }
                    }
                }
                self.handle.frames(whole, Some(segment)).await?;
                self.progress(reader, through_lsn).await
            }
            ReadStep::Discard { epoch, .. } => {
                self.handle.send(Input::Epoch(epoch)).await?;
                Ok(self.handle.send(Input::Discard).await?)
            }
            ReadStep::Tick { through_lsn, epoch } => {
                self.handle.send(Input::Epoch(epoch)).await?;
                self.progress(reader, through_lsn).await
            }
            ReadStep::End => Ok(self.handle.send(Input::Level).await?),
        }
    }

    async fn progress(&self, reader: &Reader, through_lsn: Lsn) -> Result<(), ArchiveEnd> {
        let seq = reader.position().seq;
        let head = Head {
            through_lsn,
            head_seq: seq,
            durable_seq: seq,
        };
        Ok(self.handle.send(Input::Progress(head)).await?)
    }

    fn read_error(&self, error: &ReadError) -> Result<(), ArchiveEnd> {
        match error {
            ReadError::Trimmed { .. } => Err(ArchiveEnd::Restore(Why::Trimmed)),
            ReadError::ChainDiffers { .. } => Err(ArchiveEnd::Restore(Why::ChainDiffers)),
            error if error.kind() == Kind::Retry => {
                let detail = sentence(error);
                tracing::info!(%detail, "the archive cannot be read now");
                self.state.has_read();
                if self.state.serving().is_none() {
                    self.state
                        .wait_for(format!("waiting for the archive: {detail}"));
                }
                Ok(())
            }
            error => Err(ArchiveEnd::Damaged(sentence(error))),
        }
    }
}

fn read_from(cursor: &Cursor) -> ReadFrom {
    match (cursor.position.seq, cursor.segment) {
        (Seq(0), _) => ReadFrom::Start,
        (_, Some(segment)) => ReadFrom::Image {
            segment,
            position: cursor.position,
        },
        (_, None) => ReadFrom::Position {
            position: cursor.position,
        },
    }
}
