//! RabbitMQ, over AMQP 0.9.1.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use lapin::message::BasicReturnMessage;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions};
use lapin::protocol::{AMQPErrorKind, AMQPHardError, AMQPSoftError};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Confirmation, Connection, Error, ErrorKind, ExchangeKind};
use pgonce::outbox::Message;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::link::Link;
use super::{Refusal, SOURCE, TIMEOUT, Template, envelope};
use crate::{Delivery, Sink, amqp};

const SINK: &str = "RabbitMQ";
const EXPECTED: &str = "amqp://user:password@host:5672/vhost?exchange=orders&routing_key={topic}";

/// Each has one event under way, so this many can be.
const CHANNELS: usize = 128;

/// AMQP's short strings.
const SHORT: usize = 255;

/// How to reach an exchange.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RabbitMqConfig {
    /// Such as `amqp://user:password@host:5672/vhost`.
    pub url: String,
    /// The exchange, which must be there; empty for the default exchange, whose routing keys are the
    /// names of queues.
    pub exchange: String,
    /// The routing key of a message. Default: `{topic}`.
    pub routing_key: Template,
    /// CloudEvents' `source`: who speaks, as a URI.
    pub source: String,
    /// How long a confirmation may take.
    pub timeout: Duration,
}

impl RabbitMqConfig {
    /// To this exchange of that node.
    pub fn new(url: impl Into<String>, exchange: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            exchange: exchange.into(),
            routing_key: Template::topic(),
            source: SOURCE.to_owned(),
            timeout: TIMEOUT,
        }
    }
}

/// Publishes to an exchange, persistent and mandatory, and waits for the confirmation.
///
/// RabbitMQ does not deduplicate: subscriptions do, by `message_id`. A message that no queue takes comes
/// back, and its subject is parked and tried again.
#[derive(Debug)]
pub struct RabbitMq {
    config: RabbitMqConfig,
    link: Link<Live>,
    channels: Semaphore,
}

/// A connection and its channels that nobody uses at the moment.
///
/// The client library says *that* a message came back, but with several under way on a channel not
/// reliably *which* one. So each channel has one at a time: then there is no doubt, neither when a
/// message is returned nor when it makes the broker close the channel.
#[derive(Debug)]
struct Live {
    connection: Connection,
    idle: Mutex<Vec<Channel>>,
}

impl Live {
    async fn channel(&self) -> Result<Channel, Error> {
        let idle = self
            .idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop();
        if let Some(channel) = idle {
            return Ok(channel);
        }
        let channel = self.connection.create_channel().await?;
        channel
            .confirm_select(ConfirmSelectOptions::default())
            .await?;
        Ok(channel)
    }

    /// Only a channel with nothing under way may come back.
    fn give_back(&self, channel: Channel) {
        self.idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(channel);
    }
}

impl RabbitMq {
    /// Connects, and looks for the exchange. Refused where it is missing.
    pub async fn connect(config: RabbitMqConfig) -> Result<Self, Refusal> {
        let link = Link::up(connect(&config).await?);
        Ok(Self {
            config,
            link,
            channels: Semaphore::new(CHANNELS),
        })
    }

    fn properties(&self, message: &Message) -> BasicProperties {
        let mut headers = FieldTable::default();
        for (name, value) in envelope::headers(message, &self.config.source, "cloudEvents_") {
            headers.insert(name.into(), AMQPValue::LongString(value.into()));
        }
        let properties = BasicProperties::default()
            .with_message_id(message.id.to_string().into())
            .with_delivery_mode(2) // persistent
            .with_headers(headers);
        let properties = match message.kind.len() <= SHORT {
            true => properties.with_type(message.kind.as_str().into()),
            false => properties,
        };
        match message.payload {
            Some(_) => properties.with_content_type("application/json".into()),
            None => properties,
        }
    }

    async fn publish(&self, live: &Live, key: &str, message: &Message) -> Result<Delivery, Error> {
        let channel = live.channel().await?;
        let options = BasicPublishOptions {
            mandatory: true,
            ..BasicPublishOptions::default()
        };
        let confirm = channel
            .basic_publish(
                self.config.exchange.as_str().into(),
                key.into(),
                options,
                &envelope::body(message),
                self.properties(message),
            )
            .await?;
        let reply = confirm.await?;
        live.give_back(channel);
        Ok(match reply {
            Confirmation::Ack(None) => Delivery::Acknowledged,
            Confirmation::Ack(Some(returned)) | Confirmation::Nack(Some(returned)) => {
                self.returned(key, &returned)
            }
            Confirmation::Nack(None) => Delivery::Unavailable {
                reason:
                    "RabbitMQ could not take responsibility for the message (a full queue, perhaps)"
                        .to_owned(),
            },
            Confirmation::NotRequested => Delivery::Unavailable {
                reason: "the channel does not confirm".to_owned(),
            },
        })
    }

    fn returned(&self, key: &str, returned: &BasicReturnMessage) -> Delivery {
        let reason = format!(
            "no queue takes routing key {key:?} of exchange {:?} ({} {}): bind one",
            self.config.exchange, returned.reply_code, returned.reply_text
        );
        Delivery::retry(reason)
    }
}

impl Sink for RabbitMq {
    async fn send(&self, message: &Message) -> Delivery {
        let key = self.config.routing_key.fill(message);
        if key.len() > SHORT {
            let reason = format!(
                "a routing key has at most {SHORT} bytes, this one {}",
                key.len()
            );
            return Delivery::Poison { reason };
        }
        let Ok(_turn) = self.channels.acquire().await else {
            return Delivery::Untried; // never closed
        };
        let live = match self.link.get(connect(&self.config)).await {
            Ok(live) => live,
            Err(reason) => return Delivery::Unavailable { reason },
        };
        match timeout(self.config.timeout, self.publish(&live, &key, message)).await {
            Ok(Ok(delivery)) => delivery,
            Ok(Err(error)) => {
                if !live.connection.status().connected() {
                    self.link.lost(&live).await;
                }
                delivery_of(&error)
            }
            Err(_) => {
                self.link.lost(&live).await;
                let reason = "RabbitMQ did not confirm in time".to_owned();
                Delivery::Unavailable { reason }
            }
        }
    }
}

/// An error of one channel is about its one message.
fn delivery_of(error: &Error) -> Delivery {
    let reason = error.to_string();
    match error.kind() {
        ErrorKind::ProtocolError(reply) => match reply.kind() {
            AMQPErrorKind::Soft(
                AMQPSoftError::PRECONDITIONFAILED | AMQPSoftError::CONTENTTOOLARGE,
            ) => Delivery::Poison { reason },
            AMQPErrorKind::Soft(AMQPSoftError::ACCESSREFUSED) => Delivery::retry(reason),
            _ => Delivery::Unavailable { reason },
        },
        _ => Delivery::Unavailable { reason },
    }
}

async fn connect(config: &RabbitMqConfig) -> Result<Live, Refusal> {
    let connecting = async {
        let connection = amqp::connect(&config.url, "pgonce relay").await?;
        let channel = connection.create_channel().await?;
        if !config.exchange.is_empty() {
            let passive = ExchangeDeclareOptions {
                passive: true,
                ..ExchangeDeclareOptions::default()
            };
            // Passive: its kind does not matter.
            let (name, none) = (config.exchange.as_str().into(), FieldTable::default());
            channel
                .exchange_declare(name, ExchangeKind::Topic, passive, none)
                .await?;
        }
        channel
            .confirm_select(ConfirmSelectOptions::default())
            .await?;
        Ok(Live {
            connection,
            idle: Mutex::new(vec![channel]),
        })
    };
    match timeout(config.timeout, connecting).await {
        Ok(made) => made.map_err(|error: Error| refusal(&error, config)),
        Err(_) => Err(Refusal::Unreachable {
            sink: SINK,
            why: "it did not answer in time".to_owned(),
        }),
    }
}

fn refusal(error: &Error, config: &RabbitMqConfig) -> Refusal {
    let (sink, why) = (SINK, error.to_string());
    match error.kind() {
        ErrorKind::ProtocolError(reply) => match reply.kind() {
            AMQPErrorKind::Soft(AMQPSoftError::NOTFOUND) => Refusal::Refused {
                sink,
                why: format!(
                    "there is no exchange {:?}: declare it, or say which one you mean ({why})",
                    config.exchange
                ),
            },
            // It shuts down, starts, or lacks memory or disk.
            AMQPErrorKind::Hard(
                AMQPHardError::CONNECTIONFORCED
                | AMQPHardError::RESOURCEERROR
                | AMQPHardError::INTERNALERROR,
            ) => Refusal::Unreachable { sink, why },
            _ => Refusal::Refused { sink, why },
        },
        ErrorKind::IOError(io) if io.kind() == std::io::ErrorKind::InvalidInput => {
            let expected = EXPECTED;
            Refusal::BadUrl { why, expected }
        }
        _ => Refusal::Unreachable { sink, why },
    }
}
