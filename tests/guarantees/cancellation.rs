//! What is rolled back, dropped, cancelled anywhere, or crashed leaves nothing; the same intent
//! then happens once.

use std::time::Duration;

use pgonce::driver::sqlx::Sqlx;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::{Ack, Claim, Error, Failure, Once};
use pgonce_testkit::{Postgres, wait_until};
use pgonce_tests::{
    Observer, TestDriver, World, cancelled_everywhere, effect, for_each_driver, install, intent,
    work,
};

const MINUTE: Duration = Duration::from_secs(60);
const TIMEOUT: Duration = Duration::from_secs(20);

/// Nothing of the intent is there, and it then happens exactly once.
async fn happens_once<D: TestDriver>(world: &World<D>, key: &str) {
    let request = intent(key);
    // The connection of what was cancelled ends on its own time.
    world.see.wait_until_clean().await;
    let _ = world.run(&request).await.unwrap();
    assert!(world.run(&request).await.unwrap().replayed(), "{key}");
    assert_eq!(world.see.effects(&request).await, 1, "{key}");
}

async fn a_command_cancelled_at_any_point_happens_once_afterwards<D: TestDriver>(world: World<D>) {
    let key = |polls| format!("run {polls}");
    let cut = cancelled_everywhere(
        |polls| {
            let world = &world;
            async move { world.run(&intent(&key(polls))).await.unwrap() }
        },
        async |polls| happens_once(&world, &key(polls)).await,
    )
    .await;
    assert!(cut >= 3, "{cut} points are too few to mean anything");
}

async fn a_replay_cancelled_at_any_point_leaves_the_connections_clean<D: TestDriver>(
    world: World<D>,
) {
    let request = intent("replayed");
    let _ = world.run(&request).await.unwrap();
    let cut = cancelled_everywhere(
        |_| async { world.run(&request).await.unwrap() },
        async |_| world.see.wait_until_clean().await,
    )
    .await;
    assert!(cut >= 1);
    assert_eq!(world.see.effects(&request).await, 1);
}

async fn a_failing_command_cancelled_at_any_point_fails_the_same_afterwards<D: TestDriver>(
    world: World<D>,
) {
    let key = |polls| format!("fail {polls}");
    let fail = async |polls: usize| {
        let request = intent(&key(polls));
        let failed = world
            .once
            .run::<(), _, _>(&request, |mut attempt| async move {
                effect(&mut attempt).await?;
                Err(Failure::permanent("declined", "the bank said no").into())
            });
        assert_eq!(failed.await.unwrap_err().code(), "P4030");
    };
    cancelled_everywhere(&fail, async |polls| {
        world.see.wait_until_clean().await;
        fail(polls).await;
        assert_eq!(world.see.effects(&intent(&key(polls))).await, 0);
        assert_eq!(
            world.see.record(&intent(&key(polls)), "status").await,
            "failed_final"
        );
    })
    .await;
}

async fn a_lease_cancelled_at_any_point_is_taken_at_most_once<D: TestDriver>(world: World<D>) {
    let none_is_torn = "select (select count(*) from effects where key like 'lease %') \
                = (select count(*) from pgonce.intent where key like 'lease %' and status = 'succeeded')";
    cancelled_everywhere(
        |polls| {
            let world = &world;
            async move {
                let request = intent(&format!("lease {polls}"));
                let Claim::Run(lease) = world.once.lease(&request, MINUTE).await.unwrap() else { panic!("fresh") };
                let mut attempt = lease.begin().await.unwrap();
                effect(&mut attempt).await.unwrap();
                attempt.succeed(Ack::status()).await.unwrap()
            }
        },
        async |polls| {
            let request = intent(&format!("lease {polls}"));
            // What was cancelled may still be on the wire: it may yet take the lease, and hold it
            // for its length. Here that length is cut short until the retry is answered.
            wait_until("the retry is no longer busy", TIMEOUT, async || {
                // The effect is there if and only if the intent has succeeded, at any moment.
                assert_eq!(world.see.text(none_is_torn).await, "t", "{}", request.key());
                world.see.run("update pgonce.intent set lease_until = pgonce.now() where status = 'processing'").await;
                match world.run(&request).await {
                    Ok(_) => true,
                    Err(Error::Busy { .. }) => false,
                    Err(error) => panic!("{}: {error}", request.key()),
                }
            })
            .await
            .unwrap();
            happens_once(&world, request.key()).await;
        },
    )
    .await;
}

async fn an_attempt_that_is_dropped_or_abandoned_leaves_nothing<D: TestDriver>(world: World<D>) {
    for act in ["drop", "abandon", "error", "panic"] {
        let request = intent(act);
        if act == "error" {
            let failed = world
                .once
                .run::<(), _, _>(&request, |mut attempt| async move {
                    effect(&mut attempt).await?;
                    Err(Error::work("no such item"))
                });
            assert!(matches!(failed.await, Err(Error::Work(_))));
        } else {
            let Claim::Run(mut attempt) = world.once.claim(&request).await.unwrap() else {
                panic!("fresh")
            };
            effect(&mut attempt).await.unwrap();
            match act {
                "drop" => drop(attempt),
                "abandon" => attempt.abandon().await.unwrap(),
                _ => {
                    let caught =
                        std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
                            let _attempt = attempt;
                            std::panic::resume_unwind(Box::new("the work panicked"));
                        }));
                    assert!(caught.is_err());
                }
            }
        }
        world.see.wait_until_clean().await;
        assert_eq!(world.see.effects(&request).await, 0, "{act}");
        assert_eq!(world.see.records(&request).await, 0, "{act}");
        happens_once(&world, act).await;
    }
}

async fn cancelled_connections_never_come_back_and_never_drain_the_pool<D: TestDriver>(
    world: World<D>,
) {
    let once = world.another("small", 2, |b| b);
    for round in 0..10 {
        let Claim::Run(attempt) = once.claim(&intent(&format!("cut {round}"))).await.unwrap()
        else {
            panic!("fresh")
        };
        drop(attempt);
    }
    let _ = once.run(&intent("after"), work::<D>).await.unwrap();
    world.see.wait_until_clean().await;
}

async fn crashed<D: TestDriver>() {
    let server = Postgres::builder().start().await.unwrap();
    server.template("crash", install).await.unwrap();
    let database = server.database_from("crash").await.unwrap();
    // Even where somebody gave up durability for the role: what is acknowledged must stay.
    Observer::connect(&database.url())
        .await
        .run("alter role postgres set synchronous_commit = off")
        .await;
    let once = Once::builder(D::connect(&database.url(), 4))
        .build()
        .unwrap();

    let (open, done) = (intent("open"), intent("done"));
    let Claim::Run(mut attempt) = once.claim(&open).await.unwrap() else {
        panic!("fresh")
    };
    effect(&mut attempt).await.unwrap();
    let Claim::Run(lease) = once.lease(&intent("leased"), MINUTE).await.unwrap() else {
        panic!("fresh")
    };
    let answer = once.run(&done, work::<D>).await.unwrap();
    server.crash().await.unwrap();
    assert!(attempt.succeed(Ack::status()).await.is_err());
    server.start_again().await.unwrap();

    let see = Observer::connect(&database.url()).await;
    assert_eq!(see.effects(&open).await, 0);
    assert_eq!(see.records(&open).await, 0);
    assert!(!once.run(&open, work::<D>).await.unwrap().replayed());
    assert_eq!(see.effects(&open).await, 1);
    let again = once.run(&done, work::<D>).await.unwrap();
    assert!(again.replayed());
    assert_eq!(again.ack(), answer.ack());
    assert_eq!(see.effects(&done).await, 1);
    // The lease outlives the crash, and its fence with it.
    let _ = lease.succeed(Ack::status()).await.unwrap();
}

#[tokio::test]
async fn a_crash_of_the_server_leaves_what_was_acknowledged_and_nothing_else() {
    crashed::<Sqlx>().await;
    crashed::<TokioPostgres>().await;
}

for_each_driver!(
    a_command_cancelled_at_any_point_happens_once_afterwards,
    a_replay_cancelled_at_any_point_leaves_the_connections_clean,
    a_failing_command_cancelled_at_any_point_fails_the_same_afterwards,
    a_lease_cancelled_at_any_point_is_taken_at_most_once,
    an_attempt_that_is_dropped_or_abandoned_leaves_nothing,
    cancelled_connections_never_come_back_and_never_drain_the_pool,
);
