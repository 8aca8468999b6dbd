//! A follower that holds its mirror still for verify.

use std::time::Duration;

use anyhow::{Context, bail};
use hyper::{Method, StatusCode};
use rindle_gateway::lifecycle::verify::Digests;
use rindle_producer::verify::Digested;
use rindle_proto::ids::Lsn;
use rindle_proto::verify::TableDigest;
use serde_json::{Value, json};

use crate::http::{Program, words};

/// One question that is answered at once.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// Reading a whole table.
const DIGEST_WITHIN: Duration = Duration::from_secs(3600);

/// Has the mirror stopped before the first transaction that a snapshot at `lsn` does not show. None when it is past
/// that already: a new snapshot is needed.
pub(super) async fn hold(
    follower: &Program,
    lsn: Lsn,
    within: Duration,
) -> anyhow::Result<Option<()>> {
    let path = "/verify/hold";
    let body = json!({"snapshot": lsn, "timeoutMs": within.as_millis()});
    let (status, answer) = follower
        .try_ask(Method::POST, path, Some(&body), within + ANSWER_WITHIN)
        .await?;
    match status {
        StatusCode::OK => Ok(Some(())),
        // Any other conflict (another verify, no mirror yet) does not go away with a new snapshot.
        StatusCode::CONFLICT if answer["code"] == "past" => {
            tracing::info!("{}", words(&answer));
            Ok(None)
        }
        _ => bail!(
            "the follower does not hold its mirror at {lsn}: {}",
            words(&answer)
        ),
    }
}

/// Lets the mirror go on.
pub(super) async fn release(follower: &Program) -> anyhow::Result<()> {
    let body = json!({});
    let released = follower
        .ask(Method::POST, "/verify/release", Some(&body), ANSWER_WITHIN)
        .await;
    released.map(drop).context("let the follower go on")
}

/// Count and digest of these tables and of every other one that the follower shows.
pub(super) async fn digests(follower: &Program, tables: &[String]) -> anyhow::Result<Digested> {
    let schema = follower
        .ask(Method::GET, "/schema", None, ANSWER_WITHIN)
        .await?;
    let shown = schema["tables"].as_array().into_iter().flatten();
    let shown = shown.filter_map(|table| table["name"].as_str());
    let names: std::collections::BTreeSet<&str> =
        tables.iter().map(String::as_str).chain(shown).collect();
    let (mut digests, mut copying) = (Digests::new(), Vec::new());
    for name in names {
        match digest(follower, name).await? {
            Answer::Digest(digest) => drop(digests.insert(name.to_owned(), digest)),
            Answer::NotMirrored => {}
            Answer::Copying => copying.push(name.to_owned()),
        }
    }
    Ok(Digested { digests, copying })
}

/// What a follower says of one table.
enum Answer {
    Digest(TableDigest),
    NotMirrored,
    /// It awaits a copy, so it is not as the source is.
    Copying,
}

async fn digest(follower: &Program, table: &str) -> anyhow::Result<Answer> {
    let path = "/verify/digest";
    let body = json!({"table": table});
    let asked = follower
        .try_ask(Method::POST, path, Some(&body), DIGEST_WITHIN)
        .await?;
    match asked {
        (StatusCode::OK, Value::Object(answer)) => {
            let digest = answer.get("digest").cloned().unwrap_or_default();
            let digest = serde_json::from_value(digest);
            Ok(Answer::Digest(
                digest.context("read the answer to /verify/digest")?,
            ))
        }
        (StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND, _) => Ok(Answer::NotMirrored),
        (StatusCode::CONFLICT, answer) if answer["code"] == "copying" => Ok(Answer::Copying),
        (_, answer) => bail!(
            "the follower gives no digest of {table:?}: {}",
            words(&answer)
        ),
    }
}
