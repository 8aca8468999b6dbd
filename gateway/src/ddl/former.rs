//! What relations were called, how they were published, and when that changed: rows and messages of transactions that saw
//! an older catalog may still say so.

use std::collections::{BTreeMap, BTreeSet};

use rindle_proto::ids::Oid;
use serde::{Deserialize, Serialize};

use crate::pg::catalog::{Facts, Member, Patch, PublicationFacts, RelationFacts};
use crate::pg::visibility::Snapshot;

/// So many transactions are kept that changed something. They commit beside each other, so an older one may be seen later.
const KEPT: usize = 8;

/// The past of what is believed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Formers {
    /// The first copy began with what this shows.
    since: Snapshot,
    relations: BTreeMap<Oid, Former>,
    types: BTreeMap<Oid, Changes>,
    publication: Changes,
    schemas: BTreeMap<Oid, Called>,
}

/// What a schema was called last, and when that came.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Called {
    name: String,
    changes: Changes,
}

/// The last transactions that changed something.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Changes {
    /// The last one last.
    by: Vec<u64>,
    /// The highest of those before.
    older: u64,
    /// What the catalog showed when it was read instead: messages that see less may be older.
    read: Option<Snapshot>,
}

impl Changes {
    fn note(&mut self, xid: u64) {
        self.by.retain(|other| *other != xid);
        self.by.push(xid);
        if self.by.len() > KEPT {
            self.older = self.older.max(self.by.remove(0));
        }
    }

    /// A transaction `own` that saw this `seen` does not know all of it.
    fn are_news(&self, seen: &Snapshot, own: u64) -> bool {
        self.others_did(seen, own) || self.read.as_ref().is_some_and(|read| !seen.covers(read))
    }

    fn others_did(&self, seen: &Snapshot, own: u64) -> bool {
        self.by.iter().any(|xid| *xid != own && !seen.sees(*xid)) || !seen.is_past(self.older)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Former {
    /// How the publication named it; none where it did not.
    members: Vec<Option<Member>>,
    changes: Changes,
    /// Of its name and schema.
    moves: Changes,
}

impl Formers {
    pub(super) fn since(snapshot: Snapshot) -> Self {
        Self {
            since: snapshot.shortened(),
            relations: BTreeMap::new(),
            types: BTreeMap::new(),
            publication: Changes::default(),
            schemas: BTreeMap::new(),
        }
    }

    /// `before` becomes `after` by what `patch` says.
    pub(super) fn note(&mut self, before: &Facts, after: &Facts, patch: &Patch) {
        self.note_changes(before, after, patch.xid);
        self.note_patch(patch);
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
    /// transaction committed.
    fn note_patch(&mut self, patch: &Patch) {
        for (oid, name) in &patch.schemas {
            let called = self.schemas.entry(*oid).or_default();
            called.name.clone_from(name);
            called.changes.note(patch.xid);
        }
        for oid in &patch.retyped {
            self.types.entry(*oid).or_default().note(patch.xid);
        }
        let Some(read) = &patch.read else { return };
        let read = || Some(read.clone());
        for relation in &patch.relations {
            self.relations.entry(relation.oid).or_default().changes.read = read();
        }
        for named in &patch.types {
            self.types.entry(named.0).or_default().read = read();
        }
        if patch.publications.is_some() {
            self.publication.read = read();
        }
    }

    fn note_changes(&mut self, before: &Facts, after: &Facts, xid: u64) {
        if before.publication != after.publication {
            self.publication.note(xid);
        }
        let all = before.types.keys().chain(after.types.keys());
        for oid in all.filter(|oid| before.types.get(oid) != after.types.get(oid)) {
            self.types.entry(*oid).or_default().note(xid);
        }
        let all = before.relations.keys().chain(after.relations.keys());
        for oid in all.filter(|oid| before.relations.get(oid) != after.relations.get(oid)) {
            // Whoever names a table names its partitions too, those that it sees.
            let trees = [before, after].map(|facts| facts.ancestors(*oid));
            for concerned in trees.into_iter().flatten().chain([*oid]) {
                let former = self.relations.entry(concerned).or_default();
                former.changes.note(xid);
            }
            let [old, new] = [before, after].map(|facts| facts.relations.get(oid).map(place));
            // One that comes or goes was not moved by who publishes it.
            if old.is_some() && new.is_some() && old != new {
                self.relations.entry(*oid).or_default().moves.note(xid);
            }
        }
    }

    /// Another transaction changed something that `patch` speaks of and does not see, and committed before: what it says
    /// is older than what is believed. Its own locks keep others from what it alters, not from all that it names.
    pub(super) fn overtook(&self, patch: &Patch) -> bool {
        let own = patch.xid;
        let Some(seen) = &patch.snapshot else {
            return true;
        };
        let relation = |oid: Oid| {
            self.relations
                .get(&oid)
                .is_some_and(|it| it.changes.are_news(seen, own))
        };
        let of_type = |oid: Oid| {
            self.types
                .get(&oid)
                .is_some_and(|it| it.are_news(seen, own))
        };
        // Renaming a schema waits for nobody who makes or publishes a table in it.
        let moved = |new: &RelationFacts| {
            let called = self.schemas.get(&new.namespace);
            called.is_some_and(|it| it.changes.are_news(seen, own))
        };
        !seen.covers(&self.since)
            || patch.relations.iter().any(moved)
            || patch.publications.is_some() && self.publication.are_news(seen, own)
            || patch.full && self.relations.keys().any(|oid| relation(*oid))
            || patch.relations.iter().any(|it| relation(it.oid))
            || patch.types.iter().any(|it| of_type(it.0))
    }

    /// Somebody else renamed or moved the relation, which `patch` does not see: so its transaction held no lock on it.
    pub(super) fn moved(&self, oid: Oid, patch: &Patch) -> bool {
        let former = self.relations.get(&oid).zip(patch.snapshot.as_ref());
        former.is_some_and(|(former, seen)| former.moves.others_did(seen, patch.xid))
    }

    /// A snapshot does not see all that is believed: some of it is still committing.
    pub(super) fn are_ahead_of(&self, seen: &Snapshot) -> bool {
        let relations = self.relations.values().map(|it| &it.changes);
        let schemas = self.schemas.values().map(|it| &it.changes);
        let all = relations.chain(schemas).chain(self.types.values());
        all.chain([&self.publication])
            .any(|changes| changes.by.iter().any(|xid| !seen.sees(*xid)))
    }

    fn published(&self, oid: Oid, how: Option<&Member>) -> bool {
        let is_it = |it: &Option<Member>| it.as_ref() == how;
        self.relations
            .get(&oid)
            .is_some_and(|former| former.members.iter().any(is_it))
    }

    /// How a transaction with an old snapshot leaves a publication. It sees what it did itself and what was there before
    /// its snapshot; `now` is the catalog of this moment, in which later transactions may have done more.
    ///
    /// What it sees, what is believed and what is there now may leave open who did what: then nothing changes here, and
    /// the rows of what is concerned are in doubt, for some may not have been sent.
    pub(super) fn publication(
        &self,
        seen: &PublicationFacts,
        now: &PublicationFacts,
        believed: &PublicationFacts,
    ) -> (PublicationFacts, Doubt) {
        let mut doubt = Doubt::default();
        let tables = {
            let (seen, found, known) = (members(seen), members(now), members(believed));
            let all: BTreeSet<Oid> = seen.keys().chain(known.keys()).copied().collect();
            let one = |oid: Oid| {
                let [seen, found, known] = [&seen, &found, &known].map(|it| it.get(&oid).copied());
                if seen == known || found == seen || !self.published(oid, seen) {
                    return seen;
                }
                doubt.relations.insert(oid);
                known
            };
            all.into_iter().filter_map(one).cloned().collect()
        };
        let all: BTreeSet<Oid> = [seen, now, believed]
            .into_iter()
            .flat_map(|it| it.schemas.iter().copied())
            .collect();
        let is_in = |schema: &Oid| {
            let [seen, now, known] = [seen, now, believed].map(|it| it.schemas.contains(schema));
            if seen != known && now == known {
                doubt.schemas.insert(*schema);
                return known;
            }
            seen
        };
        let left = PublicationFacts {
            tables,
            schemas: all.into_iter().filter(is_in).collect(),
            // Any that is off stops the stream, so what it sees of them is its own change.
            insert: seen.insert,
            update: seen.update,
            delete: seen.delete,
            truncate: seen.truncate,
            // Rows tell when these two are wrong.
            via_root: settled(&seen.via_root, &now.via_root, &believed.via_root),
            generated_columns: settled(
                &seen.generated_columns,
                &now.generated_columns,
                &believed.generated_columns,
            ),
            ..now.clone()
        };
        (left, doubt)
    }

    /// `relation` under the name that it has after a transaction with an old snapshot, which sees it as `seen`; the rest
    /// of it is of this moment. A name that it wrote itself nobody else changed meanwhile; any other is as it is believed.
    pub(super) fn named(&self, relation: RelationFacts, view: View<'_>) -> RelationFacts {
        let View {
            seen,
            believed,
            is_own,
            by_hand,
        } = view;
        let Some(seen) = seen.or(believed) else {
            return relation;
        };
        // By hand all is told, also what nothing told before.
        let is_told = by_hand && name(&relation) == name(seen);
        let by = match believed {
            Some(known) if !is_own && !is_told => known,
            Some(_) | None => seen,
        };
        let schema = match believed {
            Some(known) if known.namespace == by.namespace && !is_told => &known.schema,
            Some(_) if is_told => &seen.schema,
            // It came to this schema, which others may have renamed without its transaction seeing that.
            Some(_) | None => {
                let called = self.schemas.get(&by.namespace);
                called.map_or(&seen.schema, |called| &called.name)
            }
        };
        RelationFacts {
            name: by.name.clone(),
            namespace: by.namespace,
            schema: schema.clone(),
            ..relation
        }
    }
}

/// What is known of one relation besides the catalog of now.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct View<'a> {
    /// As the transaction sees it.
    pub(super) seen: Option<&'a RelationFacts>,
    /// As it is believed.
    pub(super) believed: Option<&'a RelationFacts>,
    /// The transaction itself wrote its name and schema.
    pub(super) is_own: bool,
    /// Whoever migrated tells it.
    pub(super) by_hand: bool,
}

/// What may have been published otherwise for a while.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Doubt {
    pub(super) relations: BTreeSet<Oid>,
    pub(super) schemas: BTreeSet<Oid>,
}

/// What a transaction leaves of a value that it sees as `seen`: where it is neither as believed nor as now, others changed
/// it before.
fn settled<T: Clone + PartialEq>(seen: &T, now: &T, known: &T) -> T {
    match seen == now {
        true => seen.clone(),
        false => known.clone(),
    }
}

/// Its name and where it stands; what the schema is called is not its own.
fn place(relation: &RelationFacts) -> (Oid, &str) {
    (relation.namespace, &relation.name)
}

fn name(relation: &RelationFacts) -> (&str, &str) {
    (&relation.schema, &relation.name)
}

fn members(publication: &PublicationFacts) -> BTreeMap<Oid, &Member> {
    publication.tables.iter().map(|it| (it.oid, it)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pg::catalog::samples::{facts, first, member, relation};

    const T: u32 = 20_000;

    fn formers() -> Formers {
        Formers::since(first(facts(Vec::new())).snapshot)
    }

    /// What transaction 100 says.
    fn by_100() -> Patch {
        Patch {
            xid: 100,
            ..Patch::default()
        }
    }

    /// What transaction 90 says, under a snapshot.
    fn of_90(snapshot: &str, relations: Vec<RelationFacts>) -> Patch {
        Patch {
            xid: 90,
            snapshot: Some(snapshot.parse().unwrap()),
            relations,
            ..Patch::default()
        }
    }

    fn called(name: &str) -> RelationFacts {
        RelationFacts {
            name: name.to_owned(),
            ..relation(T)
        }
    }

    fn of(namespace: u32, schema: &str, name: &str) -> RelationFacts {
        RelationFacts {
            namespace: Oid(namespace),
            schema: schema.to_owned(),
            ..called(name)
        }
    }

    fn view<'a>(seen: &'a RelationFacts, known: &'a RelationFacts) -> View<'a> {
        View {
            seen: Some(seen),
            believed: Some(known),
            ..View::default()
        }
    }

    #[test]
    fn b1_a_name_of_later_is_not_taken_and_one_of_before_is_not_believed() {
        let formers = formers();
        let left = |now: &str, seen: &str, known: &str, is_own| {
            let (now, seen, known) = (called(now), called(seen), called(known));
            let view = View {
                is_own,
                ..view(&seen, &known)
            };
            formers.named(now, view).name
        };
        // Somebody renamed later.
        assert_eq!(left("later", "b", "b", false), "b");
        // Itself, whatever came later, also to a name of before.
        assert_eq!(left("own", "own", "b", true), "own");
        assert_eq!(left("later", "own", "b", true), "own");
        assert_eq!(left("later", "a", "b", true), "a");
        // Others did before its commit; its snapshot is older.
        assert_eq!(left("b", "a", "b", false), "b");
        assert_eq!(left("later", "a", "b", false), "b");
        // Nothing told the name that the catalog has, but for whoever tells all by hand.
        let (now, known) = (called("b"), called("a"));
        let told = View {
            by_hand: true,
            ..view(&now, &known)
        };
        assert_eq!(formers.named(now.clone(), told).name, "b");
    }

    #[test]
    fn b1_a_table_and_its_schema_that_two_rename_get_both_names() {
        let formers = formers();
        // The schema's new name is its announcement's, for all that is in it.
        let left = |seen: &RelationFacts, known: &RelationFacts, is_own| {
            let view = View {
                is_own,
                ..view(seen, known)
            };
            let left = formers.named(of(1, "new", "renamed"), view);
            (left.schema, left.name)
        };
        let both = |schema: &str, name: &str| (schema.to_owned(), name.to_owned());
        // It renamed the schema, and others the table before it committed.
        let known = of(1, "s", "renamed");
        assert_eq!(
            left(&of(1, "new", "t"), &known, false),
            both("s", "renamed")
        );
        // It renamed the table, and others the schema.
        let known = of(1, "new", "t");
        assert_eq!(
            left(&of(1, "s", "renamed"), &known, true),
            both("new", "renamed")
        );
    }

    #[test]
    fn b1_a_table_comes_to_a_schema_under_the_name_that_others_gave_it() {
        let renamed = Patch {
            schemas: vec![(Oid(7), "new".to_owned())],
            ..by_100()
        };
        let mut formers = formers();
        formers.note_patch(&renamed);
        let (seen, known) = (of(7, "old", "t"), of(5, "s", "t"));
        let moved = View {
            is_own: true,
            ..view(&seen, &known)
        };
        let left = formers.named(of(7, "later", "t"), moved);
        assert_eq!((left.namespace, left.schema), (Oid(7), "new".to_owned()));
    }

    #[test]
    fn b1_what_a_transaction_sees_is_told_by_its_snapshot() {
        let mut formers = Formers::since("90:95:90".parse().unwrap());
        let overtook =
            |formers: &Formers, shown: &str| formers.overtook(&of_90(shown, vec![called("t")]));
        assert!(!overtook(&formers, "90:95:90"));
        // The first copy shows what 93 did.
        assert!(overtook(&formers, "90:95:90,93"));
        assert!(overtook(&formers, "90:92:90"));
        let [before, after] = [vec![called("s")], vec![called("t")]].map(facts);
        formers.note(&before, &after, &by_100());
        // 100 has committed, and waits for its standby: another one that came later is seen.
        assert!(overtook(&formers, "100:150:100"));
        for later in 110..117 {
            let by = Patch {
                xid: later,
                ..Patch::default()
            };
            let [from, to] = [later - 1, later].map(|n| facts(vec![called(&n.to_string())]));
            formers.note(&from, &to, &by);
        }
        assert!(overtook(&formers, "100:150:100"));
        assert!(!overtook(&formers, "120:150:120"));
        // A message without one is of older functions.
        let bare = Patch {
            snapshot: None,
            ..of_90("120:150:120", vec![])
        };
        assert!(formers.overtook(&bare));
        let snapshot = |text: &str| text.parse::<Snapshot>().unwrap();
        assert!(formers.are_ahead_of(&snapshot("100:150:100")));
        assert!(!formers.are_ahead_of(&snapshot("120:150:120")));
    }

    #[test]
    fn b1_a_table_that_somebody_else_moved_is_not_its_own() {
        let mut formers = formers();
        let [before, after] = [of(1, "s", "t"), of(1, "new", "t")].map(|it| facts(vec![it]));
        formers.note(&before, &after, &by_100());
        let patch = of_90("90:101:90,100", vec![]);
        assert!(!formers.moved(Oid(T), &patch), "its schema was renamed");
        let renamed = facts(vec![of(1, "new", "u")]);
        formers.note(&after, &renamed, &by_100());
        assert!(formers.moved(Oid(T), &patch));
        assert!(!formers.moved(Oid(T), &of_90("90:101:90", vec![])));
    }

    #[test]
    fn b1_a_change_of_a_partition_is_one_of_its_table() {
        let leaf = |name: &str| RelationFacts {
            oid: Oid(T + 1),
            parent: Some(Oid(T)),
            ..called(name)
        };
        let mut formers = formers();
        let [before, after] = [vec![called("t")], vec![called("t"), leaf("l")]].map(facts);
        formers.note(&before, &after, &by_100());
        let overtook = |shown: &str| formers.overtook(&of_90(shown, vec![called("t")]));
        assert!(overtook("90:101:90,100"));
        assert!(!overtook("90:101:90"));
    }

    fn publishes(oids: &[u32]) -> PublicationFacts {
        let mut publication = facts(Vec::new()).publication;
        publication.tables = oids.iter().map(|oid| member(Oid(*oid))).collect();
        publication
    }

    #[test]
    fn members_of_later_are_not_taken_and_those_of_before_are_not_believed() {
        let mut formers = formers();
        let [before, after] = [&[1, 2][..], &[1, 3]].map(|oids| {
            let mut facts = facts(Vec::new());
            facts.publication = publishes(oids);
            facts
        });
        formers.note(&before, &after, &by_100());
        let of = |seen: &[u32], now: &[u32]| {
            let (left, _) =
                formers.publication(&publishes(seen), &publishes(now), &after.publication);
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

    /// It dropped 3, which had come before, or it does not see that 3 came: rows of 3 may not have been sent.
    #[test]
    fn b1_rows_are_in_doubt_where_nobody_can_tell_who_published() {
        let mut formers = formers();
        let [before, after] = [&[1][..], &[1, 3]].map(|oids| {
            let mut facts = facts(Vec::new());
            facts.publication = publishes(oids);
            facts
        });
        formers.note(&before, &after, &by_100());
        let known = &after.publication;
        let (left, doubt) = formers.publication(&publishes(&[1]), &publishes(&[1, 3]), known);
        assert_eq!(left, *known);
        assert_eq!(doubt.relations, BTreeSet::from([Oid(3)]));
        let (left, doubt) = formers.publication(&publishes(&[1]), &publishes(&[1]), known);
        assert_eq!((left, doubt), (publishes(&[1]), Doubt::default()));
        let with = |schemas: &[u32]| PublicationFacts {
            schemas: schemas.iter().copied().map(Oid).collect(),
            ..publishes(&[1])
        };
        let of = |seen: &[u32], now: &[u32], known: &[u32]| {
            let (left, doubt) = formers.publication(&with(seen), &with(now), &with(known));
            (left.schemas, doubt.schemas.into_iter().collect::<Vec<_>>())
        };
        // Taken out, and put back by others since; or put in by others before.
        assert_eq!(of(&[], &[7], &[7]), (vec![Oid(7)], vec![Oid(7)]));
        assert_eq!(of(&[], &[], &[7]), (vec![], vec![]));
        assert_eq!(of(&[7], &[7], &[]), (vec![Oid(7)], vec![]));
        // Others will take it out later.
        assert_eq!(of(&[7], &[], &[7]), (vec![Oid(7)], vec![]));
    }

    #[test]
    fn b1_operations_that_a_transaction_takes_out_are_its_own_change() {
        let all = publishes(&[1]);
        let some = PublicationFacts {
            update: false,
            ..all.clone()
        };
        let formers = formers();
        assert!(!formers.publication(&some, &all, &all).0.update);
    }
}
