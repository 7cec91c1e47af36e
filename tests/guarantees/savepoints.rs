//! Transactions that the work nests inside an attempt never end the attempt's own.

use pgonce::driver::sqlx::Sqlx;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::{Ack, Claim};
use pgonce_tests::{TestDriver, World, effect, for_each_driver, intent, work};
use sqlx::Connection as _;

const EFFECT: &str = "insert into effects values ('', 'orders.create', 'nested')";

#[tokio::test]
async fn a_nested_begin_of_sqlx_is_a_savepoint() {
    let world = World::<Sqlx>::new().await;
    let request = intent("nested");
    let Claim::Run(mut attempt) = world.once.claim(&request).await.unwrap() else {
        panic!("fresh")
    };
    effect(&mut attempt).await.unwrap();

    let mut kept = attempt.conn().begin().await.unwrap();
    sqlx::query(EFFECT).execute(&mut *kept).await.unwrap();
    kept.commit().await.unwrap();
    assert_eq!(
        world.see.effects(&request).await,
        0,
        "nothing is committed yet"
    );
    assert!(matches!(
        world.once.claim(&request).await.unwrap(),
        Claim::Busy { .. }
    ));

    for rolled_back in [true, false] {
        let mut undone = attempt.conn().begin().await.unwrap();
        sqlx::query(EFFECT).execute(&mut *undone).await.unwrap();
        if rolled_back {
            undone.rollback().await.unwrap()
        } else {
            drop(undone)
        }
    }
    // An error inside a savepoint does not doom the attempt.
    let mut failed = attempt.conn().begin().await.unwrap();
    assert!(
        sqlx::query("select 1/0")
            .execute(&mut *failed)
            .await
            .is_err()
    );
    failed.rollback().await.unwrap();

    let _ = attempt.succeed(Ack::status()).await.unwrap();
    assert_eq!(world.see.effects(&request).await, 2);
}

#[tokio::test]
async fn a_nested_begin_that_is_never_ended_is_no_success() {
    let world = World::<Sqlx>::new().await;
    let once = world.another("forgetful", 1, |b| b);
    let request = intent("nested");
    let Claim::Run(mut attempt) = once.claim(&request).await.unwrap() else {
        panic!("fresh")
    };
    effect(&mut attempt).await.unwrap();
    std::mem::forget(attempt.conn().begin().await.unwrap());
    assert_eq!(
        attempt.succeed(Ack::status()).await.unwrap_err().code(),
        "2D000"
    );
    assert_eq!(world.see.effects(&request).await, 0);
    assert!(!once.run(&request, work::<Sqlx>).await.unwrap().replayed());
    assert_eq!(world.see.effects(&request).await, 1);
}

async fn an_error_that_the_work_swallows_never_becomes_a_success<D: TestDriver>(world: World<D>) {
    // COMMIT of a failed transaction answers ROLLBACK without an error.
    let request = intent("swallowed");
    let Claim::Run(mut attempt) = world.once.claim(&request).await.unwrap() else {
        panic!("fresh")
    };
    effect(&mut attempt).await.unwrap();
    let _ = D::exec(attempt.conn(), "select 1/0").await.unwrap_err();
    assert_eq!(
        attempt.succeed(Ack::status()).await.unwrap_err().code(),
        "25P02"
    );
    assert_eq!(
        (
            world.see.effects(&request).await,
            world.see.records(&request).await
        ),
        (0, 0)
    );
    assert!(!world.run(&request).await.unwrap().replayed());
}

async fn a_commit_that_the_database_refuses_leaves_nothing_and_a_clean_connection<D: TestDriver>(
    world: World<D>,
) {
    let once = world.another("one connection", 1, |b| b);
    let request = intent("deferred");
    for _ in 0..3 {
        let Claim::Run(mut attempt) = once.claim(&request).await.unwrap() else {
            panic!("fresh")
        };
        effect(&mut attempt).await.unwrap();
        D::exec(
            attempt.conn(),
            "insert into checked_at_commit values (1), (1)",
        )
        .await
        .unwrap();
        assert_eq!(
            attempt.succeed(Ack::status()).await.unwrap_err().code(),
            "23505"
        );
        assert_eq!(
            (
                world.see.effects(&request).await,
                world.see.records(&request).await
            ),
            (0, 0)
        );
    }
    assert!(!once.run(&request, work::<D>).await.unwrap().replayed());
    assert_eq!(world.see.effects(&request).await, 1);
}

#[tokio::test]
async fn a_savepoint_by_hand_works_with_tokio_postgres() {
    let world = World::<TokioPostgres>::new().await;
    let request = intent("nested");
    let Claim::Run(mut attempt) = world.once.claim(&request).await.unwrap() else {
        panic!("fresh")
    };
    let conn = attempt.conn();
    conn.batch_execute("savepoint a").await.unwrap();
    assert!(conn.batch_execute("select 1/0").await.is_err());
    conn.batch_execute("rollback to savepoint a").await.unwrap();
    conn.batch_execute(EFFECT).await.unwrap();
    let _ = attempt.succeed(Ack::status()).await.unwrap();
    assert_eq!(world.see.effects(&request).await, 1);
}

for_each_driver!(
    an_error_that_the_work_swallows_never_becomes_a_success,
    a_commit_that_the_database_refuses_leaves_nothing_and_a_clean_connection,
);
