//! `rindle pg …`

mod compared;
mod held;
mod mint;
mod prepare;
mod status;
mod status_text;
mod verify;

use crate::outcome::Outcome;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Makes the publication, and writes down what was made.
    Prepare(prepare::Args),
    /// Checks the source and writes a new generation of it to the archive.
    Mint(mint::Args),
    /// One screen: generation, Postgres, slot, gateway, archive, images, followers, and one sentence.
    Status(status::Args),
    /// Proves row for row that a mirror equals the source at one position.
    Verify(verify::Args),
}

pub(crate) async fn run(command: Command) -> anyhow::Result<Outcome> {
    match command {
        Command::Prepare(args) => prepare::run(args).await,
        Command::Mint(args) => mint::run(args).await,
        Command::Status(args) => status::run(args).await,
        Command::Verify(args) => verify::run(args).await,
    }
}
