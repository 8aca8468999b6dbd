//! `rindle pg status`

use std::fmt::Write as _;
use std::time::Duration;

use hyper::Method;
use rindle_gateway::lifecycle::status::{self, Status, StatusRequest};
use serde_json::{Value, json};

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
    postgres: Option<PgArgs>,
    /// The gateway's HTTP address, such as http://127.0.0.1:7611.
    #[arg(long, value_name = "URL")]
    gateway: Option<String>,
    #[command(flatten)]
    token: TokenArgs,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<Outcome> {
    let endpoint = args
        .postgres
        .map(|postgres| postgres.endpoint())
        .transpose()?;
    let archive = args.store.open(&args.source.source).await?;
    let gateway = match &args.gateway {
        None => None,
        Some(url) => {
            let gateway = Program::at(url, args.token.token()?)?;
            let said = gateway
                .ask(Method::GET, "/status", None, ANSWER_WITHIN)
                .await;
            Some(said.map_err(|error| format!("{error:#}")))
        }
    };
    let source = &args.source.source;
    let request = StatusRequest {
        source,
        archive: &archive,
        endpoint: endpoint.as_ref(),
        gateway,
    };
    let status = status::status(request).await;
    Ok(Outcome {
        text: text(&status),
        json: json!(status),
        failed: !status.verdict.ok,
    })
}

fn text(status: &Status) -> String {
    let mut text = format!("source {}", status.source);
    let document = json!(status);
    let parts = [
        "generation",
        "postgres",
        "slot",
        "gateway",
        "archive",
        "images",
        "followers",
        "backfills",
    ];
    for part in parts {
        let _ = write!(text, "\n{part:<11}");
        match (&document[part], document["why"][part].as_str()) {
            (Value::Null, why) => {
                text.push_str(&format!(" unknown: {}", why.unwrap_or("not looked at")))
            }
            (Value::Array(items), _) if items.is_empty() => text.push_str(" none"),
            (Value::Array(items), _) => items.iter().for_each(|item| text.push_str(&line(item))),
            (one, _) => text.push_str(&line(one)),
        }
    }
    let verdict = &status.verdict;
    let _ = write!(text, "\n\n{}", verdict.sentence);
    if let Some(next) = &verdict.next_step {
        let _ = write!(text, "\nnext: {next}");
    }
    text
}

/// The fields of one part on lines of their own, unknown ones left out.
fn line(part: &Value) -> String {
    let Some(fields) = part.as_object() else {
        return format!(" {part}");
    };
    let known = fields.iter().filter(|(_, value)| !value.is_null());
    let words: Vec<String> = known
        .map(|(key, value)| format!("{key} {}", word(value)))
        .collect();
    words
        .chunks(4)
        .map(|some| format!("\n  {}", some.join("   ")))
        .collect()
}

fn word(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
