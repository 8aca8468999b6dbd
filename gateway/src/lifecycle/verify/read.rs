//! Reading tables under a shared snapshot, several at once.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::StreamExt as _;
use rindle_proto::row::put_row_head;
use rindle_proto::schema::Table;
use rindle_proto::verify::TableDigest;
use tokio_postgres::Client;

use super::Digests;
use crate::assemble::put_value;
use crate::copy::CopyTable;
use crate::lifecycle::error::LifecycleError;
use crate::pg::catalog::quote_ident;
use crate::pg::copytext::RowDecoder;
use crate::pg::pgoutput::Cell;
use crate::pg::snapshot;

/// Tables that wait for a reader, big ones first. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Queue(Arc<Mutex<VecDeque<CopyTable>>>);

impl Queue {
    pub(super) fn new(mut tables: Vec<CopyTable>) -> Self {
        tables.sort_by_key(|table| std::cmp::Reverse(table.pages));
        Self(Arc::new(Mutex::new(tables.into())))
    }

    fn next(&self) -> Option<CopyTable> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop_front()
    }
}

/// Reads tables until none is left.
pub(super) async fn run(
    reader: Client,
    snapshot: String,
    queue: Queue,
) -> Result<Digests, LifecycleError> {
    let mut digests = Digests::new();
    while let Some(table) = queue.next() {
        // A transaction for each table: its lock is held no longer than it is read.
        let failed = LifecycleError::postgres("read the source");
        reader
            .batch_execute(&snapshot::import(&snapshot))
            .await
            .map_err(&failed)?;
        let digest = digest(&reader, &table).await?;
        reader.batch_execute("COMMIT").await.map_err(&failed)?;
        digests
            .entry(table.table.mirror_name())
            .or_default()
            .merge(&digest);
    }
    Ok(digests)
}

async fn digest(reader: &Client, source: &CopyTable) -> Result<TableDigest, LifecycleError> {
    let table = &source.table;
    let doing = format!("read {}", source.quoted_name);
    let failed = LifecycleError::postgres(&doing);
    let rows = reader.copy_out(&copy_sql(source)).await.map_err(&failed)?;
    let mut rows = pin!(rows);
    let (mut decoder, mut scratch, mut bytes) = (RowDecoder::new(), String::new(), Vec::new());
    let mut digest = TableDigest::default();
    while let Some(line) = rows.next().await {
        let line = line.map_err(&failed)?;
        bytes.clear();
        put_row(&mut bytes, table, &mut decoder, &mut scratch, &line)?;
        digest.add_row(&bytes);
    }
    Ok(digest)
}

fn put_row(
    out: &mut Vec<u8>,
    table: &Table,
    decoder: &mut RowDecoder,
    scratch: &mut String,
    line: &[u8],
) -> Result<(), LifecycleError> {
    let unusable = |detail: String| LifecycleError::Row { detail };
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let row = decoder.decode(line, table.columns.len());
    let row = row.map_err(|error| unusable(format!("{}: {error}", table.mirror_name())))?;
    put_row_head(out, table.columns.len());
    for (at, field) in row.iter().enumerate() {
        let cell = field.map_or(Cell::Null, Cell::Text);
        put_value(out, table, at, cell, scratch).map_err(|reason| unusable(reason.to_string()))?;
    }
    Ok(())
}

fn copy_sql(source: &CopyTable) -> String {
    let columns: Vec<String> = source
        .table
        .columns
        .iter()
        .map(|column| quote_ident(&column.name))
        .collect();
    let filter = source
        .filter
        .as_ref()
        .map(|filter| format!(" WHERE ({filter})"));
    format!(
        "COPY (SELECT {} FROM ONLY {}{}) TO STDOUT",
        columns.join(", "),
        source.quoted_name,
        filter.unwrap_or_default()
    )
}
