//! After a takeover the old holder can do nothing any more.

use std::time::Duration;

use pgonce::{Ack, Claim, ClaimKind, Failure, Lease};
use pgonce_tests::{TestDriver, World, effect, for_each_driver, intent};

const MINUTE: Duration = Duration::from_secs(60);

async fn lease<D: TestDriver>(world: &World<D>, key: &str) -> Lease<D> {
    match world.once.lease(&intent(key), MINUTE).await.unwrap() {
        Claim::Run(lease) => lease,
        other => panic!("{other:?}"),
    }
}

async fn expire<D: TestDriver>(world: &World<D>, key: &str) {
    let past = "update pgonce.intent set lease_until = pgonce.now() - interval '1 second'";
    world.see.run(&format!("{past} where key = '{key}'")).await;
}

/// What became of the intent after the old holder's lease ran out.
#[derive(Debug, Clone, Copy)]
enum Since {
    TakenOver,
    Succeeded,
    FailedForNow,
    FailedForGood,
}

/// A holder whose intent was taken over.
async fn zombie<D: TestDriver>(world: &World<D>, key: &str, since: Since) -> Lease<D> {
    let old = lease(world, key).await;
    expire(world, key).await;
    let new = lease(world, key).await;
    assert_eq!(new.kind(), ClaimKind::Takeover);
    assert!(new.fence() > old.fence());
    match since {
        Since::TakenOver => {}
        Since::Succeeded => drop(new.succeed(Ack::value("new").unwrap()).await.unwrap()),
        Since::FailedForNow => new.fail(Failure::transient("down", "later")).await.unwrap(),
        Since::FailedForGood => new.fail(Failure::permanent("no", "never")).await.unwrap(),
    }
    old
}

async fn a_zombies_every_act_is_turned_away_and_changes_nothing<D: TestDriver>(world: World<D>) {
    for since in [
        Since::TakenOver,
        Since::Succeeded,
        Since::FailedForNow,
        Since::FailedForGood,
    ] {
        let key = |act: &str| format!("{act} {since:?}");
        let mut heart = zombie(&world, &key("heart"), since).await;
        let writer = zombie(&world, &key("writer"), since).await;
        let success = zombie(&world, &key("success"), since).await;
        let failure = zombie(&world, &key("failure"), since).await;
        let retry = zombie(&world, &key("retry"), since).await;
        let release = zombie(&world, &key("release"), since).await;
        let before = world.see.dump().await;
        let ends = [
            heart.heartbeat().await,
            writer.begin().await.map(drop),
            success.succeed(Ack::status()).await.map(drop),
            failure.fail(Failure::permanent("late", "too late")).await,
            retry.fail(Failure::transient("late", "too late")).await,
            release.release().await,
        ];
        for (act, end) in ends.into_iter().enumerate() {
            assert_eq!(
                end.unwrap_err().code(),
                "P4012",
                "act {act} after {since:?}"
            );
        }
        assert_eq!(world.see.dump().await, before, "{since:?}");
    }
    world.see.wait_until_clean().await;
}

async fn a_zombies_business_write_cannot_commit_after_a_takeover<D: TestDriver>(world: World<D>) {
    let old = lease(&world, "writer").await;
    // It passed the guard before the lease ran out: then the takeover waits for its end.
    let mut attempt = old.begin().await.unwrap();
    effect(&mut attempt).await.unwrap();
    expire_is_blocked(&world).await;
    let _ = attempt.succeed(Ack::value("old").unwrap()).await.unwrap();
    let Claim::Replay(done) = world.once.lease(&intent("writer"), MINUTE).await.unwrap() else {
        panic!("replay")
    };
    assert_eq!(done.read::<String>().unwrap(), "old");
    assert_eq!(world.see.effects(&intent("writer")).await, 1);
}

/// No other transaction can change the row that a guarded write holds.
async fn expire_is_blocked<D: TestDriver>(world: &World<D>) {
    let sql = "set lock_timeout = '20ms'; update pgonce.intent set lease_until = pgonce.now() where key = 'writer'";
    assert_eq!(world.see.code(sql).await, "55P03");
    world.see.run("reset lock_timeout").await;
}

async fn an_expired_lease_that_nobody_took_over_may_still_be_used<D: TestDriver>(world: World<D>) {
    for act in ["success", "failure", "heartbeat", "write", "release"] {
        let mut late = lease(&world, act).await;
        expire(&world, act).await;
        match act {
            "success" => drop(late.succeed(Ack::status()).await.unwrap()),
            "failure" => late.fail(Failure::permanent("no", "never")).await.unwrap(),
            "heartbeat" => late.heartbeat().await.unwrap(),
            "write" => late.begin().await.unwrap().abandon().await.unwrap(),
            _ => late.release().await.unwrap(),
        }
    }
    assert_eq!(
        world.see.record(&intent("success"), "status").await,
        "succeeded"
    );
    assert_eq!(
        world
            .see
            .record(&intent("heartbeat"), "lease_until > pgonce.now()")
            .await,
        "t"
    );
    assert_eq!(
        world.see.record(&intent("release"), "failure_code").await,
        "released"
    );
}

async fn an_atomic_takeover_shuts_the_old_holder_out<D: TestDriver>(world: World<D>) {
    let request = intent("atomic");
    let old = lease(&world, "atomic").await;
    expire(&world, "atomic").await;
    let done = world.run(&request).await.unwrap();
    assert!(!done.replayed());
    assert_eq!(done.attempts(), 2);
    assert_eq!(
        old.succeed(Ack::value("old").unwrap())
            .await
            .unwrap_err()
            .code(),
        "P4012"
    );
    assert_eq!(world.see.effects(&request).await, 1);
}

async fn a_rolled_back_atomic_takeover_leaves_the_old_holder_in_place<D: TestDriver>(
    world: World<D>,
) {
    let old = lease(&world, "back").await;
    expire(&world, "back").await;
    let Claim::Run(attempt) = world.once.claim(&intent("back")).await.unwrap() else {
        panic!("takeover")
    };
    assert_eq!(attempt.kind(), ClaimKind::Takeover);
    attempt.abandon().await.unwrap();
    let _ = old.succeed(Ack::value("old").unwrap()).await.unwrap();
}

for_each_driver!(
    a_zombies_every_act_is_turned_away_and_changes_nothing,
    a_zombies_business_write_cannot_commit_after_a_takeover,
    an_expired_lease_that_nobody_took_over_may_still_be_used,
    an_atomic_takeover_shuts_the_old_holder_out,
    a_rolled_back_atomic_takeover_leaves_the_old_holder_in_place,
);
