//! The bucket against a real server that fails on demand: what each answer becomes, and that the archive's own loops make
//! the right thing of it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::Method;
use rindle_proto::ids::SegmentNo;

use super::env::{Contents, ONE, append, generation, start};
use crate::bucket_server::{BucketServer, Fault, Manners, Rule};
use crate::error::{ArchiveError, Kind};
use crate::layout::{Key, SourceKeys};
use crate::objects::{Objects, Stands};
use crate::reader::ReadFrom;
use crate::s3::S3Store;
use crate::store::{Create, Problem, Store as _, Swap};
use crate::testkit::{Source, SourceTxn, generation_record};
use crate::{AppendError, Archive};

struct Bucket {
    server: BucketServer,
    store: S3Store,
    archive: Archive,
}

impl Bucket {
    async fn new(manners: Manners) -> Self {
        let server = BucketServer::start(manners).unwrap();
        let settings = server.settings().unwrap();
        let settings = settings.with_answers_within(Duration::from_millis(500));
        let source = "app".parse().unwrap();
        Self {
            store: S3Store::new(&settings).unwrap(),
            archive: Archive::in_bucket(&settings, &source).unwrap(),
            server,
        }
    }

    fn objects(&self) -> Objects {
        Objects(Arc::new(self.store.clone()))
    }
}

fn key() -> Key {
    SourceKeys::new(&"app".parse().unwrap()).current()
}

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

const LIMIT: u64 = 1 << 20;

#[tokio::test]
async fn it_answers_as_a_store_must() {
    let bucket = Bucket::new(Manners::Careful).await;
    let (store, key) = (&bucket.store, key());
    assert_eq!(store.get(&key, LIMIT).await.unwrap(), None);
    assert_eq!(store.get_start(&key, 3).await.unwrap(), None);
    assert_eq!(
        store.create(&key, bytes("first")).await.unwrap(),
        Create::Created
    );
    assert_eq!(
        store.create(&key, bytes("other")).await.unwrap(),
        Create::Exists
    );
    assert_eq!(store.get(&key, LIMIT).await.unwrap(), Some(bytes("first")));
    assert_eq!(store.get_start(&key, 3).await.unwrap(), Some(bytes("fir")));
    assert_eq!(
        store.get_start(&key, 99).await.unwrap(),
        Some(bytes("first"))
    );
    let long = store.get(&key, 4).await.unwrap_err();
    assert_eq!(
        (long.problem, long.kind()),
        (Problem::TooLong, Kind::Corrupt)
    );
    let found = store.get_versioned(&key, LIMIT).await.unwrap().unwrap();
    let none = store.compare_and_set(&key, None, bytes("other")).await;
    assert_eq!(none.unwrap(), Swap::Lost);
    let replaced = store
        .compare_and_set(&key, Some(&found.version), bytes("second"))
        .await
        .unwrap();
    let Swap::Done(version) = replaced else {
        panic!("{replaced:?}")
    };
    let stale = store
        .compare_and_set(&key, Some(&found.version), bytes("third"))
        .await;
    assert_eq!(stale.unwrap(), Swap::Lost);
    let found = store.get_versioned(&key, LIMIT).await.unwrap().unwrap();
    assert_eq!(
        (found.bytes, found.version),
        (bytes("second"), version.clone())
    );
    store.delete(&key).await.unwrap();
    store.delete(&key).await.unwrap();
    let gone = store.compare_and_set(&key, Some(&version), bytes("fourth"));
    assert_eq!(gone.await.unwrap(), Swap::Lost);
    let seen = bucket.server.seen();
    assert_eq!(
        seen.checksums,
        seen.requests[&Method::PUT],
        "each PUT tells its SHA-256"
    );
}

#[tokio::test]
async fn names_come_sorted_in_any_number_of_pages() {
    let bucket = Bucket::new(Manners::Careful).await;
    let id = ulid::Ulid::generate();
    let keys = SourceKeys::new(&"app".parse().unwrap());
    for n in 0..1003 {
        bucket
            .store
            .create(&keys.probed(id, n), bytes("x"))
            .await
            .unwrap();
    }
    let names = bucket.store.list(&keys.probe(id), None).await.unwrap();
    let expected: Vec<String> = (0..1003).map(|n| format!("{n:03}")).collect();
    let mut sorted = expected.clone();
    sorted.sort_unstable();
    assert_eq!(names, sorted);
    let after = bucket
        .store
        .list(&keys.probe(id), Some("997"))
        .await
        .unwrap();
    assert_eq!(after, ["998", "999"]);
    let root = "app".parse().unwrap();
    let parts = bucket
        .store
        .list(&SourceKeys::new(&root).generations(), None)
        .await;
    assert_eq!(parts.unwrap(), Vec::<String>::new());
}

/// Each way in which the answer to a create can be lost or wrong.
const AMBIGUOUS: [Fault; 10] = [
    Fault::Before(500, "InternalError"),
    Fault::Before(503, "SlowDown"),
    Fault::Before(409, "ConditionalRequestConflict"),
    Fault::Before(403, "AccessDenied"),
    Fault::CutBefore,
    Fault::After(500, "InternalError"),
    Fault::After(503, "SlowDown"),
    Fault::After(412, "PreconditionFailed"),
    Fault::CutAfter,
    Fault::Silent,
];

/// A create that is tried until it stands is never taken for somebody else's, and never stands twice.
#[tokio::test]
async fn a_create_whose_answer_is_lost_is_ours_all_the_same() {
    let bucket = Bucket::new(Manners::Careful).await;
    let (objects, keys) = (bucket.objects(), SourceKeys::new(&"app".parse().unwrap()));
    let id = ulid::Ulid::generate();
    for (n, fault) in (0..).zip(AMBIGUOUS) {
        let (key, ours) = (keys.probed(id, n), bytes(&format!("ours {n}")));
        bucket.server.fail(Rule::once(Method::PUT, fault));
        let mut tries = 0;
        let stands = loop {
            tries += 1;
            match objects.create(&key, &ours, LIMIT).await {
                Ok(stands) => break stands,
                Err(error) => assert_eq!(error.kind(), Kind::Retry, "{fault:?}: {error}"),
            }
            assert!(tries < 5, "{fault:?}");
        };
        assert!(matches!(stands, Stands::Mine), "{fault:?}: {stands:?}");
        let seen = bucket.server.seen();
        assert_eq!(seen.fired, 1, "{fault:?}");
        // One call is one request.
        assert_eq!(seen.requests[&Method::PUT], tries, "{fault:?}");
        assert_eq!(bucket.store.get(&key, LIMIT).await.unwrap(), Some(ours));
    }
    // Somebody else's stays somebody else's, however it is told.
    for (n, fault) in (20..).zip(AMBIGUOUS) {
        let key = keys.probed(id, n);
        bucket.store.create(&key, bytes("theirs")).await.unwrap();
        bucket.server.fail(Rule::once(Method::PUT, fault));
        let stands = objects.create(&key, &bytes("ours"), LIMIT).await.unwrap();
        assert!(
            matches!(stands, Stands::Other(it) if it == bytes("theirs")),
            "{fault:?}"
        );
    }
}

/// A writer appends and a reader follows while every request of a kind fails once, in each way.
#[tokio::test]
async fn a_log_is_whole_whatever_the_store_answers() {
    for fault in AMBIGUOUS {
        let bucket = Bucket::new(Manners::Careful).await;
        let record = generation_record(generation());
        bucket.archive.create_generation(&record).await.unwrap();
        let log = || bucket.archive.log(generation());
        let mut writer = log().take_over(ONE).await.unwrap().writer;
        let mut source = Source::at(start());
        append(&mut writer, &mut source, &[1]).await;
        for txn in [2, 3] {
            bucket.server.fail(Rule::once(Method::PUT, fault));
            source.txn(SourceTxn(txn), 2);
            let mut appended = writer.append(source.take()).await;
            for _ in 0..4 {
                let Err(error) = &appended else { break };
                assert_eq!(error.kind(), Kind::Retry, "{fault:?}: {error}");
                appended = writer.retry().await;
            }
            appended.unwrap();
        }
        assert_eq!(bucket.server.seen().fired, 2, "{fault:?}");
        let mut contents = Contents::default();
        let mut reader = log().reader(ReadFrom::Start);
        contents.follow(&mut reader).await.unwrap();
        assert_eq!(
            contents.texts(),
            ["1.1", "2.1", "2.2", "3.1", "3.2"],
            "{fault:?}"
        );
    }
}

/// Nothing but S3's own word says that an object is absent.
#[tokio::test]
async fn absence_is_not_guessed() {
    let bucket = Bucket::new(Manners::Careful).await;
    let key = key();
    bucket.store.create(&key, bytes("here")).await.unwrap();
    for (fault, problem) in [
        (Fault::Before(404, ""), Problem::Unavailable),
        (Fault::Before(404, "NoSuchBucket"), Problem::NoBucket),
        (Fault::Before(403, "AccessDenied"), Problem::Unauthorized),
        (
            Fault::Before(403, "RequestTimeTooSkewed"),
            Problem::ClockSkewed,
        ),
        (
            Fault::Before(301, "PermanentRedirect"),
            Problem::OtherRegion,
        ),
        (Fault::Before(500, "InternalError"), Problem::Unavailable),
        (Fault::Short, Problem::Unavailable),
        (Fault::CutBefore, Problem::Unavailable),
        (Fault::Silent, Problem::Unavailable),
    ] {
        bucket.server.fail(Rule::always(Method::GET, fault));
        let error = bucket.store.get(&key, LIMIT).await.unwrap_err();
        assert_eq!(
            (error.problem, error.kind()),
            (problem, Kind::Retry),
            "{fault:?}: {error}"
        );
        let listed = bucket.store.list(&key, None).await.unwrap_err();
        assert_eq!(listed.kind(), Kind::Retry, "{fault:?}");
        bucket.server.mend();
        assert_eq!(
            bucket.store.get(&key, LIMIT).await.unwrap(),
            Some(bytes("here"))
        );
    }
    for fault in [Fault::Drip(Duration::from_millis(20))] {
        bucket.server.fail(Rule::once(Method::GET, fault));
        assert_eq!(
            bucket.store.get(&key, LIMIT).await.unwrap(),
            Some(bytes("here"))
        );
    }
}

/// What arrives otherwise than it was written is told, and read again.
#[tokio::test]
async fn a_byte_that_turns_on_the_way_is_told() {
    let bucket = Bucket::new(Manners::Careful).await;
    let record = generation_record(generation());
    bucket.archive.create_generation(&record).await.unwrap();
    bucket.server.fail(Rule::once(Method::GET, Fault::Flipped));
    let error = bucket.archive.generation(generation()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Corrupt, "{error}");
    let log = bucket.archive.log(generation());
    let mut writer = log.take_over(ONE).await.unwrap().writer;
    append(&mut writer, &mut Source::at(start()), &[1]).await;
    let once = Rule {
        path: "/log/",
        ..Rule::once(Method::GET, Fault::Flipped)
    };
    bucket.server.fail(once);
    let mut reader = bucket.archive.log(generation()).reader(ReadFrom::Start);
    let error = Contents::default().follow(&mut reader).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Corrupt, "{error}");
    let mut contents = Contents::default();
    let mut reader = bucket.archive.log(generation()).reader(ReadFrom::Start);
    contents.follow(&mut reader).await.unwrap();
    assert_eq!(contents.texts(), ["1.1"]);
}

/// Keys that are taken away stop it by name; those that are given instead are found without a restart.
#[tokio::test]
async fn keys_that_change_are_read_anew() {
    let bucket = Bucket::new(Manners::Careful).await;
    bucket.store.create(&key(), bytes("here")).await.unwrap();
    bucket.server.write_keys("another").unwrap();
    let still = bucket.store.get(&key(), LIMIT).await.unwrap();
    assert_eq!(still, Some(bytes("here")), "what is known is kept");
    bucket
        .server
        .fail(Rule::once(Method::GET, Fault::Before(403, "ExpiredToken")));
    let error = bucket.store.get(&key(), LIMIT).await.unwrap_err();
    assert_eq!(error.problem, Problem::Unauthorized);
    // The file has a wrong secret now: the server itself refuses it.
    for _ in 0..2 {
        let error = bucket.store.get(&key(), LIMIT).await.unwrap_err();
        assert_eq!(
            (error.problem, error.kind()),
            (Problem::Unauthorized, Kind::Retry),
            "{error}"
        );
        let error = bucket.store.list(&key(), None).await.unwrap_err();
        assert_eq!(error.problem, Problem::Unauthorized, "{error}");
    }
    bucket
        .server
        .write_keys(crate::bucket_server::KEYS.1)
        .unwrap();
    let _refused = bucket.store.get(&key(), LIMIT).await;
    assert_eq!(
        bucket.store.get(&key(), LIMIT).await.unwrap(),
        Some(bytes("here"))
    );
}

#[tokio::test]
async fn nobody_who_we_are_is_told() {
    let server = BucketServer::start(Manners::Careful).unwrap();
    let settings = server.settings().unwrap();
    let settings = settings.with_profile_file(server.files().join("absent"));
    let store = S3Store::new(&settings).unwrap();
    for error in [
        store.get(&key(), LIMIT).await.unwrap_err(),
        store.list(&key(), None).await.unwrap_err(),
    ] {
        assert_eq!(error.problem, Problem::Unauthorized, "{error}");
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(source.contains("no AWS credentials"), "{source}");
    }
}

/// The probe of a mint.
#[tokio::test]
async fn a_store_that_lets_two_writers_win_is_refused() {
    let bucket = Bucket::new(Manners::Careful).await;
    let proved = bucket.archive.prove_store().await.unwrap().unwrap();
    assert_eq!((proved.keys, proved.racers), (20, 8));
    let files = std::fs::read_dir(bucket.server.files().join("app/probe"));
    let left = files.map_or(0, |ids| {
        let ids = ids.map(|id| std::fs::read_dir(id.unwrap().path()).unwrap().count());
        ids.sum()
    });
    assert_eq!(left, 0, "what the probe wrote is deleted");
    for manners in [Manners::Deaf, Manners::Racing] {
        bucket.server.behave(manners);
        let error = bucket.archive.prove_store().await.unwrap_err();
        assert!(matches!(error, ArchiveError::Unsupported { .. }), "{error}");
        assert!(
            error.to_string().contains("cannot hold an archive"),
            "{error}"
        );
    }
    // What cannot be asked is no proof.
    bucket.server.behave(Manners::Careful);
    bucket
        .server
        .fail(Rule::always(Method::PUT, Fault::After(503, "SlowDown")));
    let error = bucket.archive.prove_store().await.unwrap_err();
    assert_eq!(error.kind(), Kind::Retry, "{error}");
}

/// A proof holds for one bucket: whoever copies an archive elsewhere has it proved there before anything is written.
#[tokio::test]
async fn an_archive_that_was_copied_is_proved_where_it_is() {
    let bucket = Bucket::new(Manners::Careful).await;
    let mut record = generation_record(generation());
    record.proved = bucket.archive.prove_store().await.unwrap();
    bucket.server.seen();
    bucket.archive.prove_once(&record).await.unwrap();
    assert_eq!(bucket.server.seen().requests.len(), 0, "minted here");
    for other in [None, Some("elsewhere/archive/".to_owned())] {
        record.proved = record.proved.map(|proved| crate::probe::Proved {
            place: other.clone().unwrap_or_default(),
            ..proved
        });
        let there = Bucket::new(Manners::Deaf).await;
        let error = there.archive.prove_once(&record).await.unwrap_err();
        assert!(
            error.to_string().contains("cannot hold an archive"),
            "{error}"
        );
        there.server.behave(Manners::Careful);
        there.archive.prove_once(&record).await.unwrap();
        there.server.seen();
        there.archive.prove_once(&record).await.unwrap();
        let seen = there.server.seen();
        assert_eq!(seen.requests.len(), 1, "once is enough: {seen:?}");
    }
}

/// A server that stops answering costs a call its limit and no more, and nothing is confirmed.
#[tokio::test]
async fn an_append_is_confirmed_by_no_silence() {
    let bucket = Bucket::new(Manners::Careful).await;
    let record = generation_record(generation());
    bucket.archive.create_generation(&record).await.unwrap();
    let log = bucket.archive.log(generation());
    let mut writer = log.take_over(ONE).await.unwrap().writer;
    for method in [Method::PUT, Method::GET] {
        bucket.server.fail(Rule::always(method, Fault::CutBefore));
    }
    let mut source = Source::at(start());
    source.txn(SourceTxn(1), 1);
    let error: AppendError = writer.append(source.take()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Retry);
    bucket.server.mend();
    assert_eq!(writer.retry().await.unwrap().segment, SegmentNo(2));
}
