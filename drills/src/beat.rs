//! The delay of rows on their way: a writer that notes when each row was committed, and a look at a mirror that notes
//! when it was first seen there. The rows are those of a table `beat`, numbered by its column `n` from 1.

use std::{
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow};
use rusqlite::{Connection, OpenFlags};

use crate::postgres::Session;

/// Between two looks at a mirror, which tells nobody that it changed.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// Moments in the order of the rows.
type Moments = Arc<Mutex<Vec<Instant>>>;

/// Commits a row of `beat` at a time.
#[derive(Debug)]
pub struct Writer {
    committed: Moments,
    stop: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<Result<()>>,
}

impl Writer {
    /// Runs `write(n)` each time, for n from 1.
    pub fn start(
        session: Session,
        every: Duration,
        write: impl Fn(u64) -> String + Send + 'static,
    ) -> Self {
        let (committed, stop) = (Moments::default(), Arc::new(AtomicBool::new(false)));
        let (times, stopped) = (Arc::clone(&committed), Arc::clone(&stop));
        let task = tokio::spawn(async move {
            let mut ticks = tokio::time::interval(every);
            for n in 1.. {
                ticks.tick().await;
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
                session.run(&write(n)).await?;
                let mut committed = times.lock().unwrap_or_else(PoisonError::into_inner);
                committed.push(Instant::now());
            }
            Ok(())
        });
        Self {
            committed,
            stop,
            task,
        }
    }

    /// When each row so far was committed.
    pub fn committed(&self) -> Vec<Instant> {
        noted(&self.committed)
    }

    /// Stops, and gives the number of rows.
    pub async fn finish(self) -> Result<usize> {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.context("the writer died")??;
        Ok(noted(&self.committed).len())
    }
}

/// Looks at one mirror.
#[derive(Debug)]
pub struct Watcher {
    seen: Moments,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<()>>,
}

impl Watcher {
    pub fn start(db: &Path) -> Result<Self> {
        let sqlite = Connection::open_with_flags(db, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        let (seen, stop) = (Moments::default(), Arc::new(AtomicBool::new(false)));
        let (times, stopped) = (Arc::clone(&seen), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let mut newest = sqlite.prepare("select coalesce(max(n), 0) from beat")?;
            while !stopped.load(Ordering::Relaxed) {
                let there: i64 = newest.query_row([], |row| row.get(0))?;
                let now = Instant::now();
                let mut seen = times.lock().unwrap_or_else(PoisonError::into_inner);
                while (seen.len() as i64) < there {
                    seen.push(now);
                }
                drop(seen);
                look_again();
            }
            Ok(())
        });
        Ok(Self { seen, stop, thread })
    }

    /// When each row so far was first seen.
    pub fn seen(&self) -> Vec<Instant> {
        noted(&self.seen)
    }

    pub fn finish(self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread
            .join()
            .map_err(|_panic| anyhow!("the watcher died"))?
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "another process' file is watched, by a thread"
)]
fn look_again() {
    std::thread::sleep(LOOK_EVERY);
}

fn noted(moments: &Moments) -> Vec<Instant> {
    moments
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone()
}
