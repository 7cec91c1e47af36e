//! NATS JetStream.

use std::time::Duration;

use async_nats::jetstream::{self, stream};
use pgonce_broker::sinks::{Options, open};
use pgonce_testkit::{Nats, shared_nats};
use pgonce_tests::unique;

use super::conformance::{Got, Site, Stage, conforms};
use super::fixture::Running;
use pgonce_tests::Server;

struct NatsSite {
    server: Server<Nats>,
    stream: String,
}

impl NatsSite {
    async fn context(&self) -> jetstream::Context {
        jetstream::new(async_nats::connect(self.server.url()).await.unwrap())
    }
}

impl Site for NatsSite {
    const DEDUPLICATES: bool = true;

    async fn start(private: bool) -> Self {
        let server = match private {
            true => Server::Own(Nats::start().await.unwrap()),
            false => Server::Shared(shared_nats().await.unwrap()),
        };
        let site = Self {
            server,
            stream: unique("NATS"),
        };
        let config = stream::Config {
            name: site.stream.clone(),
            subjects: vec![format!("{}.*", site.stream)],
            max_message_size: 4000,
            ..stream::Config::default()
        };
        site.context().await.create_stream(config).await.unwrap();
        site
    }

    fn address(&self) -> (String, Options) {
        let (url, name) = (self.server.url(), &self.stream);
        let url = format!("{url}?stream={name}&subject={name}.{{topic}}");
        (url, Options::new().set("source", "/tests"))
    }

    async fn got(&self) -> Vec<Got> {
        let stream = self.context().await.get_stream(&self.stream).await.unwrap();
        let mut got = Vec::new();
        for sequence in 1..=stream.cached_info().state.last_sequence {
            let message = stream.get_raw_message(sequence).await.unwrap();
            let header = |name| message.headers.get(name).unwrap().as_str();
            assert_eq!(header("Nats-Msg-Id"), header("ce-id"));
            assert_eq!(
                (header("ce-type"), header("ce-source")),
                ("order.changed", "/tests")
            );
            let (id, subject) = (header("ce-id"), header("ce-subject"));
            got.push(Got::new(id, subject, &message.payload));
        }
        got
    }

    async fn kill(&self) {
        self.server.kill().await.unwrap();
    }

    async fn restart(&self) {
        self.server.restart().await.unwrap();
    }
}

conforms!(NatsSite);

#[tokio::test]
async fn a_missing_stream_is_refused_at_the_start_and_the_window_is_read() {
    let site = NatsSite::start(false).await;
    let url = format!("{}?stream=NOBODY", site.server.url());
    let refusal = open(&url, &Options::new()).await.unwrap_err();
    assert_eq!(refusal.code(), "sink-refused");
    assert!(
        refusal.to_string().contains("no stream \"NOBODY\""),
        "{refusal}"
    );
    let pgonce_broker::sinks::AnySink::Nats(nats) = site.sink().await else {
        panic!("not NATS")
    };
    assert_eq!(nats.duplicate_window(), Duration::from_secs(120));
}

#[tokio::test]
async fn what_the_stream_does_not_take_is_parked_with_the_reason_and_the_others_flow() {
    let stage = Stage::<NatsSite>::new(false).await;
    let running = Running::start(stage.relay_to(stage.site.sink().await));
    let see = &stage.fixture.world.see;
    // A subject outside the stream's, one that NATS would misread, and one that is too long for it.
    see.run("select pgonce.publish('a.b', 'x', 'far', '{}')")
        .await;
    see.run("select pgonce.publish('a b', 'x', 'odd', '{}')")
        .await;
    see.run(
        "select pgonce.publish('orders', 'x', 'big', jsonb_build_object('x', repeat('x', 5000)))",
    )
    .await;
    stage.fixture.publish(1, 5, 2).await;
    let letters = stage.dead_letters(3).await;
    let reason = |subject: &str| {
        let letter = letters.iter().find(|letter| letter.subject == subject);
        letter.unwrap().reason.clone().unwrap()
    };
    assert!(
        reason("far").contains("does not have the subject"),
        "{}",
        reason("far")
    );
    assert!(
        reason("odd").contains("cannot be a NATS subject"),
        "{}",
        reason("odd")
    );
    assert!(reason("big").contains("size"), "{}", reason("big"));
    assert_eq!(stage.wait_for(5).await.len(), 5);
    running.stop().await.unwrap();
}
