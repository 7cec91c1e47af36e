//! A source by its address: what cannot work is refused by name, and what can is read.

use std::time::Duration;

use pgonce_broker::Source as _;
use pgonce_broker::sinks::Options;
use pgonce_broker::sources::open;

use crate::broker_fixtures::{NatsDurable, Rabbit, RedisGroup, Site};
use crate::fixture::Fixture;

async fn read<S: Site>(site: &S, url: &str, name: &str) {
    let fixture = Fixture::new().await;
    site.send_numbers(1..=3, 3).await;
    let mut source = open(url, &Options::new(), &fixture.once()).await.unwrap();
    assert_eq!(source.name(), name, "{url}");
    let mut seen = Vec::new();
    while seen.len() < 3 {
        let pulled = source.pull(10, Duration::from_millis(50)).await.unwrap();
        let (messages, tickets): (Vec<_>, Vec<_>) = pulled
            .into_iter()
            .map(|one| (one.message, one.ticket))
            .unzip();
        seen.extend(messages.into_iter().map(|message| message.id));
        source.ack(tickets).await.unwrap();
    }
    seen.sort();
    assert_eq!(seen, ["m1", "m2", "m3"], "{url}");
    source.close().await;
}

#[tokio::test]
async fn each_broker_is_read_by_its_address() {
    let nats = NatsDurable::start(false).await;
    let (url, stream) = (nats.0.server.url(), &nats.0.stream);
    let url = format!("{url}?stream={stream}&durable=workers&name=mine");
    read(&nats, &url, "mine").await;
    let rabbit = Rabbit::start(false).await;
    let (url, queue) = (rabbit.server.url(), rabbit.queue());
    read(
        &rabbit,
        &format!("{url}?queue={queue}"),
        &format!("rabbitmq:{queue}"),
    )
    .await;
    let redis = RedisGroup::start(false).await;
    let (url, stream) = redis.place();
    read(
        &redis,
        &format!("{url}?stream={stream}&group=workers"),
        &format!("redis:{stream}"),
    )
    .await;
}

#[tokio::test]
async fn what_is_wrong_with_an_address_is_said_with_what_would_be_right() {
    let fixture = Fixture::new().await;
    for (url, code, words) in [
        ("pigeon:roof", "sink-unknown-scheme", "outbox"),
        ("localhost", "sink-unknown-scheme", "stored"),
        ("outbox:", "sink-bad-url", "outbox:SUBSCRIPTION"),
        ("outbox:c?stream=x", "sink-unknown-option", "name"),
        ("stored:?x=1", "sink-unknown-option", "x"),
        ("nats://h", "sink-missing-option", "\"stream\""),
        ("nats://127.0.0.1:1?stream=S", "sink-unreachable", "NATS"),
        ("amqp://h", "sink-missing-option", "\"queue\""),
        ("amqp://h?queue=q&prefetch=many", "sink-bad-option", "65535"),
        (
            "redis://h?stream=s&claim_after=soon",
            "sink-bad-option",
            "500ms",
        ),
        ("kafka://", "sink-bad-url", "kafka://host:9092"),
        ("kafka://h:1", "sink-missing-option", "\"topic\""),
    ] {
        let refusal = match open(url, &Options::new(), &fixture.once()).await {
            Ok(source) => panic!("{url} was opened as {source:?}"),
            Err(refusal) => refusal,
        };
        assert_eq!(refusal.code(), code, "{url}: {refusal}");
        assert!(refusal.to_string().contains(words), "{url}: {refusal}");
    }
}
