//! Messages of one walsender session to frames. Pure: bytes in, frames appended to a [`FrameWriter`].
//!
//! What a frame holds depends on what is believed and on the transaction alone (I3): the same transaction gives the same
//! bytes in every session. A transaction larger than memory leaves in parts of about [`PART_BYTES`]. Every shape the
//! walsender announces is checked against what is believed; a schema change is announced inside its transaction, and
//! whoever drives this reads what it says ([`Assembled::Announced`]) before the next message is taken in.

mod open;
mod relations;
mod rows;
mod strangers;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rindle_archive::{Commit, CommitKind};
use rindle_proto::body::{Copied, PgMicros, TxnStart, put_txn_end, put_txn_start};
use rindle_proto::frame::{FrameFlags, FrameKind, FrameWriter, PART_BYTES};
use rindle_proto::ids::{EndLsn, FinalLsn, Oid, Position};
use rindle_proto::op;
use rindle_proto::schema::{Table, TableId};

use self::open::{Held, OpenTxn};
use self::relations::{Known, Relations, Rows};
pub(crate) use self::rows::put_value;
use self::rows::{put_key, put_row};
use crate::ddl::Believed;
use crate::ddl::announce::{Announced, Asked};
use crate::ddl::believed::{Around, Noted};
use crate::ddl::introduce::Unknown;
use crate::halt::HaltReason;
use crate::pg::catalog::Patch;
use crate::pg::pgoutput::{Message, Tuple};

/// Prefix of the messages that announce schema changes and finished copies.
const PREFIX: &str = "rindle";

/// Key of what `rindle.copied` is first called with: the parts are durable, and nothing is shown yet.
pub const DURABLE: &str = "durable";

/// Turns the messages of one session into frames.
#[derive(Debug)]
pub struct Assembler {
    believed: Arc<Believed>,
    relations: Relations,
    writer: FrameWriter,
    open: Option<OpenTxn>,
    /// Relations that nothing announced and that are dropped: of transactions from before that rows may still come.
    dropped: BTreeSet<Oid>,
    /// The last transaction may come out otherwise when it comes again.
    provisional: bool,
    scratch: String,
}

/// What a message did.
#[derive(Clone, Debug, PartialEq)]
pub enum Assembled {
    /// Nothing that matters to the position.
    Quiet,
    /// A schema change, or the end of a copy, is announced: [`Assembler::announced`] must be told what the row says
    /// before the next message.
    Announced(Asked),
    /// A transaction is about to commit that sent rows of relations that nothing announced: [`Assembler::introduced`] must
    /// be told what they are before the next message.
    Strange(Unknown),
    /// A transaction committed; with no commit when it changed nothing that is mirrored.
    Committed {
        /// End of its commit record.
        end_lsn: EndLsn,
        /// The commit as the archive records it.
        commit: Option<Commit>,
    },
}

impl Assembler {
    /// Continues after `position` with what is believed there.
    pub fn new(believed: Arc<Believed>, position: Position) -> Self {
        Self {
            believed,
            relations: Relations::default(),
            writer: FrameWriter::new(position),
            open: None,
            dropped: BTreeSet::new(),
            provisional: false,
            scratch: String::new(),
        }
    }

    /// The same after `position`, with what is believed there: the log says otherwise what the last transaction is.
    pub fn corrected(mut self, believed: Arc<Believed>, position: Position) -> Self {
        self.relations.forget();
        Self {
            believed,
            writer: FrameWriter::new(position),
            ..self
        }
    }

    /// True when the last transaction may come out otherwise when it comes again: what it announces was read when it
    /// came, or it holds text that depends on labels, which change under open transactions.
    pub fn is_provisional(&self) -> bool {
        self.provisional
    }

    /// What is believed after the last message.
    pub fn believed(&self) -> &Arc<Believed> {
        &self.believed
    }

    /// True between Begin and Commit.
    pub fn in_txn(&self) -> bool {
        self.open.is_some()
    }

    /// The frames made so far; finished ones may be taken out at any time.
    pub fn writer(&mut self) -> &mut FrameWriter {
        &mut self.writer
    }

    /// Takes in one message.
    ///
    /// # Errors
    /// When the message cannot be turned into frames without a guess. Nothing may be taken in afterwards.
    pub fn take(&mut self, message: Message<'_>) -> Result<Assembled, HaltReason> {
        match message {
            Message::Begin {
                final_lsn,
                commit_time,
                xid,
            } => self.begin(final_lsn, commit_time.0, xid)?,
            Message::Commit {
                commit_lsn,
                end_lsn,
                ..
            } => return self.ended(commit_lsn, end_lsn),
            Message::Relation(relation) => {
                let open = self.open.as_ref();
                if let Some(reason) = open.and_then(|txn| txn.refuses(relation.oid)) {
                    return Err(reason);
                }
                self.relations.learn(relation, &self.believed)?;
            }
            Message::Insert { rel, new } => self.insert(rel, new)?,
            Message::Update { rel, old, new } => {
                self.update(rel, old.map(|(_, tuple)| tuple), new)?
            }
            Message::Delete { rel, old, .. } => self.delete(rel, old)?,
            Message::Truncate { rels, .. } => self.truncate(&rels)?,
            Message::Logical {
                transactional: true,
                prefix: PREFIX,
                content,
                ..
            } => return Ok(self.announcement(content)),
            // Messages of other software, and origins and types, which change no row.
            Message::Origin { .. } | Message::Type { .. } | Message::Logical { .. } => {}
        }
        Ok(Assembled::Quiet)
    }

    /// The id in a message of ours; anything else is somebody's who took our prefix.
    fn announcement(&self, content: &[u8]) -> Assembled {
        let id = std::str::from_utf8(content).ok();
        let id = id.and_then(|text| text.parse().ok());
        match id.zip(self.open.as_ref()) {
            Some((id, txn)) => Assembled::Announced(Asked {
                id,
                xid: txn.start.xid,
            }),
            None => {
                tracing::warn!("a message with our prefix that is none of ours is passed over");
                Assembled::Quiet
            }
        }
    }

    /// Takes in what the last [`Assembled::Announced`] announces; nothing when no row proves it.
    ///
    /// # Errors
    /// As [`Assembler::take`]; and [`HaltReason::SchemaRefused`] for a change that no mirror follows.
    pub fn announced(&mut self, id: i64, row: Option<Announced>) -> Result<(), HaltReason> {
        let txn = self
            .open
            .as_mut()
            .ok_or_else(|| damaged("a message outside a transaction"))?;
        let genuine = row.filter(|row| row.xid == txn.start.xid && id > txn.announced);
        let Some(row) = genuine else {
            tracing::warn!(
                id,
                xid = txn.start.xid,
                "a message with our prefix that no row of rindle.published_schema proves is passed over; if a schema change \
                 went with it, the stream stops at it by name"
            );
            return Ok(());
        };
        txn.announced = id;
        self.provisional |= row.patch.stale;
        if let Some(copied) = &row.patch.copied {
            return self.copied(copied);
        }
        if !row.patch.rewritten.is_empty() {
            for (oid, reason) in &row.patch.rewritten {
                *txn.rewritten.entry(*oid).or_default() |= reason;
            }
            return Ok(());
        }
        let named: Vec<Oid> = row
            .patch
            .relations
            .iter()
            .map(|relation| relation.oid)
            .collect();
        let rewritten = std::mem::take(&mut txn.rewritten);
        let (now, later) = rewritten
            .into_iter()
            .partition(|(oid, _)| named.contains(oid));
        txn.rewritten = later;
        self.learn(row.patch, now, row.unsure)
    }

    fn learn(
        &mut self,
        mut patch: Patch,
        mut rewritten: BTreeMap<Oid, i32>,
        mut unsure: BTreeSet<Oid>,
    ) -> Result<(), HaltReason> {
        let txn = self
            .open
            .as_mut()
            .ok_or_else(|| damaged("a message outside a transaction"))?;
        if let Some(held) = txn.held.take() {
            patch = held.patch.then(patch);
            unsure.extend(held.unsure);
            for (oid, reason) in held.rewritten {
                *rewritten.entry(oid).or_default() |= reason;
            }
        }
        self.believed.make_way(&mut patch);
        let around = Around {
            final_lsn: txn.final_lsn,
            strangers: &txn.strangers,
            rewritten: &rewritten,
            unsure: &unsure,
        };
        let learned = match self.believed.learn(&patch, around) {
            Err(reason @ HaltReason::SchemaRefused { .. }) => {
                txn.held = Some(Held {
                    patch,
                    rewritten,
                    unsure,
                    reason,
                });
                return Ok(());
            }
            learned => learned?,
        };
        let tells_nothing = patch.schemas.is_empty() && patch.retyped.is_empty();
        let changes_nothing =
            learned.changes.is_empty() && learned.believed.facts == self.believed.facts;
        if tells_nothing && changes_nothing {
            return Ok(());
        }
        let out = room(&mut self.writer, &mut self.open)?;
        let unspoken = |error: serde_json::Error| damaged(&error.to_string());
        op::put_facts(
            out,
            &serde_json::to_vec(&Noted::Patch(Box::new(patch))).map_err(unspoken)?,
        );
        for change in &learned.changes {
            op::put_schema(out, change).map_err(unspoken)?;
        }
        self.believed = Arc::new(learned.believed);
        self.relations.forget();
        Ok(())
    }

    /// A copy is complete, or about to be: its parts are durable. It counts only as the first thing of its transaction,
    /// since followers load before it.
    fn copied(&mut self, document: &serde_json::Value) -> Result<(), HaltReason> {
        let first =
            self.writer.payload().is_none() && self.open.as_ref().is_some_and(|txn| txn.first);
        let durable = document.get(DURABLE);
        let copied = Copied::decode(durable.unwrap_or(document).to_string().as_bytes())
            .ok()
            .filter(|_| first);
        let next = copied.and_then(|copied| Some((self.believed.copied(&copied)?, copied)));
        let Some((believed, copied)) = next else {
            tracing::info!("a copy that nothing waits for, or that is void, is passed over");
            return Ok(());
        };
        let out = room(&mut self.writer, &mut self.open)?;
        if durable.is_some() {
            // Shows nothing, and nothing is believed of it.
            return op::put_copying(out, &copied).map_err(|error| damaged(&error.to_string()));
        }
        op::put_copied(out, &copied).map_err(|error| damaged(&error.to_string()))?;
        self.believed = Arc::new(believed);
        self.relations.forget();
        Ok(())
    }

    fn begin(&mut self, final_lsn: FinalLsn, commit_time: i64, xid: u32) -> Result<(), HaltReason> {
        if self.open.is_some() {
            return Err(damaged("a transaction begins inside another"));
        }
        let start = TxnStart {
            xid,
            commit_time: PgMicros(commit_time),
        };
        self.provisional = false;
        self.open = Some(OpenTxn {
            final_lsn,
            start,
            before: self.writer.position(),
            first: true,
            announced: 0,
            strangers: BTreeSet::new(),
            rewritten: BTreeMap::new(),
            held: None,
            ended: None,
        });
        Ok(())
    }

    /// What its messages left open.
    fn settle(&mut self) -> Result<(), HaltReason> {
        let Some(txn) = self.open.as_mut() else {
            return Ok(());
        };
        let rewritten = std::mem::take(&mut txn.rewritten);
        if !rewritten.is_empty() {
            self.learn(Patch::default(), rewritten, BTreeSet::new())?;
        }
        let Some(txn) = self.open.as_ref() else {
            return Ok(());
        };
        if let Some(held) = &txn.held {
            return Err(held.reason.clone());
        }
        Ok(())
    }

    fn commit(&mut self, commit_lsn: FinalLsn, end_lsn: EndLsn) -> Result<Assembled, HaltReason> {
        if let Some((_, (schema, name))) = self.unknown().first_key_value() {
            return Err(HaltReason::SchemaChanged {
                table: format!("{schema}.{name}"),
                detail: "it sends rows, and nothing announced that it is published".to_owned(),
            });
        }
        let txn = self
            .open
            .take()
            .ok_or_else(|| damaged("a commit outside a transaction"))?;
        if txn.final_lsn != commit_lsn {
            return Err(damaged("a commit of another transaction than began"));
        }
        let Some(payload) = self.writer.payload() else {
            return Ok(Assembled::Committed {
                end_lsn,
                commit: None,
            });
        };
        put_txn_end(payload, end_lsn);
        let flags = FrameFlags {
            first: txn.first,
            last: true,
        };
        let position = finish(&mut self.writer, flags, txn.final_lsn)?;
        let commit = Commit {
            kind: CommitKind::Txn,
            position,
            before: txn.before,
            final_lsn: txn.final_lsn,
            end_lsn,
            xid: txn.start.xid,
            commit_time: txn.start.commit_time,
        };
        Ok(Assembled::Committed {
            end_lsn,
            commit: Some(commit),
        })
    }

    fn insert(&mut self, rel: Oid, new: Tuple<'_>) -> Result<(), HaltReason> {
        self.each(rel, |out, known, table, scratch| {
            op::put_insert(out, known.target);
            put_row(out, known, table, new, None, scratch, |_| {
                "an inserted row lacks a large value: its update moved it into the row filter; set REPLICA IDENTITY \
                 FULL on the table"
                    .to_owned()
            })
        })
    }

    fn update(
        &mut self,
        rel: Oid,
        old: Option<Tuple<'_>>,
        new: Tuple<'_>,
    ) -> Result<(), HaltReason> {
        self.each(rel, |out, known, table, scratch| {
            match old.filter(|old| known.key_differs(table, *old, new)) {
                Some(old) => {
                    op::put_rekey(out, known.target);
                    put_key(out, known, table, old, scratch)?;
                }
                None => op::put_update(out, known.target),
            }
            let no_key = |column: &str| {
                format!(
                    "an update leaves the key column {column:?} out and sends no old key: set the replica identity to \
                     the row key's index"
                )
            };
            put_row(out, known, table, new, Some(old), scratch, no_key)
        })
    }

    fn delete(&mut self, rel: Oid, old: Tuple<'_>) -> Result<(), HaltReason> {
        self.each(rel, |out, known, table, scratch| {
            op::put_delete(out, known.target);
            put_key(out, known, table, old, scratch)
        })
    }

    /// Calls `put` for each table that a row of `rel` goes to.
    fn each(
        &mut self,
        rel: Oid,
        put: impl Fn(&mut Vec<u8>, &Known, &Table, &mut String) -> Result<(), HaltReason>,
    ) -> Result<(), HaltReason> {
        let Self {
            believed,
            relations,
            writer,
            open,
            dropped,
            provisional,
            scratch,
        } = self;
        if let Some(reason) = open.as_ref().and_then(|txn| txn.refuses(rel)) {
            return Err(reason);
        }
        let known = match relations.find(rel, believed)? {
            Rows::Ignored => return Ok(()),
            Rows::Strange if dropped.contains(&rel) => return Ok(()),
            Rows::Strange => {
                let txn = open
                    .as_mut()
                    .ok_or_else(|| damaged("a change outside a transaction"))?;
                txn.strangers.insert(rel);
                return Ok(());
            }
            Rows::Go(known) => known,
        };
        for known in known {
            *provisional |= known.has_labels;
            if known.passes_over() {
                pass_over(believed, writer, open, known.target)?;
                continue;
            }
            let table = believed.schema.table(known.table);
            let table = table.ok_or_else(|| damaged("a row of a table that is not believed"))?;
            put(room(writer, open)?, known, table, scratch)?;
        }
        Ok(())
    }

    fn truncate(&mut self, rels: &[Oid]) -> Result<(), HaltReason> {
        let Self {
            believed,
            relations,
            writer,
            open,
            ..
        } = self;
        let mut emptied: Vec<TableId> = Vec::new();
        for rel in rels {
            if let Some(reason) = open.as_ref().and_then(|txn| txn.refuses(*rel)) {
                return Err(reason);
            }

            if let Rows::Go(known) = relations.find(*rel, believed)? {
                for known in known {
                    let table = believed.schema.table(known.table);
                    let via_root =
                        table.is_some_and(|table| table.oid != *rel && known.target == known.table);
                    if via_root {
                        let table = table.map(|table| format!("{}.{}", table.schema, table.name));
                        return Err(HaltReason::SchemaChanged {
                            table: table.unwrap_or_default(),
                            detail:
                                "a partition was truncated, and which rows were in it is not known"
                                    .to_owned(),
                        });
                    }
                    if !emptied.contains(&known.target) {
                        emptied.push(known.target);
                    }
                }
            }
        }
        if !emptied.is_empty() {
            op::put_truncate(room(writer, open)?, &emptied);
        }
        Ok(())
    }
}

/// Writes down that a copy must bring the rows of this transaction, once a transaction.
fn pass_over(
    believed: &mut Arc<Believed>,
    writer: &mut FrameWriter,
    open: &mut Option<OpenTxn>,
    target: TableId,
) -> Result<(), HaltReason> {
    let at = open
        .as_ref()
        .ok_or_else(|| damaged("a change outside a transaction"))?
        .final_lsn;
    if !Arc::make_mut(believed).pass_over(target, at) {
        return Ok(());
    }
    let noted = serde_json::to_vec(&Noted::PassedOver(target))
        .map_err(|error| damaged(&error.to_string()))?;
    op::put_facts(room(writer, open)?, &noted);
    Ok(())
}

/// The payload of a frame in which the next operation may start. The cut depends on the transaction alone.
fn room<'w>(
    writer: &'w mut FrameWriter,
    open: &mut Option<OpenTxn>,
) -> Result<&'w mut Vec<u8>, HaltReason> {
    let txn = open
        .as_mut()
        .ok_or_else(|| damaged("a change outside a transaction"))?;
    if writer.payload_len() >= PART_BYTES {
        finish(
            writer,
            FrameFlags {
                first: txn.first,
                last: false,
            },
            txn.final_lsn,
        )?;
        txn.first = false;
    }
    if writer.payload().is_none() {
        let (first, start) = (txn.first, txn.start);
        let payload = writer.open();
        if first {
            put_txn_start(payload, start);
        }
    }
    writer.payload().ok_or_else(|| damaged("no frame is open"))
}

fn finish(
    writer: &mut FrameWriter,
    flags: FrameFlags,
    lsn: FinalLsn,
) -> Result<Position, HaltReason> {
    let finished = writer.finish(FrameKind::Txn, flags, lsn.0);
    finished.map_err(|too_long| damaged(&too_long.to_string()))
}

fn damaged(detail: &str) -> HaltReason {
    HaltReason::StreamDamaged {
        detail: detail.to_owned(),
    }
}
