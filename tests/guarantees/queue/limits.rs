//! Limits of queues hold over all workers, at every moment.

use std::time::Duration;

use futures_util::future::join_all;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::queue::Queue;
use pgonce_tests::World;

use super::{claim, finish};

#[tokio::test]
async fn no_more_jobs_run_than_a_queue_allows_with_many_workers() {
    let world = World::<TokioPostgres>::new().await;
    let three = Queue::new("slow").max_running(3);
    world.owner.define_queue(&three).await.unwrap();
    world
        .see
        .run(
            "select from generate_series(1, 60) n, pgonce.enqueue('slow', to_jsonb(n)); \
              select from generate_series(1, 60) n, pgonce.enqueue('free', to_jsonb(n))",
        )
        .await;
    let workers = (0..6).map(|_| async {
        let see = world.observer().await;
        let mut done = 0;
        let busy = "select count(*) from pgonce.job_live where queue = 'slow' and state in ('running', 'limited')";
        while see.number("select count(*) from pgonce.job_live where queue = 'slow'").await > 0 {
            let jobs = claim(&see, "slow", 2).await;
            assert!(see.number(busy).await <= 3);
            if !jobs.is_empty() {
                see.run(&finish(&jobs)).await;
                done += jobs.len();
            }
        }
        done
    });
    let done: usize = join_all(workers).await.iter().sum();
    assert_eq!(done, 60);
    // Its neighbour has no limit.
    assert_eq!(claim(&world.see, "free", 100).await.len(), 60);
}

#[tokio::test]
async fn a_limit_counts_the_jobs_that_ran_before_it_was_set_and_can_be_taken_away() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    see.run("select from generate_series(1, 20) n, pgonce.enqueue('q', to_jsonb(n))")
        .await;
    let running = claim(see, "q", 2).await;
    world
        .owner
        .define_queue(&Queue::new("q").max_running(3))
        .await
        .unwrap();
    assert_eq!(claim(see, "q", 10).await.len(), 1);
    see.run(&finish(&running)).await;
    assert_eq!(claim(see, "q", 10).await.len(), 2);
    world
        .owner
        .define_queue(&Queue::new("q").max_running(0))
        .await
        .unwrap();
    assert_eq!(claim(see, "q", 10).await.len(), 10);
}

/// The statement that sets the limit cannot see them: their claim is not committed.
#[tokio::test]
async fn jobs_whose_claim_is_open_while_a_limit_is_set_count_when_they_are_renewed() {
    let world = World::<TokioPostgres>::new().await;
    let (see, other) = (&world.see, world.observer().await);
    see.run("select from generate_series(1, 9) n, pgonce.enqueue('q', to_jsonb(n))")
        .await;
    other.run("begin").await;
    let jobs = claim(&other, "q", 3).await;
    world
        .owner
        .define_queue(&Queue::new("q").max_running(2))
        .await
        .unwrap();
    other.run("commit").await;
    let named = jobs
        .iter()
        .map(|(id, fence)| format!("{{\"id\": {id}, \"fence\": {fence}}}"));
    let named: Vec<_> = named.collect();
    let renew = format!(
        "select count(*) from pgonce.renew_jobs('[{}]', '1 minute')",
        named.join(",")
    );
    assert_eq!(see.number(&renew).await, 3, "they run already");
    assert_eq!(claim(see, "q", 9).await.len(), 0);
    // And like the others, when their leases are over.
    see.run("select pgonce._move_clock('2 minutes')").await;
    assert_eq!(see.number(&renew).await, 2);
}

#[tokio::test]
async fn limits_of_all_queues_count_what_runs_in_those_that_nobody_defined() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    see.run("select pgonce.define_queue('own', p_max_running => 0); select from generate_series(1, 9) n, pgonce.enqueue('q', to_jsonb(n)); \
             select from generate_series(1, 9) n, pgonce.enqueue('own', to_jsonb(n))")
        .await;
    let running = claim(see, "q", 2).await;
    assert_eq!(claim(see, "own", 2).await.len(), 2);
    see.run("select pgonce.define_queue('*', p_max_running => 2)")
        .await;
    assert_eq!(claim(see, "q", 9).await.len(), 0);
    assert_eq!(claim(see, "own", 9).await.len(), 7);
    see.run(&finish(&running[..1])).await;
    assert_eq!(claim(see, "q", 9).await.len(), 1);
}

/// A time that no date can hold must not keep what was done from being recorded.
#[tokio::test]
async fn jobs_end_in_a_queue_that_keeps_them_for_longer_than_there_are_dates() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    see.run("select pgonce.define_queue('*', p_keep => '300000 years'); select from generate_series(1, 3) n, pgonce.enqueue('q', to_jsonb(n))")
        .await;
    let jobs = claim(see, "q", 3).await;
    see.run(&finish(&jobs[..1])).await;
    let cancel = format!("select pgonce.cancel_job({})", jobs[1].0);
    assert_eq!(see.text(&cancel).await, "t");
    let (id, fence) = jobs[2];
    let fail = format!("select pgonce.fail_job({id}, {fence}, true, 'x', 'y', '300000 years')");
    assert_eq!(see.text(&fail).await, "retrying");
    let kept = "select count(*) from pgonce.job_end where expires_at > pgonce.now() + interval '4000 years'";
    assert_eq!(see.number(kept).await, 2);
}

/// A job whose lease is over has lost its place, and gets it back only where one is free.
#[tokio::test]
async fn late_renewals_take_no_more_places_than_there_are() {
    let world = World::<TokioPostgres>::new().await;
    let (see, other) = (&world.see, world.observer().await);
    see.run("select pgonce.define_queue('q', p_max_running => 3); select from generate_series(1, 3) n, pgonce.enqueue('q', to_jsonb(n))")
        .await;
    let jobs = claim(see, "q", 3).await;
    let renew = |jobs: &[(i64, i64)]| {
        let named = jobs
            .iter()
            .map(|(id, fence)| format!("{{\"id\": {id}, \"fence\": {fence}}}"));
        let named: Vec<_> = named.collect();
        let named = named.join(",");
        format!("select count(*) from pgonce.renew_jobs('[{named}]', '1 minute')")
    };
    let running =
        "select count(*) from pgonce.job_live where state = 'limited' and due_at > pgonce.now()";
    assert_eq!(see.number(&renew(&jobs)).await, 3);
    see.run("select pgonce.define_queue('q', p_max_running => 2)")
        .await;
    assert_eq!(see.number(&renew(&jobs)).await, 3, "they run already");
    // In one call.
    see.run("select pgonce._move_clock('2 minutes')").await;
    assert_eq!(see.number(&renew(&jobs)).await, 2);
    assert_eq!(see.number(running).await, 2);
    // And side by side.
    see.run("select pgonce.define_queue('q', p_max_running => 1); select pgonce._move_clock('2 minutes')")
        .await;
    other.run("begin").await;
    assert_eq!(other.number(&renew(&jobs[..1])).await, 1);
    assert_eq!(see.number(&renew(&jobs[1..])).await, 0);
    other.run("commit").await;
    assert_eq!(see.number(&renew(&jobs[1..])).await, 0);
    assert_eq!(see.number(running).await, 1);
}

#[tokio::test]
async fn no_more_jobs_are_started_in_a_period_than_a_queue_allows() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    let limited = Queue::new("api").rate(5, Duration::from_secs(1));
    world.owner.define_queue(&limited).await.unwrap();
    see.run("select pgonce._set_clock('2026-01-01'); select from generate_series(1, 40) n, pgonce.enqueue('api', to_jsonb(n))")
        .await;
    assert_eq!(claim(see, "api", 20).await.len(), 5);
    assert_eq!(claim(see, "api", 20).await.len(), 0);
    see.run("select pgonce._move_clock(interval '400 milliseconds')")
        .await;
    assert_eq!(claim(see, "api", 20).await.len(), 2);
    see.run("select pgonce._move_clock(interval '10 seconds')")
        .await;
    assert_eq!(
        claim(see, "api", 20).await.len(),
        5,
        "unused starts are not saved up"
    );
    // Services define their queues at every start: the same limit again starts nothing.
    world.owner.define_queue(&limited).await.unwrap();
    assert_eq!(claim(see, "api", 20).await.len(), 0);
    let more = Queue::new("api").rate(6, Duration::from_secs(1));
    world.owner.define_queue(&more).await.unwrap();
    assert_eq!(claim(see, "api", 20).await.len(), 6);
}

/// What is left out stays as it was, also where it becomes so only while the other waits.
#[tokio::test]
async fn a_pause_and_a_limit_that_are_set_at_once_both_hold() {
    let world = World::<TokioPostgres>::new().await;
    let (see, other) = (&world.see, world.observer().await);
    see.run("select pgonce.define_queue('mail', p_paused => false); begin; select pgonce.define_queue('mail', p_paused => true)")
        .await;
    let waits = "select count(*) > 0 from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()";
    futures_util::future::join(
        other.run("select pgonce.define_queue('mail', p_max_attempts => 7)"),
        async {
            see.wait_until(waits).await;
            see.run("commit").await;
        },
    )
    .await;
    let rules = "select paused || ' ' || max_attempts from pgonce.job_queue where queue = 'mail'";
    assert_eq!(see.text(rules).await, "true 7");
}

#[tokio::test]
async fn the_jobs_of_a_queue_that_is_paused_wait_and_others_run() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    see.run("select from pgonce.enqueue('a', '1'); select from pgonce.enqueue('b', '1')")
        .await;
    world
        .owner
        .define_queue(&Queue::new("a").paused(true))
        .await
        .unwrap();
    let all = "select string_agg(queue, ',') from pgonce.claim_jobs(null, 'w', '1 minute', 10)";
    assert_eq!(see.text(all).await, "b");
    world
        .owner
        .define_queue(&Queue::new("a").paused(false))
        .await
        .unwrap();
    assert_eq!(see.text(all).await, "a");
}

#[tokio::test]
async fn a_higher_priority_comes_first_and_equals_in_their_order() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    see.run("select from pgonce.enqueue('q', '1'); select from pgonce.enqueue('q', '2', p_priority => 5); \
             select from pgonce.enqueue('q', '3', p_priority => -1); select from pgonce.enqueue('q', '4', p_priority => 5)")
        .await;
    let order =
        "select string_agg(payload::text, ',') from pgonce.claim_jobs('{q}', 'w', '1 minute', 10)";
    assert_eq!(see.text(order).await, "2,4,1,3");
}

#[tokio::test]
async fn nonsense_is_refused_before_it_is_stored() {
    let world = World::<TokioPostgres>::new().await;
    for sql in [
        "select from pgonce.enqueue('', '1')",
        "select from pgonce.enqueue(null, '1')",
        "select from pgonce.enqueue('*', '1')",
        "select from pgonce.enqueue('q', '1', p_key => '')",
        "select from pgonce.enqueue('q', '1', p_unique_key => repeat('x', 256))",
        "select from pgonce.enqueue('q', '1', p_priority => 40000)",
        "select from pgonce.enqueue('q', '1', p_tenant => null)",
        "select from pgonce.claim_jobs(null, '', '1 minute', 1)",
        "select from pgonce.claim_jobs(null, 'w', '0', 1)",
        "select from pgonce.claim_jobs(null, 'w', null, 1)",
        "select from pgonce.claim_jobs(null, 'w', '1 minute', 0)",
        "select from pgonce.renew_jobs('[]', '-1 second')",
        "select pgonce.define_queue('q', p_max_attempts => 0)",
        "select pgonce.define_queue('q', p_max_running => -1)",
        "select pgonce.define_queue('q', p_backoff => '-1 s')",
        "select pgonce.define_queue('q', p_backoff => '1 h', p_max_backoff => '1 s')",
        "select pgonce.define_queue('')",
    ] {
        assert_eq!(world.see.code(sql).await, "22023", "{sql}");
    }
    assert_eq!(world.see.number("select count(*) from pgonce.job").await, 0);
}

#[tokio::test]
async fn each_retry_waits_twice_as_long_up_to_the_longest_pause() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    see.run(
        "select pgonce.define_queue('mail', p_max_attempts => 50, p_backoff => '10 seconds', p_max_backoff => '1 minute'); \
         select from pgonce.enqueue('mail', '1'); select pgonce._set_clock('2030-01-01')",
    )
    .await;
    let mut pauses = Vec::new();
    for longest in [10, 20, 40, 60, 60, 60, 60, 60] {
        let (id, fence) = claim(see, "mail", 10).await[0];
        let fail = format!("select pgonce.fail_job({id}, {fence}, true, 'smtp', 'no route')");
        assert_eq!(see.text(&fail).await, "retrying");
        let pause = "select (extract(epoch from due_at - pgonce.now()) * 1000)::bigint from pgonce.job_live";
        pauses.push(see.number(pause).await);
        // Half of it to all of it: those that failed together do not come back together.
        assert!(
            (longest * 500..=longest * 1000).contains(pauses.last().unwrap()),
            "{pauses:?}"
        );
        see.run("select pgonce._move_clock('61 seconds')").await;
    }
    let last = &pauses[3..];
    assert!(
        last.iter().any(|pause| *pause != last[0]),
        "no jitter: {pauses:?}"
    );
}
