//! `--gateway`, `--follower`: programs that are asked over HTTP.

use std::path::PathBuf;

use anyhow::Context;

use crate::http::TlsFiles;

/// What a program that asks for a token is shown.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct TokenArgs {
    /// File that holds the token; else RINDLE_TOKEN is taken.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// PEM file of the authorities that sign the program's certificate [default: those of the system].
    #[arg(long, value_name = "FILE")]
    tls_ca: Option<PathBuf>,
    /// PEM file of our certificate, for a program that asks for one.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// PEM file of our private key.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
}

impl TokenArgs {
    /// Certificates, ours and the program's.
    pub(crate) fn tls(&self) -> TlsFiles {
        TlsFiles {
            ca: self.tls_ca.clone(),
            own: self.tls_cert.clone().zip(self.tls_key.clone()),
        }
    }

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
