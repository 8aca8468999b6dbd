use super::*;
use crate::layout::SourceKeys;

fn key() -> Key {
    SourceKeys::new(&"app".parse().unwrap()).current()
}

fn store() -> (tempfile::TempDir, DirStore) {
    let directory = tempfile::tempdir().unwrap();
    let store = DirStore::new(&directory.path().join("a/b"));
    (directory, store)
}

fn files(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory.join("a/b/app")).unwrap();
    entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

#[tokio::test]
async fn create_never_overwrites_and_leaves_nothing_behind() {
    let (directory, store) = store();
    assert_eq!(store.get(&key(), 10).await.unwrap(), None);
    assert_eq!(
        store.create(&key(), "one".into()).await.unwrap(),
        Create::Created
    );
    assert_eq!(
        store.create(&key(), "two".into()).await.unwrap(),
        Create::Exists
    );
    assert_eq!(store.get(&key(), 10).await.unwrap().unwrap(), "one");
    assert_eq!(store.get_start(&key(), 2).await.unwrap().unwrap(), "on");
    assert_eq!(files(directory.path()), ["current.json"]);
    store.settle(&key()).await.unwrap();
}

#[tokio::test]
async fn object_beyond_the_limit_is_not_read() {
    let (_directory, store) = store();
    store.create(&key(), "1234".into()).await.unwrap();
    let error = store.get(&key(), 3).await.unwrap_err();
    assert_eq!(error.problem, Problem::TooLong);
}

#[tokio::test]
async fn one_of_many_creates_wins() {
    let (_directory, store) = store();
    let creates = (0..8).map(|at: u8| {
        let store = store.clone();
        tokio::spawn(async move { store.create(&key(), vec![at].into()).await.unwrap() })
    });
    let mut won = 0;
    for create in creates.collect::<Vec<_>>() {
        won += u32::from(create.await.unwrap() == Create::Created);
    }
    assert_eq!(won, 1);
}

#[tokio::test]
async fn compare_and_set_replaces_what_was_read() {
    let (_directory, store) = store();
    let set = async |expected, text: &'static str| {
        store
            .compare_and_set(&key(), expected, text.into())
            .await
            .unwrap()
    };
    let Swap::Done(one) = set(None, "one").await else {
        panic!("nothing was there")
    };
    assert_eq!(set(None, "two").await, Swap::Lost);
    let Swap::Done(two) = set(Some(&one), "two").await else {
        panic!("it was one")
    };
    assert_eq!(set(Some(&one), "three").await, Swap::Lost);
    let found = store.get_versioned(&key(), 10).await.unwrap().unwrap();
    assert_eq!((found.bytes, found.version), ("two".into(), two));
}

#[tokio::test]
async fn racing_compare_and_sets_lose_nothing() {
    let (_directory, store) = store();
    let adds = (0..8).map(|_| {
        let store = store.clone();
        tokio::spawn(async move {
            loop {
                let found = store.get_versioned(&key(), 10).await.unwrap();
                let count: u8 = found.as_ref().map_or(0, |found| found.bytes[0]);
                let version = found.map(|found| found.version);
                let next = vec![count + 1].into();
                if store
                    .compare_and_set(&key(), version.as_ref(), next)
                    .await
                    .unwrap()
                    != Swap::Lost
                {
                    return;
                }
            }
        })
    });
    for add in adds.collect::<Vec<_>>() {
        add.await.unwrap();
    }
    assert_eq!(store.get(&key(), 10).await.unwrap().unwrap()[0], 8);
}

#[tokio::test]
async fn vanished_directory_is_not_made_anew() {
    let (directory, store) = store();
    store.create(&key(), "one".into()).await.unwrap();
    let root = directory.path().join("a/b");
    fs::remove_dir_all(&root).unwrap();
    let deeper = SourceKeys::new(&"app".parse().unwrap())
        .generation(rindle_proto::ids::Generation::from_bytes([1; 16]))
        .record();
    for key in [key(), deeper] {
        let error = store.create(&key, "two".into()).await.unwrap_err();
        assert_eq!(error.problem, Problem::Vanished, "{error}");
    }
    assert_eq!(
        store.get(&key(), 10).await.unwrap_err().problem,
        Problem::Vanished
    );
    assert!(!root.exists());
}

#[tokio::test]
async fn suspect_object_is_settled_as_a_new_file() {
    use std::os::unix::fs::MetadataExt as _;
    let (directory, store) = store();
    store.create(&key(), "one".into()).await.unwrap();
    let path = directory.path().join("a/b/app/current.json");
    let before = fs::metadata(&path).unwrap().ino();
    store.settle(&key()).await.unwrap();
    assert_eq!(fs::metadata(&path).unwrap().ino(), before);
    store.0.seen().suspect.insert(key());
    store.settle(&key()).await.unwrap();
    assert_ne!(fs::metadata(&path).unwrap().ino(), before);
    assert_eq!(fs::read(&path).unwrap(), b"one");
    assert!(store.0.seen().suspect.is_empty());
}

#[tokio::test]
async fn unfinished_files_of_a_crash_are_removed_and_never_listed() {
    let (directory, store) = store();
    let within = directory.path().join("a/b/app");
    fs::create_dir_all(&within).unwrap();
    let old = File::create(within.join(".tmp-old")).unwrap();
    let long_ago = std::time::SystemTime::UNIX_EPOCH;
    old.set_modified(long_ago).unwrap();
    File::create(within.join(".tmp-new")).unwrap();
    store.create(&key(), "one".into()).await.unwrap();
    assert!(!within.join(".tmp-old").exists());
    assert!(
        within.join(".tmp-new").exists(),
        "another process may be writing it"
    );
    let listed = names(&within, None).unwrap();
    assert_eq!(listed, ["current.json"]);
    assert!(names(&within, Some("current.json")).unwrap().is_empty());
    assert!(names(&within.join("nothing"), None).unwrap().is_empty());
}
