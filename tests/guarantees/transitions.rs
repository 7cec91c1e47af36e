//! The database itself refuses every step that is not one of the protocol's, no matter who tries it.

use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce_tests::World;

/// One record in each status, made by the protocol.
const ONE_OF_EACH: &str = "
select from pgonce.claim('s', 'processing', '\\x01', interval '1 minute');
select finish('s', 'succeeded', '\\x01', '\"a\"');
select pgonce.fail('s', 'failed_retryable', '\\x01', 1, true, 'later', 'm');
select pgonce.fail('s', 'failed_final', '\\x01', 1, false, 'no', 'm');
";

#[tokio::test]
async fn no_hand_can_make_an_illegal_step() {
    let world = World::<TokioPostgres>::new().await;
    world.see.run(ONE_OF_EACH).await;
    let before = world.see.dump().await;
    let every = [
        "processing",
        "succeeded",
        "failed_retryable",
        "failed_final",
    ];
    let mut steps: Vec<(&str, &str)> = Vec::new();
    // Who an intent is and what it was for never changes; counters never fall.
    for status in every {
        for change in [
            "key = 'other'",
            "scope = 'other'",
            "tenant = 'other'",
            "fingerprint = '\\x02'",
            "fence = fence - 1",
            "attempts = attempts - 1",
            "first_at = first_at - interval '1 day'",
        ] {
            steps.push((status, change));
        }
    }
    // What is finished stays as it is.
    for finished in ["succeeded", "failed_final"] {
        for change in [
            "status = 'processing'",
            "status = 'failed_retryable'",
            "status = 'succeeded', fence = fence + 2",
            "status = 'failed_final'",
            "answer = '\"b\"'",
            "ref_id = 'x'",
            "attempts = attempts + 1",
            "failure_code = 'x'",
            "expires_at = expires_at + interval '1 day'",
            "expires_at = null",
            "status = 'processing', fence = fence + 1, attempts = attempts + 1",
            "status = 'processing', fence = fence + 1, attempts = attempts + 1, expires_at = null",
            "status = 'failed_retryable', expires_at = null",
        ] {
            steps.push((finished, change));
        }
    }
    steps.extend([
        // A zombie completing somebody else's work, the classic: the fence did not move.
        ("failed_retryable", "status = 'succeeded'"),
        ("failed_retryable", "status = 'processing'"),
        ("failed_retryable", "status = 'failed_final'"),
        ("failed_retryable", "answer = '1'"),
        // A takeover counts as an attempt, a heartbeat does not.
        ("processing", "fence = fence + 2"),
        ("processing", "attempts = attempts + 1"),
        ("processing", "status = 'succeeded', fence = fence + 2"),
        // What is unfinished has no expiry, so that no purge can ever take it.
        ("processing", "expires_at = pgonce.now()"),
        ("processing", "gone_at = pgonce.now()"),
        ("failed_retryable", "gone_at = pgonce.now()"),
        ("failed_retryable", "status = 'processing', fence = 4294967300, attempts = attempts + 1, expires_at = pgonce.now()"),
    ]);
    for (status, change) in steps {
        let sql = format!("update pgonce.intent set {change} where key = '{status}'");
        assert_eq!(world.see.code(&sql).await, "P4099", "{sql}");
    }
    assert_eq!(world.see.dump().await, before);
}

#[tokio::test]
async fn a_tombstone_never_changes_again() {
    let world = World::<TokioPostgres>::new().await;
    world
        .see
        .run("select pgonce.define_scope('s', interval '1 hour', p_after_expiry => 'gone')")
        .await;
    world
        .see
        .run("select finish('s', 'k', '\\x01'); select pgonce._move_clock(interval '2 hours')")
        .await;
    assert_eq!(world.see.number("select pgonce.purge()").await, 1);
    for change in [
        "gone_at = null",
        "status = 'processing'",
        "answer = '1'",
        "expires_at = pgonce.now()",
    ] {
        let sql = format!("update pgonce.intent set {change}");
        assert_eq!(world.see.code(&sql).await, "P4099", "{sql}");
    }
}

#[tokio::test]
async fn a_duplicate_cannot_complete_somebody_elses_unfinished_work() {
    // The published recipe "on conflict do update set status = completed" as somebody might write
    // it: against every open state it fails.
    let world = World::<TokioPostgres>::new().await;
    world.see.run(ONE_OF_EACH).await;
    let before = world.see.dump().await;
    for key in ["succeeded", "failed_retryable", "failed_final"] {
        let sql = format!(
            "insert into pgonce.intent (tenant, scope, key, fingerprint, status, attempts, fence, first_at) \
             values ('', 's', '{key}', '\\x01', 'succeeded', 1, 1, now()) \
             on conflict on constraint one_row_per_intent do update set status = 'succeeded'"
        );
        assert_eq!(world.see.code(&sql).await, "P4099", "{key}");
    }
    assert_eq!(
        world
            .see
            .code("select finish('s', 'processing', '\\x01')")
            .await,
        "P4010"
    );
    assert_eq!(world.see.dump().await, before);
}
