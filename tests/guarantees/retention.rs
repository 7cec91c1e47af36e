//! Answers are kept as long as was promised, and what comes after is what the contract says.

use std::time::Duration;

use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::scope::{AfterExpiry, Contract};
use pgonce::{Ack, Attempt, Claim, Error, Failure};
use pgonce_testkit::wait_until;
use pgonce_tests::{SCOPE, TestDriver, World, digest_of, for_each_driver, intent, work};

const HOUR: Duration = Duration::from_secs(3600);
const TIMEOUT: Duration = Duration::from_secs(20);

async fn after_its_retention_a_key_runs_again_where_the_contract_says_so<D: TestDriver>(
    world: World<D>,
) {
    world
        .owner
        .define_scope(SCOPE, &Contract::keep(HOUR))
        .await
        .unwrap();
    for purged in [false, true] {
        let request = intent(&format!("rerun {purged}"));
        assert!(!world.run(&request).await.unwrap().replayed());
        world
            .see
            .run("select pgonce._move_clock(interval '59 minutes')")
            .await;
        assert_eq!(world.owner.purge(100).await.unwrap(), 0);
        assert!(world.run(&request).await.unwrap().replayed());
        world
            .see
            .run("select pgonce._move_clock(interval '2 minutes')")
            .await;
        if purged {
            assert_eq!(world.owner.purge(100).await.unwrap(), 1);
        }
        let done = world.run(&request).await.unwrap();
        assert!(!done.replayed());
        assert_eq!(done.attempts(), 1);
        assert!(world.run(&request).await.unwrap().replayed());
        assert_eq!(world.see.effects(&request).await, 2);
        world
            .see
            .run("select pgonce._move_clock(interval '2 hours')")
            .await;
        assert!(world.owner.purge(100).await.unwrap() >= 1);
    }
}

/// Changed by another program: this one does not notice at once.
async fn a_running_service_takes_up_a_new_retention<D: TestDriver>(world: World<D>) {
    let define =
        |days: u32| format!("select pgonce.define_scope('{SCOPE}', interval '{days} days')");
    let (world, mut tries) = (&world, 0..);
    let mut days_of_a_new_one = || {
        let request = intent(&format!("try {}", tries.next().unwrap_or(0)));
        async move {
            let _ = world.run(&request).await.unwrap();
            world
                .see
                .record(&request, "extract(day from expires_at - first_at)")
                .await
        }
    };
    world.see.run(&define(3)).await;
    assert_eq!(days_of_a_new_one().await, "3");
    assert_eq!(days_of_a_new_one().await, "3");
    world.see.run(&define(5)).await;
    wait_until("the new retention", TIMEOUT, || {
        let days = days_of_a_new_one();
        async { days.await == "5" }
    })
    .await
    .unwrap();
}

async fn a_tombstone_says_gone_before_and_after_the_purge_until_it_ends<D: TestDriver>(
    world: World<D>,
) {
    let gone = Contract::keep(HOUR).after_expiry(AfterExpiry::Gone(Some(24 * HOUR)));
    world.owner.define_scope(SCOPE, &gone).await.unwrap();
    let (request, failed) = (intent("gone"), intent("gone too"));
    let _ = world.run(&request).await.unwrap();
    let _ = world
        .once
        .run::<(), _, _>(&failed, async |_| {
            Err(Failure::permanent("no", "never").into())
        })
        .await
        .unwrap_err();
    world
        .see
        .run("select pgonce._move_clock(interval '61 minutes')")
        .await;
    for purged in [0, 2, 0] {
        for request in [&request, &failed] {
            assert!(matches!(world.run(request).await, Err(Error::Gone(_))));
            assert_eq!(
                world
                    .run(&request.clone().known_first())
                    .await
                    .unwrap_err()
                    .code(),
                "P4031"
            );
            assert_eq!(
                world
                    .once
                    .lease(request, HOUR)
                    .await
                    .map(drop)
                    .unwrap_err()
                    .code(),
                "P4031"
            );
            assert!(world.once.answer(request).await.unwrap().is_none());
        }
        if purged > 0 {
            assert_eq!(world.owner.purge(100).await.unwrap(), purged);
            assert_eq!(
                world
                    .see
                    .record(&request, "answer is null and gone_at is not null")
                    .await,
                "t"
            );
        }
    }
    assert_eq!(world.see.effects(&request).await, 1);
    world
        .see
        .run("select pgonce._move_clock(interval '25 hours')")
        .await;
    assert!(!world.run(&request).await.unwrap().replayed());
    assert_eq!(world.owner.purge(100).await.unwrap(), 1);
    assert_eq!(world.see.effects(&request).await, 2);
}

async fn a_failure_of_a_rerun_is_recorded_over_what_has_expired<D: TestDriver>(world: World<D>) {
    for (key, failure, status) in [
        ("later", Failure::transient("down", "m"), "failed_retryable"),
        ("never", Failure::permanent("no", "m"), "failed_final"),
    ] {
        let request = intent(key);
        let _ = world.run(&request).await.unwrap();
        world
            .see
            .run("select pgonce._move_clock(interval '30 days')")
            .await;
        let runs = std::cell::Cell::new(0);
        let end = world
            .once
            .run::<(), _, _>(&request, async |_attempt| {
                runs.set(runs.get() + 1);
                Err(failure.clone().into())
            })
            .await;
        assert!(
            matches!(end, Err(Error::Refused(_) | Error::Failed(_))),
            "{end:?}"
        );
        assert_eq!(runs.get(), 1);
        assert_eq!(
            world.see.record(&request, "status::text || attempts").await,
            format!("{status}1")
        );
    }
    // But never over what has not.
    let _ = world.run(&intent("fresh")).await.unwrap();
    let print = digest_of(&intent("fresh"));
    let late = format!("select pgonce.fail('{SCOPE}', 'fresh', {print}, 1, false, 'late', 'm')");
    assert_eq!(world.see.code(&late).await, "P4011");
}

async fn a_tombstone_without_an_end_stays_for_ever<D: TestDriver>(world: World<D>) {
    world
        .owner
        .define_scope(
            SCOPE,
            &Contract::keep(HOUR).after_expiry(AfterExpiry::Gone(None)),
        )
        .await
        .unwrap();
    let _ = world.run(&intent("k")).await.unwrap();
    for _ in 0..3 {
        world
            .see
            .run("select pgonce._move_clock(interval '1000 years')")
            .await;
        assert!(world.owner.purge(100).await.unwrap() <= 1);
        assert_eq!(world.run(&intent("k")).await.unwrap_err().code(), "P4031");
    }
    assert_eq!(world.see.effects(&intent("k")).await, 1);
}

async fn a_changed_contract_leaves_promises_already_made<D: TestDriver>(world: World<D>) {
    // By one Once: another believes the contract that it has asked for a moment longer.
    world
        .owner
        .define_scope(SCOPE, &Contract::keep(48 * HOUR))
        .await
        .unwrap();
    let _ = world.owner.run(&intent("old"), work::<D>).await.unwrap();
    world
        .owner
        .define_scope(SCOPE, &Contract::keep(HOUR))
        .await
        .unwrap();
    let _ = world.owner.run(&intent("new"), work::<D>).await.unwrap();
    world
        .see
        .run("select pgonce._move_clock(interval '2 hours')")
        .await;
    assert_eq!(world.owner.purge(10).await.unwrap(), 1);
    assert!(
        world
            .owner
            .run(&intent("old"), work::<D>)
            .await
            .unwrap()
            .replayed()
    );
}

async fn a_contract_that_forgets_before_its_horizons_is_refused<D: TestDriver>(world: World<D>) {
    let long = 2 * HOUR;
    let keep = || Contract::keep(HOUR);
    for (contract, rule) in [
        (keep().client_retry(long), "retention covers every horizon"),
        (keep().redelivery(long), "retention covers every horizon"),
        (
            keep().reconciliation(long),
            "retention covers every horizon",
        ),
        (keep().audit(long), "retention covers every horizon"),
        (Contract::keep(Duration::ZERO), "retention is positive"),
        (keep().lease(Duration::ZERO), "lease is positive"),
        (
            keep().after_expiry(AfterExpiry::Gone(Some(Duration::ZERO))),
            "tombstone is positive",
        ),
    ] {
        let error = world.owner.define_scope("s", &contract).await.unwrap_err();
        assert_eq!(error.code(), "22023");
        assert!(error.to_string().contains(rule), "{error}");
    }
    assert_eq!(
        world
            .see
            .number("select count(*) from pgonce.scope where scope = 's'")
            .await,
        0
    );
    world
        .owner
        .define_scope("s", &keep().client_retry(HOUR).audit(HOUR))
        .await
        .unwrap();
    assert_eq!(
        world
            .owner
            .define_scope("", &keep())
            .await
            .unwrap_err()
            .code(),
        "P4000"
    );
    for (field, value) in [
        ("p_busy", "x"),
        ("p_storage", "x"),
        ("p_after_expiry", "x"),
        ("p_stale", "x"),
        ("p_key_source", "x"),
        ("p_boundary", "x"),
    ] {
        let sql =
            format!("select pgonce.define_scope('s', interval '1 day', {field} => '{value}')");
        assert_eq!(world.see.code(&sql).await, "22023", "{sql}");
    }
}

async fn a_tenants_own_contract_goes_before_the_general_one<D: TestDriver>(world: World<D>) {
    world
        .owner
        .define_scope(SCOPE, &Contract::keep(HOUR))
        .await
        .unwrap();
    world
        .owner
        .define_scope(SCOPE, &Contract::keep(3 * HOUR).tenant("acme"))
        .await
        .unwrap();
    for tenant in ["", "acme", "other"] {
        let _ = world
            .run(&intent("k").tenant(tenant).unwrap())
            .await
            .unwrap();
    }
    world
        .see
        .run("select pgonce._move_clock(interval '2 hours')")
        .await;
    assert_eq!(world.owner.purge(10).await.unwrap(), 2);
    assert!(
        world
            .run(&intent("k").tenant("acme").unwrap())
            .await
            .unwrap()
            .replayed()
    );
}

#[tokio::test]
async fn a_moved_clock_goes_on_running_and_a_set_one_stands_still() {
    let world = World::<TokioPostgres>::new().await;
    for _ in 0..20 {
        let moved = world
            .see
            .text("select pgonce._move_clock(interval '1 hour')")
            .await;
        world
            .see
            .wait_until(&format!("select pgonce.now() > '{moved}'"))
            .await;
    }
    assert_eq!(
        world
            .see
            .text("select pgonce.now() - clock_timestamp() > interval '19 hours'")
            .await,
        "t"
    );
    world
        .see
        .run("select pgonce._set_clock('2030-01-01 00:00:00+00')")
        .await;
    world
        .see
        .run("select pgonce._move_clock(interval '1 hour')")
        .await;
    assert_eq!(
        world
            .see
            .text("select pgonce.now() = '2030-01-01 01:00:00+00'")
            .await,
        "t"
    );
    world.see.run("select pgonce._reset_clock()").await;
    assert_eq!(
        world
            .see
            .text("select abs(extract(epoch from pgonce.now() - clock_timestamp())) < 1")
            .await,
        "t"
    );
}

async fn one_answer_can_be_kept_longer_or_shorter_but_never_below_the_horizons<D: TestDriver>(
    world: World<D>,
) {
    let contract = Contract::keep(24 * HOUR).client_retry(HOUR);
    world.owner.define_scope(SCOPE, &contract).await.unwrap();
    let kept = |time: Duration| Ack::status().keep_for(time);
    for (kind, keep) in [("fresh", 2 * HOUR), ("leased", 72 * HOUR), ("retry", HOUR)] {
        let request = intent(kind);
        let claimed = async || match world.once.claim(&request).await.unwrap() {
            Claim::Run(attempt) => attempt,
            other => panic!("{other:?}"),
        };
        let done = match kind {
            "leased" => {
                let Claim::Run(lease) = world.once.lease(&request, HOUR).await.unwrap() else {
                    panic!("fresh")
                };
                lease.succeed(kept(keep)).await
            }
            "retry" => {
                claimed()
                    .await
                    .fail(Failure::transient("later", "m"))
                    .await
                    .unwrap();
                claimed().await.succeed(kept(keep)).await
            }
            _ => claimed().await.succeed(kept(keep)).await,
        };
        assert!(!done.unwrap().replayed());
        let lasts = format!(
            "expires_at - coalesce(last_at, first_at) = interval '{} hours'",
            keep.as_secs() / 3600
        );
        assert_eq!(world.see.record(&request, &lasts).await, "t", "{kind}");
    }
    let refused = intent("refused");
    let no = Failure::permanent("no", "m").keep_for(3 * HOUR);
    let _ = world
        .once
        .run::<(), _, _>(&refused, async |_| Err(no.clone().into()))
        .await
        .unwrap_err();
    let lasts = "expires_at - last_at = interval '3 hours'";
    assert_eq!(world.see.record(&refused, lasts).await, "t");

    // Somebody may come back within the hour.
    let short = intent("short");
    let work = async |attempt: Attempt<D>| attempt.succeed(kept(HOUR / 2)).await;
    assert!(!world.once.run(&short, work).await.unwrap().replayed());
    let lasts = "expires_at - first_at = interval '1 hour'";
    assert_eq!(world.see.record(&short, lasts).await, "t");
    let never = world
        .once
        .run(&intent("never"), async |attempt: Attempt<D>| {
            attempt.succeed(kept(Duration::ZERO)).await
        })
        .await;
    assert_eq!(never.unwrap_err().code(), "22023");
    assert_eq!(world.see.records(&intent("never")).await, 0);
}

for_each_driver!(
    one_answer_can_be_kept_longer_or_shorter_but_never_below_the_horizons,
    after_its_retention_a_key_runs_again_where_the_contract_says_so,
    a_running_service_takes_up_a_new_retention,
    a_tombstone_says_gone_before_and_after_the_purge_until_it_ends,
    a_failure_of_a_rerun_is_recorded_over_what_has_expired,
    a_tombstone_without_an_end_stays_for_ever,
    a_changed_contract_leaves_promises_already_made,
    a_contract_that_forgets_before_its_horizons_is_refused,
    a_tenants_own_contract_goes_before_the_general_one,
);
