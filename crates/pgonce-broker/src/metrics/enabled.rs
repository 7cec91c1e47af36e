use std::time::SystemTime;

use metrics::{Gauge, counter, gauge, histogram};
use pgonce::outbox::{Message, Outcome};

use super::RelayMetrics;

/// Reports to the recorder that the program has installed by the time that the relay is made.
#[derive(Clone)]
pub(crate) struct Metrics {
    /// Sent, retried, dead, held.
    events: [metrics::Counter; 4],
    lanes: Gauge,
    taken: metrics::Counter,
    lost: metrics::Counter,
    pickup: metrics::Histogram,
    lag: metrics::Histogram,
    sink_unavailable: metrics::Counter,
    database_errors: metrics::Counter,
}

impl RelayMetrics for Metrics {
    fn of(subscription: &str) -> Self {
        let subscription = || subscription.to_owned();
        let events = |outcome: &'static str| counter!("pgonce_relay_events_total", "subscription" => subscription(), "outcome" => outcome);
        Self {
            events: ["sent", "retry", "dead", "held"].map(events),
            lanes: gauge!("pgonce_relay_lanes", "subscription" => subscription()),
            taken: counter!("pgonce_relay_lanes_taken_total", "subscription" => subscription()),
            lost: counter!("pgonce_relay_lanes_lost_total", "subscription" => subscription()),
            pickup: histogram!("pgonce_relay_pickup_seconds", "subscription" => subscription()),
            lag: histogram!("pgonce_relay_lag_seconds", "subscription" => subscription()),
            sink_unavailable: counter!("pgonce_relay_sink_unavailable_total", "subscription" => subscription()),
            database_errors: counter!("pgonce_relay_database_errors_total", "subscription" => subscription()),
        }
    }

    fn batch_settled(&self, outcomes: &[(i64, Outcome)]) {
        let mut counts = [0; 4];
        for (_, outcome) in outcomes {
            let at = match outcome {
                Outcome::Sent => 0,
                Outcome::Retry { .. } | Outcome::Defer { .. } => 1,
                Outcome::Dead { .. } => 2,
                Outcome::Hold | Outcome::Wait => 3,
            };
            counts[at] += 1;
        }
        for (counter, count) in self.events.iter().zip(counts) {
            counter.increment(count);
        }
    }

    fn read(&self, page: &[Message]) {
        if let Some(newest) = page.iter().max_by_key(|message| message.seq) {
            self.pickup.record(age(newest));
        }
    }

    fn acknowledged<'a>(&self, batch: impl Iterator<Item = &'a Message>) {
        if let Some(oldest) = batch.min_by_key(|message| message.seq) {
            self.lag.record(age(oldest));
        }
    }

    fn lanes(&self, held: usize, taken: usize, lost: usize) {
        self.lanes.set(held as f64);
        self.taken.increment(taken as u64);
        self.lost.increment(lost as u64);
    }

    fn sink_unavailable(&self) {
        self.sink_unavailable.increment(1);
    }

    fn database_error(&self) {
        self.database_errors.increment(1);
    }
}

/// Seconds since it was published, by the database's clock then and ours now.
fn age(message: &Message) -> f64 {
    let published = humantime::parse_rfc3339(&message.time).unwrap_or(SystemTime::UNIX_EPOCH);
    let age = SystemTime::now().duration_since(published);
    age.unwrap_or_default().as_secs_f64()
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Metrics")
    }
}

/// A counter of a consumer.
pub(crate) struct Counter(metrics::Counter);

impl Counter {
    pub(super) fn of(metric: &'static str, consumer: &str) -> Self {
        Self(counter!(metric, "consumer" => consumer.to_owned()))
    }

    pub(super) fn by(&self, n: u64) {
        self.0.increment(n);
    }
}

/// A histogram of a consumer.
pub(crate) struct Histogram(metrics::Histogram);

impl Histogram {
    pub(crate) fn of(metric: &'static str, consumer: &str) -> Self {
        Self(histogram!(metric, "consumer" => consumer.to_owned()))
    }

    pub(crate) fn record(&self, value: f64) {
        self.0.record(value);
    }
}
