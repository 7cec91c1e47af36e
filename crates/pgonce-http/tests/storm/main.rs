//! A storm over the whole HTTP layer: clients are cut off at every point of a request, connections to
//! PostgreSQL at random messages, sessions are killed, the database is away for longer than leases last, twins come in between.
//! Then what every client got is compared with a table in which nothing is unique.
//!
//! Each storm prints its seed when it fails. `PGONCE_STORM_SEED=… cargo test -p pgonce-http --test storm`
//! draws the same cuts again (clients run at the same time, so they may meet other moments);
//! `PGONCE_STORM_INTENTS=2000` makes every storm longer than the usual 24 intents.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
#![allow(
    clippy::print_stdout,
    reason = "shown with --nocapture, and where a test fails"
)]

mod client;
mod service;
mod unknown;
// The storm needs a part of what the other tests do.
#[allow(dead_code, unused_imports, unused_macros)]
#[path = "../http/support.rs"]
mod support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use pgonce::driver::sqlx::Sqlx;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce_testkit::checker::{self, Effect, Kind};
use pgonce_testkit::{Call, Entry, History, Outcome, storm};
use service::{Mode, Shore};
use support::{TestDriver, World};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn atomic_work_happens_once_in_a_storm_with_sqlx() {
    survive::<Sqlx>(Mode::Atomic).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn atomic_work_happens_once_in_a_storm_with_tokio_postgres() {
    survive::<TokioPostgres>(Mode::Atomic).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leased_work_happens_once_in_a_storm_with_sqlx() {
    survive::<Sqlx>(Mode::Leased).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leased_work_happens_once_in_a_storm_with_tokio_postgres() {
    survive::<TokioPostgres>(Mode::Leased).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_behind_the_gateway_happens_once_in_a_storm() {
    survive::<TokioPostgres>(Mode::Gateway).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_without_the_layer_does_not_survive_the_storm() {
    let world = World::<Sqlx>::new().await;
    world.run_sql(service::TABLE).await;
    let shore = Arc::new(Shore::<Sqlx>::new(&world, Mode::Off));
    let report = storm(move |call: Call| {
        let shore = shore.clone();
        async move { client::attempt(shore.address(&call.url).await, call, 1).await }
    });
    let report = report.effects(EFFECTS).intents(8).cuts(false);
    let report = report.run(&url(&world)).await.unwrap();
    assert!(report.verdict.has(Kind::Duplicate), "{report}");
}

const EFFECTS: &str = "select key as intent, amount, payload from storm_effects order by at";

fn url(world: &World) -> String {
    let (port, database) = (world.port, &world.database);
    format!("postgres://postgres@127.0.0.1:{port}/{database}")
}

fn chosen(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{variable} is no number: {text:?}")),
    )
}

async fn survive<D: TestDriver>(mode: Mode) {
    let seed = chosen("PGONCE_STORM_SEED").unwrap_or_else(rand::random);
    let intents = chosen("PGONCE_STORM_INTENTS").unwrap_or(24);
    let world = World::<Sqlx>::new().await;
    world.run_sql(service::TABLE).await;
    world.leased(service::policy()).agree().await.unwrap();
    let shore = Arc::new(Shore::<D>::new(&world, mode));
    let url = url(&world);
    let stormed = shore.clone();
    let report = storm(move |call: Call| {
        let shore = stormed.clone();
        async move { client::attempt(shore.address(&call.url).await, call, seed).await }
    })
    .effects(EFFECTS)
    .intents(intents)
    .duplicates(3)
    // Not what ends it: on a busy machine everything takes longer.
    .max_duration(Duration::from_secs(60 + intents))
    // Longer than any time limit of the service: it answers by itself.
    .call_timeout(Duration::from_secs(30))
    .recovery_timeout(Duration::from_secs(60))
    .kills(true)
    // Longer than a lease: who was at work cannot record it before another may take over.
    .outages(2 + intents / 200, Duration::from_secs(3))
    .conflicts(true)
    .seed(seed);
    let report = client::CUTS
        .iter()
        .fold(report, |storm, cut| storm.require(cut.name(), intents / 12))
        .require("replay", intents / 2)
        .require("success after unknown", intents / 4)
        .require("overlap", intents / 2)
        .require("failed:P4002", intents / 6)
        .run(&url)
        .await
        .unwrap();
    println!("PGONCE_STORM_SEED={seed} {mode:?}, {report}");
    assert!(report.passed(), "PGONCE_STORM_SEED={seed}\n{report}");
    // Work whose client is gone may have gone on after the storm was judged.
    shore.drained().await;
    let decision = checker::check(&report.history, &Effect::read(&url, EFFECTS).await.unwrap());
    assert!(decision.passed(), "PGONCE_STORM_SEED={seed}\n{decision}");
    failures_are_true(&world, &report.history, seed).await;
}

/// "Nothing happened" was true wherever it was said. The checker takes a failure for true where another
/// attempt has succeeded; here every effect says whose it is.
async fn failures_are_true(world: &World, history: &History, seed: u64) {
    let done: Vec<i64> = sqlx::query_scalar("select attempt from storm_effects")
        .fetch_all(&world.pool)
        .await
        .unwrap();
    let mut failed = BTreeMap::new();
    for entry in history.entries() {
        if let Entry::Outcome {
            attempt,
            outcome: Outcome::Failed(code),
            ..
        } = entry
        {
            failed.insert(i64::try_from(attempt).unwrap(), code);
        }
    }
    for attempt in done {
        assert_eq!(
            failed.get(&attempt),
            None,
            "attempt {attempt} was answered that nothing happened, and it did: PGONCE_STORM_SEED={seed}"
        );
    }
}
