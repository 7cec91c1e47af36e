//! A sink that was chosen while the program runs.

use pgonce::outbox::Message;
use tokio::io::Stdout;

use super::JsonLines;
use crate::{Delivery, Sink};

/// One of the sinks of this crate: what [`open`](super::open) answers.
#[derive(Debug)]
#[non_exhaustive]
#[allow(clippy::large_enum_variant, reason = "a process has one of them")]
pub enum AnySink {
    /// Lines of JSON on standard output.
    Stdout(JsonLines<Stdout>),
    /// NATS JetStream.
    #[cfg(feature = "nats")]
    Nats(super::Nats),
    /// RabbitMQ.
    #[cfg(feature = "rabbitmq")]
    RabbitMq(super::RabbitMq),
    /// Redis Streams.
    #[cfg(feature = "redis")]
    Redis(super::RedisStreams),
    /// An HTTP endpoint.
    #[cfg(feature = "webhook")]
    Webhook(super::Webhook),
    /// Kafka.
    #[cfg(feature = "kafka")]
    Kafka(super::Kafka),
}

macro_rules! each {
    ($any:expr, $sink:ident => $call:expr) => {
        match $any {
            AnySink::Stdout($sink) => $call,
            #[cfg(feature = "nats")]
            AnySink::Nats($sink) => $call,
            #[cfg(feature = "rabbitmq")]
            AnySink::RabbitMq($sink) => $call,
            #[cfg(feature = "redis")]
            AnySink::Redis($sink) => $call,
            #[cfg(feature = "webhook")]
            AnySink::Webhook($sink) => $call,
            #[cfg(feature = "kafka")]
            AnySink::Kafka($sink) => $call,
        }
    };
}

impl Sink for AnySink {
    async fn send(&self, message: &Message) -> Delivery {
        each!(self, sink => sink.send(message).await)
    }

    async fn send_batch(&self, batch: &[Message], in_flight: usize) -> Vec<Delivery> {
        each!(self, sink => sink.send_batch(batch, in_flight).await)
    }
}
