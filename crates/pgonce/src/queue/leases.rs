//! The jobs that a worker holds: their leases, and the record of those that fail.

use std::collections::{HashMap, HashSet};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use serde_json::Value;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};

use super::job::{Claimed, Name, fail, renew};
use super::worker::SHORT;
use crate::call::{Args, Sql};
use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::once::Once;

static FINISH: Sql = Sql::kept("select pgonce.finish_jobs($1)");
static PURGE: Sql = Sql::kept("select pgonce._purge_jobs(10000)");

/// Pause between removals of ended jobs whose retention is over.
const PURGE_PAUSE: Duration = Duration::from_secs(60);

/// A job that is done, and its result.
pub(super) type Done = (Arc<Claimed>, Option<Value>);

/// A job that this worker holds.
pub(super) struct Held {
    pub(super) claimed: Arc<Claimed>,
    /// Measured before the call was sent, so that the lease never ends later here than in the database.
    pub(super) renewed: Instant,
    pub(super) running: Option<AbortHandle>,
}

pub(super) type Holding = Arc<Mutex<HashMap<Name, Held>>>;

pub(super) fn locked(holding: &Holding) -> MutexGuard<'_, HashMap<Name, Held>> {
    holding.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Records a failure, for as long as the lease holds.
pub(super) async fn record_failure<D: Driver>(
    once: &Once<D>,
    holding: &Holding,
    claimed: &Claimed,
    retryable: bool,
    code: &str,
    message: &str,
    delay: Option<Duration>,
) {
    let name = claimed.name();
    while locked(holding).contains_key(&name) {
        let recorded = async {
            fault_point!("queue.before_fail");
            fail(once, claimed, (retryable, code, message), delay).await?;
            fault_point!("queue.failed");
            Ok::<(), Error>(())
        };
        match recorded.await {
            // Turned away: it is another worker's, or its end was committed after all.
            Ok(()) | Err(Error::Fenced(_)) => {
                locked(holding).remove(&name);
            }
            Err(error) => {
                tracing::warn!(%error, job = claimed.id, "a failure could not be recorded, trying again");
                sleep(SHORT * 20).await;
            }
        }
    }
}

/// Renews leases until it is aborted, and drops the handlers of jobs that are lost.
pub(super) async fn keep_leases<D: Driver>(once: Once<D>, holding: Holding, lease: Duration) {
    let mut next_purge = Instant::now() + PURGE_PAUSE;
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
            match timeout(lease / 3, renewed).await {
                Ok(Ok(still)) => {
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
                Ok(Err(error)) => {
                    tracing::warn!(%error, "leases could not be renewed, trying again")
                }
                Err(_) => tracing::warn!("leases could not be renewed in time, trying again"),
            }
            let mut holding = locked(&holding);
            let over = |held: &Held| held.renewed.elapsed() >= lease;
            let lost: Vec<Name> = holding
                .iter()
                .filter(|(_, held)| over(held))
                .map(|(name, _)| name.clone())
                .collect();
            for name in lost {
                lose(&mut holding, &name);
            }
        }
        if Instant::now() >= next_purge {
            next_purge = Instant::now() + PURGE_PAUSE;
            if let Err(error) = once.caller().call(&PURGE, Args::new()).await {
                tracing::debug!(%error, "ended jobs could not be purged");
            }
        }
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
    done: Vec<Done>,
) -> Vec<Done> {
    let forget = |done: &[Done]| {
        let mut holding = locked(&holding);
        for (claimed, _) in done {
            holding.remove(&claimed.name());
        }
    };
    let finished = AssertUnwindSafe(finish(&once, &done)).catch_unwind().await;
    match finished.unwrap_or_else(|_| Err(Error::work("recording panicked"))) {
        Ok(()) => forget(&done),
        Err(Error::Fenced(_)) if done.len() > 1 => {
            // One of them is lost, and nothing was recorded: one by one.
            let mut again = Vec::new();
            for one in done {
                let one = [one];
                match finish(&once, &one).await {
                    Ok(()) | Err(Error::Fenced(_)) => forget(&one),
                    Err(_) => again.extend(one),
                }
            }
            return again;
        }
        Err(Error::Fenced(why)) => {
            tracing::warn!(%why, "the job was lost");
            forget(&done);
        }
        Err(error) => {
            tracing::warn!(%error, "jobs could not be recorded, trying again while their leases hold");
            let holding = locked(&holding);
            let is_held = |(claimed, _): &Done| holding.contains_key(&claimed.name());
            return done.into_iter().filter(is_held).collect();
        }
    }
    Vec::new()
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
