//! However many try at once, one effect and one answer.

use futures_util::future::join_all;
use pgonce::scope::{Busy, Contract};
use pgonce::{Ack, Claim, Error, Isolation};
use pgonce_tests::{
    SCOPE, Setting, TestDriver, World, digest_of, effect, for_each_driver,
    for_each_driver_and_setting, intent, work,
};
use std::time::Duration;

async fn of_100_first_attempts_one_acts_and_the_rest_replay_or_are_busy<D: TestDriver>(
    world: World<D>,
) {
    let once = world.another("crowd", 30, |b| b);
    let request = intent("crowd");
    let answers = join_all((0..100).map(|_| once.run(&request, work::<D>))).await;
    let mut first = 0;
    for answer in answers {
        match answer {
            Ok(done) if done.replayed() => assert_eq!(
                done.read::<serde_json::Value>().unwrap()["ordered"],
                "crowd"
            ),
            Ok(_) => first += 1,
            Err(Error::Busy { retry_after, .. }) => assert!(retry_after > Duration::ZERO),
            Err(other) => panic!("{other:?}"),
        }
    }
    assert_eq!(first, 1);
    assert_eq!(world.see.effects(&request).await, 1);
    assert_eq!(world.see.records(&request).await, 1);
    world.see.wait_until_clean().await;
}

async fn where_duplicates_wait_all_100_get_the_same_answer<D: TestDriver>(world: World<D>) {
    let contract = Contract::keep(Duration::from_secs(3600))
        .busy(Busy::Wait)
        .wait_timeout(Duration::from_secs(30));
    world.owner.define_scope(SCOPE, &contract).await.unwrap();
    let once = world.another("crowd", 20, |b| b);
    let request = intent("waiting crowd");
    let answers = join_all((0..100).map(|_| once.run(&request, work::<D>))).await;
    let mut first = 0;
    for answer in answers {
        let done = answer.unwrap();
        first += usize::from(!done.replayed());
        assert_eq!(
            done.read::<serde_json::Value>().unwrap(),
            serde_json::json!({"ordered": "waiting crowd"})
        );
    }
    assert_eq!(first, 1);
    assert_eq!(world.see.effects(&request).await, 1);
}

async fn a_crowd_over_many_intents_makes_one_effect_each_in_every_setting<D: TestDriver>(
    world: World<D>,
) {
    let contract = Contract::keep(Duration::from_secs(3600))
        .busy(Busy::Wait)
        .wait_timeout(Duration::from_secs(30));
    world.owner.define_scope(SCOPE, &contract).await.unwrap();
    let requests: Vec<_> = (0..5).map(|n| intent(&format!("request {n}"))).collect();
    let answers = join_all((0..40).map(|n| world.run(&requests[n % 5]))).await;
    for answer in answers {
        let _ = answer.unwrap_or_else(|error| panic!("{} {:?}: {error:?}", D::NAME, world.setting));
    }
    for request in &requests {
        assert_eq!(
            world.see.effects(request).await,
            1,
            "{} {:?}",
            D::NAME,
            world.setting
        );
    }
}

async fn a_rejected_duplicate_never_frees_the_owners_claim<D: TestDriver>(world: World<D>) {
    let request = intent("owned");
    let Claim::Run(mut owner) = world.once.claim(&request).await.unwrap() else {
        panic!("fresh")
    };
    effect(&mut owner).await.unwrap();
    for _ in 0..3 {
        assert!(matches!(
            world.once.claim(&request).await.unwrap(),
            Claim::Busy { .. }
        ));
        // Its session has rolled back and may be gone altogether.
        world
            .see
            .wait_until(
                "select count(*) = 1 from pg_stat_activity where datname = current_database() \
            and state = 'idle in transaction'",
            )
            .await;
    }
    let done = owner.succeed(Ack::value("mine").unwrap()).await.unwrap();
    assert!(!done.replayed());
    assert_eq!(world.see.effects(&request).await, 1);
}

async fn a_rejected_duplicate_of_leased_work_never_frees_the_lease<D: TestDriver>(world: World<D>) {
    let request = intent("leased");
    let Claim::Run(lease) = world
        .once
        .lease(&request, Duration::from_secs(60))
        .await
        .unwrap()
    else {
        panic!("fresh")
    };
    let before = world.see.dump().await;
    let Claim::Busy { retry_after } = world
        .once
        .lease(&request, Duration::from_secs(60))
        .await
        .unwrap()
    else {
        panic!("busy")
    };
    assert!(
        retry_after > Duration::from_secs(50) && retry_after <= Duration::from_secs(60),
        "{retry_after:?}"
    );
    assert!(matches!(
        world.once.claim(&request).await.unwrap(),
        Claim::Busy { .. }
    ));
    assert_eq!(world.see.dump().await, before);
    let _ = lease.succeed(Ack::status()).await.unwrap();
}

async fn the_loser_of_a_finished_race_leaves_nothing_and_replays<D: TestDriver>(world: World<D>) {
    // Another attempt that went past the advisory lock, as one can after a failover: the primary
    // key alone must decide. Successes are inserted in one way at first, in another while the
    // contract is known.
    for key in ["contract unknown", "contract known"] {
        let request = intent(key).known_first();
        let runs = std::sync::atomic::AtomicU32::new(0);
        let done = world
            .once
            .run(&request, |mut attempt| {
                let (world, runs) = (&world, &runs);
                async move {
                    effect(&mut attempt).await?;
                    if runs.fetch_add(1, std::sync::atomic::Ordering::SeqCst) == 0 {
                        // Somebody without our lock finishes first.
                        world.see.run(&format!("insert into effects values ('', 'orders.create', '{key}')")).await;
                        let fingerprint = digest_of(attempt.intent());
                        world.see.run(&format!("select finish('orders.create', '{key}', {fingerprint}, '\"theirs\"')")).await;
                    }
                    attempt.succeed(Ack::value("ours")?).await
                }
            })
            .await
            .unwrap();
        assert!(done.replayed());
        assert_eq!(done.read::<String>().unwrap(), "theirs");
        assert_eq!(world.see.effects(&request).await, 1);
        assert!(
            !world
                .run(&intent("teaches the contract"))
                .await
                .unwrap()
                .replayed()
                || key == "contract known"
        );
    }
}

#[tokio::test]
async fn a_hundred_at_serializable_make_one_effect_without_an_error() {
    let setting = Setting {
        major: None,
        isolation: Isolation::Serializable,
        pooler: false,
    };
    let world = World::<pgonce::driver::tokio_postgres::TokioPostgres>::in_setting(setting).await;
    of_100_first_attempts_one_acts_and_the_rest_replay_or_are_busy(world).await;
}

for_each_driver!(
    of_100_first_attempts_one_acts_and_the_rest_replay_or_are_busy,
    where_duplicates_wait_all_100_get_the_same_answer,
    a_rejected_duplicate_never_frees_the_owners_claim,
    a_rejected_duplicate_of_leased_work_never_frees_the_lease,
    the_loser_of_a_finished_race_leaves_nothing_and_replays,
);
for_each_driver_and_setting!(a_crowd_over_many_intents_makes_one_effect_each_in_every_setting);
