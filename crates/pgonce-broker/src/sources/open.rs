//! From a URL to a source.

use pgonce::Once;
use pgonce::driver::Driver;

use super::{AnySource, Nothing, OutboxLog};
#[cfg(feature = "kafka")]
use crate::sinks::open::kafka_parts;
#[allow(unused_imports, reason = "needed where a feature is left out")]
use crate::sinks::open::not_built_in;
use crate::sinks::open::parse;
use crate::sinks::settings::Settings;
use crate::sinks::{Options, Refusal};

/// What a source's URL can begin with.
pub const SCHEMES: [&str; 10] = [
    "amqp",
    "amqps",
    "kafka",
    "kafka+tls",
    "nats",
    "nats+tls",
    "outbox",
    "redis",
    "rediss",
    "stored",
];

/// Makes a source from its URL and options, and asks the other side whether it will do.
///
/// | URL | options in its query, or beside it |
/// |---|---|
/// | `nats://host:4222`, `nats+tls://…` | `stream`, `durable`, `subject`, `ack_wait`, `credentials`, `name`, `timeout` |
/// | `amqp://user:password@host:5672/vhost`, `amqps://…` | `queue`, `prefetch`, `name`, `timeout` |
/// | `redis://host:6379/0`, `rediss://…` | `stream`, `group`, `claim_after`, `payload`, `name`, `timeout` |
/// | `kafka://host:9092,other:9092`, `kafka+tls://user:password@…` | `topic`, `group`, `sasl`, `ca`, `certificate`, `key`, `name`, `timeout` |
/// | `outbox:SUBSCRIPTION` | `name`; the outbox of the same database |
/// | `stored:` | none; only what webhooks or `pgonce.store_message` have stored |
///
/// Without `durable`, or `group` for Redis, a stream is read in its order, by one worker at a time.
///
/// ```no_run
/// use pgonce_broker::sinks::Options;
/// use pgonce_broker::sources::open;
///
/// # async fn example(once: pgonce::sqlx::Once) -> Result<(), pgonce_broker::sinks::Refusal> {
/// let orders = open("nats://localhost?stream=ORDERS&durable=billing", &Options::new(), &once).await?;
/// # drop(orders);
/// # Ok(())
/// # }
/// ```
pub async fn open<D: Driver>(
    url: &str,
    options: &Options,
    once: &Once<D>,
) -> Result<AnySource, Refusal> {
    let (scheme, rest) = url.split_once(':').unwrap_or(("", url));
    match scheme {
        "outbox" => {
            let expected = "outbox:SUBSCRIPTION";
            let parsed = parse(url, "outbox:")?;
            let settings = Settings::read("the outbox", parsed, true, options, &["name"])?;
            let subscription = rest.split('?').next().unwrap_or_default();
            if subscription.is_empty() {
                let why = "it names no subscription".to_owned();
                return Err(Refusal::BadUrl { why, expected });
            }
            let log = OutboxLog::new(once.outbox(), subscription);
            Ok(AnySource::Outbox(match settings.text("name")? {
                Some(name) => log.named(name),
                None => log,
            }))
        }
        "stored" => {
            Settings::read(
                "stored messages",
                parse(url, "stored:")?,
                true,
                options,
                &[],
            )?;
            Ok(AnySource::Stored(Nothing))
        }
        "nats" | "nats+tls" => nats(url, options, scheme).await,
        "amqp" | "amqps" => rabbitmq(url, options, scheme).await,
        "redis" | "rediss" => redis(url, options, scheme).await,
        "kafka" | "kafka+tls" => kafka(url, options, scheme).await,
        _ => Err(Refusal::UnknownScheme {
            scheme: scheme.to_owned(),
            known: SCHEMES.join(", "),
        }),
    }
}

#[cfg(any(
    feature = "kafka",
    feature = "nats",
    feature = "rabbitmq",
    feature = "redis"
))]
mod with_a_broker {
    use std::time::Duration;

    use super::{Refusal, Settings};
    use crate::SourceError;

    pub(super) fn refused(sink: &'static str) -> impl Fn(SourceError) -> Refusal {
        move |error| match error {
            SourceError::Unavailable(why) => Refusal::Unreachable { sink, why },
            SourceError::Broken(error) => {
                let why = error.to_string();
                Refusal::Refused { sink, why }
            }
        }
    }

    /// A time, where it is said.
    #[allow(dead_code, reason = "not every broker has one")]
    pub(super) fn time(settings: &Settings, option: &str) -> Result<Option<Duration>, Refusal> {
        let said =
            settings.parsed::<humantime::Duration>(option, "a time such as 500ms, 10s or 1m")?;
        Ok(said.map(Into::into))
    }
}

#[cfg(any(
    feature = "kafka",
    feature = "nats",
    feature = "rabbitmq",
    feature = "redis"
))]
#[allow(unused_imports, reason = "not every broker has a time")]
use with_a_broker::{refused, time};

#[cfg(feature = "nats")]
async fn nats(url: &str, options: &Options, _scheme: &str) -> Result<AnySource, Refusal> {
    let known = [
        "stream",
        "durable",
        "subject",
        "ack_wait",
        "credentials",
        "name",
        "timeout",
    ];
    let url = parse(url, "nats://host:4222?stream=ORDERS&durable=billing")?;
    let settings = Settings::read("NATS", url, true, options, &known)?;
    let stream = settings.needed("stream", "the JetStream stream to read")?;
    let address = settings.url.as_str().replacen("nats+tls://", "tls://", 1);
    let mut config = super::NatsConfig::ordered(address, stream);
    config.durable = settings.text("durable")?.map(Into::into);
    config.subject = settings.text("subject")?.map(Into::into);
    config.credentials = settings.text("credentials")?.map(Into::into);
    config.ack_wait = time(&settings, "ack_wait")?.unwrap_or(config.ack_wait);
    config.name = settings.text("name")?.map_or(config.name, Into::into);
    config.timeout = settings.timeout()?;
    let connected = super::Nats::connect(config).await;
    connected.map(AnySource::Nats).map_err(refused("NATS"))
}

#[cfg(not(feature = "nats"))]
async fn nats(_: &str, _: &Options, scheme: &str) -> Result<AnySource, Refusal> {
    Err(not_built_in(scheme, "nats"))
}

#[cfg(feature = "rabbitmq")]
async fn rabbitmq(url: &str, options: &Options, _scheme: &str) -> Result<AnySource, Refusal> {
    let url = parse(url, "amqp://host:5672?queue=orders")?;
    let known = ["queue", "prefetch", "name", "timeout"];
    let settings = Settings::read("RabbitMQ", url, true, options, &known)?;
    let queue = settings.needed("queue", "the queue to read")?;
    let mut config = super::RabbitMqConfig::new(settings.url.as_str(), queue);
    let prefetch = settings.parsed("prefetch", "a number of messages, at most 65535")?;
    config.prefetch = prefetch.unwrap_or(config.prefetch);
    config.name = settings.text("name")?.map_or(config.name, Into::into);
    config.timeout = settings.timeout()?;
    let connected = super::RabbitMq::connect(config).await;
    connected
        .map(AnySource::RabbitMq)
        .map_err(refused("RabbitMQ"))
}

#[cfg(not(feature = "rabbitmq"))]
async fn rabbitmq(_: &str, _: &Options, scheme: &str) -> Result<AnySource, Refusal> {
    Err(not_built_in(scheme, "rabbitmq"))
}

#[cfg(feature = "redis")]
async fn redis(url: &str, options: &Options, _scheme: &str) -> Result<AnySource, Refusal> {
    let url = parse(url, "redis://host:6379/0?stream=orders&group=billing")?;
    let known = [
        "stream",
        "group",
        "claim_after",
        "payload",
        "name",
        "timeout",
    ];
    let settings = Settings::read("Redis", url, true, options, &known)?;
    let stream = settings.needed("stream", "the key of the stream to read")?;
    let mut config = super::RedisStreamConfig::ordered(settings.url.as_str(), stream);
    config.group = settings.text("group")?.map(Into::into);
    config.claim_after = time(&settings, "claim_after")?.unwrap_or(config.claim_after);
    config.payload = settings.text("payload")?.map_or(config.payload, Into::into);
    config.name = settings.text("name")?.map_or(config.name, Into::into);
    config.timeout = settings.timeout()?;
    let connected = super::RedisStream::connect(config).await;
    connected.map(AnySource::Redis).map_err(refused("Redis"))
}

#[cfg(not(feature = "redis"))]
async fn redis(_: &str, _: &Options, scheme: &str) -> Result<AnySource, Refusal> {
    Err(not_built_in(scheme, "redis"))
}

#[cfg(feature = "kafka")]
async fn kafka(url: &str, options: &Options, scheme: &str) -> Result<AnySource, Refusal> {
    let expected = "kafka://host:9092,other:9092?topic=orders";
    let own = ["topic", "group", "name", "timeout"];
    let (brokers, security, settings) = kafka_parts(url, options, scheme, &own, expected)?;
    let topic = settings.needed("topic", "the topic to read")?;
    let mut config = super::KafkaConfig::new(brokers, topic);
    config.security = security;
    config.group = settings.text("group")?.map_or(config.group, Into::into);
    config.name = settings.text("name")?.map_or(config.name, Into::into);
    config.timeout = settings.timeout()?;
    let connected = super::Kafka::connect(config).await;
    connected.map(AnySource::Kafka).map_err(refused("Kafka"))
}

#[cfg(not(feature = "kafka"))]
async fn kafka(_: &str, _: &Options, scheme: &str) -> Result<AnySource, Refusal> {
    Err(not_built_in(scheme, "kafka"))
}
