//! `rindle pg verify`

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::ArgGroup;
use rindle_gateway::lifecycle::publication_name;
use rindle_gateway::lifecycle::verify::{self, Digests, Exported, compare};
use rindle_producer::verify::Digested;
use rindle_proto::ids::Lsn;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::{compared, held};
use crate::args::{PgArgs, SourceArgs, StoreArgs, TokenArgs, UsageError, parse_duration};
use crate::http::Program;
use crate::outcome::Outcome;

#[derive(Debug, clap::Args)]
#[command(group(ArgGroup::new("mirror").args(["follower", "db"]).required(true)))]
// A follower is asked without its archive.
#[command(mut_arg("store", |store| store.required(false).required_unless_present("follower")))]
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
    #[arg(long, value_name = "FILE")]
    db: Option<PathBuf>,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    token: TokenArgs,
    /// How long the mirror may take to reach the source's position.
    #[arg(long, default_value = "2m", value_parser = parse_duration)]
    within: Duration,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<Outcome> {
    let (lsn, mut source, mirror) = match (&args.follower, &args.db) {
        (Some(url), _) => with_follower(&args, url).await?,
        (None, Some(db)) => with_file(&args, db).await?,
        (None, None) => anyhow::bail!(UsageError("name --follower or --db".to_owned())),
    };
    // What awaits a copy is not as the source is, and says so itself.
    source.retain(|table, _| !mirror.copying.contains(table));
    let tables = compare(&source, &mirror.digests);
    let equal = tables.iter().all(|table| table.equal);
    let json = json!({
        "source": args.source.source, "snapshot": lsn, "equal": equal, "tables": tables,
        "leftOut": mirror.copying,
    });
    Ok(Outcome {
        text: compared::table(lsn, &tables, equal, &mirror.copying),
        json,
        failed: !equal,
        refused: false,
    })
}

/// Pause before a new snapshot: each costs the source a slot.
const AGAIN: std::time::Duration = std::time::Duration::from_millis(200);

async fn with_follower(args: &Args, url: &str) -> anyhow::Result<(Lsn, Digests, Digested)> {
    let follower = Program::at(url, args.token.token()?, args.token.tls())?;
    let deadline = Instant::now() + args.within;
    let snapshot = loop {
        let exported = export(args, None).await?;
        // At once: a mirror that follows closely may be past it soon.
        let holding = held::hold(&follower, exported.lsn(), args.within);
        let (snapshot, held) = tokio::join!(exported.keep(), holding);
        match held? {
            Some(()) => break snapshot,
            None => {
                ensure!(
                    Instant::now() < deadline,
                    "the mirror was past every snapshot that was taken; try again while less is written"
                );
                tokio::time::sleep(AGAIN).await;
            }
        }
    };
    let both = async {
        let snapshot = snapshot?;
        let (lsn, tables) = (snapshot.lsn(), snapshot.tables());
        let (source, mirror) = tokio::try_join!(
            async { snapshot.digests().await.context("read the source") },
            async {
                held::digests(&follower, &tables)
                    .await
                    .context("read the mirror")
            },
        )?;
        anyhow::Ok((lsn, source, mirror))
    };
    let both = both.await;
    // Whatever came of it: the follower must go on.
    held::release(&follower).await?;
    both
}

async fn with_file(args: &Args, db: &std::path::Path) -> anyhow::Result<(Lsn, Digests, Digested)> {
    let archive = args.store.open(&args.source.source).await?;
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
    let snapshot = export(args, Some(&record.publication))
        .await?
        .keep()
        .await?;
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

async fn export(args: &Args, minted: Option<&str>) -> anyhow::Result<Exported> {
    let source = &args.source.source;
    let default = || minted.map_or_else(|| publication_name(source), str::to_owned);
    let publication = args.publication.clone().unwrap_or_else(default);
    Ok(verify::export(&args.postgres.endpoint()?, source, &publication).await?)
}
