//! `--gateway`, `--follower`: programs that are asked over HTTP.

use std::path::PathBuf;

use anyhow::Context;

/// What a program that asks for a token is shown.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct TokenArgs {
    /// File that holds the token; else RINDLE_TOKEN is taken.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

impl TokenArgs {
    /// The token, if there is one.
    pub(crate) fn token(&self) -> anyhow::Result<Option<String>> {
        let Some(file) = &self.token_file else {
            return Ok(std::env::var("RINDLE_TOKEN")
                .ok()
                .filter(|token| !token.is_empty()));
        };
        let text = std::fs::read_to_string(file);
        let text = text.with_context(|| format!("read the token file {}", file.display()))?;
        Ok(Some(text.trim_end_matches(['\r', '\n']).to_owned()))
    }
}
