//! Ordered sources: one fenced cursor for a partition, no row for a message.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pgonce::inbox::{Message, Position, Tx};
use pgonce::{Error, Failure};
use pgonce_broker::{Consumer, Dedup, Handler, Incoming, Order, Source, SourceError};
use pgonce_tests::Observer;
use tokio::sync::{Notify, Semaphore};

use super::fixture::{Fixture, Running, Witness, quick};

/// A log of partitions in memory, as a broker keeps it: it delivers from wherever it was asked to, and knows
/// itself only what was acknowledged.
#[derive(Clone, Default)]
pub(crate) struct Log {
    partitions: Arc<Mutex<BTreeMap<String, Vec<Message>>>>,
    acked: Arc<Mutex<BTreeMap<String, i64>>>,
    stirred: Arc<Notify>,
    /// The next time that something is given back, it fails.
    fails: Arc<AtomicBool>,
}

impl Log {
    pub(crate) fn append(&self, partition: &str, mut message: Message) {
        let mut partitions = self.partitions.lock().unwrap();
        let log = partitions.entry(partition.to_owned()).or_default();
        message = message.at(partition, log.len() as i64);
        log.push(message);
        self.stirred.notify_waiters();
    }

    pub(crate) fn source(&self) -> LogSource {
        let acked = self.acked.lock().unwrap();
        let begin = |(partition, next): (&String, &i64)| (partition.clone(), (*next, *next));
        LogSource {
            log: self.clone(),
            paused: HashSet::new(),
            reading: acked.iter().map(begin).collect(),
        }
    }

    /// The broker forgets what it was reply.
    fn forget_acks(&self) {
        self.acked.lock().unwrap().clear();
    }

    fn acks(&self) -> i64 {
        self.acked.lock().unwrap().values().sum()
    }
}

pub(crate) struct LogSource {
    log: Log,
    paused: HashSet<String>,
    /// What was handed out and is not settled: from here on, up to there.
    reading: BTreeMap<String, (i64, i64)>,
}

impl Source for LogSource {
    type Ticket = (String, i64);

    fn name(&self) -> &str {
        "log"
    }

    fn order(&self) -> Order {
        Order::Ordered
    }

    async fn pull(
        &mut self,
        limit: usize,
        _: Duration,
    ) -> Result<Vec<Incoming<(String, i64)>>, SourceError> {
        loop {
            let stirred = self.log.stirred.clone();
            let notified = stirred.notified();
            let mut taken = Vec::new();
            for (partition, log) in self.log.partitions.lock().unwrap().iter() {
                if self.paused.contains(partition) {
                    continue;
                }
                let (_, next) = self.reading.entry(partition.clone()).or_default();
                while let Some(message) = log.get(*next as usize)
                    && taken.len() < limit
                {
                    taken.push(Incoming {
                        message: message.clone(),
                        ticket: (partition.clone(), *next),
                    });
                    *next += 1;
                }
            }
            if !taken.is_empty() {
                return Ok(taken);
            }
            notified.await;
        }
    }

    async fn ack(&mut self, tickets: Vec<(String, i64)>) -> Result<(), SourceError> {
        let mut acked = self.log.acked.lock().unwrap();
        for (partition, offset) in tickets {
            let (from, next) = self.reading.entry(partition.clone()).or_default();
            if offset < *next {
                *from = (*from).max(offset + 1);
            }
            let acked = acked.entry(partition).or_default();
            *acked = (*acked).max(offset + 1);
        }
        Ok(())
    }

    async fn nack(&mut self, tickets: Vec<(String, i64)>, _: Duration) -> Result<(), SourceError> {
        for (partition, offset) in tickets {
            let (from, next) = self.reading.entry(partition).or_default();
            *next = (*next).min(offset);
            *from = *next;
        }
        if self.log.fails.swap(false, Ordering::SeqCst) {
            return Err(SourceError::Unavailable("as the test wants it".to_owned()));
        }
        // Not a spin: a worker that waits for another's lease looks again a little later.
        tokio::task::yield_now().await;
        Ok(())
    }

    async fn seek(
        &mut self,
        partition: &str,
        after: Option<Position>,
    ) -> Result<bool, SourceError> {
        let goal = after.map_or(0, |position| position.major + 1);
        let (from, next) = self.reading.entry(partition.to_owned()).or_default();
        if *from <= goal {
            return Ok(false); // What is before it is a copy.
        }
        (*from, *next) = (goal, goal);
        Ok(true)
    }

    async fn pause(&mut self, partitions: &HashSet<String>) -> Result<(), SourceError> {
        self.paused.clone_from(partitions);
        Ok(())
    }
}

fn fill(log: &Log, from: u64, to: u64) {
    for n in from..=to {
        let partition = format!("p{}", n % 3);
        log.append(
            &partition,
            Message::new(format!("m{n}"), "{}").key(format!("k{}", n % 6)),
        );
    }
}

fn consumer(fixture: &Fixture, log: &Log) -> Consumer<super::fixture::Db, LogSource, Witness> {
    let consumer = Consumer::new(&fixture.once(), "c", log.source(), fixture.witness.clone());
    quick(consumer).batch(10, Duration::ZERO)
}

#[tokio::test]
async fn a_batch_leaves_one_cursor_and_no_row_for_each_message() {
    let fixture = Fixture::new().await;
    let log = Log::default();
    fill(&log, 1, 300);
    let running = Running::start(consumer(&fixture, &log));
    fixture.wait_for(300).await;
    fixture
        .wait("the acknowledgements", || async { log.acks() == 300 })
        .await;
    running.stop().await.unwrap();
    let see = &fixture.world.see;
    assert_eq!(
        see.number("select count(*) from pgonce.inbox_marker").await,
        0
    );
    let cursors = "select string_agg(partition || ':' || position || coalesce(owner, ''), ' ' order by partition) from pgonce.inbox_cursor";
    assert_eq!(see.text(cursors).await, "p0:99 p1:99 p2:99");
    // Everything once more, from a broker that forgot: nothing happens.
    log.forget_acks();
    let again = consumer(&fixture, &log);
    let counts = again.counts();
    let running = Running::start(again);
    fixture
        .wait("the copies", || async { counts.duplicates() == 300 })
        .await;
    fill(&log, 301, 310);
    fixture.wait_for(310).await;
    running.stop().await.unwrap();
    fixture.check().await;
}

#[tokio::test]
async fn where_the_broker_is_ahead_of_the_database_it_is_sent_back() {
    let fixture = Fixture::new().await;
    let log = Log::default();
    fill(&log, 1, 30);
    for partition in ["p0", "p1", "p2"] {
        log.acked.lock().unwrap().insert(partition.to_owned(), 8);
    }
    let running = Running::start(consumer(&fixture, &log));
    fixture.wait_for(30).await;
    running.stop().await.unwrap();
    fixture.check().await;
}

/// Takes the database back to the fifth message when it gets the eleventh, and cannot say whether that was applied.
struct TakenBack {
    witness: Witness,
    see: Observer,
    is_done: AtomicBool,
}

impl Handler<super::fixture::Db> for TakenBack {
    async fn apply(&self, tx: Tx<super::fixture::Db>, message: Arc<Message>) -> pgonce::Result<()> {
        self.witness.apply(tx, message.clone()).await?;
        if message.id != "m11" || self.is_done.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        let back = "delete from seen where substr(id, 2)::integer > 5; update pgonce.inbox_cursor set position = 4";
        self.see.run(back).await;
        Err(Error::Uncertain("the reply is lost".to_owned()))
    }
}

#[tokio::test]
async fn a_database_that_is_taken_back_while_a_commit_is_uncertain_misses_nothing() {
    let fixture = Fixture::new().await;
    let log = Log::default();
    let send = |n: u64| log.append("p", Message::new(format!("m{n}"), "{}").key("k"));
    (1..=10).for_each(send);
    let handler = TakenBack {
        witness: fixture.witness.clone(),
        see: Observer::connect(&fixture.world.url()).await,
        is_done: AtomicBool::new(false),
    };
    let consumer = Consumer::new(&fixture.once(), "c", log.source(), handler);
    let running = Running::start(quick(consumer));
    fixture.wait_for(10).await;
    fixture
        .wait("the acknowledgements", || async { log.acks() == 10 })
        .await;
    (11..=12).for_each(send);
    fixture.wait_for(12).await;
    running.stop().await.unwrap();
    fixture.check().await;
}

/// Keeps one message until it is let go.
struct Held {
    witness: Witness,
    id: &'static str,
    gate: Arc<Semaphore>,
}

impl Handler<super::fixture::Db> for Held {
    async fn apply(&self, tx: Tx<super::fixture::Db>, message: Arc<Message>) -> pgonce::Result<()> {
        if message.id == self.id {
            drop(self.gate.acquire().await);
        }
        self.witness.apply(tx, message).await
    }
}

#[tokio::test]
async fn a_source_that_cannot_take_a_partition_back_loses_nothing_of_the_others() {
    let fixture = Fixture::new().await;
    let log = Log::default();
    let send = |partition: &str, n: u64| {
        log.append(
            partition,
            Message::new(format!("m{n}"), "{}").key(partition),
        )
    };
    (1..=5).for_each(|n| send("p0", n));
    (6..=35).for_each(|n| send("p1", n));
    let gate = Arc::new(Semaphore::new(0));
    let handler = Held {
        witness: fixture.witness.clone(),
        id: "m1",
        gate: gate.clone(),
    };
    let consumer = Consumer::new(&fixture.once(), "c", log.source(), handler);
    let consumer = quick(consumer).batch(10, Duration::ZERO).concurrency(1);
    let counts = consumer.counts();
    let running = Running::start(consumer);
    fixture
        .wait("all in hand", || async { counts.received() >= 25 })
        .await;
    // The lane of the one partition is fenced while the other one waits for it.
    let see = &fixture.world.see;
    see.run("select pgonce.set_partition('c', 'log', 'p0', null, null, 'test')")
        .await;
    log.fails.store(true, Ordering::SeqCst);
    gate.add_permits(1000);
    fixture
        .wait("the failure", || async { counts.source_errors() > 0 })
        .await;
    send("p1", 36);
    fixture.wait_for(36).await;
    running.stop().await.unwrap();
    fixture.check().await;
}

#[tokio::test]
async fn a_failing_message_is_stored_with_the_cursor_past_it_and_its_key_waits() {
    let fixture = Fixture::new().await;
    let log = Log::default();
    fixture.witness.script(|id| match id {
        "m6" => Err(Failure::permanent("no", "never").into()),
        _ => Ok(()),
    });
    fill(&log, 1, 60);
    let running = Running::start(consumer(&fixture, &log));
    fixture.wait_for(50).await;
    fixture
        .wait("the acknowledgements", || async { log.acks() == 60 })
        .await;
    // Key k0 has 6, 12, 18 …: all of them wait.
    let waiting =
        "select count(*) = 1 from pgonce.inbox_poison where message_id = 'm6' and behind = 9";
    fixture.world.see.wait_until(waiting).await;
    fixture.witness.heal();
    fixture.inbox.retry("c", None, "healed").await.unwrap();
    fixture.wait_for(60).await;
    running.stop().await.unwrap();
    fixture.check().await;
}

#[tokio::test]
async fn two_workers_share_a_log_and_one_takes_over_when_the_other_is_killed() {
    let fixture = Fixture::new().await;
    let log = Log::default();
    let lease = Duration::from_secs(2);
    let first = Running::start(consumer(&fixture, &log).lease(lease));
    fill(&log, 1, 60);
    fixture.wait_for(60).await;
    first.kill().await;
    let second = Running::start(consumer(&fixture, &log).lease(lease));
    fill(&log, 61, 120);
    fixture
        .world
        .see
        .run("select pgonce._move_clock('3 s')")
        .await;
    fixture.wait_for(120).await;
    second.stop().await.unwrap();
    fixture.check().await;
}

/// Takes longer for a batch than a lease lasts.
struct Slow(Witness);

impl Handler<super::fixture::Db> for Slow {
    async fn apply(&self, tx: Tx<super::fixture::Db>, message: Arc<Message>) -> pgonce::Result<()> {
        pgonce_tests::slow_work(Duration::from_millis(60)).await;
        self.0.apply(tx, message).await
    }
}

#[tokio::test]
async fn workers_whose_batches_outlast_their_leases_get_through_all_the_same() {
    let fixture = Fixture::new().await;
    let log = Log::default();
    fill(&log, 1, 90);
    // A batch of ten takes 600 ms.
    let worker = || {
        let handler = Slow(fixture.witness.clone());
        let worker = Consumer::new(&fixture.once(), "c", log.source(), handler);
        let worker = quick(worker).batch(10, Duration::ZERO);
        worker.lease(Duration::from_millis(300))
    };
    let workers: Vec<Running> = (0..3).map(|_| Running::start(worker())).collect();
    fixture.wait_for(90).await;
    for worker in workers {
        worker.stop().await.unwrap();
    }
    fixture.check().await;
}

#[tokio::test]
async fn a_message_that_was_sent_twice_into_the_log_is_known_by_its_id_where_both_are_asked() {
    let fixture = Fixture::new().await;
    let log = Log::default();
    fill(&log, 1, 30);
    fill(&log, 1, 30);
    let running = Running::start(consumer(&fixture, &log).dedup(Dedup::Both));
    fixture.wait_for(30).await;
    fixture
        .wait("the acknowledgements", || async { log.acks() == 60 })
        .await;
    running.stop().await.unwrap();
    fixture.check().await;
}

#[tokio::test]
async fn positions_of_a_source_without_an_order_and_ids_alone_of_one_with_an_order_are_refused() {
    let fixture = Fixture::new().await;
    let consumer = fixture.consumer().dedup(Dedup::Positions);
    assert!(Running::start(consumer).ended().await.is_err());
    // By their ids alone nobody would know where a source with an order was.
    let consumer = self::consumer(&fixture, &Log::default()).dedup(Dedup::Ids);
    let refused = Running::start(consumer).ended().await.unwrap_err();
    assert!(refused.to_string().contains("by both"), "{refused}");
}
