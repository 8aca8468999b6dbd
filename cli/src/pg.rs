//! `rindle pg …`

mod compared;
mod cutover;
mod deprovision;
mod held;
mod mint;
mod preflight;
mod prepare;
mod resync;
mod retire;
mod schema_hook;
mod status;
mod status_text;
mod verify;

use crate::outcome::Outcome;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Tells everything that is wrong with a source, and how to mend it. Changes nothing.
    Preflight(preflight::Args),
    /// Makes the publication, and writes down what was made.
    Prepare(prepare::Args),
    /// Announces by hand what is published now, where no event trigger does.
    SchemaHook(schema_hook::Args),
    /// Checks the source and writes a new generation of it to the archive.
    Mint(mint::Args),
    /// Moves the source to another generation, or back.
    Cutover(cutover::Args),
    /// Ends a generation that is not current: seals its log, drops its slot.
    Retire(retire::Args),
    /// Removes exactly what prepare made, and the source's slots.
    Deprovision(deprovision::Args),
    /// One screen: generation, Postgres, slot, gateway, archive, images, followers, and one sentence.
    Status(status::Args),
    /// Copies one table anew, beside the stream.
    Resync(resync::Args),
    /// Proves row for row that a mirror equals the source at one position.
    Verify(verify::Args),
}

pub(crate) async fn run(command: Command) -> anyhow::Result<Outcome> {
    match command {
        Command::Preflight(args) => preflight::run(args).await,
        Command::Prepare(args) => prepare::run(args).await,
        Command::SchemaHook(args) => schema_hook::run(args).await,
        Command::Mint(args) => mint::run(args).await,
        Command::Cutover(args) => cutover::run(args).await,
        Command::Retire(args) => retire::run(args).await,
        Command::Deprovision(args) => deprovision::run(args).await,
        Command::Status(args) => status::run(args).await,
        Command::Verify(args) => Box::pin(verify::run(args)).await,
        Command::Resync(args) => resync::run(args).await,
    }
}
