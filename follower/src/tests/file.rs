//! The mirror file: whose it is, who writes it, what becomes of a damaged one.

use rusqlite::Connection;
use serde_json::json;

use super::env::{Env, frames, opened};
use crate::files::Files;
use crate::mirror::LocalIndex;
use crate::mirror::tests::{Log, O, generation, row, two_tables};

#[tokio::test]
async fn file_of_somebody_else_is_never_touched() {
    for bytes in [
        b"my only copy of something, long enough to look like a file header of a hundred bytes.."
            .to_vec(),
        b"short".to_vec(),
        [b"SQLite format 3\0".to_vec(), vec![0xa5; 5000]].concat(),
    ] {
        let mut env = Env::new(true, false).await;
        std::fs::write(env.db(), &bytes).unwrap();
        env.start().await;
        let reason = env.until_reason("is not a mirror").await;
        assert!(reason.contains("move it away"), "{reason}");
        env.stop().await;
        assert_eq!(std::fs::read(env.db()).unwrap(), bytes);
    }
}

#[tokio::test]
async fn second_follower_of_one_file_waits_and_says_why() {
    let mut env = Env::new(true, false).await;
    let lock = Files::new(&env.db()).lock().unwrap();
    env.start().await;
    env.until_reason("another process has").await;
    assert!(!env.db().exists());
    let mut log = Log::new();
    log.genesis(&two_tables(), &[]);
    env.gateway.script(vec![opened(generation(), 1)], false);
    env.gateway
        .script(vec![opened(generation(), 1), frames(&log.raw)], true);
    drop(lock);
    env.until_ready().await;
}

#[tokio::test]
async fn mirror_that_is_damaged_while_it_is_applied_to_is_made_anew() {
    let mut env = Env::new(true, false).await;
    let mut log = Log::new();
    log.genesis(&two_tables(), &[]);
    let many: Vec<O> = (0..3000).map(|id| O::Insert(1, row(id, "fill"))).collect();
    log.txn(&many);
    env.gateway.script(vec![opened(generation(), 1)], false);
    env.gateway
        .script(vec![opened(generation(), 1), frames(&log.raw)], true);
    env.start().await;
    env.until_applied(3).await;
    env.stop().await;
    let conn = Connection::open(env.db()).unwrap();
    let page: i64 = conn
        .query_row(
            "SELECT rootpage FROM sqlite_schema WHERE name = 't'",
            [],
            |row| row.get(0),
        )
        .unwrap();
    drop(conn);
    let mut bytes = std::fs::read(env.db()).unwrap();
    let from = (page as usize - 1) * 4096;
    bytes[from..from + 4096].fill(0xa5);
    std::fs::write(env.db(), bytes).unwrap();
    let last = log.raw.len();
    log.txn(&[O::Delete(1, vec![crate::mirror::tests::V::Int(7)])]);
    env.gateway.script(
        vec![opened(generation(), 1), frames(&log.raw[last..])],
        true,
    );
    env.gateway
        .script(vec![opened(generation(), 1), frames(&log.raw)], true);
    env.start().await;
    assert_eq!(env.gateway.until_subscribed(4).await.seq, 0);
    env.until_applied(4).await;
    env.until_ready().await;
    assert_eq!(env.rows("SELECT count(*) FROM t").await, json!([[2999]]));
    let warnings = env.state.view().warnings;
    assert!(
        warnings[0].contains("a new mirror takes its place"),
        "{warnings:?}"
    );
}

#[tokio::test]
async fn local_index_that_fits_nothing_is_named() {
    let mut env = Env::new(true, false).await;
    let index = |table: &str, column: &str| LocalIndex {
        table: table.to_owned(),
        columns: vec![column.to_owned()],
    };
    env.indexes = vec![index("t", "a"), index("tt", "a")];
    let mut log = Log::new();
    log.genesis(&two_tables(), &[]);
    env.gateway.script(vec![opened(generation(), 1)], false);
    env.gateway
        .script(vec![opened(generation(), 1), frames(&log.raw)], true);
    env.start().await;
    env.until_ready().await;
    let warnings = env.state.view().warnings;
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(
        warnings[0].contains("the local index on tt (a)"),
        "{warnings:?}"
    );
}
