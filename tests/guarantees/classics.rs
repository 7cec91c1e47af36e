//! The classic tests of idempotency, in every setting: both PostgreSQLs, every isolation level,
//! directly and through a transaction pooler.

use futures_util::future::join;
use pgonce::{Ack, Claim, Error, Intent};
use pgonce_tests::{TestDriver, World, effect, for_each_driver_and_setting, intent, work};
use serde_json::json;

async fn a_sequential_duplicate_replays<D: TestDriver>(world: World<D>) {
    let request = intent("sequential");
    let first = world.run(&request).await.unwrap();
    for _ in 0..3 {
        let again = world.run(&request).await.unwrap();
        assert!(
            again.replayed() && again.ack() == first.ack(),
            "{:?}",
            world.setting
        );
    }
    assert_eq!(world.see.effects(&request).await, 1, "{:?}", world.setting);
    let payload = Intent::new("orders.create", "sequential", &json!({"item": "bicycle"})).unwrap();
    assert!(
        matches!(world.run(&payload).await, Err(Error::Conflict(_))),
        "{:?}",
        world.setting
    );
}

async fn two_sessions_racing_make_one_effect<D: TestDriver>(world: World<D>) {
    let (left, right) = (
        world.another("left", 1, |b| b),
        world.another("right", 1, |b| b),
    );
    for round in 0..10 {
        let request = intent(&format!("race {round}"));
        let (one, two) = join(
            left.run(&request, work::<D>),
            right.run(&request, work::<D>),
        )
        .await;
        for end in [&one, &two] {
            assert!(
                matches!(end, Ok(_) | Err(Error::Busy { .. })),
                "{:?}: {end:?}",
                world.setting
            );
        }
        assert_eq!(world.see.effects(&request).await, 1, "{:?}", world.setting);
    }
}

async fn a_forced_error_leaves_neither_marker_nor_effect<D: TestDriver>(world: World<D>) {
    let request = intent("forced");
    let end = world.once.run(&request, async |mut attempt| {
        effect(&mut attempt).await?;
        D::exec(attempt.conn(), "select 1/0").await?;
        attempt.succeed(Ack::status()).await
    });
    assert_eq!(end.await.unwrap_err().code(), "22012");
    assert_eq!(
        (
            world.see.records(&request).await,
            world.see.effects(&request).await
        ),
        (0, 0),
        "{:?}",
        world.setting
    );
    assert!(!world.run(&request).await.unwrap().replayed());
}

async fn a_crash_after_the_write_and_before_the_answer_leaves_nothing<D: TestDriver>(
    world: World<D>,
) {
    let request = intent("crash");
    let Claim::Run(mut attempt) = world.once.claim(&request).await.unwrap() else {
        panic!("fresh")
    };
    effect(&mut attempt).await.unwrap();
    drop(attempt);
    world.see.wait_until_clean().await;
    assert!(!world.run(&request).await.unwrap().replayed());
    assert_eq!(world.see.effects(&request).await, 1, "{:?}", world.setting);
}

async fn a_full_replay_of_everything_changes_nothing<D: TestDriver>(world: World<D>) {
    let requests: Vec<_> = (0..20).map(|n| intent(&format!("message {n}"))).collect();
    for request in &requests {
        let _ = world.run(request).await.unwrap();
    }
    let before = world.see.dump().await;
    for request in requests.iter().rev() {
        assert!(world.run(request).await.unwrap().replayed());
    }
    assert_eq!(world.see.dump().await, before);
    assert_eq!(world.see.number("select count(*) from effects").await, 20);
    // And after everything has expired it is all new once more.
    world
        .see
        .run("select pgonce._move_clock(interval '8 days')")
        .await;
    for request in &requests {
        assert!(
            !world.run(request).await.unwrap().replayed(),
            "{:?}",
            world.setting
        );
    }
    assert_eq!(world.see.number("select count(*) from effects").await, 40);
}

for_each_driver_and_setting!(
    a_sequential_duplicate_replays,
    two_sessions_racing_make_one_effect,
    a_forced_error_leaves_neither_marker_nor_effect,
    a_crash_after_the_write_and_before_the_answer_leaves_nothing,
    a_full_replay_of_everything_changes_nothing,
);
