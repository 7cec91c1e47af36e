//! Named locks: for what no row stands for, until the end of the transaction.

use std::time::Duration;

use futures_util::future::join;
use pgonce::{Ack, Attempt, Claim};
use pgonce_tests::{SCOPE, TestDriver, World, for_each_driver, intent};
use tokio::time::Instant;

const NAME: &str = "close:merchant-7:2026-01-31";
const LONG: Duration = Duration::from_secs(20);

async fn claim<D: TestDriver>(world: &World<D>, key: &str, tenant: &str) -> Attempt<D> {
    match world
        .once
        .claim(&intent(key).tenant(tenant).unwrap())
        .await
        .unwrap()
    {
        Claim::Run(attempt) => attempt,
        other => panic!("{other:?}"),
    }
}

async fn a_lock_is_held_by_one_until_its_transaction_ends_in_any_way<D: TestDriver>(
    world: World<D>,
) {
    let mut second = claim(&world, "second", "").await;
    for end in ["succeed", "abandon", "drop", "fail"] {
        let mut first = claim(&world, end, "").await;
        assert!(first.try_lock(NAME).await.unwrap());
        assert!(
            first.try_lock(NAME).await.unwrap(),
            "the holder may ask again"
        );
        assert!(!second.try_lock(NAME).await.unwrap());
        match end {
            "succeed" => drop(first.succeed(Ack::status()).await.unwrap()),
            "abandon" => first.abandon().await.unwrap(),
            "fail" => first
                .fail(pgonce::Failure::transient("later", "m"))
                .await
                .unwrap(),
            _ => drop(first),
        }
        assert!(second.lock(NAME, LONG).await.unwrap(), "{end}");
        second.abandon().await.unwrap();
        second = claim(&world, "second", "").await;
    }
    drop(second);
    world.see.wait_until_clean().await;
}

async fn a_wait_for_a_lock_is_bounded_and_leaves_the_transaction_usable<D: TestDriver>(
    world: World<D>,
) {
    let mut holder = claim(&world, "holder", "").await;
    assert!(holder.lock(NAME, LONG).await.unwrap());
    let mut waiter = claim(&world, "waiter", "").await;
    let started = Instant::now();
    assert!(!waiter.lock(NAME, Duration::from_millis(100)).await.unwrap());
    assert!(started.elapsed() >= Duration::from_millis(100));
    // Neither the transaction nor its own timeout was spoilt.
    let timeout = D::fetch(waiter.conn(), "select current_setting('lock_timeout')")
        .await
        .unwrap();
    assert_eq!(timeout.unwrap(), "0");
    let _ = waiter.succeed(Ack::status()).await.unwrap();
}

async fn a_waiter_for_a_lock_is_woken_when_it_is_free<D: TestDriver>(world: World<D>) {
    let mut holder = claim(&world, "holder", "").await;
    assert!(holder.try_lock(NAME).await.unwrap());
    let waiting = world.another("waiter", 1, |b| b);
    let Claim::Run(mut waiter) = waiting.claim(&intent("waiter")).await.unwrap() else {
        panic!("fresh")
    };
    let (got, ()) = join(waiter.lock(NAME, LONG), async {
        world.see.wait_until_asleep("waiter").await;
        holder.abandon().await.unwrap();
    })
    .await;
    assert!(got.unwrap());
    let timeout = D::fetch(waiter.conn(), "select current_setting('lock_timeout')")
        .await
        .unwrap();
    assert_eq!(timeout.unwrap(), "0");
}

async fn locks_of_tenants_and_of_intents_are_apart<D: TestDriver>(world: World<D>) {
    let mut attempts = Vec::new();
    for tenant in ["", "a", "b"] {
        let mut attempt = claim(&world, "key", tenant).await;
        assert!(attempt.try_lock(NAME).await.unwrap(), "{tenant:?}");
        // Names that spell an intent's own.
        for name in ["key", SCOPE, "orders.create\u{1f}key", "other"] {
            assert!(attempt.try_lock(name).await.unwrap(), "{tenant:?} {name:?}");
        }
        attempts.push(attempt);
    }
    let other = claim(&world, "other", "").await;
    let _ = other.succeed(Ack::status()).await.unwrap();
    for attempt in attempts {
        let _ = attempt.succeed(Ack::status()).await.unwrap();
    }
}

async fn a_bad_name_or_wait_is_an_error<D: TestDriver>(world: World<D>) {
    for (name, wait) in [
        ("", LONG),
        (&*"x".repeat(256), LONG),
        (NAME, Duration::ZERO),
        (NAME, Duration::from_secs(3_000_000)),
    ] {
        // A key for each: the error comes before the server has let go of the one before.
        let mut attempt = claim(&world, &format!("bad {wait:?} {}", name.len()), "").await;
        assert_eq!(
            attempt.lock(name, wait).await.unwrap_err().code(),
            "22023",
            "{name} {wait:?}"
        );
    }
}

for_each_driver!(
    a_lock_is_held_by_one_until_its_transaction_ends_in_any_way,
    a_wait_for_a_lock_is_bounded_and_leaves_the_transaction_usable,
    a_waiter_for_a_lock_is_woken_when_it_is_free,
    locks_of_tenants_and_of_intents_are_apart,
    a_bad_name_or_wait_is_an_error,
);
