//! The loop of a consumer: pull, apply, acknowledge.
//!
//! Each partition, and each bucket of keys, is applied by a lane of its own, and lanes do not wait for each other: what is slow or
//! fails delays only itself. Lanes never touch the source; the loop pulls while they work, and acknowledges what they settled.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use pgonce::driver::Driver;
use pgonce::inbox::PartitionLease;
use pgonce::{Error, Result};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::dispatch::{Dispatcher, Lanes};
use super::source::{Incoming, Order, Source, SourceError};
use super::{Dedup, Handler, Shared, stored};
use crate::bounded::{MAX_CALL, bounded};
use crate::fatal::is_fatal;
use crate::relay::jittered;

/// How long to wait before a partition that another worker holds is asked for again.
const BUSY_PAUSE: Duration = Duration::from_millis(100);

/// How long what was settled waits for the answer of a pull under way, before that is cut short to acknowledge it.
const ACK_DELAY: Duration = Duration::from_millis(20);

pub(super) async fn run<D: Driver, S: Source, H: Handler<D>>(
    mut shared: Arc<Shared<D, H>>,
    source: S,
    stop: CancellationToken,
) -> Result<()> {
    if shared.dedup != Dedup::Ids && shared.order == Order::Unordered {
        return Err(Error::work(
            "a source without an order has no positions: know its copies by their ids",
        ));
    }
    if shared.dedup == Dedup::Ids && shared.order == Order::Ordered {
        return Err(Error::work(
            "a source with an order begins anew at each start, unless its position is kept: know its copies by both",
        ));
    }
    let stop = stop.child_token();
    let Some(tenant) = bound_tenant(&shared, &stop).await? else {
        return Ok(());
    };
    Shared::own(&mut shared).checks.tenant = tenant;
    // Ended with this future, however it ends.
    let mut worker = JoinSet::new();
    worker.spawn(stored::run(shared.clone(), stop.clone()));
    let mut engine = Engine {
        source,
        paused: HashSet::new(),
        hand: Dispatcher::new(shared),
    };
    let ended = engine.run(&stop).await;
    stop.cancel();
    engine.leave().await;
    let worked = worker.join_next().await;
    let worked = worked.map_or(Ok(()), |joined| {
        joined.unwrap_or_else(|error| Err(Error::work(error)))
    });
    ended.and(worked)
}

/// The tenant that the consumer's role is bound to. Nothing: asked to stop before the database answered.
async fn bound_tenant<D: Driver, H>(
    shared: &Shared<D, H>,
    stop: &CancellationToken,
) -> Result<Option<Option<String>>> {
    let mut pause = shared.limits.first_pause;
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return Ok(None),
            asked = bounded(MAX_CALL, shared.inbox.bound_tenant()) => match asked {
                Ok(tenant) => return Ok(Some(tenant)),
                Err(error) if is_fatal(&error) => return Err(error),
                Err(error) => {
                    tracing::warn!(%error, ?pause, "the database is unavailable, trying again");
                    shared.counts.database_errors.add(1);
                }
            },
        }
        tokio::select! {
            () = stop.cancelled() => return Ok(None),
            () = sleep(jittered(pause)) => {}
        }
        pause = (pause * 2).min(shared.limits.max_delay);
    }
}

struct Engine<D: Driver, S: Source, H> {
    source: S,
    /// The partitions of which the source was asked to give no more.
    paused: HashSet<String>,
    hand: Dispatcher<D, S::Ticket, H>,
}

impl<D: Driver, S: Source, H: Handler<D>> Engine<D, S, H> {
    async fn run(&mut self, stop: &CancellationToken) -> Result<()> {
        let mut lanes = Lanes::new();
        let mut ended = self.work(&mut lanes, stop).await;
        stop.cancel();
        // Those under way may finish; what none has begun goes back.
        let drained = timeout(self.hand.shared.limits.drain_timeout, async {
            while let Some(end) = lanes.join_next().await {
                let end = end.map_err(Error::work).and_then(|end| self.hand.end(end));
                ended = std::mem::replace(&mut ended, Ok(())).and(end);
            }
        });
        let _ = drained.await;
        lanes.shutdown().await;
        self.hand.give_up();
        if let Err(error) = self.settle(Duration::ZERO).await {
            tracing::warn!(%error, "what was settled could not be acknowledged: it comes again and is known");
        }
        ended
    }

    async fn work(&mut self, lanes: &mut Lanes, stop: &CancellationToken) -> Result<()> {
        let limits = self.hand.shared.limits.clone();
        let mut pause = limits.first_pause;
        let mut pull_at = Instant::now();
        while !stop.is_cancelled() {
            let done = match self.prepare(stop).await? {
                Ok(busy) => {
                    if busy && self.hand.is_idle() {
                        // Another worker has all that was pulled: its lease has to run out first.
                        pull_at = Instant::now() + jittered(BUSY_PAUSE);
                    }
                    self.hand.begin(lanes, stop);
                    self.next(lanes, pull_at, stop).await?
                }
                Err(error) => Err(error),
            };
            match done {
                // Cut short, or nothing there: neither shows that the source is well.
                Ok(pulled) if pulled.is_empty() => tokio::task::yield_now().await,
                Ok(pulled) => {
                    pause = limits.first_pause;
                    if cfg!(feature = "faults") && fault_pulled().await.is_err() {
                        let tickets = pulled.into_iter().map(|incoming| incoming.ticket);
                        self.hand.left.extend(tickets);
                    } else {
                        self.hand.sort(pulled);
                    }
                }
                Err(SourceError::Broken(error)) => return Err(error),
                Err(SourceError::Unavailable(why)) => {
                    tracing::warn!(why, ?pause, "the source is unavailable, trying again");
                    self.hand.shared.counts.source_errors.add(1);
                    pull_at = Instant::now() + jittered(pause);
                    pause = (pause * 2).min(limits.max_delay);
                }
            }
        }
        Ok(())
    }

    /// Everything that the source must know before it is asked for more. True: another worker has a partition.
    async fn prepare(&mut self, stop: &CancellationToken) -> Result<Result<bool, SourceError>> {
        let pause = jittered(self.hand.shared.limits.first_pause);
        // Before a partition is taken: what is settled counts where the source is asked to go on from a position.
        if let Err(error) = self.settle(pause).await {
            return Ok(Err(error));
        }
        let taken = self.take_partitions(stop).await?;
        let settled = self.settle(pause).await;
        let busy = match (taken, settled) {
            (Ok(busy), Ok(())) => busy,
            (Err(error), _) | (_, Err(error)) => return Ok(Err(error)),
        };
        let full = self.hand.full();
        if full != self.paused {
            if let Err(error) = self.source.pause(&full).await {
                return Ok(Err(error));
            }
            self.paused = full;
        }
        Ok(Ok(busy))
    }

    /// Waits for messages, and lets lanes begin and end meanwhile. Nothing: there is something to do for the source first.
    async fn next(
        &mut self,
        lanes: &mut Lanes,
        pull_at: Instant,
        stop: &CancellationToken,
    ) -> Result<Result<Vec<Incoming<S::Ticket>>, SourceError>> {
        let Self { source, hand, .. } = self;
        let (room, within) = (hand.room(), hand.shared.limits.within);
        let pull = async {
            if room == 0 {
                return std::future::pending().await;
            }
            sleep_until(pull_at).await;
            source.pull(room, within).await
        };
        let mut pull = std::pin::pin!(pull);
        let mut settle_at = None;
        loop {
            let slow_at = hand.slow_at();
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(Ok(Vec::new())),
                pulled = &mut pull => return Ok(pulled),
                Some(end) = lanes.join_next() => {
                    hand.end(end.map_err(Error::work)?)?;
                    if !hand.left.is_empty() {
                        return Ok(Ok(Vec::new()));
                    }
                    settle_at.get_or_insert(Instant::now() + ACK_DELAY);
                }
                () = until(settle_at) => return Ok(Ok(Vec::new())),
                () = until(slow_at) => {}
            }
            hand.begin(lanes, stop);
        }
    }

    /// Makes sure that the partitions of which something waits are ours, and that the source is where the database says. True:
    /// another worker has one.
    async fn take_partitions(
        &mut self,
        stop: &CancellationToken,
    ) -> Result<Result<bool, SourceError>> {
        let mut busy = false;
        while let Some(partition) = self.hand.partition_to_take() {
            let Some(held) = self.take(&partition, stop).await? else {
                busy = true;
                self.hand.drop_waiting(&partition, true);
                continue;
            };
            match self.source.seek(&partition, held.position).await {
                Ok(false) => {}
                // It comes again by itself.
                Ok(true) => self.hand.drop_waiting(&partition, false),
                Err(error) => {
                    self.hand.distrust_source();
                    return Ok(Err(error));
                }
            }
            self.hand.held.insert(partition, held);
        }
        Ok(Ok(busy))
    }

    /// `None`: another worker has the partition.
    async fn take(
        &mut self,
        partition: &str,
        stop: &CancellationToken,
    ) -> Result<Option<PartitionLease>> {
        let shared = self.hand.shared.clone();
        let mut pause = shared.limits.first_pause;
        loop {
            let (name, source, lease) = (&shared.name, &shared.source, shared.limits.lease);
            let taken = shared
                .inbox
                .take_partition(name, source, partition, &shared.owner, lease);
            match bounded(MAX_CALL, taken).await {
                Ok(taken) => return Ok(taken),
                Err(error) if !is_fatal(&error) => {
                    tracing::warn!(%error, ?pause, "database error, trying again");
                    shared.counts.database_errors.add(1);
                    tokio::select! {
                        () = stop.cancelled() => return Ok(None),
                        () = sleep(jittered(pause)) => {}
                    }
                    pause = (pause * 2).min(shared.limits.max_delay);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Commit first, acknowledge after; what is left is given back.
    async fn settle(&mut self, pause: Duration) -> Result<(), SourceError> {
        let counts = self.hand.shared.counts.clone();
        let left = std::mem::take(&mut self.hand.left);
        if !left.is_empty() {
            counts.returned.add(left.len());
            if let Err(error) = self.source.nack(left, pause).await {
                // It may go on behind what was to be given back.
                self.hand.distrust_source();
                return Err(error);
            }
        }
        let acked = std::mem::take(&mut self.hand.acked);
        if acked.is_empty() {
            return Ok(());
        }
        let count = acked.len();
        if cfg!(feature = "faults") && fault_before_ack().await.is_err() {
            counts.lost_acknowledgements.add(count);
            return Err(SourceError::Unavailable("a fault point".to_owned()));
        }
        match self.source.ack(acked).await {
            Ok(()) => {
                counts.acknowledged.add(count);
                Ok(())
            }
            Err(error) => {
                counts.lost_acknowledgements.add(count);
                Err(error)
            }
        }
    }

    /// Gives everything back.
    async fn leave(&mut self) {
        let shared = &self.hand.shared;
        let leave_timeout = shared.limits.lease.min(Duration::from_secs(5));
        let leaving = async {
            for held in self.hand.held.values() {
                if let Err(error) = shared.inbox.leave_partition(held).await {
                    tracing::warn!(%error, "a partition could not be given back: its lease runs out");
                }
            }
            self.source.close().await;
        };
        // Nothing hangs on it: leases run out, and the broker notices.
        let _ = timeout(leave_timeout, leaving).await;
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

async fn fault_pulled() -> Result<()> {
    fault_point!("consumer.pulled");
    Ok(())
}

async fn fault_before_ack() -> Result<()> {
    fault_point!("consumer.before_ack");
    Ok(())
}
