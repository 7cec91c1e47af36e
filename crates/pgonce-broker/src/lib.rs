#![doc = include_str!("../README.md")]

/// A place of `pgonce::faults`; nothing at all without the feature.
macro_rules! fault_point {
    ($place:literal) => {
        #[cfg(feature = "faults")]
        pgonce::faults::reach($place).await?;
    };
}

#[cfg(feature = "rabbitmq")]
mod amqp;
mod bounded;
mod consumer;
mod fatal;
#[cfg(feature = "webhook")]
mod http_handler;
#[cfg(feature = "nats")]
mod jetstream;
#[cfg(feature = "kafka")]
mod kafka_security;
mod metrics;
mod panics;
mod relay;
mod sink;
pub mod sinks;
pub mod sources;
#[cfg(feature = "wal")]
mod wal;
#[cfg(feature = "webhooks")]
pub mod webhooks;

pub use consumer::{
    Batches, Consumer, Counts as ConsumerCounts, Dedup, Handler, Incoming, Order, Source,
    SourceError, cloud_event,
};
#[cfg(feature = "webhook")]
pub use http_handler::HttpHandler;
#[cfg(feature = "kafka")]
pub use kafka_security::{KafkaSecurity, SaslMechanism};
pub use relay::{Counts, Relay, WakeSignal};
pub use sink::{Delivery, Sink};
#[cfg(feature = "wal")]
pub use wal::{WalListener, WalListenerError};

/// Compiles the code of the page about consumers.
#[cfg(all(doctest, feature = "webhooks", feature = "nats"))]
#[doc = include_str!("../../../docs/src/how-to/consuming.md")]
struct ConsumingOnce;

/// Compiles the guide's code.
#[cfg(all(doctest, feature = "nats"))]
#[doc = include_str!("../../../docs/src/how-to/sinks.md")]
struct Guide;
