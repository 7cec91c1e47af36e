//! Every broker as a source, with a real server at the other side: the same promises for all of them.

#![allow(clippy::unwrap_used)]

mod circle;
mod conformance;
#[path = "../consumer/ground.rs"]
#[allow(dead_code)]
mod ground;
#[cfg(feature = "kafka")]
mod kafka;
mod own;
#[allow(dead_code)]
mod sites;

conformance::conforms!(nats_durable, crate::sites::NatsDurable);
conformance::conforms!(nats_ordered, crate::sites::NatsOrdered);
conformance::conforms!(rabbitmq, crate::sites::Rabbit);
conformance::conforms!(redis_group, crate::sites::RedisGroup);
conformance::conforms!(redis_ordered, crate::sites::RedisOrdered);
#[cfg(feature = "kafka")]
conformance::conforms!(kafka_topic, crate::kafka::Topic);
