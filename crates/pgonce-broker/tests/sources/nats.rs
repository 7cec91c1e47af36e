//! What becomes of a source whose consumer at the server is gone.

use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, pull};
use async_nats::jetstream::stream::Stream;
use futures_util::TryStreamExt as _;
use pgonce_broker::{Incoming, Source, SourceError};
use pgonce_testkit::wait_until;

use super::broker_fixtures::{NatsDurable, NatsOrdered, NatsPlace, Site};
use super::conformance::Stage;
use super::fixture::{DEADLINE, Running};

/// A request for one message is over when that has come: nobody waits whom the server could answer that its consumer was deleted.
const OVER: usize = 1;
/// A request for more is still open then.
const OPEN: usize = 50;

async fn stream(place: &NatsPlace) -> Stream {
    let context = place.context().await;
    context.get_stream(&place.stream).await.unwrap()
}

async fn readers(stream: &Stream) -> Vec<String> {
    stream.consumer_names().try_collect().await.unwrap()
}

async fn delete_readers(place: &NatsPlace) {
    let stream = stream(place).await;
    let readers = readers(&stream).await;
    assert!(!readers.is_empty());
    for name in readers {
        stream.delete_consumer(&name).await.unwrap();
    }
}

async fn make_stream_again(place: &NatsPlace) {
    let context = place.context().await;
    context.delete_stream(&place.stream).await.unwrap();
    place.make_stream().await;
}

/// Pulls until this message comes; also how often the source was unavailable meanwhile.
async fn pull_until<S: Source>(
    source: &mut S,
    limit: usize,
    last: &str,
) -> (Vec<Incoming<S::Ticket>>, u64) {
    let pulling = async {
        let (mut came, mut unavailable) = (Vec::<Incoming<S::Ticket>>::new(), 0);
        while came.last().is_none_or(|one| one.message.id != last) {
            match source.pull(limit, Duration::from_millis(1)).await {
                Ok(pulled) => came.extend(pulled),
                Err(SourceError::Unavailable(_)) => unavailable += 1,
                Err(error) => panic!("{error}"),
            }
            tokio::task::yield_now().await;
        }
        (came, unavailable)
    };
    let pulled = tokio::time::timeout(DEADLINE, pulling).await;
    pulled.unwrap_or_else(|_| panic!("{last} does not come"))
}

fn ids<T>(came: &[Incoming<T>]) -> Vec<&str> {
    came.iter().map(|one| one.message.id.as_str()).collect()
}

async fn reads_on_by_another_durable_consumer(limit: usize, with_its_stream: bool) {
    let site = NatsDurable::start(false).await;
    site.send_numbers(1..=1, 0).await;
    let mut source = site.source(50, DEADLINE).await;
    let (old, _) = pull_until(&mut source, limit, "m1").await;
    let expected: &[&str] = match with_its_stream {
        true => {
            make_stream_again(&site.0).await;
            &["m2", "m3"]
        }
        false => {
            delete_readers(&site.0).await;
            &["m1", "m2", "m3"]
        }
    };
    site.send_numbers(2..=3, 0).await;
    let (came, unavailable) = pull_until(&mut source, limit, "m3").await;
    assert_eq!(ids(&came), expected);
    assert!(unavailable > 0, "an operator sees it");
    // What the consumer before had delivered has the first number of the stream, and counts nothing for this one.
    let old = old.into_iter().map(|one| one.ticket).collect();
    source.ack(old).await.unwrap();
    let mut tickets = came.into_iter().map(|one| one.ticket);
    let first = tickets.next().unwrap();
    source.ack(tickets.collect()).await.unwrap();
    for (left, then) in [(1, vec![first]), (0, Vec::new())] {
        let reached = || async { site.unsettled().await == left };
        wait_until(format!("{left} to be left"), DEADLINE, reached)
            .await
            .unwrap();
        source.ack(then).await.unwrap();
    }
    source.close().await;
}

#[tokio::test]
async fn a_durable_consumer_that_was_deleted_is_made_again() {
    tokio::join!(
        reads_on_by_another_durable_consumer(OVER, false),
        reads_on_by_another_durable_consumer(OPEN, false),
    );
}

#[tokio::test]
async fn a_durable_consumer_of_a_stream_that_was_made_again_is_made_again() {
    tokio::join!(
        reads_on_by_another_durable_consumer(OVER, true),
        reads_on_by_another_durable_consumer(OPEN, true),
    );
}

#[tokio::test]
async fn a_durable_consumer_that_was_made_again_by_hand_keeps_its_settings_or_is_refused() {
    let site = NatsDurable::start(false).await;
    site.send_numbers(1..=1, 0).await;
    let mut source = site.source(50, DEADLINE).await;
    pull_until(&mut source, OPEN, "m1").await;
    let by_hand = |max_deliver| pull::Config {
        durable_name: Some("workers".to_owned()),
        ack_policy: AckPolicy::Explicit,
        ack_wait: Duration::from_secs(77),
        max_deliver,
        ..pull::Config::default()
    };
    let stream = stream(&site.0).await;
    delete_readers(&site.0).await;
    stream.create_consumer(by_hand(-1)).await.unwrap();
    site.send_numbers(2..=2, 0).await;
    pull_until(&mut source, OPEN, "m2").await;
    let found = stream.consumer_info("workers").await.unwrap();
    assert_eq!(found.config.ack_wait, Duration::from_secs(77));
    delete_readers(&site.0).await;
    stream.create_consumer(by_hand(5)).await.unwrap();
    let refused = async {
        loop {
            match source.pull(OPEN, Duration::ZERO).await {
                Err(SourceError::Broken(error)) => return error.to_string(),
                _ => tokio::task::yield_now().await,
            }
        }
    };
    let refused = tokio::time::timeout(DEADLINE, refused).await.unwrap();
    assert!(refused.contains("5 deliveries"), "{refused}");
}

async fn reads_on_in_order(with_its_stream: bool) {
    let site = NatsOrdered::start(false).await;
    site.send_numbers(1..=2, 0).await;
    let mut source = site.source(50, DEADLINE).await;
    pull_until(&mut source, OVER, "m1").await;
    let expected: &[&str] = match with_its_stream {
        true => {
            make_stream_again(&site.0).await;
            &["m3"]
        }
        false => {
            delete_readers(&site.0).await;
            &["m2", "m3"]
        }
    };
    site.send_numbers(3..=3, 0).await;
    let (came, unavailable) = pull_until(&mut source, OVER, "m3").await;
    assert_eq!(ids(&came), expected);
    assert!(unavailable > 0, "an operator sees it");
    source.close().await;
}

#[tokio::test]
async fn in_order_it_reads_on_where_it_was_when_its_reader_is_forgotten() {
    tokio::join!(reads_on_in_order(false), reads_on_in_order(true));
}

/// While it waits for the lease it asks for nothing new, and is forgotten after a minute.
#[tokio::test]
async fn a_standby_whose_reader_is_forgotten_takes_over() {
    let stage = Stage::<NatsOrdered>::new(false).await;
    stage.site.send_numbers(1..=20, 7).await;
    let holder = stage.run().await;
    stage.fixture.wait_for(20).await;
    let stream = stream(&stage.site.0).await;
    let of_holder = readers(&stream).await;
    let standby = stage.consumer().await;
    let mut of_standby = readers(&stream).await;
    of_standby.retain(|name| !of_holder.contains(name));
    let [reader] = of_standby.as_slice() else {
        panic!("{of_standby:?}");
    };
    let counts = standby.counts();
    let standby = Running::start(standby);
    let returned = || async { counts.returned() >= 20 };
    stage.fixture.wait("it to be turned away", returned).await;
    let asks_nothing = || async {
        let reader = stream.consumer_info(reader).await.unwrap();
        reader.num_waiting == 0
    };
    stage
        .fixture
        .wait("its request to be over", asks_nothing)
        .await;
    stream.delete_consumer(reader).await.unwrap();
    holder.stop().await.unwrap();
    stage.site.send_numbers(21..=30, 7).await;
    stage.fixture.wait_for(30).await;
    assert!(counts.source_errors() > 0, "an operator sees it");
    standby.stop().await.unwrap();
    stage.fixture.check().await;
}
