//! Kafka, through librdkafka.

use std::time::Duration;

use pgonce::outbox::Message;
use rdkafka::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord, Producer as _};
use tokio::sync::RwLock;

use super::{Refusal, SOURCE, TIMEOUT, Template, envelope};
use crate::{Delivery, KafkaSecurity, Sink};

const SINK: &str = "Kafka";

/// How to reach topics.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct KafkaConfig {
    /// `host:port`, several with commas between.
    pub brokers: String,
    /// The topic of a message. Default: `{topic}`.
    pub topic: Template,
    /// TLS and SASL. Default: neither.
    pub security: KafkaSecurity,
    /// CloudEvents' `source`: who speaks, as a URI.
    pub source: String,
    /// How long an acknowledgement may take.
    pub timeout: Duration,
}

impl KafkaConfig {
    /// To topics of these brokers.
    pub fn new(brokers: impl Into<String>) -> Self {
        Self {
            brokers: brokers.into(),
            topic: Template::topic(),
            security: KafkaSecurity::default(),
            source: SOURCE.to_owned(),
            timeout: TIMEOUT,
        }
    }

    fn producer(&self) -> Result<FutureProducer, Refusal> {
        let timeout = self.timeout.as_millis().clamp(100, 600_000);
        // A topic that does not exist must be known as such before the message is given up as late.
        let propagation = (timeout / 2).to_string();
        let timeout = timeout.to_string();
        let mut config = ClientConfig::new();
        config
            .set("client.id", "pgonce-relay")
            .set("bootstrap.servers", &self.brokers)
            .set("enable.idempotence", "true")
            .set("acks", "all")
            .set("message.timeout.ms", &timeout)
            .set("socket.timeout.ms", &timeout)
            .set("topic.metadata.propagation.max.ms", &propagation)
            // Above a mebibyte of payload with its headers: the brokers decide.
            .set("message.max.bytes", "2000000")
            .set("linger.ms", "1");
        let refused = |why| Refusal::Refused { sink: SINK, why };
        self.security.apply(&mut config).map_err(refused)?;
        config.create().map_err(|error| refused(error.to_string()))
    }
}

/// Produces to topics, idempotently, and waits until all in-sync replicas have it. The key is the
/// event's subject, so a subject stays in its partition.
///
/// The idempotent producer drops repeats of one connection; what a relay sends again is a new record
/// with the same `ce_id`, by which subscriptions deduplicate.
pub struct Kafka {
    config: KafkaConfig,
    producer: RwLock<FutureProducer>,
}

impl Kafka {
    /// Connects, and looks for the topic where it is the same for all events. Refused where it is
    /// missing.
    pub async fn connect(config: KafkaConfig) -> Result<Self, Refusal> {
        let producer = config.producer()?;
        let (asking, topic) = (producer.clone(), config.topic.fixed().map(str::to_owned));
        let timeout = config.timeout;
        let ask = move || asking.client().fetch_metadata(topic.as_deref(), timeout);
        let reply = tokio::task::spawn_blocking(ask).await;
        let metadata = match reply {
            Ok(Ok(metadata)) => metadata,
            Ok(Err(error)) => return Err(unreachable_because(&error)),
            Err(error) => return Err(unreachable_because(&error)),
        };
        if let Some(topic) = config.topic.fixed() {
            let found = metadata.topics().iter().find(|known| known.name() == topic);
            let error = found.map(|known| known.error().map(RDKafkaErrorCode::from));
            match error {
                Some(None) => {}
                // Its brokers start, or choose a leader.
                Some(Some(
                    code @ (RDKafkaErrorCode::LeaderNotAvailable
                    | RDKafkaErrorCode::BrokerNotAvailable
                    | RDKafkaErrorCode::RequestTimedOut),
                )) => return Err(unreachable_because(&code)),
                _ => {
                    let why = format!("there is no topic {topic:?} for this login: create it");
                    return Err(Refusal::Refused { sink: SINK, why });
                }
            }
        }
        let producer = RwLock::new(producer);
        Ok(Self { config, producer })
    }

    /// A producer that has seen a fatal error is of no use any more.
    async fn renew(&self) {
        let mut producer = self.producer.write().await;
        if producer.client().fatal_error().is_some()
            && let Ok(fresh) = self.config.producer()
        {
            *producer = fresh;
        }
    }
}

impl Sink for Kafka {
    async fn send(&self, message: &Message) -> Delivery {
        let topic = self.config.topic.fill(message);
        let body = envelope::body(message);
        let mut headers = OwnedHeaders::new();
        for (name, value) in envelope::headers(message, &self.config.source, "ce_") {
            let value = Some(&value);
            headers = headers.insert(Header { key: &name, value });
        }
        let mut record = FutureRecord::to(&topic)
            .key(&message.subject)
            .headers(headers);
        if message.payload.is_some() {
            record.headers = record.headers.map(|headers| {
                headers.insert(Header {
                    key: "content-type",
                    value: Some("application/json"),
                })
            });
            record = record.payload(&body);
        }
        let producer = self.producer.read().await.clone();
        match producer.send(record, Duration::ZERO).await {
            Ok(_) => Delivery::Acknowledged,
            Err((error, _)) => {
                if producer.client().fatal_error().is_some() {
                    self.renew().await;
                }
                failed(&error)
            }
        }
    }
}

fn failed(error: &KafkaError) -> Delivery {
    let reason = error.to_string();
    match error.rdkafka_error_code() {
        Some(
            RDKafkaErrorCode::MessageSizeTooLarge
            | RDKafkaErrorCode::InvalidMessageSize
            | RDKafkaErrorCode::InvalidTopic
            | RDKafkaErrorCode::InvalidRecord
            | RDKafkaErrorCode::PolicyViolation,
        ) => Delivery::Poison { reason },
        Some(
            RDKafkaErrorCode::UnknownTopic
            | RDKafkaErrorCode::UnknownTopicOrPartition
            | RDKafkaErrorCode::TopicAuthorizationFailed,
        ) => Delivery::retry(reason),
        _ => Delivery::Unavailable { reason },
    }
}

fn unreachable_because(why: &dyn std::fmt::Display) -> Refusal {
    Refusal::Unreachable {
        sink: SINK,
        why: why.to_string(),
    }
}

impl std::fmt::Debug for Kafka {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kafka")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}
