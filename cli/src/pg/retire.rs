//! `rindle pg retire`

use rindle_gateway::lifecycle::retire::{RetireRequest, Retired, retire};
use rindle_proto::ids::Generation;
use serde_json::json;

use crate::args::{PgArgs, SourceArgs, StoreArgs};
use crate::outcome::Outcome;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    postgres: PgArgs,
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    store: StoreArgs,
    /// The generation to end; not the current one.
    #[arg(long, value_name = "ID")]
    generation: Generation,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<Outcome> {
    let request = RetireRequest {
        endpoint: args.postgres.endpoint()?,
        source: args.source.source,
        generation: args.generation,
    };
    let archive = args.store.open(&request.source).await?;
    let done = retire(&archive, &request).await?;
    Ok(Outcome::done(text(&done), json!(done)))
}

fn text(done: &Retired) -> String {
    let slot = match &done.slot {
        Some(slot) => format!("slot {slot} is dropped"),
        None => "it had no slot any more".to_owned(),
    };
    format!(
        "generation {} is sealed; {slot}; what is archived of it stays readable",
        done.generation
    )
}
