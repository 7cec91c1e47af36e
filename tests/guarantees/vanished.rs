//! What a vanished holder did outside is not known, and stays so until somebody finds out: a holder that takes over and then fails, gives up or
//! vanishes in turn leaves the next attempt a takeover, not a mere retry.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::{Ack, Claim, ClaimKind, Error, Failure, Lease};
use pgonce_tests::{Observer, SCOPE, TestDriver, World, digest_of, for_each_driver, intent};

const MINUTE: Duration = Duration::from_secs(60);
const EXPIRE: &str = "update pgonce.intent set lease_until = pgonce.now() - interval '1 second' where lease_until is not null";

async fn lease<D: TestDriver>(world: &World<D>, key: &str) -> Lease<D> {
    match world.once.lease(&intent(key), MINUTE).await.unwrap() {
        Claim::Run(lease) => lease,
        other => panic!("{other:?}"),
    }
}

/// A lease taken over from a holder that vanished.
async fn taken_over<D: TestDriver>(world: &World<D>, key: &str) -> Lease<D> {
    drop(lease(world, key).await);
    world.see.run(EXPIRE).await;
    let lease = lease(world, key).await;
    assert_eq!(lease.kind(), ClaimKind::Takeover, "{key}");
    lease
}

async fn a_takeover_that_does_not_finish_leaves_a_takeover<D: TestDriver>(world: World<D>) {
    let down = || Failure::transient("down", "later");
    taken_over(&world, "released")
        .await
        .release()
        .await
        .unwrap();
    taken_over(&world, "forgotten")
        .await
        .forget()
        .await
        .unwrap();
    taken_over(&world, "failed")
        .await
        .fail(down())
        .await
        .unwrap();
    drop(taken_over(&world, "vanished too").await);
    world.see.run(EXPIRE).await;
    for key in ["released", "forgotten", "failed", "vanished too"] {
        for _ in 0..3 {
            let next = lease(&world, key).await;
            assert_eq!(next.kind(), ClaimKind::Takeover, "{key}");
            next.fail(down()).await.unwrap();
        }
        let end = lease(&world, key).await.succeed(Ack::status()).await;
        assert!(end.is_ok(), "{key}");
    }
    // Nobody vanished here: a retry, as ever.
    lease(&world, "calm").await.fail(down()).await.unwrap();
    assert_eq!(lease(&world, "calm").await.kind(), ClaimKind::Retry);
    world.see.wait_until_clean().await;
}

async fn a_failure_of_an_atomic_attempt_leaves_a_takeover_too<D: TestDriver>(world: World<D>) {
    let request = intent("atomic");
    drop(lease(&world, "atomic").await);
    world.see.run(EXPIRE).await;
    let Claim::Run(attempt) = world.once.claim(&request).await.unwrap() else {
        panic!("a takeover")
    };
    attempt
        .fail(Failure::transient("down", "later"))
        .await
        .unwrap();
    for _ in 0..2 {
        let Claim::Run(next) = world.once.claim(&request).await.unwrap() else {
            panic!("a takeover")
        };
        assert_eq!(next.kind(), ClaimKind::Takeover);
        next.fail(Failure::transient("down", "later"))
            .await
            .unwrap();
    }
    world.see.wait_until_clean().await;
}

for_each_driver! {
    a_takeover_that_does_not_finish_leaves_a_takeover,
    a_failure_of_an_atomic_attempt_leaves_a_takeover_too,
}

async fn outcome(see: &Observer, key: &str) -> String {
    let print = digest_of(&intent(key));
    see.text(&format!(
        "select outcome from pgonce.claim('{SCOPE}', '{key}', {print}, '1 minute')"
    ))
    .await
}

fn act(act: &str, key: &str, force: bool) -> String {
    format!("select pgonce.intervene('{act}', '{SCOPE}', '{key}', 'ticket 1', p_force => {force})")
}

#[tokio::test]
async fn only_an_operator_who_insists_ends_the_doubt() {
    let world = World::<TokioPostgres>::new().await;
    for key in ["unforced", "forced", "alive"] {
        drop(lease(&world, key).await);
    }
    world.see.run(EXPIRE).await;
    // The contract lets anybody take over: a release changes nothing of what is known.
    world.see.run(&act("release", "unforced", false)).await;
    assert_eq!(outcome(&world.see, "unforced").await, "takeover");
    world.see.run(&act("release", "forced", true)).await;
    assert_eq!(outcome(&world.see, "forced").await, "retry");
    // After a failure there is no lease any more, and the doubt can be ended all the same.
    let down = Failure::transient("down", "later");
    lease(&world, "alive").await.fail(down).await.unwrap();
    let release = act("release", "alive", false);
    assert_eq!(world.see.code(&release).await, "55000");
    // The refusal of an act on a live holder names the one before, too.
    let held = lease(&world, "alive").await;
    assert_eq!(held.kind(), ClaimKind::Takeover);
    assert_eq!(world.see.code(&release).await, "55000");
    held.release().await.unwrap();
    world.see.run(&act("release", "alive", true)).await;
    assert_eq!(outcome(&world.see, "alive").await, "retry");
    let forced = "select string_agg(key || ' ' || forced, ', ' order by key) from pgonce.operator_act where act = 'release'";
    assert_eq!(
        world.see.text(forced).await,
        "alive true, forced true, unforced false"
    );
}

#[tokio::test]
async fn a_contract_that_became_stricter_holds_for_what_had_a_holder_that_vanished() {
    let world = World::<TokioPostgres>::new().await;
    for (stale, expected, classified) in [
        ("hold", "busy", "needs_manual_action"),
        ("refuse", "refused", "abandoned"),
    ] {
        world
            .see
            .run(&format!("select pgonce.define_scope('{stale}', '1 day')"))
            .await;
        let claim =
            format!("select outcome from pgonce.claim('{stale}', 'k', '\\x01', '1 minute')");
        assert_eq!(world.see.text(&claim).await, "fresh");
        world.see.run(EXPIRE).await;
        let fence = world
            .see
            .number(&format!(
                "select fence from pgonce.claim('{stale}', 'k', '\\x01', '1 minute')"
            ))
            .await;
        world
            .see
            .run(&format!(
                "select pgonce.fail('{stale}', 'k', '\\x01', {fence}, true, 'down', 'later'); \
                 select pgonce.define_scope('{stale}', '1 day', p_stale => '{stale}')"
            ))
            .await;
        let stuck = format!("select classification from pgonce.stuck where scope = '{stale}'");
        assert_eq!(world.see.text(&stuck).await, classified);
        assert_eq!(world.see.text(&claim).await, expected);
    }
    let abandoned = "select failure_code from pgonce.intent where scope = 'refuse'";
    assert_eq!(world.see.text(abandoned).await, "abandoned");
}

/// The record of an attempt is gone, as after a failover that lost it: the call that ran the work knows that it did.
#[tokio::test]
async fn a_call_that_ran_the_work_takes_over_from_itself() {
    let world = World::<TokioPostgres>::new().await;
    let request = intent("own");
    let kinds = std::sync::Mutex::new(Vec::new());
    let (kept, see) = (&kinds, &world.see);
    let done = world
        .once
        .run_leased(&request, |lease| async move {
            kept.lock().unwrap().push(lease.kind());
            if lease.attempts() == 1 && kept.lock().unwrap().len() == 1 {
                see.run("delete from pgonce.intent").await;
            }
            lease.succeed(Ack::status()).await
        })
        .await;
    assert!(done.is_ok(), "{done:?}");
    assert_eq!(
        *kinds.lock().unwrap(),
        [ClaimKind::Fresh, ClaimKind::Takeover]
    );
}

/// Given back, the next claim would be as if nobody had ever run the work: the lease runs out instead.
#[tokio::test]
async fn a_call_that_ran_the_work_does_not_give_it_back() {
    let world = World::<TokioPostgres>::new().await;
    for (key, end) in [("failed", "fail"), ("released", "release")] {
        let request = intent(key);
        let tries = AtomicUsize::new(0);
        let (tries, see) = (&tries, &world.see);
        let done = world
            .once
            .run_leased::<(), _, _>(&request, |lease| async move {
                if tries.fetch_add(1, Relaxed) == 0 {
                    see.run("delete from pgonce.intent").await;
                    return lease.succeed(&()).await;
                }
                match end {
                    "fail" => Err(Failure::transient("down", "later").into()),
                    _ => {
                        lease.release().await?;
                        Err(Failure::transient("down", "later").into())
                    }
                }
            })
            .await;
        assert!(matches!(done, Err(Error::Failed(_))), "{end}: {done:?}");
        assert_eq!(outcome(see, key).await, "busy", "{end}");
        see.run(EXPIRE).await;
        assert_eq!(outcome(see, key).await, "takeover", "{end}");
    }
}

/// The work was seen outside, whatever an intent says that it asked for on its way.
#[tokio::test]
async fn what_leased_work_meets_does_not_deny_it() {
    let world = World::<TokioPostgres>::new().await;
    let other = intent("other");
    let held = lease(&world, "other").await;
    let (once, other) = (&world.once, &other);
    let busy = once
        .run_leased::<(), _, _>(&intent("asks for what is held"), |_lease| async move {
            let asked = once.run(other, async |tx| tx.succeed(&()).await);
            asked.await
        })
        .await;
    assert!(matches!(busy, Err(Error::Uncertain(_))), "{busy:?}");
    drop(held);
}

#[tokio::test]
async fn a_record_that_may_stand_for_an_effect_is_not_removed_without_force() {
    let world = World::<TokioPostgres>::new().await;
    for (key, removal, failure) in [
        (
            "may be retried",
            "evict",
            Failure::transient("down", "later"),
        ),
        ("refused", "evict", Failure::permanent("no", "never")),
        ("refused again", "retry", Failure::permanent("no", "never")),
    ] {
        taken_over(&world, key).await.fail(failure).await.unwrap();
        assert_eq!(
            world.see.code(&act(removal, key, false)).await,
            "55000",
            "{key}"
        );
        let verdict = format!("select verdict from pgonce.find('{key}', 'intents')");
        let verdict = world.see.text(&verdict).await;
        if key == "may be retried" {
            assert!(
                verdict.starts_with("An earlier holder vanished"),
                "{verdict}"
            );
        }
        world.see.run(&act(removal, key, true)).await;
        assert_eq!(outcome(&world.see, key).await, "fresh");
    }
}

/// A probe that found nothing leaves a retry: `recovered.rs`.
#[tokio::test]
async fn recovery_that_asks_no_probe_leaves_a_takeover() {
    let world = World::<TokioPostgres>::new().await;
    let queued = "select pgonce.define_scope('queued', '1 day', p_retry_queue => 'again'); \
                  select from pgonce.claim('queued', 'k', '\\x01', '1 minute')";
    world.see.run(queued).await;
    world.see.run(EXPIRE).await;
    let recovered = world.owner.recovery().run_once().await.unwrap();
    assert_eq!(recovered.released, 1, "{recovered:?}");
    let claim = "select outcome from pgonce.claim('queued', 'k', '\\x01', '1 minute')";
    assert_eq!(world.see.text(claim).await, "takeover");
}

#[tokio::test]
async fn the_history_goes_with_the_record_whatever_ended_it() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    see.run("select pgonce.define_scope('s', '1 day'), pgonce.claim('s', 'k', '\\x01', '1 minute'); select pgonce._move_clock('2 minutes'); \
             select pgonce.intervene('release', 's', 'k', p_reason => 'it did nothing'); select pgonce.define_scope('s', '1 day', p_stale => 'refuse')")
        .await;
    let claim = "select outcome from pgonce.claim('s', 'k', '\\x01', '1 minute')";
    assert_eq!(see.text(claim).await, "refused");
    let left = "select (select count(*) from pgonce.intent) || ' ' || (select count(*) from pgonce.attempt)";
    assert_eq!(see.text(left).await, "1 2");
    see.run("select pgonce._move_clock('2 days'); select pgonce.purge()")
        .await;
    assert_eq!(see.text(left).await, "0 0");
}
