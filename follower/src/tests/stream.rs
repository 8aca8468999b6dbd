//! Frames over gRPC: breaks, discards, who speaks, other generations.

use rindle_archive::bulk;
use rindle_proto::body::BulkPart;
use rindle_proto::ids::Generation;
use rindle_proto::rpc::restore::Reason;
use rindle_proto::rpc::subscribe_reply::Reply;
use rindle_proto::rpc::{Discard, Progress, Restore};
use serde_json::json;

use super::env::{Env, frames, opened, until};
use crate::mirror::tests::{ATTEMPT, Log, O, generation, row, two_tables};

fn copied(log: &mut Log) {
    log.genesis(&two_tables(), &[]);
}

#[tokio::test]
async fn stream_goes_on_where_it_broke_and_half_a_transaction_never_shows() {
    let mut env = Env::new(true, false).await;
    let mut log = Log::new();
    copied(&mut log);
    log.txn(&[O::Insert(1, row(1, "one"))]);
    let two = [O::Insert(1, row(2, "two")), O::Insert(1, row(3, "three"))];
    log.parts(&two, &[1]);
    env.gateway.script(vec![opened(generation(), 1)], false);
    env.gateway
        .script(vec![opened(generation(), 1), frames(&log.raw[..4])], false);
    env.gateway
        .script(vec![opened(generation(), 1), frames(&log.raw[3..])], true);
    env.start().await;
    let again = env.gateway.until_subscribed(3).await;
    assert_eq!(again.seq, 3, "after the last whole transaction");
    assert_eq!(again.commit_lsn, 1018);
    env.until_applied(5).await;
    assert_eq!(env.rows("SELECT count(*) FROM t").await, json!([[3]]));
    assert_eq!(
        env.gateway.requests()[0].generation,
        "",
        "it asked what is served"
    );
}

#[tokio::test]
async fn discarded_transaction_gives_its_numbers_to_another() {
    let mut env = Env::new(true, false).await;
    let mut log = Log::new();
    copied(&mut log);
    let position = log.writer.position();
    let half = log.parts(
        &[O::Insert(1, row(1, "a")), O::Insert(1, row(2, "b"))],
        &[1],
    );
    assert_eq!(half.len(), 2);
    log.writer = rindle_proto::frame::FrameWriter::new(position);
    log.txn(&[O::Insert(1, row(9, "other"))]);
    env.gateway.script(vec![opened(generation(), 1)], false);
    let said = vec![
        opened(generation(), 2),
        frames(&log.raw[..3]),
        Reply::Discard(Discard {}),
        frames(&log.raw[4..]),
    ];
    env.gateway.script(said, true);
    env.start().await;
    env.until_applied(3).await;
    assert_eq!(env.rows("SELECT id FROM t").await, json!([[9]]));
}

#[tokio::test]
async fn gateway_that_was_overtaken_is_left() {
    let mut env = Env::new(true, false).await;
    let mut log = Log::new();
    copied(&mut log);
    log.txn(&[O::Insert(1, row(1, "stale"))]);
    env.gateway.script(vec![opened(generation(), 5)], false);
    env.gateway
        .script(vec![opened(generation(), 5), frames(&log.raw[..2])], false);
    env.gateway
        .script(vec![opened(generation(), 4), frames(&log.raw[2..])], true);
    env.gateway.script(vec![opened(generation(), 6)], true);
    env.start().await;
    let request = env.gateway.until_subscribed(4).await;
    assert_eq!((request.epoch, request.seq), (5, 2));
    assert_eq!(env.rows("SELECT count(*) FROM t").await, json!([[0]]));
    env.stop().await;
    env.gateway.script(vec![opened(generation(), 6)], true);
    env.start().await;
    let request = env.gateway.until_subscribed(5).await;
    assert_eq!(request.epoch, 6, "the highest epoch survives");
}

#[tokio::test]
async fn other_generation_is_made_beside_and_swapped_when_complete() {
    let mut env = Env::new(true, false).await;
    let other = Generation::from_bytes([3; 16]);
    let mut old = Log::new();
    copied(&mut old);
    old.txn(&[O::Insert(1, row(1, "old"))]);
    env.gateway.script(vec![opened(generation(), 1)], false);
    env.gateway
        .script(vec![opened(generation(), 1), frames(&old.raw)], true);
    env.start().await;
    env.until_applied(3).await;
    env.until_ready().await;
    let boot = env.state.boot_id();
    assert!(
        env.db().is_symlink(),
        "a reader never pairs one mirror with another's log"
    );

    let mut new = Log::of(other);
    copied(&mut new);
    new.txn(&[O::Insert(1, row(2, "new"))]);
    env.gateway
        .script(vec![opened(other, 1), frames(&new.raw[..1])], true);
    let restore = Restore {
        reason: Reason::OtherGeneration.into(),
        detail: String::new(),
        generation: other.to_string(),
    };
    env.gateway.say(Reply::Restore(restore)).await;
    let request = env.gateway.until_subscribed(3).await;
    assert_eq!((request.generation, request.seq), (other.to_string(), 0));
    assert_eq!(
        env.rows("SELECT a FROM t").await,
        json!([["old"]]),
        "still served"
    );
    assert_eq!(
        (env.state.view().ready, env.state.boot_id()),
        (true, boot.clone())
    );

    env.gateway.say(frames(&new.raw[1..])).await;
    env.until_applied(3).await;
    assert_eq!(env.rows("SELECT a FROM t").await, json!([["new"]]));
    assert_ne!(env.state.boot_id(), boot);
    env.stop().await;

    env.gateway.script(vec![opened(other, 1)], true);
    env.start().await;
    env.until_ready().await;
    assert_eq!(env.rows("SELECT a FROM t").await, json!([["new"]]));
    let request = env.gateway.until_subscribed(4).await;
    assert_eq!((request.generation, request.seq), (other.to_string(), 3));
}

/// Parts of a copy as a gateway gives them, in the log's Done too.
async fn bulk_objects(env: &Env, log: &mut Log) -> Vec<bytes::Bytes> {
    let rows: Vec<_> = (0..20).map(|id| (1, row(id, "copied"))).collect();
    let listed = log.put_parts(&two_tables(), &rows);
    let store = env.archive().await.log(generation());
    let (mut parts, mut objects): (Vec<BulkPart>, Vec<_>) = (Vec::new(), Vec::new());
    for part in &listed {
        let rows = log.parts[part.number as usize].clone();
        let put = store.put_bulk(ATTEMPT, part.number, part.table, part.rows, rows);
        parts.push(put.await.unwrap());
        let object = store.fetch_bulk_stored(ATTEMPT, part.number).await.unwrap();
        assert!(bulk::decode(&object, generation(), ATTEMPT, &parts[parts.len() - 1]).is_ok());
        objects.push(object);
    }
    log.genesis_of(&two_tables(), parts);
    objects
}

#[tokio::test]
async fn first_copy_comes_through_the_gateway_and_waits_for_a_part_that_is_away() {
    let mut env = Env::new(true, false).await;
    let mut log = Log::new();
    let objects = bulk_objects(&env, &mut log).await;
    env.gateway.script(vec![opened(generation(), 1)], false);
    env.gateway
        .script(vec![opened(generation(), 1), frames(&log.raw)], true);
    env.gateway.bulk(objects[..3].to_vec());
    env.start().await;
    env.until_reason("waiting for the first copy (0 of 2 tables)")
        .await;
    let (status, answer) = env.ask("GET", "/schema", &json!(null)).await;
    assert_eq!((status, answer["error"].is_string()), (503, true));
    env.gateway.bulk(objects);
    env.until_ready().await;
    assert_eq!(
        env.rows("SELECT count(*), max(a) FROM t").await,
        json!([[20, "copied"]])
    );
}

#[tokio::test]
async fn damaged_part_halts_by_name_and_is_read_again_later() {
    let mut env = Env::new(true, false).await;
    let mut log = Log::new();
    let mut objects = bulk_objects(&env, &mut log).await;
    let mut damaged = objects[4].to_vec();
    *damaged.last_mut().unwrap() ^= 1;
    objects[4] = damaged.into();
    env.gateway.script(vec![opened(generation(), 1)], false);
    env.gateway
        .script(vec![opened(generation(), 1), frames(&log.raw)], true);
    env.gateway.bulk(objects);
    env.start().await;
    let reason = env.until_reason("bulk part 4").await;
    assert!(
        reason.contains("what is stored is not what was written"),
        "{reason}"
    );
    assert!(env.state.view().halted);
    let (status, _) = env.ask("GET", "/readyz", &json!(null)).await;
    assert_eq!(status, 503);
}

#[tokio::test]
async fn divergence_halts_by_name_and_goes_on_serving() {
    let mut env = Env::new(true, false).await;
    let mut log = Log::new();
    copied(&mut log);
    log.txn(&[O::Insert(1, row(1, "one"))]);
    log.txn(&[O::Update(1, row(7, "nobody"))]);
    env.gateway.script(vec![opened(generation(), 1)], false);
    env.gateway
        .script(vec![opened(generation(), 1), frames(&log.raw)], true);
    env.start().await;
    let reason = env.until_reason("divergence in table \"t\"").await;
    assert!(
        reason.contains("no row has the key") && reason.contains("frame 4"),
        "{reason}"
    );
    let rows = env.rows("SELECT count(*) FROM t").await;
    assert_eq!(
        rows,
        json!([[0]]),
        "the group was dropped with it, nothing is half applied"
    );
    let (status, answer) = env.ask("GET", "/readyz", &json!(null)).await;
    assert_eq!((status, answer["halted"].clone()), (503, json!(true)));
}

#[tokio::test]
async fn lag_is_told_and_a_quiet_source_is_no_lag() {
    let mut env = Env::new(true, false).await;
    let mut log = Log::new();
    copied(&mut log);
    let said = vec![opened(generation(), 1), frames(&log.raw)];
    env.gateway.script(vec![opened(generation(), 1)], false);
    env.gateway.script(said, true);
    env.start().await;
    env.until_applied(2).await;
    let progress = |through_lsn, head_seq| {
        Reply::Progress(Progress {
            through_lsn,
            head_seq,
            durable_seq: 1,
        })
    };
    env.gateway.say(progress(9000, 2)).await;
    until(|| (env.state.head().through_lsn.0 == 9000).then_some(())).await;
    assert_eq!(env.state.view().lag_bytes, 0);
    env.gateway.say(progress(9500, 7)).await;
    until(|| (env.state.view().lag_bytes == 8500).then_some(())).await;
    let (_, metrics) = env.ask("GET", "/metrics", &json!(null)).await;
    // No recorder is installed in tests; the route answers all the same.
    assert!(metrics.is_string());
}
