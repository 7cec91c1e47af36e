//! Every sink, with a real server at the other side: the same promises for all of them, and what is
//! its own for each.

#![allow(clippy::unwrap_used)]

mod conformance;
#[cfg(feature = "kafka")]
mod kafka;
#[cfg(feature = "kafka")]
mod kafka_tls;
mod nats;
mod opening;
mod rabbitmq;
mod redis;
mod webhook;

use pgonce_tests::relay as fixture;
