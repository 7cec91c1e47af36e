//! Failures are recorded under their fence, retried or refused as they say, and reported alike.

use std::time::Duration;

use pgonce::{Ack, Claim, ClaimKind, Error, Failure};
use pgonce_tests::{
    TestDriver, World, digest_of, effect, for_each_driver, for_each_driver_and_setting, intent,
};

const MINUTE: Duration = Duration::from_secs(60);

async fn fails<D: TestDriver>(world: &World<D>, key: &str, failure: &Failure) -> Error {
    let request = intent(key);
    let run = world.once.run::<(), _, _>(&request, |mut attempt| {
        let failure = failure.clone();
        async move {
            effect(&mut attempt).await?;
            Err(failure.into())
        }
    });
    run.await.unwrap_err()
}

async fn a_permanent_failure_is_replayed_every_time_and_its_work_leaves_nothing<D: TestDriver>(
    world: World<D>,
) {
    let declined = Failure::permanent("card_declined", "the bank said no")
        .with_answer(&serde_json::json!({"n": 0}))
        .unwrap();
    for round in 0..4 {
        let other = Failure::permanent("another", "is never asked");
        let Error::Refused(outcome) =
            fails(&world, "card", if round == 0 { &declined } else { &other }).await
        else {
            panic!("refused")
        };
        assert_eq!(outcome, declined);
    }
    let Claim::Refused(outcome) = world.once.claim(&intent("card")).await.unwrap() else {
        panic!("refused")
    };
    assert_eq!(outcome, declined);
    let Claim::Refused(outcome) = world.once.lease(&intent("card"), MINUTE).await.unwrap() else {
        panic!("refused")
    };
    assert_eq!(outcome, declined);
    assert_eq!(world.see.effects(&intent("card")).await, 0);
    assert_eq!(world.see.record(&intent("card"), "attempts").await, "1");
}

/// PostgreSQL cannot store U+0000: the text loses it, and the failure is recorded all the same.
async fn a_failure_whose_text_holds_a_nul_is_recorded<D: TestDriver>(world: World<D>) {
    let odd = Failure::permanent("no\u{0}", "a\u{0}b");
    for key in ["nul", "nul"] {
        let Error::Refused(outcome) = fails(&world, key, &odd).await else {
            panic!("refused")
        };
        assert!(!outcome.code().contains('\0') && !outcome.message().contains('\0'));
    }
    let request = intent("nul leased");
    let run = world
        .once
        .run_leased::<(), _, _>(&request, |_| async { Err(odd.clone().into()) });
    assert!(matches!(run.await.unwrap_err(), Error::Refused(_)));
    for request in [intent("nul"), request] {
        assert_eq!(world.see.record(&request, "status").await, "failed_final");
        assert_eq!(world.see.effects(&request).await, 0);
    }
}

async fn a_retryable_failure_is_retried_and_then_succeeds_once<D: TestDriver>(world: World<D>) {
    let request = intent("provider");
    let down = Failure::transient("provider_down", "try later");
    for attempts in 1..=3 {
        let Error::Failed(outcome) = fails(&world, "provider", &down).await else {
            panic!("failed")
        };
        assert_eq!(outcome, down);
        assert_eq!(
            world.see.record(&request, "status::text || attempts").await,
            format!("failed_retryable{attempts}")
        );
    }
    let Claim::Run(mut attempt) = world.once.claim(&request).await.unwrap() else {
        panic!("retry")
    };
    assert_eq!((attempt.kind(), attempt.attempts()), (ClaimKind::Retry, 4));
    effect(&mut attempt).await.unwrap();
    let _ = attempt.succeed(Ack::status()).await.unwrap();
    assert_eq!(world.see.effects(&request).await, 1);
    assert_eq!(
        world.see.record(&request, "status::text || attempts").await,
        "succeeded4"
    );
    assert_eq!(
        world
            .see
            .record(&request, "failure_code is null and failure_message is null")
            .await,
        "t"
    );
    assert_eq!(world.run(&request).await.unwrap().attempts(), 4);
}

async fn a_failure_outlives_the_transaction_that_failed<D: TestDriver>(world: World<D>) {
    // The statement error has already doomed the transaction when the failure is reported.
    let request = intent("doomed");
    let run = world.once.run::<(), _, _>(&request, async |mut attempt| {
        effect(&mut attempt).await?;
        let failed = D::exec(attempt.conn(), "select 1/0").await;
        assert_eq!(failed.unwrap_err().code(), "22012");
        Err(Failure::permanent("bad_number", "divided by zero").into())
    });
    assert!(matches!(run.await, Err(Error::Refused(_))));
    assert_eq!(
        world
            .see
            .record(&intent("doomed"), "status || failure_code")
            .await,
        "failed_finalbad_number"
    );
    assert_eq!(world.see.effects(&intent("doomed")).await, 0);

    let Claim::Run(mut attempt) = world.once.claim(&intent("by hand")).await.unwrap() else {
        panic!("fresh")
    };
    effect(&mut attempt).await.unwrap();
    attempt
        .fail(Failure::transient("later", "not now"))
        .await
        .unwrap();
    assert_eq!(
        world.see.record(&intent("by hand"), "status").await,
        "failed_retryable"
    );
    assert_eq!(world.see.effects(&intent("by hand")).await, 0);
    world.see.wait_until_clean().await;
}

async fn a_leased_failure_of_either_kind_is_recorded<D: TestDriver>(world: World<D>) {
    for (key, failure) in [
        ("later", Failure::transient("down", "m")),
        ("never", Failure::permanent("no", "m")),
    ] {
        let Claim::Run(lease) = world.once.lease(&intent(key), MINUTE).await.unwrap() else {
            panic!("fresh")
        };
        lease.fail(failure).await.unwrap();
    }
    let Claim::Run(lease) = world.once.lease(&intent("later"), MINUTE).await.unwrap() else {
        panic!("retry")
    };
    assert_eq!((lease.kind(), lease.attempts()), (ClaimKind::Retry, 2));
    let mut attempt = lease.begin().await.unwrap();
    effect(&mut attempt).await.unwrap();
    let _ = attempt.succeed(Ack::status()).await.unwrap();
    assert_eq!(world.see.effects(&intent("later")).await, 1);
    assert!(matches!(
        world.once.claim(&intent("never")).await.unwrap(),
        Claim::Refused(_)
    ));
}

async fn a_failure_that_lost_its_race_gives_way_to_the_answer<D: TestDriver>(world: World<D>) {
    // Between the rollback and the record of the failure another attempt succeeds.
    let request = intent("raced");
    let Claim::Run(first) = world.once.claim(&request).await.unwrap() else {
        panic!("fresh")
    };
    first.abandon().await.unwrap();
    let _ = world.run(&request).await.unwrap();
    let fingerprint = digest_of(&request);
    let late = format!(
        "select pgonce.fail('orders.create', 'raced', {fingerprint}, 1, false, 'late', 'm')"
    );
    let before = world.see.dump().await;
    assert_eq!(world.see.code(&late).await, "P4011");
    assert_eq!(world.see.dump().await, before);
    assert!(world.run(&request).await.unwrap().replayed());
}

async fn every_record_says_who_when_how_often_and_for_what_request<D: TestDriver>(world: World<D>) {
    let once = world.another("shop", 2, |b| b.owner("pod-7"));
    for mode in ["atomic", "leased", "failing"] {
        let request = intent(mode).correlation("request-77");
        match mode {
            "atomic" => drop(
                once.run(&request, async |a| a.succeed(Ack::status()).await)
                    .await
                    .unwrap(),
            ),
            "leased" => {
                let Claim::Run(lease) = once.lease(&request, MINUTE).await.unwrap() else {
                    panic!("fresh")
                };
                assert_eq!(world.see.record(&request, "owner").await, "pod-7");
                let _ = lease.succeed(Ack::status()).await.unwrap();
            }
            _ => drop(
                once.run::<(), _, _>(
                    &request,
                    async |_| Err(Failure::permanent("no", "m").into()),
                )
                .await
                .unwrap_err(),
            ),
        }
        assert_eq!(
            world
                .see
                .record(&request, "owner || correlation_id || attempts")
                .await,
            "pod-7request-771",
            "{mode}"
        );
        let times = "first_at <= coalesce(last_at, first_at) and first_at > pgonce.now() - interval '1 minute'";
        assert_eq!(world.see.record(&request, times).await, "t", "{mode}");
    }
    // Without a name given, a lease still says which session took it.
    let named = world.another("billing", 1, |b| b);
    let Claim::Run(_lease) = named.lease(&intent("unnamed"), MINUTE).await.unwrap() else {
        panic!("fresh")
    };
    assert!(
        world
            .see
            .record(&intent("unnamed"), "owner")
            .await
            .starts_with("billing:127.0.0.1")
    );
}

async fn failures_retries_and_leases_work_in_every_setting<D: TestDriver>(world: World<D>) {
    let later = Failure::transient("later", "not now");
    assert!(matches!(fails(&world, "a", &later).await, Error::Failed(_)));
    assert!(!world.run(&intent("a")).await.unwrap().replayed());
    assert!(world.run(&intent("a")).await.unwrap().replayed());
    assert!(matches!(
        fails(&world, "b", &Failure::permanent("no", "m")).await,
        Error::Refused(_)
    ));
    assert!(matches!(
        world.run(&intent("b")).await,
        Err(Error::Refused(_))
    ));
    let Claim::Run(mut lease) = world.once.lease(&intent("c"), MINUTE).await.unwrap() else {
        panic!("fresh")
    };
    lease.heartbeat().await.unwrap();
    assert!(matches!(
        world.once.lease(&intent("c"), MINUTE).await.unwrap(),
        Claim::Busy { .. }
    ));
    let mut attempt = lease.begin().await.unwrap();
    effect(&mut attempt).await.unwrap();
    let _ = attempt.succeed(Ack::value("c").unwrap()).await.unwrap();
    assert!(world.run(&intent("c")).await.unwrap().replayed());
    for (key, effects) in [("a", 1), ("b", 0), ("c", 1)] {
        assert_eq!(
            world.see.effects(&intent(key)).await,
            effects,
            "{key} {:?}",
            world.setting
        );
    }
    assert_eq!(world.owner.stuck(10).await.unwrap().len(), 0);
    world.once.flush().await.unwrap();
}

/// What the work has ended by itself is not recorded again, and the work not done again.
async fn leased_work_that_ended_its_lease_and_then_fails_runs_once<D: TestDriver>(world: World<D>) {
    let down = Failure::transient("provider_down", "try later");
    for end in ["fail", "release"] {
        let request = intent(end);
        let mut runs = 0;
        let run = world.once.run_leased::<(), _, _>(&request, |lease| {
            runs += 1;
            let down = down.clone();
            async move {
                match end {
                    "fail" => lease.fail(down.clone()).await?,
                    _ => lease.release().await?,
                }
                Err(down.into())
            }
        });
        let ended = run.await.unwrap_err();
        assert!(
            matches!(&ended, Error::Failed(why) if *why == down),
            "{end}: {ended:?}"
        );
        assert_eq!(runs, 1, "{end}");
        assert_eq!(
            world.see.record(&request, "status").await,
            "failed_retryable",
            "{end}"
        );
        let Claim::Run(lease) = world.once.lease(&request, MINUTE).await.unwrap() else {
            panic!("{end}")
        };
        assert_eq!(lease.kind(), ClaimKind::Retry, "{end}");
        let _ = lease.succeed(Ack::status()).await.unwrap();
    }
}

for_each_driver!(
    leased_work_that_ended_its_lease_and_then_fails_runs_once,
    a_permanent_failure_is_replayed_every_time_and_its_work_leaves_nothing,
    a_retryable_failure_is_retried_and_then_succeeds_once,
    a_failure_whose_text_holds_a_nul_is_recorded,
    a_failure_outlives_the_transaction_that_failed,
    a_leased_failure_of_either_kind_is_recorded,
    a_failure_that_lost_its_race_gives_way_to_the_answer,
    every_record_says_who_when_how_often_and_for_what_request,
);
for_each_driver_and_setting!(failures_retries_and_leases_work_in_every_setting);
