//! What relays and consumers report to the facade `metrics`; nothing at all without the feature.
//! docs/src/reference/metrics.md lists it.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use pgonce::outbox::{Message, Outcome};

#[cfg(not(feature = "metrics"))]
mod disabled;
#[cfg(feature = "metrics")]
mod enabled;

#[cfg(not(feature = "metrics"))]
pub(crate) use disabled::{Counter, Histogram, Metrics};
#[cfg(feature = "metrics")]
pub(crate) use enabled::{Counter, Histogram, Metrics};

/// What a relay reports, with the feature or without.
pub(crate) trait RelayMetrics {
    /// The metrics of a subscription's relay.
    fn of(subscription: &str) -> Self;
    /// The outcomes of a batch.
    fn batch_settled(&self, outcomes: &[(i64, Outcome)]);
    /// A page was read; the age of its newest event is the pickup time.
    fn read(&self, page: &[Message]);
    /// The sink has acknowledged events that came straight from the log; the age of the oldest is the lag. One sample each would
    /// cost a relay a twentieth of its rate.
    fn acknowledged<'a>(&self, batch: impl Iterator<Item = &'a Message>);
    /// How many lanes are held now, and how many of them are new or were lost.
    fn lanes(&self, held: usize, taken: usize, lost: usize);
    /// The sink was unavailable.
    fn sink_unavailable(&self);
    /// A call of the database failed and is retried.
    fn database_error(&self);
}

/// A figure of a consumer that only grows: readable in the process, and reported.
pub(crate) struct Count {
    value: AtomicU64,
    reported: Counter,
}

impl Count {
    pub(crate) fn of(metric: &'static str, consumer: &str) -> Self {
        Self {
            value: AtomicU64::new(0),
            reported: Counter::of(metric, consumer),
        }
    }

    pub(crate) fn add(&self, n: usize) {
        self.value.fetch_add(n as u64, Ordering::Relaxed);
        self.reported.by(n as u64);
    }

    pub(crate) fn get(&self) -> u64 {
        self.value.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}
