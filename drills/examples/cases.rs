//! Runs the case files of any folder: `cargo run -p rindle-drills --example cases -- DIR [NAME…]`.
//!
//! Build the programs first. Ends with status 1 when a case fails.

use std::path::PathBuf;

use anyhow::{Context, Result};
use rindle_drills::{cases::Case, postgres::Server};

#[tokio::main]
async fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let folder = args.next().context("name a folder of case files")?;
    let wanted: Vec<String> = args.collect();
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        files.push(entry?.path());
    }
    files.retain(|file: &PathBuf| file.extension().is_some_and(|ext| ext == "sql"));
    files.sort();
    let mut failed = 0;
    for file in files {
        let case = Case::load(&file)?;
        if !wanted.is_empty() && !wanted.iter().any(|name| case.name.starts_with(name)) {
            continue;
        }
        let server = Server::start().await?;
        let outcomes = if case.refused.is_empty() {
            vec![
                (
                    "by stream and image",
                    case.streamed_then_imaged(&server).await,
                ),
                ("by copy", case.copied(&server).await),
            ]
        } else {
            vec![("refused", case.is_refused(&server).await)]
        };
        for (way, outcome) in outcomes {
            match outcome {
                Ok(()) => println!("ok      {} {way}", case.name),
                Err(err) => {
                    failed += 1;
                    println!("FAILED  {} {way}: {err:#}", case.name);
                }
            }
        }
    }
    std::process::exit(i32::from(failed > 0));
}
