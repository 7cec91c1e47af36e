//! Every broker as a source, with a real server at the other side: the same promises for all of them.

#![allow(clippy::unwrap_used)]

#[allow(dead_code)]
mod broker_fixtures;
mod circle;
mod conformance;
#[cfg(feature = "kafka")]
mod kafka;
mod nats;
mod opening;
mod own;

use pgonce_tests::consumer as fixture;

conformance::conforms!(nats_durable, crate::broker_fixtures::NatsDurable);
conformance::conforms!(nats_ordered, crate::broker_fixtures::NatsOrdered);
conformance::conforms!(rabbitmq, crate::broker_fixtures::Rabbit);
conformance::conforms!(redis_group, crate::broker_fixtures::RedisGroup);
conformance::conforms!(redis_ordered, crate::broker_fixtures::RedisOrdered);
#[cfg(feature = "kafka")]
conformance::conforms!(kafka_topic, crate::kafka::Topic);
