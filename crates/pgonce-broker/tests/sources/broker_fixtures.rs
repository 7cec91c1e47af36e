//! The other side of each source, with a place of the test's own.

use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream::{self, stream};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties};
use pgonce_broker::Source;
use pgonce_broker::sources::{
    Nats, NatsConfig, RabbitMq, RabbitMqConfig, RedisStream, RedisStreamConfig,
};
use pgonce_testkit as testkit;
use pgonce_tests::{Server, connect_redis, unique};
use redis::AsyncCommands as _;

/// How long a broker waits for a worker that is gone.
pub(crate) const GONE_AFTER: Duration = Duration::from_millis(700);

/// A message to send.
pub(crate) struct Letter<'a> {
    pub(crate) id: &'a str,
    pub(crate) key: Option<String>,
    pub(crate) kind: &'static str,
    pub(crate) payload: Vec<u8>,
}

/// The type of what is sent in numbers.
pub(crate) const KIND: &str = "test.numbered";

pub(crate) trait Site: Sized + 'static {
    type Source: Source;

    /// Whether order holds whatever happens.
    const ORDERED: bool;

    /// With a server of its own where it is going to be killed.
    async fn start(private: bool) -> Self;

    /// At most this many before the first is settled, and somebody is gone who has not settled for so long, where that can be said.
    async fn source(&self, prefetch: u16, gone_after: Duration) -> Self::Source;

    async fn send(&self, letters: Vec<Letter<'_>>);

    /// How many messages the broker got no acknowledgement for.
    async fn unsettled(&self) -> u64;

    async fn kill(&self);

    async fn restart(&self);

    /// Messages `m1` … spread over keys by their remainder.
    async fn send_numbers(&self, numbers: impl Iterator<Item = u64>, keys: u64) {
        let ids: Vec<_> = numbers.map(|n| (n, format!("m{n}"))).collect();
        let letters = ids.iter().map(|(n, id)| Letter {
            id,
            key: (keys > 0).then(|| format!("k{}", n % keys)),
            kind: KIND,
            payload: format!("{{\"n\": {n}}}").into_bytes(),
        });
        self.send(letters.collect()).await;
    }
}

/// A stream of NATS.
pub(crate) struct NatsPlace {
    pub(crate) server: Server<testkit::Nats>,
    pub(crate) stream: String,
}

impl NatsPlace {
    async fn start(private: bool) -> Self {
        let server = match private {
            true => Server::Own(testkit::Nats::start().await.unwrap()),
            false => Server::Shared(testkit::shared_nats().await.unwrap()),
        };
        let place = Self {
            server,
            stream: unique("IN"),
        };
        place.make_stream().await;
        place
    }

    /// At the start, and where a test deleted it.
    pub(crate) async fn make_stream(&self) {
        let config = stream::Config {
            name: self.stream.clone(),
            subjects: vec![format!("{}.*", self.stream)],
            ..stream::Config::default()
        };
        self.context().await.create_stream(config).await.unwrap();
    }

    pub(crate) async fn context(&self) -> jetstream::Context {
        jetstream::new(async_nats::connect(self.server.url()).await.unwrap())
    }

    /// Without `Nats-Msg-Id`: the stream itself would drop copies.
    async fn send(&self, letters: Vec<Letter<'_>>) {
        let context = self.context().await;
        let mut reply = Vec::new();
        for letter in letters {
            let mut headers = HeaderMap::new();
            headers.insert("ce-type", letter.kind);
            if !letter.id.is_empty() {
                headers.insert("ce-id", letter.id);
            }
            if let Some(key) = &letter.key {
                headers.insert("ce-subject", key.as_str());
            }
            let subject = format!("{}.orders", self.stream);
            let publish = context.publish_with_headers(subject, headers, letter.payload.into());
            reply.push(publish.await.unwrap());
        }
        for reply in reply {
            reply.await.unwrap();
        }
    }
}

pub(crate) struct NatsDurable(pub(crate) NatsPlace);

impl Site for NatsDurable {
    type Source = Nats;
    const ORDERED: bool = false;

    async fn start(private: bool) -> Self {
        Self(NatsPlace::start(private).await)
    }

    async fn source(&self, _prefetch: u16, gone_after: Duration) -> Nats {
        let mut config = NatsConfig::durable(self.0.server.url(), &self.0.stream, "workers");
        config.ack_wait = gone_after;
        Nats::connect(config).await.unwrap()
    }

    async fn send(&self, letters: Vec<Letter<'_>>) {
        self.0.send(letters).await;
    }

    async fn unsettled(&self) -> u64 {
        let stream = self.0.context().await.get_stream(&self.0.stream).await;
        let reply = stream.unwrap().consumer_info("workers").await.unwrap();
        reply.num_pending + reply.num_ack_pending as u64
    }

    async fn kill(&self) {
        self.0.server.kill().await.unwrap();
    }

    async fn restart(&self) {
        self.0.server.restart().await.unwrap();
    }
}

pub(crate) struct NatsOrdered(pub(crate) NatsPlace);

impl Site for NatsOrdered {
    type Source = Nats;
    const ORDERED: bool = true;

    async fn start(private: bool) -> Self {
        Self(NatsPlace::start(private).await)
    }

    async fn source(&self, _prefetch: u16, _gone_after: Duration) -> Nats {
        let config = NatsConfig::ordered(self.0.server.url(), &self.0.stream);
        Nats::connect(config).await.unwrap()
    }

    async fn send(&self, letters: Vec<Letter<'_>>) {
        self.0.send(letters).await;
    }

    /// It gets no acknowledgement.
    async fn unsettled(&self) -> u64 {
        0
    }

    async fn kill(&self) {
        self.0.server.kill().await.unwrap();
    }

    async fn restart(&self) {
        self.0.server.restart().await.unwrap();
    }
}

pub(crate) struct Rabbit {
    pub(crate) server: Server<testkit::RabbitMq>,
    queue: String,
}

impl Rabbit {
    /// A quorum queue, which drops what comes back more often than this.
    pub(crate) async fn with_limit(returns: i64) -> Self {
        let server = Server::Shared(testkit::shared_rabbitmq().await.unwrap());
        let mut arguments = FieldTable::default();
        let kind = AMQPValue::LongString("quorum".into());
        arguments.insert("x-queue-type".into(), kind);
        arguments.insert("x-delivery-limit".into(), AMQPValue::LongLongInt(returns));
        Self::declare(server, arguments).await
    }

    async fn declare(server: Server<testkit::RabbitMq>, arguments: FieldTable) -> Self {
        let site = Self {
            server,
            queue: unique("rabbit-source-"),
        };
        let (_connection, channel) = site.channel().await;
        let (queue, durable) = (site.queue.as_str().into(), QueueDeclareOptions::durable());
        let declared = channel.queue_declare(queue, durable, arguments);
        declared.await.unwrap();
        site
    }

    pub(crate) fn queue(&self) -> &str {
        &self.queue
    }

    async fn channel(&self) -> (Connection, Channel) {
        let properties = ConnectionProperties::default();
        let connection = Connection::connect(&self.server.url(), properties).await;
        let connection = connection.unwrap();
        let channel = connection.create_channel().await.unwrap();
        let confirm = ConfirmSelectOptions::default();
        channel.confirm_select(confirm).await.unwrap();
        (connection, channel)
    }
}

impl Site for Rabbit {
    type Source = RabbitMq;
    const ORDERED: bool = false;

    async fn start(private: bool) -> Self {
        let server = match private {
            true => Server::Own(testkit::RabbitMq::start().await.unwrap()),
            false => Server::Shared(testkit::shared_rabbitmq().await.unwrap()),
        };
        let site = Self::declare(server, FieldTable::default()).await;
        if private {
            // It is going to be killed.
            site.server.written_down(&site.queue).await.unwrap();
        }
        site
    }

    async fn source(&self, prefetch: u16, _gone_after: Duration) -> RabbitMq {
        let mut config = RabbitMqConfig::new(self.server.url(), &self.queue);
        config.prefetch = prefetch;
        RabbitMq::connect(config).await.unwrap()
    }

    async fn send(&self, letters: Vec<Letter<'_>>) {
        let (_connection, channel) = self.channel().await;
        let mut reply = Vec::new();
        for letter in letters {
            let mut headers = FieldTable::default();
            if let Some(key) = letter.key {
                let key = AMQPValue::LongString(key.into());
                headers.insert("cloudEvents_subject".into(), key);
            }
            let mut properties = BasicProperties::default()
                .with_delivery_mode(2)
                .with_type(letter.kind.into())
                .with_headers(headers);
            if !letter.id.is_empty() {
                properties = properties.with_message_id(letter.id.into());
            }
            // Without it RabbitMQ would confirm what no queue takes.
            let options = BasicPublishOptions {
                mandatory: true,
                ..BasicPublishOptions::default()
            };
            let (queue, payload) = (self.queue.as_str().into(), &letter.payload);
            let publish = channel.basic_publish("".into(), queue, options, payload, properties);
            reply.push(publish.await.unwrap());
        }
        for reply in reply {
            assert_eq!(reply.await.unwrap(), Confirmation::Ack(None));
        }
    }

    /// RabbitMQ counts what is with a worker only in its management: with everybody gone, all is ready.
    async fn unsettled(&self) -> u64 {
        let (_connection, channel) = self.channel().await;
        let passive = QueueDeclareOptions {
            passive: true,
            ..QueueDeclareOptions::default()
        };
        let (queue, none) = (self.queue.as_str().into(), FieldTable::default());
        let reply = channel.queue_declare(queue, passive, none).await.unwrap();
        reply.message_count().into()
    }

    async fn kill(&self) {
        self.server.kill().await.unwrap();
    }

    async fn restart(&self) {
        self.server.restart().await.unwrap();
    }
}

/// A stream of Redis.
pub(crate) struct RedisPlace {
    server: Server<testkit::Redis>,
    stream: String,
}

impl RedisPlace {
    async fn start(private: bool) -> Self {
        let server = match private {
            true => Server::Own(testkit::Redis::start().await.unwrap()),
            false => Server::Shared(testkit::shared_redis().await.unwrap()),
        };
        let stream = unique("in:");
        Self { server, stream }
    }

    async fn client(&self) -> redis::aio::MultiplexedConnection {
        connect_redis(&self.server.url()).await
    }

    async fn send(&self, letters: Vec<Letter<'_>>) {
        let mut client = self.client().await;
        for letter in letters {
            let mut fields = vec![("data", letter.payload), ("type", letter.kind.into())];
            if !letter.id.is_empty() {
                fields.push(("id", letter.id.into()));
            }
            fields.extend(letter.key.map(|key| ("subject", key.into_bytes())));
            let _: String = client.xadd(&self.stream, "*", &fields).await.unwrap();
        }
    }
}

pub(crate) struct RedisGroup(RedisPlace);

impl RedisGroup {
    /// The server's address and the stream's key.
    pub(crate) fn place(&self) -> (String, &str) {
        (self.0.server.url(), &self.0.stream)
    }
}

impl Site for RedisGroup {
    type Source = RedisStream;
    const ORDERED: bool = false;

    async fn start(private: bool) -> Self {
        Self(RedisPlace::start(private).await)
    }

    async fn source(&self, _prefetch: u16, gone_after: Duration) -> RedisStream {
        let mut config = RedisStreamConfig::group(self.0.server.url(), &self.0.stream, "workers");
        config.claim_after = gone_after;
        RedisStream::connect(config).await.unwrap()
    }

    async fn send(&self, letters: Vec<Letter<'_>>) {
        self.0.send(letters).await;
    }

    async fn unsettled(&self) -> u64 {
        let groups: redis::streams::StreamInfoGroupsReply = self
            .0
            .client()
            .await
            .xinfo_groups(&self.0.stream)
            .await
            .unwrap();
        let lag = groups.groups[0].lag.unwrap_or_default();
        (groups.groups[0].pending + lag) as u64
    }

    async fn kill(&self) {
        self.0.server.kill().await.unwrap();
    }

    async fn restart(&self) {
        self.0.server.restart().await.unwrap();
    }
}

pub(crate) struct RedisOrdered(RedisPlace);

impl Site for RedisOrdered {
    type Source = RedisStream;
    const ORDERED: bool = true;

    async fn start(private: bool) -> Self {
        Self(RedisPlace::start(private).await)
    }

    async fn source(&self, _prefetch: u16, _gone_after: Duration) -> RedisStream {
        let config = RedisStreamConfig::ordered(self.0.server.url(), &self.0.stream);
        RedisStream::connect(config).await.unwrap()
    }

    async fn send(&self, letters: Vec<Letter<'_>>) {
        self.0.send(letters).await;
    }

    async fn unsettled(&self) -> u64 {
        0
    }

    async fn kill(&self) {
        self.0.server.kill().await.unwrap();
    }

    async fn restart(&self) {
        self.0.server.restart().await.unwrap();
    }
}
