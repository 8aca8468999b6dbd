//! One program of ours as a child process: started, watched through its ready line and its ports, killed.

use std::{
    fs::{self, OpenOptions},
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    process::{Child, ChildStdout, Command},
    time::timeout,
};

use crate::{http, run_dir::RunDir, wait};

/// From the start of a process to its ready line; the sockets are bound before anything slow.
const READY_WITHIN: Duration = Duration::from_secs(30);
/// A clean stop is promised within 10 s; the rest is for a busy machine.
const STOPS_WITHIN: Duration = Duration::from_secs(15);

/// What a program is started with.
#[derive(Debug, Clone)]
pub struct Start {
    /// Name of the log file, and of the program in messages.
    pub name: String,
    pub binary: &'static str,
    pub args: Vec<String>,
    pub env: Vec<(String, String)>,
}

/// A running service. It is killed when the value goes.
#[derive(Debug)]
pub struct Program {
    name: String,
    child: Child,
    ready: Value,
    log: PathBuf,
    /// Kept open: a program whose stdout is closed would die of its next line.
    _stdout: Lines<BufReader<ChildStdout>>,
}

impl Program {
    /// Starts a service and waits for its ready line.
    pub async fn start(dir: &RunDir, start: &Start) -> Result<Self> {
        let log = dir.join(&format!("{}.log", start.name));
        let mut child = command(start, &log)?
            .stdout(Stdio::piped())
            .spawn()
            .context("spawn")?;
        let stdout = child.stdout.take().context("take the program's stdout")?;
        let mut stdout = BufReader::new(stdout).lines();
        let ready = timeout(READY_WITHIN, async {
            while let Some(line) = stdout.next_line().await? {
                let line: Value = serde_json::from_str(&line)
                    .with_context(|| format!("{} printed on stdout: {line}", start.name))?;
                if line["ready"] == true {
                    return Ok(line);
                }
            }
            bail!("{} ended without a ready line: {}", start.name, tail(&log))
        })
        .await
        .with_context(|| format!("no ready line of {} in time: {}", start.name, tail(&log)))??;
        Ok(Self {
            name: start.name.clone(),
            child,
            ready,
            log,
            _stdout: stdout,
        })
    }

    /// A port told in the ready line: `grpcPort`, `httpPort`, `wsPort`.
    pub fn port(&self, key: &str) -> Result<u16> {
        let port = self.ready[key]
            .as_u64()
            .and_then(|port| u16::try_from(port).ok());
        port.with_context(|| format!("{}: no {key} in the ready line {}", self.name, self.ready))
    }

    /// Status and body of `/readyz`; `None` when the program does not answer.
    pub async fn readyz(&self) -> Option<http::Answer> {
        let port = self.port("httpPort").ok()?;
        http::get(port, "/readyz").await.ok()
    }

    /// Waits until `/readyz` is 200; its last words stand in the error.
    pub async fn until_ready(&mut self, limit: Duration) -> Result<()> {
        let what = format!("{} to be ready", self.name);
        let mut last = String::new();
        let waited = wait::until_true(&what, limit, async || {
            if let Some(status) = self.child.try_wait()? {
                bail!("{} ended with {status}: {}", self.name, tail(&self.log));
            }
            let Some(answer) = self.readyz().await else {
                return Ok(false);
            };
            last = format!("{} {}", answer.status, answer.body);
            Ok(answer.status == 200)
        })
        .await;
        waited.with_context(|| format!("last: {last}; log: {}", tail(&self.log)))
    }

    pub fn is_running(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }

    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = self.child.id().and_then(|pid| Pid::from_raw(pid as i32));
        let pid = pid.with_context(|| format!("{} has ended", self.name))?;
        kill_process(pid, signal).with_context(|| format!("signal {}", self.name))
    }

    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// `kill -9`, and the wait for the process to be gone.
    pub async fn kill(&mut self) -> Result<()> {
        self.child
            .kill()
            .await
            .with_context(|| format!("kill {}", self.name))
    }

    /// SIGTERM; a stop in time with status 0 is demanded.
    pub async fn stop(&mut self) -> Result<()> {
        self.signal(Signal::TERM)?;
        let status = self.ended(STOPS_WITHIN).await?;
        ensure!(
            status.success(),
            "{} stopped with {status}: {}",
            self.name,
            tail(&self.log)
        );
        Ok(())
    }

    /// Waits for the process to end by itself.
    pub async fn ended(&mut self, limit: Duration) -> Result<ExitStatus> {
        let ended = timeout(limit, self.child.wait()).await;
        Ok(ended.with_context(|| format!("{} did not end: {}", self.name, tail(&self.log)))??)
    }

    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Peak resident memory in bytes, from the kernel.
    pub fn peak_memory(&self) -> Result<u64> {
        let pid = self
            .child
            .id()
            .with_context(|| format!("{} has ended", self.name))?;
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib: u64 = line
            .and_then(|line| line.trim().strip_suffix(" kB"))
            .context("find VmHWM of a process")?
            .trim()
            .parse()?;
        Ok(kib * 1024)
    }
}

/// What a program that runs to its end left.
#[derive(Debug)]
pub struct Outcome {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Outcome {
    pub fn must_succeed(self) -> Result<Self> {
        ensure!(
            self.status.success(),
            "{}: {}{}",
            self.status,
            self.stdout,
            self.stderr
        );
        Ok(self)
    }

    pub fn json(&self) -> Result<Value> {
        serde_json::from_str(&self.stdout).with_context(|| format!("read as JSON: {}", self.stdout))
    }
}

/// Runs a program to its end.
pub async fn run(dir: &RunDir, start: &Start, limit: Duration) -> Result<Outcome> {
    let log = dir.join(&format!("{}.log", start.name));
    let from = fs::metadata(&log).map_or(0, |file| file.len() as usize);
    let child = command(start, &log)?.stdout(Stdio::piped()).spawn()?;
    let output = timeout(limit, child.wait_with_output())
        .await
        .with_context(|| format!("{} did not end: {}", start.name, tail(&log)))??;
    let log = fs::read(&log)?;
    Ok(Outcome {
        status: output.status,
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&log[from..]).into_owned(),
    })
}

/// Spawns a program that is expected to be killed before its end.
pub fn spawn(dir: &RunDir, start: &Start) -> Result<Child> {
    let log = dir.join(&format!("{}.log", start.name));
    Ok(command(start, &log)?.stdout(Stdio::null()).spawn()?)
}

fn command(start: &Start, log: &Path) -> Result<Command> {
    let log = OpenOptions::new().create(true).append(true).open(log)?;
    let mut command = Command::new(binary(start.binary)?);
    command.args(&start.args).envs(start.env.iter().cloned());
    command.stdin(Stdio::null()).stderr(log).kill_on_drop(true);
    Ok(command)
}

/// The programs lie beside the folder of the test's own executable.
fn binary(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    let found = own
        .ancestors()
        .skip(1)
        .take(2)
        .map(|dir| dir.join(name))
        .find(|file| file.exists());
    found.with_context(|| format!("{name} is not built: run cargo build --workspace --bins first"))
}

/// What a program logged; nothing when its log is not a file that can be read.
pub fn read_log(log: &Path) -> String {
    match fs::metadata(log) {
        Ok(found) if found.is_file() => {
            String::from_utf8_lossy(&fs::read(log).unwrap_or_default()).into_owned()
        }
        _ => String::new(),
    }
}

fn tail(log: &Path) -> String {
    let text = read_log(log);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(25)..].join("\n")
}
