//! An image of a mirror: written, published, and proved by restoring it.

use std::path::Path;

use rindle_archive::failpoint;
use rindle_archive::image::TableRows;
use rindle_archive::{ImageBase, ImageInfo, Images};
use rindle_follower::mirror::ddl::quote;
use rindle_follower::mirror::{Cursor, Mirror, MirrorError, image, open_reader};
use rindle_proto::schema::Schema;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use crate::error::ProducerError;
use crate::progress::{Step, Watch};
use crate::replay::wait;
use crate::scratch::{beside, remove, remove_mirror};

/// What moving images needs.
#[derive(Debug)]
pub(crate) struct Mover<'a> {
    pub(crate) images: &'a Images,
    /// Files beside this one are used.
    pub(crate) scratch: &'a Path,
    pub(crate) runtime: &'a Handle,
    pub(crate) stop: &'a CancellationToken,
    pub(crate) watch: &'a Watch,
}

impl Mover<'_> {
    /// Publishes the mirror as of its last commit.
    pub(crate) fn publish(&self, mirror: &mut Mirror) -> Result<ImageInfo, ProducerError> {
        let file = beside(self.scratch, "image");
        remove(&file)?;
        failpoint::reach(failpoint::PRODUCER_REPLAYED);
        image::write(mirror, &file)?;
        failpoint::reach(failpoint::PRODUCER_IMAGE_MADE);
        let cursor = mirror.cursor().ok_or(MirrorError::NotStarted)?;
        let base = base(&file, mirror.schema(), &cursor)?;
        let watch = self.watch.clone();
        let told = move |at: rindle_archive::image::Progress| {
            watch.tell_bytes(Step::Publishing, at.done_bytes, at.total_bytes);
        };
        let published = self.wait(self.images.publish(&file, base, told));
        remove(&file)?;
        failpoint::reach(failpoint::PRODUCER_PUBLISHED);
        Ok(published??)
    }

    /// Restores an image, looks through every page and counts every row; marks it as proved when all is as it
    /// was published.
    pub(crate) fn prove(&self, info: &ImageInfo) -> Result<(), ProducerError> {
        let file = beside(self.scratch, "proof");
        remove_mirror(&file)?;
        let watch = self.watch.clone();
        let told = move |at: rindle_archive::image::Progress| {
            watch.tell_bytes(Step::Proving, at.done_bytes, at.total_bytes);
        };
        let proved = self
            .wait(self.images.fetch(info, &file, told))
            .and_then(|restored| {
                restored?;
                let facts = image::prove(&file)?;
                same(info, &facts)
            });
        remove_mirror(&file)?;
        proved?;
        Ok(self.wait(self.images.mark_verified(info))??)
    }

    fn wait<T>(&self, work: impl Future<Output = T>) -> Result<T, ProducerError> {
        wait(self.runtime, self.stop, work)
    }
}

fn base(file: &Path, schema: &Schema, cursor: &Cursor) -> Result<ImageBase, ProducerError> {
    let reader = open_reader(file)?;
    let count = |name: String| {
        let sql = format!("SELECT count(*) FROM {}", quote(&name));
        let rows = reader.query_row(&sql, [], |row| row.get::<_, i64>(0));
        let doing = "count the rows of an image";
        let rows = rows.map_err(|source| MirrorError::Sqlite { doing, source })?;
        Ok::<_, MirrorError>(TableRows {
            table: name,
            rows: rows.cast_unsigned(),
        })
    };
    let names = schema.shown().map(rindle_proto::schema::Table::mirror_name);
    let tables = names.map(count).collect::<Result<_, _>>()?;
    Ok(ImageBase {
        segment: cursor
            .segment
            .expect("a scratch mirror notes the object of each commit"),
        position: cursor.position,
        epoch: cursor.epoch,
        end_lsn: cursor.end_lsn,
        tables,
    })
}

/// The restored file must be what the manifest says.
fn same(info: &ImageInfo, facts: &image::ImageFacts) -> Result<(), ProducerError> {
    let differs = |what: String| ProducerError::Unproved {
        image: info.id.clone(),
        what,
    };
    let (base, cursor) = (&info.base, &facts.cursor);
    if (cursor.position, cursor.end_lsn) != (base.position, base.end_lsn) {
        let (is, was) = (cursor.position.seq, base.position.seq);
        return Err(differs(format!(
            "it stands at frame {is}, the manifest says {was}"
        )));
    }
    let names = facts
        .schema
        .shown()
        .map(rindle_proto::schema::Table::mirror_name);
    let rows = names.zip(&facts.rows);
    let found: Vec<TableRows> = rows
        .map(|(table, rows)| TableRows { table, rows: *rows })
        .collect();
    match found == base.tables {
        true => Ok(()),
        false => Err(differs(format!(
            "its rows are {found:?}, the manifest says {:?}",
            base.tables
        ))),
    }
}
