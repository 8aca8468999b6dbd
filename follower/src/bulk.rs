//! Rows of copies for the apply thread: from the archive, or through a gateway. The next parts are fetched
//! while one is loaded.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use rindle_archive::{Kind, Log};
use rindle_proto::body::{Attempt, BulkPart};
use rindle_proto::ids::Generation;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::backoff::Backoff;
use crate::gateway::{GatewayError, Gateways, sentence};
use crate::mirror::{BulkError, BulkSource, Copying};
use crate::state::State;

/// Parts that are fetched ahead of the one being loaded; with it, the most that are in memory.
const AHEAD: usize = 2;

/// A part that nobody gives for this long ends the load; the next attempt starts it anew.
const PATIENCE: Duration = Duration::from_secs(120);

/// Fetches parts.
#[derive(Debug)]
pub(crate) struct Fetcher {
    pub(crate) runtime: Handle,
    pub(crate) from: From,
    pub(crate) state: State,
    pub(crate) stop: CancellationToken,
    pub(crate) queue: Queue,
}

type Fetch = JoinHandle<Result<Bytes, BulkError>>;

/// Parts on their way, and those that will be asked for after them.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    coming: VecDeque<(u32, Fetch)>,
    waiting: VecDeque<BulkPart>,
    /// The one that is asked for before its copy is complete.
    ahead: Option<(Attempt, u32, Fetch)>,
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.coming.iter().for_each(|(_, task)| task.abort());
        if let Some((_, _, task)) = &self.ahead {
            task.abort();
        }
    }
}

/// Where parts are.
#[derive(Clone, Debug)]
pub(crate) enum From {
    Archive(Log),
    Gateway(Gateways, Generation),
}

impl BulkSource for Fetcher {
    fn rows(&mut self, attempt: Attempt, part: &BulkPart) -> Result<Bytes, BulkError> {
        self.fetch_ahead(attempt);
        let task = match self.queue.coming.front() {
            Some((number, _)) if *number == part.number => self.queue.coming.pop_front(),
            _ => None,
        };
        let task = task.map_or_else(|| self.start(attempt, part.clone()), |(_, task)| task);
        self.fetch_ahead(attempt);
        let stop = self.stop.clone();
        self.runtime.block_on(async move {
            let stopping = || BulkError::Unavailable("the follower is stopping".into());
            tokio::select! {
                () = stop.cancelled() => Err(stopping()),
                fetched = task => fetched.map_err(|_aborted| stopping())?,
            }
        })
    }

    fn expect(&mut self, _attempt: Attempt, parts: &[&BulkPart]) {
        self.queue = Queue::default();
        self.queue.waiting = parts.iter().map(|part| (*part).clone()).collect();
    }

    fn poll(&mut self, attempt: Attempt, part: &BulkPart) -> Result<Option<Bytes>, BulkError> {
        let task = match self.queue.ahead.take() {
            Some((of, number, task)) if (of, number) == (attempt, part.number) => task,
            other => {
                if let Some((_, _, unwanted)) = other {
                    unwanted.abort();
                }
                self.start(attempt, part.clone())
            }
        };
        if !task.is_finished() {
            self.queue.ahead = Some((attempt, part.number, task));
            return Ok(None);
        }
        let fetched = self.runtime.block_on(task);
        let stopping = |_aborted| BulkError::Unavailable("the follower is stopping".into());
        fetched.map_err(stopping)?.map(Some)
    }

    fn progress(&mut self, what: Copying, tables_done: usize, tables: usize) {
        let what = match what {
            Copying::First => "waiting for the first copy",
            Copying::Backfill => "loading what a backfill copied",
        };
        let count = format!("{tables_done} of {tables} tables");
        self.state.wait_for(format!("{what} ({count})"));
    }
}

impl Fetcher {
    fn fetch_ahead(&mut self, attempt: Attempt) {
        while self.queue.coming.len() < AHEAD
            && let Some(part) = self.queue.waiting.pop_front()
        {
            let number = part.number;
            let task = self.start(attempt, part);
            self.queue.coming.push_back((number, task));
        }
    }

    fn start(&self, attempt: Attempt, part: BulkPart) -> Fetch {
        let from = self.from.clone();
        self.runtime.spawn(async move {
            let mut last = None;
            let fetched = tokio::time::timeout(PATIENCE, async {
                let mut backoff = Backoff::default();
                for round in 0.. {
                    match from.fetch(attempt, &part, round).await {
                        Err(BulkError::Unavailable(error)) => {
                            tracing::info!(part = part.number, %error, "a bulk part cannot be had now");
                            last = Some(error);
                        }
                        answer => return answer,
                    }
                    backoff.wait().await;
                }
                Err(BulkError::Unavailable("no attempt is left".into()))
            })
            .await;
            let late = |_elapsed| {
                let why = last.unwrap_or_else(|| "it takes too long".into());
                BulkError::Unavailable(why)
            };
            fetched.map_err(late)?
        })
    }
}

impl From {
    async fn fetch(
        &self,
        attempt: Attempt,
        part: &BulkPart,
        round: usize,
    ) -> Result<Bytes, BulkError> {
        match self {
            From::Archive(log) => {
                let fetched = log.fetch_bulk(attempt, part).await;
                fetched.map_err(|error| match error.kind() {
                    Kind::Retry => BulkError::Unavailable(sentence(&error).into()),
                    Kind::Halt | Kind::Refused | Kind::Corrupt | Kind::Bug => {
                        BulkError::Corrupt(Box::new(error))
                    }
                })
            }
            From::Gateway(gateways, generation) => {
                let stored = fetch_stored(gateways, *generation, attempt, part, round).await?;
                let (generation, part) = (*generation, part.clone());
                let decoded = tokio::task::spawn_blocking(move || {
                    rindle_archive::bulk::decode(&stored, generation, attempt, &part)
                });
                let decoded = decoded
                    .await
                    .map_err(|_cancelled| BulkError::Unavailable("stopping".into()))?;
                decoded.map_err(|flaw| BulkError::Corrupt(Box::new(flaw)))
            }
        }
    }
}

async fn fetch_stored(
    gateways: &Gateways,
    generation: Generation,
    attempt: Attempt,
    part: &BulkPart,
    round: usize,
) -> Result<Bytes, BulkError> {
    let fetch = async {
        let mut gateway = gateways.connect(gateways.url(round)).await?;
        gateway.bulk(generation, attempt, part.number).await
    };
    fetch.await.map_err(|error: GatewayError| match &error {
        GatewayError::Status(status) if status.code() == tonic::Code::DataLoss => {
            BulkError::Corrupt(Box::new(error))
        }
        _ => BulkError::Unavailable(sentence(&error).into()),
    })
}
