//! One follower's stream, from its position to the head and on.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rindle_proto::ids::{Digest, Epoch, Generation, Lsn, Position, Seq, Timeline};
use rindle_proto::rpc::restore::Reason;
use rindle_proto::rpc::subscribe_reply::Reply;
use rindle_proto::rpc::{FramePiece, Opened, Progress, Restore, SubscribeReply, SubscribeRequest};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tonic::Status;

use super::attached::{Attached, Place, Sent};
use super::{Fanout, archived, pieces};
use crate::live::{Live, Visible};
use crate::log::Located;

/// Positions are told at most this often.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// What a stream ends with.
#[derive(Debug)]
pub(super) enum Stop {
    /// The follower left, or is told something final that was sent already.
    Done,
    /// An error for the follower: it connects again.
    Failed(Status),
}

/// A follower that is attached to one session.
#[derive(Debug)]
pub(super) struct Subscriber {
    pub(super) fanout: Fanout,
    /// The session that is served; none when this gateway halted before it had one. The archive alone is served then.
    live: Option<Arc<Live>>,
    pub(super) at: Position,
    pub(super) can_restore: bool,
    pub(super) commit_lsn: Lsn,
    pub(super) attached: Attached,
    generation: Option<Generation>,
    follower: String,
    replies: mpsc::Sender<Result<SubscribeReply, Status>>,
}

impl Subscriber {
    pub(super) fn new(
        fanout: Fanout,
        live: Option<Arc<Live>>,
        request: SubscribeRequest,
        peer: Option<SocketAddr>,
        replies: mpsc::Sender<Result<SubscribeReply, Status>>,
    ) -> Result<Self, Status> {
        let invalid = |what: &str| Status::invalid_argument(format!("subscribe: {what}"));
        let generation = match request.generation.as_str() {
            "" => None,
            id => Some(id.parse().map_err(|error| invalid(&format!("{error}")))?),
        };
        let at = match request.seq {
            0 => Position::start(fanout.state.record().generation),
            seq => {
                let chain = request.chain[..].try_into();
                let chain = chain.map_err(|_length| invalid("chain must be 32 bytes"))?;
                Position {
                    seq: Seq(seq),
                    chain: Digest(chain),
                }
            }
        };
        let commit_lsn = Lsn(request.commit_lsn);
        let sent = Sent {
            seq: at.seq,
            through: (commit_lsn > Lsn(0)).then_some(commit_lsn),
            place: Place::Elsewhere("its place is looked for"),
        };
        let followers = fanout.state.followers();
        let attached = followers.attach(&request.follower, peer, sent);
        Ok(Self {
            fanout,
            live,
            at,
            can_restore: request.can_restore,
            commit_lsn,
            attached,
            generation,
            follower: request.follower,
            replies,
        })
    }

    /// Serves until the follower leaves or the session ends.
    pub(super) async fn run(mut self) {
        tracing::info!(follower = %self.follower, seq = %self.at.seq, "a follower attached");
        let mut session = self.fanout.state.live();
        let live = self.live.clone();
        let replaced =
            session.wait_for(|now| now.as_ref().map(Arc::as_ptr) != live.as_ref().map(Arc::as_ptr));
        let gone = self.replies.clone();
        let ended = tokio::select! {
            ended = self.serve() => ended,
            _ = replaced => Stop::Failed(Status::unavailable("the gateway's session ended")),
            () = gone.closed() => Stop::Done,
        };
        tracing::info!(follower = %self.follower, seq = %self.at.seq, ?ended, "a follower left");
        if let Stop::Failed(status) = ended {
            // Best effort: a follower that does not read is not waited for.
            if self.replies.try_send(Err(status)).is_err() {
                tracing::debug!(follower = %self.follower, "the follower does not read");
            }
        }
    }

    async fn serve(&mut self) -> Stop {
        match self.stream().await {
            Ok(never) => match never {},
            Err(stop) => stop,
        }
    }

    async fn stream(&mut self) -> Result<std::convert::Infallible, Stop> {
        let opened = self.opened().await?;
        self.send(Reply::Opened(opened)).await?;
        let served = self.fanout.state.record().generation;
        if self.generation.is_some_and(|asked| asked != served) {
            return Err(self
                .restore(Reason::OtherGeneration, "another generation is served")
                .await);
        }
        let Some(live) = self.live.clone() else {
            return archived::follow(self).await;
        };
        loop {
            let located = live.log.locate(self.at).map_err(|error| failed(&error))?;
            match located {
                Located::At(offset) => self.send_log(&live, offset).await?,
                Located::Below => archived::send_tail(self, &live).await?,
                Located::Above => self.wait_until_known(&live).await?,
                Located::Differs => {
                    let why = "the follower's last frame is not the gateway's of that number";
                    return Err(self.restore(Reason::ChainDiffers, why).await);
                }
            }
        }
    }

    async fn opened(&self) -> Result<Opened, Stop> {
        let (epoch, timeline) = match &self.live {
            Some(live) => (live.epoch, live.timeline),
            None => {
                let head = self
                    .fanout
                    .log
                    .head()
                    .await
                    .map_err(|error| failed(&error))?;
                head.map_or((Epoch(0), Timeline(0)), |head| (head.epoch, head.timeline))
            }
        };
        Ok(Opened {
            generation: self.fanout.state.record().generation.to_string(),
            epoch: epoch.0,
            timeline: timeline.0,
        })
    }

    /// Sends from the log until the reader's place was trimmed away.
    async fn send_log(&mut self, live: &Live, mut offset: u64) -> Result<(), Stop> {
        let mut visible = live.visible();
        let mut told = Instant::now() - PROGRESS_INTERVAL;
        let mut last: Option<Visible> = None;
        loop {
            let now = *visible.borrow_and_update();
            while offset < now.offset {
                let piece = live
                    .log
                    .read(offset, now.offset)
                    .map_err(|error| failed(&error))?;
                let Some(piece) = piece else {
                    // Slower than retainBytes: the archive has the rest, and knows where this follower stands
                    // only by its own word, so it asks again.
                    return Err(Stop::Failed(Status::unavailable(
                        "fell behind the local log: connect again",
                    )));
                };
                offset += piece.len() as u64;
                self.send(Reply::Frames(FramePiece { data: piece })).await?;
                self.attached.moved(Place::Log(offset));
            }
            self.attached.sent(Sent {
                seq: now.seq.max(self.at.seq),
                through: Some(now.through),
                place: Place::Log(offset),
            });
            if last.is_none_or(|last| last != now) && told.elapsed() >= PROGRESS_INTERVAL {
                self.progress(live, now).await?;
                (told, last) = (Instant::now(), Some(now));
            }
            let untold = last != Some(now);
            tokio::select! {
                changed = visible.changed() => {
                    changed.map_err(|_closed| Stop::Failed(Status::unavailable("the gateway stops")))?;
                }
                () = tokio::time::sleep_until(told + PROGRESS_INTERVAL), if untold => {}
            }
        }
    }

    /// The follower is ahead of this session: it may go on once the stream brings its last frame again under the
    /// same chain. When the stream has passed its commit and its frame did not come, it never will.
    async fn wait_until_known(&mut self, live: &Live) -> Result<(), Stop> {
        let ahead = "it is ahead of the stream, which brings the same again";
        self.attached.moved(Place::Elsewhere(ahead));
        let mut visible = live.visible();
        let (seq, commit) = (self.at.seq, self.commit_lsn);
        let seen = visible
            .wait_for(|now| now.seq >= seq || (commit != Lsn(0) && now.through >= commit))
            .await;
        let seen =
            *seen.map_err(|_closed| Stop::Failed(Status::unavailable("the gateway stops")))?;
        if seen.seq >= seq {
            return Ok(());
        }
        let why = "the follower applied a transaction that the source does not hold";
        Err(self.restore(Reason::ChainDiffers, why).await)
    }

    async fn progress(&mut self, live: &Live, now: Visible) -> Result<(), Stop> {
        let durable = live.durable().borrow().mark.position.seq;
        self.send(Reply::Progress(Progress {
            through_lsn: now.through.0,
            head_seq: now.seq.0,
            durable_seq: durable.0,
        }))
        .await
    }

    /// Tells the follower that it cannot go on from its position.
    pub(super) async fn restore(&mut self, reason: Reason, detail: &str) -> Stop {
        let generation = self.fanout.state.record().generation.to_string();
        let restore = Restore {
            reason: reason.into(),
            detail: detail.to_owned(),
            generation,
        };
        match self.send(Reply::Restore(restore)).await {
            Ok(()) => Stop::Done,
            Err(stop) => stop,
        }
    }

    /// Sends frames that came from the archive.
    pub(super) async fn send_frames(&mut self, frames: bytes::Bytes) -> Result<(), Stop> {
        for data in pieces(frames) {
            self.send(Reply::Frames(FramePiece { data })).await?;
        }
        Ok(())
    }

    /// Sends one reply; waits while the follower does not read.
    pub(super) async fn send(&mut self, reply: Reply) -> Result<(), Stop> {
        let sent = self
            .replies
            .send(Ok(SubscribeReply { reply: Some(reply) }))
            .await;
        sent.map_err(|_gone| Stop::Done)
    }
}

/// A stream that ends with an error of ours.
pub(super) fn failed(error: &dyn std::error::Error) -> Stop {
    Stop::Failed(Status::unavailable(crate::ship::chain(error)))
}
