//! The first copy of a generation, from its begin frame to its done frame.

use rindle_proto::body::{CopyBegin, CopyDone, CopyScope};
use rindle_proto::frame::Frame;
use rindle_proto::ids::{EndLsn, Position};
use rindle_proto::schema::Schema;
use rusqlite::Connection;

use super::error::MirrorError;
use super::load::{self, Load};
use super::{Applied, BulkSource, Copying, Cursor, Mirror, Open, bad_frame, decode_error};
use super::{ddl, local, meta};

impl Mirror {
    pub(super) fn begin_copy(
        &mut self,
        frame: &Frame,
        after: Position,
    ) -> Result<Applied, MirrorError> {
        let begin = CopyBegin::decode(&frame.payload).map_err(decode_error(frame))?;
        if self.has_open_txn() {
            return Err(bad_frame(
                frame,
                "a copy begins inside another or a transaction",
            ));
        }
        let CopyScope::Genesis(schema) = &begin.scope;
        if self.cursor.is_some_and(|cursor| cursor.complete) {
            return Err(bad_frame(
                frame,
                "a first copy begins after it was complete",
            ));
        }
        if schema.shown().count() < schema.tables.len() {
            return Err(bad_frame(frame, "a first copy has a table that waits"));
        }
        self.open = Open::Copy(after, Box::new(begin));
        Ok(Applied::default())
    }

    pub(super) fn finish_copy(
        &mut self,
        frame: &Frame,
        after: Position,
        bulk: &mut dyn BulkSource,
    ) -> Result<Applied, MirrorError> {
        let done = CopyDone::decode(&frame.payload).map_err(decode_error(frame))?;
        let begin = match &self.open {
            Open::Copy(_, begin) if begin.attempt == done.attempt => begin.as_ref().clone(),
            _ => return Err(bad_frame(frame, "a copy is done that has not begun")),
        };
        let CopyScope::Genesis(schema) = begin.scope;
        let before = self.cursor.ok_or(MirrorError::NotStarted)?;
        let loads: Vec<Load> = schema.tables.iter().map(Load::table).collect();
        let mut parts = load::Parts {
            what: Copying::First,
            attempt: done.attempt,
            parts: &done.parts,
            bulk,
        };
        self.loaded = true;
        load::clear(&self.conn)?;
        let ops = load::parts(&self.conn, &mut self.wal, &loads, &mut parts)?;
        let cursor = Cursor {
            position: after,
            // Everything below the snapshot is in the copy; the stream goes on from exactly there.
            end_lsn: EndLsn(done.snapshot),
            complete: true,
            ..before
        };
        self.begin()?;
        reveal(&self.conn, &schema, &loads)?;
        local::ensure(&self.conn, &schema, &self.options.indexes)?;
        self.schema = schema;
        self.edited();
        self.open = Open::Group(cursor);
        self.commit()?;
        Ok(Applied {
            committed_txn: true,
            ops,
            ..Applied::default()
        })
    }
}

/// Gives the loaded tables their names; the caller commits.
fn reveal(conn: &Connection, schema: &Schema, loads: &[Load]) -> Result<(), MirrorError> {
    for (table, load) in schema.tables.iter().zip(loads) {
        let name = table.mirror_name();
        ddl::rename_table(conn, &load.name(), &name)?;
        meta::put_table(conn, &name, schema, table)?;
    }
    Ok(())
}
