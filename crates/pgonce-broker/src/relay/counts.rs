//! What a relay has done, for monitoring.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pgonce::Error;
use pgonce::outbox::Outcome;

/// What a relay has done so far.
#[derive(Debug, Default)]
pub struct Counts {
    sent: AtomicU64,
    retried: AtomicU64,
    dead: AtomicU64,
    held: AtomicU64,
    lanes: AtomicU64,
    waiting: AtomicU64,
    database_error: Mutex<Option<String>>,
}

impl Counts {
    /// Events that the sink has acknowledged.
    pub fn sent(&self) -> u64 {
        self.sent.load(Relaxed)
    }

    /// Events that failed with a transient error.
    pub fn retried(&self) -> u64 {
        self.retried.load(Relaxed)
    }

    /// Events that the sink will never take.
    pub fn dead(&self) -> u64 {
        self.dead.load(Relaxed)
    }

    /// Events that had to wait, for their time or behind one of their subject.
    pub fn held(&self) -> u64 {
        self.held.load(Relaxed)
    }

    /// Lanes that it holds now, of 16.
    pub fn lanes(&self) -> u64 {
        self.lanes.load(Relaxed)
    }

    /// Lanes whose sink is unavailable: they wait for it.
    pub fn waiting(&self) -> u64 {
        self.waiting.load(Relaxed)
    }

    /// The database error that it is retrying after now; `None` while the database answers.
    pub fn database_error(&self) -> Option<String> {
        self.retrying().clone()
    }

    fn retrying(&self) -> MutexGuard<'_, Option<String>> {
        let error = self.database_error.lock();
        error.unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn database_failed(&self, error: &Error) {
        *self.retrying() = Some(error.to_string());
    }

    pub(super) fn database_answered(&self) {
        *self.retrying() = None;
    }

    pub(super) fn add(&self, outcome: &Outcome) {
        let counter = match outcome {
            Outcome::Sent => &self.sent,
            Outcome::Retry { .. } | Outcome::Defer { .. } => &self.retried,
            Outcome::Dead { .. } => &self.dead,
            Outcome::Hold | Outcome::Wait => &self.held,
        };
        counter.fetch_add(1, Relaxed);
    }

    pub(super) fn holds(&self, lanes: usize) {
        self.lanes.store(lanes as u64, Relaxed);
    }

    /// A lane waits for its sink, until what is given back is dropped.
    pub(super) fn wait(self: &Arc<Self>) -> Waiting {
        self.waiting.fetch_add(1, Relaxed);
        Waiting(self.clone())
    }
}

/// A lane that waits; also one whose delivery is aborted meanwhile.
pub(super) struct Waiting(Arc<Counts>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Relaxed);
    }
}
