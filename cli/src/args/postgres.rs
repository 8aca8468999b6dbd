//! `--pg-…`: where Postgres is and who we are there.

use std::path::PathBuf;

use anyhow::Context;
use rindle_gateway::pg::endpoint::{Endpoint, Host, Secret, SslMode, TlsSettings};

use super::UsageError;

/// Not a default of clap's: where Postgres may be left out, nothing of it must look given.
const DEFAULT_PORT: u16 = 5432;

/// Where Postgres is and who we are there. The password comes from the file, else from RINDLE_PG_PASSWORD.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct PgArgs {
    /// Host, or several between commas of which the primary is taken; a socket directory begins with /.
    #[arg(long, env = "RINDLE_PG_HOST")]
    pg_host: String,
    /// Port [default: 5432].
    #[arg(long, env = "RINDLE_PG_PORT")]
    pg_port: Option<u16>,
    /// Role.
    #[arg(long, env = "RINDLE_PG_USER")]
    pg_user: String,
    /// Database.
    #[arg(long, env = "RINDLE_PG_DATABASE")]
    pg_database: String,
    /// File that holds the password.
    #[arg(long, env = "RINDLE_PG_PASSWORD_FILE", value_name = "FILE")]
    pg_password_file: Option<PathBuf>,
    /// disable, prefer, require, verify-ca or verify-full [default: require].
    #[arg(long, env = "RINDLE_PG_SSLMODE")]
    pg_sslmode: Option<SslMode>,
    /// PEM file of the authorities that sign the server's certificate, or the word system.
    #[arg(long, env = "RINDLE_PG_SSLROOTCERT", value_name = "FILE")]
    pg_sslrootcert: Option<PathBuf>,
    /// PEM file of our certificate.
    #[arg(long, env = "RINDLE_PG_SSLCERT", value_name = "FILE")]
    pg_sslcert: Option<PathBuf>,
    /// PEM file of our private key.
    #[arg(long, env = "RINDLE_PG_SSLKEY", value_name = "FILE")]
    pg_sslkey: Option<PathBuf>,
}

impl PgArgs {
    /// The endpoint they describe.
    pub(crate) fn endpoint(&self) -> anyhow::Result<Endpoint> {
        let hosts = Host::parse_list(&self.pg_host, self.pg_port.unwrap_or(DEFAULT_PORT));
        let password = match &self.pg_password_file {
            Some(file) => {
                let text = std::fs::read_to_string(file);
                let text =
                    text.with_context(|| format!("read the password file {}", file.display()))?;
                Some(text.trim_end_matches(['\r', '\n']).to_owned())
            }
            None => std::env::var("RINDLE_PG_PASSWORD").ok(),
        };
        Ok(Endpoint {
            hosts: hosts.map_err(|error| UsageError(format!("--pg-host: {error}")))?,
            user: self.pg_user.clone(),
            database: self.pg_database.clone(),
            password: password.map(Secret::new),
            tls: TlsSettings {
                mode: self.pg_sslmode.unwrap_or_default(),
                root_cert: self.pg_sslrootcert.clone(),
                cert: self.pg_sslcert.clone(),
                key: self.pg_sslkey.clone(),
            },
        })
    }
}
