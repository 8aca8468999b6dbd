//! `rindle pg resync`

use rindle_gateway::lifecycle::TableName;
use rindle_gateway::lifecycle::resync::{ResyncRequest, resync};
use serde_json::json;

use crate::args::{PgArgs, SourceArgs};
use crate::outcome::Outcome;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    postgres: PgArgs,
    #[command(flatten)]
    source: SourceArgs,
    /// The table, such as public.issue.
    #[arg(long, value_name = "TABLE")]
    table: TableName,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<Outcome> {
    let request = ResyncRequest {
        endpoint: args.postgres.endpoint()?,
        source: args.source.source,
        table: args.table,
    };
    let asked = resync(&request).await?;
    let text = format!(
        "{} is copied anew: it stands still in every mirror until its rows are there. rindle pg status --gateway shows how far it is",
        asked.table
    );
    Ok(Outcome::done(text, json!(asked)))
}
