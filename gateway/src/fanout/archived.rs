//! The archived tail, for a follower behind the local log.

use std::convert::Infallible;
use std::time::Duration;

use rindle_archive::{Kind, ReadError, ReadFrom, ReadStep, Reader};
use rindle_proto::ids::Lsn;
use rindle_proto::rpc::restore::Reason;
use rindle_proto::rpc::subscribe_reply::Reply;
use rindle_proto::rpc::{Discard, Progress};
use tonic::Status;

use super::attached::{Place, Sent};
use super::subscriber::{Stop, Subscriber, failed};
use crate::live::Live;
use crate::log::Located;

/// Where no session is served, the archive is looked at again this often.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Sends from the archive until the follower's place is in the local log.
pub(super) async fn send_tail(subscriber: &mut Subscriber, live: &Live) -> Result<(), Stop> {
    let mut tail = Tail::after(subscriber);
    loop {
        let more = tail.send_next(subscriber).await?;
        let located = live.log.locate(subscriber.at);
        match (located.map_err(|error| failed(&error))?, more) {
            // The log of this session starts where the archive ended when it began.
            (Located::At(_), _) => return Ok(()),
            (_, true) => {}
            (_, false) => {
                return Err(Stop::Failed(Status::unavailable(
                    "another gateway writes this archive: connect to it",
                )));
            }
        }
    }
}

/// Sends what the archive has and what comes: all that a gateway has which halted before its first session.
pub(super) async fn follow(subscriber: &mut Subscriber) -> Result<Infallible, Stop> {
    let mut tail = Tail::after(subscriber);
    loop {
        while tail.send_next(subscriber).await? {}
        tail.sent = 0;
        let seq = subscriber.at.seq.0;
        let progress = Progress {
            through_lsn: tail.through.0,
            head_seq: seq,
            durable_seq: seq,
        };
        subscriber.send(Reply::Progress(progress)).await?;
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

struct Tail {
    reader: Reader,
    /// Bytes of frames, uncompressed.
    sent: u64,
    /// Everything up to here was sent.
    through: Lsn,
}

impl Tail {
    fn after(subscriber: &Subscriber) -> Self {
        let from = match subscriber.at.seq.0 {
            0 => ReadFrom::Start,
            _ => ReadFrom::Position {
                position: subscriber.at,
            },
        };
        Self {
            reader: subscriber.fanout.log.reader(from),
            sent: 0,
            through: Lsn(0),
        }
    }

    /// Sends the next object's frames; false at the end of the archive.
    async fn send_next(&mut self, subscriber: &mut Subscriber) -> Result<bool, Stop> {
        if self.sent >= subscriber.fanout.catch_up_max_bytes && newer_image(subscriber).await? {
            let why = "the archived tail is longer than archiveCatchUpMaxBytes and there is a newer image";
            return Err(subscriber.restore(Reason::TooFarBehind, why).await);
        }
        match self.reader.next().await {
            Ok(ReadStep::Frames {
                bytes,
                end,
                last_commit,
                through_lsn,
                ..
            }) => {
                self.through = through_lsn;
                self.sent += bytes.len() as u64;
                subscriber.send_frames(bytes).await?;
                subscriber.at = end;
                if let Some(commit) = last_commit {
                    subscriber.commit_lsn = commit.end_lsn.0;
                }
            }
            Ok(ReadStep::Discard { to, .. }) => {
                subscriber.send(Reply::Discard(Discard {})).await?;
                subscriber.at = to;
            }
            Ok(ReadStep::Tick { through_lsn, .. }) => self.through = through_lsn,
            Ok(ReadStep::End) => return Ok(false),
            Err(error) => return Err(refused(subscriber, error).await),
        }
        subscriber.attached.sent(Sent {
            seq: subscriber.at.seq,
            through: Some(self.through),
            place: Place::Elsewhere("it reads the archived tail"),
        });
        Ok(true)
    }
}

async fn refused(subscriber: &mut Subscriber, error: ReadError) -> Stop {
    match error {
        ReadError::ChainDiffers { .. } => {
            let why = "the follower's last frame is not the archive's of that number";
            subscriber.restore(Reason::ChainDiffers, why).await
        }
        ReadError::Trimmed { .. } => {
            subscriber
                .restore(
                    Reason::Trimmed,
                    "the archive no longer reaches back to the follower's position",
                )
                .await
        }
        error if error.kind() == Kind::Retry => failed(&error),
        error => Stop::Failed(Status::data_loss(crate::ship::chain(&error))),
    }
}

/// True when the follower can restore an image that is ahead of it.
async fn newer_image(subscriber: &Subscriber) -> Result<bool, Stop> {
    if !subscriber.can_restore {
        return Ok(false);
    }
    let images = subscriber
        .fanout
        .archive
        .images(subscriber.fanout.state.record().generation)
        .list()
        .await;
    let images = images.map_err(|error| failed(&error))?;
    Ok(images
        .iter()
        .any(|image| image.base.position.seq > subscriber.at.seq))
}
