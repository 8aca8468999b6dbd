//! The catalog as facts: what a gateway believes, what a schema message patches, what an audit reads. Pure.
//!
//! Names, keys and columns of the mirror are never kept: they follow from the facts by [`Facts::view`] and
//! [`CatalogView::table`], so that a change of any fact shows as a difference of two mirrors and in no other way.

use std::collections::{BTreeMap, BTreeSet};

use rindle_proto::ids::Oid;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{CatalogView, Member, PublicationFacts, RelationFacts, ServerFacts, TableFacts};
use crate::pg::visibility::Snapshot;

/// Objects below this oid are the server's own.
const FIRST_NORMAL_OID: Oid = Oid(16_384);

/// Our own schema: published by FOR ALL TABLES, never mirrored.
pub(super) const OUR_SCHEMA: &str = "rindle";

/// A publication and everything that it publishes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// The server.
    pub server: ServerFacts,
    /// The publication.
    pub publication: PublicationFacts,
    /// Every relation that it publishes, and every partition of one.
    pub relations: BTreeMap<Oid, RelationFacts>,
    /// The types that their columns use and that are made of other types or labels.
    pub types: BTreeMap<Oid, TypeShape>,
}

/// A type as far as the text of its values depends on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "TypeRow", into = "TypeRow")]
pub struct TypeShape {
    /// Its name.
    pub name: String,
    /// `typtype`.
    pub typtype: char,
    /// Element, base and subtype.
    pub parts: Vec<Oid>,
    /// Labels of an enum; number, type and modifier of a composite's attributes.
    pub shape: Value,
}

#[derive(Clone, Serialize, Deserialize)]
struct TypeRow(String, char, [Option<Oid>; 3], Value);

impl From<TypeRow> for TypeShape {
    fn from(TypeRow(name, typtype, parts, shape): TypeRow) -> Self {
        let parts = parts.into_iter().flatten().collect();
        Self {
            name,
            typtype,
            parts,
            shape,
        }
    }
}

impl From<TypeShape> for TypeRow {
    fn from(shape: TypeShape) -> Self {
        let mut parts = shape.parts.into_iter();
        let parts = [parts.next(), parts.next(), parts.next()];
        Self(shape.name, shape.typtype, parts, shape.shape)
    }
}

/// A type as a query gives it: oid, name, `typtype`, element and base and subtype, shape.
pub type NamedType = (Oid, String, char, [Option<Oid>; 3], Value);

/// The tag of what `rindle.schema_hook()` tells.
const BY_HAND: &str = "SCHEMA HOOK";

/// What a schema message says; see `designs/006-schema-changes.md`, "Facts".
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Patch {
    /// Version of the document.
    pub v: u32,
    /// Command tag, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// What others committed since the transaction's snapshot may be missing.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub stale: bool,
    /// Transaction that says it. The row tells it, not the document.
    pub xid: u64,
    /// What the rest shows: others had committed that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<Snapshot>,
    /// Facts were read after the transaction, and show no more than this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read: Option<Snapshot>,
    /// It names everything there is.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub full: bool,
    /// Relations as they are now.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub relations: Vec<RelationFacts>,
    /// Of those whose name and schema the transaction itself wrote.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub own: Vec<Oid>,
    /// Relations that the command made.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub created: Vec<Oid>,
    /// Types that the relations use.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub types: Vec<NamedType>,
    /// Schemas that the command altered, and what they are called now.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub schemas: Vec<(Oid, String)>,
    /// Types that the command altered, whoever uses them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub retyped: Vec<Oid>,
    /// All publications of the database, when the command concerned one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub publications: Option<Vec<PublicationFacts>>,
    /// Relations and indexes that are gone.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub dropped: Vec<Oid>,
    /// Relations that the command rewrites, and `pg_event_trigger_table_rewrite_reason()`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rewritten: Vec<(Oid, i32)>,
    /// Relations that an operator wants copied anew.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub resync: Vec<Oid>,
    /// A backfill is complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub copied: Option<Value>,
}

impl Patch {
    /// `rindle.schema_hook()` made it: event triggers, which tell of rewrites, may not be there.
    pub fn is_by_hand(&self) -> bool {
        (self.full || self.stale) && self.tag.as_deref() == Some(BY_HAND)
    }
}

impl Patch {
    /// What this and then `next` say together.
    #[must_use]
    pub fn then(mut self, next: Patch) -> Patch {
        let named = |oid: Oid| next.relations.iter().any(|it| it.oid == oid);
        // A message names a relation with all its partitions: one that is not named in it left.
        let stays = |it: &RelationFacts| {
            !named(it.oid)
                && !it.parent.is_some_and(named)
                && !next.dropped.contains(&it.oid)
                && !next.full
        };
        self.relations.retain(stays);
        self.relations.extend(next.relations);
        self.own.extend(next.own);
        self.created.extend(next.created);
        self.types.extend(next.types);
        self.schemas.extend(next.schemas);
        self.retyped.extend(next.retyped);
        self.publications = next.publications.or(self.publications);
        self.dropped.extend(next.dropped);
        self.resync.extend(next.resync);
        Patch {
            v: next.v,
            tag: next.tag,
            stale: self.stale || next.stale,
            full: self.full || next.full,
            read: next.read.or(self.read),
            ..self
        }
    }

    /// It says something of the relation.
    pub fn names(&self, oid: Oid) -> bool {
        self.relations.iter().any(|it| it.oid == oid)
    }
}

/// A patch that ends what is believed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatchError {
    /// The publication is gone.
    #[error("publication {0:?} was dropped")]
    NoPublication(String),
}

impl Facts {
    /// The facts after `patch`.
    ///
    /// # Errors
    /// When the publication is gone.
    pub fn patched(&self, patch: &Patch) -> Result<Facts, PatchError> {
        let mut facts = self.clone();
        if let Some(publications) = &patch.publications {
            let own = publications
                .iter()
                .find(|it| it.oid == self.publication.oid);
            let own =
                own.ok_or_else(|| PatchError::NoPublication(self.publication.name.clone()))?;
            facts.publication = own.clone();
            facts.sort_members();
        }
        facts.detach_what_is_left_out(patch);
        for oid in &patch.dropped {
            facts.relations.remove(oid);
            for relation in facts.relations.values_mut() {
                relation.indexes.retain(|index| index.oid != *oid);
            }
        }
        for relation in &patch.relations {
            facts.relations.insert(relation.oid, relation.clone());
        }
        for (oid, name) in &patch.schemas {
            let within = |it: &&mut RelationFacts| it.namespace == *oid;
            for relation in facts.relations.values_mut().filter(within) {
                relation.schema.clone_from(name);
            }
        }
        for (oid, name, typtype, parts, shape) in &patch.types {
            let row = TypeRow(name.clone(), *typtype, *parts, shape.clone());
            facts.types.insert(*oid, row.into());
        }
        facts.prune();
        Ok(facts)
    }

    /// In the order of their oids, by which they are looked for.
    pub(super) fn sort_members(&mut self) {
        self.publication.tables.sort_by_key(|member| member.oid);
    }

    /// A message names a relation with all its partitions: one that was among them and is not named left.
    fn detach_what_is_left_out(&mut self, patch: &Patch) {
        let named: BTreeSet<Oid> = patch
            .relations
            .iter()
            .map(|relation| relation.oid)
            .collect();
        if patch.full {
            self.relations.retain(|oid, _| named.contains(oid));
            return;
        }
        let trees: BTreeSet<Oid> = named.iter().map(|oid| self.topmost(*oid)).collect();
        let left: Vec<Oid> = self
            .relations
            .values()
            .filter(|it| {
                it.parent.is_some()
                    && !named.contains(&it.oid)
                    && trees.contains(&self.topmost(it.oid))
            })
            .map(|it| it.oid)
            .collect();
        for oid in left {
            // The rest of a detached tree goes with its own root.
            let parent = self.relations.get(&oid).and_then(|it| it.parent);
            let parent_stays = parent.is_some_and(|parent| named.contains(&parent));
            if let Some(relation) = self.relations.get_mut(&oid).filter(|_| parent_stays) {
                relation.parent = None;
            }
        }
    }

    /// Forgets what the publication does not publish.
    fn prune(&mut self) {
        let kept: BTreeSet<Oid> = self
            .relations
            .keys()
            .copied()
            .filter(|oid| self.top(*oid).is_some())
            .collect();
        self.relations.retain(|oid, _| kept.contains(oid));
        let used = self.used_types(self.relations.values());
        self.types.retain(|oid, _| used.contains(oid));
    }

    /// The facts of some tables of the mirror, by the oids of their topmost relations.
    pub fn only(&self, tops: &[Oid]) -> Facts {
        let mut facts = self.clone();
        facts
            .relations
            .retain(|oid, _| self.top(*oid).is_some_and(|top| tops.contains(&top)));
        let used = facts.used_types(facts.relations.values());
        facts.types.retain(|oid, _| used.contains(oid));
        facts
    }

    /// Named relations of the publication about which nothing is known.
    pub fn unknown_members(&self) -> Vec<Oid> {
        let named = self.publication.tables.iter().map(|member| member.oid);
        named
            .filter(|oid| !self.relations.contains_key(oid))
            .collect()
    }

    /// Types that columns use, directly or through other types.
    pub fn used_types<'a>(
        &self,
        relations: impl IntoIterator<Item = &'a RelationFacts>,
    ) -> BTreeSet<Oid> {
        let columns = relations.into_iter().flat_map(|relation| &relation.columns);
        let mut used: BTreeSet<Oid> = columns.map(|column| column.type_oid).collect();
        let mut open: Vec<Oid> = used.iter().copied().collect();
        while let Some(oid) = open.pop() {
            let Some(shape) = self.types.get(&oid) else {
                continue;
            };
            let attributes = shape.shape.as_array().into_iter().flatten();
            let attributes =
                attributes.filter_map(|it| u32::try_from(it.get(1)?.as_u64()?).ok().map(Oid));
            let next: Vec<Oid> = shape.parts.iter().copied().chain(attributes).collect();
            open.extend(next.into_iter().filter(|oid| used.insert(*oid)));
        }
        used
    }

    fn member(&self, oid: Oid) -> Option<&Member> {
        let members = &self.publication.tables;
        let found = members.binary_search_by_key(&oid, |member| member.oid);
        found.ok().map(|at| &members[at])
    }

    fn topmost(&self, oid: Oid) -> Oid {
        self.ancestors(oid).last().unwrap_or(oid)
    }

    /// What a relation is a partition of, nearest first.
    pub(crate) fn ancestors(&self, oid: Oid) -> impl Iterator<Item = Oid> + '_ {
        let parent = |oid: Oid| {
            self.relations
                .get(&oid)
                .and_then(|relation| relation.parent)
        };
        std::iter::successors(parent(oid), move |oid| parent(*oid))
    }

    /// The table of the mirror that holds a relation's rows: its topmost published ancestor, or itself.
    pub fn top(&self, oid: Oid) -> Option<Oid> {
        let published = self
            .ancestors(oid)
            .filter(|oid| self.publishes(*oid))
            .last();
        published.or_else(|| self.publishes(oid).then_some(oid))
    }

    /// The publication publishes the relation by itself, not as somebody's partition.
    fn publishes(&self, oid: Oid) -> bool {
        let Some(relation) = self.relations.get(&oid) else {
            return self.member(oid).is_some();
        };
        let ordinary = matches!(relation.kind, 'r' | 'p')
            && relation.persistence == 'p'
            && relation.oid >= FIRST_NORMAL_OID
            && relation.schema != OUR_SCHEMA;
        let by_schema =
            self.publication.all_tables || self.publication.schemas.contains(&relation.namespace);
        relation.schema != OUR_SCHEMA && (self.member(oid).is_some() || ordinary && by_schema)
    }

    /// Tables of the mirror whose partitions are sent as the table itself, with their partitions: a TRUNCATE of one is
    /// not in the stream.
    pub fn sent_through_root(&self) -> BTreeMap<Oid, Vec<&RelationFacts>> {
        let mut trees: BTreeMap<Oid, Vec<&RelationFacts>> = BTreeMap::new();
        for relation in self.relations.values() {
            if let Some(top) = self.root_of(relation) {
                trees.entry(top).or_default().push(relation);
            }
        }
        trees
    }

    /// The table as which rows of a partition are sent, if that is another one.
    pub fn root_of(&self, relation: &RelationFacts) -> Option<Oid> {
        let top = self.top(relation.oid);
        top.filter(|top| self.publication.via_root && relation.kind != 'p' && *top != relation.oid)
    }

    /// Tables that are there `now` in schemas that it publishes, and of which it knows nothing.
    pub fn newcomers(&self, now: &Facts) -> BTreeSet<Oid> {
        let tops = now.relations.keys().filter_map(|oid| now.top(*oid));
        let is_new = |oid: &Oid| {
            let relation = now.relations.get(oid);
            relation.is_some_and(|it| self.publication.schemas.contains(&it.namespace))
                && !self.relations.contains_key(oid)
        };
        tops.filter(is_new).collect()
    }

    /// The facts but for some tables, with all that is in their trees.
    #[must_use]
    pub fn without(&self, tables: &BTreeSet<Oid>) -> Facts {
        let mut facts = self.clone();
        let stays = |oid: &Oid| self.top(*oid).is_none_or(|top| !tables.contains(&top));
        facts.relations.retain(|oid, _| stays(oid));
        facts
    }

    /// Tables of the mirror that have another file `now`, or a partition of which has: the stream tells nothing of a TRUNCATE
    /// of a partition that is sent as its root. With `all` not only those of which the stream may not tell.
    pub fn refiled(&self, now: &Facts, all: bool) -> BTreeSet<Oid> {
        let other = |it: &&RelationFacts| {
            let found = now.relations.get(&it.oid);
            found.is_some_and(|found| found.filenode != it.filenode)
        };
        let untold = self.relations.values().filter(other);
        let table = |it: &RelationFacts| match all {
            true => self.top(it.oid),
            false => self.root_of(it),
        };
        untold.filter_map(table).collect()
    }

    /// What the mirror is made from.
    pub fn view(&self) -> CatalogView {
        let mut tables: BTreeMap<Oid, TableFacts> = BTreeMap::new();
        for relation in self
            .relations
            .values()
            .filter(|it| self.top(it.oid) == Some(it.oid))
        {
            let mut relation = relation.clone();
            relation.row_filter = self
                .member(relation.oid)
                .and_then(|member| member.filter.clone());
            let published = self.published_columns(&relation, relation.oid);
            tables.insert(
                relation.oid,
                TableFacts {
                    relation,
                    leaves: Vec::new(),
                    published,
                },
            );
        }
        for leaf in self.relations.values().filter(|it| it.kind != 'p') {
            let Some(top) = self.top(leaf.oid).filter(|top| *top != leaf.oid) else {
                continue;
            };
            let Some(table) = tables.get_mut(&top) else {
                continue;
            };
            let mut leaf = leaf.clone();
            let own = self.member(leaf.oid).filter(|_| !self.publication.via_root);
            // A filter of the root holds for its leaves, which are sent as the root.
            let filter = table.relation.row_filter.clone();
            leaf.row_filter = filter.or_else(|| own.and_then(|member| member.filter.clone()));
            if own.is_some() {
                let sent = self.published_columns(&leaf, leaf.oid);
                table.published.retain(|name| sent.contains(name));
            }
            table.leaves.push(leaf);
        }
        let shapes = self
            .types
            .iter()
            .filter(|(_, it)| matches!(it.typtype, 'e' | 'c'));
        CatalogView {
            server: self.server.clone(),
            publication: self.publication.clone(),
            tables: tables.into_values().collect(),
            types: shapes
                .map(|(oid, it)| (format!("{} {}", oid.0, it.name), it.shape.to_string()))
                .collect(),
        }
    }

    /// Names of the columns that are sent of a relation. Without a list generated ones come from 18 on, where the
    /// publication says so.
    fn published_columns(&self, relation: &RelationFacts, member: Oid) -> Vec<String> {
        let list = self
            .member(member)
            .and_then(|member| member.columns.as_ref());
        let stored = self.publication.generated_columns.as_deref() == Some("s");
        let sent = relation.columns.iter().filter(|column| match list {
            Some(list) => list.contains(&column.attnum),
            None => column.generated.is_empty() || column.generated == "s" && stored,
        });
        sent.map(|column| column.name.clone()).collect()
    }
}
