//! Memory stays within the caps, however many upload at once.
//!
//! A process of its own, and one test in it: what the process held at most is asked of the kernel, which has
//! been written down since it began.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
#![allow(clippy::print_stdout, reason = "shown with --nocapture")]

// One service over a real database, as the other tests have it.
#[allow(dead_code, unused_imports, unused_macros)]
#[path = "../http/support.rs"]
mod support;
mod uploads;

use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::routing::post;
use http::StatusCode;
use pgonce::driver::sqlx::Sqlx;
use pgonce_http::{Budget, Caller, HandlerError, Key, Policy, Tx};
use support::{SCOPE, Site, World, leave_effect, until};
use uploads::{Held, MAX_BODY, MIB, SIZE};

const BUDGET: usize = 16 * MIB;

async fn weigh(
    mut tx: Tx<Sqlx>,
    key: Key,
    body: Bytes,
) -> Result<(StatusCode, String), HandlerError> {
    let weight = body.len().to_string();
    leave_effect(&mut tx, &key, &weight).await?;
    Ok((StatusCode::CREATED, weight))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_large_uploads_at_once_stay_within_the_budget_and_nobody_is_served_unsaid() {
    uploads::prepare();
    let world = World::<Sqlx>::new().await;
    let budget = Budget::bytes(BUDGET);
    // Nobody is to be turned away for being slow on a busy machine.
    let policy = Policy::new(SCOPE, Caller::None)
        .max_body(MAX_BODY)
        .body_timeout(Duration::from_secs(600))
        .database_timeout(Duration::from_secs(60));
    let layer = world.atomic(policy).budget(budget.clone());
    let router = Router::new().route("/effects", post(weigh).layer(layer));
    let site = Site::open(router).await;
    assert_eq!(site.post("/effects", "before", "a book").await.status, 201);

    let process = std::process::id();
    let before = Held::by(process);
    let answers = uploads::at_once(&site.address, async || {
        assert!(budget.free() < BUDGET, "nobody is slow");
    })
    .await;
    // Both ends of each connection are in this process.
    before.check(process, BUDGET);
    println!("{answers:?}");
    let done = answers.check();

    // And it serves as before: the budget is free, each upload that was acknowledged is there once.
    until("the budget to be given back", || async {
        budget.free() == BUDGET
    })
    .await;
    // Without a flood, every client that is refused in the middle of sending gets the reason.
    let reply = uploads::too_large_alone(&site.address, 20).await;
    assert_eq!(reply, [413; 20]);
    let large = "y".repeat(SIZE);
    assert_eq!(site.post("/effects", "after", large).await.status, 201);
    assert_eq!(world.effects().await, 2 + i64::try_from(done).unwrap());
}
