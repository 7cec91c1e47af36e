//! The engine: lanes in, events out, cursors kept.

mod catch_panics;
mod counts;
mod deliver;
mod due;
mod health;
mod jobs;
mod keep;
mod lane;
mod once;
mod poller;
mod read;
mod run;
mod span;
mod wake;

pub(crate) use deliver::jittered;

use std::sync::Arc;
use std::time::Duration;

use pgonce::Result;
use pgonce::driver::Driver;
use pgonce::outbox::Outbox;
use tokio_util::sync::CancellationToken;

pub use counts::Counts;
pub use wake::WakeSignal;

use crate::Sink;
use crate::bounded::MAX_CALL;
use crate::metrics::{Metrics, RelayMetrics as _};

/// Moves the events of one subscription to one sink. As many as you like may run at once, here or
/// elsewhere: they share the subscription's lanes. Idle relays whose outboxes are of one [`Once`](pgonce::Once) share one
/// poller: their number costs next to nothing.
#[derive(Debug)]
#[must_use = "nothing moves before `run`"]
pub struct Relay<D: Driver, S> {
    outbox: Outbox<D>,
    subscription: String,
    sink: Arc<S>,
    owner: String,
    limits: Arc<Limits>,
    counts: Arc<Counts>,
    metrics: Metrics,
    signal: WakeSignal,
}

/// How much at once, how often, how long.
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    lease: Duration,
    in_flight: usize,
    lane_events: usize,
    lane_bytes: usize,
    max_poll: Duration,
    poll_when_live: Duration,
    keep_every: Duration,
    drain_timeout: Duration,
    first_pause: Duration,
    max_delay: Duration,
}

/// Maximum time of a call of the database by a relay with this lease: as long as it can matter.
fn call_limit(lease: Duration) -> Duration {
    (lease / 2).min(MAX_CALL)
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(10),
            in_flight: 64,
            lane_events: 1024,
            lane_bytes: 256 * 1024,
            max_poll: Duration::from_millis(10),
            poll_when_live: Duration::from_secs(1),
            keep_every: Duration::from_millis(200),
            drain_timeout: Duration::from_secs(10),
            first_pause: Duration::from_millis(50),
            max_delay: Duration::from_secs(30),
        }
    }
}

impl Limits {
    /// Maximum pause between two looks at the log, for a relay that this signal wakes.
    fn poll_interval(&self, signal: &WakeSignal) -> Duration {
        match signal.is_live() {
            true => self.poll_when_live,
            false => self.max_poll,
        }
    }
}

impl<D: Driver, S: Sink> Relay<D, S> {
    /// From this outbox, for a subscription that was created, to this sink.
    pub fn new(outbox: Outbox<D>, subscription: impl Into<String>, sink: S) -> Self {
        let subscription = subscription.into();
        Self {
            metrics: Metrics::of(&subscription),
            outbox,
            subscription,
            sink: Arc::new(sink),
            owner: format!("relay-{}", uuid::Uuid::new_v4().simple()),
            limits: Arc::default(),
            counts: Arc::default(),
            signal: WakeSignal::default(),
        }
    }

    /// A name for people to see in the database. It is made unique: two relays never share one.
    pub fn named(mut self, name: &str) -> Self {
        self.owner = format!("{name}-{}", uuid::Uuid::new_v4().simple());
        self
    }

    /// How long a lane stays with a relay that does not renew its lease. Default: 10 seconds.
    pub fn lease(self, lease: Duration) -> Self {
        self.with(|limits| limits.lease = lease.max(Duration::from_millis(100)))
    }

    /// Maximum number of unacknowledged events of a lane. Default: 64.
    pub fn in_flight(self, events: usize) -> Self {
        self.with(|limits| limits.in_flight = events.max(1))
    }

    /// Maximum events and bytes that a lane holds in memory. Default: 1024 events, 256 KiB. A relay holds
    /// at most sixteen lanes, whatever the backlog. On Citus it holds four times [`in_flight`](Self::in_flight) events.
    pub fn batch(self, events: usize, bytes: usize) -> Self {
        self.with(|limits| {
            limits.lane_events = events.clamp(16, 10_000);
            limits.lane_bytes = bytes.clamp(16 * 1024, 64 * 1024 * 1024);
        })
    }

    /// Maximum pause between two reads of an idle relay. Default: 10 milliseconds; on Citus, where each reads every shard, 100.
    pub fn max_poll(self, pause: Duration) -> Self {
        self.with(|limits| limits.max_poll = pause.max(Duration::from_millis(1)))
    }

    /// Reads at once when this signal is notified. While the signal is live, an idle relay polls only once in
    /// [`max_poll_when_live`](Self::max_poll_when_live).
    pub fn wake_on(mut self, signal: &WakeSignal) -> Self {
        self.signal = signal.clone();
        self
    }

    /// Maximum pause between two reads of an idle relay while its wake signal is live. Default: one second.
    pub fn max_poll_when_live(self, pause: Duration) -> Self {
        self.with(|limits| limits.poll_when_live = pause.max(Duration::from_millis(1)))
    }

    /// How often the cursor is written down while events flow. Default: 200 milliseconds. The events that a
    /// killed relay delivered since then are delivered again.
    pub fn keep_every(self, pause: Duration) -> Self {
        self.with(|limits| limits.keep_every = pause)
    }

    /// Maximum time to finish what is in hand after `stop` was cancelled. Default: 10 seconds.
    pub fn drain_timeout(self, time: Duration) -> Self {
        self.with(|limits| limits.drain_timeout = time)
    }

    /// First and maximum pause while the sink or the database is unavailable. Default: 50 milliseconds, 30 seconds.
    pub fn backoff(self, first: Duration, max: Duration) -> Self {
        self.with(|limits| {
            limits.first_pause = first.max(Duration::from_millis(1));
            limits.max_delay = max.max(limits.first_pause);
        })
    }

    fn with(mut self, change: impl FnOnce(&mut Limits)) -> Self {
        change(Arc::make_mut(&mut self.limits));
        self
    }

    /// What it has done so far; stays readable while it runs.
    pub fn counts(&self) -> Arc<Counts> {
        self.counts.clone()
    }

    /// Runs until `stop` is cancelled, then finishes what it has in hand and gives its lanes back.
    ///
    /// Transient errors are retried for as long as it takes. An error means that it cannot go on: the subscription does not
    /// exist (`42704`) or was evicted (`P4031`), the schema does not fit, the rights are missing.
    pub async fn run(self, stop: CancellationToken) -> Result<()> {
        match self.outbox.is_distributed() {
            true => jobs::run(self, stop).await,
            false => run::Engine::new(self).run(stop).await,
        }
    }
}
