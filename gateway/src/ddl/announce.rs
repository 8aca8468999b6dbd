//! What a message of the stream announces: the row that proves it, and facts that it could not see.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rindle_proto::ids::Oid;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Row};

use super::believed::Believed;
use super::former::{Doubt, View};
use crate::pg::catalog::{self, CatalogError, Patch, PublicationFacts, RelationFacts};
use crate::pg::snapshot::{self, Patience, ShownError};

/// Only the definer of the capture functions writes these rows, in the transaction that emits the message.
const ROW: &str = "SELECT xid::text, facts::text FROM rindle.published_schema WHERE id = $1";

/// A transaction is sent as soon as its commit is in the WAL, a moment before others see it (much longer where it waits
/// for a synchronous standby). It holds the lock on its id until they do.
const COMMITTING: &str = "SELECT EXISTS (SELECT FROM pg_catalog.pg_locks \
    WHERE locktype = 'transactionid' AND mode = 'ExclusiveLock' AND transactionid = $1::text::xid)";

/// The longest pause between two looks at a transaction that is committing.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// A message of the stream that announces something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Of the row that says what.
    pub id: i64,
    /// Transaction that must have written it.
    pub xid: u32,
}

/// What an announcement says.
#[derive(Debug)]
pub struct Announced {
    /// Transaction that wrote the row: the low 32 bits.
    pub xid: u32,
    /// What it says.
    pub patch: Patch,
    /// Relations of which it may not say everything.
    pub unsure: BTreeSet<Oid>,
}

/// Why an announcement could not be read.
#[derive(Debug, thiserror::Error)]
pub enum AnnounceError {
    /// The role may not.
    #[error(
        "the gateway's role may not read rindle.published_schema, which says what a migration did: run rindle pg \
         prepare --role"
    )]
    Refused(#[source] tokio_postgres::Error),
    /// A row that this program does not understand.
    #[error(
        "row {id} of rindle.published_schema is not understood ({detail}): rindle pg prepare of another version made it; \
         run a gateway of that version"
    )]
    Strange {
        /// Of the row.
        id: i64,
        /// What is wrong.
        detail: String,
    },
    /// It is not known how far the catalog shows.
    #[error(transparent)]
    Shown(#[from] ShownError),
    /// The query failed: it is asked again.
    #[error("read what a migration did")]
    Query(#[from] tokio_postgres::Error),
    /// The catalog could not be read: it is asked again.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
}

impl AnnounceError {
    /// True when asking again, after a new connection, may help.
    pub fn is_transient(&self) -> bool {
        matches!(
            self,
            AnnounceError::Query(_)
                | AnnounceError::Catalog(_)
                | AnnounceError::Shown(ShownError::Query(_))
        )
    }
}

/// The row of an announcement; none when there is no such row.
///
/// # Errors
/// See [`AnnounceError`].
pub async fn read(
    client: &Client,
    asked: Asked,
    believed: &Believed,
) -> Result<Option<Announced>, AnnounceError> {
    let Asked { id, xid } = asked;
    let Some(row) = committed_row(client, id, xid).await? else {
        return Ok(None);
    };
    let strange = |detail: String| AnnounceError::Strange { id, detail };
    let xid: &str = row.try_get(0)?;
    let xid: u64 = xid
        .parse()
        .map_err(|_no_number| strange(format!("transaction {xid}")))?;
    let patch: Patch =
        serde_json::from_str(row.try_get(1)?).map_err(|error| strange(error.to_string()))?;
    if patch.v != 1 {
        return Err(strange(format!("version {}", patch.v)));
    }
    let low = xid & u64::from(u32::MAX);
    let mut announced = Announced {
        xid: u32::try_from(low).unwrap_or_default(),
        patch,
        unsure: BTreeSet::new(),
    };
    let patch = &mut announced.patch;
    patch.xid = xid;
    if announced.patch.copied.is_none() {
        let patch = &mut announced.patch;
        if !patch.stale {
            let own = std::mem::take(&mut patch.own).into_iter();
            patch.own = own
                .filter(|oid| !believed.formers.moved(*oid, patch))
                .collect();
        }
        patch.stale |= believed.formers.overtook(patch);
        complete(client, &mut announced, believed).await?;
        // They served to read the rest; a belief has no use for them.
        announced.patch.own.clear();
        announced.patch.snapshot = None;
    }
    Ok(Some(announced))
}

/// Waits until others see what the transaction did, whose commit the stream has told.
///
/// # Errors
/// When Postgres cannot be asked.
pub(super) async fn until_visible(client: &Client, xid: u32) -> Result<(), AnnounceError> {
    let mut patience = Patience::new(LONGEST_PAUSE);
    while is_committing(client, xid).await? {
        patience.pause(|| tell(xid)).await;
    }
    Ok(())
}

fn tell(xid: u32) {
    tracing::warn!("the stream is {}", snapshot::waits(&xid.to_string()));
}

async fn is_committing(client: &Client, xid: u32) -> Result<bool, AnnounceError> {
    let asked = client.query_one(COMMITTING, &[&xid.to_string()]).await?;
    Ok(asked.try_get(0)?)
}

async fn committed_row(client: &Client, id: i64, xid: u32) -> Result<Option<Row>, AnnounceError> {
    let mut patience = Patience::new(LONGEST_PAUSE);
    loop {
        // Asked before the row is read: whatever is not committing then, is seen by the query after it.
        let committing = is_committing(client, xid).await?;
        let row = match client.query_opt(ROW, &[&id]).await {
            Err(error) if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {
                return Err(AnnounceError::Refused(error));
            }
            Err(error) if error.code() == Some(&SqlState::UNDEFINED_TABLE) => return Ok(None),
            row => row?,
        };
        if row.is_some() || !committing {
            return Ok(row);
        }
        patience.pause(|| tell(xid)).await;
    }
}

/// Reads what the message's transaction could not see: in REPEATABLE READ the catalog is as old as the snapshot, in any
/// level as old as the message.
async fn complete(
    client: &Client,
    announced: &mut Announced,
    believed: &Believed,
) -> Result<(), AnnounceError> {
    let mut is_read = false;
    let patch = &mut announced.patch;
    if patch.stale {
        // What others added is not left out.
        patch.full = false;
        let mut doubt = Doubt::default();
        // What others dropped does not come back.
        let dropped = |oid: Oid| believed.was_mirrored(oid);
        if let Some(seen) = patch.publications.take() {
            let now = catalog::read_publications(client, believed.facts.publication.oid).await?;
            let (left, unsure) = published(&seen, now, believed);
            (patch.publications, doubt) = (Some(left), unsure);
        }
        let named: Vec<Oid> = patch
            .relations
            .iter()
            .map(|relation| relation.oid)
            .collect();
        let fresh = catalog::read_relations(client, &named).await?;
        let now: BTreeSet<Oid> = fresh.relations.iter().map(|it| it.oid).collect();
        patch
            .relations
            .retain(|it| now.contains(&it.oid) || !dropped(it.oid));
        announced.unsure = adopt(patch, fresh, believed);
        let relations = believed.facts.relations.values();
        let in_doubt = relations.filter(|it| doubt.schemas.contains(&it.namespace));
        announced.unsure.extend(in_doubt.map(|it| it.oid));
        announced.unsure.extend(doubt.relations);
        is_read = true;
    }
    let patch = &mut announced.patch;
    let unknown = believed
        .facts
        .patched(patch)
        .map(|facts| facts.unknown_members())
        .unwrap_or_default();
    if !unknown.is_empty() {
        let fresh = catalog::read_relations(client, &unknown).await?;
        patch.relations.extend(fresh.relations);
        patch.types.extend(fresh.types);
        is_read = true;
    }
    if is_read {
        // What was read before shows no more than this.
        let now = snapshot::shown(client).await?;
        announced.patch.read = Some(now.shortened());
    }
    Ok(())
}

/// The publication as a transaction with an old snapshot leaves it.
fn published(
    seen: &[PublicationFacts],
    now: Vec<PublicationFacts>,
    believed: &Believed,
) -> (Vec<PublicationFacts>, Doubt) {
    let known = &believed.facts.publication;
    let Some(seen) = seen.iter().find(|it| it.oid == known.oid) else {
        return (now, Doubt::default());
    };
    // Only the one that is followed was read.
    let Some(now) = now.first() else {
        return (Vec::new(), Doubt::default());
    };
    let (left, doubt) = believed.formers.publication(seen, now, known);
    (vec![left], doubt)
}

/// Takes fresh facts over stale ones, and says which relations they differ in. Names are not taken: those of this moment
/// may be somebody's who renamed later, and the stream knows no such name yet.
pub(super) fn adopt(patch: &mut Patch, fresh: Patch, believed: &Believed) -> BTreeSet<Oid> {
    let mut now: BTreeMap<Oid, RelationFacts> =
        fresh.relations.into_iter().map(|it| (it.oid, it)).collect();
    let known = |oid: Oid| believed.facts.relations.get(&oid);
    let (own, by_hand) = (&patch.own, patch.is_by_hand());
    // A message may name a relation twice: as its transaction left it, and then as others did before.
    let mut listed = BTreeSet::new();
    patch.relations.retain(|it| listed.insert(it.oid));
    let mut unsure = BTreeSet::new();
    for relation in &mut patch.relations {
        let fresh = now
            .remove(&relation.oid)
            .unwrap_or_else(|| relation.clone());
        // Sizes and files change by themselves, and a name changes no row.
        let same = RelationFacts {
            pages: relation.pages,
            filenode: relation.filenode,
            schema: relation.schema.clone(),
            namespace: relation.namespace,
            name: relation.name.clone(),
            ..fresh.clone()
        } == *relation;
        if !same {
            unsure.insert(relation.oid);
        }
        let view = View {
            seen: Some(&*relation),
            believed: known(relation.oid),
            is_own: own.contains(&relation.oid),
            by_hand,
        };
        *relation = believed.formers.named(fresh, view);
    }
    unsure.extend(now.keys().copied());
    let others = now.into_values().map(|it| {
        let view = View {
            believed: known(it.oid),
            ..View::default()
        };
        believed.formers.named(it, view)
    });
    patch.relations.extend(others);
    // A label of later makes its tables wait now; one that was forgotten would never.
    patch.types = fresh.types;
    unsure
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pg::catalog::samples::{column, facts, first, relation};

    const T: u32 = 20_000;

    /// What transaction 100 says.
    fn patch(relations: Vec<RelationFacts>) -> Patch {
        Patch {
            v: 1,
            xid: 100,
            relations,
            ..Patch::default()
        }
    }

    /// What transaction 90 says, under a snapshot.
    fn of_90(shown: &str, relations: Vec<RelationFacts>) -> Patch {
        Patch {
            xid: 90,
            snapshot: Some(shown.parse().unwrap()),
            ..patch(relations)
        }
    }

    fn wider() -> RelationFacts {
        let mut relation = relation(T);
        relation.columns.push(column(3, "others", 23));
        relation
    }

    #[test]
    fn what_others_added_is_kept_though_a_message_names_the_table_twice() {
        let believed = Believed::first(first(facts(vec![wider()]))).unwrap();
        let mut stale = patch(vec![relation(T), relation(T)]);
        let unsure = adopt(&mut stale, patch(vec![wider()]), &believed);
        assert_eq!(stale.relations, [wider()]);
        assert_eq!(unsure, BTreeSet::from([Oid(T)]));
    }

    #[test]
    fn b3_what_is_published_while_its_schema_is_renamed_has_the_new_name() {
        let mut believed = Believed::first(first(facts(vec![]))).unwrap();
        let mut relation = relation(T);
        relation.namespace = Oid(2200);
        let renamed = Patch {
            schemas: vec![(Oid(2200), "there".to_owned())],
            ..patch(vec![])
        };
        let none = BTreeSet::new();
        let around = crate::ddl::believed::Around {
            final_lsn: rindle_proto::ids::FinalLsn(rindle_proto::ids::Lsn(100)),
            strangers: &none,
            rewritten: &BTreeMap::new(),
            unsure: &none,
        };
        believed = believed.learn(&renamed, around).unwrap().believed;
        let overtook = |shown: &str| {
            let named = of_90(shown, vec![relation.clone()]);
            believed.formers.overtook(&named)
        };
        assert!(overtook("90:101:90,100"));
        assert!(!overtook("90:101:90"), "it was sent later, and knows");
        // Somebody renamed it once more, of which the stream knows nothing yet.
        let later = RelationFacts {
            schema: "later".to_owned(),
            ..relation.clone()
        };
        let mut stale = patch(vec![relation]);
        adopt(&mut stale, patch(vec![later]), &believed);
        assert_eq!(stale.relations[0].schema, "there");
    }

    #[test]
    fn b1_a_message_that_others_overtook_is_read_anew() {
        let [before, after] = [relation(T), wider()].map(|it| facts(vec![it]));
        let mut believed = Believed::first(first(before)).unwrap();
        let said = patch(vec![wider()]);
        believed
            .formers
            .note(&believed.facts.clone(), &after, &said);
        believed.facts = after.clone();
        let overtook = |believed: &Believed, shown: &str| {
            let named = of_90(shown, vec![relation(T)]);
            believed.formers.overtook(&named)
        };
        assert!(overtook(&believed, "90:101:90,100"));
        assert!(
            !overtook(&believed, "90:101:90"),
            "it was sent later, and knows"
        );
        let own = Patch {
            xid: 100,
            ..of_90("90:101:90,100", vec![relation(T)])
        };
        assert!(!believed.formers.overtook(&own), "the change is its own");
        // What was read later than its transaction is newer than messages from before that.
        let read = Patch {
            read: Some("90:120:90,110".parse().unwrap()),
            ..patch(vec![wider()])
        };
        believed.formers.note(&after, &after, &read);
        assert!(overtook(&believed, "90:101:90"));
        assert!(overtook(&believed, "90:130:90,115"));
        assert!(!overtook(&believed, "90:130:90,110"));
    }
}
