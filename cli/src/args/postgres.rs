//! `--pg-…`: where Postgres is and who we are there.

use std::path::PathBuf;

use rindle_gateway::pg::endpoint::{Endpoint, Host, Password, Secret, SslMode, TlsSettings};

use super::UsageError;

const DEFAULT_PORT: u16 = 5432;

/// Where Postgres is and who we are there. The password comes from the file, else from RINDLE_PG_PASSWORD.
///
/// Nothing is required as far as clap knows: `status` does without Postgres.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct PgArgs {
    /// Host, or several between commas of which the primary is taken; a socket directory begins with /.
    #[arg(long, env = "RINDLE_PG_HOST")]
    pg_host: Option<String>,
    /// Port [default: 5432].
    #[arg(long, env = "RINDLE_PG_PORT")]
    pg_port: Option<u16>,
    /// Role.
    #[arg(long, env = "RINDLE_PG_USER")]
    pg_user: Option<String>,
    /// Database.
    #[arg(long, env = "RINDLE_PG_DATABASE")]
    pg_database: Option<String>,
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
    /// The endpoint they describe; none when no host was given.
    pub(crate) fn endpoint_if_given(&self) -> anyhow::Result<Option<Endpoint>> {
        self.pg_host
            .as_ref()
            .map(|_given| self.endpoint())
            .transpose()
    }

    /// The same on a standby.
    pub(crate) fn standby(&self, host: &str) -> anyhow::Result<Endpoint> {
        let host = Host::parse(host, self.pg_port.unwrap_or(DEFAULT_PORT));
        let host = host.map_err(|error| UsageError(format!("--standby-host: {error}")))?;
        Ok(self.endpoint()?.at(&host))
    }

    /// The endpoint they describe.
    pub(crate) fn endpoint(&self) -> anyhow::Result<Endpoint> {
        let host = required("--pg-host", self.pg_host.as_ref())?;
        let hosts = Host::parse_list(host, self.pg_port.unwrap_or(DEFAULT_PORT));
        let password = match &self.pg_password_file {
            Some(file) => Some(Password::File(file.clone())),
            None => std::env::var("RINDLE_PG_PASSWORD")
                .ok()
                .map(|given| Password::Given(Secret::new(given))),
        };
        Ok(Endpoint {
            hosts: hosts.map_err(|error| UsageError(format!("--pg-host: {error}")))?,
            user: required("--pg-user", self.pg_user.as_ref())?.clone(),
            database: required("--pg-database", self.pg_database.as_ref())?.clone(),
            password,
            tls: TlsSettings {
                mode: self.pg_sslmode.unwrap_or_default(),
                root_cert: self.pg_sslrootcert.clone(),
                cert: self.pg_sslcert.clone(),
                key: self.pg_sslkey.clone(),
            },
        })
    }
}

fn required<'a>(flag: &str, value: Option<&'a String>) -> Result<&'a String, UsageError> {
    value.ok_or_else(|| UsageError(format!("{flag} is missing")))
}
