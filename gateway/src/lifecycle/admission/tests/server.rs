//! What is told of the server: its slot, its failover, its provider; and of tables that are not published yet.

use rindle_proto::ids::Oid;

use super::*;
use crate::lifecycle::admission::facts::{OpenTransaction, PreparedTransaction, UnsentTable};
use crate::lifecycle::admission::posture::{Posture, decide};

pub(super) fn settings(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    let pairs = pairs
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    pairs.collect()
}

#[test]
fn what_costs_the_slot_is_told() {
    let mut source = source(vec![]);
    let cases = [
        (
            150_018,
            vec![("max_slot_wal_keep_size", "-1")],
            vec!["SlotWalLimit"],
        ),
        (
            150_018,
            vec![("max_slot_wal_keep_size", "64")],
            vec!["SlotWalLimit"],
        ),
        (150_018, vec![("max_slot_wal_keep_size", "4096")], vec![]),
        (
            180_000,
            vec![("idle_replication_slot_timeout", "0")],
            vec![],
        ),
        (
            180_000,
            vec![("idle_replication_slot_timeout", "60")],
            vec!["SlotIdleTimeout"],
        ),
    ];
    for (version_num, pairs, wanted) in cases {
        source.session.version_num = version_num;
        source.session.settings = settings(&pairs);
        assert_eq!(ids(&source), wanted, "{version_num} {pairs:?}");
        assert!(
            check(&source, &[])
                .iter()
                .all(|one| one.level == Level::Warning)
        );
    }
}

#[test]
fn a9_minors_that_lose_rows_of_a_new_table_are_told() {
    let mut source = source(vec![]);
    for (whole, loses) in [(150_014, 150_013), (160_010, 160_009), (170_006, 170_005)] {
        for (version_num, wanted) in [(whole, vec![]), (loses, vec!["ServerMinor"])] {
            source.session.version_num = version_num;
            assert_eq!(ids(&source), wanted, "{version_num}");
            let found = check(&source, &[]);
            assert!(found.iter().all(|one| one.level == Level::Warning));
        }
    }
    source.session.version_num = 180_000;
    assert_eq!(ids(&source), Vec::<&str>::new());
}

#[test]
fn a7_what_blocks_slot_creation_is_named() {
    let mut source = source(vec![]);
    let open = |seconds| OpenTransaction {
        pid: 77,
        user: Some("bob".to_owned()),
        database: Some("other".to_owned()),
        state: Some("idle in transaction".to_owned()),
        query: Some("UPDATE x".to_owned()),
        seconds,
    };
    source.open = vec![open(1), open(90)];
    source.prepared = vec![PreparedTransaction {
        gid: "it's".to_owned(),
        owner: "eve".to_owned(),
        database: "other".to_owned(),
        prepared: "2026-01-01 00:00:00+00".to_owned(),
    }];
    let found = check(&source, &[]);
    assert_eq!(ids(&source), ["OldTransaction", "PreparedTransaction"]);
    for word in ["77", "bob", "other", "90 s", "UPDATE x"] {
        assert!(found[0].seen.contains(word), "{}", found[0]);
    }
    assert!(found[0].mend.contains("pg_terminate_backend(77)"));
    assert!(
        found[1]
            .mend
            .starts_with("COMMIT PREPARED 'it''s' or ROLLBACK PREPARED 'it''s'")
    );
}

#[test]
fn a11_columns_that_the_mirror_lacks_or_cannot_follow_are_told() {
    let mut odd = relation();
    odd.columns
        .extend([column(3, "total", false), column(4, "kind", false)]);
    odd.columns[2].generated = "s".to_owned();
    odd.columns[3].type_oid = Oid(2205);
    odd.columns[3].type_name = "regclass".to_owned();
    let mut source = source(vec![table(odd)]);
    assert_eq!(ids(&source), ["GeneratedColumn", "NameOfObject"]);
    for version in [
        &mut source.session.version_num,
        &mut source.view.as_mut().unwrap().server.version_num,
    ] {
        *version = 180_004;
    }
    assert_eq!(
        ids(&source),
        ["NameOfObject"],
        "18 sends stored ones that are published"
    );
    source.view.as_mut().unwrap().tables[0]
        .published
        .retain(|name| name != "kind");
    assert_eq!(
        ids(&source),
        Vec::<&str>::new(),
        "what is not published is not mirrored"
    );
}

#[test]
fn a_posture_is_as_good_as_its_worst_part() {
    let mut source = source(vec![]);
    source.session.version_num = 170_010;
    source.session.settings = settings(&[
        ("synchronous_standby_names", "FIRST 1 (sb1)"),
        ("synchronous_commit", "remote_apply"),
        ("synchronized_standby_slots", "sb1"),
    ]);
    source.failover = FailoverFacts {
        synchronous_standbys: 1,
        active_physical_slots: vec!["sb1".to_owned()],
    };
    let now = |source: &SourceFacts| decide(&source.session, &source.failover, false);
    assert_eq!(now(&source), (Posture::FailoverSlot, None));
    type Change = fn(&mut SourceFacts);
    let parts: [(&str, Change); 5] = [
        ("PostgreSQL 15.18 has no slots", |source| {
            source.session.version_num = 160_014
        }),
        (
            "no standby of synchronous_standby_names (FIRST 1 (sb1)) is connected",
            |source| {
                source.failover.synchronous_standbys = 0;
            },
        ),
        ("synchronous_commit is on", |source| {
            source
                .session
                .settings
                .insert("synchronous_commit".to_owned(), "on".to_owned());
        }),
        ("synchronized_standby_slots is empty", |source| {
            source
                .session
                .settings
                .insert("synchronized_standby_slots".to_owned(), String::new());
        }),
        (
            "slot \"sb1\" of synchronized_standby_slots is not in use",
            |source| {
                source.failover.active_physical_slots.clear();
            },
        ),
    ];
    for (words, change) in parts {
        let mut worse = source.clone();
        change(&mut worse);
        let (posture, finding) = now(&worse);
        assert_eq!(posture, Posture::Fencing);
        let finding = finding.unwrap();
        assert!(finding.seen.contains(words), "{finding}");
    }
    let asked = decide(&source.session, &source.failover, true);
    assert_eq!(asked, (Posture::ProviderManaged, None));
    source.session.version_num = 160_014;
    assert!(
        decide(&source.session, &source.failover, true)
            .1
            .unwrap()
            .is_fatal()
    );
}

#[test]
fn providers_are_told_apart_by_what_their_catalog_holds() {
    let list = |names: &[&str]| {
        names
            .iter()
            .map(|name| (*name).to_owned())
            .collect::<Vec<_>>()
    };
    let roles = |names: &[&str]| Fingerprints {
        roles: list(names),
        ..Fingerprints::default()
    };
    let cases = [
        (roles(&[]), None),
        (roles(&["neon_superuser"]), Some(Provider::Neon)),
        (roles(&["supabase_admin"]), Some(Provider::Supabase)),
        (roles(&["rds_superuser"]), Some(Provider::Rds)),
        (
            Fingerprints {
                functions: list(&["aurora_version"]),
                ..roles(&["rds_superuser"])
            },
            Some(Provider::Aurora),
        ),
        (
            Fingerprints {
                settings: list(&["cloudsql.logical_decoding"]),
                ..roles(&[])
            },
            Some(Provider::CloudSql),
        ),
        (roles(&["azure_pg_admin"]), Some(Provider::Azure)),
    ];
    for (fingerprints, wanted) in cases {
        assert_eq!(provider::detect(&fingerprints), wanted);
        let mut source = source(vec![]);
        source.session.wal_level = "replica".to_owned();
        source.fingerprints = fingerprints;
        let found = check(&source, &[]);
        assert_eq!(found[0].id, "WalLevel");
        let own = found[0].mend.starts_with("ALTER SYSTEM");
        assert_eq!(
            own,
            wanted.is_none(),
            "a provider's setting is not set by ALTER SYSTEM"
        );
        assert_eq!(
            found.iter().any(|one| one.id == "Provider"),
            wanted.is_some()
        );
    }
}

#[test]
fn a_declared_provider_must_be_the_one_that_shows() {
    let mut source = source(vec![]);
    source.fingerprints.roles = vec!["neon_superuser".to_owned()];
    let asked = Asked {
        provider: Some(Provider::Supabase),
        ..Asked::default()
    };
    let found = crate::lifecycle::admission::check(&source, &asked);
    assert!(
        found
            .iter()
            .any(|one| one.id == "ProviderDiffers" && one.is_fatal())
    );
    source.fingerprints = Fingerprints::default();
    source.session.replication_right = false;
    let asked = Asked {
        provider: Some(Provider::PlanetScale),
        ..Asked::default()
    };
    let found = crate::lifecycle::admission::check(&source, &asked);
    assert!(
        found
            .iter()
            .any(|one| one.id == "Provider" && one.is_fatal()),
        "its gate"
    );
}

#[test]
fn poolers_are_known_by_name() {
    let hosts = [
        ("ep-cool-1-pooler.eu.aws.neon.tech", 5432, true),
        ("ep-cool-1.eu.aws.neon.tech", 5432, false),
        ("aws-0-eu.pooler.supabase.com", 5432, true),
        ("db.abc.supabase.co", 6543, true),
        ("db.abc.supabase.co", 5432, false),
        ("pgbouncer.internal", 6432, true),
        ("db.internal", 6432, false),
        ("/run/postgresql", 5432, false),
    ];
    for (name, port, pooled) in hosts {
        let host = [Host {
            name: name.to_owned(),
            port,
        }];
        assert_eq!(!poolers_by_name(&host).is_empty(), pooled, "{name}:{port}");
    }
    let neon = [Host {
        name: hosts[0].0.to_owned(),
        port: 5432,
    }];
    assert_eq!(
        poolers_by_name(&neon)[0].mend,
        "--pg-host ep-cool-1.eu.aws.neon.tech"
    );
}

#[test]
fn before_prepare_named_tables_are_looked_at_as_published() {
    let mut keyless = relation();
    keyless.indexes.clear();
    let mut source = source(vec![]);
    source.view = None;
    source.unpublished = vec![table(keyless)];
    source.unknown = vec![TableName::new("public", "typo")];
    let wanted = [
        TableName::new("public", "t"),
        TableName::new("public", "typo"),
    ];
    let asked = Asked {
        tables: &wanted,
        before_prepare: true,
        ..Asked::default()
    };
    let found: Vec<&str> = crate::lifecycle::admission::check(&source, &asked)
        .iter()
        .map(|one| one.id)
        .collect();
    assert_eq!(
        found,
        ["TableMissing", "NotPrepared", "NoRowKey", "FailoverPosture"]
    );
    assert_eq!(
        ids(&source),
        ["TableMissing", "PublicationMissing"],
        "at mint it must be there"
    );
}

#[test]
fn c4_tables_that_no_publication_can_send_are_named() {
    let mut source = source(vec![]);
    source.unsent = vec![UnsentTable {
        schema: "public".to_owned(),
        name: "scratch".to_owned(),
        foreign: false,
    }];
    let found = check(&source, &[]);
    assert_eq!(
        (found[0].id, found[0].object.as_deref()),
        ("NotMirrored", Some("public.scratch"))
    );
    assert_eq!(
        found[0].mend,
        r#"ALTER TABLE "public"."scratch" SET LOGGED"#
    );
}
