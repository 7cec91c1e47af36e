//! The work queue: a job exists with its cause, runs in its turn, and is finished once with its effect.

mod idle;
mod keys;
mod limits;
mod model;
mod pauses;
mod workers;

use std::time::Duration;

use futures_util::future::join_all;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::queue::NewJob;
use pgonce::{Ack, Attempt, Error};
use pgonce_tests::{Observer, TestDriver, World, for_each_driver, intent};

/// Claims jobs by SQL: number and fence of each.
async fn claim(see: &Observer, queue: &str, limit: usize) -> Vec<(i64, i64)> {
    let sql = format!(
        "select id, fence from pgonce.claim_jobs('{{{queue}}}', 'test', '1 minute', {limit})"
    );
    let number = |cell: &Option<String>| cell.as_deref().unwrap().parse().unwrap();
    let rows = see.rows(&sql).await;
    rows.iter()
        .map(|row| (number(&row[0]), number(&row[1])))
        .collect()
}

/// The statement that finishes jobs.
fn finish(jobs: &[(i64, i64)]) -> String {
    let named = jobs
        .iter()
        .map(|(id, fence)| format!("{{\"id\": {id}, \"fence\": {fence}, \"result\": {id}}}"));
    let named: Vec<_> = named.collect();
    format!("select pgonce.finish_jobs('[{}]')", named.join(","))
}

async fn status(see: &Observer, id: i64) -> String {
    see.text(&format!("select status from pgonce.jobs where id = {id}"))
        .await
}

async fn a_job_exists_if_and_only_if_its_transaction_commits<D: TestDriver>(world: World<D>) {
    for (key, commits) in [("rolled back", false), ("committed", true)] {
        let run = world
            .once
            .run(&intent(key), async |mut tx: Attempt<D>| {
                let job = NewJob::new("mail").payload(&"hello")?.unique_key(key);
                assert!(tx.enqueue(&job).await?.is_new());
                assert!(!tx.enqueue(&job).await?.is_new());
                match commits {
                    true => tx.succeed(Ack::value(&1)?).await,
                    false => Err(Error::work("no")),
                }
            })
            .await;
        assert_eq!(run.is_ok(), commits);
    }
    let jobs = "select string_agg(unique_key, ',') from pgonce.jobs";
    assert_eq!(world.see.text(jobs).await, "committed");
}

async fn a_unique_key_names_one_job_with_one_payload<D: TestDriver>(world: World<D>) {
    let enqueue = async |payload: i32| {
        let request = intent(&payload.to_string());
        let run = world.once.run(&request, async |mut tx: Attempt<D>| {
            let job = NewJob::new("mail").payload(&payload)?.unique_key("u");
            tx.enqueue(&job).await?.into_inner();
            tx.succeed(Ack::value(&1)?).await
        });
        run.await
    };
    let _ = enqueue(1).await.unwrap();
    let error = enqueue(2).await.unwrap_err();
    assert!(matches!(error, Error::Conflict(_)), "{error:?}");
    assert_eq!(error.code(), "P4085");
    // Also when the job is done, for as long as it is kept.
    let jobs = claim(&world.see, "mail", 10).await;
    world.see.run(&finish(&jobs)).await;
    assert_eq!(enqueue(2).await.unwrap_err().code(), "P4085");
    world
        .see
        .run("select pgonce._move_clock(interval '8 days'); select pgonce._purge_jobs(100)")
        .await;
    let _ = enqueue(2).await.unwrap();
}

#[tokio::test]
async fn of_many_who_enqueue_the_same_job_one_makes_it() {
    let world = World::<TokioPostgres>::new().await;
    let callers = (0..8).map(|_| async {
        let see = world.observer().await;
        see.text("select made_now from pgonce.enqueue('mail', '1', 'u')")
            .await
    });
    let made = join_all(callers).await;
    assert_eq!(made.iter().filter(|made| *made == "t").count(), 1);
    let rows = "select count(*) from pgonce.job_live";
    assert_eq!(world.see.number(rows).await, 1);
}

#[tokio::test]
async fn a_worker_whose_lease_is_over_can_neither_finish_nor_fail_nor_renew() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    see.run("create table made (n int); select from pgonce.enqueue('mail', '1')")
        .await;
    let old = claim(see, "mail", 1).await;
    see.run("select pgonce._move_clock(interval '2 minutes')")
        .await;
    let new = claim(see, "mail", 1).await;
    assert_eq!((new[0].0, new.len()), (old[0].0, 1));
    assert!(new[0].1 > old[0].1, "fences rise");
    let (id, fence) = old[0];
    let effect = format!(
        "begin; insert into made values (1); {}; commit",
        finish(&old)
    );
    assert_eq!(see.code(&effect).await, "P4012");
    see.run("rollback").await;
    let fail = format!("select pgonce.fail_job({id}, {fence}, true, 'x', 'y')");
    assert_eq!(see.code(&fail).await, "P4012");
    let renew = format!(
        "select count(*) from pgonce.renew_jobs('[{{\"id\": {id}, \"fence\": {fence}}}]', '1 hour')"
    );
    assert_eq!(see.number(&renew).await, 0);
    see.run(&format!(
        "begin; insert into made values (2); {}; commit",
        finish(&new)
    ))
    .await;
    assert_eq!(
        see.text("select string_agg(n::text, ',') from made").await,
        "2"
    );
    assert_eq!(status(see, id).await, "succeeded");
    assert_eq!(see.code(&finish(&new)).await, "P4012", "finished once");
}

#[tokio::test]
async fn a_job_that_fails_is_retried_later_and_dead_in_the_end() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    see.run("select pgonce.define_queue('mail', p_max_attempts => 3, p_backoff => '10 seconds'); select from pgonce.enqueue('mail', '1')")
        .await;
    for attempt in 1..=3 {
        let jobs = claim(see, "mail", 10).await;
        let (id, fence) = jobs[0];
        let failed = see
            .text(&format!(
                "select pgonce.fail_job({id}, {fence}, true, 'smtp', 'no route')"
            ))
            .await;
        assert_eq!(failed, if attempt < 3 { "retrying" } else { "dead" });
        assert!(
            claim(see, "mail", 10).await.is_empty(),
            "not before its pause"
        );
        see.run("select pgonce._move_clock(interval '1 minute')")
            .await;
    }
    assert!(claim(see, "mail", 10).await.is_empty());
    // A dead letter is never purged, and can be tried again or put away.
    see.run("select pgonce._move_clock(interval '1 year'); select pgonce._purge_jobs(100)")
        .await;
    assert_eq!(
        see.number("select pgonce.retry_jobs('mail', p_reason => 'fixed')")
            .await,
        1
    );
    let jobs = claim(see, "mail", 10).await;
    let (id, fence) = jobs[0];
    // The worker sees that an earlier attempt may have reached the outside world.
    let attempts = format!("select attempts from pgonce.job_live where id = {id}");
    assert_eq!(see.number(&attempts).await, 2);
    let permanent = format!("select pgonce.fail_job({id}, {fence}, false, 'no', 'never')");
    assert_eq!(see.text(&permanent).await, "dead");
    assert_eq!(
        see.text(&format!("select pgonce.cancel_job({id}, 'void')"))
            .await,
        "t"
    );
    assert_eq!(status(see, id).await, "cancelled");
    assert_eq!(
        see.text(&format!("select pgonce.cancel_job({id}, 'again')"))
            .await,
        "f"
    );
    let acts = "select string_agg(concat_ws(' ', act, scope, nullif(reason, '')), ', ' order by number) from pgonce.operator_act where act <> 'grant'";
    assert_eq!(
        see.text(acts).await,
        "define queue mail, retry job mail fixed, cancel job mail void"
    );
}

#[tokio::test]
async fn a_job_whose_workers_vanish_again_and_again_is_dead() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    see.run("select pgonce.define_queue('mail', p_max_attempts => 2); select from pgonce.enqueue('mail', '1')")
        .await;
    for _ in 0..2 {
        assert_eq!(claim(see, "mail", 10).await.len(), 1);
        see.run("select pgonce._move_clock(interval '2 minutes')")
            .await;
    }
    assert!(claim(see, "mail", 10).await.is_empty());
    let dead = "select status || ' ' || failure_code from pgonce.jobs";
    assert_eq!(see.text(dead).await, "dead abandoned");
}

#[tokio::test]
async fn a_job_that_is_cancelled_while_it_runs_cannot_be_finished() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    see.run("select from pgonce.enqueue('mail', '1', p_key => 'k'); select from pgonce.enqueue('mail', '2', p_key => 'k')")
        .await;
    let jobs = claim(see, "mail", 10).await;
    assert_eq!(jobs.len(), 1);
    see.run(&format!("select pgonce.cancel_job({}, 'stop')", jobs[0].0))
        .await;
    assert_eq!(see.code(&finish(&jobs)).await, "P4012");
    assert_eq!(claim(see, "mail", 10).await.len(), 1, "the next of the key");
}

#[tokio::test]
async fn a_delayed_job_runs_at_its_time_and_holds_its_key_only_from_then_on() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    see.run("select from pgonce.enqueue('mail', '1', p_key => 'k', p_run_at => pgonce.now() + interval '1 hour'); \
        select from pgonce.enqueue('mail', '2', p_key => 'k'); select from pgonce.enqueue('mail', '3', p_key => 'k', p_priority => 9)")
        .await;
    let first = claim(see, "mail", 10).await;
    assert_eq!(first.len(), 1);
    see.run("select pgonce._move_clock(interval '30 seconds')")
        .await;
    see.run(&finish(&first)).await;
    let second = claim(see, "mail", 10).await;
    assert_eq!(second.len(), 1);
    assert!(second[0].0 > first[0].0);
    see.run(&finish(&second)).await;
    assert!(claim(see, "mail", 10).await.is_empty());
    see.run("select pgonce._move_clock(interval '1 hour')")
        .await;
    assert_eq!(claim(see, "mail", 10).await.len(), 1);
}

#[tokio::test]
async fn a_group_says_when_it_is_finished_and_when_it_is_stuck() {
    let world = World::<TokioPostgres>::new().await;
    let (see, once) = (&world.see, &world.once);
    assert_eq!(once.job_group("", "import-7").await.unwrap(), None);
    see.run("select from generate_series(1, 3) n, pgonce.enqueue('rows', to_jsonb(n), p_group => 'import-7')")
        .await;
    let jobs = claim(see, "rows", 10).await;
    assert_eq!(jobs.len(), 3);
    let group = async || {
        let group = once.job_group("", "import-7").await.unwrap().unwrap();
        (group.status, group.succeeded, group.dead)
    };
    see.run(&finish(&jobs[..2])).await;
    assert_eq!(group().await, ("running".to_owned(), 2, 0));
    let (id, fence) = jobs[2];
    see.run(&format!(
        "select pgonce.fail_job({id}, {fence}, false, 'bad', 'row')"
    ))
    .await;
    assert_eq!(group().await, ("stuck".to_owned(), 2, 1));
    world
        .owner
        .retry_jobs("rows", Some(id), "fixed")
        .await
        .unwrap();
    assert_eq!(group().await, ("running".to_owned(), 2, 0));
    see.run(&finish(&claim(see, "rows", 10).await)).await;
    assert_eq!(group().await, ("finished".to_owned(), 3, 0));
}

#[tokio::test]
async fn of_many_workers_one_enqueues_the_job_of_a_schedule() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    see.run("select pgonce.define_schedule('nightly', '0 3 * * *', 'reports', '{\"kind\": 1}')")
        .await;
    assert!(claim(see, "reports", 10).await.is_empty());
    let made = "select count(*) from pgonce.job";
    for night in 1..=3 {
        see.run("select pgonce._move_clock(interval '1 day')").await;
        let workers = (0..6).map(|_| async {
            let see = world.observer().await;
            claim(&see, "reports", 10).await
        });
        for jobs in join_all(workers).await {
            see.run(&finish(&jobs)).await;
        }
        assert_eq!(see.number(made).await, night);
    }
    // Nights that nobody worked are one job, not many.
    see.run("select pgonce._move_clock(interval '9 days')")
        .await;
    assert_eq!(claim(see, "reports", 10).await.len(), 1);
    see.run("select pgonce.define_schedule('nightly', null); select pgonce._move_clock(interval '2 days')")
        .await;
    claim(see, "reports", 10).await;
    assert_eq!(see.number(made).await, 4);
}

#[tokio::test]
async fn whether_a_claim_is_worth_it_is_seen_without_one() {
    let world = World::<TokioPostgres>::new().await;
    let (see, other) = (&world.see, world.observer().await);
    let peek = "select last_id || ' ' || is_ready from pgonce._peek_jobs('{a,b}')";
    see.run("select from pgonce.enqueue('c', '1')").await;
    assert_eq!(see.text(peek).await, "1 false", "of another queue");
    other
        .run("begin; select from pgonce.enqueue('b', '1')")
        .await;
    assert_eq!(see.text(peek).await, "2 false", "not committed yet");
    other.run("commit").await;
    assert_eq!(see.text(peek).await, "2 true");
    assert_eq!(claim(see, "b", 1).await.len(), 1);
    assert_eq!(see.text(peek).await, "2 false");
    let all = "select is_ready from pgonce._peek_jobs(null)";
    assert_eq!(see.text(all).await, "t");
}

#[tokio::test]
async fn a_transient_error_does_not_move_the_time_of_a_schedule() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    see.run("select pgonce._set_clock('2026-01-01'); select pgonce.define_schedule('n', '0 3 * * *', 'q', '1'); \
             create function public.busy() returns trigger language plpgsql as \
             'begin raise exception ''busy'' using errcode = ''55P03''; end'; \
             create trigger busy before insert on pgonce.job for each row execute function public.busy(); \
             select pgonce._set_clock('2026-01-02')")
        .await;
    assert!(claim(see, "q", 10).await.is_empty());
    see.run("drop trigger busy on pgonce.job").await;
    assert_eq!(claim(see, "q", 10).await.len(), 1, "by the next claim");
}

#[tokio::test]
async fn a_schedule_that_cannot_be_enqueued_keeps_no_worker_from_its_jobs() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    see.run("select pgonce._set_clock('2026-01-01'); \
             select pgonce.define_schedule('n', '0 3 * * *', 'q', '1'); select pgonce.define_schedule('broken', '0 3 * * *', 'q', '1'); \
             update pgonce.job_schedule set zone = 'Nowhere' where name = 'broken'; select pgonce._set_clock('2026-01-02')")
        .await;
    assert_eq!(
        claim(see, "q", 10).await.len(),
        1,
        "the other one is enqueued"
    );
    // The clock goes back, and the time comes again with another payload.
    see.run("select pgonce._set_clock('2026-01-01'); select pgonce.define_schedule('n', '0 3 * * *', 'q', '2'); \
             select pgonce._set_clock('2026-01-02'); select from pgonce.enqueue('q', '3')")
        .await;
    let jobs = claim(see, "q", 10).await;
    assert_eq!(jobs.len(), 1, "the job beside them");
    for wrong in ["'*'", "''", "null"] {
        let sql = format!("select pgonce.define_schedule('x', '* * * * *', {wrong})");
        assert_eq!(see.code(&sql).await, "22023");
    }
}

#[tokio::test]
async fn a_cron_expression_names_the_times_that_cron_would() {
    let world = World::<TokioPostgres>::new().await;
    for (cron, zone, after, next) in [
        (
            "* * * * *",
            "UTC",
            "2026-01-01 00:00:00Z",
            "2026-01-01 00:01:00",
        ),
        (
            "*/15 * * * *",
            "UTC",
            "2026-01-01 00:46Z",
            "2026-01-01 01:00:00",
        ),
        (
            "0 3 * * *",
            "UTC",
            "2026-01-01 03:00Z",
            "2026-01-02 03:00:00",
        ),
        (
            "5,10 8-9 * * *",
            "UTC",
            "2026-01-01 08:10Z",
            "2026-01-01 09:05:00",
        ),
        (
            "0 0 1 1 *",
            "UTC",
            "2026-01-01 00:00Z",
            "2027-01-01 00:00:00",
        ),
        (
            "0 0 29 2 *",
            "UTC",
            "2026-01-01 00:00Z",
            "2028-02-29 00:00:00",
        ),
        (
            "0 0 * * 7",
            "UTC",
            "2026-01-01 00:00Z",
            "2026-01-04 00:00:00",
        ),
        // Either the day or the weekday.
        (
            "0 0 13 * 5",
            "UTC",
            "2026-01-01 00:00Z",
            "2026-01-02 00:00:00",
        ),
        // The clock goes from 2:00 to 3:00, and later from 3:00 back to 2:00.
        (
            "30 2 * * *",
            "Europe/Berlin",
            "2026-03-29 00:30Z",
            "2026-03-29 01:30:00",
        ),
        (
            "30 2 * * *",
            "Europe/Berlin",
            "2026-10-25 00:00Z",
            "2026-10-25 01:30:00",
        ),
        (
            "30 2 * * *",
            "Europe/Berlin",
            "2026-10-25 01:30Z",
            "2026-10-26 01:30:00",
        ),
    ] {
        let sql = format!(
            "select (pgonce._cron_next('{cron}', '{zone}', '{after}') at time zone 'UTC')::text"
        );
        assert_eq!(world.see.text(&sql).await, next, "{cron} {zone} {after}");
    }
    for wrong in [
        "",
        "* * * *",
        "* * * * * *",
        "60 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * * 13 *",
        "* * * * 8",
        "5-1 * * * *",
        "*/0 * * * *",
        "a * * * *",
        "1,,2 * * * *",
        "0 0 31 2 *",
        "-1 * * * *",
    ] {
        let sql = format!("select pgonce.define_schedule('x', '{wrong}', 'q')");
        assert_eq!(world.see.code(&sql).await, "22023", "{wrong:?}");
    }
    let zone = "select pgonce.define_schedule('x', '* * * * *', 'q', p_zone => 'Nowhere')";
    assert_eq!(world.see.code(zone).await, "22023");
}

#[tokio::test]
async fn jobs_are_claimed_in_read_committed_only() {
    let world = World::<TokioPostgres>::new().await;
    for level in ["repeatable read", "serializable"] {
        let sql = format!(
            "begin isolation level {level}; select from pgonce.claim_jobs(null, 'w', '1 minute', 1)"
        );
        assert_eq!(world.see.code(&sql).await, "25000");
        world.see.run("rollback").await;
    }
}

#[tokio::test]
async fn what_a_queue_does_not_keep_is_gone_when_it_is_done() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    let gone = pgonce::queue::Queue::new("brief").keep(Duration::ZERO);
    world.owner.define_queue(&gone).await.unwrap();
    see.run("select from pgonce.enqueue('brief', '1')").await;
    see.run(&finish(&claim(see, "brief", 1).await)).await;
    assert_eq!(see.number("select count(*) from pgonce.job").await, 0);
    assert_eq!(see.number("select count(*) from pgonce.job_end").await, 0);
}

for_each_driver!(
    a_job_exists_if_and_only_if_its_transaction_commits,
    a_unique_key_names_one_job_with_one_payload,
);
