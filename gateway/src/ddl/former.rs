//! What relations were called, how they were published, and when that changed: rows and messages of transactions that saw
//! an older catalog may still say so.

use std::collections::{BTreeMap, BTreeSet};

use rindle_proto::ids::{FinalLsn, Lsn, Oid};
use serde::{Deserialize, Serialize};

use crate::pg::catalog::{Facts, Member, Patch, PublicationFacts, RelationFacts};

/// The past of what is believed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Formers {
    relations: BTreeMap<Oid, Former>,
    types: BTreeMap<Oid, Changes>,
    publication: Changes,
    #[serde(default)]
    schemas: BTreeMap<Oid, Called>,
}

/// What a schema was called last, and when that came.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Called {
    name: String,
    changes: Changes,
}

/// The last two transactions that changed something: of those before one that commits, one at least is another's.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Changes {
    at: Vec<Lsn>,
    /// It was read from the catalog when the WAL had come to here: what was sent before may be older.
    read: Option<Lsn>,
}

impl Changes {
    fn note(&mut self, at: FinalLsn) {
        self.at.retain(|other| *other != at.0);
        self.at.push(at.0);
        if self.at.len() > 2 {
            self.at.remove(0);
        }
    }

    fn after(&self, sent: Lsn, own: FinalLsn) -> bool {
        self.read.is_some_and(|at| at > sent) || self.at.iter().any(|at| *at > sent && *at != own.0)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Former {
    names: BTreeSet<String>,
    /// Schemas that it was in, and what they were called.
    places: BTreeSet<(Oid, String)>,
    /// How the publication named it; none where it did not.
    members: Vec<Option<Member>>,
    changes: Changes,
}

impl Formers {
    /// `before` becomes `after` in the transaction at `at`.
    pub(super) fn note(&mut self, before: &Facts, after: &Facts, at: FinalLsn) {
        self.note_changes(before, after, at);
        for (oid, old) in &before.relations {
            let Some(new) = after.relations.get(oid) else {
                continue;
            };
            if new.name != old.name {
                let former = self.relations.entry(*oid).or_default();
                former.names.insert(old.name.clone());
            }
            if place(new) != place(old) {
                let former = self.relations.entry(*oid).or_default();
                former.places.insert((old.namespace, old.schema.clone()));
            }
        }
        let (old, new) = (members(&before.publication), members(&after.publication));
        for oid in old.keys().chain(new.keys()) {
            let was = old.get(oid).copied();
            if was == new.get(oid).copied() {
                continue;
            }
            let members = &mut self.relations.entry(*oid).or_default().members;
            if !members.iter().any(|it| it.as_ref() == was) {
                members.push(was.cloned());
            }
        }
    }

    /// What `patch` says of schemas and types that nothing published may use yet, and what was read later than its
    /// transaction, at `at`, committed.
    pub(super) fn note_patch(&mut self, patch: &Patch, at: FinalLsn) {
        for (oid, name) in &patch.schemas {
            let called = self.schemas.entry(*oid).or_default();
            called.name.clone_from(name);
            called.changes.note(at);
        }
        for oid in &patch.retyped {
            self.types.entry(*oid).or_default().note(at);
        }
        let Some(at) = patch.read_at else { return };
        for relation in &patch.relations {
            self.relations.entry(relation.oid).or_default().changes.read = Some(at);
        }
        for named in &patch.types {
            self.types.entry(named.0).or_default().read = Some(at);
        }
        if patch.publications.is_some() {
            self.publication.read = Some(at);
        }
    }

    fn note_changes(&mut self, before: &Facts, after: &Facts, at: FinalLsn) {
        if before.publication != after.publication {
            self.publication.note(at);
        }
        let all = before.types.keys().chain(after.types.keys());
        for oid in all.filter(|oid| before.types.get(oid) != after.types.get(oid)) {
            self.types.entry(*oid).or_default().note(at);
        }
        let all = before.relations.keys().chain(after.relations.keys());
        for oid in all.filter(|oid| before.relations.get(oid) != after.relations.get(oid)) {
            self.relations.entry(*oid).or_default().changes.note(at);
        }
    }

    /// Another transaction changed something that `patch` speaks of after it was `sent`, and committed before `own`: what
    /// it says is older than what is believed. Its own locks keep others from what it alters, not from all that it names.
    pub(super) fn overtook(&self, patch: &Patch, sent: Lsn, own: FinalLsn) -> bool {
        let relation = |oid: Oid| {
            self.relations
                .get(&oid)
                .is_some_and(|it| it.changes.after(sent, own))
        };
        let of_type = |oid: Oid| self.types.get(&oid).is_some_and(|it| it.after(sent, own));
        // Renaming a schema waits for nobody who makes or publishes a table in it.
        let moved = |new: &RelationFacts| {
            let called = self.schemas.get(&new.namespace);
            called.is_some_and(|it| it.changes.after(sent, own))
        };
        patch.relations.iter().any(moved)
            || patch.publications.is_some() && self.publication.after(sent, own)
            || patch.full && self.relations.keys().any(|oid| relation(*oid))
            || patch.relations.iter().any(|it| relation(it.oid))
            || patch.types.iter().any(|it| of_type(it.0))
    }

    fn published(&self, oid: Oid, how: Option<&Member>) -> bool {
        let is_it = |it: &Option<Member>| it.as_ref() == how;
        self.relations
            .get(&oid)
            .is_some_and(|former| former.members.iter().any(is_it))
    }

    /// How a transaction with an old snapshot leaves a publication. It sees what it did itself and what was there before
    /// its snapshot; `now` is the catalog of this moment, in which later transactions may have done more.
    pub(super) fn publication(
        &self,
        seen: &PublicationFacts,
        now: &PublicationFacts,
        believed: &PublicationFacts,
    ) -> PublicationFacts {
        let (seen, found, known) = (members(seen), members(now), members(believed));
        let all: BTreeSet<Oid> = seen.keys().chain(known.keys()).copied().collect();
        let one = |oid: Oid| {
            let (seen, found, known) = (
                seen.get(&oid).copied(),
                found.get(&oid).copied(),
                known.get(&oid).copied(),
            );
            match seen == known || found != seen && self.published(oid, seen) {
                true => known,
                false => seen,
            }
        };
        PublicationFacts {
            tables: all.into_iter().filter_map(one).cloned().collect(),
            ..now.clone()
        }
    }

    /// `relation` under the name that it has after a transaction with an old snapshot, which sees it as `seen`; the rest
    /// of it is of this moment. Its name, its schema and what that is called are looked at one by one: each may be
    /// another transaction's change.
    pub(super) fn named(
        &self,
        relation: RelationFacts,
        seen: Option<&RelationFacts>,
        believed: Option<&RelationFacts>,
    ) -> RelationFacts {
        let Some(seen) = seen.or(believed) else {
            return relation;
        };
        let none = Former::default();
        let former = self.relations.get(&relation.oid).unwrap_or(&none);
        let renamed = relation.name != seen.name && former.names.contains(&seen.name);
        let name = match believed {
            Some(known) if renamed => &known.name,
            Some(_) | None => &seen.name,
        };
        let mut was_in = former.places.iter();
        let moved =
            relation.namespace != seen.namespace && was_in.any(|(oid, _)| *oid == seen.namespace);
        let namespace = match believed {
            Some(known) if moved => known.namespace,
            Some(_) | None => seen.namespace,
        };
        let schema = match believed {
            Some(known) if known.namespace == namespace => {
                let mut places = former.places.iter();
                let is_old = relation.schema != seen.schema
                    && places.any(|(_, schema)| *schema == seen.schema);
                if is_old || seen.namespace != namespace {
                    &known.schema
                } else {
                    &seen.schema
                }
            }
            // It came to this schema, which others may have renamed without its transaction seeing that.
            Some(_) | None => {
                let called = self.schemas.get(&namespace);
                called.map_or(&seen.schema, |called| &called.name)
            }
        };
        RelationFacts {
            name: name.clone(),
            namespace,
            schema: schema.clone(),
            ..relation
        }
    }
}

fn place(relation: &RelationFacts) -> (Oid, &str) {
    (relation.namespace, &relation.schema)
}

fn members(publication: &PublicationFacts) -> BTreeMap<Oid, &Member> {
    publication.tables.iter().map(|it| (it.oid, it)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pg::catalog::samples::{facts, member, relation};

    const T: u32 = 20_000;

    fn called(name: &str) -> RelationFacts {
        RelationFacts {
            name: name.to_owned(),
            ..relation(T)
        }
    }

    fn past(names: &[&str]) -> Formers {
        let mut formers = Formers::default();
        for pair in names.windows(2) {
            let [before, after] = [pair[0], pair[1]].map(|name| facts(vec![called(name)]));
            formers.note(&before, &after, FinalLsn(Lsn(100)));
        }
        formers
    }

    #[test]
    fn b1_a_name_of_later_is_not_taken_and_one_of_before_is_not_believed() {
        let formers = past(&["a", "b"]);
        let of = |now: &str, seen: &str, known: &str| {
            let (now, seen, known) = (called(now), called(seen), called(known));
            formers.named(now, Some(&seen), Some(&known)).name
        };
        // Somebody renamed later.
        assert_eq!(of("later", "b", "b"), "b");
        // Itself, whatever came later.
        assert_eq!(of("own", "own", "b"), "own");
        assert_eq!(of("later", "own", "b"), "own");
        // Others did before its commit; its snapshot is older.
        assert_eq!(of("b", "a", "b"), "b");
        assert_eq!(of("later", "a", "b"), "b");
    }

    #[test]
    fn b1_a_table_and_its_schema_that_two_rename_get_both_names() {
        let of = |schema: &str, name: &str| RelationFacts {
            schema: schema.to_owned(),
            ..called(name)
        };
        // Somebody else's change, which committed first, is believed.
        let after = |other: &RelationFacts, seen: &RelationFacts| {
            let mut formers = Formers::default();
            let [before, after] = [of("s", "t"), other.clone()].map(|it| facts(vec![it]));
            formers.note(&before, &after, FinalLsn(Lsn(100)));
            let left = formers.named(of("new", "renamed"), Some(seen), Some(other));
            (left.schema, left.name)
        };
        let both = ("new".to_owned(), "renamed".to_owned());
        assert_eq!(after(&of("s", "renamed"), &of("new", "t")), both);
        assert_eq!(after(&of("new", "t"), &of("s", "renamed")), both);
    }

    #[test]
    fn b1_a_table_comes_to_a_schema_under_the_name_that_others_gave_it() {
        let of = |namespace: u32, schema: &str| RelationFacts {
            namespace: Oid(namespace),
            schema: schema.to_owned(),
            ..called("t")
        };
        let renamed = Patch {
            schemas: vec![(Oid(7), "new".to_owned())],
            ..Patch::default()
        };
        let mut formers = Formers::default();
        formers.note_patch(&renamed, FinalLsn(Lsn(100)));
        let left = formers.named(of(7, "later"), Some(&of(7, "old")), Some(&of(5, "s")));
        assert_eq!((left.namespace, left.schema), (Oid(7), "new".to_owned()));
    }

    fn publishes(oids: &[u32]) -> PublicationFacts {
        let mut publication = facts(Vec::new()).publication;
        publication.tables = oids.iter().map(|oid| member(Oid(*oid))).collect();
        publication
    }

    #[test]
    fn members_of_later_are_not_taken_and_those_of_before_are_not_believed() {
        let mut formers = Formers::default();
        let [before, after] = [&[1, 2][..], &[1, 3]].map(|oids| {
            let mut facts = facts(Vec::new());
            facts.publication = publishes(oids);
            facts
        });
        formers.note(&before, &after, FinalLsn(Lsn(100)));
        let of = |seen: &[u32], now: &[u32]| {
            let left = formers.publication(&publishes(seen), &publishes(now), &after.publication);
            left.tables.iter().map(|it| it.oid.0).collect::<Vec<_>>()
        };
        // It saw neither that 2 went nor that 3 came, and did nothing itself.
        assert_eq!(of(&[1, 2], &[1, 3]), [1, 3]);
        // Later 1 went and 9 came.
        assert_eq!(of(&[1, 3], &[3, 9]), [1, 3]);
        // It dropped 1, and added 4 that somebody dropped later.
        assert_eq!(of(&[3], &[3]), [3]);
        assert_eq!(of(&[1, 3, 4], &[1, 3]), [1, 3, 4]);
    }
}
