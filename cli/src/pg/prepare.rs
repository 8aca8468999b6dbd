//! `rindle pg prepare`

use std::fmt::Write as _;

use rindle_gateway::lifecycle::prepare::{self, PrepareRequest, Prepared};
use serde_json::json;

use crate::args::{PgArgs, PublicationArgs, SourceArgs};
use crate::outcome::Outcome;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    postgres: PgArgs,
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    publication: PublicationArgs,
    /// Give this role exactly what the gateway needs to read.
    #[arg(long, value_name = "ROLE")]
    role: Option<String>,
    /// Also make and publish public._rindle_client_mutations.
    #[arg(long)]
    client_mutations: bool,
    /// Take tables that were not named out of our publication.
    #[arg(long)]
    prune: bool,
    /// Print the SQL and run nothing.
    #[arg(long)]
    dry_run: bool,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<Outcome> {
    let request = PrepareRequest {
        endpoint: args.postgres.endpoint()?,
        source: args.source.source,
        tables: args.publication.tables()?,
        publication: args.publication.publication,
        role: args.role,
        client_mutations: args.client_mutations,
        prune: args.prune,
        dry_run: args.dry_run,
    };
    let prepared = prepare::prepare(&request).await?;
    Ok(Outcome::done(text(&prepared), json!(prepared)))
}

fn text(prepared: &Prepared) -> String {
    let mut text = String::new();
    if prepared.dry_run {
        let statements: Vec<String> = prepared
            .statements
            .iter()
            .map(|statement| format!("{statement};\n"))
            .collect();
        return format!("BEGIN;\n{}COMMIT;", statements.concat());
    }
    let Prepared { publication, .. } = prepared;
    let _ = match (prepared.ours, prepared.statements.is_empty()) {
        (true, true) => write!(
            text,
            "publication {publication:?} is as it should be; nothing was changed"
        ),
        (true, false) => write!(text, "publication {publication:?} is ready"),
        (false, _) => write!(
            text,
            "publication {publication:?} is not ours and is used as it is"
        ),
    };
    for table in &prepared.added_tables {
        let _ = write!(text, "\n  added   {table}");
    }
    for table in &prepared.removed_tables {
        let _ = write!(text, "\n  removed {table}");
    }
    for repaired in &prepared.repaired {
        let _ = write!(text, "\n  made as it was: {repaired}");
    }
    for finding in &prepared.findings {
        let _ = write!(text, "\n{finding}");
    }
    let source = &prepared.source;
    let _ = write!(text, "\nnext: rindle pg mint --source {source} …");
    text
}
