//! `rindle pg cutover`

use rindle_gateway::lifecycle::cutover::{CutOver, Target, cut_over};
use rindle_proto::ids::Generation;
use serde_json::json;

use crate::args::{SourceArgs, StoreArgs};
use crate::outcome::Outcome;

#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("target").required(true)))]
pub(crate) struct Args {
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    store: StoreArgs,
    /// The generation to serve from now on.
    #[arg(long, value_name = "ID", group = "target")]
    generation: Option<Generation>,
    /// Back to the generation that was current before.
    #[arg(long, group = "target")]
    rollback: bool,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<Outcome> {
    let archive = args.store.open(&args.source.source).await?;
    let target = args.generation.map_or(Target::Rollback, Target::Generation);
    let done = cut_over(&archive, target).await?;
    let mut json = json!(done);
    json["source"] = json!(args.source.source);
    Ok(Outcome::done(text(&done), json))
}

fn text(done: &CutOver) -> String {
    let CutOver { current, image, .. } = done;
    if !done.moved {
        return format!("generation {current} is current already (image {image})");
    }
    let back = match done.previous {
        Some(previous) => {
            format!("\n{previous} was current; --rollback goes back to it while its gateway runs")
        }
        None => String::new(),
    };
    format!(
        "generation {current} is current now (image {image}); followers move to it by themselves{back}"
    )
}
