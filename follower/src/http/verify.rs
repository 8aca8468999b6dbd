//! The mirror's half of verify: stand still at a snapshot, give the digest of a table, go on.

use std::path::Path;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State as Shared;
use axum::response::Json;
use rindle_proto::ids::Lsn;
use rindle_proto::schema::Table;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::schema::{blocking, served};
use super::{Failure, Http, parse};
use crate::apply::{HOLD_LIMIT, Handle, Input};
use crate::gateway::sentence;
use crate::mirror::{self, digest};
use crate::state::Held;

/// How long a snapshot is waited for unless the request says otherwise, and at most.
const TIMEOUT: Duration = Duration::from_secs(60);
const MAX_TIMEOUT: Duration = Duration::from_secs(600);

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct HoldRequest {
    snapshot: Lsn,
    timeout_ms: Option<u64>,
}

#[derive(Deserialize)]
struct DigestRequest {
    table: String,
}

fn thread(http: &Http) -> Result<Handle, Failure> {
    let handle = http.control.borrow().clone();
    handle.ok_or_else(|| {
        let reason = http.state.view().reason;
        Failure::unavailable(reason.unwrap_or_else(|| "nothing is applied at present".to_owned()))
    })
}

pub(super) async fn hold(Shared(http): Shared<Http>, body: Bytes) -> Result<Json<Value>, Failure> {
    let request: HoldRequest = parse(&body)?;
    let timeout = request
        .timeout_ms
        .map_or(TIMEOUT, Duration::from_millis)
        .min(MAX_TIMEOUT);
    let gone = || Failure::unavailable("the mirror is being replaced; try again");
    let (reached, answer) = oneshot::channel();
    let snapshot = request.snapshot;
    // The handle is gone before the wait: the thread must be free to end, and does not while one is held.
    let sent = thread(&http)?.send(Input::Hold { snapshot, reached }).await;
    sent.map_err(|_gone| gone())?;
    match tokio::time::timeout(timeout, answer).await {
        Err(_elapsed) => Err(Failure::unavailable(format!(
            "snapshot {snapshot} was not reached within {} ms; the mirror is at {}",
            timeout.as_millis(),
            http.state.view().applied_lsn
        ))),
        Ok(Err(_dropped)) => Err(gone()),
        Ok(Ok(Err(error))) => Err(Failure::conflict(error.code(), error.to_string())),
        Ok(Ok(Ok(held))) => Ok(Json(json!({
            "held": held.snapshot,
            "seq": held.seq,
            // What is left out: it is not what the source has.
            "copying": http.state.copying(),
        }))),
    }
}

pub(super) async fn release(Shared(http): Shared<Http>) -> Result<Json<Value>, Failure> {
    let released = http.state.held().is_some();
    let handle = thread(&http)?;
    let sent = handle.send(Input::Release).await;
    sent.map_err(|_gone| Failure::unavailable("the mirror is being replaced"))?;
    Ok(Json(json!({"released": released})))
}

pub(super) async fn digest(
    Shared(http): Shared<Http>,
    body: Bytes,
) -> Result<Json<Value>, Failure> {
    let request: DigestRequest = parse(&body)?;
    let held = http.state.held().ok_or_else(|| {
        Failure::conflict(
            "not_held",
            "the mirror is not held; POST /verify/hold first",
        )
    })?;
    let path = served(&http)?;
    let reading = blocking(move || read(&path, &request.table, held));
    tokio::pin!(reading);
    loop {
        // However long a table takes, the hold does not end while it is read, nor soon after.
        renew(&http).await;
        tokio::select! {
            digest = &mut reading => {
                renew(&http).await;
                return digest.map(Json);
            }
            () = tokio::time::sleep(HOLD_LIMIT / 4) => {}
        }
    }
}

async fn renew(http: &Http) {
    if let Ok(handle) = thread(http) {
        // A thread that is gone holds nothing; the digest says so by itself.
        let _ = handle.send(Input::Renew).await;
    }
}

fn read(path: &Path, name: &str, held: Held) -> Result<Value, Failure> {
    let failed = |error: &dyn std::error::Error| Failure::unavailable(sentence(error));
    let conn = mirror::open_reader(path).map_err(|error| failed(&error))?;
    // One read transaction: cursor and rows are of the same commit.
    conn.execute_batch("BEGIN")
        .map_err(|error| failed(&error))?;
    let stored = mirror::stored(&conn, path).map_err(|error| failed(&error))?;
    let stored = stored.filter(|stored| stored.cursor.position.seq == held.seq);
    let stored =
        stored.ok_or_else(|| Failure::conflict("not_held", "the hold has ended; hold again"))?;
    let schema = &stored.schema;
    let named = |table: &&Table| table.mirror_name() == name;
    let shown = schema.shown().find(named);
    if shown.map_or_else(
        || schema.tables.iter().any(|table| named(&table)),
        |table| mirror::awaits(schema, table),
    ) {
        let reason = format!("table {name:?} awaits a copy and is left out");
        return Err(Failure::conflict("copying", reason));
    }
    let table = shown.ok_or_else(|| Failure::bad(format!("table {name:?} is not mirrored")))?;
    let digest = digest::table(&conn, table).map_err(|error| failed(&error))?;
    Ok(json!({"table": name, "held": held.snapshot, "seq": held.seq, "digest": digest}))
}
