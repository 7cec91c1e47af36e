//! Where a contract has a commit guard, no transaction commits with a claim that has no outcome.

use futures_util::future::join;
use pgonce::driver::sqlx::Sqlx;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::migrate::Migrator;
use pgonce::scope::Contract;
use pgonce::{Claim, Failure};
use pgonce_tests::{Observer, SCOPE, TestDriver, World, for_each_driver_and_setting, intent, work};
use std::time::Duration;

const DAY: Duration = Duration::from_secs(86_400);
const EFFECT: &str = "insert into effects values ('', 's', 'k')";
const LEFT: &str = "select count(*) from effects";

/// A database in which the scope `s` has a guard.
async fn guarded() -> World<TokioPostgres> {
    let world = World::new().await;
    world
        .see
        .run("select pgonce.define_scope('s', '1 day', p_commit_guard => true)")
        .await;
    world
}

fn claim(key: &str) -> String {
    format!("select outcome from pgonce.claim('s', '{key}', '\\x01')")
}

fn succeed(key: &str, fence: i64) -> String {
    format!("select pgonce.succeed('s', '{key}', '\\x01', {fence}, '7')")
}

async fn is_refused(see: &Observer, statements: &[&str], end: &str) {
    for sql in statements {
        see.run(sql).await;
    }
    assert_eq!(see.code(end).await, "P4013", "{statements:?}");
    see.run("rollback").await;
    assert_eq!(see.number(LEFT).await, 0, "{statements:?}");
    assert_eq!(
        see.number("select count(*) from pgonce.open_claim").await,
        0
    );
}

#[tokio::test]
async fn a_commit_with_an_open_claim_is_refused_and_its_effect_with_it() {
    let world = guarded().await;
    let see = &world.see;
    is_refused(see, &[], &claim("autocommit")).await;
    is_refused(see, &["begin", &claim("early return"), EFFECT], "commit").await;
    is_refused(
        see,
        &["begin", &claim("a"), &succeed("a", 1), &claim("b"), EFFECT],
        "commit",
    )
    .await;
    // What a caught exception leaves: the savepoint took the success back.
    is_refused(
        see,
        &[
            "begin",
            &claim("swallowed"),
            EFFECT,
            "savepoint s",
            &succeed("swallowed", 1),
            "rollback to savepoint s",
        ],
        "commit",
    )
    .await;
    is_refused(
        see,
        &["begin", &claim("prepared"), EFFECT],
        "prepare transaction 'open'",
    )
    .await;
    is_refused(
        see,
        &[
            "begin",
            &claim("leased"),
            EFFECT,
            "select pgonce.claim('s', 'leased', '\\x01', '1 min')",
        ],
        "commit",
    )
    .await;
    is_refused(
        see,
        &["begin", &claim("early"), EFFECT],
        "set constraints all immediate",
    )
    .await;

    see.run("select pgonce.fail('s', 'again', '\\x01', 1, true, 'c', 'm')")
        .await;
    is_refused(see, &["begin", &claim("again"), EFFECT], "commit").await;
    assert_eq!(
        see.text("select status::text || attempts from pgonce.intent where key = 'again'")
            .await,
        "failed_retryable1"
    );
}

#[tokio::test]
async fn the_success_of_another_attempt_does_not_settle_an_open_claim() {
    let world = guarded().await;
    let other = world.observer().await;
    world
        .see
        .run(&format!("begin; {}; {EFFECT}", claim("k")))
        .await;
    other.run("select finish('s', 'k', '\\x01', '1')").await;
    assert_eq!(world.see.code("commit").await, "P4013");
    assert_eq!(world.see.number(LEFT).await, 0);
    assert_eq!(world.see.text(&claim("k")).await, "replay");
}

#[tokio::test]
async fn a_claim_with_an_outcome_commits_and_leaves_nothing() {
    let world = guarded().await;
    let see = &world.see;
    see.run("select pgonce.fail('s', 'again', '\\x01', 1, true, 'c', 'm')")
        .await;
    for (key, statements) in [
        ("plain", vec![succeed("plain", 1)]),
        (
            "kept",
            vec!["select pgonce.succeed('s', 'kept', '\\x01', 1, p_keep => '2 days')".into()],
        ),
        (
            "in a savepoint",
            vec![
                "savepoint s".into(),
                succeed("in a savepoint", 1),
                "release savepoint s".into(),
            ],
        ),
        (
            "looked at early",
            vec![
                succeed("looked at early", 1),
                "set constraints all immediate".into(),
            ],
        ),
        ("again", vec![succeed("again", 3)]),
        (
            "refused",
            vec!["select pgonce.fail('s', 'refused', '\\x01', 1, false, 'c', 'm')".into()],
        ),
        (
            "two",
            vec![claim("three"), succeed("three", 1), succeed("two", 1)],
        ),
    ] {
        see.run(&format!(
            "begin; {}; {}; commit",
            claim(key),
            statements.join("; ")
        ))
        .await;
    }
    for (key, outcome) in [
        ("plain", "replay"),
        ("again", "replay"),
        ("refused", "refused"),
    ] {
        assert_eq!(see.text(&claim(key)).await, outcome);
    }
    // What is rolled back was never open.
    see.run(&format!(
        "begin; savepoint s; {}; rollback to savepoint s; commit",
        claim("undone")
    ))
    .await;
    see.run(&format!("begin; {}; rollback", claim("undone")))
        .await;
    see.run(&format!(
        "begin; {}; {}",
        claim("prepared"),
        succeed("prepared", 1)
    ))
    .await;
    see.run("prepare transaction 'whole'").await;
    see.run("commit prepared 'whole'").await;
    assert_eq!(see.text(&claim("prepared")).await, "replay");

    // A lease is committed open: that is what it is for.
    let lease = "select fence from pgonce.claim('s', 'leased', '\\x01', '1 min')";
    let fence = see.number(lease).await;
    assert_eq!(see.text(&claim("leased")).await, "busy");
    see.run(&succeed("leased", fence)).await;

    let one = "with effect as materialized (insert into effects values ('', 's', 'one') returning key), \
         claimed as materialized (select fence from pgonce.claim_first('s', 'one', '\\x01')), \
         answer as materialized (select c.fence, case when c.fence is not null \
             then (select to_jsonb(e.*) from effect e) end as value from claimed c) \
         select value ->> 'key', pgonce.succeed('s', 'one', '\\x01', fence, value) from answer";
    assert_eq!(see.rows(one).await[0][0].as_deref(), Some("one"));
    assert_eq!(see.code(one).await, "P4010");
    assert_eq!(see.number(LEFT).await, 1);
    assert_eq!(
        see.number("select count(*) from pgonce.open_claim").await,
        0
    );
}

#[tokio::test]
async fn the_contract_in_force_decides_and_a_migration_keeps_it() {
    let world = guarded().await;
    let see = &world.see;
    let open = |scope: &str, tenant: &str| {
        format!("select pgonce.claim('{scope}', 'k', '\\x01', p_tenant => '{tenant}')")
    };
    see.run(&open("free", "")).await;
    see.run(
        "select pgonce.define_scope('own', '1 day', p_commit_guard => true, p_tenant => 'acme')",
    )
    .await;
    assert_eq!(see.code(&open("own", "acme")).await, "P4013");
    see.run(&open("own", "globex")).await;
    see.run("update pgonce.routines set checksum = 'old'").await;
    let owner = TokioPostgres::connect(&world.url(), 1);
    Migrator::new(owner).up().await.unwrap();
    assert_eq!(see.code(&open("own", "acme")).await, "P4013");
    assert_eq!(see.code(&open("s", "")).await, "P4013");
    see.run("select pgonce.define_scope('s', '1 day')").await;
    see.run(&open("s", "")).await;
    // Those that nobody defined; the others have contracts of their own.
    see.run("select pgonce.define_scope('*', '1 day', p_commit_guard => true)")
        .await;
    assert_eq!(see.code(&open("free", "")).await, "P4013");
    see.run(&open("s", "")).await;
    assert_eq!(
        see.code("select pgonce.define_scope('x', '1 day', p_commit_guard => null)")
            .await,
        "22023"
    );
}

/// The scopes with a guard are the body of one function, which a session keeps: both of two services that start at once.
#[tokio::test]
async fn guards_that_are_defined_at_once_all_hold() {
    let world = guarded().await;
    let (first, second) = join(world.observer(), world.observer()).await;
    let define = |scope: &str| {
        format!(
            "select count(*) from pgonce.define_scope('{scope}', '1 day', p_commit_guard => true)"
        )
    };
    for isolation in ["read committed", "repeatable read"] {
        let (a, b) = (format!("a {isolation}"), format!("b {isolation}"));
        second.text("select pgonce._guarded_scopes()::text").await;
        first
            .run(&format!(
                "begin isolation level {isolation}; {}",
                define(&a)
            ))
            .await;
        second
            .run(&format!("begin isolation level {isolation}"))
            .await;
        let defined = define(&b);
        let waits = "select count(*) > 0 from pg_locks where locktype = 'advisory' and not granted \
            and database = (select oid from pg_database where datname = current_database())";
        join(second.run(&defined), async {
            world.see.wait_until(waits).await;
            first.run("commit").await;
        })
        .await;
        second.run("commit").await;
        for scope in ["s", &a, &b] {
            let open = format!("select pgonce.claim('{scope}', 'open', '\\x01')");
            assert_eq!(world.see.code(&open).await, "P4013", "{scope}");
        }
    }
}

#[tokio::test]
async fn a_joined_transaction_that_forgets_its_success_cannot_commit() {
    let world = World::<Sqlx>::new().await;
    let contract = Contract::keep(DAY).commit_guard();
    world.owner.define_scope(SCOPE, &contract).await.unwrap();
    let request = intent("joined");
    let mut tx = world.once.driver().pool().begin().await.unwrap();
    let Claim::Run(mut joined) = world.once.join(&mut tx, &request).await.unwrap() else {
        panic!("fresh")
    };
    sqlx::query("insert into effects values ('', 'orders.create', 'joined')")
        .execute(joined.conn())
        .await
        .unwrap();
    drop(joined);
    let error = pgonce::Error::from(tx.commit().await.unwrap_err());
    assert_eq!(error.code(), "P4013");
    let text = error.to_string();
    assert!(text.contains(SCOPE) && !text.contains("joined"), "{text}");
    assert_eq!(world.see.effects(&request).await, 0);
}

async fn every_way_of_the_sdk_works_in_a_guarded_scope<D: TestDriver>(world: World<D>) {
    let contract = Contract::keep(DAY).commit_guard();
    world.owner.define_scope(SCOPE, &contract).await.unwrap();
    for (request, replayed) in [
        (intent("plain"), false),
        (intent("plain"), true),
        (intent("first").known_first(), false),
        (intent("first").known_first(), true),
    ] {
        let done = world.once.run(&request, work::<D>).await.unwrap();
        assert_eq!(done.replayed(), replayed);
        assert_eq!(world.see.effects(&request).await, 1);
    }
    let insert =
        "insert into effects (tenant, scope, key) select '', 'orders.create', $1 returning key";
    for request in [intent("one"), intent("one, first").known_first()] {
        for replayed in [false, true] {
            let done = D::execute(&world.once, &request, insert, request.key()).await;
            assert_eq!(done.unwrap().replayed(), replayed);
        }
        assert_eq!(world.see.effects(&request).await, 1);
    }
    let failing = intent("failing");
    let transient = async |_| Err::<pgonce::Done, _>(Failure::transient("c", "m").into());
    assert!(world.once.run(&failing, transient).await.is_err());
    assert_eq!(world.run(&failing).await.unwrap().attempts(), 2);
    let refused = intent("refused");
    let permanent = async |_| Err::<pgonce::Done, _>(Failure::permanent("c", "m").into());
    for _ in 0..2 {
        let error = world.once.run(&refused, permanent).await.unwrap_err();
        assert_eq!(error.code(), "P4030");
    }
    let leased = intent("leased");
    let Claim::Run(lease) = world.once.lease(&leased, DAY).await.unwrap() else {
        panic!("fresh")
    };
    let _ = lease.transact(work::<D>).await.unwrap();
    // A claim that is dropped is rolled back, and free again.
    let dropped = intent("dropped");
    let Claim::Run(attempt) = world.once.claim(&dropped).await.unwrap() else {
        panic!("fresh")
    };
    attempt.abandon().await.unwrap();
    assert!(!world.run(&dropped).await.unwrap().replayed());
    assert_eq!(
        world
            .see
            .number("select count(*) from pgonce.open_claim")
            .await,
        0
    );
}

for_each_driver_and_setting!(every_way_of_the_sdk_works_in_a_guarded_scope);
