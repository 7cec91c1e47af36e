//! What every sink promises. A sink's file says how its other side is started, read, killed and
//! started again; `conforms!` makes the tests.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pgonce::Once;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::outbox::{DeadLetter, Message};
use pgonce_broker::sinks::{AnySink, Options, open};
use pgonce_broker::{Delivery, Relay, Sink};
use pgonce_testkit::wait_until;
use pgonce_tests::TestDriver as _;

use super::fixture::{DEADLINE, Fixture, Running};

/// An event as the other side has it.
#[derive(Debug, Clone)]
pub(crate) struct Got {
    pub(crate) id: String,
    pub(crate) subject: String,
    pub(crate) n: u64,
}

impl Got {
    pub(crate) fn new(id: &str, subject: &str, payload: &[u8]) -> Self {
        let payload: serde_json::Value = serde_json::from_slice(payload).unwrap();
        Self {
            id: id.to_owned(),
            subject: subject.to_owned(),
            n: payload["n"].as_u64().unwrap(),
        }
    }
}

/// The other side of a sink, with a place of the test's own.
pub(crate) trait Site: Sized + 'static {
    /// Whether it drops repeats by itself, as long as a test takes.
    const DEDUPLICATES: bool;

    /// How many tries in vain to wait for. Sixty by at most sixteen lanes: some lane has waited three
    /// times, longer each time. Fewer will do where each takes long by itself.
    const TRIES: u64 = 60;

    /// With a server of its own where it is going to be killed.
    async fn start(private: bool) -> Self;

    /// What to open.
    fn address(&self) -> (String, Options);

    /// Everything that it has got, in order.
    async fn got(&self) -> Vec<Got>;

    async fn kill(&self);

    async fn restart(&self);

    async fn sink(&self) -> AnySink {
        let (url, options) = self.address();
        open(&url, &options).await.unwrap()
    }
}

/// Counts how often a sink is asked, and for how many events.
pub(crate) struct Counted {
    sink: AnySink,
    asked: Arc<AtomicU64>,
}

impl Sink for Counted {
    async fn send(&self, message: &Message) -> Delivery {
        self.asked.fetch_add(1, Ordering::SeqCst);
        self.sink.send(message).await
    }

    async fn send_batch(&self, batch: &[Message], in_flight: usize) -> Vec<Delivery> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        self.sink.send_batch(batch, in_flight).await
    }
}

pub(crate) struct Stage<S> {
    pub(crate) fixture: Fixture,
    pub(crate) site: S,
}

impl<S: Site> Stage<S> {
    pub(crate) async fn new(private: bool) -> Self {
        let (fixture, site) = tokio::join!(Fixture::new(), S::start(private));
        Self { fixture, site }
    }

    pub(crate) fn relay_to<K: Sink>(&self, sink: K) -> Relay<TokioPostgres, K> {
        let pool = TokioPostgres::connect(&self.fixture.world.url(), 2)
            .pool()
            .clone();
        Relay::new(Once::tokio_postgres(pool).outbox(), "c", sink)
    }

    pub(crate) async fn run(&self) -> Running {
        Running::start(self.relay_to(self.site.sink().await))
    }

    /// Waits until the other side has every number from 1 to `last`.
    pub(crate) async fn wait_for(&self, last: u64) -> Vec<Got> {
        let mut got = Vec::new();
        let mut missing = Vec::new();
        let deadline = Instant::now() + DEADLINE;
        while Instant::now() < deadline {
            got = self.site.got().await;
            let there: std::collections::HashSet<u64> = got.iter().map(|got| got.n).collect();
            missing = (1..=last).filter(|n| !there.contains(n)).collect();
            if missing.is_empty() {
                return got;
            }
            tokio::task::yield_now().await;
        }
        panic!(
            "of {last} events {} came, these did not: {missing:?}",
            got.len()
        );
    }

    /// Ids are those of the log, no subject is turned round when repeats are left out; answers how
    /// many repeats there were.
    pub(crate) async fn check(&self, got: &[Got]) -> usize {
        let known =
            "select string_agg(message_id || ' ' || (payload->>'n'), ',') from pgonce.outbox";
        let known = self.fixture.world.see.text(known).await;
        let known: HashMap<String, String> = known
            .split(',')
            .map(|pair| pair.split_once(' ').unwrap())
            .map(|(id, n)| (n.to_owned(), id.to_owned()))
            .collect();
        let mut subjects: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
        let mut seen = std::collections::HashSet::new();
        let mut repeats = 0;
        for event in got {
            assert_eq!(known[&event.n.to_string()], event.id, "event {}", event.n);
            match seen.insert(event.n) {
                true => subjects.entry(&event.subject).or_default().push(event.n),
                false => repeats += 1,
            }
        }
        for (subject, numbers) in subjects {
            assert!(
                numbers.is_sorted(),
                "{subject} is turned round: {numbers:?}"
            );
        }
        repeats
    }

    /// Waits until so many events are to be tried again; answers what the sink said of one of them.
    pub(crate) async fn retried(&self, count: i64) -> String {
        let see = &self.fixture.world.see;
        let retried = "select count(*) from pgonce.parked where state = 'retry'";
        wait_until(format!("{count} to be tried again"), DEADLINE, || async {
            see.number(retried).await == count
        })
        .await
        .unwrap();
        see.text("select reason from pgonce.parked where state = 'retry' limit 1")
            .await
    }

    pub(crate) async fn dead_letters(&self, count: usize) -> Vec<DeadLetter> {
        let outbox = &self.fixture.outbox;
        wait_until(format!("{count} dead letters"), DEADLINE, || async {
            outbox.dead_letters("c", 100).await.unwrap().len() == count
        })
        .await
        .unwrap();
        outbox.dead_letters("c", 100).await.unwrap()
    }
}

pub(crate) async fn everything_arrives_in_order_and_a_replay_repeats_the_ids<S: Site>() {
    let stage = Stage::<S>::new(false).await;
    let running = stage.run().await;
    stage.fixture.publish(1, 120, 7).await;
    let got = stage.wait_for(120).await;
    assert_eq!((stage.check(&got).await, got.len()), (0, 120));
    running.stop().await.unwrap();

    // Everything once more, as after a relay that died before it kept its place.
    stage.fixture.outbox.replay_from("c", 1).await.unwrap();
    let relay = stage.relay_to(stage.site.sink().await);
    let counts = relay.counts();
    let running = Running::start(relay);
    wait_until("the replay", DEADLINE, || async { counts.sent() == 120 })
        .await
        .unwrap();
    running.stop().await.unwrap();
    let got = stage.site.got().await;
    let repeats = stage.check(&got).await;
    assert_eq!(repeats, if S::DEDUPLICATES { 0 } else { 120 });
}

pub(crate) async fn a_killed_broker_loses_nothing_turns_nothing_round_and_is_not_hammered<
    S: Site,
>() {
    let stage = Stage::<S>::new(true).await;
    let asked = Arc::new(AtomicU64::new(0));
    let sink = Counted {
        sink: stage.site.sink().await,
        asked: asked.clone(),
    };
    let relay = stage.relay_to(sink);
    let counts = relay.counts();
    let running = Running::start(relay);
    // Events flow while it is killed.
    let (fixture, site) = (&stage.fixture, &stage.site);
    let killing = async {
        wait_until("events to flow", DEADLINE, || async { counts.sent() >= 30 })
            .await
            .unwrap();
        site.kill().await;
        (Instant::now(), asked.load(Ordering::SeqCst))
    };
    let ((), (since, before)) = tokio::join!(fixture.publish(1, 150, 20), killing);
    fixture.publish(151, 200, 20).await;
    wait_until("tries in vain", DEADLINE, || async {
        asked.load(Ordering::SeqCst) >= before + S::TRIES
    })
    .await
    .unwrap();
    let patient = Duration::from_millis(150);
    assert!(
        since.elapsed() >= patient,
        "{} tries within {:?}",
        S::TRIES,
        since.elapsed()
    );
    // What was on its way may wait beside the log, but nobody is blamed for it.
    let blamed = "select count(*) from pgonce.parked where attempts > 0";
    assert_eq!(fixture.world.see.number(blamed).await, 0);

    site.restart().await;
    fixture.publish(201, 250, 20).await;
    let got = stage.wait_for(250).await;
    let repeats = stage.check(&got).await;
    assert!(!S::DEDUPLICATES || repeats == 0, "{repeats} repeats");
    running.stop().await.unwrap();
    assert_eq!(counts.dead(), 0);
}

/// The tests of one sink.
macro_rules! conforms {
    ($site:ty) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn everything_arrives_in_order_and_a_replay_repeats_the_ids() {
            $crate::conformance::everything_arrives_in_order_and_a_replay_repeats_the_ids::<$site>()
                .await;
        }

        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn a_killed_broker_loses_nothing_turns_nothing_round_and_is_not_hammered() {
            $crate::conformance::a_killed_broker_loses_nothing_turns_nothing_round_and_is_not_hammered::<$site>()
                .await;
        }
    };
}
pub(crate) use conforms;
