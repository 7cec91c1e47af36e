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
/// at most half of one connection. Partitions are kept first, and again after `purge_every` at the latest: neither a purge that
/// fails nor one with much to do keeps them waiting.
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
        if let Err(error) = once.outbox().maintain().await {
            tracing::warn!(%error, "the outbox could not be maintained; it is tried again");
        }
        if let Err(error) = once.inbox().maintain().await {
            tracing::warn!(%error, "the inbox could not be maintained; it is tried again");
        }
        let more = match sweep(&once, batch, every, &stop).await {
            Ok(more) => {
                gauge!("pgonce_purge_last_success_timestamp_seconds").set(now());
                more
            }
            Err(error) => {
                tracing::warn!(%error, "purge failed; it is tried again");
                false
            }
        };
        if stop.is_cancelled() || !more && !pause(&stop, every).await {
            return;
        }
    }
}

/// Answers whether there is more to purge.
async fn sweep(
    once: &Once<TokioPostgres>,
    batch: u32,
    limit: Duration,
    stop: &CancellationToken,
) -> Result<bool, Error> {
    let round = tokio::time::Instant::now();
    loop {
        let began = tokio::time::Instant::now();
        let count = once.purge(batch).await?;
        counter!("pgonce_purged_total").increment(count);
        if count < u64::from(batch) || !pause(stop, began.elapsed()).await {
            return Ok(false);
        }
        if round.elapsed() > limit {
            return Ok(true);
        }
    }
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

/// Decides about work whose holder vanished, as its contract says.
pub(super) async fn recovery(
    once: Once<TokioPostgres>,
    settings: Changes,
    stop: CancellationToken,
) {
    loop {
        let (every, probe_timeout) = {
            let settings = settings.borrow();
            (settings.recovery_every, settings.probe_timeout)
        };
        let recovery = once.recovery().probe_timeout(probe_timeout);
        match recovery.run_once().await {
            Ok(recovered) => {
                for (decision, count) in [
                    ("succeeded", recovered.succeeded),
                    ("released", recovered.released),
                    ("abandoned", recovered.abandoned),
                    ("needs_manual_action", recovered.needs_manual_action),
                    ("unknown", recovered.unknown),
                ] {
                    counter!("pgonce_recovered_total", "decision" => decision).increment(count);
                }
            }
            Err(error) => tracing::warn!(%error, "recovery failed; it is tried again"),
        }
        if stop.is_cancelled() || !pause(&stop, every).await {
            return;
        }
    }
}

fn now() -> f64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.unwrap_or_default().as_secs_f64()
}
