//! A backfill through the whole program: told while it runs, hidden until its end, left out of verify.

use bytes::Bytes;
use rindle_proto::change::SchemaChange;
use rindle_proto::ids::Lsn;
use rindle_proto::schema::{Table, TableId, Waiting};
use serde_json::{Value, json};

use super::env::{Env, frames, opened, until};
use crate::mirror::tests::{ATTEMPT, Log, O, generation, row, two_tables};

fn waiting(id: u32, name: &str, replaces: Option<TableId>) -> Table {
    let live = false;
    Table {
        id: TableId(id),
        name: name.to_owned(),
        waiting: Some(Waiting { replaces, live }),
        ..two_tables().tables.remove(0)
    }
}

/// The objects of a copy's parts, as a gateway keeps them.
async fn objects(env: &Env, log: &Log, copied: &mut rindle_proto::body::Copied) -> Vec<Bytes> {
    let store = env.archive().await.log(generation());
    let mut objects = Vec::new();
    for part in &mut copied.parts {
        let rows = log.parts[part.number as usize].clone();
        let put = store.put_bulk(ATTEMPT, part.number, part.table, part.rows, rows);
        *part = put.await.unwrap();
        let object = store.fetch_bulk_stored(ATTEMPT, part.number).await;
        objects.push(object.unwrap());
    }
    objects
}

async fn names(env: &Env) -> Vec<Value> {
    let (_, schema) = env.ask("GET", "/schema", &Value::Null).await;
    let tables = schema["tables"].as_array().unwrap().iter();
    tables.map(|table| table["name"].clone()).collect()
}

async fn hold(env: &Env, log: &Log) -> Value {
    let request = json!({"snapshot": Lsn(log.lsn + 9)});
    let through = rindle_proto::rpc::Progress {
        through_lsn: log.lsn + 9,
        head_seq: 0,
        durable_seq: 0,
    };
    let say = env
        .gateway
        .say(rindle_proto::rpc::subscribe_reply::Reply::Progress(through));
    let holding = env.ask("POST", "/verify/hold", &request);
    let ((status, held), ()) = tokio::join!(holding, say);
    assert_eq!(status, 200, "{held}");
    held
}

#[tokio::test]
async fn backfill_is_told_hidden_left_out_of_verify_and_shown_whole() {
    let mut env = Env::new(true, false).await;
    let mut log = Log::new();
    log.genesis(&two_tables(), &[]);
    log.txn(&[O::Insert(1, row(1, "old"))]);
    let (next, new) = (waiting(5, "t", Some(TableId(1))), waiting(6, "new", None));
    let create = |table: &Table| {
        O::Schema(SchemaChange::CreateTable {
            table: table.clone(),
        })
    };
    log.txn(&[create(&next), create(&new), O::Insert(5, row(2, "pending"))]);
    env.gateway.script(vec![opened(generation(), 1)], false);
    env.gateway
        .script(vec![opened(generation(), 1), frames(&log.raw)], true);
    env.start().await;
    env.until_applied(4).await;
    assert_eq!(names(&env).await, ["pair", "t"]);
    let (status, ready) = env.ask("GET", "/readyz", &Value::Null).await;
    let told = json!([
        {"table": "t", "state": "copying anew; until then it stands still"},
        {"table": "new", "state": "copying; not shown yet"},
    ]);
    assert_eq!((status, &ready["copying"]), (200, &told));
    let held = hold(&env, &log).await;
    assert_eq!(held["copying"], told);
    for (table, expected) in [("t", 409), ("new", 409), ("pair", 200), ("no", 400)] {
        let (status, answer) = env
            .ask("POST", "/verify/digest", &json!({"table": table}))
            .await;
        assert_eq!(status, expected, "{table}: {answer}");
        if expected == 409 {
            assert_eq!(answer["code"], "copying");
        }
    }
    env.ask("POST", "/verify/release", &json!({})).await;

    let rows: Vec<_> = (10..30).map(|id| (5, row(id, "copied"))).collect();
    let from = log.raw.len();
    let mut copied = log.copied(log.lsn, &[(5, &next), (6, &new)], &rows);
    env.gateway.bulk(objects(&env, &log, &mut copied).await);
    log.txn(&[O::Copied(copied)]);
    log.txn(&[O::Insert(5, row(3, "after"))]);
    env.gateway.say(frames(&log.raw[from..])).await;
    env.until_applied(6).await;
    assert_eq!(
        env.rows("SELECT count(*), min(a) FROM t").await,
        json!([[22, "after"]])
    );
    assert_eq!(names(&env).await, ["new", "pair", "t"]);
    until(|| env.state.copying().is_empty().then_some(())).await;
    assert_eq!(hold(&env, &log).await["copying"], json!([]));
}

#[tokio::test]
async fn a4_parts_that_cannot_be_had_are_waited_for_while_all_else_is_served() {
    let mut env = Env::new(true, false).await;
    let mut log = Log::new();
    log.genesis(&two_tables(), &[]);
    let new = waiting(6, "new", None);
    let create = SchemaChange::CreateTable { table: new.clone() };
    log.txn(&[O::Schema(create), O::Insert(1, row(1, "shown"))]);
    let mut copied = log.copied(log.lsn, &[(6, &new)], &[(6, row(1, "copied"))]);
    let objects = objects(&env, &log, &mut copied).await;
    log.txn(&[O::Copied(copied)]);
    env.gateway.script(vec![opened(generation(), 1)], false);
    env.gateway
        .script(vec![opened(generation(), 1), frames(&log.raw)], true);
    env.start().await;
    env.until_applied(3).await;
    let waits = || {
        let waiting = env.state.view().waiting?;
        waiting
            .contains("loading what a backfill copied")
            .then_some(())
    };
    until(waits).await;
    assert!(env.state.view().ready);
    assert_eq!(env.rows("SELECT a FROM t").await, json!([["shown"]]));
    env.gateway.bulk(objects);
    env.until_applied(4).await;
    assert_eq!(env.rows("SELECT a FROM new").await, json!([["copied"]]));
}
