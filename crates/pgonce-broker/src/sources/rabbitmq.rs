//! RabbitMQ, over AMQP 0.9.1.

use std::time::{Duration, UNIX_EPOCH};

use futures_util::StreamExt as _;
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicNackOptions, BasicQosOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Acker, Channel, Connection, Consumer, Error};
use pgonce::inbox::Message;
use pgonce::unstable::digest;
use serde_json::Value;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::{TIMEOUT, attributes};
use crate::{Incoming, Source, SourceError, amqp};

/// How often a message has come back when it is warned of. Since RabbitMQ 4.0 a quorum queue gives up after 20 times, where
/// nothing else is set.
const MANY_RETURNS: u64 = 10;

/// How often the log warns of that, at most.
const WARN_INTERVAL: Duration = Duration::from_secs(60);

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
///
/// A quorum queue needs the argument `x-delivery-limit` = -1 (RabbitMQ 4; by itself it has 20 there) or a dead-letter exchange: each
/// lost connection gives back all that it was handed, and what comes back more often is dropped.
#[derive(Debug)]
pub struct RabbitMq {
    config: RabbitMqConfig,
    /// Connected, and not yet asked for messages: what a worker is given counts as delivered, whatever becomes of it.
    opened: Option<Opened>,
    live: Option<Live>,
    /// Taken from the broker, not yet handed out.
    waiting: Vec<Incoming<RabbitMqTicket>>,
    warned_at: Option<Instant>,
}

#[derive(Debug)]
struct Opened {
    channel: Channel,
    connection: Connection,
}

/// Dropped, it closes the connection: what was not settled goes back into the queue.
#[derive(Debug)]
struct Live {
    deliveries: Consumer,
    connection: Connection,
}

impl RabbitMq {
    /// Connects, and looks for the queue. Nothing is delivered before the first pull.
    pub async fn connect(config: RabbitMqConfig) -> Result<Self, SourceError> {
        let opened = Some(connect(&config).await?);
        Ok(Self {
            config,
            opened,
            live: None,
            waiting: Vec::new(),
            warned_at: None,
        })
    }

    /// A quorum queue drops what came back too often, or dead-letters it: says so in time.
    fn warn_of_limit(&mut self, message: &Message) {
        let Some(returns) = many_returns(message) else {
            return;
        };
        let now = Instant::now();
        if self.warned_at.is_some_and(|at| now < at + WARN_INTERVAL) {
            return;
        }
        self.warned_at = Some(now);
        tracing::warn!(
            queue = self.config.queue,
            message_digest = digest(&message.id),
            returns,
            "a message came back often: at its delivery-limit a quorum queue drops it. Give the queue the argument \
             x-delivery-limit = -1 (RabbitMQ 4) or a dead-letter exchange, or use a classic queue"
        );
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
                none => {
                    // Taken out: where this is cut short, the connection closes, and what came over it goes back.
                    let opened = match self.opened.take() {
                        Some(opened) => opened,
                        None => connect(&self.config).await?,
                    };
                    none.insert(consume(opened, &self.config).await?)
                }
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
                Some(Ok(delivery)) => {
                    let incoming = read(delivery);
                    self.warn_of_limit(&incoming.message);
                    self.waiting.push(incoming);
                }
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
        if let Some(opened) = self.opened.take() {
            let _ = opened.connection.close(200, "bye".into()).await;
        }
    }
}

async fn connect(config: &RabbitMqConfig) -> Result<Opened, SourceError> {
    let connecting = async {
        let connection = amqp::connect(&config.url, "pgonce consumer").await?;
        let channel = connection.create_channel().await?;
        let passive = QueueDeclareOptions {
            passive: true,
            ..QueueDeclareOptions::default()
        };
        let (queue, none) = (config.queue.as_str().into(), FieldTable::default());
        channel.queue_declare(queue, passive, none).await?;
        Ok::<_, Error>(Opened {
            channel,
            connection,
        })
    };
    in_time(config, connecting).await
}

/// Asks for what is in the queue: from here on RabbitMQ counts each message that comes back.
async fn consume(opened: Opened, config: &RabbitMqConfig) -> Result<Live, SourceError> {
    let Opened {
        channel,
        connection,
    } = opened;
    let asking = async {
        let prefetch = config.prefetch.max(1);
        channel
            .basic_qos(prefetch, BasicQosOptions::default())
            .await?;
        let tag = format!("pgonce-{}", uuid::Uuid::new_v4().simple());
        let (queue, none) = (config.queue.as_str().into(), FieldTable::default());
        let options = BasicConsumeOptions::default();
        channel
            .basic_consume(queue, tag.as_str().into(), options, none)
            .await
    };
    let deliveries = in_time(config, asking).await?;
    Ok(Live {
        deliveries,
        connection,
    })
}

async fn in_time<T>(
    config: &RabbitMqConfig,
    asking: impl Future<Output = Result<T, Error>>,
) -> Result<T, SourceError> {
    let why = match timeout(config.timeout, asking).await {
        Ok(Ok(done)) => return Ok(done),
        Ok(Err(error)) => error.to_string(),
        Err(_) => "it did not answer in time".to_owned(),
    };
    let queue = &config.queue;
    Err(SourceError::Unavailable(format!(
        "queue {queue:?} of RabbitMQ cannot be read: {why}"
    )))
}

/// How often a quorum queue got this message back, where that is often. Other queues do not count.
fn many_returns(message: &Message) -> Option<u64> {
    let returns = message.headers.get("x-delivery-count")?.as_u64()?;
    (returns >= MANY_RETURNS).then_some(returns)
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
        AMQPValue::LongString(text) => attributes::text(text.as_bytes()).into(),
        AMQPValue::ShortString(text) => text.as_str().into(),
        AMQPValue::Boolean(flag) => (*flag).into(),
        AMQPValue::ShortInt(number) => (*number).into(),
        AMQPValue::LongInt(number) => (*number).into(),
        AMQPValue::LongLongInt(number) => (*number).into(),
        AMQPValue::LongUInt(number) => (*number).into(),
        other => format!("{other:?}").into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_came_back_often_is_known_by_the_count_of_its_queue() {
        for (count, expected) in [
            (Value::from(9), None),
            (Value::from(10), Some(10)),
            (Value::from(21), Some(21)),
            (Value::from(-1), None),
            (Value::from("10"), None),
        ] {
            let message = Message::new("m", "{}").header("x-delivery-count", count.clone());
            assert_eq!(many_returns(&message), expected, "{count}");
        }
        assert_eq!(many_returns(&Message::new("m", "{}")), None);
    }
}
