//! Kafka, as far as librdkafka's mock cluster goes.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use pgonce_broker::sources::{Kafka, KafkaConfig};
use pgonce_broker::{Incoming, Source as _};
use rdkafka::ClientConfig;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{DefaultProducerContext, FutureProducer, FutureRecord};

use super::broker_fixtures::{KIND, Letter, Site};

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

/// librdkafka ends the process where a partition is taken from it a second time while it still stops to read it.
#[tokio::test]
async fn a_source_that_is_sent_to_and_fro_goes_on_at_the_last_place() {
    let topic = Topic::start(true).await;
    topic.send((0..30).map(numbered).collect()).await;
    let mut source = topic.source(30, Duration::ZERO).await;
    let first = source.pull(1, Duration::ZERO).await.unwrap().remove(0);
    let partition = first.message.place.unwrap().partition;
    for turn in 0..100 {
        let moved = source.seek(&partition, Some((1 + turn % 25).into())).await;
        assert!(moved.unwrap(), "{turn}");
        let back = source.nack(vec![first.ticket], Duration::ZERO);
        back.await.unwrap();
    }
    source.seek(&partition, Some(20.into())).await.unwrap();
    let mut read = Vec::new();
    while read.len() < 9 {
        let pulled = source.pull(30, Duration::ZERO).await.unwrap();
        let text = |one: Incoming<_>| String::from_utf8(one.message.payload.to_vec()).unwrap();
        read.extend(pulled.into_iter().map(text));
    }
    let wanted: Vec<_> = (21..30).map(|number: i32| number.to_string()).collect();
    assert_eq!(read, wanted);
}

/// Neither the end of a rest nor the end of a pause alone lets a partition go on that has both.
#[tokio::test]
async fn a_partition_that_is_given_back_and_paused_goes_on_when_both_are_over() {
    let topic = Topic::start(true).await;
    topic.send((0..3).map(numbered).collect()).await;
    let mut source = topic.source(3, Duration::ZERO).await;
    let first = source.pull(1, Duration::ZERO).await.unwrap().remove(0);
    let partition = first.message.place.unwrap().partition;
    let all = HashSet::from([partition]);
    source
        .nack(vec![first.ticket], Duration::ZERO)
        .await
        .unwrap();
    source.pause(&all).await.unwrap();
    // Far longer than it rests.
    let silence = Duration::from_secs(2);
    let none = tokio::time::timeout(silence, source.pull(1, Duration::ZERO));
    assert!(none.await.is_err(), "it is paused");
    source.pause(&HashSet::new()).await.unwrap();
    let next = source.pull(1, Duration::ZERO).await.unwrap().remove(0);
    assert_eq!(next.ticket, first.ticket);
    source.pause(&all).await.unwrap();
    let longer = Duration::from_secs(3600);
    source.nack(vec![next.ticket], longer).await.unwrap();
    source.pause(&HashSet::new()).await.unwrap();
    let none = tokio::time::timeout(silence, source.pull(1, Duration::ZERO));
    assert!(none.await.is_err(), "it rests");
}

/// A pause may come while the client still looks for the place that it was sent to.
#[tokio::test]
async fn a_partition_that_is_paused_as_soon_as_it_was_sent_elsewhere_goes_on_there() {
    let topic = Topic::start(true).await;
    topic.send((0..3).map(numbered).collect()).await;
    let mut source = topic.source(3, Duration::ZERO).await;
    let first = source
        .pull(3, Duration::from_secs(1))
        .await
        .unwrap()
        .remove(0);
    let partition = first.message.place.unwrap().partition;
    let all = HashSet::from([partition.clone()]);
    for after in [None, Some(1.into()), None, Some(0.into())] {
        source.seek(&partition, Some(7.into())).await.unwrap();
        source.seek(&partition, after).await.unwrap();
        source.pause(&all).await.unwrap();
        let none = tokio::time::timeout(Duration::from_secs(1), source.pull(1, Duration::ZERO));
        assert!(none.await.is_err(), "it is paused");
        source.pause(&HashSet::new()).await.unwrap();
        let pull = tokio::time::timeout(Duration::from_secs(60), source.pull(1, Duration::ZERO));
        let next = pull.await.expect("it goes on").unwrap().remove(0);
        let wanted = after.map_or(0, |after: pgonce::inbox::Position| after.major + 1);
        assert_eq!(next.ticket.1, wanted);
    }
}

/// By itself the client waits for 45 seconds until its group knows the last offset.
#[test]
fn a_source_whose_kafka_is_away_is_closed_within_seconds() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (topic, away_at) = runtime.block_on(async {
        let topic = Topic::start(true).await;
        topic.send(vec![numbered(0)]).await;
        let mut source = topic.source(1, Duration::ZERO).await;
        let first = source.pull(1, Duration::ZERO).await.unwrap().remove(0);
        topic.kill().await;
        let away_at = Instant::now();
        source.ack(vec![first.ticket]).await.unwrap();
        (topic, away_at)
    });
    drop(runtime);
    let closed_after = away_at.elapsed();
    assert!(closed_after < Duration::from_secs(30), "{closed_after:?}");
    topic.cluster.broker_up(1).unwrap();
}

fn numbered(number: i32) -> Letter<'static> {
    Letter {
        id: "",
        key: Some("one".to_owned()),
        kind: KIND,
        payload: number.to_string().into_bytes(),
    }
}
