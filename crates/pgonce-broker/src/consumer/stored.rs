//! The worker of the stored inbox: what failed, what waits, what came by webhook.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pgonce::driver::Driver;
use pgonce::inbox::ClaimedMessage;
use pgonce::{Error, Result};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::lane::{Item, Lane, NONE};
use super::span::MessageSpan;
use super::{Handler, Limits, Shared};
use crate::bounded::{bounded, reply_limit};
use crate::fatal::is_fatal;
use crate::relay::jittered;

/// How many stored messages are claimed at once, at most: each lane renews its own.
const MAX_CLAIMED: usize = 100;

/// How many messages a lane had in hand, and how many it settled.
type Worked = Result<(usize, usize)>;

/// Runs until it is asked to stop, or cannot go on; then the consumer ends too.
///
/// Messages are claimed as lanes become free: a slow one keeps its own lane from the others, and nothing else.
pub(super) async fn run<D: Driver, H: Handler<D>>(
    shared: Arc<Shared<D, H>>,
    stop: CancellationToken,
) -> Result<()> {
    let ends = stop.clone().drop_guard();
    let limits = &shared.limits;
    let max_size = match H::CALLS_OUT {
        true => 1,
        false => limits.batch.min(MAX_CLAIMED).div_ceil(limits.concurrency),
    };
    let (mut size, mut pause) = (max_size, limits.first_pause);
    // Dropped with this future.
    let mut background = JoinSet::new();
    background.spawn(keep_maintaining(shared.clone()));
    let mut lanes: JoinSet<Worked> = JoinSet::new();
    let mut ended = Ok(());
    while ended.is_ok() && !stop.is_cancelled() {
        let mut worked = Vec::new();
        let free = limits.concurrency - lanes.len();
        match claim(&shared, free * size, size).await {
            Ok(claimed) => {
                for piece in shared_out(claimed, size) {
                    lanes.spawn(work_off(shared.clone(), stop.clone(), piece));
                }
                tokio::select! {
                    () = stop.cancelled() => {}
                    Some(joined) = lanes.join_next() => worked.push(joined),
                    () = sleep(limits.poll_stored) => {}
                }
                worked.extend(std::iter::from_fn(|| lanes.try_join_next()));
            }
            Err(error) => worked.push(Ok(Err(error))),
        }
        let mut trouble = None;
        for worked in worked {
            match worked.unwrap_or_else(|error| Err(Error::work(error))) {
                Ok((claimed, settled)) => {
                    // What is not settled took longer than its lease, and is another worker's: fewer at a time then.
                    size = match settled < claimed {
                        true => (claimed / 2).max(1),
                        false => (size * 2).min(max_size),
                    };
                    pause = limits.first_pause;
                }
                Err(error) if is_fatal(&error) => ended = Err(error),
                Err(error) => trouble = Some(error),
            }
        }
        if let Some(error) = trouble {
            tracing::warn!(%error, ?pause, "stored messages cannot be applied, trying again");
            shared.counts.database_errors.add(1);
            tokio::select! {
                () = stop.cancelled() => {}
                () = sleep(jittered(pause)) => {}
            }
            pause = (pause * 2).min(limits.max_delay);
        }
    }
    drop(ends);
    while let Some(worked) = lanes.join_next().await {
        if let Ok(Err(error)) = worked
            && is_fatal(&error)
        {
            ended = ended.and(Err(error));
        }
    }
    ended
}

/// Maintains the inbox until it is aborted. Apart from the messages, which must not wait for it.
async fn keep_maintaining<D: Driver, H>(shared: Arc<Shared<D, H>>) {
    let pause = shared.limits.maintain_every;
    loop {
        if let Err(error) = bounded(pause, shared.inbox.maintain()).await {
            tracing::warn!(%error, "the inbox could not be maintained");
        }
        sleep(jittered(pause)).await;
    }
}

/// How long a stored message stays with a worker that does not renew its lease. What calls out runs to its end under one
/// lease, also while the database is unavailable: nobody else shall call meanwhile.
fn lease(limits: &Limits, calls_out: bool) -> Duration {
    match calls_out {
        true => limits.lease.max(limits.handler * 2),
        false => limits.lease,
    }
}

async fn claim<D: Driver, H: Handler<D>>(
    shared: &Shared<D, H>,
    limit: usize,
    per_key: usize,
) -> Result<Vec<ClaimedMessage>> {
    if limit == 0 {
        return Ok(Vec::new());
    }
    fault_point!("consumer.before_claim");
    let lease = lease(&shared.limits, H::CALLS_OUT);
    let claiming = (shared.inbox).claim_runs(&shared.name, &shared.owner, lease, limit, per_key);
    // What it gets later is given to others when its lease is over.
    let claimed = bounded(reply_limit(lease), claiming).await?;
    fault_point!("consumer.claimed");
    Ok(claimed)
}

/// Renews the leases of what a lane has not settled, for as long as it works: however slow they are together, they are
/// nobody else's, not even another lane's of this process. What was lost meanwhile is refused when it commits.
async fn keep_renewing<D: Driver, H: Handler<D>>(
    shared: &Shared<D, H>,
    claimed: &[ClaimedMessage],
    settled: &Mutex<Vec<usize>>,
) {
    let lease = lease(&shared.limits, H::CALLS_OUT);
    loop {
        sleep(lease / 3).await;
        let left: Vec<&ClaimedMessage> = {
            let settled = settled.lock().unwrap_or_else(PoisonError::into_inner);
            let all = claimed.iter().enumerate();
            let left = all.filter(|(index, _)| !settled.contains(index));
            left.map(|(_, claimed)| claimed).collect()
        };
        let renewing = shared.inbox.renew(&shared.name, &left, lease);
        if let Err(error) = bounded(reply_limit(lease / 3), renewing).await {
            tracing::warn!(%error, "the leases of stored messages could not be renewed");
        }
    }
}

/// Shares messages out to as many lanes as `size` for each makes, a key's to one lane and in their order.
fn shared_out(claimed: Vec<ClaimedMessage>, size: usize) -> Vec<Vec<ClaimedMessage>> {
    let mut lanes = vec![Vec::new(); claimed.len().div_ceil(size)];
    let mut lane_of_key = HashMap::new();
    for message in claimed {
        let lengths = lanes.iter().map(Vec::len).enumerate();
        let emptiest = lengths.min_by_key(|(_, len)| *len).map_or(0, |(at, _)| at);
        let at = match key(&message) {
            Some(key) => *lane_of_key.entry(key).or_insert(emptiest),
            None => emptiest,
        };
        lanes[at].push(message);
    }
    lanes.retain(|lane| !lane.is_empty());
    lanes
}

/// What a message waits for its turn with.
pub(super) fn key(claimed: &ClaimedMessage) -> Option<(String, String)> {
    let message = &claimed.message;
    let key = message.key.as_ref()?;
    Some((message.tenant.clone(), key.clone()))
}

/// Applies what was claimed, one after the other or together, and gives back what it did not come to.
async fn work_off<D: Driver, H: Handler<D>>(
    shared: Arc<Shared<D, H>>,
    stop: CancellationToken,
    claimed: Vec<ClaimedMessage>,
) -> Worked {
    let limits = &shared.limits;
    let items: Vec<Item> = claimed
        .iter()
        .enumerate()
        .map(|(index, claimed)| {
            let (mut claimed, mut message) = (claimed.clone(), claimed.message.clone());
            let flaw = shared.checks.check(&mut message).err();
            claimed.apply_as(&message);
            Item {
                index,
                span: MessageSpan::begin(&shared.name, &message),
                message: Arc::new(message),
                flaw,
                claimed: Some(claimed),
            }
        })
        .collect();
    let settled = Mutex::default();
    let mut lane = Lane {
        shared: &shared,
        stop: &stop,
        stored: true,
        held: None,
        partition: None,
        reached: None,
        settled: &settled,
        at: NONE.into(),
        called: Vec::new(),
        calling: None,
        careful: false,
    };
    let drained = async {
        stop.cancelled().await;
        sleep(limits.drain_timeout).await;
    };
    let ended = tokio::select! {
        done = lane.run(&items) => done,
        () = drained => Ok(()),
        () = keep_renewing(&shared, &claimed, &settled) => Ok(()),
    };
    let (mut called, calling) = (lane.called, lane.calling);
    called.extend(calling);
    let done = settled.into_inner().unwrap_or_default();
    let left: Vec<(usize, &ClaimedMessage)> = claimed
        .iter()
        .enumerate()
        .filter(|(index, _)| !done.contains(index))
        .collect();
    // What a service may have got is no attempt that was not made: its lease runs out.
    let untried: Vec<&ClaimedMessage> = left
        .iter()
        .filter(|(index, _)| !called.contains(index))
        .map(|(_, claimed)| *claimed)
        .collect();
    if !untried.is_empty() {
        // Those that are still ours; where it cannot be said, their leases run out.
        let releasing = shared.inbox.release(&shared.name, &untried);
        let _ = bounded(reply_limit(limits.lease), releasing).await;
    }
    ended.map(|()| (claimed.len(), claimed.len() - left.len()))
}
