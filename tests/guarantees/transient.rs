//! Errors that pass are retried from BEGIN, and never remembered as final.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use futures_util::future::join;
use pgonce::retry::Policy;
use pgonce::{Ack, Error, Isolation};
use pgonce_tests::{Setting, TestDriver, World, effect, for_each_driver, intent};
use tokio::sync::Barrier;

/// Waits for the other one; not for ever, as it may have failed on the way.
async fn meets(barrier: &Barrier) {
    let _ = tokio::time::timeout(std::time::Duration::from_secs(10), barrier.wait()).await;
}

/// Moves money between two accounts; the first runs of both meet in the middle.
async fn transfer<D: TestDriver>(
    world: &World<D>,
    key: &str,
    accounts: [u32; 2],
    meet: &Barrier,
    runs: &AtomicU32,
) -> pgonce::Result<pgonce::Done> {
    let mine = AtomicU32::new(0);
    let request = intent(key);
    let run = world.once.run(&request, |mut attempt| {
        let first = mine.fetch_add(1, SeqCst) == 0;
        runs.fetch_add(1, SeqCst);
        async move {
            effect(&mut attempt).await?;
            D::exec(attempt.conn(), "set local deadlock_timeout = '20ms'").await?;
            for (n, account) in accounts.into_iter().enumerate() {
                let sql = format!("update account set balance = balance + 1 where id = {account}");
                D::exec(attempt.conn(), &sql).await?;
                if first && n == 0 {
                    meets(meet).await;
                }
            }
            attempt.succeed(Ack::status()).await
        }
    });
    run.await
}

async fn a_deadlock_is_retried_and_both_commands_happen_once<D: TestDriver>(world: World<D>) {
    let (meet, runs) = (Barrier::new(2), AtomicU32::new(0));
    let (one, two) = join(
        transfer(&world, "one", [1, 2], &meet, &runs),
        transfer(&world, "two", [2, 1], &meet, &runs),
    )
    .await;
    assert!(!one.unwrap().replayed() && !two.unwrap().replayed());
    assert!(runs.load(SeqCst) >= 3, "there was no deadlock");
    for key in ["one", "two"] {
        assert_eq!(world.see.effects(&intent(key)).await, 1);
        assert_eq!(world.see.record(&intent(key), "status").await, "succeeded");
    }
    assert_eq!(
        world.see.number("select sum(balance) from account").await,
        404
    );
    world.see.wait_until_clean().await;
}

async fn withdraws_unless_poor<D: TestDriver>(
    world: &World<D>,
    key: &str,
    account: u32,
    meet: &Barrier,
    runs: &AtomicU32,
) -> pgonce::Result<pgonce::Done> {
    let mine = AtomicU32::new(0);
    let request = intent(key);
    let run = world.once.run(&request, |mut attempt| {
        let first = mine.fetch_add(1, SeqCst) == 0;
        runs.fetch_add(1, SeqCst);
        async move {
            effect(&mut attempt).await?;
            let sum = D::fetch(
                attempt.conn(),
                "select sum(balance)::text from account where id in (1, 2)",
            )
            .await?;
            if first {
                meets(meet).await;
            }
            let enough = sum.is_some_and(|sum| sum == "200");
            if enough {
                D::exec(
                    attempt.conn(),
                    &format!("update account set balance = balance - 150 where id = {account}"),
                )
                .await?;
            }
            attempt.succeed(Ack::value(&enough)?).await
        }
    });
    run.await
}

async fn skewed<D: TestDriver>() {
    let setting = Setting {
        major: None,
        isolation: Isolation::Serializable,
        pooler: false,
    };
    let world = World::<D>::in_setting(setting).await;
    let (meet, runs) = (Barrier::new(2), AtomicU32::new(0));
    let (one, two) = join(
        withdraws_unless_poor(&world, "one", 1, &meet, &runs),
        withdraws_unless_poor(&world, "two", 2, &meet, &runs),
    )
    .await;
    let mut got = [
        one.unwrap().read::<bool>().unwrap(),
        two.unwrap().read::<bool>().unwrap(),
    ];
    got.sort_unstable();
    assert_eq!(got, [false, true], "as if one after the other");
    assert!(runs.load(SeqCst) >= 3, "one of them was retried");
    for key in ["one", "two"] {
        assert_eq!(world.see.effects(&intent(key)).await, 1);
    }
    world.see.wait_until_clean().await;
}

#[tokio::test]
async fn a_serialization_failure_is_retried_and_both_commands_happen_once() {
    skewed::<pgonce::driver::sqlx::Sqlx>().await;
    skewed::<pgonce::driver::tokio_postgres::TokioPostgres>().await;
}

async fn a_transient_error_is_never_remembered_even_when_the_retries_are_used_up<D: TestDriver>(
    world: World<D>,
) {
    let once = world.another("impatient", 2, |b| b.retry(Policy::default().tries(3)));
    let request = intent("unlucky");
    for code in ["40001", "40P01", "55P03", "57P01"] {
        let runs = AtomicU32::new(0);
        let end = once
            .run(&request, |mut attempt| {
                runs.fetch_add(1, SeqCst);
                async move {
                    effect(&mut attempt).await?;
                    let sql = format!(
                        "do $$ begin raise exception 'bad luck' using errcode = '{code}'; end $$"
                    );
                    D::exec(attempt.conn(), &sql).await?;
                    attempt.succeed(Ack::status()).await
                }
            })
            .await;
        assert!(end.is_err(), "{code}");
        assert_eq!(runs.load(SeqCst), 3, "{code} is tried again");
        world.see.wait_until_clean().await;
        assert_eq!(
            (
                world.see.records(&request).await,
                world.see.effects(&request).await
            ),
            (0, 0),
            "{code}"
        );
    }
    assert!(!world.run(&request).await.unwrap().replayed());
}

async fn an_error_that_does_not_pass_is_not_tried_again_and_burns_no_key<D: TestDriver>(
    world: World<D>,
) {
    for (code, sql) in [
        ("23514", "check_violation"),
        ("22012", "division_by_zero"),
        ("42P01", "undefined_table"),
    ] {
        let runs = AtomicU32::new(0);
        let request = intent(sql);
        let end = world
            .once
            .run(&request, |mut attempt| {
                runs.fetch_add(1, SeqCst);
                async move {
                    effect(&mut attempt).await?;
                    D::exec(attempt.conn(), &format!("do $$ begin raise {sql}; end $$")).await?;
                    attempt.succeed(Ack::status()).await
                }
            })
            .await;
        assert!(
            matches!(&end, Err(Error::Database(problem)) if &*problem.code == code),
            "{end:?}"
        );
        assert_eq!(runs.load(SeqCst), 1);
        assert!(!world.run(&request).await.unwrap().replayed());
    }
}

async fn a_session_ended_by_the_administrator_is_retried<D: TestDriver>(world: World<D>) {
    let runs = AtomicU32::new(0);
    let request = intent("ended");
    let done = world
        .once
        .run(&request, |mut attempt| {
            let (world, first) = (&world, runs.fetch_add(1, SeqCst) == 0);
            async move {
                effect(&mut attempt).await?;
                if first {
                    let pid = D::fetch(attempt.conn(), "select pg_backend_pid()::text")
                        .await?
                        .unwrap_or_default();
                    world
                        .see
                        .run(&format!("select pg_terminate_backend({pid}, 10000)"))
                        .await;
                }
                attempt.succeed(Ack::status()).await
            }
        })
        .await
        .unwrap();
    assert!(!done.replayed());
    assert_eq!(
        (runs.load(SeqCst), world.see.effects(&request).await),
        (2, 1)
    );
}

for_each_driver!(
    a_deadlock_is_retried_and_both_commands_happen_once,
    a_transient_error_is_never_remembered_even_when_the_retries_are_used_up,
    an_error_that_does_not_pass_is_not_tried_again_and_burns_no_key,
    a_session_ended_by_the_administrator_is_retried,
);
