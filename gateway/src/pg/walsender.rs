//! Our own replication session, since no client library offers one that hands messages on without a copy.
//!
//! A [`WalStream`] answers SQL and replication commands first; [`WalStream::start`] turns it into a stream
//! for good. Then the caller drives it: [`WalStream::next`] takes complete messages out of the buffer until
//! there is none, [`WalStream::fill`] waits for more bytes, [`WalStream::status`] reports positions and needs
//! nobody to read meanwhile. It decides nothing about positions: it sends what it is told.

mod commands;
mod error;
mod handshake;
mod inbox;
mod reply;
mod wire;

use std::time::Instant;

use bytes::BytesMut;
use postgres_protocol::message::frontend;
use rindle_proto::ids::Lsn;

pub use self::commands::{CreatedSlot, SystemIdentity};
pub use self::error::{ServerError, WalError, sqlstate};
use self::handshake::Greeting;
use self::inbox::Message;
use self::reply::{Reply, be_i64, be_u64};
use self::wire::Wire;
use super::conn::{
    CONNECT_TIMEOUT, ConnectError, HostError, HostFailure, IN_RECOVERY, Reason,
    TRANSACTION_TIMEOUT_SINCE, UNPIN_TRANSACTION_TIMEOUT,
};
use super::endpoint::{Endpoint, Host};

/// Rows of a reply in text form; `None` is SQL NULL.
pub type Rows = Vec<Vec<Option<String>>>;

/// A replication session with a database.
#[derive(Debug)]
pub struct WalStream {
    wire: Wire,
    phase: Phase,
    host: Host,
    greeting: Greeting,
}

/// What the session may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The next command.
    Idle,
    /// Nothing more: a command was given up before its answer was complete.
    Busy,
    /// Streaming.
    Streaming,
    /// Nothing more: the stream ended.
    Ended,
}

/// One message of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalMessage<'a> {
    /// A message of the output plugin.
    Data {
        /// Position of the change itself; 0 for messages without one, such as relations.
        start: Lsn,
        /// The same position again in logical replication; never an acknowledgement's base.
        wal_end: Lsn,
        /// The plugin's bytes.
        payload: &'a [u8],
    },
    /// The server is there.
    Keepalive {
        /// How far the server has read its WAL.
        wal_end: Lsn,
        /// It wants a status at once.
        reply: bool,
    },
}

/// Asks a session which process serves it.
const OWN_PROCESS: &str = "SELECT pg_catalog.pg_backend_pid()";

impl WalStream {
    /// A session on the primary of the cluster.
    ///
    /// # Errors
    /// When no host gives a session on a primary.
    pub async fn connect(
        endpoint: &Endpoint,
        application_name: &str,
    ) -> Result<WalStream, ConnectError> {
        let mut failures = Vec::new();
        for host in &endpoint.hosts {
            let opening = WalStream::connect_host(endpoint, host, application_name);
            let reason = match opening.await {
                Err(HostError::Tls(error)) => return Err(error.into()),
                Err(HostError::Failed(reason)) => reason,
                Ok(mut stream) => match stream.query(IN_RECOVERY).await {
                    Ok(rows) if is_true(&rows) => Reason::Standby,
                    Ok(_) => return Ok(stream),
                    Err(error) => Reason::Session(error),
                },
            };
            failures.push(HostFailure {
                host: host.clone(),
                reason,
            });
        }
        Err(ConnectError::NoPrimary(failures))
    }

    /// A session on one host, primary or standby.
    ///
    /// # Errors
    /// When the host gives no session.
    pub async fn connect_host(
        endpoint: &Endpoint,
        host: &Host,
        application_name: &str,
    ) -> Result<WalStream, HostError> {
        let opening = async {
            let (wire, greeting) = handshake::open(endpoint, host, application_name).await?;
            let mut stream = WalStream {
                wire,
                phase: Phase::Idle,
                host: host.clone(),
                greeting,
            };
            // Not the greeting's: proxies give out numbers of their own there.
            let pid = stream.query(OWN_PROCESS).await.map_err(Reason::Session)?;
            let pid = pid
                .first()
                .and_then(|row| row.first()?.as_deref()?.parse().ok());
            stream.greeting.backend_pid = pid.unwrap_or(stream.greeting.backend_pid);
            if stream.greeting.server_major >= TRANSACTION_TIMEOUT_SINCE {
                stream
                    .query(UNPIN_TRANSACTION_TIMEOUT)
                    .await
                    .map_err(Reason::Session)?;
            }
            Ok(stream)
        };
        match tokio::time::timeout(CONNECT_TIMEOUT, opening).await {
            Ok(opened) => opened,
            Err(_elapsed) => Err(Reason::Timeout.into()),
        }
    }

    /// The host that answered.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Process id of the server's end, by which another session can cancel a command that waits.
    pub fn backend_pid(&self) -> i32 {
        self.greeting.backend_pid
    }

    /// Major version of the server.
    pub fn server_major(&self) -> u32 {
        self.greeting.server_major
    }

    /// When bytes last came from the server.
    pub fn last_heard(&self) -> Instant {
        self.wire.last_heard()
    }

    /// Runs SQL or a replication command and gives its rows. There is no time limit: creating a slot may wait
    /// for hours. A caller that gives up must drop the session.
    ///
    /// # Errors
    /// The server's error, after which the session goes on; or a broken session.
    pub async fn query(&mut self, sql: &str) -> Result<Rows, WalError> {
        let rows = self.raw_query(sql).await?;
        let text = |field: Option<Vec<u8>>| {
            field
                .map(String::from_utf8)
                .transpose()
                .map_err(WalError::not_utf8)
        };
        rows.into_iter()
            .map(|row| row.into_iter().map(text).collect())
            .collect()
    }

    /// Starts streaming the slot from `lsn`. Postgres moves a position below the slot's confirmed one forward
    /// without a word: compare them before, on this session.
    ///
    /// # Errors
    /// The server's error, after which the session takes commands again: 55006 slot in use, 42704 no such
    /// slot, 55000 slot invalidated. A missing publication shows only later, as an error of the stream.
    pub async fn start(&mut self, slot: &str, lsn: Lsn, publication: &str) -> Result<(), WalError> {
        let names = literal(&identifier(publication));
        let slot = identifier(slot);
        let command = format!(
            "START_REPLICATION SLOT {slot} LOGICAL {lsn} \
             (proto_version '1', publication_names {names}, messages 'true')"
        );
        self.begin(&command).await?;
        match reply::collect(&mut self.wire).await {
            Ok(Reply::CopyBoth) => {
                self.phase = Phase::Streaming;
                Ok(())
            }
            Ok(Reply::Rows(_)) => Err(self.end(WalError::unexpected("the start of the stream"))),
            Err(error) => Err(self.settle(error)),
        }
    }

    /// Waits until at least one more byte, or a complete message, is there. Reads whatever has arrived, so a
    /// caller that was busy gets much at once. Cancel-safe: what was read stays.
    ///
    /// # Errors
    /// When the session is broken.
    pub async fn fill(&mut self) -> Result<(), WalError> {
        match self.phase {
            Phase::Streaming => self.wire.fill().await.map_err(|error| self.end(error)),
            Phase::Idle | Phase::Busy | Phase::Ended => Err(WalError::WrongPhase),
        }
    }

    /// Takes the next complete message out of the buffer; none when more bytes are needed.
    ///
    /// # Errors
    /// When the server reports an error or ends the stream, or its bytes make no sense. The stream is over
    /// then.
    #[inline]
    #[expect(
        clippy::should_implement_trait,
        reason = "an iterator cannot lend from itself"
    )]
    pub fn next(&mut self) -> Result<Option<WalMessage<'_>>, WalError> {
        if self.phase != Phase::Streaming {
            return Err(WalError::WrongPhase);
        }
        loop {
            let (tag, range) = match self.wire.inbox.take() {
                Ok(Some(place)) => place,
                Ok(None) => return Ok(None),
                Err(error) => return Err(self.end(error)),
            };
            if tag == b'd' {
                // Looked at twice, since a borrow that one arm returns cannot be given up in another.
                if stream_message(self.wire.inbox.body(range.clone())).is_some() {
                    return Ok(stream_message(self.wire.inbox.body(range)));
                }
                return Err(self.end(WalError::unexpected("stream data or a keepalive")));
            }
            let body = self.wire.inbox.body(range);
            if let Some(error) = reply::aside_from_data(Message { tag, body }) {
                return Err(self.end(error));
            }
        }
    }

    /// Reports positions. Needs nobody to read: when the server does not take the bytes within a quarter of a
    /// second the newest report stays queued (one, never more) and goes out with a later `status` or `fill`.
    /// Cancel-safe.
    ///
    /// # Errors
    /// When the session is broken.
    pub async fn status(
        &mut self,
        written: Lsn,
        flushed: Lsn,
        applied: Lsn,
        reply: bool,
    ) -> Result<(), WalError> {
        if self.phase != Phase::Streaming {
            return Err(WalError::WrongPhase);
        }
        self.wire.queue_status([written, flushed, applied], reply);
        self.wire
            .push_patiently()
            .await
            .map_err(|error| self.end(error))
    }

    /// True while a report waits because the server does not read.
    pub fn has_unsent(&self) -> bool {
        self.wire.has_unsent()
    }

    /// Says goodbye, so that the server lets go of the slot and of locks at once.
    pub async fn close(mut self) {
        let mut goodbye = BytesMut::new();
        frontend::terminate(&mut goodbye);
        self.wire.queue(&goodbye);
        // Best effort: the server notices a closed socket too, only later.
        if let Err(error) = self.wire.push_patiently().await {
            tracing::debug!(%error, "close the replication session");
        }
    }

    async fn raw_query(&mut self, sql: &str) -> Result<Vec<reply::Row>, WalError> {
        self.begin(sql).await?;
        match reply::collect(&mut self.wire).await {
            Ok(Reply::Rows(rows)) => {
                self.phase = Phase::Idle;
                Ok(rows)
            }
            Ok(Reply::CopyBoth) => Err(self.end(WalError::unexpected("rows"))),
            Err(error) => Err(self.settle(error)),
        }
    }

    async fn begin(&mut self, command: &str) -> Result<(), WalError> {
        if self.phase != Phase::Idle {
            return Err(WalError::WrongPhase);
        }
        let mut bytes = BytesMut::new();
        frontend::query(command, &mut bytes).map_err(WalError::io("encode a command"))?;
        self.phase = Phase::Busy;
        self.wire.queue(&bytes);
        self.wire.push().await.map_err(|error| self.end(error))
    }

    /// After the server's own error the session goes on; after any other it is over.
    fn settle(&mut self, error: WalError) -> WalError {
        self.phase = match &error {
            WalError::Server(server) if !server.is_fatal() => Phase::Idle,
            _ => Phase::Ended,
        };
        error
    }

    fn end(&mut self, error: WalError) -> WalError {
        self.phase = Phase::Ended;
        error
    }
}

#[inline]
fn stream_message(body: &[u8]) -> Option<WalMessage<'_>> {
    let (tag, rest) = body.split_first()?;
    match tag {
        b'w' => {
            let (start, rest) = be_u64(rest)?;
            let (wal_end, rest) = be_u64(rest)?;
            let (_sent, payload) = be_i64(rest)?;
            Some(WalMessage::Data {
                start: Lsn(start),
                wal_end: Lsn(wal_end),
                payload,
            })
        }
        b'k' => {
            let (wal_end, rest) = be_u64(rest)?;
            let (_sent, rest) = be_i64(rest)?;
            let [reply] = rest else { return None };
            Some(WalMessage::Keepalive {
                wal_end: Lsn(wal_end),
                reply: *reply != 0,
            })
        }
        _ => None,
    }
}

fn is_true(rows: &Rows) -> bool {
    matches!(&rows[..], [row] if matches!(&row[..], [Some(value)] if value == "t"))
}

/// A name in double quotes.
fn identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A text in single quotes, in the replication grammar, which knows no backslash.
fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_are_quoted_twice_where_postgres_reads_them_twice() {
        assert_eq!(literal(&identifier("it's \"p\"")), "'\"it''s \"\"p\"\"\"'");
    }

    #[test]
    fn data_and_keepalive_are_told_apart() {
        let mut data = vec![b'w'];
        for word in [1_u64, 2, 3] {
            data.extend(word.to_be_bytes());
        }
        data.extend(b"B...");
        let wanted = WalMessage::Data {
            start: Lsn(1),
            wal_end: Lsn(2),
            payload: b"B...",
        };
        assert_eq!(stream_message(&data), Some(wanted));
        let mut alive = vec![b'k'];
        for word in [9_u64, 3] {
            alive.extend(word.to_be_bytes());
        }
        assert_eq!(stream_message(&alive), None);
        alive.push(1);
        let wanted = WalMessage::Keepalive {
            wal_end: Lsn(9),
            reply: true,
        };
        assert_eq!(stream_message(&alive), Some(wanted));
    }

    proptest! {
        #[test]
        fn stream_messages_never_panic(body in prop::collection::vec(any::<u8>(), 0..40)) {
            let _ = stream_message(&body);
        }
    }
}
