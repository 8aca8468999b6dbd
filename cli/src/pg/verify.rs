//! `rindle pg verify`

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::ArgGroup;
use rindle_gateway::lifecycle::publication_name;
use rindle_gateway::lifecycle::verify::{Compared, Digests, SourceSnapshot, compare};
use rindle_proto::ids::Lsn;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::held::Held;
use crate::args::{PgArgs, SourceArgs, StoreArgs, TokenArgs, UsageError, parse_duration};
use crate::http::Program;
use crate::outcome::Outcome;

#[derive(Debug, clap::Args)]
#[command(group(ArgGroup::new("mirror").args(["follower", "db"]).required(true)))]
pub(crate) struct Args {
    #[command(flatten)]
    postgres: PgArgs,
    #[command(flatten)]
    source: SourceArgs,
    /// Publication that the mirror is of [default: rindle_<source>].
    #[arg(long, value_name = "NAME")]
    publication: Option<String>,
    /// A follower's HTTP address, such as http://127.0.0.1:7600.
    #[arg(long, value_name = "URL")]
    follower: Option<String>,
    /// A mirror file; the archive brings a copy of it to the source's position.
    #[arg(long, value_name = "FILE", requires = "store")]
    db: Option<PathBuf>,
    #[command(flatten)]
    store: Option<StoreArgs>,
    #[command(flatten)]
    token: TokenArgs,
    /// How long the mirror may take to reach the source's position.
    #[arg(long, default_value = "2m", value_parser = parse_duration)]
    within: Duration,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<Outcome> {
    let (lsn, source, mirror) = match (&args.follower, &args.db) {
        (Some(url), _) => with_follower(&args, url).await?,
        (None, Some(db)) => with_file(&args, db).await?,
        (None, None) => anyhow::bail!(UsageError("name --follower or --db".to_owned())),
    };
    let tables = compare(&source, &mirror);
    let equal = tables.iter().all(|table| table.equal);
    let json = json!({
        "source": args.source.source, "snapshot": lsn, "equal": equal, "tables": tables,
    });
    Ok(Outcome {
        text: text(lsn, &tables, equal),
        json,
        failed: !equal,
    })
}

async fn with_follower(args: &Args, url: &str) -> anyhow::Result<(Lsn, Digests, Digests)> {
    let follower = Program::at(url, args.token.token()?)?;
    let snapshot = snapshot(args, None).await?;
    let lsn = snapshot.lsn();
    let held = Held::hold(follower, lsn, args.within).await?;
    let both = tokio::try_join!(
        async { snapshot.digests().await.context("read the source") },
        async { held.digests().await.context("read the mirror") },
    );
    // Whatever came of it: the follower must go on.
    held.release().await?;
    let (source, mirror) = both?;
    Ok((lsn, source, mirror))
}

async fn with_file(args: &Args, db: &std::path::Path) -> anyhow::Result<(Lsn, Digests, Digests)> {
    let store = args.store.as_ref().context("--db needs --store")?;
    let archive = store.open(&args.source.source).await?;
    // Before the snapshot: then the copy holds nothing that the snapshot does not.
    let mut name = db.as_os_str().to_owned();
    name.push(".verify");
    let (file, copy) = (db.to_owned(), PathBuf::from(name));
    let taking = move || rindle_producer::verify::MirrorCopy::take(&file, &copy);
    let copy = tokio::task::spawn_blocking(taking)
        .await
        .context("copy the mirror")??;
    let record = archive.generation(copy.generation()).await?;
    let record = record
        .with_context(|| format!("generation {} is not in this archive", copy.generation()))?;
    let snapshot = snapshot(args, Some(&record.publication)).await?;
    let lsn = snapshot.lsn();
    let deadline = Instant::now() + args.within;
    let (source, mirror) = tokio::try_join!(
        async { snapshot.digests().await.context("read the source") },
        async {
            let digests = copy
                .digests_at(&archive, lsn, deadline, CancellationToken::new())
                .await;
            digests.context("bring a copy of the mirror to the source's position")
        },
    )?;
    Ok((lsn, source, mirror))
}

async fn snapshot(args: &Args, minted: Option<&str>) -> anyhow::Result<SourceSnapshot> {
    let source = &args.source.source;
    let default = || minted.map_or_else(|| publication_name(source), str::to_owned);
    let publication = args.publication.clone().unwrap_or_else(default);
    Ok(SourceSnapshot::take(&args.postgres.endpoint()?, source, &publication).await?)
}

fn text(lsn: Lsn, tables: &[Compared], equal: bool) -> String {
    let rows =
        |rows: Option<u64>| rows.map_or_else(|| "no table".to_owned(), |rows| rows.to_string());
    let width = tables
        .iter()
        .map(|one| one.table.len())
        .max()
        .unwrap_or(0)
        .max(5);
    let mut text = format!(
        "{:<width$}  {:>14}  {:>14}",
        "table", "source rows", "mirror rows"
    );
    for one in tables {
        let (source, mirror) = (rows(one.source_rows), rows(one.mirror_rows));
        let word = if one.equal { "equal" } else { "DIFFERENT" };
        text.push_str(&format!(
            "\n{:<width$}  {source:>14}  {mirror:>14}  {word}",
            one.table
        ));
    }
    let different = tables.iter().filter(|one| !one.equal).count();
    let verdict = match equal {
        true => format!("all {} tables are equal at {lsn}", tables.len()),
        false => format!(
            "{different} of {} tables differ at {lsn}; restore that mirror from an image",
            tables.len()
        ),
    };
    format!("{text}\n{verdict}")
}
