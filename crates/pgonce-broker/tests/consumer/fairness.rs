//! A slow, failing or poison partition or key delays only itself.

use std::sync::Arc;
use std::time::Duration;

use pgonce::Failure;
use pgonce::inbox::{Message, Tx};
use pgonce_broker::{Consumer, Handler, Source};
use pgonce_tests::slow_work;
use tokio::sync::watch;
use tokio::time::Instant;

use super::fixture::{Db, Fixture, Running, Witness, quick};
use super::ordered::Log;

/// Waits with what is of the key `bad` until the gate is open.
struct Gated {
    witness: Witness,
    open: watch::Receiver<bool>,
}

impl Handler<Db> for Gated {
    async fn apply(&self, tx: Tx<Db>, message: Arc<Message>) -> pgonce::Result<()> {
        if message.key.as_deref() == Some("bad") {
            let mut open = self.open.clone();
            open.wait_for(|open| *open).await.unwrap();
        }
        self.witness.apply(tx, message).await
    }
}

/// More than a consumer ever has in hand.
const NEIGHBOURS: u64 = 1200;

fn message(n: u64, key: &str) -> Message {
    Message::new(format!("m{n}"), "{}").key(key)
}

fn gated<S: Source>(
    fixture: &Fixture,
    source: S,
    limit: Duration,
) -> (Running, watch::Sender<bool>) {
    let gate = watch::Sender::new(false);
    let handler = Gated {
        witness: fixture.witness.clone(),
        open: gate.subscribe(),
    };
    let consumer = Consumer::new(&fixture.once(), "c", source, handler);
    let consumer = quick(consumer).batch(10, Duration::ZERO);
    (Running::start(consumer.handler_timeout(limit)), gate)
}

#[tokio::test]
async fn beside_a_partition_whose_handler_does_not_end_all_others_are_applied() {
    let fixture = Fixture::new().await;
    let log = Log::default();
    for n in 1..=NEIGHBOURS {
        log.append(&format!("p{}", n % 3), message(n, &format!("k{}", n % 3)));
        if n % 3 == 0 {
            log.append("bad", message(NEIGHBOURS + n, "bad"));
        }
    }
    let (running, gate) = gated(&fixture, log.source(), Duration::from_secs(600));
    fixture.wait_for(NEIGHBOURS).await;
    let bad = "select count(*) from seen where key = 'bad'";
    assert_eq!(fixture.world.see.number(bad).await, 0);
    gate.send_replace(true);
    fixture.wait_for(NEIGHBOURS * 4 / 3).await;
    running.stop().await.unwrap();
    fixture.check().await;
}

#[tokio::test]
async fn beside_a_key_that_times_out_all_others_are_applied() {
    let fixture = Fixture::new().await;
    for n in 1..=NEIGHBOURS {
        if n % 120 == 60 {
            fixture.shop.send(message(NEIGHBOURS + n, "bad"));
        }
        fixture.shop.send(message(n, &format!("k{}", n % 7)));
    }
    let limit = Duration::from_millis(300);
    let (running, _gate) = gated(&fixture, fixture.shop.source(), limit);
    fixture.wait_for(NEIGHBOURS).await;
    let stored = "select count(*) = 10 from pgonce.inbox_message where key = 'bad'";
    fixture.world.see.wait_until(stored).await;
    running.stop().await.unwrap();
    fixture.check().await;
}

/// What the handler does with the partition `bad`.
#[derive(Debug, Clone, Copy)]
enum Mood {
    Well,
    Failing,
    Poison,
    TimingOut,
}

#[derive(Clone)]
struct Moody {
    mood: Mood,
    neighbours: watch::Sender<u64>,
}

impl Handler<Db> for Moody {
    async fn apply(&self, mut tx: Tx<Db>, message: Arc<Message>) -> pgonce::Result<()> {
        tx.conn().execute("select 1", &[]).await?;
        slow_work(Duration::from_millis(2)).await;
        if message.key.as_deref() != Some("bad") {
            self.neighbours.send_modify(|count| *count += 1);
            return Ok(());
        }
        match self.mood {
            Mood::Well => Ok(()),
            Mood::Failing => Err(Failure::transient("later", "not yet").into()),
            Mood::Poison => Err(Failure::permanent("no", "never").into()),
            Mood::TimingOut => std::future::pending().await,
        }
    }
}

struct Side {
    log: Log,
    handler: Moody,
    running: Running,
    times: Vec<Duration>,
}

impl Side {
    fn start(fixture: &Fixture, name: &str, mood: Mood) -> Self {
        let log = Log::default();
        let neighbours = watch::Sender::new(0);
        let handler = Moody { mood, neighbours };
        let consumer = Consumer::new(&fixture.once(), name, log.source(), handler.clone());
        let consumer = quick(consumer).batch(20, Duration::ZERO);
        Self {
            log,
            handler,
            running: Running::start(consumer.handler_timeout(Duration::from_secs(1))),
            times: Vec::new(),
        }
    }

    /// Appends to three neighbours and to `bad`, and waits until the neighbours have theirs.
    async fn round(&mut self) {
        const EVENTS: u64 = 300;
        let mut counted = self.handler.neighbours.subscribe();
        let first = *counted.borrow();
        let began = Instant::now();
        for n in 1..=EVENTS {
            let key = format!("k{}", n % 3);
            self.log.append(&key, message(first + n, &key));
            if n % 3 == 0 {
                let number = 1_000_000 + first + n;
                self.log.append("bad", message(number, "bad"));
            }
        }
        counted
            .wait_for(|count| *count >= first + EVENTS)
            .await
            .unwrap();
        self.times.push(began.elapsed());
    }

    fn median(&mut self) -> Duration {
        self.times.sort();
        self.times[self.times.len() / 2]
    }
}

#[expect(
    clippy::print_stderr,
    reason = "the figures, for a run with --nocapture"
)]
async fn neighbours_keep_their_rate(mood: Mood) {
    let mut found = Vec::new();
    // Other programs that use the machine may strike one side of a comparison. A consumer that lets neighbours starve fails
    // all three.
    for _ in 0..3 {
        let fixture = Fixture::new().await;
        let mut good = Side::start(&fixture, "good", Mood::Well);
        let mut bad = Side::start(&fixture, "bad", mood);
        for _ in 0..5 {
            good.round().await;
            bad.round().await;
        }
        let kept = good.median().as_secs_f64() / bad.median().as_secs_f64();
        let figures = format!("{mood:?}: {kept:.2}; {:?}, {:?}", good.times, bad.times);
        eprintln!("{figures}");
        for side in [good, bad] {
            side.running.kill().await;
        }
        if kept >= 0.8 {
            return;
        }
        found.push(figures);
    }
    panic!("{found:#?}");
}

#[tokio::test]
async fn beside_a_partition_that_fails_neighbours_keep_their_rate() {
    neighbours_keep_their_rate(Mood::Failing).await;
}

#[tokio::test]
async fn beside_a_poison_partition_neighbours_keep_their_rate() {
    neighbours_keep_their_rate(Mood::Poison).await;
}

#[tokio::test]
async fn beside_a_partition_that_times_out_neighbours_keep_their_rate() {
    neighbours_keep_their_rate(Mood::TimingOut).await;
}
