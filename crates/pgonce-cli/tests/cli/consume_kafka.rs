//! `pgonce consume` from Kafka, as far as librdkafka's mock cluster goes.

use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;

use crate::consume::fixture;
use crate::consume_killed::{Broker, killed_sql_consumers, kills, relay};

/// A cluster of one broker with one topic, in this very process.
struct Kafka(MockCluster<'static, DefaultProducerContext>);

impl Broker for Kafka {
    // Of a key: its messages are in one partition.
    const ORDERED: bool = true;

    async fn kill(&self) {
        self.0.broker_down(1).unwrap();
    }

    async fn restart(&self) {
        self.0.broker_up(1).unwrap();
    }
}

#[tokio::test]
async fn a_kafka_that_restarts_loses_and_doubles_nothing_and_keeps_the_order_of_each_key() {
    let fixture = fixture().await;
    let cluster = MockCluster::new(1).unwrap();
    // The topic of the events.
    cluster.create_topic("t", 3, 1).unwrap();
    let url = format!("kafka://{}", cluster.bootstrap_servers());
    let _relay = relay(&fixture, &format!("{url}?topic={{topic}}"));
    let source = format!("{url}?topic=t");
    let args = ["--source", &source, "--sql", "apply_harshly"];
    killed_sql_consumers(&fixture, &Kafka(cluster), &args, kills(3)).await;
}
