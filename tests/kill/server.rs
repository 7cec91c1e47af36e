//! The server is killed again and again under load.

use std::time::{Duration, Instant};

use pgonce::Once;
use pgonce::driver::sqlx::Sqlx;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce_testkit::{Entry, History, Outcome, Postgres, checker::Coverage};
use pgonce_tests::{Observer, TestDriver as _, install};

use crate::load::{Load, verdict};

/// How soon everybody is back at work after the server is.
const MAX_RECOVERY: Duration = Duration::from_secs(3);

/// More kills follow until enough of them met an attempt before its COMMIT: by chance a few may meet only
/// attempts that are then in doubt. At most so many times as many.
const MAX_ROUNDS: usize = 5;

/// Attempts that certainly did nothing, for want of the server.
fn disconnected(history: &History) -> usize {
    let entries = history.entries();
    let failed = entries.iter().filter(|entry| {
        matches!(entry, Entry::Outcome { outcome: Outcome::Failed(code), .. } if code == "08006")
    });
    failed.count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_killed_under_load_duplicates_nothing_and_loses_nothing() {
    let kills = crate::kills();
    let server = Postgres::builder().start().await.unwrap();
    let database = server.create_database("kill").await.unwrap();
    let url = database.url();
    install(url.clone()).await.unwrap();
    Load::define(
        &Once::builder(TokioPostgres::connect(&url, 1))
            .build()
            .unwrap(),
    )
    .await;

    let mut load = Load::new();
    load.begin::<Sqlx>(&url);
    load.begin::<TokioPostgres>(&url);
    let mut pauses = Vec::new();
    for kill in 1..=MAX_ROUNDS * kills {
        load.busy_for_a_while().await;
        server.crash().await.unwrap();
        let dead = Instant::now();
        server.start_again().await.unwrap();
        let ready = Instant::now();
        load.history.saw("kill");
        for clients in &mut load.clients {
            pauses.push(clients.back_at(dead).await.saturating_duration_since(ready));
        }
        if kill >= kills && disconnected(&load.history) >= kills / 4 {
            break;
        }
    }
    let history = load.finish().await;

    let wanted = u64::try_from(kills).unwrap();
    let coverage = Coverage::new()
        .require("kill", wanted)
        .require("success", wanted * 10)
        .require("duplicate", wanted * 5)
        .require("takeover", wanted / 4)
        .require("failed:08006", wanted / 4);
    let verdict = verdict(&history, &url, &coverage).await;
    println!("{kills} kills: {verdict}");
    assert!(verdict.passed(), "{verdict}");
    Observer::connect(&url).await.wait_until_clean().await;

    pauses.sort();
    let p99 = pauses[(pauses.len() * 99).div_ceil(100) - 1];
    let (middle, worst) = (pauses[pauses.len() / 2], pauses[pauses.len() - 1]);
    println!("back at work after the server is: median {middle:?}, p99 {p99:?}, worst {worst:?}");
    assert!(p99 <= MAX_RECOVERY, "p99 {p99:?}, worst {worst:?}");
}
