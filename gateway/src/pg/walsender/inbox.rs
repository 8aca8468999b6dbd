//! Bytes that came from the server, cut into messages in place. Pure.

use std::ops::Range;

use super::WalError;

/// Room offered to each read, and size of the buffer in ordinary times.
const GULP: usize = 512 * 1024;
/// Least room worth a read; below it the unread bytes move to the front.
const ROOM_MIN: usize = 64 * 1024;
/// A buffer above this that is nearly empty goes back to [`GULP`].
const KEEP_MAX: usize = 4 * GULP;
/// Postgres builds a message in one allocation of at most 1 GiB; the slack is for headers.
const MESSAGE_MAX: usize = (1 << 30) + 1024;
/// Limit until the server has proved who it is.
const GREETING_MAX: usize = 64 * 1024;
/// Tag and length.
const HEADER: usize = 5;

/// A buffer of initialised bytes, of which `head..tail` are unread.
#[derive(Debug)]
pub(super) struct Inbox {
    bytes: Vec<u8>,
    head: usize,
    tail: usize,
    message_max: usize,
}

/// One message of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message<'a> {
    /// Its type.
    pub(super) tag: u8,
    /// Its content.
    pub(super) body: &'a [u8],
}

impl Inbox {
    /// An empty buffer that takes small messages only, until [`Inbox::trust`].
    pub(super) fn new() -> Self {
        Self {
            bytes: vec![0; GULP],
            head: 0,
            tail: 0,
            message_max: GREETING_MAX,
        }
    }

    /// From now on messages may be as large as Postgres makes them.
    pub(super) fn trust(&mut self) {
        self.message_max = MESSAGE_MAX;
    }

    /// True when [`Inbox::next`] has something to say: a message or an error.
    pub(super) fn is_ready(&self) -> bool {
        !matches!(self.peek(), Ok(None))
    }

    /// Takes the next complete message.
    #[inline]
    pub(super) fn next(&mut self) -> Result<Option<Message<'_>>, WalError> {
        let place = self.take()?;
        Ok(place.map(|(tag, range)| Message {
            tag,
            body: self.body(range),
        }))
    }

    /// Takes the next complete message and tells its tag and where its body lies until the next
    /// [`Inbox::room`].
    #[inline]
    pub(super) fn take(&mut self) -> Result<Option<(u8, Range<usize>)>, WalError> {
        let Some(length) = self.peek()? else {
            return Ok(None);
        };
        let start = self.head + HEADER;
        let tag = self.bytes[self.head];
        self.head = start + length;
        Ok(Some((tag, start..self.head)))
    }

    /// The body of a message that was just taken.
    #[inline]
    pub(super) fn body(&self, range: Range<usize>) -> &[u8] {
        &self.bytes[range]
    }

    /// Length of the next message's body, when it is complete.
    #[inline]
    fn peek(&self) -> Result<Option<usize>, WalError> {
        let unread = &self.bytes[self.head..self.tail];
        let Some([_tag, length @ ..]) = unread.first_chunk::<HEADER>() else {
            return Ok(None);
        };
        // The length counts itself.
        let length = u32::from_be_bytes(*length) as usize;
        if length < 4 || length > self.message_max {
            return Err(WalError::unexpected(
                "a message of a length that Postgres sends",
            ));
        }
        Ok((unread.len() > length).then_some(length - 4))
    }

    /// Room for the next read; never empty. Grows by doubling, so that memory follows the bytes that really
    /// came, not the length that was announced.
    pub(super) fn room(&mut self) -> &mut [u8] {
        let unread = self.tail - self.head;
        if unread == 0 {
            self.head = 0;
            self.tail = 0;
        }
        if self.bytes.len() > KEEP_MAX && unread < ROOM_MIN {
            self.move_to(vec![0; GULP]);
        }
        if self.bytes.len() - self.tail < ROOM_MIN && self.head > 0 {
            self.bytes.copy_within(self.head..self.tail, 0);
            self.head = 0;
            self.tail = unread;
        }
        if self.bytes.len() - self.tail < ROOM_MIN {
            self.bytes.resize(self.bytes.len() * 2, 0);
        }
        &mut self.bytes[self.tail..]
    }

    /// Counts bytes that a read put at the start of the room.
    pub(super) fn filled(&mut self, count: usize) {
        self.tail += count;
        assert!(
            self.tail <= self.bytes.len(),
            "a read stays inside the room it was given"
        );
    }

    fn move_to(&mut self, mut bytes: Vec<u8>) {
        let unread = self.tail - self.head;
        bytes[..unread].copy_from_slice(&self.bytes[self.head..self.tail]);
        *self = Self {
            bytes,
            head: 0,
            tail: unread,
            message_max: self.message_max,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message(tag: u8, body: &[u8]) -> Vec<u8> {
        [&[tag], &(body.len() as u32 + 4).to_be_bytes()[..], body].concat()
    }

    fn feed(inbox: &mut Inbox, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = inbox.room();
            let count = room.len().min(bytes.len());
            room[..count].copy_from_slice(&bytes[..count]);
            inbox.filled(count);
            bytes = &bytes[count..];
        }
    }

    #[test]
    fn lengths_that_postgres_does_not_send_are_refused() {
        for (length, trusted) in [
            (3_u32, true),
            (u32::MAX, true),
            ((1 << 30) + 1025, true),
            (65_537, false),
        ] {
            let mut inbox = Inbox::new();
            if trusted {
                inbox.trust();
            }
            feed(&mut inbox, &[&[b'd'][..], &length.to_be_bytes()].concat());
            assert!(inbox.is_ready());
            assert!(inbox.next().is_err(), "{length}");
        }
    }

    #[test]
    fn buffer_shrinks_after_a_giant_message() {
        let mut inbox = Inbox::new();
        inbox.trust();
        let giant = vec![7; 9 * GULP];
        feed(&mut inbox, &message(b'd', &giant));
        assert_eq!(inbox.next().unwrap().unwrap().body, giant);
        feed(&mut inbox, &message(b'e', b"x"));
        assert_eq!(inbox.bytes.len(), GULP);
        assert_eq!(
            inbox.next().unwrap().unwrap(),
            Message {
                tag: b'e',
                body: b"x"
            }
        );
    }

    #[test]
    fn announced_length_alone_allocates_nothing() {
        let mut inbox = Inbox::new();
        inbox.trust();
        feed(
            &mut inbox,
            &[&[b'd'][..], &(1_u32 << 30).to_be_bytes()].concat(),
        );
        assert!(!inbox.is_ready());
        assert!(inbox.room().len() < GULP);
    }

    proptest! {
        #[test]
        fn messages_survive_any_split(
            bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 1..40),
            step in 1_usize..700,
        ) {
            let whole: Vec<u8> = bodies.iter().flat_map(|body| message(b'd', body)).collect();
            let mut inbox = Inbox::new();
            let mut found = Vec::new();
            for part in whole.chunks(step) {
                feed(&mut inbox, part);
                while let Some(message) = inbox.next().unwrap() {
                    found.push(message.body.to_vec());
                }
            }
            prop_assert_eq!(found, bodies);
        }
    }
}
