//! Pauses, times and failures that must not keep a job for ever.

use std::sync::Arc;
use std::time::Duration;

use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::migrate::Migrator;
use pgonce::queue::Job;
use pgonce::{Error, Failure, Once};
use pgonce_testkit::shared;
use pgonce_tests::{Observer, TestDriver as _, World};
use tokio_util::sync::CancellationToken;

use super::{claim, finish};

/// Doubled so often, an interval has no room for the pause.
#[tokio::test]
async fn the_failure_of_what_failed_often_is_recorded_with_the_longest_pause() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    see.run("select pgonce.define_queue('q', p_max_attempts => 1000, p_backoff => '1 minute'); select from pgonce.enqueue('q', '1'); \
             select pgonce.define_inbox('c', p_max_attempts => 1000, p_backoff => '1 minute', p_max_backoff => '1 hour'); \
             select pgonce.store_message('c', 'shop', 'm', '{}'); \
             select pgonce.define_provider('bank', p_backoff => '1 minute', p_deadline => '90 days')")
        .await;
    let within = |due: &str, table: &str| {
        format!(
            "select {due} between pgonce.now() + interval '29 minutes' and pgonce.now() + interval '1 hour' from pgonce.{table}"
        )
    };

    see.run("update pgonce.job_live set attempts = 60").await;
    let (id, fence) = claim(see, "q", 1).await[0];
    let fail = format!("select pgonce.fail_job({id}, {fence}, true, 'smtp', 'no route')");
    assert_eq!(see.text(&fail).await, "retrying");
    assert_eq!(see.text(&within("due_at", "job_live")).await, "t");

    see.run("update pgonce.inbox_message set attempts = 60")
        .await;
    let fail = "select pgonce.fail_message('c', seq, fence, true, 'x', 'y') from pgonce.claim_messages('c', 'w', '1 minute', 1)";
    assert_eq!(see.text(fail).await, "failed_retryable");
    assert_eq!(see.text(&within("due_at", "inbox_message")).await, "t");

    // One call that was looked up often must not stop the look-ups of all.
    for key in ["often", "first"] {
        see.run(&format!("select from pgonce.claim('pay', '{key}', '\\x01', '1 hour') c, pgonce.external_send('pay', '{key}', c.fence, 'charge', 'bank', '\\x01')"))
            .await;
    }
    see.run("update pgonce.external_call set looks = case key when 'often' then 60 else 0 end, next_look_at = pgonce.now()")
        .await;
    let due = "select count(*) from pgonce.external_due('bank', 10, '1 second')";
    assert_eq!(see.number(due).await, 2);
    let often = within("next_look_at", "external_call where key = 'often'");
    assert_eq!(see.text(&often).await, "t");
}

#[tokio::test]
async fn a_pause_doubles_up_to_the_longest_whatever_is_defined() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    for (first, longest, times, seconds) in [
        ("1 second", "1 hour", 0, 1),
        ("1 second", "1 hour", 1, 1),
        ("1 second", "1 hour", 4, 8),
        ("1 second", "1 hour", i32::MAX, 3600),
        ("1 day", "30 days", 300, 30 * 86400),
        ("100000 years", "100000 years", 300, 3_155_760_000_i64),
    ] {
        let pause = format!(
            "select extract(epoch from pgonce._backoff('{first}', '{longest}', {times})) between {seconds} / 2.0 and {seconds}"
        );
        assert_eq!(see.text(&pause).await, "t", "{first} {longest} {times}");
        see.run(&format!(
            "select pgonce.now() + pgonce._backoff('{first}', '{longest}', {times})"
        ))
        .await;
    }
}

/// No other way to double a pause: only this one cannot run out of range.
#[test]
fn pauses_are_doubled_in_one_place() {
    fn check(folder: &std::path::Path) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                check(&path);
            } else if !path.ends_with("clock/_backoff.sql") {
                let sql = std::fs::read_to_string(&path).unwrap();
                assert!(!sql.contains("power(2"), "{}", path.display());
            }
        }
    }
    check(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/pgonce/sql"));
}

/// A worker that cannot record a failure renews the lease of the job meanwhile: it must come to an end.
#[tokio::test]
async fn a_failure_that_the_server_cannot_write_down_does_not_hold_its_job() {
    let server = shared(None).await.unwrap();
    let see = Observer::connect(&server.url()).await;
    see.run("create database failures_in_latin1 encoding 'LATIN1' lc_collate 'C' lc_ctype 'C' template template0").await;
    let url = server.url_for("failures_in_latin1");
    let migrator = Migrator::new(TokioPostgres::connect(&url, 1));
    migrator.up().await.unwrap();
    let inside = Observer::connect(&url).await;
    inside
        .run("select from pgonce.enqueue('q', '1', p_key => 'k'); select from pgonce.enqueue('q', '2', p_key => 'k')")
        .await;
    let once = Once::tokio_postgres(TokioPostgres::connect(&url, 4).pool().clone());
    let worker = once.worker(["q"], |job: Job<TokioPostgres>| async move {
        match job.payload::<i32>()? {
            1 => Err(Error::from(Failure::permanent(
                "nein",
                "\u{6f22} is no letter here",
            ))),
            _ => job.done(&()),
        }
    });
    let stop = CancellationToken::new();
    let running = tokio::spawn(worker.run(stop.clone().cancelled_owned()));
    inside
        .wait_until("select count(*) = 0 from pgonce.job_live")
        .await;
    stop.cancel();
    running.await.unwrap();
    let ends = "select string_agg(concat_ws(' ', status, failure_message), ', ' order by id) from pgonce.job_end";
    assert_eq!(
        inside.text(ends).await,
        "dead ? is no letter here, succeeded"
    );
    drop((inside, migrator, once));
    see.run("drop database failures_in_latin1 with (force)")
        .await;
}

/// A database that is away, or refuses, for longer than a lease: what was done is recorded when it is back.
#[tokio::test]
async fn a_job_that_is_done_is_recorded_after_its_lease() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    let ids = "select string_agg(id::text, ',' order by id) from";
    see.run("select from unnest(array['done', 'fails']) p, pgonce.enqueue('q', to_jsonb(p))")
        .await;
    let all = see.text(&format!("{ids} pgonce.job_live")).await;
    let outside = Arc::new(Observer::connect(&world.url()).await);
    let worker = world.once.worker(["q"], move |job: Job<TokioPostgres>| {
        let outside = outside.clone();
        async move {
            outside
                .run(&format!("insert into calls values ({})", job.id()))
                .await;
            match job.payload::<String>()?.as_str() {
                "done" => job.done(&()),
                _ => Err(Failure::permanent("no", "not this one").into()),
            }
        }
    });
    // From the first call on nothing is recorded, renewed or claimed.
    see.run(
        "create table gate (); create table calls (id bigint); \
         create function refuse() returns trigger language plpgsql security definer as $$ begin \
         if to_regclass('public.gate') is null or not exists (select from public.calls where id = old.id) then return coalesce(new, old); end if; \
         raise exception 'not now' using errcode = '40001'; end $$; \
         create trigger refuse before update or delete on pgonce.job_live for each row execute function refuse()",
    )
    .await;
    let stop = CancellationToken::new();
    let worker = worker.lease(Duration::from_secs(5));
    let running = tokio::spawn(worker.run(stop.clone().cancelled_owned()));
    see.wait_until("select count(*) = 2 from calls").await;
    see.wait_until("select count(*) = 2 from pgonce.job_live where due_at < clock_timestamp() - interval '300 milliseconds'")
        .await;
    see.run("drop table gate").await;
    see.wait_until("select count(*) = 0 from pgonce.job_live")
        .await;
    stop.cancel();
    running.await.unwrap();
    assert_eq!(see.text(&format!("{ids} calls")).await, all, "each once");
    let ended = "select string_agg(status::text || attempts, ',' order by id) from pgonce.job_end";
    assert_eq!(see.text(ended).await, "succeeded1,dead1");
}

/// A program defines its schedules when it starts, before a worker runs.
#[tokio::test]
async fn a_schedule_that_is_due_stays_due_when_it_is_defined_again() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    let define = "select pgonce.define_schedule('nightly', '0 3 * * *', 'reports', '1')";
    see.run("select pgonce._set_clock('2026-01-01 02:55+00')")
        .await;
    see.run(define).await;
    see.run("select pgonce._set_clock('2026-01-01 03:05+00')")
        .await;
    see.run(define).await;
    let jobs = claim(see, "reports", 10).await;
    assert_eq!(jobs.len(), 1, "the job of three o'clock");
    see.run(&finish(&jobs)).await;
    see.run(define).await;
    assert!(claim(see, "reports", 10).await.is_empty());
    // Another time is another plan: what was due by the old one is not.
    see.run("select pgonce._set_clock('2026-01-02 03:05+00'); select pgonce.define_schedule('nightly', '0 4 * * *', 'reports', '1')")
        .await;
    assert!(claim(see, "reports", 10).await.is_empty());
    // A clock that was far ahead when it was fired last does not stop it: it is defined again, and goes on.
    see.run("select pgonce._set_clock('2040-01-01 04:05+00')")
        .await;
    assert_eq!(claim(see, "reports", 10).await.len(), 1);
    see.run("select pgonce._set_clock('2026-01-03 03:50+00'); select pgonce.define_schedule('nightly', '0 4 * * *', 'reports', '1'); \
             select pgonce._set_clock('2026-01-03 04:01+00')")
        .await;
    assert_eq!(claim(see, "reports", 10).await.len(), 1);
}

/// The lease that was lost is that of another intent: the job's own holds, and its end is recorded.
#[tokio::test]
async fn a_handler_that_meets_the_lost_lease_of_another_intent_is_tried_again() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    see.run("select pgonce.define_queue('q', p_backoff => '1 millisecond'); select from pgonce.enqueue('q', '1')")
        .await;
    let worker = world
        .once
        .worker(["q"], |job: Job<TokioPostgres>| async move {
            let guard = match job.attempts() {
                1 => "select pgonce.guard('s', 'of another', 7)",
                _ => "select 1",
            };
            job.transact(async |mut tx| TokioPostgres::exec(tx.conn(), guard).await)
                .await
        });
    // Not only when its lease is over.
    let worker = worker.lease(Duration::from_secs(3600));
    let stop = CancellationToken::new();
    let running = tokio::spawn(worker.run(stop.clone().cancelled_owned()));
    see.wait_until("select count(*) = 0 from pgonce.job_live")
        .await;
    stop.cancel();
    running.await.unwrap();
    let ends = "select string_agg(status || ' ' || attempts, ', ') from pgonce.jobs";
    assert_eq!(see.text(ends).await, "succeeded 2");
}
