//! Replication commands with an answer of one row.

use rindle_proto::ids::{Lsn, Timeline};

use super::{WalError, WalStream, identifier, reply};

/// Who the server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SystemIdentity {
    /// System identifier, the same on a primary and its standbys.
    pub systemid: String,
    /// Its timeline.
    pub timeline: Timeline,
    /// How far its WAL is flushed.
    pub xlogpos: Lsn,
    /// The session's database.
    pub dbname: String,
}

/// A slot that was just created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreatedSlot {
    /// Where decoding starts: a transaction is in the snapshot exactly when its `final_lsn` is below this.
    pub consistent_point: Lsn,
    /// Name by which another session imports the snapshot, until this session's next command.
    pub snapshot_name: String,
}

impl WalStream {
    /// `IDENTIFY_SYSTEM`.
    ///
    /// # Errors
    /// As [`WalStream::query`].
    pub async fn identify_system(&mut self) -> Result<SystemIdentity, WalError> {
        let rows = self.query("IDENTIFY_SYSTEM").await?;
        let unlike = || WalError::unexpected("system id, timeline, position and database");
        let [row] = <[_; 1]>::try_from(rows).map_err(|_rows| unlike())?;
        match &row[..] {
            [Some(systemid), Some(timeline), Some(position), Some(dbname)] => Ok(SystemIdentity {
                systemid: systemid.clone(),
                timeline: Timeline(timeline.parse().map_err(|_number| unlike())?),
                xlogpos: position.parse().map_err(|_lsn| unlike())?,
                dbname: dbname.clone(),
            }),
            _ => Err(unlike()),
        }
    }

    /// `TIMELINE_HISTORY`: each earlier timeline and where it was left, oldest first. Empty for timeline 1.
    ///
    /// # Errors
    /// As [`WalStream::query`]; SQLSTATE 58P01 when the server has no such history.
    pub async fn timeline_history(
        &mut self,
        timeline: Timeline,
    ) -> Result<Vec<(Timeline, Lsn)>, WalError> {
        if timeline.0 <= 1 {
            return Ok(Vec::new());
        }
        let rows = self
            .raw_query(&format!("TIMELINE_HISTORY {timeline}"))
            .await?;
        let content = rows
            .into_iter()
            .next()
            .and_then(|row| row.into_iter().nth(1))
            .flatten();
        let content = content.ok_or_else(|| WalError::unexpected("a timeline history"))?;
        // Comments may be in any encoding; the lines that count are ASCII.
        reply::history(&String::from_utf8_lossy(&content))
    }

    /// Creates a logical slot and exports the snapshot at its start. To bound the wait for old transactions,
    /// `SET lock_timeout` before: the attempt then ends with SQLSTATE 55P03 and leaves no slot.
    ///
    /// # Errors
    /// As [`WalStream::query`]; SQLSTATE 42710 when the slot exists.
    pub async fn create_slot(
        &mut self,
        name: &str,
        temporary: bool,
        failover: bool,
    ) -> Result<CreatedSlot, WalError> {
        let slot = identifier(name);
        let temporary = if temporary { " TEMPORARY" } else { "" };
        let failover = if failover { ", FAILOVER" } else { "" };
        let rows = self
            .query(&format!(
                "CREATE_REPLICATION_SLOT {slot}{temporary} LOGICAL pgoutput (SNAPSHOT 'export'{failover})"
            ))
            .await?;
        let unlike = || WalError::unexpected("slot, position and snapshot");
        let [row] = <[_; 1]>::try_from(rows).map_err(|_rows| unlike())?;
        match &row[..] {
            [_, Some(position), Some(snapshot), ..] => Ok(CreatedSlot {
                consistent_point: position.parse().map_err(|_lsn| unlike())?,
                snapshot_name: snapshot.clone(),
            }),
            _ => Err(unlike()),
        }
    }
}
