//! `rindle pg schema-hook`

use rindle_gateway::lifecycle::schema_hook::{Announced, SchemaHookRequest, schema_hook};
use serde_json::json;

use crate::args::{PgArgs, SourceArgs};
use crate::outcome::Outcome;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    postgres: PgArgs,
    #[command(flatten)]
    source: SourceArgs,
    /// The publication [default: rindle_<source>].
    #[arg(long)]
    publication: Option<String>,
    /// Print what a migration runs inside its own transaction, and run nothing.
    #[arg(long)]
    dry_run: bool,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<Outcome> {
    let request = SchemaHookRequest {
        endpoint: args.postgres.endpoint()?,
        source: args.source.source,
        publication: args.publication,
        dry_run: args.dry_run,
    };
    let announced = schema_hook(&request).await?;
    Ok(Outcome::done(text(&announced), json!(announced)))
}

fn text(announced: &Announced) -> String {
    let [hook, comment] = &announced.statements;
    match announced.id {
        Some(id) => format!("what is published now was announced, as number {id}"),
        None => format!("{hook};\n-- or, where event triggers are:\n{comment};"),
    }
}
