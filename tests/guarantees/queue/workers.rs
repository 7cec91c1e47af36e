//! Workers: effects commit with the end of their job, leases are renewed or lost, shutdown loses nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use pgonce::driver::Driver;
use pgonce::queue::{Finished, Job, Queue, Worker};
use pgonce::{Error, Failure, Result};
use pgonce_tests::{Cutter, TestDriver, World, for_each_driver, in_time, intent};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

struct Running {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Running {
    fn start<D, H, F>(worker: Worker<D, H>) -> Self
    where
        D: Driver,
        H: Fn(Job<D>) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Finished>> + Send + 'static,
    {
        let stop = CancellationToken::new();
        let stopped = stop.clone().cancelled_owned();
        let task = tokio::spawn(worker.run(stopped));
        Self { stop, task }
    }

    async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap();
    }
}

const DONE: &str = "select count(*) = 0 from pgonce.job_live";
const MADE: &str = "create table made (n bigint); grant all on made to public";

/// The usual handler: one effect, committed with the end of the job.
async fn make<D: TestDriver>(job: Job<D>) -> Result<Finished> {
    let id = job.id();
    job.transact(async |mut tx| {
        D::exec(tx.conn(), &format!("insert into made values ({id})")).await?;
        Ok(id)
    })
    .await
}

async fn every_job_has_one_effect_and_its_result_is_readable<D: TestDriver>(world: World<D>) {
    let see = &world.see;
    see.run(MADE).await;
    see.run("select from generate_series(1, 200) n, pgonce.enqueue('q', to_jsonb(n), p_key => (n % 7)::text)")
        .await;
    let start = || {
        Running::start(
            world
                .once
                .worker(["q"], make::<D>)
                .concurrency(4)
                .prefetch(8),
        )
    };
    let workers = [start(), start(), start()];
    see.wait_until(DONE).await;
    for worker in workers {
        worker.stop().await;
    }
    assert_eq!(see.number("select count(distinct n) from made").await, 200);
    assert_eq!(see.number("select count(*) from made").await, 200);
    let id = see.number("select min(id) from pgonce.job").await;
    let job = world.once.job("", id).await.unwrap().unwrap();
    assert_eq!((&*job.status, job.attempts), ("succeeded", 1));
    assert_eq!(job.result::<i64>().unwrap(), Some(id));
    assert_eq!(world.once.job("", id + 100_000).await.unwrap(), None);
}

async fn jobs_that_are_only_done_are_recorded_many_at_a_time<D: TestDriver>(world: World<D>) {
    let see = &world.see;
    see.run("select from generate_series(1, 500) n, pgonce.enqueue('q', to_jsonb(n))")
        .await;
    let worker = world.once.worker(["q"], |job: Job<D>| async move {
        let n: i64 = job.payload()?;
        job.done(&(n * 2))
    });
    let worker = Running::start(worker.concurrency(20).prefetch(100));
    see.wait_until(DONE).await;
    worker.stop().await;
    let right = "select count(*) from pgonce.job j join pgonce.job_end e using (tenant, id) \
        where e.status = 'succeeded' and e.result = to_jsonb(2 * (j.payload)::int)";
    assert_eq!(see.number(right).await, 500);
}

async fn a_handler_that_fails_or_panics_is_tried_again<D: TestDriver>(world: World<D>) {
    let see = &world.see;
    see.run(MADE).await;
    see.run("select pgonce.define_queue('q', p_backoff => '1 millisecond', p_max_backoff => '2 milliseconds', p_max_attempts => 4); \
             select from unnest(array['panic', 'work', 'database', 'transient', 'never', 'permanent']) w, pgonce.enqueue('q', to_jsonb(w), p_unique_key => w)")
        .await;
    let worker = world.once.worker(["q"], |job: Job<D>| async move {
        let how: String = job.payload()?;
        if job.attempts() == 1 || how == "never" {
            let _ = job
                .transact(async |mut tx| {
                    D::exec(tx.conn(), "insert into made values (-1)").await?;
                    match &*how {
                        "panic" => panic!("as asked"),
                        "work" | "never" => Err(Error::work("a bug")),
                        "database" => D::exec(tx.conn(), "select 1 / 0").await,
                        "transient" => {
                            Err(Failure::transient("down", "the provider is down").into())
                        }
                        _ => Err(Failure::permanent("bad", "no such account").into()),
                    }
                })
                .await?;
        }
        make(job).await
    });
    let worker = Running::start(worker);
    see.wait_until(DONE).await;
    worker.stop().await;
    let ends = "select string_agg(unique_key || ' ' || status || ' ' || attempts || coalesce(' ' || failure_code, ''), ', ' order by unique_key) from pgonce.jobs";
    assert_eq!(
        see.text(ends).await,
        "database succeeded 2, never dead 4 failed, panic succeeded 2, \
         permanent dead 1 bad, transient succeeded 2, work succeeded 2"
    );
    assert_eq!(
        see.number("select count(*) from made where n < 0").await,
        0,
        "nothing of a failed attempt is left"
    );
    assert_eq!(see.number("select count(*) from made").await, 4);
}

async fn a_handler_that_takes_too_long_is_dropped_and_tried_again<D: TestDriver>(world: World<D>) {
    let see = &world.see;
    see.run(MADE).await;
    see.run("select pgonce.define_queue('q', p_backoff => '1 millisecond', p_max_attempts => 1000); select from pgonce.enqueue('q', '1')")
        .await;
    let worker = world.once.worker(["q"], |job: Job<D>| async move {
        match job.attempts() {
            1 => std::future::pending().await,
            // In the database, too.
            2 => {
                job.transact(async |mut tx| D::exec(tx.conn(), "select pg_sleep(3600)").await)
                    .await
            }
            _ => make(job).await,
        }
    });
    let worker = Running::start(worker.timeout(Duration::from_secs(1)));
    see.wait_until("select count(*) = 1 from made").await;
    worker.stop().await;
    see.wait_until("select count(*) = 0 from pg_stat_activity where datname = current_database() and query ~ 'pg_sleep' and state = 'active' and pid <> pg_backend_pid()")
        .await;
    let ended = "select status || (attempts > 1)::text from pgonce.jobs";
    assert_eq!(see.text(ended).await, "succeededtrue");
}

async fn a_worker_that_loses_a_job_stops_it_and_cannot_commit_it<D: TestDriver>(world: World<D>) {
    let see = &world.see;
    see.run(MADE).await;
    let id = see.number("select id from pgonce.enqueue('q', '1')").await;
    let (started, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let dropped = Arc::new(AtomicUsize::new(0));
    struct Drops(Arc<AtomicUsize>);
    impl Drop for Drops {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let (began, resume, drops) = (started.clone(), go_on.clone(), dropped.clone());
    let worker = world.once.worker(["q"], move |job: Job<D>| {
        let (began, resume, drops) = (began.clone(), resume.clone(), Drops(drops.clone()));
        async move {
            let _drops = drops;
            began.notify_one();
            resume.notified().await;
            make(job).await
        }
    });
    // Long: its heartbeat does not notice before the handler goes on.
    let long = Running::start(worker.lease(Duration::from_secs(600)));
    started.notified().await;
    see.run(&format!("select pgonce.cancel_job({id}, 'void')"))
        .await;
    go_on.notify_one();
    let ended = || async { dropped.load(Ordering::SeqCst) == 1 };
    pgonce_testkit::wait_until("the handler has ended", Duration::from_secs(60), ended)
        .await
        .unwrap();
    long.stop().await;
    assert_eq!(
        see.number("select count(*) from made").await,
        0,
        "its write was refused"
    );
    // Short: the heartbeat notices, and the handler is dropped where it waits.
    let id = see.number("select id from pgonce.enqueue('q', '1')").await;
    let (began, drops) = (started.clone(), dropped.clone());
    let worker = world.once.worker(["q"], move |_: Job<D>| {
        let (began, drops) = (began.clone(), Drops(drops.clone()));
        async move {
            let _drops = drops;
            began.notify_one();
            std::future::pending().await
        }
    });
    let short = Running::start(worker.lease(Duration::from_millis(300)));
    started.notified().await;
    see.run(&format!("select pgonce.cancel_job({id}, 'void')"))
        .await;
    let ended = || async { dropped.load(Ordering::SeqCst) == 2 };
    pgonce_testkit::wait_until("the handler is dropped", Duration::from_secs(60), ended)
        .await
        .unwrap();
    short.stop().await;
}

async fn a_long_job_keeps_its_lease_and_says_how_far_it_is<D: TestDriver>(world: World<D>) {
    let see = &world.see;
    see.run(MADE).await;
    let id = see.number("select id from pgonce.enqueue('q', '1')").await;
    let go_on = Arc::new(Notify::new());
    let resume = go_on.clone();
    let worker = world.once.worker(["q"], move |job: Job<D>| {
        let resume = resume.clone();
        async move {
            job.progress(&serde_json::json!({"rows": 7})).await?;
            resume.notified().await;
            make(job).await
        }
    });
    // Long enough for a machine that stops for seconds now and then.
    let worker = Running::start(worker.lease(Duration::from_secs(6)));
    see.wait_until(&format!(
        "select progress is not null from pgonce.jobs where id = {id}"
    ))
    .await;
    // Its lease is renewed again and again, so nobody else gets it.
    for _ in 0..3 {
        let until = see.text("select due_at from pgonce.job_live").await;
        see.wait_until(&format!(
            "select due_at > '{until}'::timestamptz from pgonce.job_live"
        ))
        .await;
        let taken = "select count(*) from pgonce.claim_jobs('{q}', 'thief', '1 minute', 1)";
        assert_eq!(see.number(taken).await, 0);
    }
    let job = world.once.job("", id).await.unwrap().unwrap();
    assert_eq!(&*job.status, "running");
    assert_eq!(
        job.progress().unwrap(),
        Some(serde_json::json!({"rows": 7}))
    );
    go_on.notify_one();
    see.wait_until(DONE).await;
    worker.stop().await;
    assert_eq!(see.number("select count(*) from made").await, 1);
}

async fn a_slow_or_poisonous_job_delays_only_its_own_key<D: TestDriver>(world: World<D>) {
    let see = &world.see;
    see.run(MADE).await;
    see.run("select pgonce.define_queue('q', p_backoff => '1 hour'); \
             select from pgonce.enqueue('q', '\"slow\"', p_key => 'slow'); select from pgonce.enqueue('q', '\"bad\"', p_key => 'bad'); \
             select from generate_series(1, 30) n, unnest(array['slow', 'bad', 'x', 'y', 'z']) k, pgonce.enqueue('q', to_jsonb(n), p_key => k)")
        .await;
    let go_on = Arc::new(Notify::new());
    let resume = go_on.clone();
    let worker = world.once.worker(["q"], move |job: Job<D>| {
        let resume = resume.clone();
        async move {
            match job.payload::<serde_json::Value>()?.as_str() {
                Some("slow") => resume.notified().await,
                Some("bad") => return Err(Error::work("poison")),
                _ => {}
            }
            make(job).await
        }
    });
    let worker = Running::start(worker.concurrency(2));
    see.wait_until("select count(*) = 0 from pgonce.job_live where key in ('x', 'y', 'z')")
        .await;
    assert_eq!(see.number("select count(*) from made").await, 90);
    go_on.notify_one();
    see.wait_until("select count(*) = 0 from pgonce.job_live where key <> 'bad'")
        .await;
    let behind = "select string_agg(distinct state::text, ',') from pgonce.job_live";
    assert_eq!(see.text(behind).await, "blocked,retrying");
    worker.stop().await;
}

async fn a_shutdown_ends_what_runs_and_gives_the_rest_back<D: TestDriver>(world: World<D>) {
    let see = &world.see;
    see.run(MADE).await;
    see.run("select from generate_series(1, 10) n, pgonce.enqueue('q', to_jsonb(n))")
        .await;
    let (started, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (began, resume) = (started.clone(), go_on.clone());
    let worker = world.once.worker(["q"], move |job: Job<D>| {
        let (began, resume) = (began.clone(), resume.clone());
        async move {
            began.notify_one();
            resume.notified().await;
            make(job).await
        }
    });
    let worker = Running::start(
        worker
            .concurrency(1)
            .prefetch(9)
            .lease(Duration::from_secs(600)),
    );
    started.notified().await;
    worker.stop.cancel();
    see.wait_until(
        "select count(*) = 9 from pgonce.job_live where state = 'ready' and attempts = 0",
    )
    .await;
    go_on.notify_one();
    worker.task.await.unwrap();
    assert_eq!(see.number("select count(*) from made").await, 1);
    assert_eq!(see.number("select count(*) from pgonce.job_live").await, 9);
    // A handler that does not end in time is dropped, and its job is another worker's at once, also where no further
    // attempt would be allowed.
    see.run("select pgonce.define_queue('q', p_max_attempts => 1)")
        .await;
    let began = started.clone();
    let stubborn = world.once.worker(["q"], move |_: Job<D>| {
        began.notify_one();
        std::future::pending()
    });
    let stubborn = stubborn.concurrency(1).lease(Duration::from_secs(600));
    let stubborn = Running::start(stubborn.shutdown_timeout(Duration::from_millis(50)));
    started.notified().await;
    stubborn.stop().await;
    let all = "select string_agg(attempts::text, '' order by id) from pgonce.claim_jobs('{q}', 'w', '1 minute', 100)";
    // Its next attempt is seen to be a later one.
    assert_eq!(see.text(all).await, "211111111");
}

async fn a_result_that_cannot_be_stored_fails_its_own_job_alone<D: TestDriver>(world: World<D>) {
    let see = &world.see;
    see.run("select from generate_series(1, 40) n, pgonce.enqueue('q', to_jsonb(n))")
        .await;
    let worker = world.once.worker(["q"], |job: Job<D>| async move {
        match job.payload::<i64>()? {
            7 => job.done("a\0b"),
            n => job.done(&n),
        }
    });
    let worker = Running::start(worker.concurrency(40).lease(Duration::from_secs(600)));
    see.wait_until(DONE).await;
    worker.stop().await;
    let ends = "select string_agg(distinct status || ' ' || attempts || coalesce(' ' || failure_code, ''), ', ') from pgonce.jobs";
    assert_eq!(see.text(ends).await, "dead 1 22P05, succeeded 1");
    let dead = "select payload::text from pgonce.job join pgonce.job_end using (tenant, id) where status = 'dead'";
    assert_eq!(see.text(dead).await, "7");
}

async fn a_database_that_falls_silent_holds_neither_a_worker_nor_its_shutdown<D: TestDriver>(
    world: World<D>,
) {
    let see = &world.see;
    see.run(MADE).await;
    let cutter = Cutter::in_front_of(world.server.port()).await;
    let once = world.another_at(&cutter.url_for(world.database()), 3, |b| b);
    // Its claim gets no reply, and its connections stay silent.
    let worker = once
        .worker(["q"], make::<D>)
        .poll_interval(Duration::from_millis(5))
        .lease(Duration::from_millis(500));
    let worker = Running::start(worker);
    see.run("select from pgonce.enqueue('q', '1')").await;
    see.wait_until(DONE).await;
    cutter.fall_silent();
    see.run("select from pgonce.enqueue('q', '2')").await;
    cutter.speak();
    see.wait_until(DONE).await;
    worker.stop().await;
    // One handler runs, and others wait: nothing can be given back. Its connections are new ones.
    let once = world.another_at(&cutter.url_for(world.database()), 3, |b| b);
    see.run("select from generate_series(1, 9) n, pgonce.enqueue('q', to_jsonb(n))")
        .await;
    let started = Arc::new(Notify::new());
    let began = started.clone();
    let stubborn = once.worker(["q"], move |_: Job<D>| {
        began.notify_one();
        std::future::pending()
    });
    let stubborn = stubborn
        .concurrency(1)
        .prefetch(8)
        .shutdown_timeout(Duration::from_millis(50));
    let stubborn = Running::start(stubborn.lease(Duration::from_secs(3600)));
    started.notified().await;
    cutter.fall_silent();
    in_time(stubborn.stop()).await;
}

/// Connections that nobody used while the database fell silent are met later, by a worker whose leases are long.
async fn a_dead_connection_does_not_hold_a_claim_for_as_long_as_a_lease<D: TestDriver>(
    world: World<D>,
) {
    let see = &world.see;
    see.run(MADE).await;
    let cutter = Cutter::in_front_of(world.server.port()).await;
    let once = world.another_at(&cutter.url_for(world.database()), 3, |b| b);
    let request = intent("a");
    let opened = join_all([&request; 3].map(|request| once.answer(request))).await;
    assert!(opened.iter().all(Result::is_ok), "{opened:?}");
    see.run("select from generate_series(1, 3) n, pgonce.enqueue('q', to_jsonb(n))")
        .await;
    cutter.fall_silent();
    cutter.speak();
    let worker = once.worker(["q"], make::<D>);
    let worker = Running::start(worker.lease(Duration::from_secs(3600)));
    see.wait_until(DONE).await;
    worker.stop().await;
    assert_eq!(see.number("select count(*) from made").await, 3);
}

async fn ended_jobs_are_purged_however_many_there_are<D: TestDriver>(world: World<D>) {
    let see = &world.see;
    see.run("insert into pgonce.job_end (id, ended_at, expires_at, status, attempts, tenant, queue) \
             select n, pgonce.now(), pgonce.now(), 'succeeded', 1, '', 'q' from generate_series(1, 20500) n")
        .await;
    let worker = Running::start(world.once.worker(["q"], make::<D>));
    see.wait_until("select count(*) = 0 from pgonce.job_end")
        .await;
    worker.stop().await;
}

/// Its handlers are dropped with it, and nobody renews their leases.
async fn a_worker_that_is_dropped_frees_its_jobs<D: TestDriver>(world: World<D>) {
    let see = &world.see;
    see.run("select from pgonce.enqueue('q', '1')").await;
    let started = Arc::new(Notify::new());
    let began = started.clone();
    let worker = world.once.worker(["q"], move |_: Job<D>| {
        began.notify_one();
        std::future::pending()
    });
    let worker = worker.lease(Duration::from_millis(300));
    let worker = tokio::spawn(worker.run(std::future::pending()));
    started.notified().await;
    worker.abort();
    see.wait_until("select count(*) = 1 from pgonce.claim_jobs('{q}', 'w', '1 minute', 1)")
        .await;
}

async fn a_worker_serves_the_queues_it_was_given<D: TestDriver>(world: World<D>) {
    let see = &world.see;
    see.run(MADE).await;
    world
        .owner
        .define_queue(&Queue::new("b").max_running(1))
        .await
        .unwrap();
    see.run("select from unnest(array['a', 'b', 'c', 'a', 'b', 'c']) q, pgonce.enqueue(q, '1')")
        .await;
    let worker = Running::start(world.once.worker(["a", "b"], make::<D>));
    see.wait_until("select count(*) = 2 from pgonce.job_live")
        .await;
    worker.stop().await;
    assert_eq!(
        see.text("select string_agg(distinct queue, ',') from pgonce.job_live")
            .await,
        "c"
    );
    let none: [&str; 0] = [];
    // More than the database gives in one claim.
    let worker = world.once.worker(none, make::<D>).concurrency(20_000);
    let worker = Running::start(worker);
    see.wait_until(DONE).await;
    worker.stop().await;
}

for_each_driver!(
    every_job_has_one_effect_and_its_result_is_readable,
    jobs_that_are_only_done_are_recorded_many_at_a_time,
    a_handler_that_fails_or_panics_is_tried_again,
    a_handler_that_takes_too_long_is_dropped_and_tried_again,
    a_worker_that_loses_a_job_stops_it_and_cannot_commit_it,
    a_long_job_keeps_its_lease_and_says_how_far_it_is,
    a_slow_or_poisonous_job_delays_only_its_own_key,
    a_shutdown_ends_what_runs_and_gives_the_rest_back,
    a_worker_serves_the_queues_it_was_given,
    a_result_that_cannot_be_stored_fails_its_own_job_alone,
    a_database_that_falls_silent_holds_neither_a_worker_nor_its_shutdown,
    a_dead_connection_does_not_hold_a_claim_for_as_long_as_a_lease,
    ended_jobs_are_purged_however_many_there_are,
    a_worker_that_is_dropped_frees_its_jobs,
);
