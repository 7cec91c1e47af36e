//! What a consumer has in hand: what waits, what lanes work on, and what goes back to the source.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pgonce::Result;
use pgonce::driver::Driver;
use pgonce::inbox::{Message, PartitionLease};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::lane::{Item, Lane, NONE};
use super::source::{Incoming, Order};
use super::span::MessageSpan;
use super::{Dedup, Handler, Shared};

/// A lane that works for longer than this, and much longer than others do, has a slow message: another may begin in its stead,
/// and its keys go alone next time.
const SLOW: Duration = Duration::from_millis(250);

/// Buckets of keys for each concurrent transaction: a slow key delays only those of its own bucket.
const BUCKETS: u64 = 64;

/// What must be applied in order: a partition's messages, or those of some keys.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Group {
    Partition(String),
    Bucket(u64),
}

/// Everything but the source.
pub(super) struct Dispatcher<D: Driver, T, H> {
    pub(super) shared: Arc<Shared<D, H>>,
    /// The partitions in hand that no lane works on.
    pub(super) held: HashMap<String, PartitionLease>,
    /// Partitions that were lost with a batch in hand: how many messages to apply at once until it goes well again.
    batches: HashMap<String, usize>,
    /// What no lane has begun. The group that was served last is at the end.
    waiting: VecDeque<(Group, VecDeque<(Item, T)>)>,
    running: HashMap<u64, Running<T>>,
    next_lane: u64,
    /// Those of `running`.
    busy: HashSet<Group>,
    /// Buckets that made a lane slow.
    slow: HashSet<Group>,
    /// How long a message takes.
    typical: Duration,
    /// Counts how often the source may have lost its place.
    generation: u64,
    /// Settled, and to be acknowledged.
    pub(super) acked: Vec<T>,
    /// Not settled, and to be given back before anything else is pulled: a source with an order goes back for them, and what it
    /// gave of the same partition in between would be applied too early.
    pub(super) left: Vec<T>,
}

/// What a lane works on.
struct Running<T> {
    groups: Vec<Group>,
    tickets: Vec<Option<T>>,
    settled: Arc<Mutex<Vec<usize>>>,
    began: Instant,
    generation: u64,
}

impl<T> Running<T> {
    fn slow_at(&self, typical: Duration) -> Instant {
        let messages = u32::try_from(self.tickets.len()).unwrap_or(u32::MAX);
        self.began + SLOW.max(typical.saturating_mul(messages.saturating_mul(4)))
    }

    fn is_slow(&self, typical: Duration) -> bool {
        self.slow_at(typical) <= Instant::now()
    }
}

/// What a lane ends with: the partition's lease if it still has it.
pub(super) struct LaneEnd {
    lane: u64,
    held: Option<PartitionLease>,
    worked: Result<()>,
}

pub(super) type Lanes = JoinSet<LaneEnd>;

impl<D: Driver, T: Send + 'static, H: Handler<D>> Dispatcher<D, T, H> {
    pub(super) fn new(shared: Arc<Shared<D, H>>) -> Self {
        Self {
            shared,
            held: HashMap::new(),
            batches: HashMap::new(),
            waiting: VecDeque::new(),
            running: HashMap::new(),
            next_lane: 0,
            busy: HashSet::new(),
            slow: HashSet::new(),
            typical: Duration::ZERO,
            generation: 0,
            acked: Vec::new(),
            left: Vec::new(),
        }
    }

    /// How many messages to pull next, at most. What a broker waits for is kept short, for it delivers again what takes too long.
    pub(super) fn room(&self) -> usize {
        let at_once = self.shared.limits.batch * self.shared.limits.concurrency;
        let most = match self.shared.order {
            Order::Ordered => 8 * at_once,
            Order::Unordered => 2 * at_once,
        };
        let waiting: usize = self.waiting.iter().map(|(_, items)| items.len()).sum();
        let running: usize = self.running.values().map(|each| each.tickets.len()).sum();
        most.saturating_sub(waiting + running).min(at_once)
    }

    /// The partitions of which enough waits.
    pub(super) fn full(&self) -> HashSet<String> {
        let enough = 2 * self.shared.limits.batch;
        let full = self.waiting.iter().filter(|(_, all)| all.len() >= enough);
        full.filter_map(|(group, _)| match group {
            Group::Partition(name) => Some(name.clone()),
            Group::Bucket(_) => None,
        })
        .collect()
    }

    /// True: no lane works, and nothing waits for one.
    pub(super) fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// Puts what was pulled behind what it belongs to.
    pub(super) fn sort(&mut self, pulled: Vec<Incoming<T>>) {
        self.shared.counts.received.add(pulled.len());
        let places = self.waiting.iter().enumerate();
        let mut places: HashMap<Group, usize> = places.map(|(at, w)| (w.0.clone(), at)).collect();
        for Incoming { message, ticket } in pulled {
            let item = self.item(message);
            let group = self.group(&item);
            let at = *places.entry(group.clone()).or_insert_with(|| {
                self.waiting.push_back((group, VecDeque::new()));
                self.waiting.len() - 1
            });
            self.waiting[at].1.push_back((item, ticket));
        }
    }

    fn item(&self, mut message: Message) -> Item {
        message.source.clone_from(&self.shared.source);
        let mut flaw = self.shared.checks.check(&mut message).err();
        if flaw.is_none() && self.shared.dedup != Dedup::Ids && message.place.is_none() {
            let why = "it came without a position, from a source that has an order";
            flaw = Some(("place_missing", why.to_owned()));
        }
        Item {
            index: 0,
            message: Arc::new(message),
            flaw,
            claimed: None,
            span: MessageSpan::none(),
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
        Group::Bucket(hasher.finish() % (BUCKETS * self.shared.limits.concurrency as u64))
    }

    /// A partition of which something waits, and which is not in hand.
    pub(super) fn partition_to_take(&self) -> Option<String> {
        self.waiting.iter().find_map(|(group, _)| match group {
            Group::Partition(name)
                if !self.held.contains_key(name) && !self.busy.contains(group) =>
            {
                Some(name.clone())
            }
            _ => None,
        })
    }

    /// What waits of a partition cannot go on here: it is given back, or comes again by itself.
    pub(super) fn drop_waiting(&mut self, partition: &str, give_back: bool) {
        let is_it =
            |(group, _): &(Group, _)| matches!(group, Group::Partition(name) if name == partition);
        let at = self.waiting.iter().position(is_it);
        if let Some((_, items)) = at.and_then(|at| self.waiting.remove(at))
            && give_back
        {
            self.left
                .extend(items.into_iter().map(|(_, ticket)| ticket));
        }
    }

    /// Where the source is cannot be trusted: every partition is taken anew, which sends it to where the database says. What waits
    /// is given back: the source takes it for handed out, and would go on behind it.
    pub(super) fn distrust_source(&mut self) {
        self.generation += 1;
        self.held.clear();
        let all = std::mem::take(&mut self.waiting).into_iter();
        let (partitions, buckets): (VecDeque<_>, _) =
            all.partition(|(group, _)| matches!(group, Group::Partition(_)));
        self.waiting = buckets;
        let items = partitions.into_iter().flat_map(|(_, items)| items);
        self.left.extend(items.map(|(_, ticket)| ticket));
    }

    /// When the next lane counts as slow, where that lets another begin.
    pub(super) fn slow_at(&self) -> Option<Instant> {
        let waits = self.waiting.iter().any(|(group, _)| self.may_begin(group));
        let slow_at = self.running.values().map(|each| each.slow_at(self.typical));
        slow_at
            .filter(|at| *at > Instant::now())
            .min()
            .filter(|_| waits)
    }

    fn may_begin(&self, group: &Group) -> bool {
        !self.busy.contains(group)
            && match group {
                Group::Partition(name) => self.held.contains_key(name),
                Group::Bucket(_) => true,
            }
    }

    /// How many lanes may begin. Slow ones do not count, up to half as many again.
    fn free(&self) -> usize {
        let concurrency = self.shared.limits.concurrency;
        let slow = self
            .running
            .values()
            .filter(|each| each.is_slow(self.typical));
        let slow = slow.count();
        (concurrency + slow.min(concurrency / 2)).saturating_sub(self.running.len())
    }

    /// Lets as many lanes begin as may, with what waits longest.
    pub(super) fn begin(&mut self, lanes: &mut Lanes, stop: &CancellationToken) {
        while !stop.is_cancelled() && self.free() > 0 {
            let groups = self.next_groups();
            let Some(first) = groups.first() else {
                return;
            };
            let partition = match first {
                Group::Partition(name) => Some(name.clone()),
                Group::Bucket(_) => None,
            };
            let held = partition.as_ref().and_then(|name| self.held.remove(name));
            let size = partition.as_ref().and_then(|name| self.batches.get(name));
            let size = size.map_or(self.shared.limits.batch, |size| *size);
            let (mut items, mut tickets) = (Vec::new(), Vec::new());
            for group in &groups {
                self.take_items(group, size, &mut items, &mut tickets);
            }
            let settled = Arc::<Mutex<Vec<usize>>>::default();
            let (shared, stop, of_lane) = (self.shared.clone(), stop.clone(), settled.clone());
            let lane = self.next_lane;
            self.next_lane += 1;
            self.busy.extend(groups.iter().cloned());
            let running = Running {
                groups,
                tickets,
                settled,
                began: Instant::now(),
                generation: self.generation,
            };
            self.running.insert(lane, running);
            lanes.spawn(async move {
                let mut working = Lane {
                    shared: &*shared,
                    stop: &stop,
                    stored: false,
                    held,
                    partition,
                    reached: None,
                    settled: &of_lane,
                    at: NONE.into(),
                    called: Vec::new(),
                    calling: None,
                    careful: false,
                };
                let worked = working.run(&items).await;
                let held = working.held;
                LaneEnd { lane, held, worked }
            });
        }
    }

    /// What the next lane works on: a partition, a slow bucket, or as many other buckets as make up its share.
    fn next_groups(&self) -> Vec<Group> {
        let alone =
            |group: &Group| matches!(group, Group::Partition(_)) || self.slow.contains(group);
        let mut ready = self
            .waiting
            .iter()
            .filter(|(group, _)| self.may_begin(group));
        let Some((first, items)) = ready.next() else {
            return Vec::new();
        };
        let mut groups = vec![first.clone()];
        if alone(first) {
            return groups;
        }
        let others: Vec<_> = ready.filter(|(group, _)| !alone(group)).collect();
        let all = items.len() + others.iter().map(|(_, items)| items.len()).sum::<usize>();
        let share = all.div_ceil(self.free()).min(self.shared.limits.batch);
        let mut count = items.len();
        for (group, items) in others {
            if count >= share {
                break;
            }
            count += items.len();
            groups.push(group.clone());
        }
        groups
    }

    /// Moves what waits of a group to a lane, until that has `size` messages. The rest goes to the end.
    fn take_items(
        &mut self,
        group: &Group,
        size: usize,
        items: &mut Vec<Item>,
        tickets: &mut Vec<Option<T>>,
    ) {
        let at = self.waiting.iter().position(|(each, _)| each == group);
        let Some((group, mut all)) = at.and_then(|at| self.waiting.remove(at)) else {
            return;
        };
        let most = size.saturating_sub(items.len()).min(all.len());
        for (mut item, ticket) in all.drain(..most) {
            item.index = items.len();
            item.span = MessageSpan::begin(&self.shared.name, &item.message);
            items.push(item);
            tickets.push(Some(ticket));
        }
        if !all.is_empty() {
            self.waiting.push_back((group, all));
        }
    }

    pub(super) fn end(&mut self, end: LaneEnd) -> Result<()> {
        let LaneEnd { lane, held, worked } = end;
        let Some(running) = self.running.remove(&lane) else {
            return worked;
        };
        let slow = running.is_slow(self.typical);
        let each = running.began.elapsed()
            / u32::try_from(running.tickets.len().max(1)).unwrap_or(u32::MAX);
        // One slow lane changes little; where all are, that is how long it takes.
        self.typical = match slow {
            true => self.typical * 5 / 4 + Duration::from_millis(1),
            false => (self.typical * 7 + each) / 8,
        };
        let held = held.filter(|_| running.generation == self.generation);
        let groups = running.groups.clone();
        let whole = self.put_away(running);
        for group in groups {
            self.busy.remove(&group);
            match group {
                Group::Partition(partition) => self.partition_ended(partition, held.clone(), whole),
                bucket if slow => drop(self.slow.insert(bucket)),
                bucket => drop(self.slow.remove(&bucket)),
            }
        }
        worked
    }

    fn partition_ended(&mut self, partition: String, held: Option<PartitionLease>, whole: bool) {
        let most = self.shared.limits.batch;
        let size = self.batches.remove(&partition).unwrap_or(most);
        match held.is_some() {
            true if size >= most => {}
            true => drop(self.batches.insert(partition.clone(), size * 2)),
            false => drop(self.batches.insert(partition.clone(), (size / 2).max(1))),
        }
        // A lane that ended early has no right to what comes after.
        if !whole || held.is_none() {
            self.drop_waiting(&partition, true);
        }
        self.held.extend(held.map(|held| (partition, held)));
    }

    /// What was settled is to be acknowledged, the rest to be given back. True: there is no rest.
    fn put_away(&mut self, mut running: Running<T>) -> bool {
        let settled = running.settled.lock();
        for index in settled.unwrap_or_else(PoisonError::into_inner).drain(..) {
            self.acked.extend(running.tickets[index].take());
        }
        let before = self.left.len();
        self.left.extend(running.tickets.into_iter().flatten());
        self.left.len() == before
    }

    /// Nothing more is begun, and nothing more waited for.
    pub(super) fn give_up(&mut self) {
        for (_, running) in std::mem::take(&mut self.running) {
            self.put_away(running);
        }
        let waiting = self.waiting.drain(..).flat_map(|(_, items)| items);
        self.left.extend(waiting.map(|(_, ticket)| ticket));
    }
}
