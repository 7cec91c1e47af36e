//! Where events can go. Each sink is a module and, where it needs a library, a feature of this crate;
//! [`open`] makes one from a URL.

#![cfg_attr(
    not(all(
        feature = "nats",
        feature = "rabbitmq",
        feature = "redis",
        feature = "webhook"
    )),
    allow(
        dead_code,
        unused_imports,
        reason = "each sink uses its part of what they share"
    )
)]

mod any;
mod channel;
mod envelope;
mod json_lines;
#[cfg(feature = "kafka")]
mod kafka;
#[cfg(any(feature = "rabbitmq", feature = "redis"))]
mod link;
#[cfg(feature = "nats")]
mod nats;
pub(crate) mod open;
#[cfg(feature = "rabbitmq")]
mod rabbitmq;
#[cfg(feature = "redis")]
mod redis;
mod refusal;
pub(crate) mod settings;
mod template;
#[cfg(feature = "webhook")]
pub mod webhook;

pub use any::AnySink;
pub use channel::Channel;
pub use json_lines::JsonLines;
#[cfg(feature = "kafka")]
pub use kafka::{Kafka, KafkaConfig};
#[cfg(feature = "nats")]
pub use nats::{Nats, NatsConfig};
pub use open::{SCHEMES, open};
#[cfg(feature = "rabbitmq")]
pub use rabbitmq::{RabbitMq, RabbitMqConfig};
#[cfg(feature = "redis")]
pub use redis::{RedisStreams, RedisStreamsConfig};
pub use refusal::Refusal;
pub use settings::Options;
pub use template::Template;
#[cfg(feature = "webhook")]
pub use webhook::{Webhook, WebhookConfig};

use std::time::Duration;

/// Who speaks, where nobody says it.
const SOURCE: &str = "/pgonce";

/// How long the other side may take to acknowledge, where nobody says it.
const TIMEOUT: Duration = Duration::from_secs(10);
