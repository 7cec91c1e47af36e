use std::time::SystemTime;

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use pgonce::outbox::{Message, Outcome};

use super::Meters;

/// Tells whatever recorder the program has installed by the time that the relay is made.
#[derive(Clone)]
pub(crate) struct Meter {
    /// Sent, retried, dead, held.
    events: [Counter; 4],
    lanes: Gauge,
    taken: Counter,
    lost: Counter,
    pickup: Histogram,
    lag: Histogram,
    sink_unavailable: Counter,
    database_troubles: Counter,
}

impl Meters for Meter {
    fn of(consumer: &str) -> Self {
        let consumer = || consumer.to_owned();
        let events = |outcome: &'static str| counter!("pgonce_relay_events_total", "consumer" => consumer(), "outcome" => outcome);
        Self {
            events: ["sent", "retry", "dead", "held"].map(events),
            lanes: gauge!("pgonce_relay_lanes", "consumer" => consumer()),
            taken: counter!("pgonce_relay_lanes_taken_total", "consumer" => consumer()),
            lost: counter!("pgonce_relay_lanes_lost_total", "consumer" => consumer()),
            pickup: histogram!("pgonce_relay_pickup_seconds", "consumer" => consumer()),
            lag: histogram!("pgonce_relay_lag_seconds", "consumer" => consumer()),
            sink_unavailable: counter!("pgonce_relay_sink_unavailable_total", "consumer" => consumer()),
            database_troubles: counter!("pgonce_relay_database_troubles_total", "consumer" => consumer()),
        }
    }

    fn came(&self, outcomes: &[(i64, Outcome)]) {
        let mut counts = [0; 4];
        for (_, outcome) in outcomes {
            let at = match outcome {
                Outcome::Sent => 0,
                Outcome::Retry { .. } => 1,
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

    fn acknowledged(&self, message: &Message) {
        self.lag.record(age(message));
    }

    fn lanes(&self, held: usize, taken: usize, lost: usize) {
        self.lanes.set(held as f64);
        self.taken.increment(taken as u64);
        self.lost.increment(lost as u64);
    }

    fn sink_unavailable(&self) {
        self.sink_unavailable.increment(1);
    }

    fn database_trouble(&self) {
        self.database_troubles.increment(1);
    }
}

/// Seconds since it was published, by the database's clock then and ours now.
fn age(message: &Message) -> f64 {
    let published = humantime::parse_rfc3339(&message.time).unwrap_or(SystemTime::UNIX_EPOCH);
    let age = SystemTime::now().duration_since(published);
    age.unwrap_or_default().as_secs_f64()
}

impl std::fmt::Debug for Meter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Meter")
    }
}
