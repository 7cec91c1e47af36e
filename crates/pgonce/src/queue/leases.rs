//! The jobs that a worker holds: their leases, and the record of those that fail.

use std::collections::{HashMap, HashSet};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use serde_json::Value;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};

use super::job::{Claimed, Name, fail, renew};
use crate::call::{Args, Sql};
use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::failure::in_ascii;
use crate::once::Once;

static FINISH: Sql = Sql::kept("select pgonce.finish_jobs($1)");

/// Pause between removals of ended jobs whose retention is over.
const PURGE_PAUSE: Duration = Duration::from_secs(60);
/// Maximum number of jobs that are removed in one transaction.
const PURGE_LIMIT: u32 = 10_000;

/// The pause before a call of the database that failed is made again.
const PAUSE: Duration = Duration::from_millis(100);

/// No try to record is given up earlier than this, however short the lease: the next one would have to connect first.
const MIN_LIMIT: Duration = Duration::from_secs(2);

/// No call is waited for longer than this, however long the lease: its connection may be dead without anybody having said so.
const MAX_LIMIT: Duration = Duration::from_secs(30);

/// For how long a worker claims nothing, after a lease, because the end of a job cannot be recorded: other jobs may be fine.
const MAX_BEHIND: Duration = Duration::from_secs(60);

/// A job that is done, and its result.
pub(super) type Done = (Arc<Claimed>, Option<Value>);

/// A job that this worker holds.
pub(super) struct Held {
    pub(super) claimed: Arc<Claimed>,
    /// Measured before the call was sent, so that the lease never ends later here than in the database.
    pub(super) renewed: Instant,
    pub(super) running: Option<AbortHandle>,
    /// Its handler has returned: what it did is only to be recorded.
    pub(super) has_ended: bool,
}

pub(super) type Holding = Arc<Mutex<HashMap<Name, Held>>>;

pub(super) fn locked(holding: &Holding) -> MutexGuard<'_, HashMap<Name, Held>> {
    holding.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Says that the handler of a job has returned.
pub(super) fn mark_ended(holding: &Holding, claimed: &Claimed) {
    if let Some(held) = locked(holding).get_mut(&claimed.name()) {
        held.has_ended = true;
    }
}

/// The result of a call, or an error where it takes longer than `limit` or [`MAX_LIMIT`]: a database that falls silent
/// must not hold a worker. The call's connection is closed then, and whether it happened is unknown.
pub(super) async fn bounded<T>(
    limit: Duration,
    call: impl Future<Output = Result<T>>,
) -> Result<T> {
    match timeout(limit.min(MAX_LIMIT), call).await {
        Ok(result) => result,
        Err(_) => Err(Error::Uncertain(
            "the database did not reply in time".into(),
        )),
    }
}

/// Records a failure, until the database does or the job is another worker's. One that the database can never store is stored without what it refuses,
/// or not at all: then the lease runs out, and the attempt counts.
pub(super) async fn record_failure<D: Driver>(
    once: &Once<D>,
    (holding, lease): (&Holding, Duration),
    claimed: &Claimed,
    retryable: bool,
    code: &str,
    message: &str,
) {
    let name = claimed.name();
    let mut why = (code.to_owned(), message.to_owned());
    while locked(holding).contains_key(&name) {
        let recorded = async {
            fault_point!("queue.before_fail");
            fail(once, claimed, (retryable, &why.0, &why.1)).await?;
            fault_point!("queue.failed");
            Ok::<(), Error>(())
        };
        match bounded(lease.max(MIN_LIMIT), recorded).await {
            // Turned away: it is another worker's, or its end was committed after all.
            Ok(()) | Err(Error::Fenced(_)) => {
                locked(holding).remove(&name);
            }
            Err(error) if is_refused(&error) => {
                tracing::warn!(%error, job = claimed.id, "a failure cannot be stored as it is");
                if why.0.is_ascii() && why.1.is_ascii() {
                    locked(holding).remove(&name);
                }
                // A character that the server's encoding lacks.
                why = (in_ascii(&why.0), in_ascii(&why.1));
            }
            Err(error) => {
                tracing::warn!(%error, job = claimed.id, "a failure could not be recorded, trying again");
                sleep(PAUSE).await;
            }
        }
    }
}

/// Renews leases until it is aborted, and drops the handlers of jobs that are lost. Says in `is_behind` that jobs have ended
/// whose leases are neither renewed nor recorded.
pub(super) async fn keep_leases<D: Driver>(
    once: Once<D>,
    holding: Holding,
    lease: Duration,
    is_behind: Arc<AtomicBool>,
) {
    loop {
        sleep(lease / 5).await;
        // Those that were claimed or renewed just now can wait.
        let due: Vec<_> = locked(&holding)
            .values()
            .filter(|held| held.renewed.elapsed() >= lease / 5)
            .map(|held| held.claimed.clone())
            .collect();
        if !due.is_empty() {
            let sent = Instant::now();
            let jobs = Value::from_iter(due.iter().map(|claimed| claimed.named())).to_string();
            let renewed = async {
                fault_point!("queue.before_renew");
                let held = renew(&once, &jobs, lease).await?;
                fault_point!("queue.renewed");
                Ok::<_, Error>(held)
            };
            match bounded(lease / 3, renewed).await {
                Ok(still) => {
                    let still: HashSet<Name> = still.into_iter().collect();
                    let mut holding = locked(&holding);
                    for claimed in &due {
                        let name = claimed.name();
                        match holding.get_mut(&name) {
                            Some(held) if still.contains(&name) => held.renewed = sent,
                            Some(_) => lose(&mut holding, &name),
                            None => {}
                        }
                    }
                }
                Err(error) => tracing::warn!(%error, "leases could not be renewed, trying again"),
            }
            let mut holding = locked(&holding);
            // Nobody meets a twin of a handler that has returned: its record is for the fence to refuse, whenever the
            // database is back.
            let over = |held: &Held| !held.has_ended && held.renewed.elapsed() >= lease;
            let lost: Vec<Name> = holding
                .iter()
                .filter(|(_, held)| over(held))
                .map(|(name, _)| name.clone())
                .collect();
            for name in lost {
                lose(&mut holding, &name);
            }
        }
        let late = lease * 3 / 5..lease + MAX_BEHIND;
        let late = |held: &Held| held.has_ended && late.contains(&held.renewed.elapsed());
        let behind = locked(&holding).values().any(late);
        if behind && !is_behind.swap(behind, Ordering::Relaxed) {
            tracing::warn!("ends of jobs could not be recorded: nothing is claimed meanwhile");
        }
        is_behind.store(behind, Ordering::Relaxed);
    }
}

/// Removes ended jobs whose retention is over, until it is aborted. Apart from the leases, which must not wait for it.
pub(super) async fn keep_purging<D: Driver>(once: Once<D>) {
    loop {
        loop {
            match bounded(MAX_LIMIT, once.purge_jobs(PURGE_LIMIT)).await {
                Ok(count) if count >= u64::from(PURGE_LIMIT) => {}
                Ok(_) => break,
                Err(error) => {
                    tracing::debug!(%error, "ended jobs could not be purged");
                    break;
                }
            }
        }
        sleep(PURGE_PAUSE).await;
    }
}

fn lose(holding: &mut HashMap<Name, Held>, name: &Name) {
    if let Some(held) = holding.remove(name) {
        tracing::warn!(
            job = name.1,
            queue = held.claimed.queue,
            "the lease of a job is lost"
        );
        if let Some(task) = held.running {
            task.abort();
        }
    }
}

/// Records the end of jobs. Returns those that are to be tried again.
pub(super) async fn record<D: Driver>(
    once: Once<D>,
    holding: Holding,
    lease: Duration,
    done: Vec<Done>,
) -> Vec<Done> {
    let mut again = Vec::new();
    let mut parts = vec![done];
    while let Some(mut part) = parts.pop() {
        let finished = AssertUnwindSafe(finish(&once, &part)).catch_unwind();
        let finished = bounded(
            lease.max(MIN_LIMIT),
            finished
                .map(|result| result.unwrap_or_else(|_| Err(Error::work("recording panicked")))),
        );
        match finished.await {
            // One of them is lost or refused, and nothing was recorded: those on either side are tried apart.
            Err(error) if part.len() > 1 && (is_lost(&error) || is_refused(&error)) => {
                let rest = part.split_off(part.len() / 2);
                parts.extend([rest, part]);
            }
            Err(error) if is_refused(&error) => {
                for (claimed, _) in &part {
                    refuse(&once, (&holding, lease), claimed, &error).await;
                }
            }
            Err(error) if !is_lost(&error) => {
                tracing::warn!(%error, "jobs could not be recorded, trying again");
                again.extend(part);
                // The others would meet the same trouble.
                again.extend(parts.drain(..).flatten());
            }
            ended => {
                if let Err(why) = ended {
                    tracing::warn!(%why, "the job was lost");
                }
                let mut holding = locked(&holding);
                for (claimed, _) in &part {
                    holding.remove(&claimed.name());
                }
            }
        }
    }
    let holding = locked(&holding);
    again.retain(|(claimed, _)| holding.contains_key(&claimed.name()));
    again
}

/// Whether a job is another worker's, or was ended.
fn is_lost(error: &Error) -> bool {
    matches!(error, Error::Fenced(_))
}

/// Whether the database can never store this result: U+0000, say, or one that is too deep.
fn is_refused(error: &Error) -> bool {
    let classes = ["22", "23", "54"];
    matches!(error, Error::Database(_) | Error::Invalid(_))
        && classes.iter().any(|class| error.code().starts_with(class))
}

/// The job did its work, which is not done again; that its result is refused is its failure.
async fn refuse<D: Driver>(
    once: &Once<D>,
    holding: (&Holding, Duration),
    claimed: &Claimed,
    error: &Error,
) {
    tracing::warn!(%error, job = claimed.id, "the result of the job cannot be stored");
    let message = format!("the result cannot be stored: {error}");
    record_failure(once, holding, claimed, false, error.code(), &message).await;
}

async fn finish<D: Driver>(once: &Once<D>, done: &[Done]) -> Result<()> {
    let jobs = done
        .iter()
        .map(|(claimed, result)| claimed.named_with("result", result.as_ref()));
    let jobs = Value::from_iter(jobs).to_string();
    fault_point!("queue.before_record");
    let args = Args::new().json(&*jobs);
    once.caller().write(&FINISH, args).await?;
    fault_point!("queue.recorded");
    Ok(())
}
