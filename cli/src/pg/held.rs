//! A follower that holds its mirror still for verify.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use hyper::Method;
use rindle_gateway::lifecycle::verify::Digests;
use rindle_proto::ids::Lsn;
use rindle_proto::verify::TableDigest;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::http::Program;

/// How often a follower is asked whether it is there yet.
const POLL: Duration = Duration::from_millis(200);

/// One question that is answered at once.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// Reading a whole table.
const DIGEST_WITHIN: Duration = Duration::from_secs(3600);

/// A follower that holds its mirror still.
#[derive(Debug)]
pub(super) struct Held {
    follower: Program,
    tables: Vec<String>,
}

#[derive(Deserialize)]
struct Answer {
    /// It stands there.
    reached: bool,
    /// Tables in the mirror.
    #[serde(default)]
    tables: Vec<String>,
}

impl Held {
    /// Has the mirror stopped before the first transaction that a snapshot at `lsn` does not show.
    pub(super) async fn hold(
        follower: Program,
        lsn: Lsn,
        within: Duration,
    ) -> anyhow::Result<Self> {
        let deadline = Instant::now() + within;
        let body = json!({"snapshot": lsn});
        loop {
            let answer = follower
                .ask(Method::POST, "/verify/hold", Some(&body), within)
                .await?;
            let answer: Answer =
                serde_json::from_value(answer).context("read the answer to /verify/hold")?;
            if answer.reached {
                return Ok(Self {
                    follower,
                    tables: answer.tables,
                });
            }
            if Instant::now() >= deadline {
                let held = Self {
                    follower,
                    tables: Vec::new(),
                };
                held.release().await?;
                bail!(
                    "the follower did not reach {lsn} within {} s; is it at work?",
                    within.as_secs()
                );
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Count and digest of every table.
    pub(super) async fn digests(&self) -> anyhow::Result<Digests> {
        let mut digests = Digests::new();
        for table in &self.tables {
            let body = json!({"table": table});
            let answer = self
                .follower
                .ask(Method::POST, "/verify/digest", Some(&body), DIGEST_WITHIN)
                .await?;
            let digest: TableDigest = serde_json::from_value(answer["digest"].clone())
                .context("read the answer to /verify/digest")?;
            digests.insert(table.clone(), digest);
        }
        Ok(digests)
    }

    /// Lets the mirror go on.
    pub(super) async fn release(&self) -> anyhow::Result<()> {
        let body: Value = json!({});
        let released = self
            .follower
            .ask(Method::POST, "/verify/release", Some(&body), ANSWER_WITHIN)
            .await;
        released.map(drop).context("let the follower go on")
    }
}
