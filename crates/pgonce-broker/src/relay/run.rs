//! The loop of a relay.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use pgonce::driver::Driver;
use pgonce::outbox::{Cursor, LaneClaim, LaneLease, Message, Outcome, Settlement};
use pgonce::retry::Class;
use pgonce::{Error, Result};
use tokio::sync::watch;
use tokio::task::{AbortHandle, Id, JoinError, JoinSet};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

use super::deliver::{Ended, Terms, deliver, jittered};
use super::health::SinkHealth;
use super::lane::{Holding, Unsettled};
use super::poller::{Membership, Poller};
use super::read::Reads;
use super::wake::WakeReceiver;
use super::{Limits, Relay, call_limit};
use crate::Sink;
use crate::bounded::bounded;
use crate::fatal::{is_fatal, lost_its_statements};
use crate::metrics::RelayMetrics as _;

/// How often a relay looks for itself while its poller says that there is nothing.
pub(super) const REST: Duration = Duration::from_secs(30);
/// So many parked subjects of a lane that failed are remembered.
const MAX_SUSPECTS: usize = 1000;
/// The shortest pause between two looks at the log.
pub(super) const SHORTEST_POLL: Duration = Duration::from_millis(1);

/// What a delivery answers: where its lane goes on, and how it ended.
type Delivered = (Option<Cursor>, Result<Ended>);

pub(super) struct Engine<D: Driver, S> {
    pub(super) relay: Relay<D, S>,
    pub(super) lanes: BTreeMap<u8, Holding>,
    tasks: JoinSet<Delivered>,
    pub(super) reads: Reads,
    wake: WakeReceiver,
    pub(super) poller: Membership<D>,
    /// Until when the database surely thinks that the lanes are ours, by our own clock. Deliveries watch it.
    lease_ends: watch::Sender<Instant>,
    health: Arc<SinkHealth>,
    next_claim: Instant,
    next_keep: Instant,
    pub(super) next_due: Instant,
    pub(super) next_look: Instant,
    pub(super) poll: Duration,
    /// Until then a signal is not listened to: what would be read has just failed.
    ignore_wakeups_until: Instant,
    pause: Duration,
    /// The pause after a delivery or a read of which nothing is known: its task panicked.
    read_backoff: Duration,
    /// Why there is nobody to deliver to any more.
    gone: Option<String>,
}

impl<D: Driver, S: Sink> Engine<D, S> {
    pub(super) fn new(relay: Relay<D, S>) -> Self {
        let now = Instant::now();
        let (signal, limits) = (&relay.signal, &relay.limits);
        Self {
            poller: Poller::join(&relay.outbox, &relay.subscription, limits, signal),
            pause: relay.limits.first_pause,
            read_backoff: relay.limits.first_pause,
            gone: None,
            wake: relay.signal.subscribe(),
            relay,
            lanes: BTreeMap::new(),
            tasks: JoinSet::new(),
            reads: Reads::default(),
            lease_ends: watch::Sender::new(now),
            health: Arc::default(),
            next_claim: now,
            next_keep: now,
            next_due: now,
            next_look: now,
            poll: SHORTEST_POLL,
            ignore_wakeups_until: now,
        }
    }

    pub(super) async fn run(mut self, stop: CancellationToken) -> Result<()> {
        while !stop.is_cancelled() {
            match self.turn().await {
                Ok(()) if self.reads.last_read_failed() => {}
                Ok(()) => {
                    self.pause = self.relay.limits.first_pause;
                    self.relay.counts.database_answered();
                }
                Err(error) => self.retry_or_fail(error, &stop).await?,
            }
            let wake = self.wakes_at();
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                Some(done) = self.tasks.join_next_with_id() => {
                    self.on_delivery(done);
                    // Lanes that are done together read on together.
                    while let Some(done) = self.tasks.try_join_next_with_id() {
                        self.on_delivery(done);
                    }
                }
                Some(read) = self.reads.next() => {
                    if let Err(error) = self.take_page(read) {
                        self.retry_or_fail(error, &stop).await?;
                    }
                }
                () = self.wake.notified(), if Instant::now() >= self.ignore_wakeups_until => self.poll_now(),
                (news, due) = self.poller.hinted(), if Instant::now() >= self.ignore_wakeups_until => {
                    if news {
                        self.next_look = Instant::now(); // it is visible: once is enough
                    }
                    if due {
                        self.next_due = Instant::now();
                    }
                }
                () = sleep_until(wake) => {}
            }
        }
        self.drain().await
    }

    /// Everything whose time has come, once.
    async fn turn(&mut self) -> Result<()> {
        let now = Instant::now();
        if let Some(reason) = &self.gone {
            let (outbox, subscription) = (&self.relay.outbox, &self.relay.subscription);
            in_time(&self.relay.limits, outbox.evict(subscription, reason)).await?;
            // Claiming raises that it was evicted, and why; that ends this relay.
            self.claim().await?;
        }
        if now >= *self.lease_ends.borrow() && !self.lanes.is_empty() {
            tracing::warn!("the lease could not be renewed in time: lanes are given up");
            self.relay.metrics.lanes(0, 0, self.lanes.len());
            self.lanes.clear();
            self.relay.counts.holds(0);
        }
        if now >= self.next_claim {
            self.claim().await?;
        }
        self.settle().await?;
        // What is parked must not stand in the way of the log.
        let due = match now >= self.next_due {
            true => self.look_for_due().await,
            false => Ok(()),
        };
        if now >= self.next_look {
            self.look().await?;
        }
        if now >= self.next_keep {
            self.next_keep = now + self.relay.limits.keep_every;
            self.keep().await?;
        }
        due
    }

    fn wakes_at(&self) -> Instant {
        let mut wake = self.next_claim.min(self.next_due);
        if self
            .lanes
            .values()
            .any(|lane| !lane.is_saved() || lane.surplus)
        {
            wake = wake.min(self.next_keep);
        }
        if self.reads.may_begin() && self.lanes.values().any(Holding::is_idle) {
            wake = wake.min(self.next_look);
        }
        let unsettled = self.lanes.values().flat_map(|lane| &lane.unsettled);
        if let Some(at) = unsettled.map(|unsettled| unsettled.at).min() {
            wake = wake.min(at);
        }
        wake
    }

    async fn claim(&mut self) -> Result<()> {
        fault_point!("relay.before_claim");
        let (relay, asked) = (&self.relay, Instant::now());
        let lease = relay.limits.lease;
        let claim = LaneClaim {
            subscription: relay.subscription.clone(),
            owner: relay.owner.clone(),
            lease,
        };
        let claimed = in_time(&relay.limits, self.poller.claim(claim)).await?;
        fault_point!("relay.claimed");
        self.lease_ends.send_replace(asked + lease);
        self.next_claim = self.poller.next_renewal(asked, lease / 3);
        // Lanes that are no longer ours are dropped, and with them what they were delivering.
        let mut before = std::mem::take(&mut self.lanes);
        let (mut taken, mut kept, had) = (0, 0, before.len());
        for lane in claimed {
            let held = match before.remove(&lane.lane) {
                // A cursor that somebody else wrote, such as a restore: what is in memory counts no more.
                Some(mut held) if held.epoch == lane.epoch && held.saved == lane.cursor => {
                    kept += 1;
                    if held.surplus && !lane.surplus {
                        self.next_look = asked;
                    }
                    held.surplus = lane.surplus;
                    held
                }
                _ => {
                    taken += 1;
                    Holding::new(lane.clone())
                }
            };
            self.lanes.insert(lane.lane, held);
        }
        if taken > 0 {
            // Nothing notifies of what is there already.
            self.poll_now();
            self.next_due = Instant::now();
        }
        self.relay.counts.holds(self.lanes.len());
        self.relay
            .metrics
            .lanes(self.lanes.len(), taken, had - kept);
        Ok(())
    }

    pub(super) fn lanes_that(&self, are: impl Fn(&Holding) -> bool) -> Vec<LaneLease> {
        let lanes = self.lanes.iter().filter(|(_, held)| are(held));
        lanes.map(|(lane, held)| held.held(*lane)).collect()
    }

    pub(super) fn send(&mut self, lane: u8, batch: Vec<Message>, next: Cursor) {
        if self.lanes.contains_key(&lane) {
            let task = self.spawn_delivery(batch, Some(next));
            if let Some(held) = self.lanes.get_mut(&lane) {
                held.delivering = Some(task);
            }
        }
    }

    pub(super) fn spawn_delivery(
        &mut self,
        batch: Vec<Message>,
        next: Option<Cursor>,
    ) -> AbortHandle {
        let sink = self.relay.sink.clone();
        let terms = Terms {
            subscription: self.relay.subscription.as_str().into(),
            limits: self.relay.limits.clone(),
            counts: self.relay.counts.clone(),
            metrics: self.relay.metrics.clone(),
            health: self.health.clone(),
            lease: self.lease_ends.subscribe(),
            from_log: next.is_some(),
        };
        self.tasks.spawn(async move {
            let ended = deliver(sink, batch, &terms).await;
            (next, ended)
        })
    }

    pub(super) fn move_to(&mut self, lane: u8, cursor: Cursor) {
        if let Some(held) = self.lanes.get_mut(&lane) {
            held.cursor = cursor;
        }
    }

    /// A delivery ended. One whose lane was lost meanwhile says nothing any more.
    fn on_delivery(&mut self, done: std::result::Result<(Id, Delivered), JoinError>) {
        let (id, delivered) = match done {
            Ok((id, delivered)) => (id, Some(delivered)),
            Err(error) => {
                if error.is_panic() {
                    tracing::error!(%error, "a delivery panicked: its lane is read again");
                }
                (error.id(), None)
            }
        };
        let of_log = |held: &Holding| held.delivering.as_ref().is_some_and(|task| task.id() == id);
        let ours = |held: &Holding| of_log(held) || held.parked.contains_key(&id);
        let Some((&lane, held)) = self.lanes.iter_mut().find(|(_, held)| ours(held)) else {
            return;
        };
        let parked = held.parked.remove(&id);
        if parked.is_none() {
            held.delivering = None;
        }
        let subjects = parked.map(|batch| batch.subjects).unwrap_or_default();
        let (next, outcomes) = match delivered {
            Some((next, Ok(Ended::Settled(outcomes)))) => (next, outcomes),
            Some((_, Ok(Ended::Gone(reason)))) => {
                tracing::error!(reason, "the sink is gone: the subscription is evicted");
                self.gone = Some(reason);
                return;
            }
            Some((_, Ok(Ended::LeaseOver))) => {
                (self.next_claim, self.next_look) = (Instant::now(), Instant::now());
                return;
            }
            _ => {
                // Of unknown fate: its cursor is as it was, so it is read again, after a pause.
                held.suspects.extend(subjects);
                self.back_off_reads();
                return;
            }
        };
        self.read_backoff = self.relay.limits.first_pause;
        for (_, outcome) in &outcomes {
            self.relay.counts.add(outcome);
        }
        self.relay.metrics.batch_settled(&outcomes);
        let plain = outcomes.iter().all(|(_, what)| *what == Outcome::Sent);
        if held.suspects.len() > MAX_SUSPECTS {
            held.suspects.clear();
        }
        match plain {
            true => held.suspects.retain(|subject| !subjects.contains(subject)),
            false => held.suspects.extend(subjects.iter().cloned()),
        }
        self.next_look = Instant::now();
        match next {
            // Written down later, for many batches at once.
            Some(cursor) if plain => self.move_to(lane, cursor),
            cursor => {
                held.unsettled.push(Unsettled {
                    settlement: Settlement { cursor, outcomes },
                    at: Instant::now(),
                    subjects,
                });
                self.next_due = Instant::now();
            }
        }
    }

    /// There may be something to read. What the write-ahead log announces may not be visible yet: then it is looked
    /// for again after a millisecond, and again after pauses that grow with the time that it takes.
    fn poll_now(&mut self) {
        self.poll = SHORTEST_POLL;
        self.next_look = Instant::now();
    }

    pub(super) fn max_poll_interval(&self) -> Duration {
        self.relay.limits.poll_interval(&self.relay.signal)
    }

    /// Looks again only after a while, each time a longer one.
    pub(super) fn back_off_reads(&mut self) {
        self.next_look = Instant::now() + jittered(self.read_backoff);
        self.ignore_wakeups_until = self.next_look;
        self.read_backoff = (self.read_backoff * 2).min(self.relay.limits.max_delay);
    }

    /// Waits after an error. Only a wrong configuration ends a relay.
    async fn retry_or_fail(&mut self, error: Error, stop: &CancellationToken) -> Result<()> {
        if is_fatal(&error) {
            return Err(error);
        }
        self.next_claim = Instant::now();
        if error.class() == Class::ClaimAgain {
            // Somebody else holds a lane: ask which are left.
            tracing::info!(%error, "a lane went to another relay");
        } else {
            self.relay.metrics.database_error();
            self.relay.counts.database_failed(&error);
            tracing::warn!(%error, pause = ?self.pause, "database error, trying again");
            if lost_its_statements(&error) {
                tracing::warn!(
                    "prepared statements are lost or taken: behind a pooler, say so (`behind_pooler`)"
                );
            }
        }
        tokio::select! {
            () = stop.cancelled() => {}
            () = sleep(jittered(self.pause)) => {}
        }
        self.pause = (self.pause * 2).min(self.relay.limits.max_delay);
        Ok(())
    }

    /// Finishes what is in hand, keeps it, and goes.
    async fn drain(mut self) -> Result<()> {
        self.reads = Reads::default();
        let until = Instant::now() + self.relay.limits.drain_timeout;
        loop {
            match timeout_at(until.min(self.next_claim), self.tasks.join_next_with_id()).await {
                Ok(Some(done)) => self.on_delivery(done),
                Err(_) if Instant::now() < until => {}
                _ => break,
            }
            if Instant::now() >= self.next_claim
                && let Err(error) = self.claim().await
            {
                // The lease decides whether what is left still counts.
                tracing::warn!(%error, "the lease could not be renewed while stopping");
                self.next_claim = Instant::now() + jittered(self.relay.limits.first_pause);
            }
        }
        self.tasks.abort_all();
        self.relay.counts.holds(0);
        self.relay.metrics.lanes(0, 0, 0);
        let now = Instant::now();
        let ours = now < *self.lease_ends.borrow();
        if ours && let Err(error) = self.settle().await {
            tracing::warn!(%error, "what came of the last batches could not be kept");
        }
        let lanes = self.lanes_that(|_| true);
        let relay = &self.relay;
        if ours && !lanes.is_empty() {
            let keep = || relay.outbox.advance(&relay.subscription, &lanes, true);
            until_answered(&relay.limits, until, keep).await?;
        }
        let leave = || relay.outbox.leave(&relay.subscription, &relay.owner);
        until_answered(&relay.limits, until, leave).await
    }
}

/// A last call of the database, again and again until it is answered or the time to stop in is over. To repeat it does no harm.
async fn until_answered<T, F: Future<Output = Result<T>>>(
    limits: &Limits,
    until: Instant,
    call: impl Fn() -> F,
) -> Result<T> {
    loop {
        match in_time(limits, call()).await {
            Err(error) if !is_fatal(&error) && Instant::now() < until => {
                tracing::warn!(%error, "database error while stopping, trying again");
                sleep(jittered(limits.first_pause)).await;
            }
            done => return done,
        }
    }
}

/// A call of the database, for as long as it can matter. One that hangs must not keep the relay from noticing that its
/// lease is over.
pub(super) async fn in_time<T>(
    limits: &Limits,
    call: impl Future<Output = Result<T>>,
) -> Result<T> {
    bounded(call_limit(limits.lease), call).await
}

pub(super) fn by_lane(messages: Vec<Message>) -> BTreeMap<u8, Vec<Message>> {
    let mut lanes: BTreeMap<u8, Vec<Message>> = BTreeMap::new();
    for message in messages {
        lanes.entry(message.lane).or_default().push(message);
    }
    lanes
}

impl<D: Driver, S> std::fmt::Debug for Engine<D, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("lanes", &self.lanes)
            .finish_non_exhaustive()
    }
}
