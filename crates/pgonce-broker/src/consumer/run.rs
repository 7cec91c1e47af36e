//! The loop of a consumer: pull, apply, acknowledge.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use pgonce::driver::Driver;
use pgonce::inbox::{Message, PartitionLease};
use pgonce::{Error, Result};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::lane::{Item, Lane};
use super::source::{Incoming, Order, Source, SourceError};
use super::{Dedup, Handler, Shared, stored};
use crate::fatal::is_fatal;
use crate::relay::jittered;

/// How long to wait before a partition that another worker holds is asked for again.
const BUSY_PAUSE: Duration = Duration::from_millis(100);

pub(super) async fn run<D: Driver, S: Source, H: Handler<D>>(
    shared: Arc<Shared<D, H>>,
    source: S,
    stop: CancellationToken,
) -> Result<()> {
    if shared.dedup != Dedup::Ids && shared.order == Order::Unordered {
        return Err(Error::work(
            "a source without an order has no positions: know its copies by their ids",
        ));
    }
    let stop = stop.child_token();
    // Ended with this future, however it ends.
    let mut worker = JoinSet::new();
    worker.spawn(stored::run(shared.clone(), stop.clone()));
    let mut engine = Engine {
        shared,
        source,
        held: HashMap::new(),
        batches: HashMap::new(),
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

struct Engine<D: Driver, S: Source, H> {
    shared: Arc<Shared<D, H>>,
    source: S,
    /// The partitions in hand.
    held: HashMap<String, PartitionLease>,
    /// Partitions that were lost with a batch in hand: how many messages to apply at once until it goes well again.
    batches: HashMap<String, usize>,
}

/// What belongs together: a partition's messages, or those of some keys.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Group {
    Partition(String),
    Keys(u64),
}

impl<D: Driver, S: Source, H: Handler<D>> Engine<D, S, H> {
    async fn run(&mut self, stop: &CancellationToken) -> Result<()> {
        let limits = self.shared.limits.clone();
        let at_once = limits.batch * limits.concurrency;
        let mut pause = limits.first_pause;
        loop {
            let pulled = tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                pulled = self.source.pull(at_once, limits.within) => pulled,
            };
            let done = match pulled {
                Ok(pulled) if pulled.is_empty() => {
                    tokio::task::yield_now().await;
                    continue;
                }
                Ok(pulled) => self.process(pulled, stop).await?,
                Err(error) => Err(error),
            };
            match done {
                Ok(()) => pause = limits.first_pause,
                Err(SourceError::Broken(why)) => return Err(Error::work(why)),
                Err(SourceError::Unavailable(why)) => {
                    tracing::warn!(why, ?pause, "the source is unavailable, trying again");
                    self.shared.counts.source_errors.add(1);
                    tokio::select! {
                        () = stop.cancelled() => {}
                        () = sleep(jittered(pause)) => {}
                    }
                    pause = (pause * 2).min(limits.max_delay);
                }
            }
        }
    }

    /// Applies what was pulled, and acknowledges.
    async fn process(
        &mut self,
        pulled: Vec<Incoming<S::Ticket>>,
        stop: &CancellationToken,
    ) -> Result<Result<(), SourceError>> {
        if cfg!(feature = "faults") && fault_pulled().await.is_err() {
            let tickets = pulled.into_iter().map(|incoming| incoming.ticket);
            return Ok(self.settle(Vec::new(), tickets.collect(), stop).await);
        }
        self.shared.counts.received.add(pulled.len());
        let mut tickets: Vec<Option<S::Ticket>> = Vec::with_capacity(pulled.len());
        let mut groups: BTreeMap<Group, Vec<Item>> = BTreeMap::new();
        for (index, incoming) in pulled.into_iter().enumerate() {
            tickets.push(Some(incoming.ticket));
            let item = self.item(index, incoming.message);
            groups.entry(self.group(&item)).or_default().push(item);
        }
        let (mut lanes, mut busy) = (Vec::new(), false);
        for (group, items) in groups {
            let Group::Partition(partition) = group else {
                lanes.push((None, None, items));
                continue;
            };
            match self.take(&partition, stop).await? {
                Ok(Taken::Here(held)) => lanes.push((Some(partition), Some(held), items)),
                // It comes again, by itself or because it is given back.
                Ok(Taken::Elsewhere) => {
                    for item in items {
                        tickets[item.index] = None;
                    }
                }
                Ok(Taken::No) => busy = true,
                Err(error) => return Ok(Err(error)),
            }
        }
        let settled = Mutex::default();
        let taken: Vec<String> = lanes.iter().filter_map(|lane| lane.0.clone()).collect();
        let (held, worked) = work(&*self.shared, lanes, &self.batches, &settled, stop).await;
        for partition in taken {
            let most = self.shared.limits.batch;
            let size = self.batches.remove(&partition).unwrap_or(most);
            match held.contains_key(&partition) {
                true if size >= most => {}
                true => drop(self.batches.insert(partition, size * 2)),
                false => drop(self.batches.insert(partition, (size / 2).max(1))),
            }
        }
        self.held.extend(held);
        let mut acked = Vec::new();
        for index in settled.into_inner().unwrap_or_default() {
            acked.extend(tickets[index].take());
        }
        let settled_at_source = self
            .settle(acked, tickets.into_iter().flatten().collect(), stop)
            .await;
        if busy {
            // Another worker has what was pulled: its lease has to run out first.
            tokio::select! {
                () = stop.cancelled() => {}
                () = sleep(jittered(BUSY_PAUSE)) => {}
            }
        }
        worked.map(|()| settled_at_source)
    }

    fn item(&self, index: usize, mut message: Message) -> Item {
        message.source.clone_from(&self.shared.source);
        let mut flaw = self.shared.checks.check(&mut message).err();
        if flaw.is_none() && self.shared.dedup != Dedup::Ids && message.place.is_none() {
            let why = "it came without a position, from a source that has an order";
            flaw = Some(("place_missing", why.to_owned()));
        }
        Item {
            index,
            message: Arc::new(message),
            flaw,
            claimed: None,
        }
    }

    fn group(&self, item: &Item) -> Group {
        let message = &item.message;
        if self.shared.dedup != Dedup::Ids
            && let Some(place) = &message.place
        {
            return Group::Partition(place.partition.clone());
        }
        let mut hasher = DefaultHasher::new();
        let name = message.key.as_ref().unwrap_or(&message.id);
        (&message.tenant, name).hash(&mut hasher);
        Group::Keys(hasher.finish() % self.shared.limits.concurrency as u64)
    }

    /// Makes sure that a partition is ours, and that the source is where the database says.
    async fn take(
        &mut self,
        partition: &str,
        stop: &CancellationToken,
    ) -> Result<Result<Taken, SourceError>> {
        if let Some(held) = self.held.remove(partition) {
            return Ok(Ok(Taken::Here(held)));
        }
        let shared = &self.shared;
        let mut pause = shared.limits.first_pause;
        let held = loop {
            let (name, source, lease) = (&shared.name, &shared.source, shared.limits.lease);
            let taken = shared
                .inbox
                .take_partition(name, source, partition, &shared.owner, lease);
            match taken.await {
                Ok(Some(held)) => break held,
                Ok(None) => return Ok(Ok(Taken::No)),
                Err(error) if !is_fatal(&error) => {
                    tracing::warn!(%error, ?pause, "database error, trying again");
                    shared.counts.database_errors.add(1);
                    tokio::select! {
                        () = stop.cancelled() => return Ok(Ok(Taken::No)),
                        () = sleep(jittered(pause)) => {}
                    }
                    pause = (pause * 2).min(shared.limits.max_delay);
                }
                Err(error) => return Err(error),
            }
        };
        match self.source.seek(partition, held.position).await {
            Ok(false) => Ok(Ok(Taken::Here(held))),
            Ok(true) => {
                self.held.insert(partition.to_owned(), held);
                Ok(Ok(Taken::Elsewhere))
            }
            Err(error) => Ok(Err(error)),
        }
    }

    /// Commit first, acknowledge after; what is left is given back.
    async fn settle(
        &mut self,
        acked: Vec<S::Ticket>,
        left: Vec<S::Ticket>,
        stop: &CancellationToken,
    ) -> Result<(), SourceError> {
        let counts = self.shared.counts.clone();
        if !left.is_empty() {
            counts.returned.add(left.len());
            // The next worker need not wait for one that goes.
            let pause = match stop.is_cancelled() {
                true => Duration::ZERO,
                false => jittered(self.shared.limits.first_pause),
            };
            self.source.nack(left, pause).await?;
        }
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
        let leave_timeout = self.shared.limits.lease.min(Duration::from_secs(5));
        let leaving = async {
            for held in self.held.values() {
                if let Err(error) = self.shared.inbox.leave_partition(held).await {
                    tracing::warn!(%error, "a partition could not be given back: its lease runs out");
                }
            }
            self.source.close().await;
        };
        // Nothing hangs on it: leases run out, and the broker notices.
        let _ = timeout(leave_timeout, leaving).await;
    }
}

enum Taken {
    /// Ours, and the source goes on exactly there.
    Here(PartitionLease),
    /// Ours, but the source had to go elsewhere.
    Elsewhere,
    /// Another worker's.
    No,
}

/// Lets the lanes run, side by side, and at most for a while after it was asked to stop.
async fn work<D: Driver, H: Handler<D>>(
    shared: &Shared<D, H>,
    lanes: Vec<(Option<String>, Option<PartitionLease>, Vec<Item>)>,
    batches: &HashMap<String, usize>,
    settled: &Mutex<Vec<usize>>,
    stop: &CancellationToken,
) -> (HashMap<String, PartitionLease>, Result<()>) {
    let limits = &shared.limits;
    let running = lanes.into_iter().map(|(partition, held, items)| {
        let mut lane = Lane {
            shared,
            stop,
            stored: false,
            held,
            partition,
            settled,
            called: Vec::new(),
        };
        async move {
            let mut worked = Ok(());
            let size = lane.partition.as_ref().and_then(|name| batches.get(name));
            for batch in items.chunks(size.map_or(limits.batch, |size| *size)) {
                worked = lane.run(batch).await;
                // A lane that ended early has no right to what comes after.
                if worked.is_err()
                    || (lane.partition.is_some() && lane.held.is_none())
                    || stop.is_cancelled()
                {
                    break;
                }
            }
            (lane.partition.zip(lane.held), worked)
        }
    });
    let mut running = stream::iter(running).buffer_unordered(limits.concurrency);
    let drained = async {
        stop.cancelled().await;
        sleep(limits.drain_timeout).await;
    };
    let mut drained = std::pin::pin!(drained);
    let (mut held, mut worked) = (HashMap::new(), Ok(()));
    loop {
        tokio::select! {
            done = running.next() => match done {
                Some((partition, done)) => {
                    held.extend(partition);
                    worked = worked.and(done);
                }
                None => return (held, worked),
            },
            () = &mut drained => return (held, worked),
        }
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
