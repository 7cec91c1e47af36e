//! `pgonce consume` while its processes are killed, its broker is killed and restarted, and its handlers are slow and fail.
#![allow(clippy::print_stdout, reason = "what a long run counted")]

use async_nats::jetstream::{self, stream};
use lapin::options::QueueDeclareOptions;
use lapin::types::FieldTable;
use lapin::{Connection, ConnectionProperties};
use pgonce_testkit::{Nats, RabbitMq, Redis};
use rand::RngExt as _;
use rustix::process::Signal;

use crate::consume::{self, assert_exactly_once, fixture, number, publish, wait_for};
use crate::consume_service::Service;
use crate::fixture::Fixture;
use crate::relay::Running;

/// How often a process is killed; `make kill-tests` says more.
pub(crate) fn kills(usual: u32) -> u32 {
    let said = std::env::var("KILL_COUNT").ok();
    said.and_then(|count| count.parse::<u32>().ok())
        .unwrap_or(usual)
        .min(50)
}

/// What a killed process held is soon another's.
fn consume(fixture: &Fixture, args: &[&str]) -> Running {
    consume::consume(fixture, &[&["--lease", "3s"], args].concat())
}

/// The broker is killed at the second kill of a consumer, and at every fifth after it.
fn is_restarted_at(kill: u32) -> bool {
    kill % 5 == 1
}

/// What is between the outbox and the consumers.
pub(crate) trait Broker {
    /// Whether it hands messages out in the order in which it got them, whatever is killed.
    const ORDERED: bool;

    /// Whether there is something to kill.
    const RESTARTS: bool = true;

    async fn kill(&self);
    async fn restart(&self);
}

/// The outbox itself.
struct NoBroker;

impl Broker for NoBroker {
    const ORDERED: bool = true;
    const RESTARTS: bool = false;

    async fn kill(&self) {}
    async fn restart(&self) {}
}

macro_rules! brokers {
    ($($name:ty: $ordered:literal;)+) => {
        $(impl Broker for $name {
            const ORDERED: bool = $ordered;

            async fn kill(&self) {
                <$name>::kill(self).await.unwrap();
            }

            async fn restart(&self) {
                <$name>::restart(self).await.unwrap();
            }
        })+
    };
}

// NATS is read here in the order of its stream; RabbitMQ and Redis share their messages out among workers.
brokers! {
    Nats: true;
    RabbitMq: false;
    Redis: false;
}

/// Two consumers, of which one is killed again and again at any moment of its work.
pub(crate) async fn killed_sql_consumers<B: Broker>(
    fixture: &Fixture,
    broker: &B,
    args: &[&str],
    kills: u32,
) {
    const COUNT: i64 = 40;
    // Every failure here passes.
    let patient = "select pgonce.define_inbox('c', p_backoff => '20 ms', p_max_backoff => '100 ms', p_max_attempts => 1000)";
    fixture.sql(patient).await;
    let start = || consume(fixture, args);
    let mut running = [start(), start()];
    let mut restarts = 0;
    for kill in 0..kills {
        let before = number(fixture, "select count(*) from received").await;
        let first = i64::from(kill) * COUNT;
        publish(fixture, first..first + COUNT / 2).await;
        let restart = B::RESTARTS && is_restarted_at(kill);
        if restart {
            broker.kill().await;
            restarts += 1;
        }
        publish(fixture, first + COUNT / 2..first + COUNT).await;
        if restart {
            broker.restart().await;
        }
        // At any moment of the work: a random part of what is there is done.
        let part = before + rand::rng().random_range(0..COUNT / 2);
        let at_work = format!("select (count(*) >= {part})::int::bigint from received");
        wait_for(
            fixture,
            "some to be applied",
            &at_work,
            &[&running[0], &running[1]],
        )
        .await;
        let which = rand::rng().random_range(0..2);
        running[which].signal(Signal::KILL);
        running[which] = start();
    }
    let all = i64::from(kills) * COUNT;
    let over = format!("select (count(distinct n) >= {all})::int::bigint from received");
    wait_for(
        fixture,
        "everything to be applied",
        &over,
        &[&running[0], &running[1]],
    )
    .await;
    for mut one in running {
        assert_eq!(one.stop().await, 0, "{}", one.log());
    }
    assert_exactly_once(fixture, all, B::ORDERED).await;
    let calls = number(fixture, "select last_value from call").await;
    let (slow, failed) = (calls / 13, calls / 11);
    assert!(slow > 0 && failed > 0, "{calls} calls");
    println!(
        "{args:?}: {kills} kills, {restarts} restarts, {all} messages, each applied once; \
         {calls} calls, of which {slow} were slow and {failed} failed"
    );
}

/// A relay that brings the events to the broker.
pub(crate) fn relay(fixture: &Fixture, sink: &str) -> Running {
    fixture.ok(&["outbox", "subscriptions", "create", "billing"]);
    Running::start(fixture, &["--subscription", "billing", "--sink", sink])
}

#[tokio::test]
async fn a_sql_function_applies_each_event_once_however_often_its_consumers_are_killed() {
    let fixture = fixture().await;
    let args = [
        "--source",
        "outbox:c",
        "--sql",
        "apply_harshly",
        "--batch",
        "7",
    ];
    killed_sql_consumers(&fixture, &NoBroker, &args, kills(4)).await;
}

#[tokio::test]
async fn a_sql_function_of_batches_is_exactly_once_too() {
    let fixture = fixture().await;
    let stored = ["--source", "outbox:c", "--batches", "--store-first"];
    // Small ones, so that there are enough calls for some to be slow and some to fail.
    let args = [&stored[..], &["--batch", "8", "--sql", "apply_harshly"]].concat();
    killed_sql_consumers(&fixture, &NoBroker, &args, kills(4)).await;
}

#[tokio::test]
async fn a_redis_that_restarts_loses_and_doubles_nothing() {
    let fixture = fixture().await;
    let redis = Redis::start().await.unwrap();
    let _relay = relay(&fixture, &format!("{}?stream=events", redis.url()));
    let source = format!("{}?stream=events&group=c&claim_after=500ms", redis.url());
    let args = ["--source", &source, "--sql", "apply_harshly"];
    killed_sql_consumers(&fixture, &redis, &args, kills(3)).await;
}

/// A NATS with a stream, what relays to it, and the address to read it in its order.
async fn ordered_nats(fixture: &Fixture) -> (Nats, Running, String) {
    let nats = Nats::start().await.unwrap();
    let context = jetstream::new(async_nats::connect(nats.url()).await.unwrap());
    let config = stream::Config {
        name: "EVENTS".to_owned(),
        subjects: vec!["events.*".to_owned()],
        ..stream::Config::default()
    };
    context.create_stream(config).await.unwrap();
    let url = nats.url();
    let sink = format!("{url}?stream=EVENTS&subject=events.{{topic}}");
    let source = format!("{url}?stream=EVENTS");
    (nats, relay(fixture, &sink), source)
}

#[tokio::test]
async fn a_nats_that_restarts_loses_and_doubles_nothing_and_keeps_the_order() {
    let fixture = fixture().await;
    let (nats, _relay, source) = ordered_nats(&fixture).await;
    let args = ["--source", &source, "--sql", "apply_harshly"];
    killed_sql_consumers(&fixture, &nats, &args, kills(3)).await;
}

#[tokio::test]
async fn a_rabbitmq_that_restarts_loses_and_doubles_nothing() {
    let fixture = fixture().await;
    let rabbitmq = RabbitMq::start().await.unwrap();
    let properties = ConnectionProperties::default();
    let connection = Connection::connect(&rabbitmq.url(), properties)
        .await
        .unwrap();
    let channel = connection.create_channel().await.unwrap();
    let (queue, none) = ("consumed-events".into(), FieldTable::default());
    let declared = channel.queue_declare(queue, QueueDeclareOptions::durable(), none);
    declared.await.unwrap();
    rabbitmq.written_down("consumed-events").await.unwrap();
    drop((channel, connection));
    let url = rabbitmq.url();
    let _relay = relay(
        &fixture,
        &format!("{url}?exchange=&routing_key=consumed-events"),
    );
    let source = format!("{url}?queue=consumed-events");
    let args = ["--source", &source, "--sql", "apply_harshly"];
    killed_sql_consumers(&fixture, &rabbitmq, &args, kills(2)).await;
}

/// The same in front of a service that fails and hangs now and then.
async fn killed_consumers_of_a_service<B: Broker>(
    fixture: &Fixture,
    broker: &B,
    source: &str,
    kills: u32,
) {
    let (service, url) = Service {
        first: (0..10_000).step_by(7).collect(),
        first_hangs: (0..10_000).step_by(29).collect(),
        ..Service::default()
    }
    .start()
    .await;
    let patient = "select pgonce.define_inbox('c', p_backoff => '20 ms', p_max_backoff => '100 ms', p_max_attempts => 1000)";
    fixture.sql(patient).await;
    let args = [
        "--source",
        source,
        "--to",
        &url,
        "--handler-timeout",
        "500ms",
    ];
    let start = || consume(fixture, &args);
    let mut running = [start(), start()];
    let mut restarts = 0;
    for kill in 0..kills {
        let first = i64::from(kill) * 40;
        publish(fixture, first..first + 20).await;
        let restart = B::RESTARTS && is_restarted_at(kill);
        if restart {
            broker.kill().await;
            restarts += 1;
        }
        publish(fixture, first + 20..first + 40).await;
        if restart {
            broker.restart().await;
        }
        let part = kill as usize * 20 + rand::rng().random_range(0..20);
        service.wait_for(part, &[&running[0], &running[1]]).await;
        let which = rand::rng().random_range(0..2);
        running[which].signal(Signal::KILL);
        running[which] = start();
    }
    let all = kills as usize * 40;
    service.wait_for(all, &[&running[0], &running[1]]).await;
    for mut one in running {
        assert_eq!(one.stop().await, 0, "{}", one.log());
    }
    service.assert_stable(&[]);
    let calls = service.calls().len();
    println!(
        "a service behind {source}: {kills} kills, {restarts} restarts, {all} messages in {calls} calls, \
         each with one key and in order"
    );
}

#[tokio::test]
async fn a_service_gets_each_message_with_one_key_and_in_order_however_often_its_consumers_are_killed()
 {
    let fixture = fixture().await;
    killed_consumers_of_a_service(&fixture, &NoBroker, "outbox:c", kills(4)).await;
}

#[tokio::test]
async fn a_service_behind_a_nats_that_restarts_gets_each_message_with_one_key_and_in_order() {
    let fixture = fixture().await;
    let (nats, _relay, source) = ordered_nats(&fixture).await;
    killed_consumers_of_a_service(&fixture, &nats, &source, kills(3)).await;
}
