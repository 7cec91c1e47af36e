//! What a consumer promises whatever broker it reads.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use pgonce::inbox::{Message, Tx};
use pgonce::{Error, Failure, Result};
use pgonce_broker::{Consumer, Dedup, Handler};
use tokio::sync::Semaphore;

use super::broker_fixtures::{GONE_AFTER, KIND, Letter, Site};
use super::fixture::{Db, Fixture, Running, Witness, quick};

pub(crate) struct Stage<S> {
    pub(crate) fixture: Fixture,
    pub(crate) site: S,
}

impl<S: Site> Stage<S> {
    pub(crate) async fn new(private: bool) -> Self {
        let (fixture, site) = tokio::join!(Fixture::new(), S::start(private));
        Self { fixture, site }
    }

    pub(crate) async fn consumer(&self) -> Consumer<Db, S::Source, Witness> {
        self.consumer_gone_after(GONE_AFTER).await
    }

    async fn consumer_gone_after(&self, gone_after: Duration) -> Consumer<Db, S::Source, Witness> {
        let (once, witness) = (self.fixture.once(), self.fixture.witness.clone());
        quick(Consumer::new(
            &once,
            "c",
            self.site.source(50, gone_after).await,
            witness,
        ))
        .batch(7, Duration::ZERO)
    }

    pub(crate) async fn run(&self) -> Running {
        Running::start(self.consumer().await)
    }

    /// Runs until the broker got every acknowledgement.
    pub(crate) async fn settle_all(&self) {
        for _ in 0..20 {
            let running = self.run().await;
            let reply = || async { self.site.unsettled().await == 0 };
            self.fixture.wait("everything to be settled", reply).await;
            running.stop().await.unwrap();
            if self.site.unsettled().await == 0 {
                return;
            }
        }
        panic!("{} messages are never settled", self.site.unsettled().await);
    }

    /// Keys whose order must hold with several workers, or over crashes.
    pub(crate) fn keys() -> u64 {
        if S::ORDERED { 7 } else { 0 }
    }
}

pub(crate) async fn copies_that_the_sender_made_are_applied_once<S: Site>() {
    let stage = Stage::<S>::new(false).await;
    // Each message 1 to 6 times, with others in between.
    for round in 0..6 {
        let again = (1..=60).filter(|n| round == 0 || n % 6 >= round);
        stage.site.send_numbers(again, 7).await;
    }
    // The copies are counted: on a busy machine too, the broker must not add any.
    let consumer = stage.consumer_gone_after(Duration::from_secs(60)).await;
    let consumer = match S::ORDERED {
        true => consumer.dedup(Dedup::Both),
        false => consumer,
    };
    let counts = consumer.counts();
    let running = Running::start(consumer);
    stage.fixture.wait_for(60).await;
    let sent = 60
        + (1..6)
            .map(|r| (1..=60).filter(|n| n % 6 >= r).count() as u64)
            .sum::<u64>();
    let all = || async { counts.acknowledged() >= sent };
    stage.fixture.wait("every copy", all).await;
    running.stop().await.unwrap();
    stage.fixture.check().await;
    assert_eq!((counts.applied(), counts.duplicates()), (60, sent - 60));
    assert_eq!(stage.site.unsettled().await, 0);
}

pub(crate) async fn workers_that_come_and_go_lose_nothing_and_repeat_nothing<S: Site>() {
    let stage = Stage::<S>::new(false).await;
    stage.site.send_numbers(1..=150, Stage::<S>::keys()).await;
    let short = Duration::from_millis(200);
    let mut running = Vec::new();
    for _ in 0..3 {
        running.push(Running::start(stage.consumer().await.lease(short)));
    }
    stage.fixture.wait_for(30).await;
    running.pop().unwrap().kill().await;
    stage.fixture.wait_for(60).await;
    running.pop().unwrap().stop().await.unwrap();
    stage.site.send_numbers(151..=200, Stage::<S>::keys()).await;
    // The lease of the one that was killed.
    stage
        .fixture
        .world
        .see
        .run("select pgonce._move_clock('1 minute')")
        .await;
    stage.fixture.wait_for(200).await;
    running.pop().unwrap().stop().await.unwrap();
    stage.settle_all().await;
    stage.fixture.check().await;
}

pub(crate) async fn a_handler_that_fails_is_tried_again_and_its_key_waits<S: Site>() {
    let stage = Stage::<S>::new(false).await;
    let failures = AtomicU64::new(0);
    stage.fixture.witness.script(move |id| match id {
        "m5" if failures.fetch_add(1, Ordering::SeqCst) < 2 => Err(Error::work("later")),
        "m9" => Err(Failure::permanent("no_such_account", "never").into()),
        _ => Ok(()),
    });
    stage.site.send_numbers(1..=60, 5).await;
    let running = stage.run().await;
    let poisoned = "select count(*) = 1 from pgonce.inbox_message where status = 'failed_final'";
    stage.fixture.world.see.wait_until(poisoned).await;
    // What comes for the key of m9 (4, 14, … 59) needs manual action.
    stage.fixture.wait_for(60 - 1 - 10).await;
    running.stop().await.unwrap();
    let found = stage.fixture.inbox.poison("c", 10).await.unwrap();
    assert_eq!(found[0].code.as_deref(), Some("no_such_account"));
    let behind =
        "select count(*) from pgonce.inbox_message where status = 'received' and key = 'k4'";
    assert_eq!(stage.fixture.world.see.number(behind).await, 10);
    // Nobody needs the broker for what comes of them.
    stage.settle_all().await;
    stage.fixture.check().await;
}

pub(crate) async fn bad_messages_are_kept_with_the_reason_and_the_others_flow<S: Site>() {
    let stage = Stage::<S>::new(false).await;
    let letter = |id, kind, payload: &str| Letter {
        id,
        key: None,
        kind,
        payload: payload.as_bytes().to_vec(),
    };
    stage.site.send_numbers(1..=5, 7).await;
    let long = format!("\"{}\"", "x".repeat(2000));
    let bad = vec![
        letter("", KIND, "{}"),
        letter("b2", KIND, "{\"n\": "),
        letter("b3", KIND, &long),
        letter("b4", "test.unknown", "{}"),
    ];
    stage.site.send(bad).await;
    stage.site.send_numbers(6..=10, 7).await;
    let consumer = stage.consumer().await.json().kinds([KIND]).max_bytes(1000);
    let counts = consumer.counts();
    let running = Running::start(consumer);
    stage.fixture.wait_for(10).await;
    let all = || async { counts.acknowledged() >= 14 };
    stage.fixture.wait("fourteen acknowledgements", all).await;
    running.stop().await.unwrap();
    let found = stage.fixture.inbox.poison("c", 10).await.unwrap();
    let codes: BTreeSet<_> = found
        .iter()
        .filter_map(|poison| poison.code.clone())
        .collect();
    let expected = ["id_missing", "not_json", "oversize", "unknown_type"].map(str::to_owned);
    assert_eq!((codes, found.len()), (expected.into(), 4));
    assert_eq!(stage.site.unsettled().await, 0);
    stage.fixture.check().await;
}

pub(crate) async fn a_broker_killed_and_started_again_loses_nothing<S: Site>() {
    let stage = Stage::<S>::new(true).await;
    // However long it takes to kill: nothing is given up meanwhile.
    let patient = "select pgonce.define_inbox('c', p_max_attempts => 1000, p_backoff => '10 ms', p_max_backoff => '40 ms')";
    stage.fixture.world.see.run(patient).await;
    stage.site.send_numbers(1..=120, Stage::<S>::keys()).await;
    let seen = Arc::new(AtomicU64::new(0));
    let (count, gate) = (seen.clone(), Arc::new(AtomicBool::new(false)));
    let open = gate.clone();
    stage.fixture.witness.script(move |_| {
        // In the midst of it, until the broker is dead.
        if count.fetch_add(1, Ordering::SeqCst) >= 40 && !open.load(Ordering::SeqCst) {
            return Err(Error::Uncertain("not before the broker is dead".to_owned()));
        }
        Ok(())
    });
    let running = stage.run().await;
    let midst = || async { seen.load(Ordering::SeqCst) > 40 };
    stage.fixture.wait("the midst", midst).await;
    stage.site.kill().await;
    gate.store(true, Ordering::SeqCst);
    stage.site.restart().await;
    stage.site.send_numbers(121..=160, Stage::<S>::keys()).await;
    stage.fixture.wait_for(160).await;
    running.stop().await.unwrap();
    stage.settle_all().await;
    stage.fixture.check().await;
}

/// Writes its row, and waits to be let go.
#[derive(Clone)]
struct Slow {
    inside: Arc<AtomicU64>,
    gate: Arc<Semaphore>,
}

impl Handler<Db> for Slow {
    async fn apply(&self, mut tx: Tx<Db>, message: Arc<Message>) -> Result<()> {
        let sql = "insert into seen (consumer, id) values ('c', $1)";
        tx.conn().execute(sql, &[&message.id]).await?;
        self.inside.fetch_add(1, Ordering::SeqCst);
        drop(self.gate.acquire().await);
        Ok(())
    }
}

pub(crate) async fn two_workers_on_one_message_apply_it_once<S: Site>() {
    let stage = Stage::<S>::new(false).await;
    stage.site.send_numbers([1, 1].into_iter(), 0).await;
    let slow = Slow {
        inside: Arc::default(),
        gate: Arc::new(Semaphore::new(0)),
    };
    let (mut running, mut counts) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        let (once, source) = (stage.fixture.once(), stage.site.source(1, GONE_AFTER).await);
        let consumer = quick(Consumer::new(&once, "c", source, slow.clone()));
        let consumer = consumer.batch(1, Duration::ZERO).concurrency(1);
        counts.push(consumer.counts());
        running.push(Running::start(match S::ORDERED {
            true => consumer.dedup(Dedup::Both),
            false => consumer,
        }));
    }
    let inside = || async { slow.inside.load(Ordering::SeqCst) == 1 };
    stage.fixture.wait("one of them", inside).await;
    if !S::ORDERED {
        // The other has its copy, and waits to see what comes of this one.
        let waits = "select count(*) > 0 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
        stage.fixture.world.see.wait_until(waits).await;
    }
    slow.gate.add_permits(100);
    stage.fixture.wait_for(1).await;
    let all = || async { counts.iter().map(|c| c.acknowledged()).sum::<u64>() >= 2 };
    stage.fixture.wait("both copies", all).await;
    for running in running {
        running.stop().await.unwrap();
    }
    let rows = "select count(*) from seen";
    assert_eq!(stage.fixture.world.see.number(rows).await, 1);
    assert_eq!(stage.site.unsettled().await, 0);
}

/// The tests of one source.
macro_rules! conforms {
    ($name:ident, $site:ty) => {
        mod $name {
            $crate::conformance::conforms!($site;
                copies_that_the_sender_made_are_applied_once,
                workers_that_come_and_go_lose_nothing_and_repeat_nothing,
                a_handler_that_fails_is_tried_again_and_its_key_waits,
                bad_messages_are_kept_with_the_reason_and_the_others_flow,
                a_broker_killed_and_started_again_loses_nothing,
                two_workers_on_one_message_apply_it_once,
            );
        }
    };
    ($site:ty; $($test:ident,)+) => {
        $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $test() {
            $crate::conformance::$test::<$site>().await;
        })+
    };
}
pub(crate) use conforms;
