//! Where events go.

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream;
use pgonce::outbox::Message;
use tokio::time::{Instant, sleep_until};

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

impl Delivery {
    /// What takes the event is missing, or closed to us: an operator puts that right while the event is tried again with
    /// the pauses of its subscription.
    #[cfg(any(
        feature = "nats",
        feature = "rabbitmq",
        feature = "redis",
        feature = "kafka"
    ))]
    pub(crate) fn retry(reason: String) -> Self {
        let after = Duration::ZERO;
        Self::Retry { reason, after }
    }
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

/// Calls that take this long, and four times as long as the slowest other, while few are left: the batch does not wait
/// for them.
const STALL: Duration = Duration::from_secs(1);

/// What has come of a batch so far.
struct Progress {
    deliveries: Vec<Delivery>,
    in_flight: HashSet<usize>,
    acknowledged: usize,
    slowest: Duration,
    last: Instant,
}

impl Progress {
    fn began(&mut self, index: usize) -> Instant {
        self.in_flight.insert(index);
        Instant::now()
    }

    fn ended(&mut self, index: usize, began: Instant, delivery: Delivery) {
        self.in_flight.remove(&index);
        self.slowest = self.slowest.max(began.elapsed());
        self.last = Instant::now();
        self.acknowledged += usize::from(delivery == Delivery::Acknowledged);
        self.deliveries[index] = delivery;
    }

    /// When those that are left are too slow; nothing while they are many, and it may be the sink.
    fn stalls_at(&self) -> Option<Instant> {
        let few = self.in_flight.len() * 3 <= self.acknowledged;
        few.then(|| self.last + STALL.max(self.slowest * 4))
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
    let progress = &Mutex::new(Progress {
        deliveries: vec![Delivery::Untried; batch.len()],
        in_flight: HashSet::new(),
        acknowledged: 0,
        slowest: Duration::ZERO,
        last: Instant::now(),
    });
    let now = || progress.lock().unwrap_or_else(PoisonError::into_inner);
    let mut sending = stream::iter(subjects.into_iter().map(|subject| async move {
        for index in subject {
            if down.load(Ordering::Relaxed) {
                break;
            }
            let began = now().began(index);
            let delivery = sink.send(&batch[index]).await;
            let go_on = delivery == Delivery::Acknowledged;
            if matches!(
                delivery,
                Delivery::Unavailable { .. } | Delivery::Gone { .. }
            ) {
                down.store(true, Ordering::Relaxed);
            }
            now().ended(index, began, delivery);
            if !go_on {
                break;
            }
        }
    }))
    .buffer_unordered(in_flight.max(1));
    loop {
        let stalls_at = now().stalls_at();
        tokio::select! {
            done = sending.next() => if done.is_none() {
                break;
            },
            () = sleep_until(stalls_at.unwrap_or_else(|| Instant::now() + STALL)) => {
                if now().stalls_at().is_some_and(|at| Instant::now() >= at) {
                    break;
                }
            }
        }
    }
    drop(sending);
    let mut progress = now();
    for index in std::mem::take(&mut progress.in_flight) {
        let reason = "it took far longer than the others of its batch".to_owned();
        progress.deliveries[index] = Delivery::Unavailable { reason };
    }
    std::mem::take(&mut progress.deliveries)
}
