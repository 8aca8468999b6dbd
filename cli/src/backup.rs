//! `rindle backup …`

mod list;
mod producer;
mod progress;

use crate::outcome::Outcome;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Replays the archive and publishes images from which followers start. For cron, or with --every.
    Producer(producer::Args),
    /// Lists the images.
    List(list::Args),
}

pub(crate) async fn run(command: Command) -> anyhow::Result<Outcome> {
    match command {
        Command::Producer(args) => producer::run(args).await,
        Command::List(args) => list::run(args).await,
    }
}
