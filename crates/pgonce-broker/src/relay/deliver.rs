//! One lane's batch: sent until nothing of it is in doubt.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use pgonce::Result;
use pgonce::outbox::{Act, Message, Outcome};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use super::catch_panics::CatchPanics;
use super::health::{Blame, SinkHealth, subject_of};
use super::span::Sending;
use super::{Counts, Limits};
use crate::metrics::{Metrics, RelayMetrics as _};
use crate::{Delivery, Sink};

/// An event for which the sink was unavailable this long, while no other was tried, makes room for others.
const DEFER_AFTER: Duration = Duration::from_secs(1);

/// What a delivery needs and reports to.
#[derive(Clone)]
pub(super) struct Terms {
    pub(super) subscription: Arc<str>,
    pub(super) limits: Arc<Limits>,
    pub(super) counts: Arc<Counts>,
    pub(super) metrics: Metrics,
    pub(super) health: Arc<SinkHealth>,
    /// Until when the lanes are ours, by our own clock; it moves with every renewal.
    pub(super) lease: watch::Receiver<Instant>,
    /// Straight from the log, not from what was parked.
    pub(super) from_log: bool,
}

/// How a batch ended.
#[derive(Debug)]
pub(super) enum Ended {
    /// The outcome of each event.
    Settled(Vec<(i64, Outcome)>),
    /// The other side is no more.
    Gone(String),
    /// The lease is over: another relay may be sending the same events.
    LeaseOver,
}

/// Sends what is to be sent, and waits while the sink is unavailable; never beyond the end of the lease, whatever
/// the relay itself is waiting for.
pub(super) async fn deliver<S: Sink>(
    sink: Arc<S>,
    batch: Vec<Message>,
    terms: &Terms,
) -> Result<Ended> {
    let health = terms.health.clone();
    let sink = CatchPanics { sink, health };
    let sending = Sending::begin(&terms.subscription, &batch);
    let ended = tokio::select! {
        biased;
        () = lease_over(terms.lease.clone()) => {
            tracing::warn!("the lease is over: the delivery stops");
            Ok(Ended::LeaseOver)
        }
        ended = send_all(&sink, batch, terms) => ended,
    };
    sending.end(&ended);
    ended
}

async fn lease_over(mut lease: watch::Receiver<Instant>) {
    loop {
        let until = *lease.borrow_and_update();
        tokio::select! {
            () = sleep_until(until) => return,
            changed = lease.changed() => if changed.is_err() {
                return sleep_until(until).await;
            },
        }
    }
}

async fn send_all<S: Sink>(sink: &S, batch: Vec<Message>, terms: &Terms) -> Result<Ended> {
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
    let mut down: Option<Instant> = None;
    let mut probe = 0;
    let mut stopped = HashSet::new();
    while !left.is_empty() {
        // Whether a sink is back, one event finds out as well as many; each time one of another subject, since it may
        // be the event that the sink cannot take.
        let tried = match down {
            Some(_) => {
                put_first(&mut left, probe);
                probe += 1;
                1
            }
            None => left.len(),
        };
        let deliveries = sink.send_batch(&left[..tried], limits.in_flight).await;
        let before = left.len();
        let mut again = Vec::new();
        let mut why = None;
        // A sink that answers too few has not said that it took the rest.
        let deliveries = deliveries.into_iter().take(tried);
        let deliveries: Vec<_> = deliveries
            .chain(std::iter::repeat(Delivery::Untried))
            .take(before)
            .collect();
        let passed = left.iter().zip(&deliveries);
        let passed = passed.filter(|(_, delivery)| **delivery == Delivery::Acknowledged);
        let passed = passed.map(|(message, _)| message);
        if terms.from_log {
            terms.metrics.acknowledged(passed.clone());
        }
        terms.health.acknowledged(passed);
        // While many others pass it is not the sink: what fails of the log makes room for them at once.
        let count = |is: fn(&Delivery) -> bool| deliveries.iter().filter(|d| is(d)).count();
        let failed = count(|delivery| matches!(delivery, Delivery::Unavailable { .. }));
        let isolated =
            terms.from_log && failed * 3 <= count(|delivery| *delivery == Delivery::Acknowledged);
        for (message, delivery) in left.into_iter().zip(deliveries) {
            let subject = subject_of(&message);
            let outcome = match delivery {
                Delivery::Acknowledged => Outcome::Sent,
                _ if stopped.contains(&subject) => Outcome::Hold,
                Delivery::Retry { reason, after } => {
                    stopped.insert(subject);
                    Outcome::Retry { reason, after }
                }
                Delivery::Poison { reason } => {
                    stopped.insert(subject);
                    Outcome::Dead { reason }
                }
                Delivery::Gone { reason } => return Ok(Ended::Gone(reason)),
                Delivery::Untried => {
                    again.push(message);
                    continue;
                }
                Delivery::Unavailable { reason } => {
                    match terms.health.unavailable(subject.clone()) {
                        Blame::Event => {
                            stopped.insert(subject);
                            let after = Duration::ZERO;
                            Outcome::Retry { reason, after }
                        }
                        Blame::Unknown if down.is_some_and(|at| at.elapsed() >= DEFER_AFTER) => {
                            stopped.insert(subject);
                            Outcome::Defer { reason }
                        }
                        _ if isolated => {
                            stopped.insert(subject);
                            Outcome::Defer { reason }
                        }
                        _ => {
                            why = Some(reason);
                            again.push(message);
                            continue;
                        }
                    }
                }
            };
            outcomes.push((message.seq, outcome));
        }
        // What is behind an event that failed waits for it, also where it was not tried this time.
        left = Vec::with_capacity(again.len());
        for message in again {
            match stopped.contains(&subject_of(&message)) {
                true => outcomes.push((message.seq, Outcome::Hold)),
                false => left.push(message),
            }
        }
        let moved = left.len() < before;
        if moved {
            pause = limits.first_pause;
        }
        down = why.is_some().then(|| down.unwrap_or_else(Instant::now));
        if !left.is_empty() && (down.is_some() || !moved) {
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

/// Puts the first event of the `nth` subject in front, counted in circles; each subject's order stays.
fn put_first(left: &mut [Message], nth: usize) {
    let mut subjects = HashSet::new();
    let firsts: Vec<usize> = (0..left.len())
        .filter(|&at| subjects.insert(subject_of(&left[at])))
        .collect();
    let at = firsts[nth % firsts.len()];
    left[..=at].rotate_right(1);
}

/// Between half and the whole: relays that failed together do not come back together.
pub(crate) fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(rand::random_range(0.5..=1.0))
}
