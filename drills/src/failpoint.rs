//! The moments at which a program can be told to die, as `archive/src/failpoint.rs` names them. Read from its source, so
//! that a moment nobody drills is found.

use std::{fs, os::unix::process::ExitStatusExt, path::Path, process::ExitStatus};

use anyhow::{Context, Result, ensure};

const ABORT: i32 = 6;

/// The environment that makes a program die when it reaches a moment for the `nth` time.
pub fn armed(name: &str, nth: u32) -> Vec<(String, String)> {
    vec![("RINDLE_FAILPOINT".to_owned(), format!("{name}={nth}"))]
}

/// Every moment there is.
pub fn all() -> Result<Vec<String>> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../archive/src/failpoint.rs");
    let text = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
    let constants = text.lines().filter(|line| line.starts_with("pub const "));
    let names = constants.filter_map(|line| Some(line.split_once(": &str = \"")?.1));
    Ok(names
        .filter_map(|rest| Some(rest.split_once('"')?.0.to_owned()))
        .collect())
}

/// It died by its own abort, and said where.
pub fn must_have_died(name: &str, status: ExitStatus, log: &str) -> Result<()> {
    ensure!(
        status.signal() == Some(ABORT),
        "{name}: ended with {status}: {log}"
    );
    ensure!(
        log.lines()
            .any(|line| line == format!("failpoint {name} reached")),
        "{name} was not reached: {log}"
    );
    Ok(())
}
