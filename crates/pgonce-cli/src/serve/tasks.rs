//! What runs now and then. Any number of instances may: SQL sees to it that each thing is done once.

use std::sync::Arc;
use std::time::Duration;

use metrics::{counter, gauge};
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::{Error, Once};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::health::Health;
use super::settings::Settings;
use crate::exit::Result as Ended;

type Changes = watch::Receiver<Settings>;

/// Waits, or ends with `false` when it is time to stop. New settings count at once.
async fn pause(stop: &CancellationToken, settings: &mut Changes, time: Duration) -> bool {
    let changed = async {
        if settings.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        () = stop.cancelled() => false,
        () = tokio::time::sleep(time) => true,
        () = changed => true,
    }
}

/// Purges expired records and ended jobs in bounded transactions, with three times as long between them as each took: beside full load it
/// takes at most a quarter of one connection. Partitions are kept first, and again after `purge_every` at the latest: neither a purge that
/// fails nor one with much to do keeps them waiting.
pub(super) async fn retention(
    once: Once<TokioPostgres>,
    mut settings: Changes,
    stop: CancellationToken,
    health: Arc<Health>,
) -> Ended {
    loop {
        let (every, batch) = {
            let settings = settings.borrow_and_update();
            (settings.purge_every, settings.purge_batch)
        };
        let kept = once.outbox().maintain().await;
        health.report("keeping the outbox", &kept);
        if let Err(error) = kept {
            tracing::warn!(%error, "the outbox could not be maintained; it is tried again");
        }
        let kept = once.inbox().maintain().await;
        health.report("keeping the inbox", &kept);
        if let Err(error) = kept {
            tracing::warn!(%error, "the inbox could not be maintained; it is tried again");
        }
        let swept = sweep(&once, batch, every, &stop).await;
        health.report("retention", &swept);
        let more = match swept {
            Ok(more) => {
                gauge!("pgonce_purge_last_success_timestamp_seconds").set(now());
                more
            }
            Err(error) => {
                tracing::warn!(%error, "purge failed; it is tried again");
                false
            }
        };
        if stop.is_cancelled() || !more && !pause(&stop, &mut settings, every).await {
            return Ok(());
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
        // Workers purge jobs too; those that are written in SQL do not. Neither waits for the other to succeed.
        let (count, jobs) = (once.purge(batch).await, once.purge_jobs(batch).await);
        let count = count?;
        counter!("pgonce_purged_total").increment(count);
        let more = count.max(jobs?) >= u64::from(batch);
        tokio::select! {
            () = stop.cancelled() => return Ok(false),
            () = tokio::time::sleep(began.elapsed() * 3), if more => {}
            () = std::future::ready(()), if !more => return Ok(false),
        }
        if round.elapsed() > limit {
            return Ok(true);
        }
    }
}

/// Lets due timers move their entities.
pub(super) async fn timers(
    once: Once<TokioPostgres>,
    mut settings: Changes,
    stop: CancellationToken,
    health: Arc<Health>,
) -> Ended {
    const BATCH: u32 = 500;
    loop {
        let every = settings.borrow_and_update().timers_every;
        let fired = once.fire_timers(BATCH).await;
        health.report("timers", &fired);
        match &fired {
            Ok(count) => counter!("pgonce_timers_fired_total").increment(*count),
            Err(error) => tracing::warn!(%error, "timers could not be fired; it is tried again"),
        }
        let more = fired.is_ok_and(|count| count >= u64::from(BATCH));
        if stop.is_cancelled() || !more && !pause(&stop, &mut settings, every).await {
            return Ok(());
        }
    }
}

/// Decides about work whose holder vanished, as its contract says.
pub(super) async fn recovery(
    once: Once<TokioPostgres>,
    mut settings: Changes,
    stop: CancellationToken,
    health: Arc<Health>,
) -> Ended {
    loop {
        let (every, probe_timeout) = {
            let settings = settings.borrow_and_update();
            (settings.recovery_every, settings.probe_timeout)
        };
        let recovery = once.recovery().probe_timeout(probe_timeout);
        // To end here is as safe as a crash: what was taken is taken again after its time.
        let recovered = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            recovered = recovery.run_once() => recovered,
        };
        health.report("recovery", &recovered);
        match recovered {
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
        if stop.is_cancelled() || !pause(&stop, &mut settings, every).await {
            return Ok(());
        }
    }
}

/// Sends heartbeats to the other regions, merges what could not be merged at once, and measures how far behind this one is.
/// Where regions are not used it looks once a minute whether they are.
pub(super) async fn regions(
    once: Once<TokioPostgres>,
    mut settings: Changes,
    stop: CancellationToken,
) -> Ended {
    const PURGE_EVERY: u32 = 3600;
    const BEAT_EVERY: Duration = Duration::from_secs(1);
    const LOOK_EVERY: Duration = Duration::from_secs(60);
    let mut beats = 0_u32;
    loop {
        let regions = match once.regions().await {
            Ok(regions) => regions,
            // A role without the right to look is not the one that sends heartbeats.
            Err(error) if error.code() == "42501" => Vec::new(),
            // Whether there are others is not known: a minute without heartbeats would be seen as an outage there.
            Err(error) => {
                tracing::warn!(%error, "regions could not be looked up; it is tried again");
                if !pause(&stop, &mut settings, BEAT_EVERY).await {
                    return Ok(());
                }
                continue;
            }
        };
        if !regions.is_empty() {
            if let Err(error) = once.beat_region().await {
                tracing::warn!(%error, "the other regions got no heartbeat; it is tried again");
            }
            if beats.is_multiple_of(PURGE_EVERY)
                && let Err(error) = once.purge_region_facts().await
            {
                tracing::warn!(%error, "facts of regions could not be purged; it is tried again");
            }
            beats = beats.wrapping_add(1);
        }
        let every = match regions.is_empty() {
            true => LOOK_EVERY,
            false => BEAT_EVERY,
        };
        for region in regions {
            if region.is_self {
                gauge!("pgonce_region_double_commits").set(region.double_commits as f64);
                gauge!("pgonce_region_pending").set(region.pending as f64);
            } else {
                let lag = region.lag.map_or(f64::NAN, |lag| lag.as_secs_f64());
                gauge!("pgonce_region_lag_seconds", "region" => region.name).set(lag);
            }
        }
        if !pause(&stop, &mut settings, every).await {
            return Ok(());
        }
    }
}

fn now() -> f64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.unwrap_or_default().as_secs_f64()
}
