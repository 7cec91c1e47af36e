//! Kafka, as far as librdkafka's mock cluster goes.

use std::time::{Duration, Instant};

use pgonce_broker::sinks::{Options, open};
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{Headers as _, Message as _};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};

use pgonce_testkit::wait_until;

use super::conformance::{Got, Site, Stage, conforms};
use super::fixture::{DEADLINE, Running};

const PARTITIONS: i32 = 3;

pub(super) struct Cluster {
    pub(super) cluster: MockCluster<'static, DefaultProducerContext>,
    timeout: &'static str,
}

impl Site for Cluster {
    const DEDUPLICATES: bool = false;
    const TRIES: u64 = 24;

    async fn start(private: bool) -> Self {
        let cluster = MockCluster::new(1).unwrap();
        cluster.create_topic("orders", PARTITIONS, 1).unwrap();
        // One that goes away is noticed soon; with any other nothing is to be sent twice, however busy the machine is.
        let timeout = if private { "1s" } else { "30s" };
        Self { cluster, timeout }
    }

    fn address(&self) -> (String, Options) {
        let url = format!("kafka://{}", self.cluster.bootstrap_servers());
        (url, Options::new().set("timeout", self.timeout))
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
            let deadline = Instant::now() + DEADLINE;
            for partition in 0..PARTITIONS {
                let (low, high) = consumer
                    .fetch_watermarks("orders", partition, second)
                    .unwrap();
                let mut list = TopicPartitionList::new();
                list.add_partition_offset("orders", partition, Offset::Offset(low))
                    .unwrap();
                consumer.assign(&list).unwrap();
                for _ in low..high {
                    // It also answers nothing when something else than a record came.
                    let message = loop {
                        assert!(Instant::now() < deadline, "no record");
                        if let Some(message) = consumer.poll(second) {
                            break message.unwrap();
                        }
                    };
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
async fn what_kafka_does_not_take_waits_with_the_reason_and_the_others_flow() {
    let stage = Stage::<Cluster>::new(false).await;
    let cluster = &stage.site.cluster;
    cluster
        .topic_error(
            "missing",
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART,
        )
        .unwrap();
    let relay = stage.relay_to(stage.site.sink().await);
    let counts = relay.counts();
    let running = Running::start(relay);
    let missing = "select pgonce.publish('missing', 'x', 'missing', '{}')";
    stage.fixture.world.see.run(missing).await;
    stage.fixture.publish(1, 5, 2).await;
    let reason = stage.retried(1).await;
    assert!(reason.contains("nknown topic"), "{reason}");
    assert_eq!(stage.wait_for(5).await.len(), 5);
    cluster
        .topic_error("missing", RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR)
        .unwrap();
    wait_until("the topic's own event", DEADLINE, || async {
        counts.sent() >= 6
    })
    .await
    .unwrap();

    let too_long = RDKafkaRespErr::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE;
    cluster.request_errors(RDKafkaApiKey::Produce, &[too_long]);
    let big = "select pgonce.publish('orders', 'x', 'big', '{}')";
    stage.fixture.world.see.run(big).await;
    let letters = stage.dead_letters(1).await;
    let reason = letters[0].reason.clone().unwrap();
    assert!(
        letters[0].subject == "big" && reason.contains("size"),
        "{reason}"
    );
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
