//! Relations that send rows and that no message named. Whoever makes a table in a schema does not see that somebody else is
//! just publishing the schema, and the other way round: so neither announces the table. The catalog of later shows both.

use std::collections::{BTreeMap, BTreeSet};

use rindle_proto::ids::Oid;
use tokio_postgres::Client;

use super::announce::{self, AnnounceError};
use super::believed::Believed;
use crate::pg::catalog::{self, Patch};
use crate::pg::snapshot;

/// Relations of which rows came in one transaction, and nothing says what they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown {
    /// The transaction.
    pub xid: u32,
    /// Them, with the schema and the name that the stream gave them.
    pub relations: BTreeMap<Oid, (String, String)>,
}

/// What the catalog says of them. Their rows are copied, as those of every table that comes with rows.
#[derive(Debug)]
pub struct Introduced {
    /// The facts.
    pub patch: Patch,
    /// Relations whose rows are to be copied.
    pub unsure: BTreeSet<Oid>,
    /// Not published any more, or dropped: no mirror has them. One that is published again is copied then.
    pub gone: BTreeSet<Oid>,
    /// Dropped: they do not come back.
    pub dropped: BTreeSet<Oid>,
}

/// Reads what the relations are now.
///
/// # Errors
/// See [`AnnounceError`].
pub async fn read(
    client: &Client,
    unknown: &Unknown,
    believed: &Believed,
) -> Result<Introduced, AnnounceError> {
    // Before that the catalog does not show what it made, which would be taken for dropped.
    announce::until_visible(client, unknown.xid).await?;
    let named: Vec<Oid> = unknown.relations.keys().copied().collect();
    let now = catalog::read_facts(client, &believed.facts.publication.name).await?;
    let (here, gone): (Vec<Oid>, Vec<Oid>) = named
        .iter()
        .partition(|oid| now.relations.contains_key(oid));
    let there = catalog::read_relations(client, &gone).await?;
    let is_there = |oid: &Oid| there.relations.iter().any(|it| it.oid == *oid);
    let dropped = gone.iter().filter(|oid| !is_there(oid)).copied().collect();
    let mut fresh = catalog::read_relations(client, &here).await?;
    for relation in &mut fresh.relations {
        // Later ones may have other names, and somebody else this one.
        if let Some((schema, name)) = unknown.relations.get(&relation.oid) {
            relation.schema.clone_from(schema);
            relation.name.clone_from(name);
        }
    }
    // What was read before shows no more than this.
    let now = snapshot::shown(client).await?;
    let mut patch = Patch {
        v: 1,
        xid: now.widened(unknown.xid),
        stale: true,
        read: Some(now.shortened()),
        ..Patch::default()
    };
    let unsure = announce::adopt(&mut patch, fresh, believed);
    tracing::info!(
        relations = ?unknown.relations,
        not_published = ?gone,
        "rows of relations that nothing announced, as of a table that is made while its schema is published: those that are \
         published are copied"
    );
    Ok(Introduced {
        patch,
        unsure,
        gone: gone.into_iter().collect(),
        dropped,
    })
}
