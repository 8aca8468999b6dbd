//! `rindle backup …`

mod list;
mod producer;
mod progress;
mod prune;
mod restore;
mod verify;

use crate::outcome::Outcome;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Replays the archive and publishes images from which followers start. For cron, or with --every.
    Producer(producer::Args),
    /// Lists the images.
    List(list::Args),
    /// Looks for objects that are missing or damaged. Reads only.
    Verify(verify::Args),
    /// Deletes old images, and the log that nobody needs any more. The producer does so after each run.
    Prune(prune::Args),
    /// Writes a plain SQLite file of the source as it is, or was at some moment.
    Restore(restore::Args),
}

pub(crate) async fn run(command: Command) -> anyhow::Result<Outcome> {
    match command {
        Command::Producer(args) => producer::run(args).await,
        Command::List(args) => list::run(args).await,
        Command::Verify(args) => verify::run(args).await,
        Command::Prune(args) => prune::run(args).await,
        Command::Restore(args) => restore::run(args).await,
    }
}
