//! Bad input is refused with its own code, before anything is changed.

use std::time::Duration;

use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::{Error, Fingerprint, Intent};
use pgonce_tests::{TestDriver, World, for_each_driver, intent};

/// Names of an intent as SQL: what is wrong with them, and the code that says so.
fn bad_names() -> Vec<([String; 4], &'static str)> {
    let good = || {
        [
            "'s'".to_owned(),
            "'k'".to_owned(),
            "'\\x01'::bytea".to_owned(),
            "''".to_owned(),
        ]
    };
    let long = |n: usize| format!("repeat('x', {n})");
    let mut all = Vec::new();
    for (place, value, code) in [
        (0, "''".to_owned(), "P4000"),
        (0, "null".to_owned(), "P4000"),
        (0, long(256), "22023"),
        (0, "repeat('é', 128)".to_owned(), "22023"),
        (1, "''".to_owned(), "P4001"),
        (1, "null".to_owned(), "P4001"),
        (1, long(256), "22023"),
        (1, "repeat('é', 128)".to_owned(), "22023"),
        (1, long(1_000_000), "22023"),
        (2, "''::bytea".to_owned(), "P4003"),
        (2, "null".to_owned(), "P4003"),
        (2, "decode(repeat('00', 65), 'hex')".to_owned(), "22023"),
        (3, "null".to_owned(), "22023"),
        (3, long(256), "22023"),
        (1, "convert_from('\\xff', 'UTF8')".to_owned(), "22021"),
        (1, "convert_from('\\x00', 'UTF8')".to_owned(), "22021"),
    ] {
        let mut names = good();
        names[place] = value;
        all.push((names, code));
    }
    all
}

#[tokio::test]
async fn every_function_refuses_a_bad_name_with_its_own_code_and_changes_nothing() {
    let world = World::<TokioPostgres>::new().await;
    world.see.run("select finish('s', 'there', '\\x01')").await;
    let before = world.see.dump().await;
    for ([scope, key, print, tenant], code) in bad_names() {
        for sql in [
            format!("select * from pgonce.claim({scope}, {key}, {print}, p_tenant => {tenant})"),
            format!(
                "select * from pgonce.claim({scope}, {key}, {print}, interval '1 minute', p_tenant => {tenant})"
            ),
            format!("select * from pgonce._claim_optimistic({scope}, {key}, {print}, {tenant})"),
            format!("select pgonce.succeed({scope}, {key}, {print}, 1, p_tenant => {tenant})"),
            format!("select pgonce.succeed({scope}, {key}, {print}, 2, p_tenant => {tenant})"),
            format!(
                "select pgonce.fail({scope}, {key}, {print}, 1, true, 'c', 'm', p_tenant => {tenant})"
            ),
            format!(
                "select pgonce.fail({scope}, {key}, {print}, 2, false, 'c', 'm', p_tenant => {tenant})"
            ),
        ] {
            assert_eq!(world.see.code(&sql).await, code, "{sql}");
        }
        assert_eq!(world.see.dump().await, before);
    }
}

#[tokio::test]
async fn names_of_exactly_255_bytes_are_taken() {
    let world = World::<TokioPostgres>::new().await;
    let names = "repeat('x', 255), 'a' || repeat('é', 127), decode(repeat('00', 64), 'hex')";
    let tenant = "p_tenant => repeat('t', 255)";
    world
        .see
        .run(&format!("select finish({names}, '1', {tenant})"))
        .await;
    assert_eq!(
        world
            .see
            .text(&format!(
                "select outcome from pgonce.claim({names}, {tenant})"
            ))
            .await,
        "replay"
    );
    let request = Intent::with_fingerprint(
        "x".repeat(255),
        "é".repeat(127) + "a",
        Fingerprint::custom([7; 64]),
    )
    .unwrap();
    assert!(!world.run(&request).await.unwrap().replayed());
    assert!(world.run(&request).await.unwrap().replayed());
}

#[tokio::test]
async fn bad_leases_limits_locks_and_failures_are_refused_with_22023() {
    let world = World::<TokioPostgres>::new().await;
    let fence = world
        .see
        .number("select fence from pgonce.claim('s', 'k', '\\x01', interval '1 minute')")
        .await;
    let before = world.see.dump().await;
    for sql in [
        "select * from pgonce.claim('s', 'new', '\\x01', interval '0')".to_owned(),
        "select * from pgonce.claim('s', 'new', '\\x01', interval '-1 second')".to_owned(),
        format!("select pgonce.heartbeat('s', 'k', {fence}, interval '0')"),
        format!("select pgonce.heartbeat('s', 'k', {fence}, interval '-1 hour')"),
        format!("select pgonce.heartbeat('s', 'k', {fence}, null)"),
        format!("select pgonce.fail('s', 'k', '\\x01', {fence}, null, 'c', 'm')"),
        format!("select pgonce.fail('s', 'k', '\\x01', {fence}, true, '', 'm')"),
        format!("select pgonce.fail('s', 'k', '\\x01', {fence}, true, null, 'm')"),
        "select pgonce.purge(0)".to_owned(),
        "select pgonce.purge(-1)".to_owned(),
        "select pgonce.purge(null)".to_owned(),
        "select pgonce.try_lock('')".to_owned(),
        "select pgonce.try_lock(null)".to_owned(),
        "select pgonce.try_lock(repeat('x', 256))".to_owned(),
        "select pgonce.lock('name', interval '0')".to_owned(),
        "select pgonce.lock('name', interval '-1 second')".to_owned(),
        "select pgonce.lock('name', null)".to_owned(),
        "select pgonce._set_clock(null)".to_owned(),
        "select pgonce._move_clock(null)".to_owned(),
    ] {
        assert_eq!(world.see.code(&sql).await, "22023", "{sql}");
    }
    assert_eq!(world.see.dump().await, before);
}

#[test]
fn the_sdk_refuses_a_bad_name_before_the_database_is_asked() {
    let print = || Fingerprint::of("request").unwrap();
    let named = |scope: &str, key: &str| Intent::with_fingerprint(scope, key, print()).map(drop);
    for (end, code) in [
        (named("", "k"), "P4000"),
        (named("s", ""), "P4001"),
        (named(&"s".repeat(256), "k"), "22023"),
        (named("s", &"é".repeat(128)), "22023"),
        (named("s", "a\0b"), "22023"),
        (named("\0", "k"), "22023"),
        (
            Intent::with_fingerprint("s", "k", Fingerprint::custom([])).map(drop),
            "P4003",
        ),
        (
            Intent::with_fingerprint("s", "k", Fingerprint::custom([0; 65])).map(drop),
            "22023",
        ),
        (intent("k").tenant("x".repeat(256)).map(drop), "22023"),
        (intent("k").tenant("a\0").map(drop), "22023"),
        (Intent::key_from_bytes(b"\xff\xfe").map(drop), "22023"),
    ] {
        let error = end.unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{error:?}");
        assert_eq!(error.code(), code, "{error}");
    }
}

async fn a_lease_of_no_or_endless_length_is_an_error_and_leaves_nothing<D: TestDriver>(
    world: World<D>,
) {
    for length in [Duration::ZERO, Duration::from_nanos(1), Duration::MAX] {
        let end = world.once.lease(&intent("k"), length).await;
        let code = end.map(drop).unwrap_err().code().to_owned();
        assert!(code.starts_with("22"), "{length:?}: {code}");
    }
    assert_eq!(world.see.records(&intent("k")).await, 0);
    world.see.wait_until_clean().await;
}

async fn in_strict_mode_an_undefined_scope_is_refused_before_the_work<D: TestDriver>(
    world: World<D>,
) {
    // Only the switch makes it strict: without its contract alone, work would be lost at its end.
    let half = "select pgonce.drop_scope('*')";
    assert_eq!(world.see.code(half).await, "22023");
    world.see.run("select pgonce.set_strict(true)").await;
    for request in [intent("k"), intent("k").known_first()] {
        let end = world
            .once
            .run::<(), _, _>(&request, async |_attempt| panic!("the work must not run"))
            .await;
        assert_eq!(end.unwrap_err().code(), "P4000");
    }
    assert_eq!(
        world
            .once
            .lease(&intent("k"), Duration::from_secs(1))
            .await
            .map(drop)
            .unwrap_err()
            .code(),
        "P4000"
    );
    let elsewhere = intent("k").tenant("theirs").unwrap();
    world
        .see
        .run("select pgonce.define_scope('orders.create', interval '1 day', p_tenant => 'theirs')")
        .await;
    assert_eq!(world.run(&intent("k")).await.unwrap_err().code(), "P4000");
    assert!(!world.run(&elsewhere).await.unwrap().replayed());
    world
        .see
        .run("select pgonce.define_scope('orders.create', interval '1 day')")
        .await;
    assert!(!world.run(&intent("k")).await.unwrap().replayed());
    world.see.run("select pgonce.set_strict(false)").await;
    assert!(
        !world
            .run(&Intent::new("undefined", "k", "r").unwrap())
            .await
            .unwrap()
            .replayed()
    );
}

/// Strict mode refuses what begins, and ends what was begun under the contract of all other scopes.
async fn in_strict_mode_work_that_was_begun_is_recorded<D: TestDriver>(world: World<D>) {
    let see = &world.see;
    let contract = "select pgonce.define_scope('*', '1 day', p_max_answer => 20, p_stale => 'refuse'); \
        select pgonce.define_scope('orders.create', '1 day')";
    see.run(contract).await;
    let lease = async |key: &str| match world
        .once
        .lease(&intent(key), Duration::from_secs(60))
        .await
    {
        Ok(pgonce::Claim::Run(lease)) => lease,
        other => panic!("{key}: {other:?}"),
    };
    let (mut done, failed, written) = (
        lease("done").await,
        lease("failed").await,
        lease("written").await,
    );
    let (settled, released) = (lease("settled").await, lease("released").await);
    let retried = lease("retried").await;
    // Both ways to be left without a contract.
    see.run("select pgonce.set_strict(true); select pgonce.drop_scope('orders.create')")
        .await;
    let next = world
        .once
        .lease(&intent("new"), Duration::from_secs(1))
        .await;
    assert_eq!(next.map(drop).unwrap_err().code(), "P4000");
    done.heartbeat().await.unwrap();
    let _ = done.succeed("done").await.unwrap();
    failed
        .fail(pgonce::Failure::permanent("no", "not this one"))
        .await
        .unwrap();
    let _ = written
        .transact(|mut tx| async move {
            pgonce_tests::effect(&mut tx).await?;
            tx.succeed("written").await
        })
        .await
        .unwrap();
    released.release().await.unwrap();
    for act in ["settle", "fail"] {
        let key = if act == "fail" { "retried" } else { "settled" };
        let sql = format!(
            "select pgonce.intervene('{act}', 'orders.create', '{key}', 'ticket 7', p_force => true, \
            p_code => case '{act}' when 'fail' then 'no' end)"
        );
        see.run(&sql).await;
    }
    for (key, status) in [
        ("done", "succeeded"),
        ("failed", "failed_final"),
        ("written", "succeeded"),
        ("settled", "succeeded"),
        ("retried", "failed_final"),
        ("released", "failed_retryable"),
    ] {
        assert_eq!(see.record(&intent(key), "status").await, status, "{key}");
    }
    drop((settled, retried));
}

for_each_driver!(
    in_strict_mode_work_that_was_begun_is_recorded,
    a_lease_of_no_or_endless_length_is_an_error_and_leaves_nothing,
    in_strict_mode_an_undefined_scope_is_refused_before_the_work,
);
