//! For tests: a store that fails on demand, and a source whose transactions are always the same.

mod source;

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::SystemTime;

use bytes::Bytes;

use crate::layout::Key;
use crate::store::{Create, Problem, Store, StoreError, StoreFuture, Swap, Version, Versioned};

pub use source::{Source, SourceTxn, generation_record};

/// When a call fails, relative to its effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// Nothing happened.
    Before,
    /// It happened, and its answer was lost.
    After,
    /// A create fails now and happens at [`FlakyStore::land`]; other calls fail before their effect.
    Late,
    /// The call waits for [`FlakyStore::land`], and then happens.
    Stalled,
}

/// Which calls fail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Faults {
    /// None.
    #[default]
    Never,
    /// The n-th from now on, counted from 1.
    Once(u64, Moment),
    /// The n-th and all after it.
    ForEver(u64, Moment),
}

/// A store that passes calls on, except those that fail. Clones share the plan.
#[derive(Clone, Debug)]
pub struct FlakyStore {
    inner: Arc<dyn Store>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    faults: Faults,
    calls: u64,
    fired: u64,
    late: Vec<(Key, Bytes)>,
    /// Lets one stalled call go on.
    stalled: Option<Arc<tokio::sync::Notify>>,
}

impl FlakyStore {
    /// Wraps a store; nothing fails yet.
    pub fn new(inner: Arc<dyn Store>) -> Self {
        Self {
            inner,
            state: Arc::default(),
        }
    }

    /// Sets which calls fail from now on, and begins to count anew.
    pub fn plan(&self, faults: Faults) {
        let mut state = self.state();
        (state.faults, state.calls, state.fired) = (faults, 0, 0);
    }

    /// Calls that failed since the plan was set.
    pub fn fired(&self) -> u64 {
        self.state().fired
    }

    /// Lets the creates happen that are late, their answers lost; and the call go on that is stalled.
    pub async fn land(&self) {
        if let Some(stalled) = self.state().stalled.take() {
            stalled.notify_one();
        }
        let late = std::mem::take(&mut self.state().late);
        for (key, bytes) in late {
            let _lost = self.inner.create(&key, bytes).await;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn fault(&self) -> Option<Moment> {
        let mut state = self.state();
        state.calls += 1;
        let moment = match state.faults {
            Faults::Once(n, moment) if state.calls == n => Some(moment),
            Faults::ForEver(n, moment) if state.calls >= n => Some(moment),
            Faults::Never | Faults::Once(..) | Faults::ForEver(..) => None,
        };
        state.fired += u64::from(moment.is_some());
        moment
    }

    fn pass<'a, T: Send + 'a>(
        &self,
        action: &'static str,
        key: &Key,
        fault: Option<Moment>,
        call: StoreFuture<'a, T>,
    ) -> StoreFuture<'a, T> {
        let error = StoreError::new(action, key, Problem::Unavailable, None);
        let landed = Arc::new(tokio::sync::Notify::new());
        if fault == Some(Moment::Stalled) {
            self.state().stalled = Some(Arc::clone(&landed));
        }
        Box::pin(async move {
            match fault {
                None => call.await,
                Some(Moment::Before | Moment::Late) => Err(error),
                Some(Moment::Stalled) => {
                    landed.notified().await;
                    call.await
                }
                Some(Moment::After) => {
                    let _lost = call.await;
                    Err(error)
                }
            }
        })
    }
}

impl Store for FlakyStore {
    fn create(&self, key: &Key, bytes: Bytes) -> StoreFuture<'_, Create> {
        let fault = self.fault();
        if fault == Some(Moment::Late) {
            self.state().late.push((key.clone(), bytes.clone()));
        }
        self.pass("create", key, fault, self.inner.create(key, bytes))
    }

    fn settle(&self, key: &Key) -> StoreFuture<'_, ()> {
        self.pass("make durable", key, self.fault(), self.inner.settle(key))
    }

    fn get(&self, key: &Key, limit: u64) -> StoreFuture<'_, Option<Bytes>> {
        self.pass("read", key, self.fault(), self.inner.get(key, limit))
    }

    fn get_start(&self, key: &Key, len: usize) -> StoreFuture<'_, Option<Bytes>> {
        self.pass("read", key, self.fault(), self.inner.get_start(key, len))
    }

    fn list(&self, directory: &Key, after: Option<&str>) -> StoreFuture<'_, Vec<String>> {
        self.pass(
            "list",
            directory,
            self.fault(),
            self.inner.list(directory, after),
        )
    }

    fn weigh(&self, directory: &Key, after: Option<&str>) -> StoreFuture<'_, u64> {
        self.pass(
            "list",
            directory,
            self.fault(),
            self.inner.weigh(directory, after),
        )
    }

    fn get_versioned(&self, key: &Key, limit: u64) -> StoreFuture<'_, Option<Versioned>> {
        self.pass(
            "read",
            key,
            self.fault(),
            self.inner.get_versioned(key, limit),
        )
    }

    fn compare_and_set(
        &self,
        key: &Key,
        expected: Option<&Version>,
        bytes: Bytes,
    ) -> StoreFuture<'_, Swap> {
        self.pass(
            "replace",
            key,
            self.fault(),
            self.inner.compare_and_set(key, expected, bytes),
        )
    }

    fn place(&self) -> Option<String> {
        self.inner.place()
    }

    fn modified(&self, key: &Key) -> StoreFuture<'_, Option<SystemTime>> {
        self.pass("read", key, self.fault(), self.inner.modified(key))
    }

    fn delete(&self, key: &Key) -> StoreFuture<'_, ()> {
        self.pass("delete", key, self.fault(), self.inner.delete(key))
    }
}
