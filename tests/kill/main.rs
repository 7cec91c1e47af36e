//! Servers and workers are killed, stopped and replaced again and again; every intent still has one
//! effect and one answer.
//!
//! `KILL_COUNT` says how often the server, a relay or a consumer is killed under load; `make kill-tests` asks for many.

// `make kill-tests` prints its figures.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod address;
mod clocks;
mod consumers;
mod external;
mod failover;
mod load;
mod points;
mod process;
mod promises;
mod queue;
mod regions;
mod relays;
mod server;
mod zombies;

use std::sync::atomic::{AtomicI32, Ordering::SeqCst};
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use pgonce_testkit::wait_until;
use pgonce_tests::Observer;

/// No single wait is longer than this.
const TIMEOUT: Duration = Duration::from_secs(180);

/// Strikes at each of these points, at some of them at a time: with all at once, processes on a busy machine lose their short leases
/// again and again and never come by.
async fn at_each<F: Future>(
    points: &'static [&'static str],
    strike: impl Fn(&'static str) -> F,
) -> Vec<F::Output> {
    let strikes = stream::iter(points).map(|point| strike(point));
    strikes.buffered(4).collect().await
}

/// Waits until a session of this application sleeps until another attempt has ended; its pid. (A
/// session may wait for other locks too, for a moment.)
async fn asleep(see: &Observer, application: &str) -> i32 {
    let sleepers = format!(
        "select pid from pg_stat_activity where datname = current_database() and application_name = '{application}' and wait_event = 'advisory'"
    );
    let pid = AtomicI32::new(0);
    wait_until("a session that sleeps", TIMEOUT, || async {
        let rows = see.rows(&sleepers).await;
        let found = rows.first().and_then(|row| row[0].as_deref()?.parse().ok());
        pid.store(found.unwrap_or_default(), SeqCst);
        found.is_some()
    })
    .await
    .unwrap();
    pid.into_inner()
}

/// How often the server, a relay or a consumer is killed under load.
fn kills() -> usize {
    match std::env::var("KILL_COUNT") {
        Ok(text) => text.parse().expect("KILL_COUNT is a number"),
        Err(_) => 6,
    }
}
