//! `rindle backup producer`

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use rindle_archive::{ImageInfo, Kind};
use rindle_producer::{Job, Produced, ProducerError, State};
use rindle_proto::ids::Generation;
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::progress;
use super::prune::{self, Keep};
use crate::args::{SourceArgs, StoreArgs, parse_duration};
use crate::outcome::Outcome;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    store: StoreArgs,
    /// Mirror file that is kept between runs.
    #[arg(long, value_name = "FILE")]
    scratch: PathBuf,
    /// Run for ever, once in this time, such as 15m.
    #[arg(long, value_parser = parse_duration)]
    every: Option<Duration>,
    /// One generation [default: the current one and every newer one].
    #[arg(long, value_name = "ID")]
    generation: Option<Generation>,
    #[command(flatten)]
    keep: Keep,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<Outcome> {
    let job = Job {
        archive: args.store.open(&args.source.source).await?,
        source: args.source.source,
        generation: args.generation,
        scratch: args.scratch,
    };
    let stop = stop_on_signal()?;
    let due = Due {
        keep: args.keep,
        every: args.every,
    };
    let Some(every) = args.every else {
        return once(&job, &due, &stop).await;
    };
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => return Ok(Outcome::done("stopped", json!({"stopped": true}))),
            _ = ticks.tick() => {}
        }
        match once(&job, &due, &stop).await {
            Ok(outcome) if outcome.failed => tracing::error!("{}", outcome.text),
            Ok(outcome) => tracing::info!("{}", outcome.text),
            Err(error) if may_pass(&error) => tracing::error!("no image: {error:#}"),
            Err(error) => return Err(error),
        }
    }
}

/// What a run does besides images.
struct Due {
    keep: Keep,
    every: Option<Duration>,
}

async fn once(job: &Job, due: &Due, stop: &CancellationToken) -> anyhow::Result<Outcome> {
    let watch = progress::watch();
    let mut made = rindle_producer::run(job.clone(), watch, stop.clone()).await?;
    // One error for all of them ends as any other.
    if made.iter().all(is_failed)
        && let Some(Produced {
            state: State::Failed(error),
            ..
        }) = made.pop()
    {
        return Err(error.into());
    }
    let mut lines: Vec<String> = made.iter().map(line).collect();
    let mut images: Vec<Value> = made.iter().map(document).collect();
    let mut is_pruned = true;
    for (made, (line, document)) in made.iter().zip(lines.iter_mut().zip(&mut images)) {
        if matches!(made.state, State::Failed(_) | State::NotComplete) {
            continue;
        }
        let every = due.every.map(|every| every.as_secs());
        if let Err(error) = job.archive.note_run(made.generation, every).await {
            tracing::warn!(error = %error, "the run is not noted, so status may tell ProducerSilent: look at the error, and whether the producer may write");
        }
        let pruned = prune::one(&job.archive, made.generation, due.keep, false);
        let (said, pruned, ok) = tokio::select! {
            pruned = pruned => pruned,
            // It may end anywhere; the next pass goes on.
            () = stop.cancelled() => return Err(ProducerError::Stopped.into()),
        };
        line.push_str("; ");
        line.push_str(&said);
        document["retention"] = pruned;
        is_pruned &= ok;
    }
    let json = json!({"source": job.source, "generations": images});
    let not_complete = matches!(
        made.first(),
        Some(Produced {
            state: State::NotComplete,
            ..
        }) | None
    );
    let failed = !is_pruned || not_complete || made.iter().any(is_failed);
    Ok(Outcome {
        text: lines.join("\n"),
        json,
        failed,
        refused: false,
    })
}

fn is_failed(made: &Produced) -> bool {
    matches!(made.state, State::Failed(_))
}

/// The next run may find things mended.
fn may_pass(error: &anyhow::Error) -> bool {
    error.downcast_ref::<ProducerError>().is_some_and(|error| {
        error.kind() == Kind::Retry && !matches!(error, ProducerError::Stopped)
    })
}

fn line(made: &Produced) -> String {
    let Produced {
        generation,
        state,
        replayed,
        took,
    } = made;
    let about = |image: &ImageInfo| {
        let rows: u64 = image.base.tables.iter().map(|table| table.rows).sum();
        let (tables, bytes) = (image.base.tables.len(), image.stored_bytes);
        format!(
            "image {} at {}: {tables} tables, {rows} rows, {bytes} bytes",
            image.id, image.base.end_lsn
        )
    };
    let took = format!(
        "replayed {} rows in {:.1} s",
        replayed.rows,
        took.as_secs_f64()
    );
    match state {
        State::Published(image) => format!("published and proved {}; {took}", about(image)),
        State::Proved(image) => format!("proved {}", about(image)),
        State::NothingNew(image) => format!("nothing new since {}", about(image)),
        State::NotComplete => {
            format!("the first copy of generation {generation} is not complete; no image yet")
        }
        State::Failed(error) => {
            format!("no image of generation {generation}: {}", reasons(error))
        }
    }
}

/// An error and its causes in one line.
fn reasons(error: &ProducerError) -> String {
    let causes = std::iter::successors(Some(error as &dyn std::error::Error), |error| {
        error.source()
    });
    causes
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(": ")
}

fn document(made: &Produced) -> Value {
    let (state, image) = match &made.state {
        State::Published(image) => ("published", Some(image)),
        State::Proved(image) => ("proved", Some(image)),
        State::NothingNew(image) => ("nothingNew", Some(image)),
        State::NotComplete => ("notComplete", None),
        State::Failed(_) => ("failed", None),
    };
    let error = match &made.state {
        State::Failed(error) => Some(reasons(error)),
        _ => None,
    };
    json!({
        "generation": made.generation,
        "state": state,
        "image": image.map(super::list::document),
        "error": error,
        "replayedRows": made.replayed.rows,
        "replayedBytes": made.replayed.bytes,
        "seconds": made.took.as_secs_f64(),
    })
}

pub(super) fn stop_on_signal() -> anyhow::Result<CancellationToken> {
    let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
    let stop = CancellationToken::new();
    let cancel = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        cancel.cancel();
    });
    Ok(stop)
}
