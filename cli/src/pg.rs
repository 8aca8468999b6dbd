//! `rindle pg …`

mod mint;
mod prepare;

use crate::outcome::Outcome;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Makes the publication, and writes down what was made.
    Prepare(prepare::Args),
    /// Checks the source and writes a new generation of it to the archive.
    Mint(mint::Args),
}

pub(crate) async fn run(command: Command) -> anyhow::Result<Outcome> {
    match command {
        Command::Prepare(args) => prepare::run(args).await,
        Command::Mint(args) => mint::run(args).await,
    }
}
