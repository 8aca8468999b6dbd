//! Waiting for what another process does: look, and look again, until it is so or the deadline passes.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// How often a condition outside this process is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(15);

/// Calls `look` until it gives a value; an error from it ends the wait at once.
pub async fn until<T>(
    what: &str,
    limit: Duration,
    mut look: impl AsyncFnMut() -> Result<Option<T>>,
) -> Result<T> {
    let begun = Instant::now();
    loop {
        if let Some(found) = look().await? {
            return Ok(found);
        }
        if begun.elapsed() > limit {
            bail!("waited {} s in vain for {what}", limit.as_secs_f32());
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// As [`until`], for a plain yes or no.
pub async fn until_true(
    what: &str,
    limit: Duration,
    mut look: impl AsyncFnMut() -> Result<bool>,
) -> Result<()> {
    until(what, limit, async || Ok(look().await?.then_some(()))).await
}
