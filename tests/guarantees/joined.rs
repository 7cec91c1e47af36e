//! A claim inside the user's own transaction lives and dies with it.

use std::time::Duration;

use pgonce::driver::sqlx::Sqlx;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::{Ack, Claim, ClaimKind, Error, Failure};
use pgonce_tests::{World, intent};

const EFFECT: &str = "insert into effects values ('', 'orders.create', 'joined')";

#[tokio::test]
async fn with_sqlx_it_commits_and_rolls_back_with_the_users_transaction() {
    let world = World::<Sqlx>::new().await;
    let request = intent("joined").correlation("request-7");
    let once = world.another("joining", 3, |b| b.owner("pod-7"));
    let pool = once.driver().pool().clone();
    for commit in [false, true] {
        let mut tx = pool.begin().await.unwrap();
        let Claim::Run(mut joined) = once.join(&mut tx, &request).await.unwrap() else {
            panic!("fresh")
        };
        assert_eq!((joined.kind(), joined.fence()), (ClaimKind::Fresh, 1));
        assert!(matches!(
            world.once.claim(&request).await.unwrap(),
            Claim::Busy { .. }
        ));
        sqlx::query(EFFECT).execute(joined.conn()).await.unwrap();
        let _ = joined.succeed("mine").await.unwrap();
        assert_eq!(world.see.records(&request).await, 0);
        if commit {
            tx.commit().await.unwrap()
        } else {
            tx.rollback().await.unwrap()
        }
        let n = i64::from(commit);
        assert_eq!(
            (
                world.see.records(&request).await,
                world.see.effects(&request).await
            ),
            (n, n)
        );
    }
    assert_eq!(
        world.see.record(&request, "owner || correlation_id").await,
        "pod-7request-7"
    );
    let mut tx = pool.begin().await.unwrap();
    let Claim::Replay(done) = once.join(&mut tx, &request).await.unwrap() else {
        panic!("replay")
    };
    assert_eq!(done.read::<String>().unwrap(), "mine");
    tx.commit().await.unwrap();
}

#[tokio::test]
async fn with_tokio_postgres_it_commits_and_rolls_back_with_the_users_transaction() {
    let world = World::<TokioPostgres>::new().await;
    let request = intent("joined");
    let mut client = world.once.driver().pool().get().await.unwrap();
    for commit in [false, true] {
        let mut tx = client.transaction().await.unwrap();
        let Claim::Run(joined) = world.once.join(&mut tx, &request).await.unwrap() else {
            panic!("fresh")
        };
        let mut joined = joined;
        joined.conn().batch_execute(EFFECT).await.unwrap();
        let _ = joined.succeed("mine").await.unwrap();
        if commit {
            tx.commit().await.unwrap()
        } else {
            tx.rollback().await.unwrap()
        }
        let n = i64::from(commit);
        assert_eq!(
            (
                world.see.records(&request).await,
                world.see.effects(&request).await
            ),
            (n, n)
        );
    }
    let mut tx = client.transaction().await.unwrap();
    assert!(matches!(
        world.once.join(&mut tx, &request).await.unwrap(),
        Claim::Replay(_)
    ));
}

#[tokio::test]
async fn with_sqlx_a_session_that_forgot_its_statements_works_again_after_one_error() {
    let world = World::<Sqlx>::new().await;
    let once = world.another("joining", 1, |b| b);
    let pool = once.driver().pool().clone();
    for (key, forgets, joins) in FORGETFUL {
        let mut tx = pool.begin().await.unwrap();
        let joined = once.join(&mut tx, &intent(key)).await;
        assert_eq!(joined.is_ok(), joins, "{key}: {joined:?}");
        drop(joined);
        tx.rollback().await.unwrap();
        if forgets {
            sqlx::query("discard all").execute(&pool).await.unwrap();
        }
    }
}

#[tokio::test]
async fn with_tokio_postgres_a_session_that_forgot_its_statements_works_again_after_one_error() {
    let world = World::<TokioPostgres>::new().await;
    let once = world.another("joining", 1, |b| b);
    for (key, forgets, joins) in FORGETFUL {
        let mut client = once.driver().pool().get().await.unwrap();
        let mut tx = client.transaction().await.unwrap();
        let joined = once.join(&mut tx, &intent(key)).await;
        assert_eq!(joined.is_ok(), joins, "{key}: {joined:?}");
        drop(joined);
        tx.rollback().await.unwrap();
        if forgets {
            client.batch_execute("discard all").await.unwrap();
        }
    }
}

/// Key, whether the session forgets everything afterwards, and whether the claim works.
const FORGETFUL: [(&str, bool, bool); 4] = [
    ("first", true, true),
    ("forgotten", false, false),
    ("prepared anew", false, true),
    ("as before", false, true),
];

#[tokio::test]
async fn it_joins_a_retry_a_takeover_a_refusal_and_a_conflict() {
    let world = World::<Sqlx>::new().await;
    let pool = world.once.driver().pool().clone();
    let failing = async |key: &str, failure: Failure| {
        let _ = world
            .once
            .run::<(), _, _>(&intent(key), async |_| Err(failure.clone().into()))
            .await
            .unwrap_err();
    };
    failing("retry", Failure::transient("later", "m")).await;
    failing("refused", Failure::permanent("no", "m")).await;
    let _lease = world
        .once
        .lease(&intent("takeover"), Duration::from_secs(60))
        .await
        .unwrap();
    world
        .see
        .run("update pgonce.intent set lease_until = pgonce.now() where status = 'processing'")
        .await;
    for (key, kind) in [
        ("retry", ClaimKind::Retry),
        ("takeover", ClaimKind::Takeover),
    ] {
        let mut tx = pool.begin().await.unwrap();
        let Claim::Run(joined) = world.once.join(&mut tx, &intent(key)).await.unwrap() else {
            panic!("{key}")
        };
        assert_eq!(joined.kind(), kind);
        let (done, _) = joined.succeed(Ack::status()).await.unwrap();
        assert_eq!(done.attempts(), 2);
        tx.commit().await.unwrap();
        assert!(world.run(&intent(key)).await.unwrap().replayed());
    }
    let mut tx = pool.begin().await.unwrap();
    assert!(matches!(
        world.once.join(&mut tx, &intent("refused")).await.unwrap(),
        Claim::Refused(_)
    ));
    let other = pgonce::Intent::new("orders.create", "refused", "another request").unwrap();
    assert!(matches!(
        world.once.join(&mut tx, &other).await,
        Err(Error::Conflict(_))
    ));
    drop(tx);
    world.once.flush().await.unwrap();
    let counted = "select sum(refusals) = 1 and sum(conflicts) = 1 from pgonce.suppressed";
    world.see.wait_until(counted).await;
}
