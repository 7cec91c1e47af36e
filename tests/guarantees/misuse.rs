//! What would part an effect from its acknowledgement is an error, where it compiles at all (`tests/misuse`).

use std::time::Duration;

use pgonce::retry::Class;
use pgonce::{Ack, Attempt, Claim, Error, Failure, Intent};
use pgonce_tests::{SCOPE, TestDriver, World, digest_of, effect, for_each_driver, intent, work};

#[tokio::test]
async fn an_atomic_claim_in_autocommit_cannot_succeed() {
    let world = World::<pgonce::driver::tokio_postgres::TokioPostgres>::new().await;
    let see = &world.see;
    let claim = "select outcome from pgonce.claim('s', 'k', '\\x01')";
    assert_eq!(see.text(claim).await, "fresh");
    for succeed in [
        "select pgonce.succeed('s', 'k', '\\x01', 1)",
        "select pgonce.succeed('s', 'k', '\\x01', 1, p_keep => '1 day')",
        // Another intent's transaction is not this one's.
        "select pgonce.claim('s', 'other', '\\x01'); select pgonce.succeed('s', 'k', '\\x01', 1)",
    ] {
        assert_eq!(see.code(succeed).await, "2D000", "{succeed}");
    }
    see.run("select pgonce.fail('s', 'k', '\\x01', 1, true, 'c', 'm')")
        .await;
    let retry = "select fence from pgonce.claim('s', 'k', '\\x01')";
    let fence = see.number(retry).await;
    let late = format!("select pgonce.succeed('s', 'k', '\\x01', {fence})");
    assert_eq!(see.code(&late).await, "2D000");
    see.run(&format!("begin; {retry}; {late}; commit")).await;
}

#[tokio::test]
async fn a_second_claim_in_one_transaction_is_busy() {
    let world = World::<pgonce::driver::tokio_postgres::TokioPostgres>::new().await;
    let see = &world.see;
    let claim = |key: &str| format!("select outcome from pgonce.claim('s', '{key}', '\\x01')");
    see.run("begin").await;
    assert_eq!(see.text(&claim("a")).await, "fresh");
    assert_eq!(see.text(&claim("b")).await, "fresh");
    assert_eq!(see.text(&claim("a")).await, "busy");
    assert_eq!(see.text(&claim("b")).await, "busy");
    // The SDK's own look at it leaves that to the claim.
    let fast = "select coalesce(outcome, 'ask') from pgonce._claim_fast('s', 'a', '\\x01')";
    assert_eq!(see.text(fast).await, "ask");
    // A savepoint takes the claim back, and its lock with it.
    see.run("savepoint s").await;
    assert_eq!(see.text(&claim("c")).await, "fresh");
    see.run("rollback to savepoint s").await;
    assert_eq!(see.text(&claim("c")).await, "fresh");
    see.run(
        "select pgonce.succeed('s', k, '\\x01', 1) from unnest(array['a', 'b', 'c']) k; commit",
    )
    .await;
    assert_eq!(see.text(&claim("a")).await, "replay");
}

async fn the_answer_of_another_intent_is_not_this_ones<D: TestDriver>(world: World<D>) {
    // The types ask for a `Done`; one that was got elsewhere is not enough.
    let _ = world.run(&intent("other")).await.unwrap();
    let request = intent("this");
    let end = world
        .once
        .run(&request, async |mut attempt| {
            effect(&mut attempt).await?;
            world.run(&intent("other")).await
        })
        .await;
    assert!(matches!(end, Err(Error::Invalid(_))), "{end:?}");
    world.see.wait_until_clean().await;
    assert_eq!(
        (
            world.see.records(&request).await,
            world.see.effects(&request).await
        ),
        (0, 0)
    );
    assert!(!world.run(&request).await.unwrap().replayed());
}

async fn commands_inside_a_command_are_commands_of_their_own<D: TestDriver>(world: World<D>) {
    let (outer, inner) = (intent("outer"), intent("inner"));
    let failed = world
        .once
        .run::<(), _, _>(&outer, async |mut attempt| {
            effect(&mut attempt).await?;
            let _ = world.run(&inner).await?;
            Err(Error::work("the outer one fails"))
        })
        .await;
    assert!(matches!(failed, Err(Error::Work(_))));
    assert_eq!(
        (
            world.see.effects(&outer).await,
            world.see.effects(&inner).await
        ),
        (0, 1)
    );
    // The same intent inside itself is busy, not a deadlock.
    let Claim::Run(attempt) = world.once.claim(&outer).await.unwrap() else {
        panic!("fresh")
    };
    assert!(matches!(
        world.once.run(&outer, work::<D>).await,
        Err(Error::Busy { .. })
    ));
    let _ = attempt.succeed(Ack::status()).await.unwrap();
}

/// What a user might send on `conn()` that ends the transaction.
const BY_HAND: [&str; 5] = [
    "commit",
    "rollback",
    "commit; begin",
    "rollback; begin",
    "rollback and chain",
];

async fn a_transaction_ended_by_hand_is_an_error_and_never_a_success<D: TestDriver>(
    world: World<D>,
) {
    let hour = Duration::from_secs(3600);
    for kind in ["fresh", "first", "retry", "leased", "contract known"] {
        for sql in BY_HAND {
            let request = intent(&format!("{kind}: {sql}"));
            let attempt = match kind {
                "leased" => {
                    let Claim::Run(lease) = world.once.lease(&request, hour).await.unwrap() else {
                        panic!("fresh")
                    };
                    lease.begin().await.unwrap()
                }
                "retry" => {
                    let Claim::Run(first) = world.once.claim(&request).await.unwrap() else {
                        panic!("fresh")
                    };
                    let later = Failure::transient("later", "not now");
                    first.fail(later).await.unwrap();
                    claimed(&world, &request).await
                }
                "contract known" => {
                    let teaches = intent(&format!("teaches: {sql}"));
                    assert!(!world.run(&teaches).await.unwrap().replayed());
                    claimed(&world, &request).await
                }
                "first" => claimed(&world, &request.clone().known_first()).await,
                _ => claimed(&world, &request).await,
            };
            let mut attempt = attempt;
            effect(&mut attempt).await.unwrap();
            D::exec(attempt.conn(), sql).await.unwrap();
            let end = attempt.succeed(Ack::status()).await;
            let error = end.expect_err(&format!("{kind}, {sql}"));
            assert_eq!(error.code(), "2D000", "{kind}, {sql}: {error}");
            assert_eq!(error.class(), Class::Final, "it is not tried again");
            world.see.wait_until_clean().await;
            let succeeded = "count(*) filter (where status = 'succeeded')";
            assert_eq!(
                world.see.record(&request, succeeded).await,
                "0",
                "{kind}, {sql}"
            );
        }
    }
    // The connections are as good as before.
    for n in 0..4 {
        assert!(
            !world
                .run(&intent(&format!("after {n}")))
                .await
                .unwrap()
                .replayed()
        );
    }
}

async fn claimed<D: TestDriver>(world: &World<D>, request: &Intent) -> Attempt<D> {
    match world.once.claim(request).await.unwrap() {
        Claim::Run(attempt) => attempt,
        other => panic!("{other:?}"),
    }
}

async fn a_savepoint_from_before_the_claim_takes_it_along<D: TestDriver>(world: World<D>) {
    let request = intent("savepoint");
    let see = &world.see;
    let print = digest_of(&request);
    see.run("begin; savepoint before").await;
    let claim = format!("select outcome from pgonce.claim('{SCOPE}', 'savepoint', {print})");
    assert_eq!(see.text(&claim).await, "fresh");
    assert_eq!(
        see.text("select pgonce._assert_same_transaction()").await,
        "t"
    );
    see.run("rollback to savepoint before").await;
    assert_eq!(
        see.code("select pgonce._assert_same_transaction()").await,
        "2D000"
    );
    see.run("rollback").await;
    assert!(!world.run(&request).await.unwrap().replayed());
}

async fn leased_work_cannot_answer_with_what_another_intent_got<D: TestDriver>(world: World<D>) {
    let request = intent("leased");
    let end = world
        .once
        .run_leased(&request, async |_| world.run(&intent("other")).await)
        .await;
    assert!(matches!(end, Err(Error::Invalid(_))), "{end:?}");
    assert_eq!(world.see.record(&request, "status").await, "processing");
}

for_each_driver!(
    a_transaction_ended_by_hand_is_an_error_and_never_a_success,
    a_savepoint_from_before_the_claim_takes_it_along,
    leased_work_cannot_answer_with_what_another_intent_got,
    the_answer_of_another_intent_is_not_this_ones,
    commands_inside_a_command_are_commands_of_their_own,
);
