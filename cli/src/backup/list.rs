//! `rindle backup list`

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use indicatif::HumanDuration;
use rindle_archive::ImageInfo;
use rindle_proto::ids::Generation;
use serde_json::{Value, json};

use crate::args::{SourceArgs, StoreArgs};
use crate::outcome::Outcome;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    store: StoreArgs,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<Outcome> {
    let source = args.source.source;
    let archive = args.store.open(&source).await?;
    let current = archive.current().await?.map(|current| current.generation);
    let mut text = Vec::new();
    let mut generations = Vec::new();
    for record in archive.generations().await? {
        let id = record.generation;
        let images = archive
            .images(id)
            .list()
            .await
            .with_context(|| format!("list the images of {id}"))?;
        text.push(heading(id, current));
        text.extend(images.iter().map(line));
        if images.is_empty() {
            text.push("  no image".to_owned());
        }
        let images: Vec<Value> = images.iter().map(document).collect();
        generations
            .push(json!({"generation": id, "current": current == Some(id), "images": images}));
    }
    if generations.is_empty() {
        text.push(format!(
            "source {source} has no generation in this archive: run rindle pg mint"
        ));
    }
    Ok(Outcome::done(
        text.join("\n"),
        json!({"source": source, "generations": generations}),
    ))
}

fn heading(generation: Generation, current: Option<Generation>) -> String {
    let mark = if current == Some(generation) {
        " (current)"
    } else {
        ""
    };
    format!("generation {generation}{mark}")
}

fn line(image: &ImageInfo) -> String {
    let age = std::time::Duration::from_secs(age_seconds(image));
    let verified = if image.verified {
        "proved"
    } else {
        "not proved"
    };
    format!(
        "  {}  at {} frame {}  {} bytes ({} stored)  {verified}  {} old",
        image.id,
        image.base.end_lsn,
        image.base.position.seq,
        image.file_bytes,
        image.stored_bytes,
        HumanDuration(age)
    )
}

/// One image, as every command prints it.
pub(super) fn document(image: &ImageInfo) -> Value {
    json!({
        "id": image.id,
        "baseLsn": image.base.end_lsn,
        "frame": image.base.position.seq,
        "segment": image.base.segment,
        "fileBytes": image.file_bytes,
        "storedBytes": image.stored_bytes,
        "tables": image.base.tables,
        "verified": image.verified,
        "createdAtMs": image.created_at_ms,
        "ageSeconds": age_seconds(image),
    })
}

/// Age by this machine's clock; 0 for one from the future.
fn age_seconds(image: &ImageInfo) -> u64 {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_millis();
    let made = u128::try_from(image.created_at_ms).unwrap_or(0);
    u64::try_from(now.saturating_sub(made) / 1000).unwrap_or(u64::MAX)
}
