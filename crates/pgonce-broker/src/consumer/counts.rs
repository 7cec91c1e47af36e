//! What a consumer has done so far. docs/src/reference/metrics.md lists what of it is reported as metrics.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pgonce::inbox::Message;

use crate::metrics::{Count, Histogram};

macro_rules! counts {
    ($($(#[doc = $doc:literal])+ $name:ident),+ $(,)?) => {
        /// What a consumer has done so far.
        pub struct Counts {
            $(pub(super) $name: Count,)+
            lag_ms: AtomicU64,
            lag_seconds: Histogram,
            batch_size: Histogram,
        }

        impl Counts {
            pub(super) fn of(consumer: &str) -> Self {
                Self {
                    $($name: Count::of(concat!("pgonce_consumer_", stringify!($name), "_total"), consumer),)+
                    lag_ms: AtomicU64::new(0),
                    lag_seconds: Histogram::of("pgonce_consumer_lag_seconds", consumer),
                    batch_size: Histogram::of("pgonce_consumer_batch_size", consumer),
                }
            }

            $($(#[doc = $doc])+ pub fn $name(&self) -> u64 { self.$name.get() })+
        }

        impl fmt::Debug for Counts {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct("Counts")
                    $(.field(stringify!($name), &self.$name))+
                    .field("lag", &self.lag())
                    .finish()
            }
        }

        /// Every counter that a consumer reports, for the page of the docs.
        #[cfg(test)]
        const COUNTERS: &[&str] = &[$(concat!("pgonce_consumer_", stringify!($name), "_total")),+];
    };
}

counts! {
    /// Deliveries that were pulled.
    received,
    /// Messages that were applied, straight from the source or from the stored inbox.
    applied,
    /// Deliveries of messages that had been applied or stored before.
    duplicates,
    /// Messages whose id came before with another payload.
    conflicts,
    /// Messages that failed with a transient error.
    retried,
    /// Messages that need manual action.
    poisoned,
    /// Messages that were stored, to be applied from there, or behind another of their key.
    stored,
    /// Deliveries that were acknowledged.
    acknowledged,
    /// Deliveries that were given back to the source.
    returned,
    /// Batches that were split because something in them failed.
    splits,
    /// Acknowledgements that did not reach the source: such messages come again.
    lost_acknowledgements,
    /// Times that the source was not there, and was waited for.
    source_errors,
    /// Database errors that were retried.
    database_errors,
}

impl Counts {
    /// How old the newest message was when it was applied, where its source says when it was sent.
    pub fn lag(&self) -> Duration {
        Duration::from_millis(self.lag_ms.load(Ordering::Relaxed))
    }

    /// A transaction has committed; the newest of its messages says how late.
    pub(super) fn committed(&self, messages: usize, newest: Option<&Message>) {
        self.batch_size.record(messages as f64);
        if let Some(newest) = newest {
            self.note_lag(newest);
        }
    }

    fn note_lag(&self, message: &Message) {
        if let Some(age) = message.sent_at.and_then(|at| at.elapsed().ok()) {
            let ms = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
            self.lag_ms.store(ms, Ordering::Relaxed);
            self.lag_seconds.record(age.as_secs_f64());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::COUNTERS;

    #[test]
    fn the_page_of_the_docs_lists_every_metric_of_a_consumer() {
        let page = include_str!("../../../../docs/src/reference/metrics.md");
        let histograms = ["pgonce_consumer_lag_seconds", "pgonce_consumer_batch_size"];
        for name in COUNTERS.iter().chain(&histograms) {
            assert!(
                page.contains(&format!("| `{name}`")),
                "docs/src/reference/metrics.md lacks {name}"
            );
        }
    }
}
