//! Kafka, through librdkafka.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, mpsc};
use std::time::{Duration, UNIX_EPOCH};

use pgonce::Error;
use pgonce::inbox::{Message, Position};
use rdkafka::ClientConfig;
use rdkafka::consumer::{CommitMode, Consumer as _, StreamConsumer};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::message::{Headers as _, Message as _, OwnedMessage};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::{TIMEOUT, attributes};
use crate::{Incoming, KafkaSecurity, Order, Source, SourceError};

/// How to read a topic.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct KafkaConfig {
    /// `host:port`, several with commas between.
    pub brokers: String,
    /// The topic, which must be there.
    pub topic: String,
    /// Which of its partitions. Default: all.
    pub partitions: Option<Vec<i32>>,
    /// The group whose offsets are moved along, so that Kafka's own tools see the lag. Default: `pgonce`,
    /// Nothing is ever read from there.
    pub group: String,
    /// What its messages are remembered under. Default: `kafka:` and the topic.
    pub name: String,
    /// TLS and SASL. Default: neither.
    pub security: KafkaSecurity,
    /// How long an answer may take.
    pub timeout: Duration,
}

impl KafkaConfig {
    /// This topic of those brokers.
    pub fn new(brokers: impl Into<String>, topic: impl Into<String>) -> Self {
        let topic = topic.into();
        Self {
            brokers: brokers.into(),
            name: format!("kafka:{topic}"),
            topic,
            partitions: None,
            group: "pgonce".to_owned(),
            security: KafkaSecurity::default(),
            timeout: TIMEOUT,
        }
    }
}

/// Reads the partitions of a topic, each in its order and by one worker at a time. How far a partition is
/// applied is a cursor in the database, moved with the effects; Kafka's offsets follow afterwards, for its tools only.
///
/// There is no consumer group that hands partitions out: a worker takes those whose lease nobody has.
/// The id is the header `ce_id`; key, type and tenant are `ce_subject` (else the record's key), `ce_type`
/// and `ce_tenant`. A topic that is created anew must be given another [`KafkaConfig::name`]: it counts anew.
pub struct Kafka {
    config: KafkaConfig,
    consumer: Arc<StreamConsumer>,
    reading: BTreeMap<i32, Reading>,
    waiting: Vec<Incoming<(i32, i64)>>,
    /// Not asked for at present: the consumer has enough of them.
    paused: HashSet<i32>,
    /// What the client does not fetch: those that are paused, and those that rest.
    held: HashSet<i32>,
    /// The client was not asked yet for what is to be read now.
    is_changed: bool,
    /// After `consumer`, so that this is the last that has it.
    _closing: Closing,
}

/// Everything from `from` on was handed out and is not settled, up to `next`.
#[derive(Debug, Clone, Copy, Default)]
struct Reading {
    from: i64,
    next: i64,
    /// The client was not sent to `next` yet: what it brings is from another place.
    is_moved: bool,
    /// It was given back, as when another worker has it: the other partitions go on meanwhile.
    rests_until: Option<Instant>,
}

/// How long a partition that was given back rests, at least: to take it up again costs a fetch, and a question to the database.
const REST: Duration = Duration::from_millis(500);

/// How long the end of the process waits for a client that is closed.
const CLOSING: Duration = Duration::from_secs(5);

impl Kafka {
    /// Connects, and looks for the topic's partitions.
    pub async fn connect(config: KafkaConfig) -> Result<Self, SourceError> {
        let timeout = config.timeout.as_millis().clamp(100, 600_000).to_string();
        let mut made = ClientConfig::new();
        made.set("client.id", "pgonce-consumer")
            .set("bootstrap.servers", &config.brokers)
            .set("group.id", &config.group)
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("auto.offset.reset", "earliest")
            .set("socket.timeout.ms", &timeout);
        let applied = config.security.apply(&mut made);
        applied.map_err(|error| SourceError::Broken(Error::work(error)))?;
        let made = made.create::<StreamConsumer>();
        let consumer = Arc::new(made.map_err(|error| SourceError::Broken(Error::work(error)))?);
        let mut source = Self {
            config,
            _closing: Closing(Some(consumer.clone())),
            consumer,
            reading: BTreeMap::new(),
            waiting: Vec::new(),
            paused: HashSet::new(),
            held: HashSet::new(),
            is_changed: false,
        };
        let found = source.partitions().await?;
        let wished = source.config.partitions.clone().unwrap_or(found.clone());
        if let Some(missing) = wished.iter().find(|wished| !found.contains(wished)) {
            let topic = &source.config.topic;
            return Err(SourceError::Broken(Error::work(format!(
                "topic {topic:?} has no partition {missing}"
            ))));
        }
        let begin = |partition| (partition, Reading::default());
        source.reading = wished.into_iter().map(begin).collect();
        source.assign()?;
        Ok(source)
    }

    async fn partitions(&self) -> Result<Vec<i32>, SourceError> {
        let (asking, config) = (self.consumer.clone(), self.config.clone());
        let ask = move || {
            let client = asking.client();
            client.fetch_metadata(Some(&config.topic), config.timeout)
        };
        let reply = match tokio::task::spawn_blocking(ask).await {
            Ok(reply) => reply.map_err(|error| unavailable(&error))?,
            Err(error) => return Err(SourceError::Unavailable(error.to_string())),
        };
        let topics = reply.topics().iter();
        let found = topics.filter(|topic| topic.error().is_none());
        let mut found = found.flat_map(|topic| topic.partitions()).map(|p| p.id());
        let first = found.next().ok_or_else(|| {
            SourceError::Unavailable(format!("there is no topic {:?}", self.config.topic))
        })?;
        Ok([first].into_iter().chain(found).collect())
    }

    /// Reads every partition. This is done once in the life of a client, which then is sent elsewhere by seeking: librdkafka
    /// ends the process where a partition is taken from it again before it has stopped to read it (an assertion in
    /// rdkafka_assignment.c), and a second assignment, or closing the client, takes it from it.
    fn assign(&self) -> Result<(), SourceError> {
        let mut list = TopicPartitionList::new();
        for &partition in self.reading.keys() {
            let added = list.add_partition_offset(&self.config.topic, partition, Offset::Beginning);
            added.map_err(|error| unavailable(&error))?;
        }
        let assigned = self.consumer.assign(&list);
        assigned.map_err(|error| unavailable(&error))
    }

    fn list<'a>(&self, partitions: impl IntoIterator<Item = &'a i32>) -> TopicPartitionList {
        let mut list = TopicPartitionList::new();
        for partition in partitions {
            list.add_partition(&self.config.topic, *partition);
        }
        list
    }

    /// Makes the client read what is to be read, from where it is to go on. Answers when the next partition has rested.
    fn follow(&mut self) -> Result<Instant, SourceError> {
        let now = Instant::now();
        for reading in self.reading.values_mut() {
            if reading.rests_until.is_some_and(|until| until <= now) {
                reading.rests_until = None;
                self.is_changed = true;
            }
        }
        if self.is_changed {
            self.change().map_err(|error| unavailable(&error))?;
            self.is_changed = false;
        }
        let resting = self
            .reading
            .values()
            .filter_map(|reading| reading.rests_until);
        Ok(resting.min().unwrap_or(now + Duration::from_secs(3600)))
    }

    /// What fails here is done again as a whole. Nothing of it runs beside anything else: of two seeks the later one counts.
    fn change(&mut self) -> KafkaResult<()> {
        let rests = |(&partition, reading): (&i32, &Reading)| {
            let rests = reading.rests_until.is_some() || self.paused.contains(&partition);
            rests.then_some(partition)
        };
        let held: HashSet<i32> = self.reading.iter().filter_map(rests).collect();
        self.consumer
            .pause(&self.list(held.difference(&self.held)))?;
        let mut moved = TopicPartitionList::new();
        for (&partition, reading) in &self.reading {
            if reading.is_moved && reading.rests_until.is_none() {
                let offset = match reading.next {
                    0 => Offset::Beginning,
                    next => Offset::Offset(next),
                };
                moved.add_partition_offset(&self.config.topic, partition, offset)?;
            }
        }
        if moved.count() > 0 {
            let moved = self.consumer.seek_partitions(moved, self.config.timeout)?;
            for one in moved.elements() {
                one.error()?;
                if let Some(reading) = self.reading.get_mut(&one.partition()) {
                    reading.is_moved = false;
                }
            }
        }
        let resumed = self.list(self.held.difference(&held));
        self.consumer.resume(&resumed)?;
        self.held = held;
        Ok(())
    }

    fn go_to(&mut self, partition: i32, offset: i64) {
        let reading = self.reading.entry(partition).or_default();
        (reading.from, reading.next, reading.is_moved) = (offset, offset, true);
        self.is_changed = true;
        self.waiting.retain(|kept| kept.ticket.0 != partition);
    }

    fn keep(&mut self, came: &OwnedMessage) {
        let (partition, offset) = (came.partition(), came.offset());
        let Some(reading) = self.reading.get_mut(&partition) else {
            return;
        };
        if offset < reading.next || reading.is_moved {
            return; // From before it was sent elsewhere.
        }
        reading.next = offset + 1;
        let message = read(came).at(self.partition_name(partition), offset);
        let ticket = (partition, offset);
        self.waiting.push(Incoming { message, ticket });
    }

    fn partition_name(&self, partition: i32) -> String {
        format!("{}/{partition}", self.config.topic)
    }
}

/// Closes a client on a thread of its own. While Kafka is away that may take for ever: the client waits until its group knows
/// the last offsets, which nothing depends on.
struct Closing(Option<Arc<StreamConsumer>>);

impl Drop for Closing {
    fn drop(&mut self) {
        let consumer = self.0.take();
        let (closed, is_closed) = mpsc::channel::<()>();
        let close = move || {
            drop(consumer);
            drop(closed);
        };
        let _ = std::thread::Builder::new().spawn(close);
        // The runtime waits for this at its end: a process that ends while a client is at work may crash.
        let wait = move || is_closed.recv_timeout(CLOSING);
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn_blocking(wait);
        }
    }
}

impl Source for Kafka {
    type Ticket = (i32, i64);

    fn name(&self) -> &str {
        &self.config.name
    }

    fn order(&self) -> Order {
        Order::Ordered
    }

    async fn pull(
        &mut self,
        limit: usize,
        within: Duration,
    ) -> Result<Vec<Incoming<(i32, i64)>>, SourceError> {
        let mut until = None;
        while self.waiting.len() < limit {
            let wakes = self.follow()?;
            let came = match self.waiting.is_empty() {
                true => tokio::select! {
                    biased;
                    came = self.consumer.recv() => came,
                    () = sleep_until(wakes) => continue,
                },
                false => {
                    let end = *until.get_or_insert_with(|| Instant::now() + within);
                    match timeout_at(end, self.consumer.recv()).await {
                        Ok(came) => came,
                        Err(_) => break,
                    }
                }
            };
            let came = came.map(|came| came.detach());
            self.keep(&came.map_err(|error| unavailable(&error))?);
        }
        Ok(std::mem::take(&mut self.waiting))
    }

    async fn ack(&mut self, tickets: Vec<(i32, i64)>) -> Result<(), SourceError> {
        let mut furthest = BTreeMap::new();
        for (partition, offset) in tickets {
            let furthest = furthest.entry(partition).or_insert(offset);
            *furthest = offset.max(*furthest);
        }
        let mut list = TopicPartitionList::new();
        for (partition, offset) in furthest {
            if let Some(reading) = self.reading.get_mut(&partition)
                && offset < reading.next
            {
                reading.from = reading.from.max(offset + 1);
            }
            let next = Offset::Offset(offset + 1);
            let added = list.add_partition_offset(&self.config.topic, partition, next);
            added.map_err(|error| unavailable(&error))?;
        }
        // For Kafka's tools: whether it arrives changes nothing.
        if let Err(error) = self.consumer.commit(&list, CommitMode::Async) {
            tracing::debug!(%error, "the group's offsets were not moved");
        }
        Ok(())
    }

    async fn nack(&mut self, tickets: Vec<(i32, i64)>, after: Duration) -> Result<(), SourceError> {
        let mut first = BTreeMap::new();
        for (partition, offset) in tickets {
            let first = first.entry(partition).or_insert(offset);
            *first = offset.min(*first);
        }
        for (partition, offset) in first {
            self.go_to(partition, offset);
            if let Some(reading) = self.reading.get_mut(&partition) {
                reading.rests_until = Some(Instant::now() + after.max(REST));
            }
        }
        self.follow().map(drop)
    }

    async fn seek(
        &mut self,
        partition: &str,
        after: Option<Position>,
    ) -> Result<bool, SourceError> {
        let next = after.map_or(0, |after| after.major.saturating_add(1));
        let number = partition.rsplit('/').next().and_then(|n| n.parse().ok());
        let Some((number, reading)) = number.and_then(|n| Some((n, self.reading.get(&n)?))) else {
            return Ok(true); // Not one of ours.
        };
        if reading.from <= next && next <= reading.next {
            return Ok(false);
        }
        self.go_to(number, next);
        self.follow()?;
        Ok(true)
    }

    async fn pause(&mut self, partitions: &HashSet<String>) -> Result<(), SourceError> {
        let number = |name: &String| name.rsplit('/').next()?.parse().ok();
        self.paused = partitions.iter().filter_map(number).collect();
        self.is_changed = true;
        self.follow().map(drop)
    }
}

fn read(came: &OwnedMessage) -> Message {
    let mut message = Message::new("", came.payload().unwrap_or_default());
    let key = came.key().and_then(|key| std::str::from_utf8(key).ok());
    message.key = key.map(str::to_owned);
    let sent = came.timestamp().to_millis();
    let sent = sent.and_then(|ms| u64::try_from(ms).ok());
    message.sent_at = sent.and_then(|ms| UNIX_EPOCH.checked_add(Duration::from_millis(ms)));
    for header in came
        .headers()
        .into_iter()
        .flat_map(|headers| headers.iter())
    {
        let value = attributes::text(header.value.unwrap_or_default());
        let attribute = header.key.strip_prefix("ce_");
        if let Some(attribute) = attribute {
            attributes::put(&mut message, attribute, &value);
        }
        let name = attribute.unwrap_or(header.key);
        message.headers.insert(name.to_owned(), value.into());
    }
    message
}

fn unavailable(error: &KafkaError) -> SourceError {
    SourceError::Unavailable(format!("Kafka: {error}"))
}

impl std::fmt::Debug for Kafka {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kafka")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}
