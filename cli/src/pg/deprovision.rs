//! `rindle pg deprovision`

use rindle_gateway::lifecycle::deprovision::{DeprovisionRequest, Deprovisioned, deprovision};
use serde_json::json;

use crate::args::{PgArgs, SourceArgs};
use crate::outcome::Outcome;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    postgres: PgArgs,
    #[command(flatten)]
    source: SourceArgs,
    /// Do it; without this it is only said what would be done.
    #[arg(long)]
    yes: bool,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<Outcome> {
    let request = DeprovisionRequest {
        endpoint: args.postgres.endpoint()?,
        source: args.source.source,
        yes: args.yes,
    };
    let found = deprovision(&request).await?;
    Ok(Outcome::done(text(&found), json!(found)))
}

fn text(found: &Deprovisioned) -> String {
    let slots = found.slots.iter().map(|slot| format!("drop slot {slot}"));
    let steps: Vec<String> = found.statements.iter().cloned().chain(slots).collect();
    if steps.is_empty() {
        return format!("nothing of source {} is in this database", found.source);
    }
    let title = match found.done {
        true => "removed:",
        false => "would be removed (nothing was changed; --yes does it):",
    };
    let steps = steps.iter().map(|step| format!("\n  {step}"));
    let told = found.findings.iter().map(|finding| format!("\n{finding}"));
    format!("{title}{}", steps.chain(told).collect::<String>())
}
