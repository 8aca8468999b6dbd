//! What a command prints, and the status it ends with.

use std::io::Write as _;
use std::process::ExitCode;

use rindle_archive::{ArchiveError, Kind};
use rindle_gateway::lifecycle::LifecycleError;
use rindle_producer::ProducerError;
use serde_json::{Value, json};

use crate::args::UsageError;

/// It ran, and found or met a failure.
const FAILED: u8 = 1;
/// It refused, or was used in a wrong way.
const REFUSED: u8 = 2;

/// What a command has to say.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// For people.
    pub(crate) text: String,
    /// The stable document.
    pub(crate) json: Value,
    /// It found what should not be.
    pub(crate) failed: bool,
    /// What was asked for cannot be done before something is mended.
    pub(crate) refused: bool,
}

impl Outcome {
    /// A command that did its work.
    pub(crate) fn done(text: impl Into<String>, json: Value) -> Self {
        Self {
            text: text.into(),
            json,
            failed: false,
            refused: false,
        }
    }

    /// The same, as a refusal.
    pub(crate) fn refused(self) -> Self {
        Self {
            refused: true,
            ..self
        }
    }

    /// Prints it and gives the exit status.
    pub(crate) fn print(&self, as_json: bool) -> ExitCode {
        match as_json {
            true => say(&format!("{:#}", self.json)),
            false => say(&self.text),
        }
        ExitCode::from(match self {
            Self { refused: true, .. } => REFUSED,
            Self { failed: true, .. } => FAILED,
            _ => 0,
        })
    }
}

/// Prints why a command did not do its work, and gives the exit status.
pub(crate) fn print_error(error: &anyhow::Error, as_json: bool) -> ExitCode {
    // The exit status tells it too, so a stderr that is gone changes nothing.
    let _written = writeln!(std::io::stderr(), "rindle: {error:#}");
    let lifecycle = error
        .chain()
        .find_map(|cause| cause.downcast_ref::<LifecycleError>());
    let refused = lifecycle.is_some_and(LifecycleError::is_refused)
        || error.is::<UsageError>()
        || error
            .downcast_ref::<ProducerError>()
            .is_some_and(|error| error.kind() == Kind::Refused)
        || error
            .downcast_ref::<ArchiveError>()
            .is_some_and(|error| error.kind() == Kind::Refused);
    if as_json {
        let findings = match lifecycle {
            Some(LifecycleError::Refused(refusal)) => json!(refusal.findings),
            _ => json!([]),
        };
        say(&format!(
            "{:#}",
            json!({"error": format!("{error:#}"), "refused": refused, "findings": findings})
        ));
    }
    ExitCode::from(if refused { REFUSED } else { FAILED })
}

/// Writes to stdout. Whoever closed it does not want to know more.
fn say(text: &str) {
    if writeln!(std::io::stdout(), "{text}").is_err() {
        tracing::debug!("stdout is closed");
    }
}
