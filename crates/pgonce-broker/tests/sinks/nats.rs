//! NATS JetStream.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use async_nats::jetstream::{self, stream};
use pgonce::Once;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::outbox::Subscription;
use pgonce_broker::Relay;
use pgonce_broker::sinks::{Options, open};
use pgonce_testkit::{Nats, shared_nats, wait_until};
use pgonce_tests::{TestDriver as _, unique};

use super::conformance::{Got, Site, Stage, conforms};
use super::fixture::{DEADLINE, Running};
use pgonce_tests::Server;

struct NatsSite {
    server: Server<Nats>,
    stream: String,
}

impl NatsSite {
    async fn context(&self) -> jetstream::Context {
        jetstream::new(async_nats::connect(self.server.url()).await.unwrap())
    }

    /// The ids of what the stream has under each subject.
    async fn ids(&self) -> HashMap<String, HashSet<String>> {
        let stream = self.context().await.get_stream(&self.stream).await.unwrap();
        let mut ids: HashMap<_, HashSet<_>> = HashMap::new();
        for sequence in 1..=stream.cached_info().state.last_sequence {
            let message = stream.get_raw_message(sequence).await.unwrap();
            let id = message.headers.get("ce-id").unwrap().to_string();
            let subject = message.subject.as_str().to_owned();
            ids.entry(subject).or_default().insert(id);
        }
        ids
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

/// A stream knows an id once, whatever the subject.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscriptions_that_share_a_stream_each_have_every_event_under_their_own_subject() {
    let stage = Stage::<NatsSite>::new(false).await;
    let audit = Subscription::new("audit");
    stage
        .fixture
        .outbox
        .create_subscription(&audit)
        .await
        .unwrap();
    let name = &stage.site.stream;
    let url = format!(
        "{}?stream={name}&subject={name}.audit",
        stage.site.server.url()
    );
    let sink = open(&url, &Options::new()).await.unwrap();
    let pool = TokioPostgres::connect(&stage.fixture.world.url(), 2)
        .pool()
        .clone();
    let audit = Relay::new(Once::tokio_postgres(pool).outbox(), "audit", sink);
    let relay = stage.relay_to(stage.site.sink().await);
    let counts = [relay.counts(), audit.counts()];
    let running = [Running::start(relay), Running::start(audit)];
    stage.fixture.publish(1, 20, 4).await;
    wait_until("both to have sent everything", DEADLINE, || async {
        counts.iter().all(|counts| counts.sent() >= 20)
    })
    .await
    .unwrap();
    for running in running {
        running.stop().await.unwrap();
    }
    let ids = stage.site.ids().await;
    for subject in ["orders", "audit"] {
        let there = ids.get(&format!("{name}.{subject}"));
        assert_eq!(there.map(HashSet::len), Some(20), "{subject}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_to_another_subject_of_the_stream_arrives_there_within_the_duplicate_window() {
    let stage = Stage::<NatsSite>::new(false).await;
    let running = stage.run().await;
    stage.fixture.publish(1, 10, 2).await;
    stage.wait_for(10).await;
    running.stop().await.unwrap();

    stage.fixture.outbox.replay_from("c", 1).await.unwrap();
    let name = &stage.site.stream;
    let url = format!(
        "{}?stream={name}&subject={name}.moved",
        stage.site.server.url()
    );
    let relay = stage.relay_to(open(&url, &Options::new()).await.unwrap());
    let counts = relay.counts();
    let running = Running::start(relay);
    wait_until("the replay", DEADLINE, || async { counts.sent() >= 10 })
        .await
        .unwrap();
    running.stop().await.unwrap();
    let ids = stage.site.ids().await;
    assert_eq!(
        ids.get(&format!("{name}.moved")),
        ids.get(&format!("{name}.orders"))
    );
}

#[tokio::test]
async fn what_the_stream_does_not_take_waits_with_the_reason_and_the_others_flow() {
    let stage = Stage::<NatsSite>::new(false).await;
    let running = Running::start(stage.relay_to(stage.site.sink().await));
    let see = &stage.fixture.world.see;
    // A subject outside the stream's, one that NATS would misread, and one that is too long for it.
    see.run("select pgonce.publish('a.b', 'order.changed', 'far', '{\"n\": 6}')")
        .await;
    see.run("select pgonce.publish('a b', 'x', 'odd', '{}')")
        .await;
    see.run(
        "select pgonce.publish('orders', 'x', 'big', jsonb_build_object('x', repeat('x', 5000)))",
    )
    .await;
    stage.fixture.publish(1, 5, 2).await;
    let letters = stage.dead_letters(2).await;
    let reason = |subject: &str| {
        let letter = letters.iter().find(|letter| letter.subject == subject);
        letter.unwrap().reason.clone().unwrap()
    };
    let far = stage.retried(1).await;
    assert!(far.contains("does not have the subject"), "{far}");
    assert!(
        reason("odd").contains("cannot be a NATS subject"),
        "{}",
        reason("odd")
    );
    assert!(reason("big").contains("size"), "{}", reason("big"));
    assert_eq!(stage.wait_for(5).await.len(), 5);

    // It was only late.
    let context = stage.site.context().await;
    let stream = context.get_stream(&stage.site.stream).await.unwrap();
    let mut config = stream.cached_info().config.clone();
    config.subjects.push(format!("{}.a.b", stage.site.stream));
    context.update_stream(config).await.unwrap();
    assert_eq!(stage.wait_for(6).await.len(), 6);
    running.stop().await.unwrap();
}
