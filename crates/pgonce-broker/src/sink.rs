//! Where events go.

use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream;
use pgonce::outbox::Message;

/// What a sink says about one event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delivery {
    /// The other side has it, durably as far as it promises that.
    Acknowledged,
    /// This event failed with a transient error: its subject waits and is tried again, the others flow.
    Retry {
        /// Why, for people.
        reason: String,
        /// Not before this time is over.
        after: Duration,
    },
    /// This event will never be taken: its subject is parked until an operator decides.
    Poison {
        /// Why, for people.
        reason: String,
    },
    /// The other side is unavailable. It is no fault of the event: the lane waits and tries again.
    Unavailable {
        /// Why, for people.
        reason: String,
    },
    /// The other side is no more, and says so: the consumer is evicted with this reason, and its relays
    /// stop. `pgonce.replay` lets it read on once there is somebody to read for.
    Gone {
        /// Why, for people.
        reason: String,
    },
    /// Not sent, because an earlier one of its subject failed or the other side is unavailable.
    Untried,
}

/// Where events go. One function is enough: [`Sink::send`].
///
/// ```
/// use pgonce::outbox::Message;
/// use pgonce_broker::{Delivery, Sink};
///
/// struct Shout;
///
/// impl Sink for Shout {
///     async fn send(&self, message: &Message) -> Delivery {
///         match &message.payload {
///             Some(payload) => { eprintln!("{}: {payload}", message.kind); Delivery::Acknowledged }
///             None => Delivery::Poison { reason: "nothing was said".into() },
///         }
///     }
/// }
/// ```
pub trait Sink: Send + Sync + 'static {
    /// Sends one event and waits for its acknowledgement.
    fn send(&self, message: &Message) -> impl Future<Output = Delivery> + Send;

    /// Sends a batch, with at most `in_flight` unacknowledged at a time; answers one [`Delivery`]
    /// for each event, in their order.
    ///
    /// A sink that can do better than one after the other within a subject must keep this promise:
    /// when an event is not acknowledged, no later one of its subject in the batch is.
    fn send_batch(
        &self,
        batch: &[Message],
        in_flight: usize,
    ) -> impl Future<Output = Vec<Delivery>> + Send {
        one_by_one_in_each_subject(self, batch, in_flight)
    }
}

/// Subjects side by side, each subject's events one after the other.
pub(crate) async fn one_by_one_in_each_subject<S: Sink + ?Sized>(
    sink: &S,
    batch: &[Message],
    in_flight: usize,
) -> Vec<Delivery> {
    let mut subjects: Vec<Vec<usize>> = Vec::new();
    let mut known = HashMap::new();
    for (index, message) in batch.iter().enumerate() {
        let name = (message.tenant.as_str(), message.subject.as_str());
        let at = *known.entry(name).or_insert(subjects.len());
        if at == subjects.len() {
            subjects.push(Vec::new());
        }
        subjects[at].push(index);
    }
    let down = &AtomicBool::new(false);
    let mut deliveries = vec![Delivery::Untried; batch.len()];
    let mut sending = stream::iter(subjects.into_iter().map(|subject| async move {
        let mut deliveries = Vec::with_capacity(subject.len());
        for index in subject {
            if down.load(Ordering::Relaxed) {
                break;
            }
            let delivery = sink.send(&batch[index]).await;
            let go_on = delivery == Delivery::Acknowledged;
            if matches!(
                delivery,
                Delivery::Unavailable { .. } | Delivery::Gone { .. }
            ) {
                down.store(true, Ordering::Relaxed);
            }
            deliveries.push((index, delivery));
            if !go_on {
                break;
            }
        }
        deliveries
    }))
    .buffer_unordered(in_flight.max(1));
    while let Some(done) = sending.next().await {
        for (index, delivery) in done {
            deliveries[index] = delivery;
        }
    }
    deliveries
}
