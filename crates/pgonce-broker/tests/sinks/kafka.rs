//! Kafka, as far as librdkafka's mock cluster goes.

use std::time::Duration;

use pgonce_broker::sinks::{Options, open};
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{Headers as _, Message as _};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

use super::conformance::{Got, Site, Stage, conforms};
use super::ground::Running;

const PARTITIONS: i32 = 3;

struct Cluster {
    cluster: MockCluster<'static, DefaultProducerContext>,
}

impl Site for Cluster {
    const DEDUPLICATES: bool = false;

    async fn start(_private: bool) -> Self {
        let cluster = MockCluster::new(1).unwrap();
        cluster.create_topic("orders", PARTITIONS, 1).unwrap();
        Self { cluster }
    }

    fn address(&self) -> (String, Options) {
        let url = format!("kafka://{}", self.cluster.bootstrap_servers());
        (url, Options::new().set("timeout", "2s"))
    }

    /// Partition by partition: a subject is in one of them.
    async fn got(&self) -> Vec<Got> {
        let servers = self.cluster.bootstrap_servers();
        let read = move || {
            let mut config = ClientConfig::new();
            config
                .set("bootstrap.servers", servers)
                .set("group.id", "test");
            let consumer: BaseConsumer = config.create().unwrap();
            let (mut got, second) = (Vec::new(), Duration::from_secs(10));
            for partition in 0..PARTITIONS {
                let (low, high) = consumer
                    .fetch_watermarks("orders", partition, second)
                    .unwrap();
                let mut list = TopicPartitionList::new();
                list.add_partition_offset("orders", partition, Offset::Offset(low))
                    .unwrap();
                consumer.assign(&list).unwrap();
                for _ in low..high {
                    let message = consumer.poll(second).expect("a record").unwrap();
                    let headers = message.headers().unwrap();
                    let header = |name: &str| {
                        let found = headers.iter().find(|header| header.key == name).unwrap();
                        String::from_utf8(found.value.unwrap().to_vec()).unwrap()
                    };
                    let subject = header("ce_subject");
                    assert_eq!(message.key().unwrap(), subject.as_bytes());
                    got.push(Got::new(
                        &header("ce_id"),
                        &subject,
                        message.payload().unwrap(),
                    ));
                }
            }
            got
        };
        tokio::task::spawn_blocking(read).await.unwrap()
    }

    async fn kill(&self) {
        self.cluster.broker_down(1).unwrap();
    }

    async fn restart(&self) {
        self.cluster.broker_up(1).unwrap();
    }
}

conforms!(Cluster);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_kafka_will_not_take_is_parked_with_the_reason() {
    let stage = Stage::<Cluster>::new(false).await;
    let running = Running::start(stage.relay_to(stage.site.sink().await));
    let odd = "select pgonce.publish('no such/topic', 'x', 'odd', '{}')";
    stage.ground.world.see.run(odd).await;
    stage.ground.publish(1, 5, 2).await;
    let letters = stage.dead_letters(1).await;
    assert_eq!(letters[0].subject, "odd");
    assert_eq!(stage.wait_for(5).await.len(), 5);
    running.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn brokers_that_do_not_answer_are_refused_at_the_start() {
    let options = Options::new().set("timeout", "500ms");
    let refusal = open("kafka://127.0.0.1:1", &options).await.unwrap_err();
    assert_eq!(refusal.code(), "sink-unreachable", "{refusal}");
    let refusal = open("kafka://", &options).await.unwrap_err();
    assert_eq!(refusal.code(), "sink-bad-url", "{refusal}");
}
