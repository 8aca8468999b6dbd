//! Serves frames to followers. Each subscriber is a task that reads the log, or the archive behind it, at its own
//! position; nobody waits for it, and it waits for nobody.

mod archived;
mod attached;
mod subscriber;

use std::pin::Pin;

use bytes::Bytes;
use rindle_archive::{Archive, Kind, Log};
use rindle_proto::body::Attempt;
use rindle_proto::ids::Epoch;
use rindle_proto::rpc::frames_server::Frames;
use rindle_proto::rpc::{
    FetchBulkReply, FetchBulkRequest, StatusReply, StatusRequest, SubscribeReply, SubscribeRequest,
};
use tokio::sync::mpsc;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

pub use self::attached::{FollowerView, Followers};
use self::subscriber::Subscriber;
use crate::ship::chain;
use crate::state::State;

/// Longest piece of a reply stream.
const PIECE_BYTES: usize = 256 << 10;

/// Pieces that wait for one slow follower, beside what the connection buffers.
const QUEUED_PIECES: usize = 2;

type Replies<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// The gRPC service.
#[derive(Clone, Debug)]
pub struct Fanout {
    archive: Archive,
    log: Log,
    state: State,
    /// Longest archived tail that is sent where an image would do, in bytes.
    catch_up_max_bytes: u64,
}

impl Fanout {
    /// Serves the generation that `state` tells about.
    pub fn new(archive: Archive, state: State, catch_up_max_bytes: u64) -> Self {
        let log = archive.log(state.record().generation);
        Self {
            archive,
            log,
            state,
            catch_up_max_bytes,
        }
    }
}

#[tonic::async_trait]
impl Frames for Fanout {
    type SubscribeStream = Replies<SubscribeReply>;
    type FetchBulkStream = Replies<FetchBulkReply>;

    async fn subscribe(
        &self,
        request: Request<SubscribeRequest>,
    ) -> Result<Response<Self::SubscribeStream>, Status> {
        let peer = request.remote_addr();
        let request = request.into_inner();
        let record = self.state.record();
        if request.source != record.source.as_str() {
            let served = &record.source;
            return Err(Status::invalid_argument(format!(
                "source {:?} is not served here, {served} is: check sources[0].name and url",
                request.source
            )));
        }
        let live = self.state.live().borrow().clone();
        if live.is_none() && !self.state.is_halted() {
            let why = self.state.reason().unwrap_or_else(|| "starting".to_owned());
            return Err(Status::unavailable(why));
        }
        let (replies, receiver) = mpsc::channel(QUEUED_PIECES);
        let subscriber = Subscriber::new(self.clone(), live, request, peer, replies)?;
        tokio::spawn(subscriber.run());
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn fetch_bulk(
        &self,
        request: Request<FetchBulkRequest>,
    ) -> Result<Response<Self::FetchBulkStream>, Status> {
        let request = request.into_inner();
        if request.generation != self.state.record().generation.to_string() {
            return Err(Status::not_found(format!(
                "generation {} is not served here",
                request.generation
            )));
        }
        let attempt = Attempt {
            epoch: Epoch(request.epoch),
            number: request.attempt,
        };
        let stored = self.log.fetch_bulk_stored(attempt, request.part).await;
        let stored = stored.map_err(|error| match error.kind() == Kind::Retry {
            true => Status::unavailable(chain(&error)),
            false => Status::data_loss(chain(&error)),
        })?;
        let pieces = pieces(stored).map(|data| Ok(FetchBulkReply { data }));
        Ok(Response::new(Box::pin(tokio_stream::iter(pieces))))
    }

    async fn status(
        &self,
        _request: Request<StatusRequest>,
    ) -> Result<Response<StatusReply>, Status> {
        let json = serde_json::to_string(&self.state.view());
        let json = json.map_err(|error| Status::internal(error.to_string()))?;
        Ok(Response::new(StatusReply { json }))
    }
}

/// Cuts bytes into pieces that a client takes.
fn pieces(mut bytes: Bytes) -> impl Iterator<Item = Bytes> {
    std::iter::from_fn(move || {
        let len = bytes.len().min(PIECE_BYTES);
        (len > 0).then(|| bytes.split_to(len))
    })
}
