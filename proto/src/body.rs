//! What the payload of each kind of frame holds. See `proto/README.md`, "Bodies".
//!
//! ```text
//! transaction part = [first: u32 xid, i64 commit time] operations [last: u64 end LSN]
//! copy begin       = JSON of CopyBegin
//! copy done        = JSON of CopyDone
//! ```

use serde::{Deserialize, Serialize};

use crate::codec::Input;
use crate::error::DecodeError;
use crate::frame::{Frame, FrameKind};
use crate::ids::{Digest, EndLsn, Epoch, FinalLsn, Lsn};
use crate::schema::{Schema, Table, TableId};

/// Microseconds since 2000-01-01 00:00 UTC, as Postgres counts commit times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PgMicros(pub i64);

impl PgMicros {
    /// The same moment in milliseconds since 1970.
    pub fn unix_ms(self) -> i64 {
        self.0 / 1000 + 946_684_800_000
    }
}

/// What the first part of a transaction says about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxnStart {
    /// Transaction id in Postgres.
    pub xid: u32,
    /// When it committed.
    pub commit_time: PgMicros,
}

/// One part of a source transaction, in order.
#[derive(Clone, Copy, Debug)]
pub struct TxnPart<'a> {
    /// Start of its commit record: the same in all parts.
    pub final_lsn: FinalLsn,
    /// In the first part only.
    pub start: Option<TxnStart>,
    /// Bytes for [`crate::op::Ops`].
    pub ops: &'a [u8],
    /// End of its commit record: in the last part only.
    pub end_lsn: Option<EndLsn>,
}

/// Appends the start of a first part.
pub fn put_txn_start(out: &mut Vec<u8>, start: TxnStart) {
    out.extend_from_slice(&start.xid.to_le_bytes());
    out.extend_from_slice(&start.commit_time.0.to_le_bytes());
}

/// Appends the end of a last part.
pub fn put_txn_end(out: &mut Vec<u8>, end_lsn: EndLsn) {
    out.extend_from_slice(&end_lsn.0.0.to_le_bytes());
}

impl<'a> TxnPart<'a> {
    /// Reads a transaction part.
    ///
    /// # Errors
    /// When the frame is of another kind or too short for its flags.
    pub fn decode(frame: &'a Frame) -> Result<Self, DecodeError> {
        let mut input = Input::new("transaction part", &frame.payload);
        if frame.kind != FrameKind::Txn {
            return Err(input.error("a frame of kind 1"));
        }
        let start = match frame.flags.first {
            true => Some(TxnStart {
                xid: input.u32("a transaction id")?,
                commit_time: PgMicros(input.u64("a commit time")? as i64),
            }),
            false => None,
        };
        let rest = &frame.payload[input.offset()..];
        let (ops, end_lsn) = match (frame.flags.last, rest.split_last_chunk::<8>()) {
            (false, _) => (rest, None),
            (true, Some((ops, end))) => (ops, Some(EndLsn(Lsn(u64::from_le_bytes(*end))))),
            (true, None) => return Err(input.error("an end LSN")),
        };
        Ok(Self {
            final_lsn: FinalLsn(frame.lsn),
            start,
            ops,
            end_lsn,
        })
    }
}

/// A copy begins. Its rows come as bulk objects, and stay hidden until its [`CopyDone`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CopyBegin {
    /// Which attempt: part of the bulk objects' names.
    pub attempt: Attempt,
    /// Snapshot position: a row is in the copy exactly when its transaction's `final_lsn` is below it.
    pub snapshot: Lsn,
    /// What is copied.
    pub scope: CopyScope,
    /// What the catalog said when the copy began, for gateways.
    pub facts: serde_json::Value,
}

/// Identity of one attempt at a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attempt {
    /// The walsender session that made it.
    pub epoch: Epoch,
    /// Number within that session: the first copy is 0.
    pub number: u32,
}

/// What a copy is of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum CopyScope {
    /// The first copy of a generation: every table of this schema. The mirror starts empty.
    Genesis(Schema),
}

/// Waiting tables and partitions are complete: all their rows as of `snapshot` are durable. Changes of transactions
/// whose `final_lsn` is at or above it come on top; those below it are in the copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Copied {
    /// Which attempt: part of the bulk objects' names.
    pub attempt: Attempt,
    /// Snapshot position: a row is in the copy exactly when its transaction's `final_lsn` is below it.
    pub snapshot: Lsn,
    /// What was copied.
    pub targets: Vec<CopyTarget>,
    /// Every bulk object that counts, in number order. A part's table is a target, or a partition in a target's shape.
    pub parts: Vec<BulkPart>,
}

/// One thing that a backfill copies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CopyTarget {
    /// The waiting table or partition.
    pub target: TableId,
    /// The table (for a partition: the one it is of) as it was under the snapshot: what the rows of the parts hold.
    pub shape: Table,
}

impl Copied {
    /// Reads the JSON of one.
    ///
    /// # Errors
    /// When it is none, or its parts are not in the order of their numbers.
    pub fn decode(json: &[u8]) -> Result<Self, DecodeError> {
        let copied: Self = decode_json(json, "the JSON of a finished copy")?;
        check_rising(&copied.parts)?;
        Ok(copied)
    }
}

/// A copy is complete and all its parts are durable: reveal it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CopyDone {
    /// Which attempt.
    pub attempt: Attempt,
    /// The same position as in its [`CopyBegin`].
    pub snapshot: Lsn,
    /// Every bulk object that counts, in number order; numbers may be left out.
    pub parts: Vec<BulkPart>,
}

/// One bulk object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BulkPart {
    /// Number within the attempt, from 0.
    pub number: u32,
    /// Table whose rows it holds.
    pub table: TableId,
    /// Rows in it.
    pub rows: u64,
    /// Length of its rows, uncompressed, in bytes.
    pub raw_bytes: u64,
    /// Length of the object in bytes.
    pub stored_bytes: u64,
    /// SHA-256 of its rows, uncompressed, so that another compression changes nothing.
    pub rows_digest: Digest,
}

impl CopyBegin {
    /// Reads the payload of a copy begin.
    ///
    /// # Errors
    /// When it is not one, or its schema is one that no mirror can hold.
    pub fn decode(payload: &[u8]) -> Result<Self, DecodeError> {
        let begin: Self = decode_json(payload, "the JSON of a copy begin")?;
        let CopyScope::Genesis(schema) = &begin.scope;
        match schema.check() {
            Ok(()) => Ok(begin),
            Err(_named_at_admission) => Err(DecodeError::new(
                "copy begin",
                0,
                "a schema that a mirror can hold",
            )),
        }
    }
}

impl CopyDone {
    /// Reads the payload of a copy done.
    ///
    /// # Errors
    /// When it is not one, or its parts are not in the order of their numbers.
    pub fn decode(payload: &[u8]) -> Result<Self, DecodeError> {
        let done: Self = decode_json(payload, "the JSON of a copy done")?;
        check_rising(&done.parts)?;
        Ok(done)
    }
}

fn check_rising(parts: &[BulkPart]) -> Result<(), DecodeError> {
    let rising = parts.windows(2).all(|pair| pair[0].number < pair[1].number);
    match rising {
        true => Ok(()),
        false => Err(DecodeError::new(
            "copy done",
            0,
            "parts in the order of their numbers",
        )),
    }
}

fn decode_json<T: for<'de> Deserialize<'de>>(
    payload: &[u8],
    expected: &'static str,
) -> Result<T, DecodeError> {
    serde_json::from_slice(payload)
        .map_err(|error| DecodeError::new("copy frame", error.column(), expected))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{FrameFlags, FrameReader, FrameWriter};
    use crate::ids::{Generation, Position};
    use proptest::prelude::*;

    fn frame(flags: FrameFlags, payload: &[u8]) -> Frame {
        let generation = Generation::from_bytes([1; 16]);
        let mut writer = FrameWriter::new(Position::start(generation));
        writer.open().extend_from_slice(payload);
        writer.finish(FrameKind::Txn, flags, Lsn(5)).unwrap();
        let mut reader = FrameReader::new();
        reader.push(writer.take().into());
        reader.next_frame().unwrap().unwrap()
    }

    #[test]
    fn whole_transaction_round_trips() {
        let start = TxnStart {
            xid: 9,
            commit_time: PgMicros(-3),
        };
        let mut payload = Vec::new();
        put_txn_start(&mut payload, start);
        payload.extend_from_slice(b"ops");
        put_txn_end(&mut payload, EndLsn(Lsn(77)));
        let frame = frame(FrameFlags::WHOLE, &payload);
        let part = TxnPart::decode(&frame).unwrap();
        assert_eq!(
            (part.start, part.ops, part.end_lsn),
            (Some(start), &b"ops"[..], Some(EndLsn(Lsn(77))))
        );
        assert_eq!(part.final_lsn, FinalLsn(Lsn(5)));
    }

    #[test]
    fn commit_time_is_told_in_unix_time() {
        assert_eq!(PgMicros(0).unix_ms(), 946_684_800_000);
    }

    #[test]
    fn done_refuses_parts_out_of_order() {
        let part = |number: u32| BulkPart {
            number,
            table: TableId(1),
            rows: 1,
            raw_bytes: 1,
            stored_bytes: 1,
            rows_digest: Digest::default(),
        };
        let done = |numbers: &[u32]| {
            let attempt = Attempt {
                epoch: Epoch(1),
                number: 0,
            };
            let parts = numbers.iter().map(|number| part(*number)).collect();
            let done = CopyDone {
                attempt,
                snapshot: Lsn(1),
                parts,
            };
            CopyDone::decode(&serde_json::to_vec(&done).unwrap())
        };
        assert!(done(&[0, 3, 4]).is_ok());
        assert!(done(&[1, 0]).is_err());
        assert!(done(&[1, 1]).is_err(), "no part counts twice");
    }

    proptest! {
        #[test]
        fn any_bytes_never_panic(first: bool, last: bool, payload: Vec<u8>) {
            let frame = frame(FrameFlags { first, last }, &payload);
            let _ = TxnPart::decode(&frame);
            let _ = CopyBegin::decode(&payload);
            let _ = CopyDone::decode(&payload);
        }
    }
}
