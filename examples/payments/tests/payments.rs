//! What the example promises, on a real PostgreSQL and over real sockets.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::time::Duration;

use payments::simulator::Kind;
use payments::storm;

async fn storm(keys: bool, look_up: bool) -> storm::Verdict {
    let database = storm::database().await.unwrap();
    let time = Duration::from_secs(1);
    let verdict = storm::run(&database.url(), Kind { keys, look_up }, time)
        .await
        .unwrap();
    assert_eq!(
        verdict.faults, [""; 0],
        "keys {keys}, look-up {look_up}\n{verdict}"
    );
    assert!(verdict.confirmed > 0, "{verdict}");
    verdict
}

#[tokio::test]
async fn the_books_agree_whatever_the_provider_does() {
    storm(true, true).await;
    storm(false, true).await;
    let alone = storm(false, false).await;
    assert!(
        alone.waiting > 0,
        "what nobody can know waits for an operator"
    );
}
