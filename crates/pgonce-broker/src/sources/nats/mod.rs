//! NATS JetStream.

mod config;

use std::time::Duration;

use async_nats::connection::State;
use async_nats::jetstream::consumer::pull::{self, Batch};
use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, PullConsumer};
use async_nats::jetstream::context::{Context, ContextBuilder};
use async_nats::jetstream::message::{AckKind, Acker};
use async_nats::jetstream::stream::Stream;
use async_nats::{Client, header};
use futures_util::StreamExt as _;
use pgonce::Error;
use pgonce::inbox::{Message, Position};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use super::attributes;
use crate::{Incoming, Order, Source, SourceError, jetstream};

pub use config::NatsConfig;

/// How many messages are asked for at once, at most: the client's own queue is longer than that.
const MAX_REQUESTED: usize = 10_000;

/// How long a request waits at the server.
const REQUEST_WAITS: Duration = Duration::from_secs(5);

/// How long the server keeps a reader of its own kind that does not ask any more.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

/// One delivery of a message.
pub struct NatsTicket {
    sequence: u64,
    /// Where NATS wants to be reply.
    acker: Option<Acker>,
}

impl std::fmt::Debug for NatsTicket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NatsTicket({})", self.sequence)
    }
}

/// Reads a JetStream stream, in one of two ways.
///
/// [`NatsConfig::durable`]: any number of workers share a durable consumer, and NATS gets an acknowledgement of each message
/// once it is settled. What was delivered and not settled comes again, perhaps behind others: there is no
/// order between workers.
///
/// [`NatsConfig::ordered`]: one worker at a time reads, in the order of the stream's sequence; the others
/// wait for its lease. Its place is the cursor in the database, moved with the effects, and NATS is informed
/// nothing: the stream must keep messages by limits, not until they are acknowledged.
///
/// The id is `Nats-Msg-Id`, else `ce-id`; key, type and tenant are `ce-subject`, `ce-type`, `ce-tenant`.
pub struct Nats {
    config: NatsConfig,
    client: Client,
    context: Context,
    /// Counts how often the connection was lost.
    losses: watch::Receiver<u64>,
    /// The durable consumer.
    durable: Option<PullConsumer>,
    /// Where the stream is read in order.
    ordered: Reading,
    batch: Option<Batch>,
    /// Pulled from the broker, not yet handed out.
    waiting: Vec<Incoming<NatsTicket>>,
    /// In order, what was handed out last: a worker that waits for another's lease asks for it again and again.
    handed: Vec<(u64, Message)>,
    not_before: Option<Instant>,
}

#[derive(Default)]
struct Reading {
    consumer: Option<PullConsumer>,
    /// The stream's name and when it was made: one that is made anew counts anew.
    partition: String,
    /// Everything from here on was handed out and is not settled, in order, up to `next`.
    from: u64,
    /// What is to be read next.
    next: u64,
    /// The consumer's own count, by which a gap is noticed.
    delivered: u64,
}

impl Nats {
    /// Connects, and looks at the stream and its consumer.
    pub async fn connect(config: NatsConfig) -> Result<Self, SourceError> {
        let credentials = config.credentials.as_deref();
        let (options, losses) = jetstream::options("pgonce consumer", config.timeout, credentials)
            .await
            .map_err(|error| SourceError::Broken(Error::work(error)))?;
        let connected = options.connect(&config.url).await;
        let client = connected.map_err(|error| unavailable("NATS cannot be reached", &error))?;
        let context = ContextBuilder::new()
            .timeout(config.timeout)
            .build(client.clone());
        let mut source = Self {
            config,
            client,
            context,
            losses,
            durable: None,
            ordered: Reading::default(),
            batch: None,
            waiting: Vec::new(),
            handed: Vec::new(),
            not_before: None,
        };
        match source.config.durable.clone() {
            Some(name) => source.durable = Some(source.durable(&name).await?),
            None => source.read_from(1).await?,
        }
        Ok(source)
    }

    async fn stream(&self) -> Result<Stream, SourceError> {
        let name = &self.config.stream;
        let found = self.context.get_stream(name).await;
        found.map_err(|error| unavailable(&format!("stream {name:?} cannot be read"), &error))
    }

    async fn durable(&self, name: &str) -> Result<PullConsumer, SourceError> {
        let wished = pull::Config {
            durable_name: Some(name.to_owned()),
            ack_policy: AckPolicy::Explicit,
            ack_wait: self.config.ack_wait,
            max_deliver: -1,
            max_ack_pending: -1,
            filter_subject: self.config.subject.clone().unwrap_or_default(),
            ..pull::Config::default()
        };
        let stream = self.stream().await?;
        let made = stream.get_or_create_consumer(name, wished).await;
        let consumer = made.map_err(|error| unavailable("its consumer cannot be made", &error))?;
        let found = &consumer.cached_info().config;
        if found.ack_policy != AckPolicy::Explicit {
            return Err(SourceError::Broken(Error::work(format!(
                "the durable consumer {name:?} must have the acknowledgement policy \"explicit\", not {:?}",
                found.ack_policy
            ))));
        }
        if found.max_deliver > 0 {
            return Err(SourceError::Broken(Error::work(format!(
                "the durable consumer {name:?} stops after {} deliveries, and what is not settled by then \
                 is lost: let it deliver without an end; what can never be applied goes to the inbox's poison",
                found.max_deliver
            ))));
        }
        Ok(consumer)
    }

    /// Reads the stream in order, from this message on.
    async fn read_from(&mut self, sequence: u64) -> Result<(), SourceError> {
        self.batch = None;
        self.ordered.consumer = None;
        let stream = self.stream().await?;
        let info = stream.cached_info();
        let made = std::time::SystemTime::from(info.created);
        let made = made.duration_since(std::time::UNIX_EPOCH);
        let made = made.map_or(0, |since| since.as_nanos());
        let partition = format!("{}@{made}", self.config.stream);
        let sequence = match partition == self.ordered.partition {
            true => sequence,
            false => 1,
        };
        let wished = pull::Config {
            deliver_policy: DeliverPolicy::ByStartSequence {
                start_sequence: sequence.max(1),
            },
            ack_policy: AckPolicy::None,
            filter_subject: self.config.subject.clone().unwrap_or_default(),
            inactive_threshold: FORGOTTEN_AFTER,
            memory_storage: true,
            num_replicas: 1,
            ..pull::Config::default()
        };
        let made = stream.create_consumer(wished).await;
        let consumer = made.map_err(|error| unavailable("its reader cannot be made", &error))?;
        self.ordered = Reading {
            consumer: Some(consumer),
            partition,
            from: sequence,
            next: sequence,
            delivered: 0,
        };
        Ok(())
    }

    /// The next message, or `None` where a request is over. What is taken is in `waiting` when this ends.
    async fn take(&mut self, limit: usize) -> Result<bool, SourceError> {
        if self.batch.is_none() {
            if self.durable.is_none() && self.ordered.consumer.is_none() {
                let (from, next) = (self.ordered.from, self.ordered.next);
                self.read_from(next).await?;
                // It goes on where it was: what was handed out before still counts.
                if self.ordered.next == next {
                    self.ordered.from = from;
                }
            }
            let consumer = self.durable.as_ref().or(self.ordered.consumer.as_ref());
            let Some(consumer) = consumer else {
                return Ok(false); // Just made.
            };
            let request = consumer
                .batch()
                .max_messages(limit.clamp(1, MAX_REQUESTED))
                .expires(REQUEST_WAITS);
            let asked = request.messages().await;
            self.batch = Some(asked.map_err(|error| unavailable("it cannot be asked", &error))?);
        }
        let Some(batch) = &mut self.batch else {
            return Ok(false);
        };
        match batch.next().await {
            Some(Ok(delivered)) => {
                self.keep(delivered);
                Ok(true)
            }
            Some(Err(error)) => {
                self.start_over();
                Err(SourceError::Unavailable(error.to_string()))
            }
            None => {
                self.batch = None;
                Ok(false)
            }
        }
    }

    fn keep(&mut self, delivered: async_nats::jetstream::Message) {
        let Ok(info) = delivered.info() else {
            return; // Not from JetStream: nobody waits for it.
        };
        let (sequence, times) = (info.stream_sequence, info.delivered.unsigned_abs());
        let mut message = read(&delivered.message);
        message.redelivered = times > 1;
        message.sent_at = Some(info.published.into());
        for (name, number) in [("nats-sequence", sequence), ("nats-delivered", times)] {
            message.headers.insert(name.to_owned(), number.into());
        }
        if self.durable.is_none() {
            if info.consumer_sequence != self.ordered.delivered + 1 {
                tracing::info!(sequence, "messages went missing on the way, reading again");
                self.start_over();
                return;
            }
            self.ordered.delivered += 1;
            self.ordered.next = sequence + 1;
            let position = i64::try_from(sequence).unwrap_or(i64::MAX);
            message = message.at(self.ordered.partition.clone(), position);
        }
        let acker = self.durable.is_some().then(|| delivered.split().1);
        let ticket = NatsTicket { sequence, acker };
        self.waiting.push(Incoming { message, ticket });
    }

    fn start_over(&mut self) {
        self.batch = None;
        self.ordered.consumer = None;
    }

    /// Reads in order from elsewhere, beginning with the next pull.
    fn go_to(&mut self, sequence: u64) {
        self.start_over();
        self.waiting.clear();
        (self.ordered.from, self.ordered.next) = (sequence, sequence);
    }

    async fn settle(&self, tickets: &[NatsTicket], kind: AckKind) -> Result<(), SourceError> {
        if self.client.connection_state() != State::Connected {
            return Err(not_connected());
        }
        let telling = async {
            for ticket in tickets {
                if let Some(acker) = &ticket.acker {
                    acker.ack_with(kind).await.map_err(|e| e.to_string())?;
                }
            }
            self.client.flush().await.map_err(|e| e.to_string())
        };
        match timeout(self.config.timeout, telling).await {
            Ok(reply) => reply.map_err(SourceError::Unavailable),
            Err(_) => Err(SourceError::Unavailable(
                "NATS did not take it in time".to_owned(),
            )),
        }
    }
}

impl Source for Nats {
    type Ticket = NatsTicket;

    fn name(&self) -> &str {
        &self.config.name
    }

    fn order(&self) -> Order {
        match self.config.durable {
            Some(_) => Order::Unordered,
            None => Order::Ordered,
        }
    }

    async fn pull(
        &mut self,
        limit: usize,
        within: Duration,
    ) -> Result<Vec<Incoming<NatsTicket>>, SourceError> {
        if let Some(due) = self.not_before {
            sleep_until(due).await;
            self.not_before = None;
        }
        // A server that was away, even between two pulls, has forgotten what it was asked.
        if self.losses.has_changed().unwrap_or(true) {
            self.losses.mark_unchanged();
            self.start_over();
        }
        if self.client.connection_state() != State::Connected {
            self.start_over();
            return Err(not_connected());
        }
        let mut losses = self.losses.clone();
        let mut until = None;
        while self.waiting.len() < limit {
            if !self.waiting.is_empty() {
                let end = *until.get_or_insert_with(|| Instant::now() + within);
                // A request that is over is not followed by another while something is in hand.
                if self.batch.is_none() {
                    break;
                }
                tokio::select! {
                    biased;
                    took = self.take(limit) => if !took? { break },
                    () = sleep_until(end) => break,
                }
                continue;
            }
            tokio::select! {
                biased;
                took = self.take(limit) => { took?; }
                _ = losses.changed() => {
                    self.start_over();
                    return Err(not_connected());
                }
            }
        }
        if self.durable.is_none() {
            let handed = self.waiting.iter();
            let handed = handed.map(|kept| (kept.ticket.sequence, kept.message.clone()));
            self.handed = handed.collect();
        }
        Ok(std::mem::take(&mut self.waiting))
    }

    async fn ack(&mut self, tickets: Vec<NatsTicket>) -> Result<(), SourceError> {
        match self.durable {
            Some(_) => self.settle(&tickets, AckKind::Ack).await,
            None => {
                let settled = tickets.iter().map(|ticket| ticket.sequence + 1).max();
                let settled = settled.filter(|settled| *settled <= self.ordered.next);
                self.ordered.from = self.ordered.from.max(settled.unwrap_or_default());
                Ok(())
            }
        }
    }

    async fn nack(&mut self, tickets: Vec<NatsTicket>, after: Duration) -> Result<(), SourceError> {
        if self.durable.is_some() {
            return self.settle(&tickets, AckKind::Nak(Some(after))).await;
        }
        let Some(first) = tickets.iter().map(|ticket| ticket.sequence).min() else {
            return Ok(());
        };
        self.not_before = Some(Instant::now() + after);
        if self.handed.first().is_none_or(|(kept, _)| first < *kept) {
            self.go_to(first); // Of an earlier pull: it is read again.
            return Ok(());
        }
        self.ordered.from = first; // What is before it is not handed out again.
        let later = std::mem::take(&mut self.waiting);
        let again = self.handed.drain(..).filter(|(at, _)| *at >= first);
        let again = again.map(|(sequence, message)| Incoming {
            message,
            ticket: NatsTicket {
                sequence,
                acker: None,
            },
        });
        self.waiting = again.chain(later).collect();
        Ok(())
    }

    async fn seek(
        &mut self,
        partition: &str,
        after: Option<Position>,
    ) -> Result<bool, SourceError> {
        let after = after.map_or(0, |after| u64::try_from(after.major).unwrap_or_default());
        let read = &self.ordered;
        if partition != read.partition {
            return Ok(true); // Of a stream that is no more.
        }
        if read.from <= after + 1 && after < read.next {
            return Ok(false);
        }
        self.go_to(after + 1);
        Ok(true)
    }

    async fn close(&mut self) {
        let waiting = std::mem::take(&mut self.waiting);
        let tickets: Vec<_> = waiting
            .into_iter()
            .map(|incoming| incoming.ticket)
            .collect();
        if self.durable.is_some() {
            // Where it does not arrive, they come again by themselves.
            let _ = self.settle(&tickets, AckKind::Nak(None)).await;
        }
        self.start_over();
    }
}

fn read(came: &async_nats::Message) -> Message {
    let mut message = Message::new("", &came.payload);
    message
        .headers
        .insert("nats-subject".to_owned(), came.subject.as_str().into());
    let Some(headers) = &came.headers else {
        return message;
    };
    if let Some(id) = headers.get(header::NATS_MESSAGE_ID) {
        message.id = id.as_str().to_owned();
    }
    for (name, values) in headers.iter() {
        let name = AsRef::<str>::as_ref(name).to_ascii_lowercase();
        let Some(value) = values.last() else { continue };
        match name.strip_prefix("ce-") {
            Some(attribute) => {
                let value = attributes::decoded(value.as_str());
                attributes::put(&mut message, attribute, &value);
                message.headers.insert(attribute.to_owned(), value.into());
            }
            None => {
                message.headers.insert(name, value.as_str().into());
            }
        }
    }
    message
}

fn not_connected() -> SourceError {
    SourceError::Unavailable("not connected to NATS".to_owned())
}

fn unavailable(what: &str, why: &dyn std::fmt::Display) -> SourceError {
    SourceError::Unavailable(format!("{what}: {why:#}"))
}

impl std::fmt::Debug for Nats {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Nats")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}
