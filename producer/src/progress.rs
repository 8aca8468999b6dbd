//! What is told while work goes on.

use std::sync::Arc;

/// What is being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The log is looked through for a moment. Done and total count log objects.
    Seeking,
    /// An image is written to the scratch file.
    Restoring,
    /// The log is applied to the scratch mirror. Done and total count log objects.
    Replaying,
    /// The image goes to the archive.
    Publishing,
    /// It is read back.
    Proving,
}

/// How far a step is. Done and total are bytes unless the step says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What is being done.
    pub step: Step,
    /// How much of it is done.
    pub done: u64,
    /// How much there is.
    pub total: u64,
    /// Bytes handled so far.
    pub bytes: u64,
    /// Rows handled so far.
    pub rows: u64,
}

/// Who is told. Called often, from the thread that does the work.
#[derive(Clone)]
pub struct Watch(Arc<dyn Fn(Progress) + Send + Sync>);

impl Watch {
    /// Tells `told`.
    pub fn new(told: impl Fn(Progress) + Send + Sync + 'static) -> Self {
        Self(Arc::new(told))
    }

    /// Tells nobody.
    pub fn nobody() -> Self {
        Self::new(|_progress| {})
    }

    /// Tells it.
    pub fn tell(&self, progress: Progress) {
        (self.0)(progress);
    }

    /// Tells how many bytes of a file are done.
    pub(crate) fn tell_bytes(&self, step: Step, done: u64, total: u64) {
        self.tell(Progress {
            step,
            done,
            total,
            bytes: done,
            rows: 0,
        });
    }
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Watch")
    }
}
