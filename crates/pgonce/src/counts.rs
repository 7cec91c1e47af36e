//! Counts of duplicates. A replay writes nothing, so they are counted here and written down in
//! batches, off the path of any command.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long counts may wait before they are written down.
const EVERY: Duration = Duration::from_secs(2);

/// How a duplicate was answered.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Suppression {
    Replay,
    Refused,
    Busy,
    Conflict,
}

/// Replays, refusals, busy answers and conflicts.
pub(crate) type Counts = [u64; 4];

#[derive(Debug, Clone)]
pub(crate) struct Suppressed {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug)]
struct Inner {
    counts: HashMap<(String, String), Counts>,
    written: Instant,
}

impl Suppressed {
    pub(crate) fn new() -> Self {
        Self {
            inner: Arc::new(Mutex::new(Inner {
                counts: HashMap::new(),
                written: Instant::now(),
            })),
        }
    }

    /// Counts a duplicate. Returns whether it is time to write the counts down.
    pub(crate) fn count(&self, tenant: &str, scope: &str, suppression: Suppression) -> bool {
        let Ok(mut inner) = self.inner.lock() else {
            return false;
        };
        let counts = inner
            .counts
            .entry((tenant.to_owned(), scope.to_owned()))
            .or_default();
        counts[suppression as usize] += 1;
        if inner.written.elapsed() < EVERY {
            return false;
        }
        inner.written = Instant::now();
        true
    }

    /// Takes what was counted.
    pub(crate) fn take(&self) -> Vec<((String, String), Counts)> {
        self.inner
            .lock()
            .map(|mut inner| inner.counts.drain().collect())
            .unwrap_or_default()
    }

    /// Puts back what could not be written down.
    pub(crate) fn put_back(&self, names: (String, String), counts: Counts) {
        if let Ok(mut inner) = self.inner.lock() {
            let kept = inner.counts.entry(names).or_default();
            for (kept, count) in kept.iter_mut().zip(counts) {
                *kept += count;
            }
        }
    }
}
