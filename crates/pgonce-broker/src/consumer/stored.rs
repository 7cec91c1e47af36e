//! The worker of the stored inbox: what failed, what waits, what came by webhook.

use std::sync::{Arc, Mutex};

use futures_util::future::join_all;
use pgonce::Result;
use pgonce::driver::Driver;
use pgonce::inbox::ClaimedMessage;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::lane::{Item, Lane};
use super::{Handler, Shared};
use crate::fatal::is_fatal;
use crate::relay::jittered;

/// How many stored messages are claimed at once, at most: their leases must not run out meanwhile.
const MAX_CLAIMED: usize = 100;

/// Runs until it is asked to stop, or cannot go on; then the consumer ends too.
pub(super) async fn run<D: Driver, H: Handler<D>>(
    shared: Arc<Shared<D, H>>,
    stop: CancellationToken,
) -> Result<()> {
    let ends = stop.clone().drop_guard();
    let limits = &shared.limits;
    let mut pause = limits.first_pause;
    let mut next_maintain = Instant::now();
    let mut at_once = limits.batch.min(MAX_CLAIMED);
    while !stop.is_cancelled() {
        if Instant::now() >= next_maintain {
            next_maintain = Instant::now() + jittered(limits.maintain_every);
            if let Err(error) = shared.inbox.maintain().await {
                tracing::warn!(%error, "the inbox could not be tended");
            }
        }
        let wait = match turn(&shared, &stop, at_once).await {
            Ok((0, _)) => limits.poll_stored,
            Ok((claimed, settled)) => {
                // What is not settled took longer than its lease, and is another worker's: fewer at a time then.
                at_once = match settled < claimed {
                    true => (claimed / 2).max(1),
                    false => (at_once * 2).min(limits.batch.min(MAX_CLAIMED)),
                };
                pause = limits.first_pause;
                continue;
            }
            Err(error) if !is_fatal(&error) => {
                tracing::warn!(%error, ?pause, "database error, trying again");
                shared.counts.database_errors.add(1);
                let wait = jittered(pause);
                pause = (pause * 2).min(limits.max_delay);
                wait
            }
            Err(error) => return Err(error),
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = sleep(wait) => {}
        }
    }
    drop(ends);
    Ok(())
}

/// Claims what is due, at most so many, and applies it. Answers how many messages it had in hand, and how many it settled.
async fn turn<D: Driver, H: Handler<D>>(
    shared: &Shared<D, H>,
    stop: &CancellationToken,
    at_once: usize,
) -> Result<(usize, usize)> {
    fault_point!("consumer.before_claim");
    let limits = &shared.limits;
    let claimed = shared
        .inbox
        .claim(&shared.name, &shared.owner, limits.lease, at_once);
    let claimed = claimed.await?;
    fault_point!("consumer.claimed");
    if claimed.is_empty() {
        return Ok((0, 0));
    }
    let count = claimed.len();
    let kept: Vec<ClaimedMessage> = claimed.clone();
    let items: Vec<Item> = claimed
        .into_iter()
        .enumerate()
        .map(|(index, claimed)| {
            let mut message = claimed.message.clone();
            let flaw = shared.checks.check(&mut message).err();
            Item {
                index,
                message: Arc::new(message),
                flaw,
                claimed: Some(claimed),
            }
        })
        .collect();
    let settled = Mutex::default();
    // Of each key there is only one: they may go side by side.
    let lanes = items
        .chunks(items.len().div_ceil(limits.concurrency))
        .map(|chunk| {
            let mut lane = Lane {
                shared,
                stop,
                stored: true,
                held: None,
                partition: None,
                settled: &settled,
            };
            async move { lane.run(chunk).await }
        });
    let drained = async {
        stop.cancelled().await;
        sleep(limits.drain_timeout).await;
    };
    let ended: Result<()> = tokio::select! {
        done = join_all(lanes) => done.into_iter().collect(),
        () = drained => Ok(()),
    };
    let done = settled.into_inner().unwrap_or_default();
    let left: Vec<&ClaimedMessage> = (0..count)
        .filter(|index| !done.contains(index))
        .filter_map(|index| kept.get(index))
        .collect();
    if !left.is_empty() {
        // Those that are still ours; where it cannot be said, their leases run out.
        let _ = timeout(limits.lease, shared.inbox.release(&shared.name, &left)).await;
    }
    ended.map(|()| (count, count - left.len()))
}
