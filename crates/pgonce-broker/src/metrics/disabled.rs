use pgonce::outbox::{Message, Outcome};

use super::RelayMetrics;

/// Reports nothing.
#[derive(Debug, Clone)]
pub(crate) struct Metrics;

impl RelayMetrics for Metrics {
    fn of(_: &str) -> Self {
        Self
    }

    fn batch_settled(&self, _: &[(i64, Outcome)]) {}
    fn read(&self, _: &[Message]) {}
    fn acknowledged<'a>(&self, _: impl Iterator<Item = &'a Message>) {}
    fn lanes(&self, _: usize, _: usize, _: usize) {}
    fn sink_unavailable(&self) {}
    fn database_error(&self) {}
}

/// Reports nothing.
pub(crate) struct Counter;

impl Counter {
    pub(super) fn of(_: &'static str, _: &str) -> Self {
        Self
    }

    pub(super) fn by(&self, _: u64) {}
}

/// Reports nothing.
pub(crate) struct Histogram;

impl Histogram {
    pub(crate) fn of(_: &'static str, _: &str) -> Self {
        Self
    }

    pub(crate) fn record(&self, _: f64) {}
}
