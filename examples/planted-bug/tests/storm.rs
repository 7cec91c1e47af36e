//! The storm finds the planted bug, and nothing wrong with the other handler.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::time::Duration;

use pgonce::driver::sqlx::Sqlx;
use pgonce::migrate::Migrator;
use pgonce::{Error, Once};
use pgonce_testkit::checker::Kind;
use pgonce_testkit::{Call, Database, Outcome, Report, shared, storm};
use sqlx::PgPool;
use tokio::sync::OnceCell;

const EFFECTS: &str = "select key as intent, amount from payment";

async fn database() -> Database {
    let server = shared(None).await.unwrap();
    let prepared = server.template("payments", async |url: String| -> pgonce::Result<()> {
        let pool = PgPool::connect(&url).await?;
        Migrator::new(Sqlx::new(pool.clone())).up().await?;
        sqlx::raw_sql(planted_bug::SCHEMA).execute(&pool).await?;
        pool.close().await;
        Ok(())
    });
    prepared.await.unwrap();
    server.database_from("payments").await.unwrap()
}

fn amount(call: &Call) -> i64 {
    call.payload["amount"].as_i64().unwrap()
}

#[expect(clippy::print_stderr, reason = "for a run with --nocapture")]
fn show(report: &Report) {
    eprintln!("{report}\n");
}

#[tokio::test]
async fn the_storm_finds_the_planted_bug() {
    static POOL: OnceCell<PgPool> = OnceCell::const_new();

    let report = storm(|call: Call| async move {
        let pool = POOL
            .get_or_init(async || PgPool::connect_lazy(&call.url).unwrap())
            .await;
        match planted_bug::pay_wrongly(pool, &call.intent, amount(&call)).await {
            Ok(payment) => Outcome::Success(payment.into()),
            Err(error) => Outcome::Unknown(error.to_string()),
        }
    })
    .effects(EFFECTS)
    .intents(30)
    .run(&database().await.url())
    .await
    .unwrap();

    show(&report);
    assert!(
        report.verdict.has(Kind::Duplicate),
        "somebody paid twice: {report}"
    );
    assert!(
        report.verdict.has(Kind::SumChanged),
        "and the report shows it: {report}"
    );
}

#[tokio::test]
async fn the_storm_finds_nothing_wrong_with_pgonce() {
    static ONCE: OnceCell<Once<Sqlx>> = OnceCell::const_new();

    let report = storm(|call: Call| async move {
        let once = ONCE
            .get_or_init(async || Once::sqlx(PgPool::connect_lazy(&call.url).unwrap()))
            .await;
        match planted_bug::pay(once, &call.intent, amount(&call)).await {
            Ok((payment, replayed)) => {
                if replayed {
                    call.saw("replay");
                }
                Outcome::Success(payment.into())
            }
            // Certain that this attempt did nothing; all else is not.
            Err(error @ (Error::Busy { .. } | Error::Conflict(_))) => {
                Outcome::Failed(error.code().to_owned())
            }
            Err(error) => Outcome::Unknown(error.to_string()),
        }
    })
    .effects(EFFECTS)
    .intents(100)
    .kills(true)
    .conflicts(true)
    // The count ends it, however slow the machine is.
    .max_duration(Duration::from_secs(300))
    .require("replay", 100)
    .require("failed:P4002", 50)
    .run(&database().await.url())
    .await
    .unwrap();

    show(&report);
    report.assert_exactly_once();
}
