//! A key means one request on every path, and names one intent of one tenant and scope.

use std::time::Duration;

use pgonce::{Ack, Claim, Error, Failure, Intent};
use pgonce_tests::{
    SCOPE, TestDriver, World, effect, for_each_driver, for_each_driver_and_setting, intent, work,
};
use serde_json::json;

const MINUTE: Duration = Duration::from_secs(60);

/// The same key, another request.
fn other(key: &str) -> Intent {
    Intent::new(SCOPE, key, &json!({"item": "bicycle"})).unwrap()
}

/// Every way to ask ends in a conflict and changes nothing.
async fn conflicts<D: TestDriver>(world: &World<D>, key: &str) {
    let before = world.see.dump().await;
    for request in [other(key), other(key).known_first()] {
        let run = world.once.run(&request, work::<D>).await;
        assert!(matches!(run, Err(Error::Conflict(_))), "{key}: {run:?}");
    }
    assert_eq!(
        world
            .once
            .claim(&other(key))
            .await
            .map(drop)
            .unwrap_err()
            .code(),
        "P4002",
        "{key}"
    );
    assert_eq!(
        world
            .once
            .lease(&other(key), MINUTE)
            .await
            .map(drop)
            .unwrap_err()
            .code(),
        "P4002",
        "{key}"
    );
    assert!(
        world.once.answer(&other(key)).await.unwrap().is_none(),
        "{key}"
    );
    assert_eq!(world.see.dump().await, before, "{key}");
    assert_eq!(
        world
            .see
            .number("select count(*) from effects where note is not null")
            .await,
        0
    );
    world.see.wait_until_clean().await;
}

async fn another_request_under_a_used_key_is_a_conflict_on_every_path<D: TestDriver>(
    world: World<D>,
) {
    let _ = world.run(&intent("succeeded")).await.unwrap();
    conflicts(&world, "succeeded").await;

    let Claim::Run(lease) = world
        .once
        .lease(&intent("in flight"), MINUTE)
        .await
        .unwrap()
    else {
        panic!("fresh")
    };
    conflicts(&world, "in flight").await;
    world
        .see
        .run("update pgonce.intent set lease_until = pgonce.now() where key = 'in flight'")
        .await;
    conflicts(&world, "in flight").await;
    let _ = lease.succeed(Ack::status()).await.unwrap();
    conflicts(&world, "in flight").await;

    for (key, failure) in [
        ("later", Failure::transient("down", "later")),
        ("never", Failure::permanent("no", "never")),
    ] {
        let failed = world
            .once
            .run::<(), _, _>(&intent(key), async |_attempt| Err(failure.clone().into()))
            .await;
        assert!(failed.is_err());
        conflicts(&world, key).await;
    }
    assert_eq!(world.see.effects(&intent("succeeded")).await, 1);
}

async fn another_request_during_an_atomic_attempt_is_busy_and_then_a_conflict<D: TestDriver>(
    world: World<D>,
) {
    let Claim::Run(mut owner) = world.once.claim(&intent("key")).await.unwrap() else {
        panic!("fresh")
    };
    effect(&mut owner).await.unwrap();
    assert!(matches!(
        world.once.claim(&other("key")).await.unwrap(),
        Claim::Busy { .. }
    ));
    let _ = owner.succeed(Ack::status()).await.unwrap();
    conflicts(&world, "key").await;
}

async fn the_same_key_of_two_tenants_or_scopes_never_meets<D: TestDriver>(world: World<D>) {
    let request = json!({"item": "book"});
    let mut requests = Vec::new();
    // Names that run together when they are only joined.
    for tenant in ["", "a", "ab", "b", "a\u{1f}b"] {
        for scope in ["a", "b", "ba", "\u{1f}", "*"] {
            for key in ["a", "ba", "b\u{1f}a"] {
                requests.push(
                    Intent::new(scope, key, &request)
                        .unwrap()
                        .tenant(tenant)
                        .unwrap(),
                );
            }
        }
    }
    for request in &requests {
        assert!(!world.run(request).await.unwrap().replayed(), "{request:?}");
    }
    for request in &requests {
        assert!(world.run(request).await.unwrap().replayed(), "{request:?}");
        assert_eq!(world.see.effects(request).await, 1);
    }
    // Another tenant's use of the key is not a conflict, and reveals nothing.
    let elsewhere = Intent::new("a", "a", &json!("other"))
        .unwrap()
        .tenant("unheard of")
        .unwrap();
    assert!(!world.run(&elsewhere).await.unwrap().replayed());
}

async fn a_tenants_lease_does_not_make_another_tenant_busy<D: TestDriver>(world: World<D>) {
    let mine = intent("key").tenant("mine").unwrap();
    let theirs = intent("key").tenant("theirs").unwrap();
    let Claim::Run(held) = world.once.lease(&mine, MINUTE).await.unwrap() else {
        panic!("fresh")
    };
    let Claim::Run(attempt) = world.once.claim(&theirs).await.unwrap() else {
        panic!("fresh")
    };
    let _ = attempt.succeed(Ack::status()).await.unwrap();
    held.release().await.unwrap();
}

async fn a_conflict_is_a_conflict_in_every_setting<D: TestDriver>(world: World<D>) {
    let _ = world.run(&intent("used")).await.unwrap();
    let end = world.once.run(&other("used"), work::<D>).await;
    assert!(
        matches!(end, Err(Error::Conflict(_))),
        "{:?}: {end:?}",
        world.setting
    );
    assert!(world.run(&intent("used")).await.unwrap().replayed());
    assert_eq!(world.see.effects(&intent("used")).await, 1);
}

for_each_driver!(
    another_request_under_a_used_key_is_a_conflict_on_every_path,
    another_request_during_an_atomic_attempt_is_busy_and_then_a_conflict,
    the_same_key_of_two_tenants_or_scopes_never_meets,
    a_tenants_lease_does_not_make_another_tenant_busy,
);
for_each_driver_and_setting!(a_conflict_is_a_conflict_in_every_setting);
