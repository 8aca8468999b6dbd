//! One connection that copies range after range.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use rindle_archive::{BulkError, Kind, failpoint};
use rindle_proto::body::BulkPart;
use rindle_proto::row::put_row_head;
use rindle_proto::schema::{Table, TableId};
use tokio_postgres::Client;

use super::{CopyError, Pace, Range, Shared};
use crate::assemble::put_value;
use crate::pg::copytext::RowDecoder;
use crate::pg::pgoutput::Cell;
use crate::pg::snapshot;
use crate::ship::{chain, told};

/// A bulk part is closed at this many bytes of rows.
const PART_BYTES: usize = 8 << 20;

/// Bytes of rows after which a paced copy looks at the clock.
const STEP_BYTES: usize = 64 << 10;

/// Pauses before a range is copied again.
const RETRY_MIN: Duration = Duration::from_millis(200);
const RETRY_MAX: Duration = Duration::from_secs(5);

/// Shape and storage of a table: what a change between snapshot and lock would alter.
const FACTS: &str = "SELECT pg_catalog.concat_ws('|', c.relfilenode, c.relnamespace, c.relname, c.relkind, \
    (SELECT pg_catalog.string_agg(pg_catalog.concat_ws(',', a.attnum, a.attname, a.atttypid, a.atttypmod, \
     a.attisdropped), ';' ORDER BY a.attnum) FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0)) \
    FROM pg_catalog.pg_class c WHERE c.oid = $1";

struct Worker {
    shared: Arc<Shared>,
    reader: Client,
    /// Sees the present, not the snapshot.
    checker: Client,
    rows: RowDecoder,
    scratch: String,
    clock: Clock,
}

/// Holds a copy to its pace.
struct Clock {
    pace: Pace,
    /// Rows read since then are accounted for.
    free_at: tokio::time::Instant,
    bytes: usize,
}

impl Clock {
    /// Waits until that many bytes more may have been read. Time in which nothing was read is not made up for.
    async fn read(&mut self, bytes: usize) {
        let Pace::Gentle(per_second) = self.pace else {
            return;
        };
        self.bytes += bytes;
        if self.bytes < STEP_BYTES {
            return;
        }
        let took = Duration::from_secs_f64(self.bytes as f64 / per_second.max(1) as f64);
        self.bytes = 0;
        self.free_at = self.free_at.max(tokio::time::Instant::now()) + took;
        tokio::time::sleep_until(self.free_at).await;
    }
}

/// The rows of a part that is being filled.
#[derive(Default)]
struct Filling {
    rows: Vec<u8>,
    count: u64,
}

/// What became of a range.
enum Outcome {
    /// All its rows are durable.
    Done(Vec<BulkPart>),
    /// The archive took no writes; the range is copied again when it does.
    Interrupted(BulkError),
}

/// Takes ranges until none is left.
pub(super) async fn run(shared: Arc<Shared>) -> Result<(), CopyError> {
    let connect = || crate::pg::conn::connect(&shared.job.endpoint, &shared.job.application_name);
    let reader = connect().await?;
    let checker = connect().await?;
    let mut worker = Worker {
        shared: Arc::clone(&shared),
        reader,
        checker,
        rows: RowDecoder::new(),
        scratch: String::new(),
        clock: Clock {
            pace: shared.job.pace,
            free_at: tokio::time::Instant::now(),
            bytes: 0,
        },
    };
    while let Some(range) = shared.next_range() {
        let mut pause = RETRY_MIN;
        loop {
            match worker.copy(&range).await? {
                Outcome::Done(parts) => break shared.range_done(&range, parts),
                Outcome::Interrupted(error) => {
                    shared.waits(format!("the archive takes no writes: {}", chain(&error)))
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(RETRY_MAX);
        }
    }
    Ok(())
}

impl Worker {
    /// One range in one transaction: the table lock is held no longer than its COPY, and not while the archive is
    /// away. Its parts count only when all of them are durable.
    async fn copy(&mut self, range: &Range) -> Result<Outcome, CopyError> {
        let table = &range.table.table;
        let failed = |source| CopyError::Postgres {
            table: name(table),
            source,
        };
        let begin = format!(
            "{}; LOCK TABLE ONLY {} IN ACCESS SHARE MODE",
            snapshot::import(&self.shared.job.snapshot),
            range.table.quoted_name
        );
        self.reader.batch_execute(&begin).await.map_err(failed)?;
        self.check(range).await?;
        let outcome = self.read(range).await?;
        self.reader.batch_execute("COMMIT").await.map_err(failed)?;
        Ok(outcome)
    }

    async fn read(&mut self, range: &Range) -> Result<Outcome, CopyError> {
        let table = &range.table.table;
        let failed = |source| CopyError::Postgres {
            table: name(table),
            source,
        };
        let mut filling = Filling::default();
        let mut parts = Vec::new();
        let stream = self.reader.copy_out(&copy_sql(range)).await;
        let mut stream = Box::pin(stream.map_err(failed)?);
        while let Some(line) = stream.next().await {
            let line = line.map_err(failed)?;
            add_row(
                &mut filling,
                &mut self.rows,
                &mut self.scratch,
                table,
                &line,
            )?;
            self.clock.read(line.len()).await;
            if filling.rows.len() >= PART_BYTES {
                match put_part(
                    &self.shared,
                    range.table.target,
                    std::mem::take(&mut filling),
                )
                .await
                {
                    Ok(part) => parts.push(part),
                    Err(error) => return interrupted(error),
                }
            }
        }
        if filling.count > 0 {
            match put_part(&self.shared, range.table.target, filling).await {
                Ok(part) => parts.push(part),
                Err(error) => return interrupted(error),
            }
        }
        Ok(Outcome::Done(parts))
    }

    /// With the lock held nothing can change any more; what changed before shows as a difference.
    async fn check(&self, range: &Range) -> Result<(), CopyError> {
        let failed = |source| CopyError::Postgres {
            table: name(&range.table.table),
            source,
        };
        let rel = range.table.rel.0;
        let then = self
            .reader
            .query_opt(FACTS, &[&rel])
            .await
            .map_err(failed)?;
        let now = self
            .checker
            .query_opt(FACTS, &[&rel])
            .await
            .map_err(failed)?;
        let facts = |row: Option<tokio_postgres::Row>| row.map(|row| row.get::<_, String>(0));
        match (facts(then), facts(now)) {
            (Some(then), Some(now)) if then == now => Ok(()),
            _ => Err(CopyError::Changed {
                table: name(&range.table.table),
            }),
        }
    }
}

fn copy_sql(range: &Range) -> String {
    let columns: Vec<String> = range
        .table
        .table
        .columns
        .iter()
        .map(|column| crate::pg::catalog::quote_ident(&column.name))
        .collect();
    let mut conditions = Vec::new();
    if range.from > 0 {
        conditions.push(format!("ctid >= '({},0)'::pg_catalog.tid", range.from));
    }
    if let Some(to) = range.to {
        conditions.push(format!("ctid < '({to},0)'::pg_catalog.tid"));
    }
    if let Some(filter) = &range.table.filter {
        conditions.push(format!("({filter})"));
    }
    let filter = match conditions.is_empty() {
        true => String::new(),
        false => format!(" WHERE {}", conditions.join(" AND ")),
    };
    format!(
        "COPY (SELECT {} FROM ONLY {}{filter}) TO STDOUT",
        columns.join(", "),
        range.table.quoted_name
    )
}

fn add_row(
    filling: &mut Filling,
    decoder: &mut RowDecoder,
    scratch: &mut String,
    table: &Table,
    line: &[u8],
) -> Result<(), CopyError> {
    let text = |detail: String| CopyError::Text {
        table: name(table),
        detail,
    };
    let line = line
        .strip_suffix(b"\n")
        .ok_or_else(|| text("a row without its newline".to_owned()))?;
    let row = decoder
        .decode(line, table.columns.len())
        .map_err(|error| text(error.to_string()))?;
    if filling.rows.capacity() == 0 {
        filling.rows.reserve(PART_BYTES + (64 << 10));
    }
    put_row_head(&mut filling.rows, table.columns.len());
    for (at, field) in row.iter().enumerate() {
        let cell = field.map_or(Cell::Null, Cell::Text);
        put_value(&mut filling.rows, table, at, cell, scratch).map_err(CopyError::Row)?;
    }
    filling.count += 1;
    Ok(())
}

/// Writes one part. A part whose write failed is written anew, under another number, with its range.
async fn put_part(
    shared: &Shared,
    target: TableId,
    filled: Filling,
) -> Result<BulkPart, BulkError> {
    let number = shared.next_part_number();
    let job = &shared.job;
    let put = job
        .archive
        .put_bulk(job.attempt, number, target, filled.count, filled.rows);
    let part = told(&job.state, put).await?;
    failpoint::reach(failpoint::GATEWAY_PART_DURABLE);
    Ok(part)
}

fn interrupted(error: BulkError) -> Result<Outcome, CopyError> {
    match error.kind() {
        Kind::Retry => Ok(Outcome::Interrupted(error)),
        _ => Err(error.into()),
    }
}

fn name(table: &Table) -> String {
    format!("{}.{}", table.schema, table.name)
}
