//! A purge takes what is finished and expired, and nothing else, whatever goes on meanwhile.

use std::time::Duration;

use futures_util::future::join;
use pgonce::{Ack, Claim, Failure};
use pgonce_tests::{TestDriver, World, for_each_driver, intent, work};

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
        .run::<(), _, _>(&intent("failed"), async |_| {
            Err(Failure::transient("x", "m").into())
        })
        .await
        .unwrap_err();
    let _ = world.run(&intent("finished")).await.unwrap();
    world
        .see
        .run("select pgonce._move_clock(interval '100 years')")
        .await;
    let _ = world.run(&intent("young")).await.unwrap();
    assert_eq!(world.owner.purge(100).await.unwrap(), 1);
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
    world.see.run("select finish('s', n::text, '\\x01', to_jsonb(repeat('x', 100))) from generate_series(1, 2500) n").await;
    world
        .see
        .run("select pgonce._move_clock(interval '30 days')")
        .await;
    for expected in [1000, 1000, 500, 0, 0] {
        assert_eq!(world.owner.purge(1000).await.unwrap(), expected);
    }
    // Also from the middle of the table, and one by one.
    world
        .see
        .run("select finish('s', n::text, '\\x01') from generate_series(1, 5) n")
        .await;
    world
        .see
        .run("select pgonce._move_clock(interval '30 days')")
        .await;
    for expected in [1, 1, 1, 1, 1, 0] {
        assert_eq!(world.owner.purge(1).await.unwrap(), expected);
    }
}

async fn two_purges_at_once_never_take_the_same_record_nor_wait<D: TestDriver>(world: World<D>) {
    world
        .see
        .run("select finish('s', n::text, '\\x01') from generate_series(1, 30) n")
        .await;
    world
        .see
        .run("select pgonce._move_clock(interval '30 days')")
        .await;
    let first = world.observer().await;
    first.run("begin").await;
    assert_eq!(first.number("select pgonce.purge(10)").await, 10);
    assert_eq!(world.owner.purge(100).await.unwrap(), 0);
    first.run("commit").await;
    assert_eq!(world.owner.purge(100).await.unwrap(), 20);
    world
        .see
        .run("select finish('s', n::text, '\\x01') from generate_series(1, 500) n")
        .await;
    world
        .see
        .run("select pgonce._move_clock(interval '30 days')")
        .await;
    let mut total = 0;
    while world.see.number("select count(*) from pgonce.intent").await > 0 {
        let (a, b) = join(world.owner.purge(40), world.owner.purge(40)).await;
        total += a.unwrap() + b.unwrap();
    }
    assert_eq!(total, 500);
}

/// What an operator asks for is done and recorded though another purge is at work, or its place was removed.
async fn a_purge_by_hand_waits_for_its_turn_and_is_recorded<D: TestDriver>(world: World<D>) {
    let see = &world.see;
    see.run("select finish('s', n::text, '\\x01') from generate_series(1, 30) n; select pgonce._move_clock(interval '30 days')")
        .await;
    let by_hand = "select pgonce.purge(100, 'ticket 1')";
    let other = world.observer().await;
    see.run("begin").await;
    assert_eq!(see.number("select pgonce.purge(10)").await, 10);
    let waits = "select count(*) > 0 from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()";
    let (purged, ()) = join(other.number(by_hand), async {
        see.wait_until(waits).await;
        see.run("commit").await;
    })
    .await;
    assert_eq!(purged, 20);
    see.run("delete from pgonce.sweep").await;
    assert_eq!(see.number(by_hand).await, 0);
    let acts = "select string_agg((before ->> 'removed') || ' ' || reason, ', ' order by number) from pgonce.operator_act where act = 'purge'";
    assert_eq!(see.text(acts).await, "20 ticket 1, 0 ticket 1");
}

async fn a_purge_racing_retries_never_opens_a_second_effect_inside_retention<D: TestDriver>(
    world: World<D>,
) {
    let requests: Vec<_> = (0..30).map(|n| intent(&format!("kept {n}"))).collect();
    world
        .see
        .run("select finish('old', n::text, '\\x01') from generate_series(1, 2000) n")
        .await;
    world
        .see
        .run("select pgonce._move_clock(interval '6 days 23 hours')")
        .await;
    for request in &requests {
        let _ = world.run(request).await.unwrap();
    }
    world
        .see
        .run("select pgonce._move_clock(interval '2 hours')")
        .await;
    let purging = async {
        let mut total = 0;
        while total < 2000 {
            total += world.owner.purge(50).await.unwrap();
        }
    };
    let retrying = async {
        for round in 0..90 {
            assert!(world.run(&requests[round % 30]).await.unwrap().replayed());
        }
    };
    join(purging, retrying).await;
    for request in &requests {
        assert_eq!(world.see.effects(request).await, 1);
    }
}

async fn a_retry_that_meets_a_purge_in_the_act_runs_once<D: TestDriver>(world: World<D>) {
    let request = intent("expired");
    let _ = world.run(&request).await.unwrap();
    world
        .see
        .run("select pgonce._move_clock(interval '30 days')")
        .await;
    let purger = world.observer().await;
    purger.run("begin").await;
    assert_eq!(purger.number("select pgonce.purge()").await, 1);
    // It is busy meanwhile, and waits or comes again.
    let claim = world.once.claim(&request).await.unwrap();
    assert!(matches!(claim, Claim::Busy { .. }), "{claim:?}");
    let (done, ()) = join(world.once.run(&request, work::<D>), purger.run("commit")).await;
    let done = match done {
        Err(pgonce::Error::Busy { .. }) => world.once.run(&request, work::<D>).await,
        done => done,
    };
    assert!(!done.unwrap().replayed());
    assert_eq!(world.see.effects(&request).await, 2);
    assert_eq!(world.see.records(&request).await, 1);
}

async fn a_purge_whose_place_was_removed_finds_it_again<D: TestDriver>(world: World<D>) {
    let _ = world.run(&intent("finished")).await.unwrap();
    world
        .see
        .run("delete from pgonce.sweep; select pgonce._move_clock(interval '30 days')")
        .await;
    let first = world.owner.purge(10).await.unwrap();
    let second = world.owner.purge(10).await.unwrap();
    assert_eq!(first + second, 1);
}

/// Applications report them: no count stops a purge, or the views of others.
async fn a_purge_stands_whatever_was_counted<D: TestDriver>(world: World<D>) {
    let see = &world.see;
    for counts in [
        "9223372036854775807, 1, 0, 0",
        "9223372036854775807, 9223372036854775807, -9223372036854775808, null",
    ] {
        for scope in ["x", "y"] {
            see.run(&format!(
                "select pgonce._count_suppressed('{scope}', {counts}, 'acme')"
            ))
            .await;
        }
    }
    see.run("select finish('s', n::text, '\\x01') from generate_series(1, 2) n; select pgonce._move_clock(interval '30 days')")
        .await;
    assert_eq!(world.owner.purge(1).await.unwrap(), 1);
    let counted = "select string_agg(scope || ' ' || suppressed, ', ' order by scope) from pgonce.suppression where tenant = 'acme'";
    assert_eq!(see.text(counted).await, "x 3000000001, y 3000000001");
    let sampled = "select suppressed from pgonce.sample order by at desc limit 1";
    assert_eq!(see.number(sampled).await, 6_000_000_002);
    // As they were reported before there was a limit.
    see.run("update pgonce.suppressed set replays = 9223372036854775807, busy = 9223372036854775807; \
             select pgonce._move_clock(interval '1 minute'); select pgonce._count_suppressed('x', 1, 0, 0, 0, 'acme'); select pgonce._sample()")
        .await;
    assert_eq!(see.number(sampled).await, i64::MAX);
    let most = "select max(suppressed) from pgonce.suppression";
    assert_eq!(see.number(most).await, i64::MAX);
    // Nor does a sample that fails for another reason.
    see.run("alter table pgonce.sample add constraint broken check (intents < 0) not valid; select pgonce._move_clock(interval '1 minute')")
        .await;
    assert_eq!(world.owner.purge(10).await.unwrap(), 1);
    assert_eq!(world.owner.purge(10).await.unwrap(), 0);
}

/// Strict mode puts the contract of all other scopes aside; what it promised for after the retention holds on.
async fn in_strict_mode_a_purge_keeps_what_was_promised<D: TestDriver>(world: World<D>) {
    let see = &world.see;
    see.run("select pgonce.define_scope('*', '7 days', p_after_expiry => 'gone')")
        .await;
    let request = intent("finished");
    let _ = world.run(&request).await.unwrap();
    see.run("select pgonce._move_clock(interval '30 days'); select pgonce.set_strict(true)")
        .await;
    assert_eq!(world.owner.purge(10).await.unwrap(), 1);
    see.run("select pgonce.set_strict(false)").await;
    assert_eq!(world.run(&request).await.unwrap_err().code(), "P4031");
    assert_eq!(see.effects(&request).await, 1);
}

/// It may be long: what it removes, or an operator changes, keeps nobody waiting, nor the lock of an intent taken.
async fn what_is_being_removed_is_busy_and_makes_nobody_wait<D: TestDriver>(world: World<D>) {
    let see = &world.see;
    let request = intent("failed");
    let _ = world
        .once
        .run::<(), _, _>(&request, async |_| Err(Failure::transient("x", "m").into()))
        .await
        .unwrap_err();
    let _ = world.run(&intent("expired")).await.unwrap();
    see.run("select pgonce._move_clock(interval '30 days')")
        .await;
    let other = world.observer().await;
    see.run("set lock_timeout = '5s'").await;
    for (key, act, next) in [
        ("expired", "select pgonce.purge(10)", "fresh"),
        (
            "failed",
            "select pgonce.intervene('evict', 'orders.create', 'failed', 'ticket 7')",
            "fresh",
        ),
    ] {
        other.run(&format!("begin; {act}")).await;
        for lease in ["null", "'1 minute'"] {
            let claim = format!(
                "select outcome from pgonce.claim('orders.create', '{key}', {}, {lease})",
                pgonce_tests::digest_of(&intent(key))
            );
            assert_eq!(see.text(&claim).await, "busy", "{key}");
        }
        other.run("rollback").await;
        let claim = format!(
            "select outcome from pgonce.claim('orders.create', '{key}', {})",
            pgonce_tests::digest_of(&intent(key))
        );
        let next = if key == "failed" { "retry" } else { next };
        assert_eq!(see.text(&claim).await, next, "{key}");
    }
}

for_each_driver!(
    what_is_being_removed_is_busy_and_makes_nobody_wait,
    in_strict_mode_a_purge_keeps_what_was_promised,
    a_purge_stands_whatever_was_counted,
    a_purge_whose_place_was_removed_finds_it_again,
    a_purge_never_touches_what_is_unfinished_or_in_its_retention,
    a_purge_takes_no_more_than_its_limit_and_leaves_nothing_behind,
    two_purges_at_once_never_take_the_same_record_nor_wait,
    a_purge_by_hand_waits_for_its_turn_and_is_recorded,
    a_purge_racing_retries_never_opens_a_second_effect_inside_retention,
    a_retry_that_meets_a_purge_in_the_act_runs_once,
);
