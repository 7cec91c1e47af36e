//! The database is away for longer than leases last: nothing is reported as not done that may have been done.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use pgonce::driver::sqlx::Sqlx;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::scope::Contract;
use pgonce::{Attempt, ClaimKind, Error, Intent, Lease, Once, Result};
use pgonce_testkit::{Call, Entry, History, Outcome, storm};
use pgonce_tests::{Observer, TestDriver, World};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

const LEASE: Duration = Duration::from_secs(2);
const EFFECTS: &str = "select key as intent, amount from storm_effects order by at";
const TABLE: &str = "create table storm_effects (key text not null, attempt bigint not null, amount bigint not null, \
     at timestamptz not null default clock_timestamp())";

fn insert(call: &Call) -> String {
    format!(
        "insert into storm_effects (key, attempt, amount) values ('{}', {}, {})",
        call.intent, call.attempt, call.payload["amount"]
    )
}

/// The effect and its record commit together.
async fn atomic<D: TestDriver>(once: &Once<D>, call: &Call) -> Result<Value> {
    let intent = Intent::new("outages", &call.intent, &call.payload)?;
    let done = once.run(&intent, async |mut tx: Attempt<D>| {
        D::exec(tx.conn(), &insert(call)).await?;
        tx.succeed(&json!({ "attempt": call.attempt })).await
    });
    done.await?.into_answer()
}

/// The effect is outside, where no fault strikes. Who takes over looks whether it is there.
async fn leased<D: TestDriver>(once: &Once<D>, outside: &Observer, call: &Call) -> Result<Value> {
    let intent = Intent::new("outages", &call.intent, &call.payload)?;
    let done = once.run_leased(&intent, async |lease: Lease<D>| {
        let there = format!(
            "select count(*) from storm_effects where key = '{}'",
            call.intent
        );
        if lease.kind() == ClaimKind::Fresh || outside.number(&there).await == 0 {
            outside.run(&insert(call)).await;
        }
        lease.succeed(&json!({ "intent": call.intent })).await
    });
    done.await?.into_answer()
}

/// What a caller may believe.
fn outcome(got: Result<Value>) -> Outcome {
    match got {
        Ok(answer) => Outcome::Success(answer),
        Err(
            error @ (Error::Disconnected(_)
            | Error::Busy { .. }
            | Error::Failed(_)
            | Error::Conflict(_)
            | Error::Database(_)),
        ) => Outcome::Failed(error.code().to_owned()),
        Err(error) => Outcome::Unknown(error.to_string()),
    }
}

async fn survive<D: TestDriver>(is_leased: bool) {
    let world = World::<D>::new().await;
    world.see.run(TABLE).await;
    let contract = Contract::keep(Duration::from_secs(3600)).lease(LEASE);
    world
        .owner
        .define_scope("outages", &contract)
        .await
        .unwrap();
    let once = Arc::new(OnceCell::<Once<D>>::new());
    let outside = Arc::new(Observer::connect(&world.url()).await);
    let chosen = std::env::var("PGONCE_STORM_INTENTS").ok();
    let intents = chosen.map_or(60, |count| count.parse().unwrap());
    let report = storm(move |call: Call| {
        let (once, outside) = (once.clone(), outside.clone());
        async move {
            let connect = async || Once::builder(D::connect(&call.url, 8)).build().unwrap();
            let once = once.get_or_init(connect).await;
            outcome(match is_leased {
                true => leased(once, &outside, &call).await,
                false => atomic(once, &call).await,
            })
        }
    })
    .effects(EFFECTS)
    .intents(intents)
    .outages(2 + intents / 200, LEASE * 3 / 2)
    .max_duration(Duration::from_secs(60 + intents))
    .call_timeout(Duration::from_secs(40))
    .recovery_timeout(Duration::from_secs(90))
    .run(&world.url())
    .await
    .unwrap();
    assert!(report.passed(), "{report}");
    failures_are_true(&world.see, &report.history).await;
}

/// What was reported as not done was not done by that attempt.
async fn failures_are_true(see: &Observer, history: &History) {
    let mut failed = BTreeSet::new();
    for entry in history.entries() {
        if let Entry::Outcome {
            attempt,
            outcome: Outcome::Failed(code),
            ..
        } = entry
        {
            failed.insert((attempt.to_string(), code));
        }
    }
    for row in see.rows("select attempt::text from storm_effects").await {
        let lie = failed
            .iter()
            .find(|(attempt, _)| Some(attempt) == row[0].as_ref());
        assert_eq!(lie, None, "it was done");
    }
}

#[tokio::test]
async fn atomic_work_survives_outages_longer_than_leases_with_sqlx() {
    survive::<Sqlx>(false).await;
}

#[tokio::test]
async fn atomic_work_survives_outages_longer_than_leases_with_tokio_postgres() {
    survive::<TokioPostgres>(false).await;
}

#[tokio::test]
async fn leased_work_survives_outages_longer_than_leases_with_sqlx() {
    survive::<Sqlx>(true).await;
}

#[tokio::test]
async fn leased_work_survives_outages_longer_than_leases_with_tokio_postgres() {
    survive::<TokioPostgres>(true).await;
}
