//! Tells the facade `metrics` what relays do; nothing at all without the feature.
//! docs/src/metrics.md lists what is told.

use pgonce::outbox::{Message, Outcome};

#[cfg(not(feature = "metrics"))]
mod nothing;
#[cfg(feature = "metrics")]
mod told;

#[cfg(not(feature = "metrics"))]
pub(crate) use nothing::Meter;
#[cfg(feature = "metrics")]
pub(crate) use told::Meter;

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
