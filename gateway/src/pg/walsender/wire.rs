//! The socket of a session with its two buffers. Every method is cancel-safe: bytes are either still in a
//! buffer or wholly handed on.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::{Buf, BufMut, BytesMut};
use rindle_proto::ids::Lsn;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::client::TlsStream;

use super::WalError;
use super::inbox::Inbox;

/// How long a status may wait for a server that does not read, before it is left for later.
const PATIENCE: Duration = Duration::from_millis(250);
/// Bytes after which one `fill` hands on what it has: a TLS record holds only 16 KiB, and one at a time would
/// wake the caller too often.
const ENOUGH: usize = 256 * 1024;
/// A reader that is faster than the server makes it send tiny packets, which costs both sides a system call
/// each. After this many small reads in close succession the next ones wait a moment and find more.
const SMALL_READS: u32 = 32;
/// A read below this is small.
const SMALL: usize = 64 * 1024;
/// Reads that follow each other within this are in close succession.
const CLOSE: Duration = Duration::from_micros(200);
/// The moment; what it adds to the delay of a busy stream.
const PAUSE: Duration = Duration::from_millis(1);
/// A read after a pause that finds less shows that the stream is not busy any more.
const WORTH_A_PAUSE: usize = 8 * 1024;
/// Microseconds from 1970-01-01 to 2000-01-01.
const PG_EPOCH_MICROS: i64 = 946_684_800_000_000;

#[derive(Debug)]
pub(super) struct Wire {
    socket: Socket,
    /// What came from the server.
    pub(super) inbox: Inbox,
    /// Bytes on their way to the server. Bounded: commands are sent one at a time, and a status only enters
    /// when this is empty.
    out: BytesMut,
    /// The newest status, while `out` holds other bytes.
    status: Option<Status>,
    /// The TLS layer may hold bytes that were written but not sent.
    unflushed: bool,
    heard: Instant,
    /// Small reads in close succession, up to [`SMALL_READS`].
    small_reads: u32,
}

#[derive(Debug)]
pub(super) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<TlsStream<TcpStream>>),
}

#[derive(Clone, Copy, Debug)]
struct Status {
    positions: [Lsn; 3],
    reply: bool,
}

impl Wire {
    pub(super) fn new(socket: Socket) -> Self {
        Self {
            socket,
            inbox: Inbox::new(),
            out: BytesMut::new(),
            status: None,
            unflushed: false,
            heard: Instant::now(),
            small_reads: 0,
        }
    }

    /// When bytes last came.
    pub(super) fn last_heard(&self) -> Instant {
        self.heard
    }

    /// True while bytes wait for the server to read.
    pub(super) fn has_unsent(&self) -> bool {
        !self.out.is_empty() || self.status.is_some() || self.unflushed
    }

    /// Adds bytes behind those that wait.
    pub(super) fn queue(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    /// Makes this the status to send next; one that still waits is replaced, but not its wish for a reply.
    pub(super) fn queue_status(&mut self, positions: [Lsn; 3], reply: bool) {
        let wished = self.status.is_some_and(|status| status.reply);
        self.status = Some(Status {
            positions,
            reply: reply || wished,
        });
    }

    /// Sends everything that waits.
    pub(super) async fn push(&mut self) -> Result<(), WalError> {
        poll_fn(|context| self.poll_push(context))
            .await
            .map_err(WalError::io("send to postgres"))
    }

    /// Sends what waits, as far as the server takes it soon.
    pub(super) async fn push_patiently(&mut self) -> Result<(), WalError> {
        tokio::time::timeout(PATIENCE, self.push())
            .await
            .unwrap_or(Ok(()))
    }

    /// Waits for bytes, unless a complete message is there already, and sends meanwhile what waits.
    pub(super) async fn fill(&mut self) -> Result<(), WalError> {
        if self.inbox.is_ready() {
            return Ok(());
        }
        let pauses = self.small_reads >= SMALL_READS;
        if pauses {
            tokio::time::sleep(PAUSE).await;
        }
        let before = self.heard;
        let count = poll_fn(|context| self.poll_fill(context)).await?;
        let busy = match pauses {
            true => count >= WORTH_A_PAUSE,
            false => count < SMALL && self.heard - before < CLOSE,
        };
        self.small_reads = if busy {
            (self.small_reads + 1).min(SMALL_READS)
        } else {
            0
        };
        Ok(())
    }

    fn poll_push(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if self.out.is_empty() {
                let Some(status) = self.status.take() else {
                    break;
                };
                status.encode(&mut self.out);
            }
            self.unflushed = true;
            let count = ready!(Pin::new(&mut self.socket).poll_write(context, &self.out))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.out.advance(count);
        }
        if self.unflushed {
            ready!(Pin::new(&mut self.socket).poll_flush(context))?;
            self.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_fill(&mut self, context: &mut Context<'_>) -> Poll<Result<usize, WalError>> {
        if self.has_unsent()
            && let Poll::Ready(Err(source)) = self.poll_push(context)
        {
            return Poll::Ready(Err(WalError::Io {
                doing: "send to postgres",
                source,
            }));
        }
        let mut total = 0;
        while total < ENOUGH {
            let mut buffer = ReadBuf::new(self.inbox.room());
            match Pin::new(&mut self.socket).poll_read(context, &mut buffer) {
                Poll::Pending => break,
                Poll::Ready(Err(source)) => {
                    return Poll::Ready(Err(WalError::Io {
                        doing: "read from postgres",
                        source,
                    }));
                }
                Poll::Ready(Ok(())) => {}
            }
            let count = buffer.filled().len();
            // What came before the end may hold the server's reason: it is handed on first.
            if count == 0 && total == 0 {
                return Poll::Ready(Err(WalError::Closed));
            }
            self.inbox.filled(count);
            total += count;
            // A plain socket gives all it has at once; asking again would only cost a system call.
            if count == 0 || !matches!(self.socket, Socket::Tls(_)) {
                break;
            }
        }
        match total {
            0 => Poll::Pending,
            _ => {
                self.heard = Instant::now();
                Poll::Ready(Ok(total))
            }
        }
    }
}

impl Status {
    fn encode(self, out: &mut BytesMut) {
        out.put_u8(b'd');
        out.put_u32(4 + 1 + 3 * 8 + 8 + 1);
        out.put_u8(b'r');
        for position in self.positions {
            out.put_u64(position.0);
        }
        out.put_i64(now_micros());
        out.put_u8(u8::from(self.reply));
    }
}

/// The clock as Postgres counts. Only shown in the server's statistics; nothing depends on it.
fn now_micros() -> i64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_micros())
        .unwrap_or(i64::MAX)
        .saturating_sub(PG_EPOCH_MICROS)
}

/// Reads straight from the socket while there is no session yet.
impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Socket::Tcp(stream) => Pin::new(stream).poll_read(context, buffer),
            Socket::Unix(stream) => Pin::new(stream).poll_read(context, buffer),
            Socket::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Socket::Tcp(stream) => Pin::new(stream).poll_write(context, bytes),
            Socket::Unix(stream) => Pin::new(stream).poll_write(context, bytes),
            Socket::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Socket::Tcp(stream) => Pin::new(stream).poll_flush(context),
            Socket::Unix(stream) => Pin::new(stream).poll_flush(context),
            Socket::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Socket::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
            Socket::Unix(stream) => Pin::new(stream).poll_shutdown(context),
            Socket::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
