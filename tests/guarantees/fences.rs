//! The fence only rises, and a number that was not given to you opens nothing.

use std::time::Duration;

use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::{Ack, Claim, ClaimKind, Failure};
use pgonce_tests::{TestDriver, World, effect, for_each_driver, intent};

const MINUTE: Duration = Duration::from_secs(60);
const LATE: &str =
    "update pgonce.intent set lease_until = pgonce.now() where status = 'processing'";

async fn fences_rise_over_every_attempt_even_for_leases_and_odd_for_transactions<D: TestDriver>(
    world: World<D>,
) {
    let request = intent("key");
    let mut last = 0;
    for round in 0..12 {
        let (fence, kind) = if round % 3 == 0 {
            let Claim::Run(attempt) = world.once.claim(&request).await.unwrap() else {
                panic!("run")
            };
            let outcome = (attempt.fence(), attempt.kind());
            attempt
                .fail(Failure::transient("later", "not now"))
                .await
                .unwrap();
            outcome
        } else {
            let Claim::Run(lease) = world.once.lease(&request, MINUTE).await.unwrap() else {
                panic!("run")
            };
            let outcome = (lease.fence(), lease.kind());
            if round % 3 == 1 {
                world.see.run(LATE).await; // vanishes: the next one takes over
            } else {
                lease
                    .fail(Failure::transient("later", "not now"))
                    .await
                    .unwrap();
            }
            outcome
        };
        assert!(fence > last, "round {round}: {fence} after {last}");
        assert_eq!(fence % 2, i64::from(round % 3 == 0), "round {round}");
        assert_eq!(
            kind,
            match round {
                0 => ClaimKind::Fresh,
                1 => ClaimKind::Retry,
                // Round 1 vanished: what it did outside is not known from then on.
                _ => ClaimKind::Takeover,
            }
        );
        assert_eq!(
            world.see.record(&request, "attempts").await,
            (round + 1).to_string()
        );
        last = fence;
    }
}

async fn an_atomic_attempt_over_a_failed_one_succeeds_once<D: TestDriver>(world: World<D>) {
    let request = intent("again");
    let Claim::Run(first) = world.once.claim(&request).await.unwrap() else {
        panic!("fresh")
    };
    first
        .fail(Failure::transient("later", "not now"))
        .await
        .unwrap();
    let Claim::Run(mut second) = world.once.claim(&request).await.unwrap() else {
        panic!("retry")
    };
    assert_eq!(
        (second.kind(), second.fence(), second.attempts()),
        (ClaimKind::Retry, 3, 2)
    );
    effect(&mut second).await.unwrap();
    assert!(matches!(
        world.once.claim(&request).await.unwrap(),
        Claim::Busy { .. }
    ));
    let _ = second.succeed(Ack::status()).await.unwrap();
    assert!(world.run(&request).await.unwrap().replayed());
    assert_eq!(world.see.effects(&request).await, 1);
}

#[tokio::test]
async fn a_lease_starts_above_everything_its_timeline_has_lost() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    let lease = |key: &str| {
        format!("select fence from pgonce.claim('s', '{key}', '\\x01', interval '1 minute')")
    };
    let mut last = 0;
    // A promotion, a restore elsewhere with an older sequence, and a restore in place.
    for (round, change) in [
        "",
        "update pgonce.installation set timeline = timeline + 1",
        "update pgonce.installation set life = life + 1; select setval('pgonce.lease_number', 1)",
        "delete from pgonce.installation; select setval('pgonce.lease_number', 1)",
    ]
    .iter()
    .enumerate()
    {
        see.run(change).await;
        for key in 0..3 {
            let fence = see.number(&lease(&format!("{round} {key}"))).await;
            assert!(fence % 2 == 0 && fence < 1 << 53, "{fence}");
            // An installation that has forgotten its epoch differs by chance, or by the day.
            assert!(fence > last || round == 3, "{fence} after {last}: {change}");
            last = fence;
        }
    }
    // What an intent has seen counts too, however high: another installation gave it out.
    let foreign = last * 2;
    let next = format!("select pgonce._next_fence({foreign}, true)");
    let next = see.number(&next).await;
    assert!(
        next > foreign + (1 << 36),
        "not the next of the other one, which it may give out too"
    );
}

#[tokio::test]
async fn under_refuse_a_lease_that_ran_out_is_over_written_or_not() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    see.run("select pgonce.define_scope('r', '7 days', p_stale => 'refuse')")
        .await;
    let claim = "from pgonce.claim('r', 'k', '\\x01', interval '1 minute')";
    let fence = see.number(&format!("select fence {claim}")).await;
    see.run("select pgonce._move_clock(interval '2 minutes')")
        .await;
    // A claim in a caller's transaction answers that it was abandoned, and the caller rolls back.
    see.run("begin").await;
    assert_eq!(
        see.text(&format!("select outcome {claim}")).await,
        "refused"
    );
    see.run("rollback").await;
    for act in [
        "succeed('r', 'k', '\\x01', $, '1')",
        "succeed('r', 'k', '\\x01', $, p_keep => '1 day')",
        "fail('r', 'k', '\\x01', $, true, 'c', 'm')",
        "heartbeat('r', 'k', $, interval '1 minute')",
        "guard('r', 'k', $)",
        "release('r', 'k', $)",
    ] {
        let sql = format!("select pgonce.{}", act.replace('$', &fence.to_string()));
        assert_eq!(see.code(&sql).await, "P4012", "{sql}");
    }
    assert_eq!(
        see.text(&format!("select outcome {claim}")).await,
        "refused"
    );
}

#[tokio::test]
async fn no_two_leases_of_a_key_share_a_fence_though_the_record_between_was_purged() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    let lease = "select fence from pgonce.claim('s', 'k', '\\x01', interval '1 minute')";
    let zombie = see.number(lease).await;
    see.run("update pgonce.intent set lease_until = pgonce.now()")
        .await;
    let second = see.number(lease).await;
    see.run(&format!("select pgonce.succeed('s', 'k', '\\x01', {second}); select pgonce._move_clock(interval '30 days')")).await;
    assert_eq!(see.number("select pgonce.purge()").await, 1);
    let third = see.number(lease).await;
    assert!(zombie < second && second < third);
    assert_eq!(
        see.code(&format!(
            "select pgonce.succeed('s', 'k', '\\x01', {zombie})"
        ))
        .await,
        "P4012"
    );
}

/// Scopes with a plain contract of their own are settled by one statement, all others by several.
#[tokio::test]
async fn the_quick_end_of_a_lease_is_as_strict_as_the_slow_one() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    see.run("select pgonce.define_scope('own', interval '1 day')")
        .await;
    for scope in ["own", "general"] {
        let lease = |key: &str| {
            format!(
                "select fence from pgonce.claim('{scope}', '{key}', '\\x01', interval '1 minute')"
            )
        };
        let succeed = |key: &str, print: &str, fence: i64| {
            format!(
                "select pgonce.succeed('{scope}', '{key}', '\\x{print}', {fence}, '{{\"n\": 1}}')"
            )
        };
        let fence = see.number(&lease("k")).await;
        assert_eq!(see.code(&succeed("k", "02", fence)).await, "P4002");
        see.run(LATE).await;
        let newer = see.number(&lease("k")).await;
        assert_eq!(see.code(&succeed("k", "01", fence)).await, "P4012");
        see.run(&succeed("k", "01", newer)).await;
        assert_eq!(
            see.text(&format!(
                "select status || ' ' || (answer ->> 'n') from pgonce.intent where scope = '{scope}'"
            ))
            .await,
            "succeeded 1"
        );

        // A lease of an earlier timeline may have been lost to a takeover that the failover lost in turn.
        let lost = see.number(&lease("old")).await % (1 << 41) + (1 << 40);
        see.run(&format!(
            "set session_replication_role = replica; update pgonce.intent set fence = {lost}, \
             lease_until = pgonce.now() where key = 'old' and scope = '{scope}'; \
             reset session_replication_role"
        ))
        .await;
        assert_eq!(see.code(&succeed("old", "01", lost)).await, "P4012");
    }
}

#[tokio::test]
async fn a_stale_atomic_failure_is_turned_away_after_a_newer_attempt() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    let fail = |key: &str, fence: i64| {
        format!("select pgonce.fail('s', '{key}', '\\x01', {fence}, true, 'late', 'm')")
    };
    let lease = |key: &str| {
        format!("select fence from pgonce.claim('s', '{key}', '\\x01', interval '1 minute')")
    };
    // Fresh, rolled back; then a lease.
    assert_eq!(
        see.number("select fence from pgonce.claim('s', 'a', '\\x01')")
            .await,
        1
    );
    let leased = see.number(&lease("a")).await;
    assert_eq!(see.code(&fail("a", 1)).await, "P4011");
    assert_eq!(
        see.number("select fence from pgonce.intent where key = 'a'")
            .await,
        leased
    );
    // Over a failed record, rolled back; then a lease.
    see.run(&fail("b", 1)).await;
    assert_eq!(
        see.number("select fence from pgonce.claim('s', 'b', '\\x01')")
            .await,
        3
    );
    see.number(&lease("b")).await;
    assert_eq!(see.code(&fail("b", 3)).await, "P4012");
    // Two that got the same number one after the other: the first to report counts.
    see.run(&fail("c", 1)).await;
    assert_eq!(
        see.number("select fence from pgonce.claim('s', 'c', '\\x01')")
            .await,
        3
    );
    assert_eq!(
        see.number("select fence from pgonce.claim('s', 'c', '\\x01')")
            .await,
        3
    );
    see.run(&fail("c", 3)).await;
    assert_eq!(see.code(&fail("c", 3)).await, "P4011");
    assert_eq!(
        see.text("select attempts from pgonce.intent where key = 'c'")
            .await,
        "2"
    );
}

#[tokio::test]
async fn a_wrong_fence_opens_nothing_and_changes_nothing() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    let held = see
        .number("select fence from pgonce.claim('s', 'leased', '\\x01', interval '1 minute')")
        .await;
    see.run("select pgonce.fail('s', 'failed', '\\x01', 1, true, 'later', 'm')")
        .await;
    see.run("select finish('s', 'done', '\\x01')").await;
    see.run("select pgonce.fail('s', 'refused', '\\x01', 1, false, 'no', 'm')")
        .await;
    let before = see.dump().await;
    let wrong = [
        "null",
        "0",
        "-1",
        "1",
        "2",
        "9223372036854775807",
        "-9223372036854775808",
    ]
    .map(str::to_owned);
    let near = [held - 2, held - 1, held + 1, held + 2].map(|fence| fence.to_string());
    for fence in wrong.iter().chain(&near) {
        for key in ["leased", "failed", "done", "refused", "nobody"] {
            let names = format!("'s', '{key}', '\\x01', {fence}");
            if key == "nobody" && fence == "1" {
                continue; // the first fence of an intent that does not exist yet is right
            }
            for (sql, codes) in [
                (
                    format!("select pgonce.succeed({names})"),
                    ["P4010", "P4012", "22023", "2D000"],
                ),
                (
                    format!("select pgonce.fail({names}, true, 'c', 'm')"),
                    ["P4011", "P4012", "22023", "22023"],
                ),
                (
                    format!("select pgonce.fail({names}, false, 'c', 'm')"),
                    ["P4011", "P4012", "22023", "22023"],
                ),
                (
                    format!("select pgonce.heartbeat('s', '{key}', {fence}, interval '1 minute')"),
                    ["P4012"; 4],
                ),
                (
                    format!("select pgonce.release('s', '{key}', {fence})"),
                    ["P4012"; 4],
                ),
                (
                    format!("select pgonce.guard('s', '{key}', {fence})"),
                    ["P4012"; 4],
                ),
            ] {
                let code = see.code(&sql).await;
                assert!(codes.contains(&code.as_str()), "{sql}: {code:?}");
            }
        }
    }
    assert_eq!(see.dump().await, before);
    // And another request's fingerprint with the right fence.
    let names = format!("'s', 'leased', '\\x02', {held}");
    assert_eq!(
        see.code(&format!("select pgonce.succeed({names})")).await,
        "P4002"
    );
    assert_eq!(
        see.code(&format!("select pgonce.fail({names}, true, 'c', 'm')"))
            .await,
        "P4002"
    );
    assert_eq!(see.dump().await, before);
}

for_each_driver!(
    fences_rise_over_every_attempt_even_for_leases_and_odd_for_transactions,
    an_atomic_attempt_over_a_failed_one_succeeds_once,
);
