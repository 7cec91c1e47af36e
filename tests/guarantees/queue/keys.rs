//! Jobs of one key run in order, one at a time, and hold up nobody else.

use std::collections::HashMap;
use std::sync::Mutex;

use futures_util::future::join_all;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::queue::Queue;
use pgonce_tests::{World, random};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};

use super::{claim, finish};

#[tokio::test]
async fn of_a_long_key_only_the_first_job_is_looked_at() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    see.run(
        "select from generate_series(1, 500) n, pgonce.enqueue('q', to_jsonb(n), p_key => 'long'); \
             select from pgonce.enqueue('q', '0', p_key => 'other')",
    )
    .await;
    let ready = "select count(*) from pgonce.job_live where state = 'ready'";
    assert_eq!(see.number(ready).await, 2);
    let jobs = claim(see, "q", 100).await;
    assert_eq!(jobs.len(), 2);
    see.run(&finish(&jobs)).await;
    assert_eq!(see.number(ready).await, 1);
}

#[tokio::test]
async fn a_retry_holds_its_key_and_a_dead_letter_frees_it() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    see.run("select from generate_series(1, 2) n, pgonce.enqueue('q', to_jsonb(n), p_key => 'k')")
        .await;
    let (id, fence) = claim(see, "q", 10).await[0];
    see.run(&format!(
        "select pgonce.fail_job({id}, {fence}, true, 'x', 'y', '1 hour')"
    ))
    .await;
    assert!(claim(see, "q", 10).await.is_empty());
    see.run("select pgonce._move_clock(interval '2 hours')")
        .await;
    let again = claim(see, "q", 10).await;
    assert_eq!((again.len(), again[0].0), (1, id));
    see.run(&format!(
        "select pgonce.fail_job({id}, {}, false, 'x', 'y')",
        again[0].1
    ))
    .await;
    let next = claim(see, "q", 10).await;
    assert_eq!(next.len(), 1);
    assert!(next[0].0 > id);
}

#[tokio::test]
async fn a_job_that_is_enqueued_while_the_one_before_it_ends_is_not_forgotten() {
    let world = World::<TokioPostgres>::new().await;
    let (see, other) = (&world.see, world.observer().await);
    let enqueue = "select from pgonce.enqueue('q', '1', p_key => 'k')";
    // Either may commit first; what they cannot see of each other must not be lost.
    for end in ["begin", "begin isolation level repeatable read"] {
        for enqueuer in ["begin", "begin isolation level serializable"] {
            for enqueuer_first in [true, false] {
                for starts_first in [true, false] {
                    see.run(enqueue).await;
                    let jobs = claim(see, "q", 1).await;
                    see.run(&format!("{end}; select 1")).await;
                    other.run(&format!("{enqueuer}; select 1")).await;
                    if starts_first {
                        see.run(&finish(&jobs)).await;
                        other.run(enqueue).await;
                    } else {
                        other.run(enqueue).await;
                        see.run(&finish(&jobs)).await;
                    }
                    let (first, second) = if enqueuer_first {
                        (&other, see)
                    } else {
                        (see, &other)
                    };
                    first.run("commit").await;
                    second.run("commit").await;
                    let next = claim(see, "q", 10).await;
                    assert_eq!(
                        next.len(),
                        1,
                        "{end}, {enqueuer}, {enqueuer_first}, {starts_first}"
                    );
                    see.run(&finish(&next)).await;
                }
            }
        }
    }
    assert!(claim(see, "q", 10).await.is_empty());
    let left = "select count(*) from pgonce.job_recheck";
    assert_eq!(see.number(left).await, 0, "nothing to look at again");
}

#[tokio::test]
async fn a_transaction_that_ends_a_job_of_one_key_slowly_hides_no_other_key() {
    let world = World::<TokioPostgres>::new().await;
    let (see, slow) = (&world.see, world.observer().await);
    see.run("select from pgonce.enqueue('q', '0', p_key => 'slow')")
        .await;
    let first = claim(see, "q", 1).await;
    slow.run(&format!("begin; {}", finish(&first))).await;
    see.run(
        "select from generate_series(1, 60) n, pgonce.enqueue('q', to_jsonb(n), p_key => 'slow'); \
         select from pgonce.enqueue('q', '1', p_key => 'other'); select from pgonce.enqueue('q', '2')",
    )
    .await;
    let ready = "select count(*) from pgonce.job_live where state = 'ready'";
    assert_eq!(see.number(ready).await, 62, "nobody can put them behind");
    let jobs: Vec<_> = [claim(see, "q", 1).await, claim(see, "q", 5).await].concat();
    assert_eq!(jobs.len(), 2, "those of others");
    see.run(&finish(&jobs)).await;
    assert!(claim(see, "q", 5).await.is_empty());
    slow.run("commit").await;
    let next = claim(see, "q", 5).await;
    assert_eq!(next.len(), 1);
    assert!(next[0].0 > first[0].0 && next[0].0 < jobs[0].0, "in order");
}

/// What the workers of a test know: the running jobs of each key, and the last that was started.
#[derive(Default)]
struct Book {
    running: HashMap<String, usize>,
    started: HashMap<String, i64>,
}

async fn many_workers_keep_the_order(per_key: u32) {
    const JOBS: i64 = 300;
    let world = World::<TokioPostgres>::new().await;
    let limit = Queue::new("q").max_per_key(per_key).max_attempts(1000);
    world.owner.define_queue(&limit).await.unwrap();
    let book = Mutex::new(Book::default());
    let seed = random().random::<u64>();
    let enqueuers = (0..3).map(|n| {
        let world = &world;
        async move {
            let see = world.observer().await;
            let mut random = StdRng::seed_from_u64(seed + n);
            for _ in 0..JOBS / 3 {
                // Of a key that two enqueue at once, the later number may be committed first.
                let key = match random.random_bool(0.5) {
                    true => format!("k{n}-{}", random.random_range(0..2)),
                    false => format!("shared-{}", random.random_range(0..2)),
                };
                let ends = if random.random_bool(0.1) {
                    "rollback"
                } else {
                    "commit"
                };
                see.run(&format!(
                    "begin; select from pgonce.enqueue('q', '1', p_key => '{key}'); {ends}"
                ))
                .await;
            }
        }
    });
    let workers = (0..4).map(|n| {
        let (world, book) = (&world, &book);
        async move {
            let see = world.observer().await;
            let mut random = StdRng::seed_from_u64(seed + 100 + n);
            let mut idle = 0;
            while idle < 40 {
                let sql = "select id, fence, key from pgonce.claim_jobs('{q}', 'w', '1 hour', 3)";
                let rows = see.rows(sql).await;
                idle = if rows.is_empty() { idle + 1 } else { 0 };
                let mut jobs = Vec::new();
                for row in rows {
                    let cells: Vec<_> = row.into_iter().map(Option::unwrap).collect();
                    let (id, fence): (i64, i64) =
                        (cells[0].parse().unwrap(), cells[1].parse().unwrap());
                    let mut book = book.lock().unwrap();
                    let running = book.running.entry(cells[2].clone()).or_default();
                    *running += 1;
                    assert!(*running <= per_key as usize, "too many of {}", cells[2]);
                    if per_key == 1 && !cells[2].starts_with("shared") {
                        let last = book.started.insert(cells[2].clone(), id);
                        assert!(last.is_none_or(|last| last <= id), "{id} after {last:?}");
                    }
                    jobs.push((id, fence, cells[2].clone()));
                }
                for (id, fence, key) in jobs {
                    *book.lock().unwrap().running.get_mut(&key).unwrap() -= 1;
                    let end = match random.random_range(0..10) {
                        0 => format!(
                            "select pgonce.fail_job({id}, {fence}, true, 'x', 'y', '1 millisecond')"
                        ),
                        _ => finish(&[(id, fence)]),
                    };
                    see.run(&end).await;
                }
            }
        }
    });
    tokio::join!(join_all(enqueuers), join_all(workers));
    let see = &world.see;
    // What the workers did not wait for.
    while see.number("select count(*) from pgonce.job_live").await > 0 {
        see.run("select pgonce._move_clock(interval '1 second')")
            .await;
        let jobs = claim(see, "q", 100).await;
        assert!(!jobs.is_empty(), "a job is forgotten");
        see.run(&finish(&jobs)).await;
    }
    let ends = "select count(*) - count(distinct id) from pgonce.job_end";
    assert_eq!(see.number(ends).await, 0);
}

#[tokio::test]
async fn jobs_of_a_key_start_in_order_one_at_a_time_with_many_workers() {
    many_workers_keep_the_order(1).await;
}

#[tokio::test]
async fn of_a_key_no_more_jobs_run_than_its_queue_allows() {
    many_workers_keep_the_order(2).await;
}

/// What cannot be decided about the keys of one queue, while a transaction is open, is looked at again and again.
#[tokio::test]
async fn a_transaction_that_stays_open_delays_no_key_of_another_queue() {
    let world = World::<TokioPostgres>::new().await;
    let (see, open) = (&world.see, world.observer().await);
    see.run(
        "select from generate_series(1, 150) n, pgonce.enqueue('long', to_jsonb(n), p_key => 'k')",
    )
    .await;
    open.run("begin; select from pgonce.enqueue('long', '0', p_key => 'k')")
        .await;
    for _ in 0..140 {
        let jobs = claim(see, "long", 1).await;
        see.run(&finish(&jobs)).await;
    }
    let rows = "select count(*) from pgonce.job_recheck";
    assert!(see.number(rows).await <= 2, "one row of a key is enough");
    // As many keys as a look takes, and more; then one that could be decided.
    see.run("insert into pgonce.job_recheck select nextval('pgonce.job_seq'), '', 'long', 'k' from generate_series(1, 150)")
        .await;
    see.run("select from pgonce.enqueue('other', '1', p_key => 'z')")
        .await;
    let first = claim(see, "other", 1).await;
    let enqueuer = world.observer().await;
    enqueuer
        .run("begin; select from pgonce.enqueue('other', '2', p_key => 'z')")
        .await;
    see.run(&finish(&first)).await;
    enqueuer.run("commit").await;
    let blocked =
        "select count(*) from pgonce.job_live where queue = 'other' and state = 'blocked'";
    assert_eq!(see.number(blocked).await, 1);
    // The first looks leave one row of the key that stays open; the next ones see the other.
    for _ in 0..3 {
        claim(see, "none", 1).await;
    }
    assert_eq!(claim(see, "other", 1).await.len(), 1);
    open.run("rollback").await;
}
