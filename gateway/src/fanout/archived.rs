//! The archived tail, for a follower behind the local log.

use rindle_archive::{Kind, ReadError, ReadFrom, ReadStep};
use rindle_proto::rpc::Discard;
use rindle_proto::rpc::restore::Reason;
use rindle_proto::rpc::subscribe_reply::Reply;
use tonic::Status;

use super::subscriber::{Stop, Subscriber, failed};
use crate::log::Located;

/// Sends from the archive until the follower's place is in the local log.
pub(super) async fn send_tail(subscriber: &mut Subscriber) -> Result<(), Stop> {
    let from = match subscriber.at.seq.0 {
        0 => ReadFrom::Start,
        _ => ReadFrom::Position {
            position: subscriber.at,
        },
    };
    let mut reader = subscriber.fanout.log.reader(from);
    let mut sent = 0;
    loop {
        if sent >= subscriber.fanout.catch_up_max_bytes && newer_image(subscriber).await? {
            let why = "the archived tail is longer than archiveCatchUpMaxBytes and there is a newer image";
            return Err(subscriber.restore(Reason::TooFarBehind, why).await);
        }
        let step = match reader.next().await {
            Ok(step) => step,
            Err(error) => return Err(refused(subscriber, error).await),
        };
        match step {
            ReadStep::Frames {
                bytes,
                end,
                last_commit,
                ..
            } => {
                sent += bytes.len() as u64;
                subscriber.send_frames(bytes).await?;
                subscriber.at = end;
                if let Some(commit) = last_commit {
                    subscriber.commit_lsn = commit.end_lsn.0;
                }
            }
            ReadStep::Discard { to, .. } => {
                subscriber.send(Reply::Discard(Discard {})).await?;
                subscriber.at = to;
            }
            ReadStep::Tick { .. } => {}
            ReadStep::End => {
                return match subscriber.live.log.locate(subscriber.at) {
                    // The log of this session starts where the archive ended when it began.
                    Ok(Located::At(_)) => Ok(()),
                    Ok(_) => Err(Stop::Failed(Status::unavailable(
                        "another gateway writes this archive: connect to it",
                    ))),
                    Err(error) => Err(failed(&error)),
                };
            }
        }
        let located = subscriber
            .live
            .log
            .locate(subscriber.at)
            .map_err(|error| failed(&error))?;
        if matches!(located, Located::At(_)) {
            return Ok(());
        }
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
        .images(subscriber.live.generation)
        .list()
        .await;
    let images = images.map_err(|error| failed(&error))?;
    Ok(images
        .iter()
        .any(|image| image.base.position.seq > subscriber.at.seq))
}
