//! The engine: lanes in, events out, cursors kept.

mod bell;
mod counts;
mod deliver;
mod keep;
mod lane;
mod once;
mod read;
mod run;

pub(crate) use deliver::jittered;

use std::sync::Arc;
use std::time::Duration;

use pgonce::Result;
use pgonce::driver::Driver;
use pgonce::outbox::Outbox;
use tokio_util::sync::CancellationToken;

pub use bell::Bell;
pub use counts::Counts;

use crate::Sink;
use crate::meter::{Meter, Meters as _};

/// Moves the events of one subscription to one sink. As many as you like may run at once, here or
/// elsewhere: they share the subscription's lanes.
#[derive(Debug)]
#[must_use = "nothing moves before `run`"]
pub struct Relay<D: Driver, S> {
    outbox: Outbox<D>,
    subscription: String,
    sink: Arc<S>,
    owner: String,
    limits: Arc<Limits>,
    counts: Arc<Counts>,
    meter: Meter,
    bell: Bell,
}

/// How much at once, how often, how long.
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    lease: Duration,
    in_flight: usize,
    lane_events: usize,
    lane_bytes: usize,
    max_poll: Duration,
    poll_when_told: Duration,
    keep_every: Duration,
    drain_timeout: Duration,
    first_pause: Duration,
    max_delay: Duration,
    tend_every: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(10),
            in_flight: 64,
            lane_events: 1024,
            lane_bytes: 256 * 1024,
            max_poll: Duration::from_millis(10),
            poll_when_told: Duration::from_secs(1),
            keep_every: Duration::from_millis(200),
            drain_timeout: Duration::from_secs(10),
            first_pause: Duration::from_millis(50),
            max_delay: Duration::from_secs(30),
            tend_every: Duration::from_secs(60),
        }
    }
}

impl<D: Driver, S: Sink> Relay<D, S> {
    /// From this outbox, for a subscription that was created, to this sink.
    pub fn new(outbox: Outbox<D>, subscription: impl Into<String>, sink: S) -> Self {
        let subscription = subscription.into();
        Self {
            meter: Meter::of(&subscription),
            outbox,
            subscription,
            sink: Arc::new(sink),
            owner: format!("relay-{}", uuid::Uuid::new_v4().simple()),
            limits: Arc::default(),
            counts: Arc::default(),
            bell: Bell::default(),
        }
    }

    /// A name for people to see in the database. It is made unique: two relays never share one.
    pub fn named(mut self, name: &str) -> Self {
        self.owner = format!("{name}-{}", uuid::Uuid::new_v4().simple());
        self
    }

    /// How long a lane stays with a relay that does not answer; 10 seconds unless said otherwise.
    pub fn lease(self, lease: Duration) -> Self {
        self.with(|limits| limits.lease = lease.max(Duration::from_millis(100)))
    }

    /// How many events of a lane may be unacknowledged at a time; 64 unless said otherwise.
    pub fn in_flight(self, events: usize) -> Self {
        self.with(|limits| limits.in_flight = events.max(1))
    }

    /// How much a lane holds in memory: events and bytes, 1024 and 256 KiB unless said otherwise. A
    /// relay holds at most sixteen lanes, whatever the backlog.
    pub fn batch(self, events: usize, bytes: usize) -> Self {
        self.with(|limits| {
            limits.lane_events = events.clamp(16, 10_000);
            limits.lane_bytes = bytes.clamp(16 * 1024, 64 * 1024 * 1024);
        })
    }

    /// How long an idle relay waits at most before it looks again; 10 milliseconds unless said
    /// otherwise.
    pub fn max_poll(self, pause: Duration) -> Self {
        self.with(|limits| limits.max_poll = pause.max(Duration::from_millis(1)))
    }

    /// Looks at once when this bell rings. While every commit is told so, it hardly looks otherwise:
    /// once in `look_anyway`, a second unless said otherwise.
    pub fn woken_by(mut self, bell: &Bell) -> Self {
        self.bell = bell.clone();
        self
    }

    /// How long it waits at most before it looks again while it is told of every commit.
    pub fn look_anyway(self, pause: Duration) -> Self {
        self.with(|limits| limits.poll_when_told = pause.max(Duration::from_millis(1)))
    }

    /// How often its cursor is kept while events flow; 200 milliseconds unless said otherwise. A relay
    /// that is killed leaves the events of so long to be delivered again.
    pub fn keep_every(self, pause: Duration) -> Self {
        self.with(|limits| limits.keep_every = pause)
    }

    /// How long it goes on with what it has in hand after it was told to stop; 10 seconds unless
    /// said otherwise.
    pub fn drain_timeout(self, time: Duration) -> Self {
        self.with(|limits| limits.drain_timeout = time)
    }

    /// The first and the longest pause while a sink is unavailable, or the database.
    pub fn backoff(self, first: Duration, longest: Duration) -> Self {
        self.with(|limits| {
            limits.first_pause = first.max(Duration::from_millis(1));
            limits.max_delay = longest.max(limits.first_pause);
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
    /// Troubles that pass are waited out. An error means that it cannot go on: the subscription is not
    /// there (`42704`) or was evicted (`P4031`), the schema does not fit, the rights are missing.
    pub async fn run(self, stop: CancellationToken) -> Result<()> {
        run::Engine::new(self).run(stop).await
    }
}
