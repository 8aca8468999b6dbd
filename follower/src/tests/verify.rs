//! The control port: hold, digest, release; tokens; schema.

use rindle_proto::ids::Lsn;
use rindle_proto::rpc::Progress;
use rindle_proto::rpc::subscribe_reply::Reply;
use rindle_proto::verify::TableDigest;
use serde_json::{Value, json};

use super::env::{Env, frames, opened, until};
use crate::mirror::tests::{Log, O, generation, row, two_tables};

async fn env(log: &mut Log) -> Env {
    let mut env = Env::new(true, false).await;
    log.genesis(&two_tables(), &[]);
    log.txn(&[O::Insert(1, row(1, "one"))]);
    env.gateway.script(vec![opened(generation(), 1)], false);
    env.gateway
        .script(vec![opened(generation(), 1), frames(&log.raw)], true);
    env.start().await;
    env.until_applied(3).await;
    env
}

fn digest(answer: &Value) -> TableDigest {
    serde_json::from_value(answer["digest"].clone()).unwrap()
}

#[tokio::test]
async fn mirror_stands_still_before_the_first_transaction_beyond_the_snapshot() {
    let mut log = Log::new();
    let env = env(&mut log).await;
    let from = log.raw.len();
    log.txn(&[O::Insert(1, row(2, "in"))]);
    log.txn(&[O::Insert(1, row(3, "beyond"))]);
    let snapshot = Lsn(log.lsn);
    let request = json!({"snapshot": snapshot});
    let holding = env.ask("POST", "/verify/hold", &request);
    let say = async {
        env.gateway.say(frames(&log.raw[from..])).await;
    };
    let ((status, answer), ()) = tokio::join!(holding, say);
    assert_eq!((status, answer["seq"].clone()), (200, json!(4)), "{answer}");
    assert_eq!(env.rows("SELECT max(id) FROM t").await, json!([[2]]));
    let (status, one) = env
        .ask("POST", "/verify/digest", &json!({"table": "t"}))
        .await;
    assert_eq!((status, digest(&one).rows), (200, 2));
    let (status, _) = env
        .ask("POST", "/verify/digest", &json!({"table": "no"}))
        .await;
    assert_eq!(status, 400);
    let (status, other) = env.ask("POST", "/verify/hold", &request).await;
    assert_eq!((status, other["code"].clone()), (409, json!("busy")));
    let (_, ready) = env.ask("GET", "/readyz", &json!(null)).await;
    assert_eq!(ready["held"], json!({"snapshot": snapshot, "seq": 4}));

    let (_, released) = env.ask("POST", "/verify/release", &json!({})).await;
    assert_eq!(released, json!({"released": true}));
    env.until_applied(5).await;
    assert_eq!(env.rows("SELECT max(id) FROM t").await, json!([[3]]));
    let (status, _) = env
        .ask("POST", "/verify/digest", &json!({"table": "t"}))
        .await;
    assert_eq!(status, 409);
    let (status, past) = env.ask("POST", "/verify/hold", &request).await;
    assert_eq!(status, 409);
    assert!(
        past["error"].as_str().unwrap().contains("past snapshot"),
        "{past}"
    );
}

#[tokio::test]
async fn half_a_transaction_beyond_the_snapshot_is_past_it() {
    let mut log = Log::new();
    let env = env(&mut log).await;
    let from = log.raw.len();
    let two = [O::Insert(1, row(2, "half")), O::Insert(1, row(3, "half"))];
    log.parts(&two, &[1]);
    let snapshot = Lsn(log.lsn - 1);
    env.gateway.say(frames(&log.raw[from..from + 1])).await;
    env.gateway
        .say(Reply::Progress(Progress {
            through_lsn: 1,
            head_seq: 5,
            durable_seq: 3,
        }))
        .await;
    until(|| (env.state.head().head_seq.0 == 5).then_some(())).await;
    let request = json!({"snapshot": snapshot, "timeoutMs": 1000});
    let (status, answer) = env.ask("POST", "/verify/hold", &request).await;
    assert_eq!((status, answer["code"].clone()), (409, json!("past")));
}

#[tokio::test]
async fn hold_that_waits_does_not_keep_the_thread() {
    let mut log = Log::new();
    let mut env = env(&mut log).await;
    let request = json!({"snapshot": Lsn(90_000), "timeoutMs": 20_000});
    let began = std::time::Instant::now();
    let holding = env.ask("POST", "/verify/hold", &request);
    let stop = async {
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        env.stop_token().cancel();
    };
    let ((status, _), ()) = tokio::join!(holding, stop);
    assert_eq!(status, 503);
    assert!(began.elapsed().as_secs() < 5, "{:?}", began.elapsed());
    env.stop().await;
}

#[tokio::test]
async fn quiet_source_reaches_a_snapshot_by_its_progress() {
    let mut log = Log::new();
    let env = env(&mut log).await;
    let progress = |through_lsn| {
        Reply::Progress(Progress {
            through_lsn,
            head_seq: 3,
            durable_seq: 3,
        })
    };
    let late = json!({"snapshot": "0/7D0", "timeoutMs": 50});
    let (status, answer) = env.ask("POST", "/verify/hold", &late).await;
    assert_eq!(status, 503, "{answer}");
    let request = json!({"snapshot": "0/7D0"});
    let holding = env.ask("POST", "/verify/hold", &request);
    let ((status, _), ()) = tokio::join!(holding, env.gateway.say(progress(2000)));
    assert_eq!(status, 200);
    env.ask("POST", "/verify/release", &json!({})).await;
    // Known already: answered at once.
    let (status, _) = env.ask("POST", "/verify/hold", &request).await;
    assert_eq!(status, 200);
}

#[tokio::test]
async fn routes_answer_as_clients_expect() {
    let mut log = Log::new();
    let env = env(&mut log).await;
    env.until_ready().await;
    let none = json!(null);
    for (method, path, open) in [
        ("GET", "/version", true),
        ("GET", "/livez", true),
        ("GET", "/readyz", true),
        ("GET", "/schema", false),
        ("GET", "/metrics", false),
        ("POST", "/execute-sql-read", false),
        ("POST", "/verify/release", false),
    ] {
        let (status, head, body) = env.ask_with(method, path, &none, None).await;
        assert_eq!(status == 401, !open, "{path}");
        assert!(head.contains("rindle-boot-id: "), "{path}");
        if !open {
            assert_eq!(body, json!({"error": "unauthorized"}));
        }
    }
    let (status, body) = env.ask("GET", "/execute-sql-read", &none).await;
    assert_eq!((status, body), (404, json!({"error": "not found"})));
    let (status, body) = env.ask("POST", "/execute-sql-read", &none).await;
    assert_eq!((status, body), (400, json!({"error": "invalid JSON body"})));
    let (_, schema) = env.ask("GET", "/schema", &none).await;
    let column = |name: &str, nullable: bool, kind: &str| json!({"name": name, "nullable": nullable, "type": kind});
    let expected = json!({"tables": [
        {"name": "pair", "columns": [
            column("x", false, "string"), column("y", false, "int64"), column("z", true, "json"),
        ], "primaryKey": ["y", "x"]},
        {"name": "t", "columns": [
            column("id", false, "int64"), column("a", true, "string"), column("b", true, "number"),
            column("c", true, "boolean"),
        ], "primaryKey": ["id"]},
    ]});
    assert_eq!(schema, expected);
}
