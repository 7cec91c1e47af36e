//! A source that was chosen while the program runs.

use std::collections::HashSet;
use std::time::Duration;

use pgonce::inbox::Position;

use crate::{Incoming, Order, Source, SourceError};

macro_rules! any_source {
    ($($(#[cfg($cfg:meta)])? $(#[doc = $doc:literal])+ $name:ident($source:ty)),+ $(,)?) => {
        /// One of the sources of this crate: what [`open`](super::open) answers.
        #[non_exhaustive]
        #[allow(clippy::large_enum_variant, reason = "a process has one of them")]
        pub enum AnySource {
            $($(#[cfg($cfg)])? $(#[doc = $doc])+ $name($source),)+
        }

        /// What names one delivery of an [`AnySource`].
        #[non_exhaustive]
        #[allow(clippy::large_enum_variant, reason = "a batch has a few hundred of them")]
        pub enum AnyTicket {
            $($(#[cfg($cfg)])? $(#[doc = $doc])+ $name(<$source as Source>::Ticket),)+
        }

        impl Source for AnySource {
            type Ticket = AnyTicket;

            fn name(&self) -> &str {
                match self { $($(#[cfg($cfg)])? Self::$name(source) => source.name(),)+ }
            }

            fn order(&self) -> Order {
                match self { $($(#[cfg($cfg)])? Self::$name(source) => source.order(),)+ }
            }

            async fn pull(
                &mut self,
                limit: usize,
                within: Duration,
            ) -> Result<Vec<Incoming<AnyTicket>>, SourceError> {
                match self { $($(#[cfg($cfg)])? Self::$name(source) => {
                    let pulled = source.pull(limit, within).await?.into_iter();
                    let any = |one: Incoming<_>| Incoming { message: one.message, ticket: AnyTicket::$name(one.ticket) };
                    Ok(pulled.map(any).collect())
                })+ }
            }

            async fn ack(&mut self, tickets: Vec<AnyTicket>) -> Result<(), SourceError> {
                match self { $($(#[cfg($cfg)])? Self::$name(source) => {
                    let own = tickets.into_iter().filter_map(|ticket| match ticket {
                        AnyTicket::$name(ticket) => Some(ticket),
                        #[allow(unreachable_patterns, reason = "in a build with one source")]
                        _ => None,
                    });
                    source.ack(own.collect()).await
                })+ }
            }

            async fn nack(&mut self, tickets: Vec<AnyTicket>, after: Duration) -> Result<(), SourceError> {
                match self { $($(#[cfg($cfg)])? Self::$name(source) => {
                    let own = tickets.into_iter().filter_map(|ticket| match ticket {
                        AnyTicket::$name(ticket) => Some(ticket),
                        #[allow(unreachable_patterns, reason = "in a build with one source")]
                        _ => None,
                    });
                    source.nack(own.collect(), after).await
                })+ }
            }

            async fn seek(&mut self, partition: &str, after: Option<Position>) -> Result<bool, SourceError> {
                match self { $($(#[cfg($cfg)])? Self::$name(source) => source.seek(partition, after).await,)+ }
            }

            async fn pause(&mut self, partitions: &HashSet<String>) -> Result<(), SourceError> {
                match self { $($(#[cfg($cfg)])? Self::$name(source) => source.pause(partitions).await,)+ }
            }

            async fn close(&mut self) {
                match self { $($(#[cfg($cfg)])? Self::$name(source) => source.close().await,)+ }
            }
        }
    };
}

any_source! {
    #[doc = " The log of an outbox."]
    Outbox(super::OutboxLog),
    #[doc = " Only what is stored."]
    Stored(super::Nothing),
    #[cfg(feature = "nats")]
    #[doc = " NATS JetStream."]
    Nats(super::Nats),
    #[cfg(feature = "rabbitmq")]
    #[doc = " RabbitMQ."]
    RabbitMq(super::RabbitMq),
    #[cfg(feature = "redis")]
    #[doc = " A Redis stream."]
    Redis(super::RedisStream),
    #[cfg(feature = "kafka")]
    #[doc = " Kafka."]
    Kafka(super::Kafka),
}

impl std::fmt::Debug for AnySource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("AnySource").field(&self.name()).finish()
    }
}

impl std::fmt::Debug for AnyTicket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AnyTicket")
    }
}
