//! Kafka, as far as librdkafka's mock cluster goes.

use std::time::Duration;

use pgonce_broker::sources::{Kafka, KafkaConfig};
use rdkafka::ClientConfig;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{DefaultProducerContext, FutureProducer, FutureRecord};

use super::broker_fixtures::{Letter, Site};

pub(crate) struct Topic {
    cluster: MockCluster<'static, DefaultProducerContext>,
}

impl Site for Topic {
    type Source = Kafka;
    const ORDERED: bool = true;

    async fn start(_private: bool) -> Self {
        let cluster = MockCluster::new(1).unwrap();
        cluster.create_topic("orders", 3, 1).unwrap();
        Self { cluster }
    }

    async fn source(&self, _prefetch: u16, _gone_after: Duration) -> Kafka {
        let config = KafkaConfig::new(self.cluster.bootstrap_servers(), "orders");
        Kafka::connect(config).await.unwrap()
    }

    async fn send(&self, letters: Vec<Letter<'_>>) {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", self.cluster.bootstrap_servers());
        config.set("enable.idempotence", "true");
        let producer: FutureProducer = config.create().unwrap();
        for letter in letters {
            let mut headers = OwnedHeaders::new().insert(Header {
                key: "ce_type",
                value: Some(letter.kind),
            });
            if !letter.id.is_empty() {
                let value = Some(letter.id);
                headers = headers.insert(Header {
                    key: "ce_id",
                    value,
                });
            }
            let mut record = FutureRecord::to("orders")
                .payload(&letter.payload)
                .headers(headers);
            record.key = letter.key.as_ref();
            let sent = producer.send(record, std::time::Duration::from_secs(30));
            sent.await.unwrap();
        }
    }

    async fn unsettled(&self) -> u64 {
        0
    }

    async fn kill(&self) {
        self.cluster.broker_down(1).unwrap();
    }

    async fn restart(&self) {
        self.cluster.broker_up(1).unwrap();
    }
}
