//! Answers are kept as long as was promised, and what comes after is what the contract says.

use std::time::Duration;

use futures_util::future::join;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::scope::{AfterExpiry, Contract};
use pgonce::{Ack, Claim, Error, Failure};
use pgonce_testkit::wait_until_lock_waited;
use pgonce_tests::{SCOPE, TestDriver, World, for_each_driver, intent, work};

const HOUR: Duration = Duration::from_secs(3600);

async fn after_its_retention_a_key_runs_again_where_the_contract_says_so<D: TestDriver>(
    world: World<D>,
) {
    world
        .once
        .define_scope(SCOPE, &Contract::keep(HOUR))
        .await
        .unwrap();
    for purged in [false, true] {
        let wish = intent(&format!("rerun {purged}"));
        assert!(!world.run(&wish).await.unwrap().replayed());
        world
            .see
            .run("select pgonce.move_clock(interval '59 minutes')")
            .await;
        assert_eq!(world.once.purge(100).await.unwrap(), 0);
        assert!(world.run(&wish).await.unwrap().replayed());
        world
            .see
            .run("select pgonce.move_clock(interval '2 minutes')")
            .await;
        if purged {
            assert_eq!(world.once.purge(100).await.unwrap(), 1);
        }
        let done = world.run(&wish).await.unwrap();
        assert!(!done.replayed());
        assert_eq!(done.attempts(), 1);
        assert!(world.run(&wish).await.unwrap().replayed());
        assert_eq!(world.see.effects(&wish).await, 2);
        world
            .see
            .run("select pgonce.move_clock(interval '2 hours')")
            .await;
        assert!(world.once.purge(100).await.unwrap() >= 1);
    }
}

async fn a_tombstone_says_gone_before_and_after_the_purge_until_it_ends<D: TestDriver>(
    world: World<D>,
) {
    let gone = Contract::keep(HOUR).after_expiry(AfterExpiry::Gone(Some(24 * HOUR)));
    world.once.define_scope(SCOPE, &gone).await.unwrap();
    let (wish, failed) = (intent("gone"), intent("gone too"));
    let _ = world.run(&wish).await.unwrap();
    let _ = world
        .once
        .run(&failed, async |_| {
            Err(Failure::refused("no", "never").into())
        })
        .await
        .unwrap_err();
    world
        .see
        .run("select pgonce.move_clock(interval '61 minutes')")
        .await;
    for purged in [0, 2, 0] {
        for wish in [&wish, &failed] {
            assert!(matches!(world.run(wish).await, Err(Error::Gone(_))));
            assert_eq!(
                world
                    .run(&wish.clone().known_first())
                    .await
                    .unwrap_err()
                    .code(),
                "P4031"
            );
            assert_eq!(
                world
                    .once
                    .lease(wish, HOUR)
                    .await
                    .map(drop)
                    .unwrap_err()
                    .code(),
                "P4031"
            );
            assert!(world.once.answer(wish).await.unwrap().is_none());
        }
        if purged > 0 {
            assert_eq!(world.once.purge(100).await.unwrap(), purged);
            assert_eq!(
                world
                    .see
                    .record(&wish, "answer is null and gone_at is not null")
                    .await,
                "t"
            );
        }
    }
    assert_eq!(world.see.effects(&wish).await, 1);
    world
        .see
        .run("select pgonce.move_clock(interval '25 hours')")
        .await;
    assert!(!world.run(&wish).await.unwrap().replayed());
    assert_eq!(world.once.purge(100).await.unwrap(), 1);
    assert_eq!(world.see.effects(&wish).await, 2);
}

async fn a_tombstone_without_an_end_stays_for_ever<D: TestDriver>(world: World<D>) {
    world
        .once
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
            .run("select pgonce.move_clock(interval '1000 years')")
            .await;
        assert!(world.once.purge(100).await.unwrap() <= 1);
        assert_eq!(world.run(&intent("k")).await.unwrap_err().code(), "P4031");
    }
    assert_eq!(world.see.effects(&intent("k")).await, 1);
}

async fn a_purge_never_touches_what_is_unfinished_or_in_its_retention<D: TestDriver>(
    world: World<D>,
) {
    let Claim::Run(lease) = world
        .once
        .lease(&intent("processing"), Duration::from_secs(1))
        .await
        .unwrap()
    else {
        panic!("fresh")
    };
    let _ = world
        .once
        .run(&intent("failed"), async |_| {
            Err(Failure::retryable("x", "m").into())
        })
        .await
        .unwrap_err();
    let _ = world.run(&intent("finished")).await.unwrap();
    world
        .see
        .run("select pgonce.move_clock(interval '100 years')")
        .await;
    let _ = world.run(&intent("young")).await.unwrap();
    assert_eq!(world.once.purge(100).await.unwrap(), 1);
    for key in ["processing", "failed", "young"] {
        assert_eq!(world.see.records(&intent(key)).await, 1, "{key}");
    }
    assert_eq!(world.see.records(&intent("finished")).await, 0);
    // A century later the holder can still finish, as nobody took over.
    let _ = lease.succeed(Ack::status()).await.unwrap();
}

async fn a_purge_takes_no_more_than_its_limit_and_leaves_nothing_behind<D: TestDriver>(
    world: World<D>,
) {
    world.see.run("select pgonce.succeed('s', n::text, '\\x01', 1, to_jsonb(repeat('x', 100))) from generate_series(1, 2500) n").await;
    world
        .see
        .run("select pgonce.move_clock(interval '30 days')")
        .await;
    for expected in [1000, 1000, 500, 0, 0] {
        assert_eq!(world.once.purge(1000).await.unwrap(), expected);
    }
    // Also from the middle of the table, and one by one.
    world
        .see
        .run("select pgonce.succeed('s', n::text, '\\x01', 1) from generate_series(1, 5) n")
        .await;
    world
        .see
        .run("select pgonce.move_clock(interval '30 days')")
        .await;
    for expected in [1, 1, 1, 1, 1, 0] {
        assert_eq!(world.once.purge(1).await.unwrap(), expected);
    }
}

async fn two_purges_at_once_never_take_the_same_record_nor_wait<D: TestDriver>(world: World<D>) {
    world
        .see
        .run("select pgonce.succeed('s', n::text, '\\x01', 1) from generate_series(1, 30) n")
        .await;
    world
        .see
        .run("select pgonce.move_clock(interval '30 days')")
        .await;
    let first = world.observer().await;
    first.run("begin").await;
    assert_eq!(first.number("select pgonce.purge(10)").await, 10);
    assert_eq!(world.once.purge(100).await.unwrap(), 0);
    first.run("commit").await;
    assert_eq!(world.once.purge(100).await.unwrap(), 20);
    world
        .see
        .run("select pgonce.succeed('s', n::text, '\\x01', 1) from generate_series(1, 500) n")
        .await;
    world
        .see
        .run("select pgonce.move_clock(interval '30 days')")
        .await;
    let mut total = 0;
    while world.see.number("select count(*) from pgonce.intent").await > 0 {
        let (a, b) = join(world.once.purge(40), world.once.purge(40)).await;
        total += a.unwrap() + b.unwrap();
    }
    assert_eq!(total, 500);
}

async fn a_purge_racing_retries_never_opens_a_second_effect_inside_retention<D: TestDriver>(
    world: World<D>,
) {
    let wishes: Vec<_> = (0..30).map(|n| intent(&format!("kept {n}"))).collect();
    world
        .see
        .run("select pgonce.succeed('old', n::text, '\\x01', 1) from generate_series(1, 2000) n")
        .await;
    world
        .see
        .run("select pgonce.move_clock(interval '6 days 23 hours')")
        .await;
    for wish in &wishes {
        let _ = world.run(wish).await.unwrap();
    }
    world
        .see
        .run("select pgonce.move_clock(interval '2 hours')")
        .await;
    let purging = async {
        let mut total = 0;
        while total < 2000 {
            total += world.once.purge(50).await.unwrap();
        }
    };
    let retrying = async {
        for round in 0..90 {
            assert!(world.run(&wishes[round % 30]).await.unwrap().replayed());
        }
    };
    join(purging, retrying).await;
    for wish in &wishes {
        assert_eq!(world.see.effects(wish).await, 1);
    }
}

async fn a_retry_that_meets_a_purge_in_the_act_runs_once<D: TestDriver>(world: World<D>) {
    let wish = intent("expired");
    let _ = world.run(&wish).await.unwrap();
    world
        .see
        .run("select pgonce.move_clock(interval '30 days')")
        .await;
    let purger = world.observer().await;
    purger.run("begin").await;
    assert_eq!(purger.number("select pgonce.purge()").await, 1);
    let once = world.another("retry", 2, |b| b);
    let (done, ()) = join(once.run(&wish, work::<D>), async {
        wait_until_lock_waited(&world.url(), "retry").await.unwrap();
        purger.run("commit").await;
    })
    .await;
    assert!(!done.unwrap().replayed());
    assert_eq!(world.see.effects(&wish).await, 2);
    assert_eq!(world.see.records(&wish).await, 1);
}

async fn a_changed_contract_leaves_promises_already_made<D: TestDriver>(world: World<D>) {
    world
        .once
        .define_scope(SCOPE, &Contract::keep(48 * HOUR))
        .await
        .unwrap();
    let _ = world.run(&intent("old")).await.unwrap();
    world
        .once
        .define_scope(SCOPE, &Contract::keep(HOUR))
        .await
        .unwrap();
    let _ = world.run(&intent("new")).await.unwrap();
    world
        .see
        .run("select pgonce.move_clock(interval '2 hours')")
        .await;
    assert_eq!(world.once.purge(10).await.unwrap(), 1);
    assert!(world.run(&intent("old")).await.unwrap().replayed());
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
        let error = world.once.define_scope("s", &contract).await.unwrap_err();
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
        .once
        .define_scope("s", &keep().client_retry(HOUR).audit(HOUR))
        .await
        .unwrap();
    assert_eq!(
        world
            .once
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
        .once
        .define_scope(SCOPE, &Contract::keep(HOUR))
        .await
        .unwrap();
    world
        .once
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
        .run("select pgonce.move_clock(interval '2 hours')")
        .await;
    assert_eq!(world.once.purge(10).await.unwrap(), 2);
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
            .text("select pgonce.move_clock(interval '1 hour')")
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
        .run("select pgonce.set_clock('2030-01-01 00:00:00+00')")
        .await;
    world
        .see
        .run("select pgonce.move_clock(interval '1 hour')")
        .await;
    assert_eq!(
        world
            .see
            .text("select pgonce.now() = '2030-01-01 01:00:00+00'")
            .await,
        "t"
    );
    world.see.run("select pgonce.reset_clock()").await;
    assert_eq!(
        world
            .see
            .text("select abs(extract(epoch from pgonce.now() - clock_timestamp())) < 1")
            .await,
        "t"
    );
}

for_each_driver!(
    after_its_retention_a_key_runs_again_where_the_contract_says_so,
    a_tombstone_says_gone_before_and_after_the_purge_until_it_ends,
    a_tombstone_without_an_end_stays_for_ever,
    a_purge_never_touches_what_is_unfinished_or_in_its_retention,
    a_purge_takes_no_more_than_its_limit_and_leaves_nothing_behind,
    two_purges_at_once_never_take_the_same_record_nor_wait,
    a_purge_racing_retries_never_opens_a_second_effect_inside_retention,
    a_retry_that_meets_a_purge_in_the_act_runs_once,
    a_changed_contract_leaves_promises_already_made,
    a_contract_that_forgets_before_its_horizons_is_refused,
    a_tenants_own_contract_goes_before_the_general_one,
);
