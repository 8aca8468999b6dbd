//! The folder of one drill. Everything that a drill starts has this folder's name on its command line, so that a drill
//! that was killed itself can be swept up by the next one without ending anybody else's process.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Once,
};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};

/// Folders of drills start with this; the number after it is the process that owns the folder.
const PREFIX: &str = "rindle-drill-";

/// A temporary folder that goes away with the value, unless `RINDLE_KEEP=1` asks to keep it.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    keep: bool,
}

impl RunDir {
    pub fn new(what: &str) -> Result<Self> {
        static SWEEP: Once = Once::new();
        SWEEP.call_once(sweep);
        let path = tempfile::Builder::new()
            .prefix(&format!("{PREFIX}{}-{what}-", std::process::id()))
            .tempdir()
            .context("make a folder for the drill")?
            .keep();
        // User postgres must get at its part of it.
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        let keep = std::env::var_os("RINDLE_KEEP").is_some();
        if keep {
            println!("kept: {}", path.display());
        }
        Ok(Self { path, keep })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        if !self.keep {
            // A process that was killed a moment ago may still be writing: a second try is enough then.
            if fs::remove_dir_all(&self.path).is_err() {
                let _ = fs::remove_dir_all(&self.path);
            }
        }
    }
}

/// Ends what dead drills left: a folder whose owner is gone, and the processes that name it.
fn sweep() {
    let Ok(entries) = fs::read_dir(std::env::temp_dir()) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(owner) = name
            .strip_prefix(PREFIX)
            .and_then(|rest| rest.split('-').next())
        else {
            continue;
        };
        if owner.parse::<u32>().is_ok() && !Path::new("/proc").join(owner).exists() {
            end_processes_naming(&entry.path());
            if std::env::var_os("RINDLE_KEEP").is_none() {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }
}

fn end_processes_naming(dir: &Path) {
    let Ok(processes) = fs::read_dir("/proc") else {
        return;
    };
    let needle = dir.to_string_lossy().into_owned();
    for process in processes.flatten() {
        let pid = process.file_name().to_string_lossy().parse::<i32>();
        let Some(pid) = pid.ok().and_then(Pid::from_raw) else {
            continue;
        };
        let line = fs::read(process.path().join("cmdline")).unwrap_or_default();
        if String::from_utf8_lossy(&line).contains(&needle) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}
