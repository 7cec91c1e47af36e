//! The storm finds handlers that are wrong, and lets those pass that are right.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use pgonce_testkit::{Call, Database, Outcome, checker::Kind, shared, storm};
use sqlx::{PgPool, postgres::PgPoolOptions};
use tokio::sync::OnceCell;
use tokio_postgres::{Error, NoTls};

use crate::connect;

const EFFECTS: &str = "select key as intent, amount from payment";

async fn shop() -> Database {
    let server = shared(None).await.unwrap();
    let prepared = server.template("storm_shop", async |url: String| {
        let tables = "create table payment (id bigint generated always as identity, key text, amount bigint);
            create table done (key text primary key, request jsonb, answer bigint)";
        connect(&url).await.batch_execute(tables).await
    });
    prepared.await.unwrap();
    server.database_from("storm_shop").await.unwrap()
}

/// A connection of its own per call; marker and effect in one transaction.
async fn right(call: Call) -> Outcome {
    match try_right(&call).await {
        Ok(Some(answer)) => Outcome::Success(answer.into()),
        Ok(None) => Outcome::Failed("conflict".to_owned()),
        Err(error) => Outcome::Unknown(error.to_string()),
    }
}

async fn try_right(call: &Call) -> Result<Option<i64>, Error> {
    let (mut client, connection) = tokio_postgres::connect(&call.url, NoTls).await?;
    tokio::spawn(connection);
    let transaction = client.transaction().await?;
    let claim = "insert into done values ($1, $2) on conflict do nothing";
    if transaction
        .execute(claim, &[&call.intent, &call.payload])
        .await?
        == 1
    {
        let pay = "with paid as (insert into payment (key, amount) values ($1, $2) returning id)
            update done set answer = id from paid where key = $1";
        let amount = call.payload["amount"].as_i64();
        transaction.execute(pay, &[&call.intent, &amount]).await?;
    } else {
        call.saw("replay");
    }
    let answer = "select answer from done where key = $1 and request = $2";
    let answer = transaction
        .query_opt(answer, &[&call.intent, &call.payload])
        .await?;
    transaction.commit().await?;
    Ok(answer.map(|row| row.get(0)))
}

/// Looks, pays, and remembers, each in a transaction of its own.
async fn wrong(pool: &PgPool, call: &Call) -> Result<i64, sqlx::Error> {
    let known = "select answer from done where key = $1";
    let known = sqlx::query_scalar(known)
        .bind(&call.intent)
        .fetch_optional(pool)
        .await?;
    if let Some(answer) = known {
        return Ok(answer);
    }
    let pay = "insert into payment (key, amount) values ($1, $2) returning id";
    let amount = call.payload["amount"].as_i64();
    let paid: i64 = sqlx::query_scalar(pay)
        .bind(&call.intent)
        .bind(amount)
        .fetch_one(pool)
        .await?;
    let remember = "insert into done (key, answer) values ($1, $2)";
    sqlx::query(remember)
        .bind(&call.intent)
        .bind(paid)
        .execute(pool)
        .await?;
    Ok(paid)
}

#[tokio::test]
async fn a_right_handler_passes_under_every_kind_of_fault() {
    let database = shop().await;
    let report = storm(right)
        .effects(EFFECTS)
        .intents(40)
        .kills(true)
        .conflicts(true)
        // The count ends it, however slow the machine is.
        .max_duration(Duration::from_secs(300))
        .require("replay", 20)
        .require("failed:conflict", 10)
        .require("success after unknown", 5)
        .run(&database.url())
        .await
        .unwrap();
    report.assert_exactly_once();
    let outcome = report.to_string();
    assert!(
        outcome.contains(&format!("seed {}", report.seed)),
        "{outcome}"
    );
    assert_eq!(report.verdict.intents, 41, "{outcome}");
    assert!(report.faults.len() >= 10 && report.kills > 0, "{outcome}");
}

#[tokio::test]
async fn a_wrong_handler_with_a_shared_pool_is_found_by_duplicates_alone_and_by_cuts_alone() {
    for (duplicates, cuts) in [(3, false), (1, true)] {
        let database = shop().await;
        let pool = Arc::new(OnceCell::new());
        let report = storm(move |call: Call| {
            let pool = Arc::clone(&pool);
            async move {
                let connect = || PgPoolOptions::new().max_connections(8).connect(&call.url);
                let tried = match pool.get_or_try_init(connect).await {
                    Ok(pool) => wrong(pool, &call).await,
                    Err(error) => Err(error),
                };
                match tried {
                    Ok(answer) => Outcome::Success(answer.into()),
                    Err(error) => Outcome::Unknown(error.to_string()),
                }
            }
        })
        .effects(EFFECTS)
        .intents(200)
        .duplicates(duplicates)
        .cuts(cuts)
        .run(&database.url())
        .await
        .unwrap();
        assert!(report.verdict.has(Kind::Duplicate), "{report}");
        assert!(report.verdict.has(Kind::SumChanged), "{report}");
        // A pool keeps its connections: they are cut all the same.
        assert!(!report.verdict.has(Kind::TooLittleCovered), "{report}");
        assert_eq!(report.faults.len() > 40, cuts, "{report}");
    }
}

#[tokio::test]
async fn a_handler_that_says_success_too_early_is_found() {
    let database = shop().await;
    let report = storm(|call: Call| async move {
        let attempt = async {
            let (client, connection) = tokio_postgres::connect(&call.url, NoTls).await?;
            tokio::spawn(connection);
            client
                .execute("insert into payment (key) values ($1)", &[&call.intent])
                .await
        };
        let _ignored = attempt.await;
        Outcome::Success("fine".into())
    })
    .effects(EFFECTS)
    .duplicates(1)
    .intents(30)
    .run(&database.url())
    .await
    .unwrap();
    assert!(!report.passed());
    assert!(report.verdict.has(Kind::Duplicate), "{report}");
}

#[tokio::test]
async fn a_storm_ends_in_time_and_checks_what_was_begun() {
    let database = shop().await;
    let report = storm(right)
        .effects(EFFECTS)
        .intents(1_000_000)
        .max_duration(Duration::from_millis(300))
        .run(&database.url())
        .await
        .unwrap();
    report.assert_exactly_once();
    assert!(report.took < Duration::from_secs(60), "{report}");
}

#[tokio::test]
async fn what_was_there_before_is_not_judged_and_storms_can_follow_each_other() {
    let database = shop().await;
    let old = "insert into payment (key, amount) values ('old', 1), ('old', 1)";
    connect(&database.url())
        .await
        .batch_execute(old)
        .await
        .unwrap();
    for _ in 0..2 {
        let calm = storm(right).effects(EFFECTS).intents(3).seed(7).cuts(false);
        let report = calm.run(&database.url()).await.unwrap();
        report.assert_exactly_once();
        assert_eq!((report.seed, report.faults.len()), (7, 0));
    }
}

#[tokio::test]
async fn an_intent_that_never_gets_an_answer_is_found() {
    let database = shop().await;
    let calls = AtomicU64::new(0);
    let report = storm(move |call: Call| {
        let first = calls.fetch_add(1, SeqCst) == 0;
        async move {
            match first || call.payload["amount"] == 2 {
                true => right(call).await,
                false => panic!("as handlers do"),
            }
        }
    })
    .effects(EFFECTS)
    .intents(2)
    .cuts(false)
    .recovery_timeout(Duration::from_millis(100))
    .require("panic", 1)
    .run(&database.url())
    .await
    .unwrap();
    assert!(report.verdict.has(Kind::NeverAnswered), "{report}");
    assert!(!report.verdict.has(Kind::Duplicate), "{report}");
}

#[tokio::test]
async fn a_storm_that_cannot_begin_says_why() {
    let database = shop().await;
    let url = database.url();
    let no_query = storm(right).run(&url).await.unwrap_err().to_string();
    assert!(no_query.contains(".effects("), "{no_query}");
    let bad_query = storm(right)
        .effects("select 1 from nowhere")
        .run(&url)
        .await;
    assert!(bad_query.unwrap_err().to_string().contains("42P01"));
    let failing = storm(|_: Call| async { Outcome::Failed("no".into()) });
    let failing = failing
        .effects(EFFECTS)
        .run(&url)
        .await
        .unwrap_err()
        .to_string();
    assert!(
        failing.contains("expected success without any fault"),
        "{failing}"
    );
    let bad_url = storm(right).effects(EFFECTS).run("mysql://x").await;
    assert!(
        bad_url
            .unwrap_err()
            .to_string()
            .contains("postgres://user@host")
    );
}

#[test]
fn a_storm_can_be_awaited_in_a_spawned_task() {
    fn sendable<T: Send>(_: impl Fn() -> T) {}
    sendable(|| storm(right).run(""));
}

#[test]
fn the_guide_shows_the_test_that_runs() {
    let page = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/src/how-to/storm-your-own.md"
    );
    let page = std::fs::read_to_string(page).unwrap();
    assert!(
        page.contains(include_str!("guide.rs")),
        "copy tests/storm/guide.rs to the page"
    );
}
