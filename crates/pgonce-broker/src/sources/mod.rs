//! Where messages can come from. Each broker is a module and a feature of this crate.

mod any;
mod attributes;
mod channel;
#[cfg(feature = "kafka")]
mod kafka;
#[cfg(feature = "nats")]
mod nats;
mod nothing;
mod open;
mod outbox_log;
#[cfg(feature = "rabbitmq")]
mod rabbitmq;
#[cfg(feature = "redis")]
mod redis;

pub use any::{AnySource, AnyTicket};
pub use channel::{Channel, ChannelSource};
#[cfg(feature = "kafka")]
pub use kafka::{Kafka, KafkaConfig};
#[cfg(feature = "nats")]
pub use nats::{Nats, NatsConfig, NatsTicket};
pub use nothing::Nothing;
pub use open::{SCHEMES, open};
pub use outbox_log::OutboxLog;
#[cfg(feature = "rabbitmq")]
pub use rabbitmq::{RabbitMq, RabbitMqConfig, RabbitMqTicket};
#[cfg(feature = "redis")]
pub use redis::{RedisStream, RedisStreamConfig};

/// How long the broker may take to answer, where nobody says it.
#[cfg(any(
    feature = "kafka",
    feature = "nats",
    feature = "rabbitmq",
    feature = "redis"
))]
const TIMEOUT: std::time::Duration = std::time::Duration::from_secs(10);
