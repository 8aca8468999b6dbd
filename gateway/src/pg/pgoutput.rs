//! Bytes of the `pgoutput` plugin (protocol 1, text values, messages on) to [`Message`]s. Pure: no state, no
//! catalog, nothing copied but the rare `Relation`. Everything is checked while a message is decoded, so
//! that walking a [`Tuple`] afterwards cannot fail.

mod reader;
#[cfg(test)]
mod tests;
mod tuple;

use rindle_proto::ids::{EndLsn, FinalLsn, Lsn, Oid};

use self::reader::Reader;
pub use self::tuple::{Cell, Cells, Tuple};

/// One message of the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// A transaction starts.
    Begin {
        /// Start of the transaction's commit record.
        final_lsn: FinalLsn,
        /// When it committed.
        commit_time: PgTime,
        /// Transaction id.
        xid: u32,
    },
    /// The transaction ends.
    Commit {
        /// Start of the commit record: equal to `Begin`'s.
        commit_lsn: FinalLsn,
        /// End of the commit record: what is acknowledged.
        end_lsn: EndLsn,
        /// When it committed.
        commit_time: PgTime,
    },
    /// The transaction came to this server from another one.
    Origin {
        /// Position of the commit on the other server.
        lsn: Lsn,
        /// Name of the origin.
        name: &'a str,
    },
    /// The shape of a relation, before its first change and after each change of shape.
    Relation(Relation),
    /// A type that a relation uses and that is not built in.
    Type {
        /// Object id of the type.
        oid: Oid,
        /// Its schema.
        namespace: &'a str,
        /// Its name.
        name: &'a str,
    },
    /// A row was inserted.
    Insert {
        /// The relation.
        rel: Oid,
        /// The row.
        new: Tuple<'a>,
    },
    /// A row was updated.
    Update {
        /// The relation.
        rel: Oid,
        /// What the row was, when the key changed or the identity is FULL.
        old: Option<(OldKind, Tuple<'a>)>,
        /// What the row is.
        new: Tuple<'a>,
    },
    /// A row was deleted.
    Delete {
        /// The relation.
        rel: Oid,
        /// What `old` holds.
        kind: OldKind,
        /// What the row was.
        old: Tuple<'a>,
    },
    /// Relations were emptied.
    Truncate {
        /// The published relations among them.
        rels: Vec<Oid>,
        /// CASCADE was said.
        cascade: bool,
        /// RESTART IDENTITY was said.
        restart: bool,
    },
    /// `pg_logical_emit_message`.
    Logical {
        /// Part of the transaction around it, or sent at once.
        transactional: bool,
        /// Position of the message.
        lsn: Lsn,
        /// Its prefix.
        prefix: &'a str,
        /// Its content.
        content: &'a [u8],
    },
}

/// Microseconds since 2000-01-01 00:00 UTC, as Postgres counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PgTime(pub i64);

/// What an old tuple holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OldKind {
    /// The columns of the replica identity; every other cell is NULL whatever the row held.
    Key,
    /// The whole row.
    Full,
}

/// The shape of a relation as the walsender decodes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relation {
    /// Object id.
    pub oid: Oid,
    /// Schema.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Replica identity: `d`, `i`, `f` or `n`.
    pub replident: char,
    /// Published columns in the order of the tuples.
    pub columns: Vec<RelationColumn>,
}

/// One column of a [`Relation`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelationColumn {
    /// Part of the replica identity.
    pub is_key: bool,
    /// Name.
    pub name: String,
    /// Type.
    pub type_oid: Oid,
    /// Type modifier; -1 for none.
    pub typmod: i32,
}

/// Bytes that are no pgoutput message of protocol 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("pgoutput message {tag:?}: expected {expected} at byte {offset} of {length}")]
pub struct DecodeError {
    /// The message's first byte; a space for an empty message.
    pub tag: char,
    /// What was expected.
    pub expected: &'static str,
    /// Where, in bytes from the start of the message.
    pub offset: usize,
    /// Length of the message.
    pub length: usize,
}

// Seconds from 1970-01-01 to 2000-01-01.
const PG_EPOCH: i64 = 946_684_800;

impl PgTime {
    /// Microseconds since 1970-01-01 00:00 UTC.
    pub fn unix_micros(self) -> i64 {
        self.0.saturating_add(PG_EPOCH * 1_000_000)
    }
}

/// Decodes one message: the payload of one `XLogData`.
///
/// # Errors
/// When the bytes are not exactly one message of protocol 1 with text values.
pub fn decode(bytes: &[u8]) -> Result<Message<'_>, DecodeError> {
    let mut reader = Reader::new(bytes);
    let message = match reader.tag() {
        b'B' => begin(&mut reader)?,
        b'C' => commit(&mut reader)?,
        b'O' => Message::Origin {
            lsn: reader.lsn()?,
            name: reader.text()?,
        },
        b'R' => Message::Relation(relation(&mut reader)?),
        b'Y' => Message::Type {
            oid: reader.oid()?,
            namespace: reader.text()?,
            name: reader.text()?,
        },
        b'I' => {
            let rel = reader.oid()?;
            reader.expect(b'N', "N before the new tuple")?;
            Message::Insert {
                rel,
                new: reader.tuple()?,
            }
        }
        b'U' => update(&mut reader)?,
        b'D' => {
            let rel = reader.oid()?;
            let kind = old_kind(reader.u8()?).ok_or_else(|| reader.before("K or O"))?;
            Message::Delete {
                rel,
                kind,
                old: reader.tuple()?,
            }
        }
        b'T' => truncate(&mut reader)?,
        b'M' => logical(&mut reader)?,
        _ => return Err(reader.before("a message of protocol 1")),
    };
    reader.end()?;
    Ok(message)
}

fn begin<'a>(reader: &mut Reader<'a>) -> Result<Message<'a>, DecodeError> {
    Ok(Message::Begin {
        final_lsn: FinalLsn(reader.lsn()?),
        commit_time: PgTime(reader.i64()?),
        xid: reader.u32()?,
    })
}

fn commit<'a>(reader: &mut Reader<'a>) -> Result<Message<'a>, DecodeError> {
    reader.expect(0, "flags 0")?;
    Ok(Message::Commit {
        commit_lsn: FinalLsn(reader.lsn()?),
        end_lsn: EndLsn(reader.lsn()?),
        commit_time: PgTime(reader.i64()?),
    })
}

fn relation(reader: &mut Reader<'_>) -> Result<Relation, DecodeError> {
    let oid = reader.oid()?;
    // Postgres sends its own schema as the empty name.
    let namespace = match reader.text()? {
        "" => "pg_catalog".to_owned(),
        name => name.to_owned(),
    };
    let name = reader.text()?.to_owned();
    let replident = char::from(reader.u8()?);
    if !matches!(replident, 'd' | 'i' | 'f' | 'n') {
        return Err(reader.before("replica identity d, i, f or n"));
    }
    // The least column is 10 bytes, so that a lying count allocates nothing large.
    let count = reader.count(10)?;
    let mut columns = Vec::with_capacity(count);
    for _ in 0..count {
        columns.push(RelationColumn {
            is_key: reader.u8()? & 1 == 1,
            name: reader.text()?.to_owned(),
            type_oid: reader.oid()?,
            typmod: reader.i32()?,
        });
    }
    Ok(Relation {
        oid,
        namespace,
        name,
        replident,
        columns,
    })
}

fn update<'a>(reader: &mut Reader<'a>) -> Result<Message<'a>, DecodeError> {
    let rel = reader.oid()?;
    let old = match reader.u8()? {
        b'N' => None,
        tag => {
            let kind = old_kind(tag).ok_or_else(|| reader.before("K, O or N"))?;
            let tuple = reader.tuple()?;
            reader.expect(b'N', "N before the new tuple")?;
            Some((kind, tuple))
        }
    };
    Ok(Message::Update {
        rel,
        old,
        new: reader.tuple()?,
    })
}

fn old_kind(tag: u8) -> Option<OldKind> {
    match tag {
        b'K' => Some(OldKind::Key),
        b'O' => Some(OldKind::Full),
        _ => None,
    }
}

fn truncate<'a>(reader: &mut Reader<'a>) -> Result<Message<'a>, DecodeError> {
    let count = reader.u32()? as usize;
    let flags = reader.u8()?;
    if flags > 3 {
        return Err(reader.before("flags of CASCADE and RESTART IDENTITY"));
    }
    if reader.left() != count.saturating_mul(4) {
        return Err(reader.here("one oid for each relation counted"));
    }
    let rels = (0..count).map(|_| reader.oid()).collect::<Result<_, _>>()?;
    Ok(Message::Truncate {
        rels,
        cascade: flags & 1 == 1,
        restart: flags & 2 == 2,
    })
}

fn logical<'a>(reader: &mut Reader<'a>) -> Result<Message<'a>, DecodeError> {
    let flags = reader.u8()?;
    if flags > 1 {
        return Err(reader.before("flags 0 or 1"));
    }
    let lsn = reader.lsn()?;
    let prefix = reader.text()?;
    let length = reader.u32()? as usize;
    let content = reader.bytes(length, "the content's bytes")?;
    Ok(Message::Logical {
        transactional: flags == 1,
        lsn,
        prefix,
        content,
    })
}
