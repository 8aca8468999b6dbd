//! The mirror's half of verify: stand still at a snapshot, give the digest of a table, go on.

use std::path::Path;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State as Shared;
use axum::response::Json;
use rindle_proto::ids::Lsn;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::schema::{blocking, served};
use super::{Failure, Http, parse};
use crate::apply::{Handle, Input};
use crate::gateway::sentence;
use crate::mirror::{self, digest};
use crate::state::Held;

/// How long a snapshot is waited for unless the request says otherwise, and at most.
const TIMEOUT: Duration = Duration::from_secs(60);
const MAX_TIMEOUT: Duration = Duration::from_secs(600);

/// A hold that nobody releases ends by itself.
const HOLD_LIMIT: Duration = Duration::from_secs(600);

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
    let handle = thread(&http)?;
    let gone = || Failure::unavailable("the mirror is being replaced; try again");
    let (reached, answer) = oneshot::channel();
    let snapshot = request.snapshot;
    let sent = handle.send(Input::Hold { snapshot, reached }).await;
    sent.map_err(|_gone| gone())?;
    match tokio::time::timeout(timeout, answer).await {
        Err(_elapsed) => Err(Failure::unavailable(format!(
            "snapshot {snapshot} was not reached within {} ms; the mirror is at {}",
            timeout.as_millis(),
            http.state.view().applied_lsn
        ))),
        Ok(Err(_dropped)) => Err(gone()),
        Ok(Ok(Err(error))) => Err(Failure::conflict(error.to_string())),
        Ok(Ok(Ok(held))) => {
            release_later(handle, held);
            Ok(Json(json!({"held": held.snapshot, "seq": held.seq})))
        }
    }
}

fn release_later(handle: Handle, held: Held) {
    // Holds no sender, so that the thread can end meanwhile.
    let weak = handle.downgrade();
    drop(handle);
    tokio::spawn(async move {
        tokio::time::sleep(HOLD_LIMIT).await;
        if let Some(handle) = weak.upgrade() {
            tracing::warn!(snapshot = %held.snapshot, "a hold for verify was not released");
            let release = Input::Release {
                only: Some(held.snapshot),
            };
            // A thread that is gone holds nothing.
            let _ = handle.send(release).await;
        }
    });
}

pub(super) async fn release(Shared(http): Shared<Http>) -> Result<Json<Value>, Failure> {
    let released = http.state.held().is_some();
    let handle = thread(&http)?;
    let sent = handle.send(Input::Release { only: None }).await;
    sent.map_err(|_gone| Failure::unavailable("the mirror is being replaced"))?;
    Ok(Json(json!({"released": released})))
}

pub(super) async fn digest(
    Shared(http): Shared<Http>,
    body: Bytes,
) -> Result<Json<Value>, Failure> {
    let request: DigestRequest = parse(&body)?;
    let held = http
        .state
        .held()
        .ok_or_else(|| Failure::conflict("the mirror is not held; POST /verify/hold first"))?;
    let path = served(&http)?;
    blocking(move || read(&path, &request.table, held))
        .await
        .map(Json)
}

fn read(path: &Path, name: &str, held: Held) -> Result<Value, Failure> {
    let failed = |error: &dyn std::error::Error| Failure::unavailable(sentence(error));
    let conn = mirror::open_reader(path).map_err(|error| failed(&error))?;
    // One read transaction: cursor and rows are of the same commit.
    conn.execute_batch("BEGIN")
        .map_err(|error| failed(&error))?;
    let stored = mirror::stored(&conn, path).map_err(|error| failed(&error))?;
    let stored = stored.filter(|stored| stored.cursor.position.seq == held.seq);
    let stored = stored.ok_or_else(|| Failure::conflict("the hold has ended; hold again"))?;
    let table = stored
        .schema
        .tables
        .iter()
        .find(|table| table.mirror_name() == name)
        .ok_or_else(|| Failure::bad(format!("table {name:?} is not mirrored")))?;
    let digest = digest::table(&conn, table).map_err(|error| failed(&error))?;
    Ok(json!({"table": name, "held": held.snapshot, "seq": held.seq, "digest": digest}))
}
