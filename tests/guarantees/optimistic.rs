//! A claim that is "known to be the first" does not look; wrong knowledge costs a rollback, never
//! a second effect.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use futures_util::future::join_all;
use pgonce::{Ack, Claim, ClaimKind, Error, Failure, Intent, Result};
use pgonce_tests::{
    TestDriver, World, effect, for_each_driver, for_each_driver_and_setting, intent, work,
};

fn first(key: &str) -> Intent {
    intent(key).known_first()
}

/// Runs an optimistic command; answers also how often its work ran.
async fn counted<D: TestDriver>(world: &World<D>, key: &str) -> (Result<pgonce::Done>, u32) {
    let runs = AtomicU32::new(0);
    let request = first(key);
    let end = world.once.run(&request, |attempt| {
        runs.fetch_add(1, SeqCst);
        work(attempt)
    });
    (end.await, runs.load(SeqCst))
}

async fn right_knowledge_needs_one_run_and_wrong_knowledge_replays<D: TestDriver>(world: World<D>) {
    let (done, runs) = counted(&world, "key").await;
    assert!(!done.unwrap().replayed());
    assert_eq!(runs, 1);
    let (done, runs) = counted(&world, "key").await;
    assert!(done.unwrap().replayed());
    assert_eq!(runs, 1, "one run for nothing, rolled back");
    assert_eq!(world.see.effects(&intent("key")).await, 1);
    assert_eq!(world.see.record(&intent("key"), "attempts").await, "1");
}

async fn wrong_knowledge_ends_as_the_truth_whatever_that_is<D: TestDriver>(world: World<D>) {
    let failing = async |key: &str, failure: Failure| {
        let _ = world
            .once
            .run::<(), _, _>(&intent(key), async |_| Err(failure.clone().into()))
            .await
            .unwrap_err();
    };
    failing("refused", Failure::permanent("no", "m")).await;
    failing("retry", Failure::transient("later", "m")).await;
    let Claim::Run(_lease) = world
        .once
        .lease(&intent("leased"), Duration::from_secs(60))
        .await
        .unwrap()
    else {
        panic!("fresh")
    };
    let (end, runs) = counted(&world, "refused").await;
    assert!(matches!(end, Err(Error::Refused(_))), "{end:?}");
    assert_eq!(runs, 1);
    let (end, runs) = counted(&world, "retry").await;
    let done = end.unwrap();
    assert_eq!((done.replayed(), done.attempts(), runs), (false, 2, 2));
    assert_eq!(world.see.effects(&intent("retry")).await, 1);
    let (end, _) = counted(&world, "leased").await;
    assert!(matches!(end, Err(Error::Busy { .. })), "{end:?}");
    assert_eq!(world.see.effects(&intent("leased")).await, 0);
}

async fn while_the_first_is_at_work_an_optimistic_twin_is_busy<D: TestDriver>(world: World<D>) {
    let Claim::Run(mut owner) = world.once.claim(&first("key")).await.unwrap() else {
        panic!("fresh")
    };
    assert_eq!((owner.kind(), owner.fence()), (ClaimKind::Fresh, 1));
    effect(&mut owner).await.unwrap();
    for twin in [first("key"), intent("key")] {
        assert!(matches!(
            world.once.claim(&twin).await.unwrap(),
            Claim::Busy { .. }
        ));
    }
    let _ = owner.succeed(Ack::status()).await.unwrap();
    let Claim::Run(mut blind) = world.once.claim(&first("key")).await.unwrap() else {
        panic!("it did not look")
    };
    effect(&mut blind).await.unwrap();
    assert!(matches!(
        blind.succeed(Ack::status()).await,
        Err(Error::LostRace(_))
    ));
    assert_eq!(world.see.effects(&intent("key")).await, 1);
    world.see.wait_until_clean().await;
}

async fn a_crowd_that_all_believe_to_be_first_makes_one_effect_in_every_setting<D: TestDriver>(
    world: World<D>,
) {
    let request = first("crowd");
    let answers = join_all((0..20).map(|_| world.run(&request))).await;
    for answer in &answers {
        assert!(
            matches!(answer, Ok(_) | Err(Error::Busy { .. })),
            "{} {:?}: {answer:?}",
            D::NAME,
            world.setting
        );
    }
    let new = answers
        .iter()
        .flatten()
        .filter(|done| !done.replayed())
        .count();
    assert_eq!(
        (new, world.see.effects(&request).await),
        (1, 1),
        "{:?}",
        world.setting
    );
}

for_each_driver!(
    right_knowledge_needs_one_run_and_wrong_knowledge_replays,
    wrong_knowledge_ends_as_the_truth_whatever_that_is,
    while_the_first_is_at_work_an_optimistic_twin_is_busy,
);
for_each_driver_and_setting!(
    a_crowd_that_all_believe_to_be_first_makes_one_effect_in_every_setting
);
