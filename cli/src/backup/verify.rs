//! `rindle backup verify`

use std::time::{Duration, Instant};

use anyhow::Context;
use rindle_archive::scrub::{Damage, Depth, Look, Scrubbed};
use rindle_proto::ids::Generation;
use serde_json::{Value, json};

use crate::args::{SourceArgs, StoreArgs, UsageError};
use crate::outcome::Outcome;

/// How often a log line tells how far it is.
const TOLD_EVERY: Duration = Duration::from_secs(10);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    store: StoreArgs,
    /// Read and check every byte, not only whether all is there.
    #[arg(long)]
    deep: bool,
    /// Read no more than this a second, such as 10MiB [default: as fast as it goes].
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    rate: Option<u64>,
    /// One generation [default: all of the source].
    #[arg(long, value_name = "ID")]
    generation: Option<Generation>,
}

fn parse_bytes(text: &str) -> Result<u64, UsageError> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" | "B" => Some(1),
        "KiB" => Some(1 << 10),
        "MiB" => Some(1 << 20),
        "GiB" => Some(1 << 30),
        _ => None,
    };
    let count = digits.parse::<u64>().ok();
    let bytes = count
        .zip(unit)
        .and_then(|(count, unit): (u64, u64)| count.checked_mul(unit));
    bytes.filter(|bytes| *bytes > 0).ok_or_else(|| {
        UsageError(format!(
            "{text:?} is no size: expected a number and nothing, KiB, MiB or GiB"
        ))
    })
}

pub(crate) async fn run(args: Args) -> anyhow::Result<Outcome> {
    let source = args.source.source;
    let archive = args.store.open(&source).await?;
    let mut ids = archive.generation_ids().await?;
    if ids.is_empty() {
        // A wrong directory, or one that is not mounted, is not a whole archive.
        let text = format!(
            "there is nothing of source {source} in this archive: check --path and --source, and whether it is mounted"
        );
        return Err(UsageError(text).into());
    }
    if let Some(wanted) = args.generation {
        if !ids.contains(&wanted) {
            let known: Vec<String> = ids.iter().map(ToString::to_string).collect();
            return Err(UsageError(format!(
                "generation {wanted} is not in the archive, which holds [{}]",
                known.join(", ")
            ))
            .into());
        }
        ids = vec![wanted];
    }
    let depth = if args.deep { Depth::Deep } else { Depth::Light };
    let look = Look {
        depth,
        bytes_per_second: args.rate,
    };
    let current = archive
        .scrub_current()
        .await
        .context("read the pointer to the current generation")?;
    let mut text: Vec<String> = current.iter().map(line).collect();
    let mut documents = Vec::new();
    for generation in &ids {
        let mut told = Instant::now();
        let mut tell = |found: &Scrubbed| {
            if told.elapsed() >= TOLD_EVERY {
                told = Instant::now();
                let Scrubbed {
                    segments,
                    slices,
                    bytes,
                    ..
                } = found;
                tracing::info!(%generation, segments, slices, bytes, "looking");
            }
        };
        let found = archive.scrub(*generation, look, &mut tell).await;
        text.push(summary(*generation, &found, depth));
        text.extend(found.damage.iter().map(line));
        documents.push((*generation, found));
    }
    let failed = current.is_some() || documents.iter().any(|(_, found)| !is_whole(found));
    let generations: Vec<Value> = documents
        .iter()
        .map(|(id, found)| document(*id, found))
        .collect();
    let json = json!({
        "source": source,
        "deep": args.deep,
        "ok": !failed,
        "damage": current.iter().map(damage).collect::<Vec<_>>(),
        "generations": generations,
    });
    Ok(Outcome {
        text: text.join("\n"),
        json,
        failed,
        refused: false,
    })
}

fn is_whole(found: &Scrubbed) -> bool {
    found.damage.is_empty() && found.stopped.is_none()
}

fn summary(generation: Generation, found: &Scrubbed, depth: Depth) -> String {
    let Scrubbed {
        segments,
        head,
        bulk_parts,
        images,
        slices,
        bytes,
        damage,
        stopped,
    } = found;
    let looked = match depth {
        Depth::Light => format!(
            "{segments} log objects up to {head}, {images} images of {slices} slices have their headers (--deep reads all, and what copies list)"
        ),
        Depth::Deep => format!(
            "{segments} log objects up to {head}, {bulk_parts} parts of copies, {images} images of {slices} slices, {bytes} bytes read"
        ),
    };
    let verdict = match damage.len() {
        0 => "nothing is wrong".to_owned(),
        1 => "1 object is wrong".to_owned(),
        many => format!("{many} objects are wrong"),
    };
    let rest = stopped.as_ref().map_or_else(String::new, |why| {
        format!("; the look ended early, for the archive does not answer: {why}")
    });
    format!("generation {generation}: {looked}; {verdict}{rest}")
}

fn line(damage: &Damage) -> String {
    format!(
        "  {}: {}; bring it back from a copy or version of the bucket",
        damage.key, damage.what
    )
}

fn damage(damage: &Damage) -> Value {
    json!({"key": damage.key, "what": damage.what})
}

fn document(generation: Generation, found: &Scrubbed) -> Value {
    json!({
        "generation": generation,
        "segments": found.segments,
        "head": found.head,
        "bulkParts": found.bulk_parts,
        "images": found.images,
        "slices": found.slices,
        "bytes": found.bytes,
        "stopped": found.stopped,
        "damage": found.damage.iter().map(damage).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_a_unit_or_are_bytes() {
        assert_eq!(parse_bytes("10MiB").unwrap(), 10 << 20);
        assert_eq!(parse_bytes("7").unwrap(), 7);
        for bad in ["", "MiB", "0", "1MB", "-1", "1 MiB", "99999999999GiB"] {
            assert!(parse_bytes(bad).is_err(), "{bad}");
        }
    }
}
