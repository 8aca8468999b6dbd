//! Progress: a line that moves on a terminal, a log line now and then elsewhere.

use std::io::IsTerminal as _;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{HumanBytes, HumanCount, ProgressBar, ProgressStyle};
use rindle_producer::{Progress, Step, Watch};

/// How often a log line is written where no terminal is.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Who is told how far the work is.
pub(super) fn watch() -> Watch {
    match std::io::stderr().is_terminal() {
        true => on_terminal(),
        false => in_log(),
    }
}

fn on_terminal() -> Watch {
    let style = "{spinner} {msg} [{bar:30}] {percent}% {elapsed}, {eta} left";
    let style =
        ProgressStyle::with_template(style).unwrap_or_else(|_bad| ProgressStyle::default_bar());
    let bar = ProgressBar::new(0).with_style(style.progress_chars("=> "));
    let step = Mutex::new(None);
    Watch::new(move |progress: Progress| {
        let mut step = step.lock().unwrap_or_else(PoisonError::into_inner);
        if *step != Some(progress.step) {
            *step = Some(progress.step);
            bar.reset();
        }
        bar.set_length(progress.total);
        bar.set_position(progress.done.min(progress.total));
        bar.set_message(words(&progress, bar.elapsed()));
        if progress.done >= progress.total && progress.step == Step::Proving {
            bar.finish_and_clear();
        }
    })
}

fn in_log() -> Watch {
    let last = Mutex::new((None, Instant::now(), Instant::now()));
    Watch::new(move |progress: Progress| {
        let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
        let (step, began, told) = &mut *last;
        if *step != Some(progress.step) {
            *step = Some(progress.step);
            (*began, *told) = (Instant::now(), Instant::now());
        }
        if told.elapsed() >= LOG_INTERVAL {
            *told = Instant::now();
            let (done, total) = (progress.done, progress.total);
            tracing::info!(done, total, "{}", words(&progress, began.elapsed()));
        }
    })
}

fn words(progress: &Progress, elapsed: Duration) -> String {
    let seconds = elapsed.as_secs_f64().max(0.001);
    let rate = |amount: u64| (amount as f64 / seconds) as u64;
    let bytes = format!(
        "{} ({}/s)",
        HumanBytes(progress.bytes),
        HumanBytes(rate(progress.bytes))
    );
    let rows = match progress.rows {
        0 => String::new(),
        rows => format!(", {} rows ({}/s)", HumanCount(rows), HumanCount(rate(rows))),
    };
    let doing = match progress.step {
        Step::Seeking => "looking through",
        Step::Restoring => "restoring",
        Step::Replaying => "replaying",
        Step::Publishing => "publishing",
        Step::Proving => "proving",
    };
    format!("{doing} {bytes}{rows}")
}
