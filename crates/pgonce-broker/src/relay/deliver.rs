//! One lane's batch: sent until nothing of it is in doubt.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use pgonce::Result;
use pgonce::outbox::{Act, Message, Outcome};
use tokio::time::sleep;

use super::{Counts, Limits};
use crate::metrics::{Metrics, RelayMetrics as _};
use crate::{Delivery, Sink};

/// What a delivery needs and reports to.
#[derive(Clone)]
pub(super) struct Terms {
    pub(super) limits: Arc<Limits>,
    pub(super) counts: Arc<Counts>,
    pub(super) metrics: Metrics,
    /// Straight from the log, not from what was parked.
    pub(super) from_log: bool,
}

/// How a batch ended.
#[derive(Debug)]
pub(super) enum Ended {
    /// What came of each event.
    Settled(Vec<(i64, Outcome)>),
    /// The other side is no more.
    Gone(String),
}

/// Sends what is to be sent, and waits while the sink is unavailable.
pub(super) async fn deliver<S: Sink>(
    sink: &S,
    batch: Vec<Message>,
    terms: &Terms,
) -> Result<Ended> {
    fault_point!("relay.before_send");
    let limits = &terms.limits;
    let mut outcomes: Vec<(i64, Outcome)> = Vec::with_capacity(batch.len());
    let mut left: Vec<Message> = Vec::with_capacity(batch.len());
    for message in batch {
        match message.act {
            Act::Send => left.push(message),
            Act::Hold => outcomes.push((message.seq, Outcome::Hold)),
            Act::Wait => outcomes.push((message.seq, Outcome::Wait)),
        }
    }
    let mut pause = limits.first_pause;
    let mut down = false;
    while !left.is_empty() {
        // Whether a sink is back, one event finds out as well as many.
        let tried = if down { 1 } else { left.len() };
        let deliveries = sink.send_batch(&left[..tried], limits.in_flight).await;
        let before = left.len();
        let mut stopped = HashSet::new();
        let mut again = Vec::new();
        let mut why = None;
        // A sink that answers too few has not said that it took the rest.
        let deliveries = deliveries.into_iter().take(tried);
        let deliveries = deliveries.chain(std::iter::repeat(Delivery::Untried));
        for (message, delivery) in left.into_iter().zip(deliveries) {
            let subject = |message: &Message| (message.tenant.clone(), message.subject.clone());
            let outcome = match delivery {
                Delivery::Acknowledged => {
                    if terms.from_log {
                        terms.metrics.acknowledged(&message);
                    }
                    Outcome::Sent
                }
                Delivery::Retry { reason, after } => {
                    stopped.insert(subject(&message));
                    Outcome::Retry { reason, after }
                }
                Delivery::Poison { reason } => {
                    stopped.insert(subject(&message));
                    Outcome::Dead { reason }
                }
                Delivery::Gone { reason } => return Ok(Ended::Gone(reason)),
                Delivery::Untried if stopped.contains(&subject(&message)) => Outcome::Hold,
                Delivery::Untried => {
                    again.push(message);
                    continue;
                }
                Delivery::Unavailable { reason } => {
                    why = Some(reason);
                    again.push(message);
                    continue;
                }
            };
            outcomes.push((message.seq, outcome));
        }
        left = again;
        let moved = left.len() < before;
        if moved {
            pause = limits.first_pause;
        }
        down = why.is_some();
        if !left.is_empty() && (down || !moved) {
            let reason = why.unwrap_or_else(|| "it did not say".to_owned());
            tracing::warn!(
                reason,
                waiting = left.len(),
                ?pause,
                "the sink is unavailable, trying again"
            );
            terms.metrics.sink_unavailable();
            let _waiting = terms.counts.wait();
            sleep(jittered(pause)).await;
            pause = (pause * 2).min(limits.max_delay);
        }
    }
    outcomes.sort_unstable_by_key(|(seq, _)| *seq);
    fault_point!("relay.sent");
    Ok(Ended::Settled(outcomes))
}

/// Between half and the whole: relays that failed together do not come back together.
pub(crate) fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(rand::random_range(0.5..=1.0))
}
