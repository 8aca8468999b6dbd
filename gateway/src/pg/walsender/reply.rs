//! What the server says besides the stream: rows, errors, notices.

use rindle_proto::ids::{Lsn, Timeline};

use super::error::{ServerError, WalError};
use super::inbox::Message;
use super::wire::Wire;

/// One row as bytes.
pub(super) type Row = Vec<Option<Vec<u8>>>;

/// Limit of one reply; the largest expected, a timeline history, is far smaller.
const REPLY_MAX: usize = 64 * 1024 * 1024;

/// The answer to a command.
#[derive(Debug)]
pub(super) enum Reply {
    /// It is done; these are its rows.
    Rows(Vec<Row>),
    /// The stream starts.
    CopyBoth,
}

/// Waits for the whole answer to the command that was sent.
pub(super) async fn collect(wire: &mut Wire) -> Result<Reply, WalError> {
    let mut rows = Vec::new();
    let mut size = 0;
    let mut failed = None;
    loop {
        while let Some(message) = wire.inbox.next()? {
            match message.tag {
                b'D' => {
                    size += message.body.len();
                    if size > REPLY_MAX {
                        return Err(WalError::unexpected("a reply of at most 64 MiB"));
                    }
                    rows.push(row(message.body).ok_or(WalError::unexpected("a row"))?);
                }
                b'W' => return Ok(Reply::CopyBoth),
                b'E' => {
                    let error = server_error(message.body);
                    // The server closes the session after a fatal one, without `ready`.
                    if error.is_fatal() {
                        return Err(WalError::Server(Box::new(error)));
                    }
                    failed.get_or_insert(error);
                }
                b'Z' => {
                    return match failed {
                        None => Ok(Reply::Rows(rows)),
                        Some(error) => Err(WalError::Server(Box::new(error))),
                    };
                }
                b'T' | b'C' | b'I' | b'S' => {}
                b'N' => notice(message.body),
                _ => return Err(WalError::unexpected("the answer to a command")),
            }
        }
        wire.fill().await?;
    }
}

/// A message of the stream that is no data: an error ends it, the rest is passed over.
pub(super) fn aside_from_data(message: Message<'_>) -> Option<WalError> {
    match message.tag {
        b'E' => Some(WalError::Server(Box::new(server_error(message.body)))),
        b'c' => Some(WalError::StreamEnded),
        b'S' => None,
        b'N' => {
            notice(message.body);
            None
        }
        _ => Some(WalError::unexpected(
            "data, an error or the end of the stream",
        )),
    }
}

/// The fields of an error or notice. Fields that are not there stay empty; none is worth a second error.
pub(super) fn server_error(body: &[u8]) -> ServerError {
    let mut error = ServerError::default();
    let mut localised = None;
    for field in body.split(|byte| *byte == 0) {
        let Some((tag, text)) = field.split_first() else {
            continue;
        };
        let text = String::from_utf8_lossy(text).into_owned();
        match tag {
            b'V' => error.severity = text,
            b'S' => localised = Some(text),
            b'C' => error.code = text,
            b'M' => error.message = text,
            b'D' => error.detail = Some(text),
            b'H' => error.hint = Some(text),
            _ => {}
        }
    }
    if error.severity.is_empty() {
        error.severity = localised.unwrap_or_default();
    }
    error
}

pub(super) fn notice(body: &[u8]) {
    let notice = server_error(body);
    tracing::debug!(%notice, severity = notice.severity, "postgres notice");
}

/// The fields of a `DataRow`.
fn row(body: &[u8]) -> Option<Row> {
    let (count, mut rest) = body.split_first_chunk::<2>()?;
    let count = usize::from(u16::from_be_bytes(*count));
    // Each field has a length of four bytes, so that a lying count allocates nothing large.
    let mut fields = Vec::with_capacity(count.min(rest.len() / 4));
    for _ in 0..count {
        let (length, after) = rest.split_first_chunk::<4>()?;
        rest = after;
        fields.push(match i32::from_be_bytes(*length) {
            -1 => None,
            length => {
                let (field, after) = rest.split_at_checked(usize::try_from(length).ok()?)?;
                rest = after;
                Some(field.to_vec())
            }
        });
    }
    rest.is_empty().then_some(fields)
}

/// The lines of a timeline history file: timeline, the position at which it was left, reason.
pub(super) fn history(content: &str) -> Result<Vec<(Timeline, Lsn)>, WalError> {
    let lines = content
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty());
    let lines = lines.filter(|line| !line.starts_with('#'));
    let switch = |line: &str| {
        let mut words = line.split_whitespace();
        let timeline = words.next()?.parse().ok()?;
        Some((Timeline(timeline), words.next()?.parse().ok()?))
    };
    lines
        .map(|line| switch(line).ok_or(WalError::unexpected("a timeline and its end")))
        .collect()
}

#[inline]
pub(super) fn be_u64(bytes: &[u8]) -> Option<(u64, &[u8])> {
    bytes
        .split_first_chunk()
        .map(|(word, rest)| (u64::from_be_bytes(*word), rest))
}

#[inline]
pub(super) fn be_i64(bytes: &[u8]) -> Option<(i64, &[u8])> {
    bytes
        .split_first_chunk()
        .map(|(word, rest)| (i64::from_be_bytes(*word), rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn error_fields_are_told_apart() {
        let body = b"SFEHLER\0VERROR\0C55006\0Mslot is active\0Dpid 7\0Hwait\0Fslot.c\0\0";
        let error = server_error(body);
        assert!(!error.is_fatal());
        assert_eq!(error.to_string(), "slot is active (55006); pid 7; wait");
        assert!(server_error(b"SFATAL\0\0").is_fatal());
    }

    #[test]
    fn history_keeps_the_switches_in_order() {
        let content = "# c\n1\t0/3000000\tno recovery target specified\n\n2\t0/5000028\tx\n";
        let wanted = [
            (Timeline(1), Lsn(0x0300_0000)),
            (Timeline(2), Lsn(0x0500_0028)),
        ];
        assert_eq!(history(content).unwrap(), wanted);
        assert!(history("1 nonsense").is_err());
    }

    #[test]
    fn rows_hold_nulls() {
        let body = [
            &[0, 2][..],
            &(-1_i32).to_be_bytes(),
            &1_i32.to_be_bytes(),
            b"x",
        ]
        .concat();
        assert_eq!(row(&body), Some(vec![None, Some(b"x".to_vec())]));
        assert_eq!(row(&body[..body.len() - 1]), None);
    }

    proptest! {
        #[test]
        fn replies_never_panic(body in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = row(&body);
            let _ = server_error(&body);
            let _ = history(&String::from_utf8_lossy(&body));
        }
    }
}
