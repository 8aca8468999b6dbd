//! `rindle pg status`

use std::time::Duration;

use hyper::Method;
use rindle_gateway::lifecycle::status::{self, StatusRequest};
use serde_json::json;

use super::status_text::screen;
use crate::args::{PgArgs, SourceArgs, StoreArgs, TokenArgs};
use crate::http::Program;
use crate::outcome::Outcome;

/// A gateway answers at once, or something is wrong with it.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    postgres: PgArgs,
    /// The gateway's HTTP address, such as http://127.0.0.1:7611.
    #[arg(long, value_name = "URL")]
    gateway: Option<String>,
    #[command(flatten)]
    token: TokenArgs,
    /// A standby, host or host:port, asked whether it could be promoted now.
    #[arg(long, value_name = "HOST")]
    standby_host: Option<String>,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<Outcome> {
    let endpoint = args.postgres.endpoint_if_given()?;
    let archive = args.store.open(&args.source.source).await?;
    let gateway = match &args.gateway {
        None => None,
        Some(url) => {
            let gateway = Program::at(url, args.token.token()?, args.token.tls())?;
            let said = gateway
                .ask(Method::GET, "/status", None, ANSWER_WITHIN)
                .await;
            Some(said.map_err(|error| format!("{error:#}")))
        }
    };
    let standby = match &args.standby_host {
        None => None,
        Some(host) => Some(args.postgres.standby(host)?),
    };
    let source = &args.source.source;
    let request = StatusRequest {
        source,
        archive: &archive,
        endpoint: endpoint.as_ref(),
        standby: standby.as_ref(),
        gateway,
    };
    let status = status::status(request).await;
    Ok(Outcome {
        text: screen(&status),
        json: json!(status),
        failed: !status.verdict.ok,
        refused: false,
    })
}
