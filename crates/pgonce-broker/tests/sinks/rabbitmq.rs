//! RabbitMQ.

use std::sync::Mutex;

use lapin::options::{
    BasicAckOptions, BasicGetOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions,
};
use lapin::types::FieldTable;
use lapin::{Channel, Connection, ConnectionProperties, ExchangeKind};
use pgonce_broker::sinks::{Options, open};
use pgonce_testkit::{RabbitMq, shared_rabbitmq};
use pgonce_tests::unique;

use super::conformance::{Got, Site, Stage, conforms};
use super::fixture::Running;
use pgonce_tests::Server;

struct RabbitSite {
    server: Server<RabbitMq>,
    name: String,
    taken: Mutex<Vec<Got>>,
}

impl RabbitSite {
    async fn channel(&self) -> (Connection, Channel) {
        let properties = ConnectionProperties::default();
        let connection = Connection::connect(&self.server.url(), properties)
            .await
            .unwrap();
        let channel = connection.create_channel().await.unwrap();
        (connection, channel)
    }

    async fn with(server: Server<RabbitMq>) -> Self {
        let site = Self {
            server,
            name: unique("rabbit"),
            taken: Mutex::default(),
        };
        let (_connection, channel) = site.channel().await;
        let name = || site.name.as_str().into();
        let options = ExchangeDeclareOptions {
            durable: true,
            ..ExchangeDeclareOptions::default()
        };
        channel
            .exchange_declare(name(), ExchangeKind::Topic, options, FieldTable::default())
            .await
            .unwrap();
        channel
            .queue_declare(
                name(),
                QueueDeclareOptions::durable(),
                FieldTable::default(),
            )
            .await
            .unwrap();
        site.bind("orders").await;
        site
    }

    async fn bind(&self, key: &str) {
        let (_connection, channel) = self.channel().await;
        let name = || self.name.as_str().into();
        let (options, none) = (QueueBindOptions::default(), FieldTable::default());
        channel
            .queue_bind(name(), name(), key.into(), options, none)
            .await
            .unwrap();
    }
}

impl Site for RabbitSite {
    const DEDUPLICATES: bool = false;

    async fn start(private: bool) -> Self {
        let server = match private {
            true => Server::Own(RabbitMq::start().await.unwrap()),
            false => Server::Shared(shared_rabbitmq().await.unwrap()),
        };
        let site = Self::with(server).await;
        if private {
            // It is going to be killed.
            site.server.written_down(&site.name).await.unwrap();
        }
        site
    }

    fn address(&self) -> (String, Options) {
        let url = format!("{}?exchange={}", self.server.url(), self.name);
        (url, Options::new())
    }

    /// Takes what is in the queue, and keeps it with what was taken before.
    async fn got(&self) -> Vec<Got> {
        let (_connection, channel) = self.channel().await;
        loop {
            let get = channel.basic_get(self.name.as_str().into(), BasicGetOptions::default());
            let Some(message) = get.await.unwrap() else {
                return self.taken.lock().unwrap().clone();
            };
            let properties = &message.properties;
            assert_eq!(*properties.delivery_mode(), Some(2), "persistent");
            let header = |name: &str| {
                let headers = properties.headers().as_ref().unwrap();
                let text = headers.inner().get(name).unwrap().as_long_string().unwrap();
                text.to_string()
            };
            assert_eq!(header("cloudEvents_type"), "order.changed");
            let id = properties.message_id().as_ref().unwrap().as_str();
            let got = Got::new(id, &header("cloudEvents_subject"), &message.data);
            message.ack(BasicAckOptions::default()).await.unwrap();
            self.taken.lock().unwrap().push(got);
        }
    }

    async fn kill(&self) {
        self.server.kill().await.unwrap();
    }

    async fn restart(&self) {
        self.server.restart().await.unwrap();
    }
}

conforms!(RabbitSite);

#[tokio::test]
async fn a_missing_exchange_is_refused_at_the_start() {
    let server = shared_rabbitmq().await.unwrap();
    let url = format!("{}?exchange=nobodys", server.url());
    let refusal = open(&url, &Options::new()).await.unwrap_err();
    assert_eq!(refusal.code(), "sink-refused");
    assert!(
        refusal.to_string().contains("no exchange \"nobodys\""),
        "{refusal}"
    );
    let url = server.url().replace("amqp://", "amqp://guest:wrong@") + "?exchange=x";
    let refusal = open(&url, &Options::new()).await.unwrap_err();
    assert_eq!(refusal.code(), "sink-refused", "{refusal}");
    assert!(!refusal.to_string().contains("guest:wrong"), "{refusal}");
}

/// Many under way at once, some of which come back: which ones must never be mixed up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exactly_the_unroutable_wait_among_many_under_way() {
    let stage = Stage::<RabbitSite>::new(false).await;
    let running = Running::start(stage.relay_to(stage.site.sink().await));
    let mixed = "select pgonce.publish(case when i % 10 = 0 then 'nowhere' else 'orders' end, 'order.changed', \
         's' || i, jsonb_build_object('n', i)) from generate_series(1, 600) i";
    stage.fixture.world.see.run(mixed).await;
    let reason = stage.retried(60).await;
    assert!(
        reason.contains("no queue takes routing key \"nowhere\""),
        "{reason}"
    );
    let others = "select count(*) from pgonce.parked where topic <> 'nowhere'";
    assert_eq!(stage.fixture.world.see.number(others).await, 0);
    // A queue for them, and they go by themselves.
    stage.site.bind("nowhere").await;
    let got = stage.wait_for(600).await;
    assert_eq!((stage.check(&got).await, got.len()), (0, 600));
    running.stop().await.unwrap();
}

#[tokio::test]
async fn a_message_that_the_broker_finds_too_long_is_parked_and_the_others_flow() {
    let server = RabbitMq::start_with("max_message_size = 2000")
        .await
        .unwrap();
    let (fixture, site) = (
        super::fixture::Fixture::new().await,
        RabbitSite::with(Server::Own(server)).await,
    );
    let stage = Stage { fixture, site };
    let running = Running::start(stage.relay_to(stage.site.sink().await));
    stage.fixture.publish(1, 20, 5).await;
    let big =
        "select pgonce.publish('orders', 'x', 'big', jsonb_build_object('x', repeat('x', 5000)))";
    stage.fixture.world.see.run(big).await;
    stage.fixture.publish(21, 40, 5).await;
    let letters = stage.dead_letters(1).await;
    let reason = letters[0].reason.clone().unwrap();
    assert!(
        letters[0].subject == "big" && reason.contains("size"),
        "{reason}"
    );
    let got = stage.wait_for(40).await;
    assert_eq!(stage.check(&got).await, 0);
    running.stop().await.unwrap();
}
