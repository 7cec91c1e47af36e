//! Tells the facade `metrics` what relays and consumers do; nothing at all without the feature.
//! docs/src/reference/metrics.md lists what is told.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use pgonce::outbox::{Message, Outcome};

#[cfg(not(feature = "metrics"))]
mod nothing;
#[cfg(feature = "metrics")]
mod told;

#[cfg(not(feature = "metrics"))]
pub(crate) use nothing::{Grown, Measured, Meter};
#[cfg(feature = "metrics")]
pub(crate) use told::{Grown, Measured, Meter};

/// What a meter takes note of, with the feature or without.
pub(crate) trait Meters {
    /// The meter of a consumer's relay.
    fn of(consumer: &str) -> Self;
    /// What came of a batch.
    fn came(&self, outcomes: &[(i64, Outcome)]);
    /// A page was read; its newest event says how late.
    fn read(&self, page: &[Message]);
    /// The sink has an event that came straight from the log.
    fn acknowledged(&self, message: &Message);
    /// How many lanes are held now, and how many of them are new or were lost.
    fn lanes(&self, held: usize, taken: usize, lost: usize);
    /// The sink was not there.
    fn sink_unavailable(&self);
    /// The database was in trouble.
    fn database_trouble(&self);
}

/// A figure of a consumer that only grows: kept for whoever asks, and told.
pub(crate) struct Count {
    kept: AtomicU64,
    told: Grown,
}

impl Count {
    pub(crate) fn of(metric: &'static str, consumer: &str) -> Self {
        Self {
            kept: AtomicU64::new(0),
            told: Grown::of(metric, consumer),
        }
    }

    pub(crate) fn add(&self, n: usize) {
        self.kept.fetch_add(n as u64, Ordering::Relaxed);
        self.told.by(n as u64);
    }

    pub(crate) fn get(&self) -> u64 {
        self.kept.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}
