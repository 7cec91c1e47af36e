//! Leased mode: a committed claim, renewed while any service works, and its response stored under
//! the claim's fence.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pgonce::driver::Driver;
use pgonce::retry::{Policy as Retries, Schedule};
use pgonce::scope::Stale;
use pgonce::{ClaimKind, Done, Error, Failure, Lease, Result};
use tokio::time::{sleep, timeout, timeout_at};

use super::atomic::{ClientGone, Forgotten, LastResponse};
use super::decision::Decision;
use super::kept::KeptResponse;
use super::service::HttpService;
use super::{Completion, Job};
use crate::counters::Event;
use crate::disposition::Disposition;
use crate::extract::AttemptInfo;

/// How long a response waits for its database to be recorded: the work is done, and the claim's
/// fence guards it for as long as no other process takes over.
const RECORD_TIMEOUT: Duration = Duration::from_secs(3600);

/// Pause between two attempts to renew a lease that could not be renewed in time.
const RENEW_PAUSE: Duration = Duration::from_millis(250);

pub(super) async fn run<D: Driver, S: HttpService>(mut job: Job<D, S>) -> Result<Completion> {
    // The client gets its 503 then: what has not reached the database by then is not sent any longer.
    let deadline = job.timer.since() + job.state.policy.claim_timeout();
    let _ = timeout_at(deadline, job.learn_retention()).await;
    let answered = AnsweredCall::default();
    let (job, kept) = (&job, &answered);
    let once = &job.state.once;
    let ran = once
        .run_leased_before(deadline, &job.answered, &job.intent, |lease| {
            attempt_once(job, lease, kept)
        })
        .await;
    match ran {
        Err(Error::Work(error)) if error.is::<OnHold>() => Err(Error::Busy {
            retry_after: error
                .downcast_ref()
                .map_or(Duration::ZERO, |OnHold(left)| *left),
            accepted: false,
        }),
        ran => answered.live.end(ran),
    }
}

/// The work of a process that ended without a result waits for an operator; the next look is worth it after this time.
#[derive(Debug, thiserror::Error)]
#[error("whether it happened is unknown, and an operator has to find out")]
struct OnHold(Duration);

/// How the call of this request ended, whatever becomes of the claim that it was made under.
#[derive(Default)]
struct AnsweredCall {
    live: LastResponse,
    to_record: Mutex<Option<ToRecord>>,
}

/// What is recorded about a call.
#[derive(Clone)]
enum ToRecord {
    Done(Arc<KeptResponse>),
    Failed(Failure),
}

impl AnsweredCall {
    fn to_record(&self) -> MutexGuard<'_, Option<ToRecord>> {
        (self.to_record.lock()).unwrap_or_else(PoisonError::into_inner)
    }
}

async fn attempt_once<D: Driver, S: HttpService>(
    job: &Job<D, S>,
    mut lease: Lease<D>,
    answered: &AnsweredCall,
) -> Result<Done> {
    let policy = &job.state.policy;
    job.timer.granted();
    if lease.kind() == ClaimKind::Takeover && policy.stale != Stale::Takeover {
        // Where it is this request's own claim that was lost, its call is known to have ended, and how.
        let known = answered.to_record().clone();
        return match known {
            Some(to_record) => settle(job, &mut lease, to_record).await,
            // Also where the contract hands the work on: this route leaves it to an operator.
            None if policy.stale == Stale::Hold => Err(Error::work(OnHold(lease.left()))),
            None => Err(abandoned().into()),
        };
    }
    // Its reply came too late: somebody else may have settled it. `finish` calls whatever becomes of the lease, so that nothing
    // begins before the database says that it holds; `renew_while` sees to that by itself.
    if policy.stale != Stale::Takeover
        && lease.left().is_zero()
        && let Err(error) = in_time(policy.database_timeout, lease.heartbeat()).await
    {
        give_back(&lease, policy.database_timeout).await;
        // To claim again is left to the client's retry: within this run, the next claim would count as one after a call.
        let lost = format!("the lease was over before the work began: {error}");
        return Err(Error::Disconnected(lost));
    }
    if !job.timer.begin(lease.attempts()) {
        give_back(&lease, policy.database_timeout).await;
        return Err(Error::work(ClientGone));
    }
    let info = AttemptInfo {
        number: lease.attempts(),
        fence: lease.fence(),
        kind: lease.kind(),
    };
    let call = job.call.clone();
    let call = call.answer(Some(info), policy.max_response, |_| {});
    let response = match policy.stale {
        // The next holder calls the service too, and must not meet this call.
        Stale::Takeover => lease.renew_while(call).await,
        _ => Ok(finish(&mut lease, call, policy.database_timeout).await),
    };
    // Whether or not the client still waits: what happened is recorded. From here on only the
    // database is waited for.
    let _ = job.timer.settle();
    let decision = Decision::of(job, response?);
    let disposition = decision.disposition;
    let failure = match disposition {
        Disposition::Refuse | Disposition::Retry => Some(decision.failure()?),
        _ => None,
    };
    let (live, kept) = decision.split();
    answered.live.put(live);
    let to_record = match (disposition, failure) {
        (_, Some(failure)) => ToRecord::Failed(failure),
        (Disposition::Keep, None) => ToRecord::Done(Arc::new(kept)),
        (Disposition::Forget, None) => {
            give_back(&lease, policy.database_timeout).await;
            return Err(Error::work(Forgotten));
        }
        _ => return Err(Error::work(Forgotten)),
    };
    *answered.to_record() = Some(to_record.clone());
    settle(job, &mut lease, to_record).await
}

/// Records how a call ended.
async fn settle<D: Driver, S>(
    job: &Job<D, S>,
    lease: &mut Lease<D>,
    to_record: ToRecord,
) -> Result<Done> {
    let limit = job.state.policy.database_timeout;
    match to_record {
        ToRecord::Done(response) => record(job, lease, response).await,
        ToRecord::Failed(failure) => {
            reach(lease, limit).await?;
            Err(failure.into())
        }
    }
}

/// Waits for the service and renews the lease meanwhile, where no other process may take over: a
/// lease that ran out does not cut the call, whose response is the only evidence of what happened.
async fn finish<D: Driver, F: Future>(lease: &mut Lease<D>, call: F, limit: Duration) -> F::Output {
    let mut call = std::pin::pin!(call);
    loop {
        let lost = match lease.renew_while(call.as_mut()).await {
            Ok(answered) => return answered,
            Err(error) => error,
        };
        tracing::warn!(error = %lost, "the lease could not be renewed; the call is finished all the same");
        loop {
            let renewed = tokio::select! {
                answered = call.as_mut() => return answered,
                renewed = timeout(limit, lease.heartbeat()) => renewed,
            };
            match renewed {
                Ok(Ok(())) => break,
                // Settled by a retry or an operator: recording the response finds that out.
                Ok(Err(Error::Fenced(_))) => return call.await,
                Ok(Err(_)) | Err(_) => {}
            }
            tokio::select! {
                answered = call.as_mut() => return answered,
                () = sleep(RENEW_PAUSE) => {}
            }
        }
    }
}

/// The failure of work whose process ended without a result.
fn abandoned() -> Failure {
    Failure::permanent(
        "abandoned",
        "the process that did the work ended without a result; whether it happened is unknown",
    )
}

/// Frees the claim for the next attempt. A database that was too slow for the claim is often too slow for
/// this as well: it is tried until the lease is lost, so that no key stays busy for work that nobody does.
async fn give_back<D: Driver>(lease: &Lease<D>, limit: Duration) {
    let mut retry = RecordRetry::new();
    while let Err(error) = in_time(limit, lease.forget()).await {
        if let Err(error) = retry.after(error).await {
            tracing::warn!(%error, "a lease could not be released; it expires by itself");
            return;
        }
    }
}

/// Records the response of work that is done. No error of the database loses it, and no silence: a try
/// that is not answered within the time limit is begun anew on another connection. The lease is renewed between
/// tries: nobody is to call the service again whose response is here. What the database refuses to hold is left out.
async fn record<D: Driver, S>(
    job: &Job<D, S>,
    lease: &mut Lease<D>,
    mut response: Arc<KeptResponse>,
) -> Result<Done> {
    let limit = job.state.policy.database_timeout;
    let mut retry = RecordRetry::new();
    loop {
        let ack = response.ack()?;
        let error = match in_time(limit, lease.record(&ack)).await {
            Ok(done) => return Ok(done),
            Err(error) => error,
        };
        let was_kept = !response.is_bare();
        if Arc::make_mut(&mut response).without_what_is_refused(error.code()) {
            let (code, error) = (error.code(), super::without_values(&error));
            tracing::warn!(
                code,
                error,
                "a response is recorded in another form: the database refuses it as it is"
            );
            if was_kept && response.is_bare() {
                job.state.counters.count(Event::unkept);
            }
            continue;
        }
        retry.after(error).await?;
        if let Err(error) = in_time(limit, lease.heartbeat()).await {
            // The next try learns whether the intent is still held.
            tracing::debug!(%error, "the lease was not renewed while recording");
        }
    }
}

/// Waits until the database can be reached, and renews the lease.
async fn reach<D: Driver>(lease: &mut Lease<D>, limit: Duration) -> Result<()> {
    let mut retry = RecordRetry::new();
    while let Err(error) = in_time(limit, lease.heartbeat()).await {
        retry.after(error).await?;
    }
    Ok(())
}

async fn in_time<T>(limit: Duration, call: impl Future<Output = Result<T>>) -> Result<T> {
    let late = || Error::Uncertain("the database did not answer in time".to_owned());
    timeout(limit, call).await.unwrap_or_else(|_| Err(late()))
}

/// Retries every error until the claim is lost or time is up. After a commit whose reply was lost
/// the fence rejects the next attempt, and the claim that follows finds the response.
struct RecordRetry {
    schedule: Schedule,
    /// The code of the last error: each is reported once, not with every try.
    reported: String,
}

impl RecordRetry {
    fn new() -> Self {
        let retries = Retries::default().tries(u32::MAX).within(RECORD_TIMEOUT);
        Self {
            schedule: retries.schedule(),
            reported: String::new(),
        }
    }

    /// Pauses, or returns the error where another attempt cannot help.
    async fn after(&mut self, error: Error) -> Result<()> {
        let is_final = matches!(
            error,
            Error::Fenced(_) | Error::LostRace(_) | Error::Conflict(_) | Error::Invalid(_)
        );
        if !is_final && self.reported != error.code() {
            self.reported = error.code().to_owned();
            let (code, error) = (error.code(), super::without_values(&error));
            tracing::warn!(
                code,
                error,
                "the end of a claim is not recorded yet; it is tried again"
            );
        }
        match !is_final && self.schedule.pause(Duration::ZERO, &error).await? {
            true => Ok(()),
            false => Err(error),
        }
    }
}
