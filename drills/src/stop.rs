//! A named stop: what the gateway tells of it, what goes on meanwhile, and the way on. And its opposite: a schema change
//! that is followed to its end.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::{
    cluster::{CATCHES_UP_WITHIN, Cluster, newest_mark},
    wait,
};

/// A follower looks at the pointer every 5 s; the rest is for a restore on a busy machine.
const MOVES_WITHIN: Duration = Duration::from_secs(60);

impl Cluster {
    /// Waits until a mirror has everything, and no table waits for rows. A gateway that halts ends the wait at once.
    pub async fn settle(&mut self, number: usize) -> Result<()> {
        let mark = self.mark().await?;
        let mirror = self.mirror(number);
        let mut last = Value::Null;
        let what = "no table to wait for its rows";
        let waited = wait::until_true(what, CATCHES_UP_WITHIN, async || {
            // The mark first: what was announced before it is believed by then.
            let marked = newest_mark(&mirror) >= Some(mark);
            last = self.gateway_status().await?;
            ensure!(last["phase"] != "halted", "the gateway halted: {last}");
            let copied = last["waiting"].as_array().is_some_and(Vec::is_empty);
            Ok(marked && copied)
        })
        .await;
        match waited {
            Ok(()) => Ok(()),
            Err(error) => {
                let state = self.state().await;
                Err(error.context(format!("{last}{state}")))
            }
        }
    }

    /// Follows a schema change to its end, and compares.
    pub async fn must_follow(&mut self, number: usize) -> Result<()> {
        self.settle(number).await?;
        self.must_be_equal(number).await.map(drop)
    }

    /// Runs statements as one transaction; gives a position above its commit.
    pub async fn commit(&self, sql: &str) -> Result<String> {
        self.session.run(&format!("begin; {sql}; commit")).await?;
        self.session
            .text("select pg_current_wal_insert_lsn()")
            .await
    }

    /// The gateway halts with a reason that has these words, of which the first is its name. `/readyz`, `rindle pg status`
    /// and the log say the same; the slot was not moved to `commit`; followers go on serving. Gives the reason.
    pub async fn must_stop(
        &mut self,
        words: &[&str],
        commit: &str,
        limit: Duration,
    ) -> Result<String> {
        let name = *words.first().context("no word is expected")?;
        self.announce(name);
        let mut last = Value::Null;
        let halted = wait::until_true(&format!("a halt by {name}"), limit, async || {
            last = self.gateway_status().await?;
            Ok(last["phase"] == "halted")
        })
        .await;
        if let Err(error) = halted {
            return Err(error.context(format!("{last}{}", self.state().await)));
        }
        let reason = self.told_everywhere().await?;
        ensure!(reason.starts_with(&format!("{name}: ")), "{reason}");
        for word in words {
            ensure!(reason.contains(word), "{word} is not named in: {reason}");
        }
        let moved = format!(
            "select count(*) from pg_replication_slots where database = current_database() \
             and confirmed_flush_lsn >= '{commit}'"
        );
        let moved = self.session.text(&moved).await?;
        ensure!(moved == "0", "a slot was moved to {commit}");
        for follower in &self.followers {
            let program = follower.program.as_ref();
            let answer = program.context("a follower does not run")?.readyz().await;
            let status = answer.as_ref().map(|answer| answer.status);
            ensure!(status == Some(200), "a follower serves no more: {answer:?}");
        }
        Ok(reason)
    }

    /// The reason of the halt as `/readyz` gives it, and that the two others say it too.
    async fn told_everywhere(&mut self) -> Result<String> {
        let port = self.gateway()?.port("httpPort")?;
        let answer = self.gateway()?.readyz().await;
        let answer = answer.context("the gateway does not answer")?;
        ensure!(
            answer.status == 503,
            "a halted gateway is ready: {answer:?}"
        );
        let reason = answer.json()?["reason"].as_str().map(str::to_owned);
        let reason = reason.context("no reason")?;

        let archive = self.archive().display().to_string();
        let url = format!("http://127.0.0.1:{port}");
        let args = [
            "--json",
            "--gateway",
            &url,
            "--store",
            "filesystem",
            "--path",
            &archive,
        ];
        let status = self.pg("status", &args).await?;
        let verdict = &status.json()?["verdict"];
        let sentence = verdict["sentence"].as_str().unwrap_or_default();
        ensure!(sentence.contains(&reason), "{verdict} is not: {reason}");

        let log = self.gateway()?.log();
        let mut errors = log.lines().filter(|line| line.contains(" ERROR "));
        ensure!(
            errors.any(|line| line.contains(&reason)),
            "the log does not say: {reason}"
        );
        Ok(reason)
    }

    /// The halted gateway is killed and started again: it comes to the same transaction and says the same.
    pub async fn must_stop_again(&mut self, reason: &str, commit: &str) -> Result<()> {
        self.gateway()?.kill().await?;
        self.start_gateway().await?;
        let name = reason.split(':').next().unwrap_or_default();
        let again = self.must_stop(&[name], commit, CATCHES_UP_WITHIN).await?;
        ensure!(again == reason, "{again} is not: {reason}");
        Ok(())
    }

    /// Followers added from now on also know the gateway that [`Cluster::move_on`] starts.
    pub fn know_the_next_gateway(&mut self) {
        let ports = [self.grpc_port(), self.other_grpc_port()];
        let urls = ports.map(|port| format!("http://127.0.0.1:{port}"));
        self.follower_config = json!({"sources": [{"url": urls}]});
    }

    /// The way on after a halt: a new generation with a gateway of its own, an image, the cutover. At the end a follower
    /// serves the new generation and equals the source.
    pub async fn move_on(&mut self, number: usize) -> Result<()> {
        let minted = self.mint().await?.stdout;
        let generation = minted
            .split("minted generation ")
            .nth(1)
            .and_then(|rest| rest.split_whitespace().next())
            .context("no generation was minted")?
            .to_owned();
        self.gateway_config = json!({"generation": generation});
        let (mut other, _) = self.start_other_gateway().await?;
        other.until_ready(CATCHES_UP_WITHIN).await?;
        self.produce().await?;
        let archive = self.archive().display().to_string();
        let source = self.source.clone();
        let args = [
            "pg",
            "cutover",
            "--source",
            &source,
            "--generation",
            &generation,
        ];
        let args = [&args[..], &["--store", "filesystem", "--path", &archive]].concat();
        self.rindle(&args).await?.must_succeed()?;
        // It halted for good; what is told and compared from now on is of the one that took its place.
        self.gateway()?.stop().await?;
        self.gateway = Some(other);
        wait::until_true("the follower to move", MOVES_WITHIN, async || {
            let Some(answer) = self.follower(number)?.readyz().await else {
                return Ok(false);
            };
            Ok(answer.status == 200 && answer.json()?["generation"] == *generation)
        })
        .await?;
        self.must_be_equal(number).await.map(drop)
    }
}
