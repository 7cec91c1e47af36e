//! RabbitMQ, over AMQP 0.9.1.

use std::time::{Duration, UNIX_EPOCH};

use futures_util::StreamExt as _;
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicNackOptions, BasicQosOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Acker, Connection, Consumer, Error};
use pgonce::inbox::Message;
use serde_json::Value;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::{TIMEOUT, attributes};
use crate::{Incoming, Source, SourceError, amqp};

/// How to read a queue.
#[derive(Clone)]
#[non_exhaustive]
pub struct RabbitMqConfig {
    /// Such as `amqp://user:password@host:5672/vhost`.
    pub url: String,
    /// The queue, which must be there.
    pub queue: String,
    /// How many messages RabbitMQ hands over before the first of them is settled. Default: 400.
    /// At least as many as a consumer has in hand at once.
    pub prefetch: u16,
    /// What its messages are remembered under. Default: `rabbitmq:` and the queue's name.
    pub name: String,
    /// How long an answer may take.
    pub timeout: Duration,
}

impl RabbitMqConfig {
    /// This queue of that node.
    pub fn new(url: impl Into<String>, queue: impl Into<String>) -> Self {
        let queue = queue.into();
        Self {
            url: url.into(),
            name: format!("rabbitmq:{queue}"),
            queue,
            prefetch: 400,
            timeout: TIMEOUT,
        }
    }
}

/// Without the address, which may hold a password.
impl std::fmt::Debug for RabbitMqConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RabbitMqConfig")
            .field("queue", &self.queue)
            .field("prefetch", &self.prefetch)
            .field("name", &self.name)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

/// One delivery of a message. Of no use once its connection is lost: RabbitMQ delivers it again then.
#[derive(Debug)]
pub struct RabbitMqTicket(Acker);

/// Reads a queue, and acknowledges each message once it is settled. Any number of workers may read it.
///
/// The id is the property `message_id`, else the header `cloudEvents_id` (or `cloudEvents:id`); the type is
/// the property `type` or that attribute's header, key and tenant are the attributes `subject` and `tenant`.
#[derive(Debug)]
pub struct RabbitMq {
    config: RabbitMqConfig,
    live: Option<Live>,
    /// Taken from the broker, not yet handed out.
    waiting: Vec<Incoming<RabbitMqTicket>>,
}

/// Dropped, it closes the connection: what was not settled goes back into the queue.
#[derive(Debug)]
struct Live {
    deliveries: Consumer,
    connection: Connection,
}

impl RabbitMq {
    /// Connects, and looks for the queue.
    pub async fn connect(config: RabbitMqConfig) -> Result<Self, SourceError> {
        let live = Some(connect(&config).await?);
        Ok(Self {
            config,
            live,
            waiting: Vec::new(),
        })
    }

    /// What came over a connection that is lost comes again: nobody may settle it twice.
    fn lost(&mut self, why: String) -> SourceError {
        self.live = None;
        self.waiting.clear();
        SourceError::Unavailable(why)
    }

    async fn settle(
        &mut self,
        tickets: Vec<RabbitMqTicket>,
        how: impl AsyncFn(&Acker) -> Result<bool, Error>,
    ) -> Result<(), SourceError> {
        let settling = async {
            for RabbitMqTicket(acker) in &tickets {
                if acker.usable() {
                    how(acker).await?;
                }
            }
            Ok::<_, Error>(())
        };
        match timeout(self.config.timeout, settling).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(self.lost(error.to_string())),
            Err(_) => Err(self.lost("RabbitMQ did not take it in time".to_owned())),
        }
    }
}

impl Source for RabbitMq {
    type Ticket = RabbitMqTicket;

    fn name(&self) -> &str {
        &self.config.name
    }

    async fn pull(
        &mut self,
        limit: usize,
        within: Duration,
    ) -> Result<Vec<Incoming<RabbitMqTicket>>, SourceError> {
        let mut until = None;
        while self.waiting.len() < limit {
            let live = match &mut self.live {
                Some(live) => live,
                none => none.insert(connect(&self.config).await?),
            };
            let next = match self.waiting.is_empty() {
                true => live.deliveries.next().await,
                false => {
                    let end = *until.get_or_insert_with(|| Instant::now() + within);
                    tokio::select! {
                        biased;
                        next = live.deliveries.next() => next,
                        () = sleep_until(end) => break,
                    }
                }
            };
            match next {
                Some(Ok(delivery)) => self.waiting.push(read(delivery)),
                Some(Err(error)) => return Err(self.lost(error.to_string())),
                None => {
                    let why = format!(
                        "RabbitMQ ended the reading of queue {:?}",
                        self.config.queue
                    );
                    return Err(self.lost(why));
                }
            }
        }
        Ok(std::mem::take(&mut self.waiting))
    }

    async fn ack(&mut self, tickets: Vec<RabbitMqTicket>) -> Result<(), SourceError> {
        let each = async |acker: &Acker| acker.ack(BasicAckOptions::default()).await;
        self.settle(tickets, each).await
    }

    /// RabbitMQ knows no delay: it is waited for here, so that a queue is not turned over and over.
    async fn nack(
        &mut self,
        tickets: Vec<RabbitMqTicket>,
        after: Duration,
    ) -> Result<(), SourceError> {
        sleep(after).await;
        let options = BasicNackOptions {
            requeue: true,
            ..BasicNackOptions::default()
        };
        let each = async move |acker: &Acker| acker.nack(options).await;
        self.settle(tickets, each).await
    }

    async fn close(&mut self) {
        self.waiting.clear();
        if let Some(live) = self.live.take() {
            // Everything that is not settled goes back with it.
            let _ = live.connection.close(200, "bye".into()).await;
        }
    }
}

async fn connect(config: &RabbitMqConfig) -> Result<Live, SourceError> {
    let connecting = async {
        let connection = amqp::connect(&config.url, "pgonce consumer").await?;
        let channel = connection.create_channel().await?;
        let passive = QueueDeclareOptions {
            passive: true,
            ..QueueDeclareOptions::default()
        };
        let (queue, none) = (config.queue.as_str(), FieldTable::default);
        channel.queue_declare(queue.into(), passive, none()).await?;
        let prefetch = config.prefetch.max(1);
        channel
            .basic_qos(prefetch, BasicQosOptions::default())
            .await?;
        let tag = format!("pgonce-{}", uuid::Uuid::new_v4().simple());
        let options = BasicConsumeOptions::default();
        let deliveries = channel
            .basic_consume(queue.into(), tag.as_str().into(), options, none())
            .await?;
        Ok::<_, Error>(Live {
            deliveries,
            connection,
        })
    };
    let why = match timeout(config.timeout, connecting).await {
        Ok(Ok(live)) => return Ok(live),
        Ok(Err(error)) => error.to_string(),
        Err(_) => "it did not answer in time".to_owned(),
    };
    let queue = &config.queue;
    Err(SourceError::Unavailable(format!(
        "queue {queue:?} of RabbitMQ cannot be read: {why}"
    )))
}

fn read(delivery: Delivery) -> Incoming<RabbitMqTicket> {
    let properties = &delivery.properties;
    let id = properties.message_id().as_ref();
    let id = id.map(|id| id.as_str().to_owned()).unwrap_or_default();
    let mut message = Message::new(id, &delivery.data);
    message.redelivered = delivery.redelivered;
    let sent = properties.timestamp().as_ref();
    message.sent_at = sent.and_then(|s| UNIX_EPOCH.checked_add(Duration::from_secs(*s)));
    for (name, value) in [
        ("amqp-routing-key", delivery.routing_key.as_str()),
        ("amqp-exchange", delivery.exchange.as_str()),
    ] {
        message.headers.insert(name.to_owned(), value.into());
    }
    for (name, value) in properties.headers().iter().flat_map(FieldTable::inner) {
        let (name, value) = (name.as_str(), plain(value));
        let attribute = ["cloudEvents_", "cloudEvents:"]
            .iter()
            .find_map(|prefix| name.strip_prefix(prefix));
        if let (Some(attribute), Value::String(text)) = (attribute, &value) {
            attributes::put(&mut message, attribute, text);
        }
        let name = attribute.unwrap_or(name);
        message.headers.insert(name.to_owned(), value);
    }
    if let Some(kind) = properties.kind() {
        message.kind = Some(kind.as_str().to_owned());
    }
    let ticket = RabbitMqTicket(delivery.acker);
    Incoming { message, ticket }
}

/// What JSON cannot express is written in Rust's debug form.
fn plain(value: &AMQPValue) -> Value {
    match value {
        AMQPValue::LongString(text) => text.to_string().into(),
        AMQPValue::ShortString(text) => text.as_str().into(),
        AMQPValue::Boolean(flag) => (*flag).into(),
        AMQPValue::ShortInt(number) => (*number).into(),
        AMQPValue::LongInt(number) => (*number).into(),
        AMQPValue::LongLongInt(number) => (*number).into(),
        AMQPValue::LongUInt(number) => (*number).into(),
        other => format!("{other:?}").into(),
    }
}
