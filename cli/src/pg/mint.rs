//! `rindle pg mint`

use rindle_gateway::lifecycle::mint::{self, Minted};
use serde_json::{Value, json};

use crate::args::{FailoverArgs, PgArgs, PublicationArgs, SourceArgs, StoreArgs, source_request};
use crate::outcome::Outcome;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    postgres: PgArgs,
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    publication: PublicationArgs,
    #[command(flatten)]
    failover: FailoverArgs,
    #[command(flatten)]
    store: StoreArgs,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<Outcome> {
    let request = source_request(
        &args.postgres,
        args.source,
        args.publication,
        &args.failover,
    )?;
    let archive = args.store.open(&request.source).await?;
    let minted = mint::mint(&archive, &request).await?;
    Ok(Outcome::done(text(&minted), document(&minted)))
}

fn document(minted: &Minted) -> Value {
    let Minted {
        record, current, ..
    } = minted;
    let name = |table: &rindle_proto::schema::Table| format!("{}.{}", table.schema, table.name);
    json!({
        "source": record.source,
        "generation": record.generation,
        "current": current == &record.generation,
        "currentGeneration": current,
        "systemIdentifier": record.system_identifier,
        "timeline": record.timeline,
        "database": record.database,
        "publication": record.publication,
        "slot": record.slot,
        "posture": record.posture,
        "registration": minted.registration,
        "findings": minted.findings,
        "mintedAtMs": record.minted_at_ms,
        "tables": record.schema.tables.iter().map(name).collect::<Vec<_>>(),
    })
}

fn text(minted: &Minted) -> String {
    let Minted {
        record, current, ..
    } = minted;
    let pointer = match *current == record.generation {
        true => "it is the source's current generation".to_owned(),
        false => format!("the source's current generation still is {current}"),
    };
    let next = match *current == record.generation {
        true => "start rindle-pg-gateway; it makes the slot and copies the tables".to_owned(),
        false => format!(
            "start a rindle-pg-gateway with \"generation\": \"{}\"",
            record.generation
        ),
    };
    let told: String = minted
        .findings
        .iter()
        .map(|finding| format!("{finding}\n"))
        .collect();
    let next = match &minted.registration {
        Some(registration) => format!("{registration}; then {next}"),
        None => next,
    };
    format!(
        "{told}minted generation {} of source {}\n  cluster     {} timeline {}, database {}\n  publication {} \
         with {} tables\n  slot        {}\n  posture     {}\n  {pointer}\nnext: {next}",
        record.generation,
        record.source,
        record.system_identifier,
        record.timeline,
        record.database,
        record.publication,
        record.schema.tables.len(),
        record.slot,
        record.posture,
    )
}
