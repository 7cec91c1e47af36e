//! What is one source's own.

use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, pull};
use pgonce_broker::sources::{Nats, NatsConfig, RabbitMq, RabbitMqConfig};
use pgonce_broker::{Incoming, Source, SourceError};
use pgonce_testkit::wait_until;

use super::broker_fixtures::{NatsDurable, NatsOrdered, Rabbit, RedisGroup, RedisOrdered, Site};
use super::conformance::Stage;
use super::fixture::Running;

#[tokio::test]
async fn a_durable_consumer_that_would_lose_messages_is_refused() {
    let site = NatsDurable::start(false).await;
    let stream = site.0.context().await.get_stream(&site.0.stream).await;
    let stream = stream.unwrap();
    for (name, ack_policy, max_deliver, word) in [
        ("gives-up", AckPolicy::Explicit, 5, "5 deliveries"),
        ("forgets", AckPolicy::None, -1, "explicit"),
    ] {
        let config = pull::Config {
            durable_name: Some(name.to_owned()),
            ack_policy,
            max_deliver,
            ..pull::Config::default()
        };
        stream.create_consumer(config).await.unwrap();
        let config = NatsConfig::durable(site.0.server.url(), &site.0.stream, name);
        match Nats::connect(config).await {
            Err(SourceError::Broken(error)) => {
                assert!(error.to_string().contains(word), "{error}");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_wait_for_the_lease_of_a_stream_leaves_no_readers_behind() {
    let stage = Stage::<NatsOrdered>::new(false).await;
    stage.site.send_numbers(1..=20, 7).await;
    let holder = stage.run().await;
    stage.fixture.wait_for(20).await;
    let waiting = stage.consumer().await;
    let counts = waiting.counts();
    let waiting = Running::start(waiting);
    let often = || async { counts.returned() >= 5 * 20 };
    stage
        .fixture
        .wait("it to be turned away often", often)
        .await;
    let stream = stage.site.0.context().await;
    let stream = stream.get_stream(&stage.site.0.stream).await.unwrap();
    assert_eq!(stream.cached_info().state.consumer_count, 2);
    // The holder goes, and it goes on from there.
    holder.stop().await.unwrap();
    stage.site.send_numbers(21..=30, 7).await;
    stage.fixture.wait_for(30).await;
    waiting.stop().await.unwrap();
    stage.fixture.check().await;
}

#[tokio::test]
async fn what_is_missing_is_said_at_the_start() {
    let (nats, rabbit) = (NatsDurable::start(false).await, Rabbit::start(false).await);
    let reply = Nats::connect(NatsConfig::ordered(nats.0.server.url(), "NOWHERE")).await;
    assert!(reply.unwrap_err().to_string().contains("NOWHERE"));
    let config = RabbitMqConfig::new(rabbit.server.url(), "nowhere");
    let reply = RabbitMq::connect(config).await;
    assert!(reply.unwrap_err().to_string().contains("nowhere"));
}

/// A client library that loses a refusal would leave a source waiting for as long as an answer may take.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rabbitmq_that_refuses_connections_is_known_to_be_away_at_once() {
    // Bound, and not listening: nobody else gets the port meanwhile.
    let nobody = tokio::net::TcpSocket::new_v4().unwrap();
    nobody.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let url = format!("amqp://{}", nobody.local_addr().unwrap());
    let tries = async {
        for _ in 0..20_000 {
            let mut config = RabbitMqConfig::new(&url, "orders");
            config.timeout = 2 * super::fixture::DEADLINE;
            let reply = RabbitMq::connect(config).await.unwrap_err().to_string();
            assert!(reply.contains("refused"), "{reply}");
        }
    };
    tokio::time::timeout(super::fixture::DEADLINE, tries)
        .await
        .unwrap();
}

/// What a quorum queue gave to a worker counts, also where the worker never looked at it.
#[tokio::test]
async fn a_start_of_a_source_uses_up_none_of_the_deliveries_of_a_quorum_queue() {
    let site = Rabbit::with_limit(2).await;
    site.send_numbers(1..=1, 0).await;
    let ready = || async { site.unsettled().await == 1 };
    for _ in 0..5 {
        drop(site.source(10, super::fixture::DEADLINE).await);
        wait_until("the message to be ready", super::fixture::DEADLINE, ready)
            .await
            .unwrap();
    }
    // A worker that is gone with what it had in hand is counted, and the message says so.
    for returns in [None, Some(1)] {
        let mut source = site.source(10, super::fixture::DEADLINE).await;
        let pull = source.pull(10, Duration::ZERO);
        let pulled = tokio::time::timeout(super::fixture::DEADLINE, pull).await;
        let came = pulled.expect("it comes").unwrap();
        let message = &came[0].message;
        assert_eq!(message.id, "m1");
        assert_eq!(message.redelivered, returns.is_some());
        let counted = message.headers.get("x-delivery-count");
        assert_eq!(counted.and_then(serde_json::Value::as_u64), returns);
    }
}

/// Given back, a message comes again: soon, and marked as such.
async fn comes_again<S: Site>() {
    let site = S::start(false).await;
    site.send_numbers(1..=1, 0).await;
    let mut source = site.source(10, super::fixture::DEADLINE).await;
    for round in 0..50 {
        let mut came = Vec::new();
        while came.is_empty() {
            came = source.pull(10, Duration::ZERO).await.unwrap();
        }
        assert_eq!((came.len(), came[0].message.id.as_str()), (1, "m1"));
        assert_eq!(came[0].message.redelivered, round > 0);
        let ticket = came.remove(0).ticket;
        match round {
            49 => source.ack(vec![ticket]).await.unwrap(),
            _ => source
                .nack(vec![ticket], Duration::from_millis(1))
                .await
                .unwrap(),
        }
    }
    source.close().await;
    assert_eq!(site.unsettled().await, 0);
}

#[tokio::test]
async fn given_back_fifty_times_a_message_comes_fifty_times() {
    tokio::time::timeout(super::fixture::DEADLINE, async {
        comes_again::<NatsDurable>().await;
        comes_again::<Rabbit>().await;
        comes_again::<RedisGroup>().await;
    })
    .await
    .unwrap();
}

async fn numbers<S: Source>(
    source: &mut S,
    range: std::ops::RangeInclusive<u64>,
) -> Vec<Incoming<S::Ticket>> {
    let expected: Vec<_> = range.map(|n| format!("m{n}")).collect();
    let mut came = Vec::new();
    while came.len() < expected.len() {
        came.extend(source.pull(50, Duration::from_millis(1)).await.unwrap());
    }
    let ids: Vec<_> = came.iter().map(|one| one.message.id.clone()).collect();
    assert_eq!(ids, expected);
    came
}

/// What was given back or settled is nothing that is still in hand: a database that was taken back gets it again.
async fn goes_back<S: Site>() {
    let site = S::start(false).await;
    site.send_numbers(1..=12, 1).await;
    let mut source = site.source(50, super::fixture::DEADLINE).await;
    let mut all = numbers(&mut source, 1..=12).await;
    let places: Vec<_> = all
        .iter()
        .map(|one| one.message.place.clone().unwrap())
        .collect();
    let (partition, fifth) = (places[4].partition.as_str(), Some(places[4].position));
    // In hand is everything: the consumer leaves out what is applied.
    assert!(!source.seek(partition, fifth).await.unwrap());
    let last = all.split_off(10);
    let back = last.into_iter().map(|one| one.ticket).collect();
    source.nack(back, Duration::ZERO).await.unwrap();
    numbers(&mut source, 11..=12).await;
    assert!(source.seek(partition, fifth).await.unwrap(), "given back");
    let again = numbers(&mut source, 6..=12).await;
    let settled = again.into_iter().map(|one| one.ticket).collect();
    source.ack(settled).await.unwrap();
    let twelfth = Some(places[11].position);
    assert!(!source.seek(partition, twelfth).await.unwrap());
    assert!(source.seek(partition, fifth).await.unwrap(), "settled");
    numbers(&mut source, 6..=12).await;
    source.close().await;
}

#[tokio::test]
async fn a_source_with_an_order_goes_back_behind_what_was_settled_or_given_back() {
    tokio::time::timeout(super::fixture::DEADLINE, async {
        goes_back::<NatsOrdered>().await;
        goes_back::<RedisOrdered>().await;
        #[cfg(feature = "kafka")]
        goes_back::<super::kafka::Topic>().await;
    })
    .await
    .unwrap();
}
