//! `rindle pg verify`, the source's half: every published table at one position, as the canonical digest that the
//! mirror's half gives too. What is read, and how text becomes values, is the same as in the first copy.

mod read;

use std::collections::BTreeMap;

use rindle_proto::ids::{Lsn, SourceName};
use rindle_proto::schema::{Schema, Table};
use rindle_proto::verify::TableDigest;
use serde::Serialize;
use tokio_postgres::Client;

use super::error::LifecycleError;
use crate::copy::CopyTable;
use crate::pg::catalog::{self, CatalogView};
use crate::pg::conn;
use crate::pg::endpoint::Endpoint;
use crate::pg::snapshot;
use crate::pg::walsender::{CreatedSlot, WalError, WalStream, sqlstate};

/// How long the slot may wait for old transactions.
const SLOT_WAIT: &str = "30s";

/// Connections that read.
const READERS: usize = 4;

/// Digests by the tables' names in a mirror.
pub type Digests = BTreeMap<String, TableDigest>;

/// A source held still at one position.
#[derive(Debug)]
pub struct SourceSnapshot {
    endpoint: Endpoint,
    application_name: String,
    publication: String,
    lsn: Lsn,
    /// Holds the snapshot; the slot is gone already.
    keeper: Client,
    /// Name by which readers import it.
    shared: String,
    view: CatalogView,
    schema: Schema,
}

/// One table on both sides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Compared {
    /// Name in the mirror.
    pub table: String,
    /// Rows in the source; none when it does not publish the table.
    pub source_rows: Option<u64>,
    /// Rows in the mirror; none when it does not hold the table.
    pub mirror_rows: Option<u64>,
    /// Both hold the same rows, cell for cell.
    pub equal: bool,
}

/// A snapshot that nobody holds yet: it ends with the session that exported it.
#[derive(Debug)]
pub struct Exported {
    endpoint: Endpoint,
    application_name: String,
    publication: String,
    exporter: WalStream,
    slot: CreatedSlot,
}

/// Exports a snapshot through a temporary slot. A transaction is in it exactly when its `final_lsn` is below
/// [`Exported::lsn`]. A follower that is to be held there must be told at once.
///
/// # Errors
/// When Postgres refuses.
pub async fn export(
    endpoint: &Endpoint,
    source: &SourceName,
    publication: &str,
) -> Result<Exported, LifecycleError> {
    let application_name = format!("rindle-verify {source}");
    let session = |doing| move |source| LifecycleError::Session { doing, source };
    let mut exporter = WalStream::connect(endpoint, &application_name).await?;
    let bound = format!("SET lock_timeout = '{SLOT_WAIT}'");
    exporter
        .query(&bound)
        .await
        .map_err(session("bound the wait for old transactions"))?;
    let name = format!("rindle_verify_{}", exporter.backend_pid());
    let slot = match exporter.create_slot(&name, true, false).await {
        Ok(slot) => slot,
        Err(WalError::Server(error)) if error.code == sqlstate::LOCK_TIMEOUT => {
            return Err(LifecycleError::Blocked { waited: SLOT_WAIT });
        }
        Err(error) => return Err(session("export a snapshot")(error)),
    };
    let (endpoint, publication) = (endpoint.clone(), publication.to_owned());
    Ok(Exported {
        endpoint,
        application_name,
        publication,
        exporter,
        slot,
    })
}

impl Exported {
    /// The position.
    pub fn lsn(&self) -> Lsn {
        self.slot.consistent_point
    }

    /// Imports the snapshot into a session that holds it, and lets the slot go with the WAL that it keeps.
    ///
    /// # Errors
    /// When Postgres refuses, or a table cannot be mirrored.
    pub async fn keep(self) -> Result<SourceSnapshot, LifecycleError> {
        let keeper = conn::connect(&self.endpoint, &self.application_name).await?;
        let failed = LifecycleError::postgres("keep the snapshot");
        let shared = snapshot::keep(&keeper, &self.slot.snapshot_name, |_logged| {}).await;
        let shared = shared.map_err(&failed)?;
        self.exporter.close().await;
        let view = catalog::read_with_sizes(&keeper, &self.publication).await?;
        let schema = view.schema_of_fit().map_err(super::mint::unfit)?;
        Ok(SourceSnapshot {
            endpoint: self.endpoint,
            application_name: self.application_name,
            publication: self.publication,
            lsn: self.slot.consistent_point,
            keeper,
            shared,
            view,
            schema,
        })
    }
}

impl SourceSnapshot {
    /// The position.
    pub fn lsn(&self) -> Lsn {
        self.lsn
    }

    /// Names of the published tables in a mirror.
    pub fn tables(&self) -> Vec<String> {
        self.schema.tables.iter().map(Table::mirror_name).collect()
    }

    /// Reads every published table.
    ///
    /// # Errors
    /// When Postgres refuses, a value cannot be mirrored, or a table changed its shape meanwhile.
    pub async fn digests(self) -> Result<Digests, LifecycleError> {
        let mut plan: Vec<CopyTable> = self.view.copy_plan(&self.schema);
        catalog::read_filters(&self.keeper, self.view.publication.oid, &mut plan).await?;
        let readers = READERS.min(plan.len());
        let queue = read::Queue::new(plan);
        let mut running = tokio::task::JoinSet::new();
        for _ in 0..readers {
            let reader = conn::connect(&self.endpoint, &self.application_name).await?;
            running.spawn(read::run(reader, self.shared.clone(), queue.clone()));
        }
        let mut digests: Digests = self
            .schema
            .tables
            .iter()
            .map(|table| (table.mirror_name(), TableDigest::default()))
            .collect();
        while let Some(ended) = running.join_next().await {
            let part = match ended {
                Ok(read) => read?,
                Err(error) => std::panic::resume_unwind(error.into_panic()),
            };
            for (name, digest) in part {
                digests.entry(name).or_default().merge(&digest);
            }
        }
        self.check_shape().await?;
        Ok(digests)
    }

    /// Rows read under a snapshot may be wrong after a rename or a rewrite: no row of a table that changed its
    /// shape since counts.
    async fn check_shape(&self) -> Result<(), LifecycleError> {
        let now = conn::connect(&self.endpoint, &self.application_name).await?;
        let now = catalog::read(&now, &self.publication).await?;
        let changed = self
            .view
            .copy_facts_differ(&now)
            .or_else(|| shape_differs(&self.view, &now));
        // The keeper must have lived until here.
        let alive = self.keeper.batch_execute("COMMIT").await;
        alive.map_err(LifecycleError::postgres("keep the snapshot"))?;
        match changed {
            None => Ok(()),
            Some(what) => Err(LifecycleError::Changed { what }),
        }
    }
}

fn shape_differs(then: &CatalogView, now: &CatalogView) -> Option<String> {
    let relations = |view: &CatalogView| {
        let all = view
            .tables
            .iter()
            .flat_map(|table| std::iter::once(&table.relation).chain(&table.leaves));
        all.map(|rel| (rel.oid, rel.clone()))
            .collect::<BTreeMap<_, _>>()
    };
    let (then, now) = (relations(then), relations(now));
    let differs = then.iter().find(|(oid, then)| {
        now.get(oid).is_none_or(|now| {
            let shape = |rel: &catalog::RelationFacts| {
                (
                    rel.full_name(),
                    rel.filenode,
                    rel.columns.clone(),
                    rel.row_filter.clone(),
                )
            };
            shape(now) != shape(then)
        })
    });
    differs.map(|(_, rel)| format!("table {}", rel.full_name()))
}

/// Puts both sides next to each other.
pub fn compare(source: &Digests, mirror: &Digests) -> Vec<Compared> {
    let names: std::collections::BTreeSet<&String> = source.keys().chain(mirror.keys()).collect();
    let one = |name: &String| {
        let (source, mirror) = (source.get(name), mirror.get(name));
        Compared {
            table: name.clone(),
            source_rows: source.map(|digest| digest.rows),
            mirror_rows: mirror.map(|digest| digest.rows),
            equal: source.is_some() && source == mirror,
        }
    };
    names.into_iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digests(tables: &[(&str, &[&[u8]])]) -> Digests {
        let digest = |rows: &[&[u8]]| {
            let mut digest = TableDigest::default();
            rows.iter().for_each(|row| digest.add_row(row));
            digest
        };
        tables
            .iter()
            .map(|(name, rows)| ((*name).to_owned(), digest(rows)))
            .collect()
    }

    #[test]
    fn tells_different_rows_and_missing_tables() {
        let source = digests(&[("a", &[b"1", b"2"]), ("b", &[b"1"]), ("c", &[])]);
        let mirror = digests(&[("a", &[b"2", b"1"]), ("b", &[b"2"]), ("d", &[])]);
        let compared = compare(&source, &mirror);
        let equal: Vec<_> = compared
            .iter()
            .map(|one| (&*one.table, one.equal))
            .collect();
        assert_eq!(
            equal,
            [("a", true), ("b", false), ("c", false), ("d", false)]
        );
        assert_eq!(
            (compared[2].source_rows, compared[2].mirror_rows),
            (Some(0), None)
        );
    }
}
