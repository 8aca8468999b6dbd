//! `rindle backup prune`

use rindle_archive::Archive;
use rindle_archive::prune::{Pruned, Rules};
use rindle_proto::ids::Generation;
use serde_json::{Value, json};

use crate::args::{SourceArgs, StoreArgs, UsageError};
use crate::outcome::Outcome;

/// What is kept.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Keep {
    /// Keep so many of the newest images that were proved.
    #[arg(long = "keep", value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    newest: u32,
    /// And the newest of each of so many days.
    #[arg(long = "keep-days", value_name = "N", default_value_t = 7)]
    days: u32,
}

impl Keep {
    fn rules(self) -> Rules {
        Rules {
            newest: self.newest as usize,
            days: u64::from(self.days),
            ..Rules::default()
        }
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    keep: Keep,
    /// Tell what would go, and delete nothing.
    #[arg(long)]
    dry_run: bool,
    /// One generation [default: all of the source].
    #[arg(long, value_name = "ID")]
    generation: Option<Generation>,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<Outcome> {
    let source = args.source.source;
    let archive = args.store.open(&source).await?;
    let all = archive.generation_ids().await?;
    let known: Vec<String> = all.iter().map(ToString::to_string).collect();
    let wanted = match args.generation {
        Some(id) if !all.contains(&id) => {
            let text = format!(
                "generation {id} is not in the archive, which holds [{}]",
                known.join(", ")
            );
            return Err(UsageError(text).into());
        }
        Some(id) => vec![id],
        None if all.is_empty() => {
            let text = format!(
                "there is nothing of source {source} in this archive: check --source and where it lies"
            );
            return Err(UsageError(text).into());
        }
        None => all,
    };
    let mut lines = Vec::new();
    let mut documents = Vec::new();
    let mut failed = false;
    for id in wanted {
        let (line, document, ok) = one(&archive, id, args.keep, args.dry_run).await;
        lines.push(line);
        documents.push(document);
        failed |= !ok;
    }
    Ok(Outcome {
        text: lines.join("\n"),
        json: json!({"source": source, "dryRun": args.dry_run, "generations": documents}),
        failed,
        refused: false,
    })
}

/// One pass, as a line and a document, and whether it came to its end.
pub(super) async fn one(
    archive: &Archive,
    generation: Generation,
    keep: Keep,
    dry: bool,
) -> (String, Value, bool) {
    match archive.prune(generation, keep.rules(), dry).await {
        Ok(pruned) => {
            let ok = pruned.left.is_empty();
            let line = line(generation, &pruned, dry);
            (line, document(generation, &pruned), ok)
        }
        Err(error) => {
            let why = format!("{:#}", anyhow::Error::new(error));
            let line = format!(
                "generation {generation}: retention ended early, and the next pass goes on: {why}"
            );
            (line, json!({"generation": generation, "error": why}), false)
        }
    }
}

fn line(generation: Generation, pruned: &Pruned, dry: bool) -> String {
    let Pruned {
        kept,
        images,
        boundary,
        segments,
        bulk_parts,
        orphans,
        left,
        ..
    } = pruned;
    let goes = if dry { "would go" } else { "went" };
    let left = match left.len() {
        0 => String::new(),
        many => format!(
            "; {many} damaged log objects stay, look at them by hand: {}",
            left.join(", ")
        ),
    };
    format!(
        "generation {generation}: {} images stay, {} {goes}; the log up to object {boundary} {goes}: {segments} objects, \
         {bulk_parts} parts of copies; {orphans} slices of no image{left}",
        kept.len(),
        images.len(),
    )
}

fn document(generation: Generation, pruned: &Pruned) -> Value {
    json!({
        "generation": generation,
        "kept": pruned.kept,
        "images": pruned.images,
        "boundary": pruned.boundary,
        "segments": pruned.segments,
        "bulkParts": pruned.bulk_parts,
        "checkpoints": pruned.checkpoints,
        "orphans": pruned.orphans,
        "left": pruned.left,
    })
}
