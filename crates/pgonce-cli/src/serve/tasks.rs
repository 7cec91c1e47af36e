//! What runs now and then. Any number of instances may: SQL sees to it that each thing is done once.

use std::time::Duration;

use metrics::{counter, gauge};
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::{Error, Once};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::settings::Settings;

type Changes = watch::Receiver<Settings>;

/// Waits, or ends with `false` when it is time to stop.
async fn pause(stop: &CancellationToken, time: Duration) -> bool {
    tokio::select! {
        () = stop.cancelled() => false,
        () = tokio::time::sleep(time) => true,
    }
}

/// Purges expired records in bounded transactions, with as much time between them as each took: beside full load it takes
/// at most half of one connection.
pub(super) async fn retention(
    once: Once<TokioPostgres>,
    settings: Changes,
    stop: CancellationToken,
) {
    loop {
        let (every, batch) = {
            let settings = settings.borrow();
            (settings.purge_every, settings.purge_batch)
        };
        match sweep(&once, batch, &stop).await {
            Ok(purged) => {
                counter!("pgonce_purged_total").increment(purged);
                gauge!("pgonce_purge_last_success_timestamp_seconds").set(now());
            }
            Err(error) => tracing::warn!(%error, "purge failed; it is tried again"),
        }
        if !pause(&stop, every).await {
            return;
        }
    }
}

async fn sweep(
    once: &Once<TokioPostgres>,
    batch: u32,
    stop: &CancellationToken,
) -> Result<u64, Error> {
    let mut purged = 0;
    loop {
        let began = tokio::time::Instant::now();
        let count = once.purge(batch).await?;
        purged += count;
        if count < u64::from(batch) || !pause(stop, began.elapsed()).await {
            break;
        }
    }
    once.outbox().maintain().await?;
    once.inbox().maintain().await?;
    Ok(purged)
}

/// Lets due timers move their entities.
pub(super) async fn timers(once: Once<TokioPostgres>, settings: Changes, stop: CancellationToken) {
    const BATCH: u32 = 500;
    loop {
        let every = settings.borrow().timers_every;
        let fired = once.fire_timers(BATCH).await;
        match &fired {
            Ok(count) => counter!("pgonce_timers_fired_total").increment(*count),
            Err(error) => tracing::warn!(%error, "timers could not be fired; it is tried again"),
        }
        let more = fired.is_ok_and(|count| count >= u64::from(BATCH));
        if stop.is_cancelled() || !more && !pause(&stop, every).await {
            return;
        }
    }
}

fn now() -> f64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.unwrap_or_default().as_secs_f64()
}
