//! Frames from a gateway to the apply thread: subscribes where the mirror stands, checks who speaks, and comes back
//! after every break. Decides nothing about the mirror itself.

use rindle_proto::frame::FrameReader;
use rindle_proto::ids::{Epoch, Generation, Lsn, Seq};
use rindle_proto::rpc::restore::Reason;
use rindle_proto::rpc::subscribe_reply::Reply;
use rindle_proto::rpc::{Opened, Restore, SubscribeReply, SubscribeRequest};
use tonic::Streaming;

use crate::apply::{Gone, Handle, Input};
use crate::backoff::Backoff;
use crate::gateway::{GatewayError, Gateways, parse_generation, sentence};
use crate::mirror::Cursor;
use crate::state::{Gateway as GatewayView, Head, State};

/// Follows gateways.
#[derive(Debug)]
pub(crate) struct Tail {
    pub(crate) gateways: Gateways,
    pub(crate) handle: Handle,
    pub(crate) state: State,
    /// There is an archive to restore from.
    pub(crate) can_restore: bool,
    /// The generation that the archive points to; another one is not followed.
    pub(crate) pinned: Option<Generation>,
}

/// Why following came to an end.
#[derive(Debug)]
pub(crate) enum TailEnd {
    /// The mirror cannot go on from where it stands.
    Restore(Why),
    /// The apply thread has ended.
    Gone,
}

/// Why a mirror must be replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// Another generation is served, or the archive points to it.
    Generation(Generation),
    /// What was applied is not what the source holds.
    ChainDiffers,
    /// An image is nearer than the log.
    TooFarBehind,
    /// The log no longer reaches back.
    Trimmed,
}

enum StreamEnd {
    Again(GatewayError),
    Restore(Why),
    Gone,
}

impl From<GatewayError> for StreamEnd {
    fn from(error: GatewayError) -> Self {
        StreamEnd::Again(error)
    }
}

impl From<tonic::Status> for StreamEnd {
    fn from(status: tonic::Status) -> Self {
        StreamEnd::Again(status.into())
    }
}

impl From<Gone> for StreamEnd {
    fn from(_gone: Gone) -> Self {
        StreamEnd::Gone
    }
}

impl Tail {
    /// Follows until the mirror must be replaced. May be dropped at any await.
    pub(crate) async fn run(self) -> TailEnd {
        let mut backoff = Backoff::default();
        for attempt in 0.. {
            let url = self.gateways.url(attempt).to_owned();
            let before = self.applied();
            let error = match self.attempt(&url).await {
                Err(StreamEnd::Again(error)) => sentence(&error),
                Err(StreamEnd::Restore(why)) => return TailEnd::Restore(why),
                Err(StreamEnd::Gone) => return TailEnd::Gone,
                Ok(()) => "it ended the stream".to_owned(),
            };
            self.lost(url, error);
            // A gateway that only greets us and breaks off is not asked in a circle.
            if self.applied() > before {
                backoff.reset();
            }
            backoff.wait().await;
        }
        TailEnd::Gone
    }

    fn applied(&self) -> Option<Seq> {
        let applied = self.state.applied();
        let cursor = *applied.borrow();
        cursor.map(|cursor| cursor.position.seq)
    }

    fn lost(&self, url: String, detail: String) {
        metrics::counter!("rindle_follower_reconnects_total").increment(1);
        tracing::info!(%url, %detail, "the gateway's stream ended");
        if self.state.serving().is_none() {
            self.state
                .wait_for(format!("waiting for gateway {url}: {detail}"));
        }
        self.state.set_gateway(GatewayView {
            url: Some(url),
            connected: false,
            detail: Some(detail),
        });
    }

    async fn attempt(&self, url: &str) -> Result<(), StreamEnd> {
        // First of all: an incomplete transaction of the stream before must not stay open while nobody is there.
        let cursor = self.handle.rewind().await?;
        let mut gateway = self.gateways.connect(url).await?;
        let mut replies = gateway.subscribe(self.request(&cursor)).await?;
        self.opened(&mut replies, &cursor).await?;
        self.state.set_gateway(GatewayView {
            url: Some(url.to_owned()),
            connected: true,
            detail: None,
        });
        tracing::info!(%url, seq = %cursor.position.seq, "following");
        self.follow(replies).await
    }

    fn request(&self, cursor: &Cursor) -> SubscribeRequest {
        let started = cursor.position.seq > Seq(0);
        SubscribeRequest {
            // The gateway's own source name is put in by the connection.
            source: String::new(),
            generation: cursor.generation.to_string(),
            seq: cursor.position.seq.0,
            chain: match started {
                true => cursor.position.chain.0.to_vec().into(),
                false => Default::default(),
            },
            commit_lsn: cursor.end_lsn.0.0,
            epoch: cursor.epoch.0,
            follower: follower_name(),
            can_restore: self.can_restore,
        }
    }

    /// The first reply says who speaks. A gateway that was overtaken is left (rule 15).
    async fn opened(
        &self,
        replies: &mut Streaming<SubscribeReply>,
        cursor: &Cursor,
    ) -> Result<(), StreamEnd> {
        let first = replies.message().await?.and_then(|reply| reply.reply);
        let Some(Reply::Opened(Opened {
            generation, epoch, ..
        })) = first
        else {
            let what = "something before Opened".to_owned();
            return Err(GatewayError::Protocol(what).into());
        };
        if parse_generation(&generation)? != cursor.generation {
            // It says so itself, with the next reply.
            return Ok(());
        }
        if Epoch(epoch) < cursor.epoch {
            let what = format!(
                "epoch {epoch}, but epoch {} was seen already: a newer gateway took over from it",
                cursor.epoch
            );
            return Err(GatewayError::Protocol(what).into());
        }
        self.handle.send(Input::Epoch(Epoch(epoch))).await?;
        Ok(())
    }

    async fn follow(&self, mut replies: Streaming<SubscribeReply>) -> Result<(), StreamEnd> {
        let mut reader = FrameReader::new();
        while let Some(reply) = replies.message().await? {
            match reply.reply {
                Some(Reply::Frames(piece)) => {
                    metrics::counter!("rindle_bytes_in_total").increment(piece.data.len() as u64);
                    reader.push(piece.data);
                    self.frames(&mut reader).await?;
                }
                Some(Reply::Progress(progress)) => {
                    let head = Head {
                        through_lsn: Lsn(progress.through_lsn),
                        head_seq: Seq(progress.head_seq),
                        durable_seq: Seq(progress.durable_seq),
                    };
                    self.handle.send(Input::Progress(head)).await?;
                    self.handle.send(Input::Level).await?;
                }
                Some(Reply::Discard(_)) => self.handle.send(Input::Discard).await?,
                Some(Reply::Restore(restore)) => return Err(self.restore(&restore)),
                Some(Reply::Opened(_)) | None => {
                    let what = "a reply that has no place there".to_owned();
                    return Err(GatewayError::Protocol(what).into());
                }
            }
        }
        Ok(())
    }

    async fn frames(&self, reader: &mut FrameReader) -> Result<(), StreamEnd> {
        let mut frames = Vec::new();
        loop {
            let frame = reader.next_frame().map_err(|error| {
                GatewayError::Protocol(format!("bytes that are no frame ({error})"))
            })?;
            match frame {
                Some(frame) => frames.push(frame),
                None => break,
            }
        }
        if !frames.is_empty() {
            self.handle.frames(frames, None).await?;
        }
        Ok(())
    }

    fn restore(&self, restore: &Restore) -> StreamEnd {
        tracing::warn!(reason = ?restore.reason(), detail = %restore.detail, "the gateway asks for a restore");
        match restore.reason() {
            Reason::ChainDiffers => StreamEnd::Restore(Why::ChainDiffers),
            Reason::TooFarBehind => StreamEnd::Restore(Why::TooFarBehind),
            Reason::Trimmed => StreamEnd::Restore(Why::Trimmed),
            Reason::OtherGeneration => self.other_generation(&restore.generation),
            Reason::Unspecified => {
                let what = format!("a restore without a reason: {}", restore.detail);
                GatewayError::Protocol(what).into()
            }
        }
    }

    /// The archive's pointer decides which generation is followed; without an archive the gateway does.
    fn other_generation(&self, served: &str) -> StreamEnd {
        match (parse_generation(served), self.pinned) {
            (Err(error), _) => error.into(),
            (Ok(served), Some(pinned)) if served != pinned => {
                let what = format!(
                    "generation {served}, but the archive's current one is {pinned}: wait for its \
                     gateway or move the pointer with `rindle pg cutover`"
                );
                GatewayError::Protocol(what).into()
            }
            (Ok(served), _) => StreamEnd::Restore(Why::Generation(served)),
        }
    }
}

/// How the gateway's status calls this follower.
fn follower_name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{}-{}", host.trim(), std::process::id())
}
