//! For tests: a store that fails on demand.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

use crate::layout::Key;
use crate::store::{Create, Problem, Store, StoreError, StoreFuture, Swap, Version, Versioned};

/// When a call fails, relative to its effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// Nothing happened.
    Before,
    /// It happened, and its answer was lost.
    After,
}

/// Which calls fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Faults {
    /// None.
    Never,
    /// The n-th from now on, counted from 1.
    Once(u64, Moment),
    /// The n-th and all after it.
    ForEver(u64, Moment),
}

/// A store that passes calls on, except those that fail.
#[derive(Clone, Debug)]
pub struct FlakyStore {
    inner: Arc<dyn Store>,
    plan: Arc<std::sync::Mutex<Faults>>,
    calls: Arc<AtomicU64>,
    fired: Arc<AtomicU64>,
}

impl FlakyStore {
    /// Wraps a store; nothing fails yet.
    pub fn new(inner: Arc<dyn Store>) -> Self {
        let plan = Arc::new(std::sync::Mutex::new(Faults::Never));
        Self {
            inner,
            plan,
            calls: Arc::default(),
            fired: Arc::default(),
        }
    }

    /// Sets which calls fail from now on, and begins to count anew.
    pub fn plan(&self, faults: Faults) {
        *self
            .plan
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner) = faults;
        self.calls.store(0, Ordering::SeqCst);
        self.fired.store(0, Ordering::SeqCst);
    }

    /// Calls that failed since the plan was set.
    pub fn fired(&self) -> u64 {
        self.fired.load(Ordering::SeqCst)
    }

    fn fault(&self) -> Option<Moment> {
        let call = self.calls.fetch_add(1, Ordering::SeqCst) + 1;
        let plan = *self
            .plan
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let moment = match plan {
            Faults::Once(n, moment) if call == n => Some(moment),
            Faults::ForEver(n, moment) if call >= n => Some(moment),
            Faults::Never | Faults::Once(..) | Faults::ForEver(..) => None,
        };
        self.fired
            .fetch_add(u64::from(moment.is_some()), Ordering::SeqCst);
        moment
    }

    fn pass<'a, T: Send + 'a>(
        &self,
        action: &'static str,
        key: &Key,
        call: StoreFuture<'a, T>,
    ) -> StoreFuture<'a, T> {
        let fault = self.fault();
        let error = StoreError::new(action, key, Problem::Unavailable, None);
        Box::pin(async move {
            match fault {
                None => call.await,
                Some(Moment::Before) => Err(error),
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
        self.pass("create", key, self.inner.create(key, bytes))
    }

    fn settle(&self, key: &Key) -> StoreFuture<'_, ()> {
        self.pass("make durable", key, self.inner.settle(key))
    }

    fn get(&self, key: &Key, limit: u64) -> StoreFuture<'_, Option<Bytes>> {
        self.pass("read", key, self.inner.get(key, limit))
    }

    fn get_start(&self, key: &Key, len: usize) -> StoreFuture<'_, Option<Bytes>> {
        self.pass("read", key, self.inner.get_start(key, len))
    }

    fn list(&self, directory: &Key, after: Option<&str>) -> StoreFuture<'_, Vec<String>> {
        self.pass("list", directory, self.inner.list(directory, after))
    }

    fn get_versioned(&self, key: &Key, limit: u64) -> StoreFuture<'_, Option<Versioned>> {
        self.pass("read", key, self.inner.get_versioned(key, limit))
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
            self.inner.compare_and_set(key, expected, bytes),
        )
    }

    fn delete(&self, key: &Key) -> StoreFuture<'_, ()> {
        self.pass("delete", key, self.inner.delete(key))
    }
}
