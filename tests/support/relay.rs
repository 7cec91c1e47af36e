//! A database with a subscription, relays over it, and a sink that remembers and misbehaves as scripted.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pgonce::Once;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::outbox::{Message, Outbox, Subscription};
use pgonce_broker::{Delivery, Relay, Sink};
use pgonce_testkit::wait_until;

pub use crate::running::{DEADLINE, Running};
use crate::{TestDriver as _, World};

/// What the sink says to an event, by its number `n`; acknowledged where nothing is said.
type Script = Arc<dyn Fn(u64) -> Option<Delivery> + Send + Sync>;

/// Remembers every event that it acknowledged, in order.
#[derive(Clone, Default)]
pub struct Witness {
    seen: Arc<Mutex<Vec<Message>>>,
    script: Arc<Mutex<Option<Script>>>,
    asked: Arc<Mutex<u64>>,
}

impl Witness {
    /// From now on each event gets what the script says.
    pub fn script(&self, script: impl Fn(u64) -> Option<Delivery> + Send + Sync + 'static) {
        *self.script.lock().unwrap() = Some(Arc::new(script));
    }

    /// From now on every event is acknowledged.
    pub fn heal(&self) {
        *self.script.lock().unwrap() = None;
    }

    /// How often an event was sent to it.
    pub fn asked(&self) -> u64 {
        *self.asked.lock().unwrap()
    }

    /// The numbers of the events that it acknowledged, in order.
    pub fn numbers(&self) -> Vec<u64> {
        self.seen.lock().unwrap().iter().map(number).collect()
    }

    /// The events that it acknowledged, in order.
    pub fn messages(&self) -> Vec<Message> {
        self.seen.lock().unwrap().clone()
    }

    /// Waits until every number from 1 to `last` was acknowledged.
    pub async fn wait_for(&self, last: u64) {
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
    pub fn check(&self) -> usize {
        let seen = self.seen.lock().unwrap();
        let mut ids = HashMap::new();
        let mut subjects: BTreeMap<(&str, &str), Vec<u64>> = BTreeMap::new();
        let mut again = 0;
        for message in seen.iter() {
            let n = number(message);
            match ids.insert(n, message.id) {
                Some(id) => {
                    assert_eq!(id, message.id, "event {n} came with two ids");
                    again += 1;
                }
                None => {
                    let subject = (&*message.tenant, &*message.subject);
                    subjects.entry(subject).or_default().push(n);
                }
            }
        }
        for (subject, numbers) in subjects {
            assert!(
                numbers.is_sorted(),
                "{subject:?} is turned round: {numbers:?}"
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

/// A database of a test's own with the subscription `c`.
pub struct Fixture {
    /// Where it is, with the second actor.
    pub world: World<TokioPostgres>,
    /// The outbox of the database.
    pub outbox: Outbox<TokioPostgres>,
    /// Gets every event that a relay delivers.
    pub sink: Witness,
}

impl Fixture {
    /// With the defaults of a subscription.
    pub async fn new() -> Self {
        Self::with(Subscription::new("c")).await
    }

    /// With this subscription.
    pub async fn with(subscription: Subscription) -> Self {
        let world = World::<TokioPostgres>::new().await;
        let outbox = world.owner.outbox();
        outbox.create_subscription(&subscription).await.unwrap();
        Self {
            world,
            outbox,
            sink: Witness::default(),
        }
    }

    /// A relay with connections of its own.
    pub fn relay(&self) -> Relay<TokioPostgres, Witness> {
        relay_to(&self.world.url(), self.sink.clone())
    }

    /// Starts such a relay.
    pub fn run(&self) -> Running {
        Running::start(self.relay())
    }

    /// Publishes numbers from..=to in one transaction each, spread over subjects by their remainder.
    pub async fn publish(&self, from: u64, to: u64, subjects: u64) {
        for n in from..=to {
            self.world.see.run(&publish(n, subjects)).await;
        }
    }

    /// Leases run out at once, for relays that were killed.
    pub async fn expire_leases(&self) {
        self.world
            .see
            .run("select pgonce._move_clock('1 minute')")
            .await;
    }
}

/// A relay of the subscription `c` with connections of its own and short pauses.
pub fn relay_to(url: &str, sink: Witness) -> Relay<TokioPostgres, Witness> {
    let once = Once::tokio_postgres(TokioPostgres::connect(url, 2).pool().clone());
    let backoff = Duration::from_millis(5);
    Relay::new(once.outbox(), "c", sink).backoff(backoff, backoff * 20)
}

/// The statement that publishes a number.
pub fn publish(n: u64, subjects: u64) -> String {
    format!(
        "select pgonce.publish('orders', 'order.changed', 's{}', '{{\"n\": {n}}}')",
        n % subjects
    )
}
