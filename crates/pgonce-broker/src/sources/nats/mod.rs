//! NATS JetStream.

mod config;
mod durable;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

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

/// A request of this age that nothing came by is not answered at all: the server says when it has waited. A consumer that it does
/// not know is met with silence (up to NATS 2.10.25), until the client gives up, a second later than this.
const SILENT_AFTER: Duration = REQUEST_WAITS.saturating_add(Duration::from_secs(4));

/// How long the server keeps a reader of its own kind that does not ask any more.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

/// One delivery of a message.
pub struct NatsTicket {
    sequence: u64,
    /// For a durable consumer: what acknowledges it, and when that consumer was made.
    acker: Option<(Acker, SystemTime)>,
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
    /// The consumer at the server that is asked. `None`: it is made, or looked for, with the next request.
    reader: Option<PullConsumer>,
    /// When the durable consumer was made.
    made: SystemTime,
    /// Where the stream is read in order.
    ordered: Reading,
    request: Option<Request>,
    /// Pulled from the broker, not yet handed out.
    waiting: Vec<Incoming<NatsTicket>>,
    /// In order, what was handed out last: a worker that waits for another's lease asks for it again and again.
    handed: Vec<(u64, Message)>,
    not_before: Option<Instant>,
}

/// A request for messages.
struct Request {
    batch: Batch,
    made_at: Instant,
    /// A message came by it.
    answered: bool,
}

#[derive(Default)]
struct Reading {
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
            reader: None,
            made: UNIX_EPOCH,
            ordered: Reading::default(),
            request: None,
            waiting: Vec::new(),
            handed: Vec::new(),
            not_before: None,
        };
        source.make_reader().await?;
        Ok(source)
    }

    async fn stream(&self) -> Result<Stream, SourceError> {
        let name = &self.config.stream;
        let found = self.context.get_stream(name).await;
        found.map_err(|error| unavailable(&format!("stream {name:?} cannot be read"), &error))
    }

    /// Makes or finds the consumer to ask: at the start, and where the one before may be gone.
    async fn make_reader(&mut self) -> Result<(), SourceError> {
        let Some(name) = self.config.durable.clone() else {
            let (from, next) = (self.ordered.from, self.ordered.next);
            self.read_from(next).await?;
            // It goes on where it was: what was handed out before still counts.
            if self.ordered.next == next {
                self.ordered.from = from;
            }
            return Ok(());
        };
        let stream = self.stream().await?;
        let reader = durable::find_or_make(&stream, &self.config, &name).await?;
        self.made = SystemTime::from(reader.cached_info().created);
        self.reader = Some(reader);
        Ok(())
    }

    /// Reads the stream in order, from this message on.
    async fn read_from(&mut self, sequence: u64) -> Result<(), SourceError> {
        self.start_over();
        let stream = self.stream().await?;
        let info = stream.cached_info();
        let made = SystemTime::from(info.created).duration_since(UNIX_EPOCH);
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
        let reader = made.map_err(|error| unavailable("its reader cannot be made", &error))?;
        self.reader = Some(reader);
        self.ordered = Reading {
            partition,
            from: sequence,
            next: sequence,
            delivered: 0,
        };
        Ok(())
    }

    /// The next message, or `None` where a request is over. What is taken is in `waiting` when this ends.
    async fn take(&mut self, limit: usize) -> Result<bool, SourceError> {
        if self.request.is_none() {
            if self.reader.is_none() {
                self.make_reader().await?;
            }
            let Some(reader) = &self.reader else {
                return Ok(false); // Just made.
            };
            let made_at = Instant::now();
            let request = reader
                .batch()
                .max_messages(limit.clamp(1, MAX_REQUESTED))
                .expires(REQUEST_WAITS);
            let asked = request.messages().await;
            let batch = asked.map_err(|error| unavailable("it cannot be asked", &error))?;
            self.request = Some(Request {
                batch,
                made_at,
                answered: false,
            });
        }
        let Some(request) = &mut self.request else {
            return Ok(false);
        };
        // One that is older is given up by the client without a look at what has come meanwhile: that is no silence.
        let in_time = request.made_at.elapsed() < SILENT_AFTER;
        match request.batch.next().await {
            Some(Ok(delivered)) => {
                request.answered = true;
                self.keep(delivered);
                Ok(true)
            }
            Some(Err(error)) => {
                self.start_over();
                Err(SourceError::Unavailable(error.to_string()))
            }
            None => {
                let is_late = request.made_at.elapsed() >= SILENT_AFTER;
                let silent = in_time && is_late && !request.answered;
                self.request = None;
                if !silent {
                    return Ok(false);
                }
                self.start_over();
                Err(SourceError::Unavailable(
                    "NATS answers nothing: the consumer that it was asked for may be gone, and is looked for again"
                        .to_owned(),
                ))
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
        if self.config.durable.is_none() {
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
        let made = self.made;
        let durable = self.config.durable.is_some();
        let acker = durable.then(|| (delivered.split().1, made));
        let ticket = NatsTicket { sequence, acker };
        self.waiting.push(Incoming { message, ticket });
    }

    /// Makes the reader anew, or looks for it again, with the next request. What is in hand stays.
    fn start_over(&mut self) {
        self.request = None;
        self.reader = None;
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
                // A durable consumer that was made again counts anew: it would take this for another message of its own.
                if let Some((acker, made)) = &ticket.acker
                    && *made == self.made
                {
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
                if self.request.is_none() {
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
        if self.config.durable.is_none() {
            let handed = self.waiting.iter();
            let handed = handed.map(|kept| (kept.ticket.sequence, kept.message.clone()));
            self.handed = handed.collect();
        }
        Ok(std::mem::take(&mut self.waiting))
    }

    async fn ack(&mut self, tickets: Vec<NatsTicket>) -> Result<(), SourceError> {
        match self.config.durable {
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
        if self.config.durable.is_some() {
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
        if self.config.durable.is_some() {
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
