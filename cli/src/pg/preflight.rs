//! `rindle pg preflight`

use std::io::IsTerminal as _;

use rindle_gateway::lifecycle::preflight::{Preflight, preflight};
use rindle_gateway::lifecycle::{Finding, Level};
use serde_json::json;

use crate::args::{FailoverArgs, PgArgs, PublicationArgs, SourceArgs, source_request};
use crate::outcome::Outcome;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    postgres: PgArgs,
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    publication: PublicationArgs,
    #[command(flatten)]
    failover: FailoverArgs,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<Outcome> {
    let request = source_request(
        &args.postgres,
        args.source,
        args.publication,
        &args.failover,
    )?;
    let found = preflight(&request).await?;
    let mut json = json!(found);
    json["source"] = json!(request.source);
    json["admitted"] = json!(found.is_admitted());
    let outcome = Outcome::done(text(&found, std::io::stdout().is_terminal()), json);
    Ok(match found.is_admitted() {
        true => outcome,
        false => outcome.refused(),
    })
}

/// Groups by level, fatal first; colours only where somebody looks.
fn text(found: &Preflight, colours: bool) -> String {
    let mut lines = vec![heading(found)];
    let levels = [
        (Level::Fatal, "fatal: no generation can be minted", "31"),
        (
            Level::Warning,
            "warning: it works, and you should know",
            "33",
        ),
        (Level::Note, "note", "36"),
    ];
    for (level, title, colour) in levels {
        let group: Vec<&Finding> = found
            .findings
            .iter()
            .filter(|one| one.level == level)
            .collect();
        if group.is_empty() {
            continue;
        }
        let title = format!("{title} ({})", group.len());
        lines.push(String::new());
        lines.push(paint(&title, colour, colours));
        lines.extend(group.into_iter().map(|one| finding(one, colours)));
    }
    lines.push(String::new());
    lines.push(match found.is_admitted() {
        true => paint(
            "admitted: rindle pg mint would make a generation",
            "32",
            colours,
        ),
        false => paint(
            "refused: mend what is fatal, and run this again",
            "31",
            colours,
        ),
    });
    lines.join("\n")
}

fn heading(found: &Preflight) -> String {
    let version = found.server_version.as_deref().unwrap_or("unknown");
    let provider = found
        .provider
        .map_or_else(String::new, |provider| format!(", {provider}"));
    let posture = found.posture.map_or("unknown", |posture| posture.word());
    let tables: Vec<String> = found.tables.iter().map(ToString::to_string).collect();
    let tables = match tables.is_empty() {
        true => "none".to_owned(),
        false => tables.join(", "),
    };
    let publication = found.publication.as_deref().unwrap_or("unknown");
    format!(
        "server      PostgreSQL {version}{provider}\npublication {publication}: {tables}\nposture     {posture}"
    )
}

fn finding(one: &Finding, colours: bool) -> String {
    let object = one
        .object
        .as_ref()
        .map_or_else(String::new, |object| format!(" {object}:"));
    format!(
        "  {}{object} {}\n      why:  {}\n      mend: {}",
        paint(one.id, "1", colours),
        one.seen,
        one.why,
        one.mend
    )
}

fn paint(text: &str, code: &str, colours: bool) -> String {
    match colours {
        true => format!("\u{1b}[{code}m{text}\u{1b}[0m"),
        false => text.to_owned(),
    }
}
