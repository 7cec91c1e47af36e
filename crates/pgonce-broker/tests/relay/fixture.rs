//! A database with a subscription, relays over it, and a sink that remembers and misbehaves as scripted.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pgonce::driver::Driver;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::outbox::{Message, Outbox, Subscription};
use pgonce::{Once, Result};
use pgonce_broker::{Delivery, Relay, Sink};
use pgonce_testkit::wait_until;
use pgonce_tests::{TestDriver as _, World};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// What the sink says to an event, by its number `n`; acknowledged where nothing is said.
type Script = Arc<dyn Fn(u64) -> Option<Delivery> + Send + Sync>;

/// Remembers every event that it acknowledged, in order.
#[derive(Clone, Default)]
pub(crate) struct Witness {
    seen: Arc<Mutex<Vec<Message>>>,
    script: Arc<Mutex<Option<Script>>>,
    asked: Arc<Mutex<u64>>,
}

impl Witness {
    pub(crate) fn script(&self, script: impl Fn(u64) -> Option<Delivery> + Send + Sync + 'static) {
        *self.script.lock().unwrap() = Some(Arc::new(script));
    }

    pub(crate) fn heal(&self) {
        *self.script.lock().unwrap() = None;
    }

    pub(crate) fn asked(&self) -> u64 {
        *self.asked.lock().unwrap()
    }

    pub(crate) fn numbers(&self) -> Vec<u64> {
        self.seen.lock().unwrap().iter().map(number).collect()
    }

    /// Waits until every number from 1 to `last` was acknowledged.
    pub(crate) async fn wait_for(&self, last: u64) {
        wait_until(format!("events 1 to {last}"), DEADLINE, || async {
            let mut numbers = self.numbers();
            numbers.sort_unstable();
            numbers.dedup();
            numbers == (1..=last).collect::<Vec<_>>()
        })
        .await
        .unwrap_or_else(|error| panic!("{error}; there are {:?}", self.numbers()));
    }

    /// How many came more than once. Their ids must be the same, and when duplicates are left out no
    /// subject's order may be turned round.
    pub(crate) fn check(&self) -> usize {
        let seen = self.seen.lock().unwrap();
        let mut ids = HashMap::new();
        let mut subjects: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
        let mut again = 0;
        for message in seen.iter() {
            let n = number(message);
            match ids.insert(n, message.id) {
                Some(id) => {
                    assert_eq!(id, message.id, "event {n} came with two ids");
                    again += 1;
                }
                None => subjects.entry(&message.subject).or_default().push(n),
            }
        }
        for (subject, numbers) in subjects {
            assert!(
                numbers.is_sorted(),
                "{subject} is turned round: {numbers:?}"
            );
        }
        again
    }
}

fn number(message: &Message) -> u64 {
    let payload: serde_json::Value =
        serde_json::from_str(message.payload.as_ref().unwrap()).unwrap();
    payload["n"].as_u64().unwrap()
}

impl Sink for Witness {
    async fn send(&self, message: &Message) -> Delivery {
        *self.asked.lock().unwrap() += 1;
        // Let the others in: a sink is never done at once.
        tokio::task::yield_now().await;
        let script = self.script.lock().unwrap().clone();
        let said = script.and_then(|script| script(number(message)));
        said.unwrap_or_else(|| {
            self.seen.lock().unwrap().push(message.clone());
            Delivery::Acknowledged
        })
    }
}

/// A relay that runs.
pub(crate) struct Running {
    stop: CancellationToken,
    task: JoinHandle<Result<()>>,
}

impl Running {
    pub(crate) fn start<D: Driver, S: Sink>(relay: Relay<D, S>) -> Self {
        let stop = CancellationToken::new();
        let task = tokio::spawn(relay.run(stop.clone()));
        Self { stop, task }
    }

    /// Asks it to stop and waits until it has.
    pub(crate) async fn stop(self) -> Result<()> {
        self.stop.cancel();
        self.task.await.unwrap()
    }

    /// As if its process were killed: nothing is finished, nothing given back.
    pub(crate) async fn kill(self) {
        self.task.abort();
        let _ = self.task.await;
    }

    /// Waits until it ends by itself.
    pub(crate) async fn ended(self) -> Result<()> {
        tokio::time::timeout(DEADLINE, self.task)
            .await
            .unwrap()
            .unwrap()
    }
}

/// A database of a test's own with the subscription `c`.
pub(crate) struct Fixture {
    pub(crate) world: World<TokioPostgres>,
    pub(crate) outbox: Outbox<TokioPostgres>,
    pub(crate) sink: Witness,
}

impl Fixture {
    pub(crate) async fn new() -> Self {
        Self::with(Subscription::new("c")).await
    }

    pub(crate) async fn with(subscription: Subscription) -> Self {
        let world = World::<TokioPostgres>::new().await;
        let outbox = world.once.outbox();
        outbox.create_subscription(&subscription).await.unwrap();
        Self {
            world,
            outbox,
            sink: Witness::default(),
        }
    }

    /// A relay with connections of its own.
    pub(crate) fn relay(&self) -> Relay<TokioPostgres, Witness> {
        relay_to(&self.world.url(), self.sink.clone())
    }

    pub(crate) fn run(&self) -> Running {
        Running::start(self.relay())
    }

    /// Publishes numbers from..=to in one transaction each, spread over subjects by their remainder.
    pub(crate) async fn publish(&self, from: u64, to: u64, subjects: u64) {
        for n in from..=to {
            self.world.see.run(&publish(n, subjects)).await;
        }
    }

    /// Leases run out at once, for relays that were killed.
    pub(crate) async fn expire_leases(&self) {
        self.world
            .see
            .run("select pgonce._move_clock('1 minute')")
            .await;
    }
}

pub(crate) fn relay_to(url: &str, sink: Witness) -> Relay<TokioPostgres, Witness> {
    let once = Once::tokio_postgres(TokioPostgres::connect(url, 2).pool().clone());
    let backoff = Duration::from_millis(5);
    Relay::new(once.outbox(), "c", sink).backoff(backoff, backoff * 20)
}

pub(crate) fn publish(n: u64, subjects: u64) -> String {
    format!(
        "select pgonce.publish('orders', 'order.changed', 's{}', '{{\"n\": {n}}}')",
        n % subjects
    )
}
