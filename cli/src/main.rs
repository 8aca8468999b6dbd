//! `rindle`: the operator's command line. A subcommand is a file: its flags, one call, what to print. The work is
//! done in the gateway's `lifecycle` and in the producer.
//!
//! Results go to stdout (`--json`: one document), logs to stderr. Exit status: 0 done, 1 ran and found or met a
//! failure, 2 refused or wrong usage, 3 fenced.

mod args;
mod backup;
mod http;
mod outcome;
mod pg;

use std::io::IsTerminal as _;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

use crate::outcome::Outcome;

/// Keeps exact SQLite mirrors of a Postgres source: the operator's commands.
#[derive(Debug, Parser)]
#[command(name = "rindle", version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Print one JSON document on stdout.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
#[expect(
    clippy::large_enum_variant,
    reason = "one value in the life of a process"
)]
enum Command {
    /// What has to do with the Postgres source.
    #[command(subcommand)]
    Pg(pg::Command),
    /// What has to do with the archive.
    #[command(subcommand)]
    Backup(backup::Command),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    start_logging();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let result = runtime.context("build the runtime").and_then(|runtime| {
        let result = runtime.block_on(run(cli.command));
        runtime.shutdown_timeout(std::time::Duration::from_secs(1));
        result
    });
    match result {
        Ok(outcome) => outcome.print(cli.json),
        Err(error) => outcome::print_error(&error, cli.json),
    }
}

async fn run(command: Command) -> anyhow::Result<Outcome> {
    match command {
        Command::Pg(command) => Box::pin(pg::run(command)).await,
        Command::Backup(command) => backup::run(command).await,
    }
}

fn start_logging() {
    let filter =
        EnvFilter::try_from_env("RINDLE_LOG").unwrap_or_else(|_unset| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        // Telling stderr of a line that stderr did not take would panic: a full disk under the log stops nothing.
        .log_internal_errors(false)
        .with_writer(std::io::stderr);
    match std::env::var("RINDLE_LOG_FORMAT").as_deref() {
        Ok("json") => builder.json().init(),
        _ => builder.with_ansi(std::io::stderr().is_terminal()).init(),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn flags_do_not_contradict_each_other() {
        Cli::command().debug_assert();
    }

    #[test]
    fn what_later_builds_bring_is_unknown_here() {
        for unknown in ["backup prune --all", "backup producer --keep 0"] {
            let line = std::iter::once("rindle").chain(unknown.split(' '));
            assert!(Cli::try_parse_from(line).is_err(), "{unknown}");
        }
    }
}
