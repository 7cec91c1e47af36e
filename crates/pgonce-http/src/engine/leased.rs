//! Leased mode: a committed claim, renewed while any service works, and its answer stored under
//! the claim's fence.

use std::time::Duration;

use pgonce::driver::Driver;
use pgonce::retry::{Class, Policy as Retries, Schedule};
use pgonce::scope::Stale;
use pgonce::{Ack, ClaimKind, Done, Error, Failure, Lease, Result};

use super::atomic::{ClientGone, Forgotten, LastResponse};
use super::decision::Decision;
use super::service::HttpService;
use super::{Completion, Job};
use crate::disposition::Disposition;
use crate::extract::AttemptInfo;

/// How long it is tried to store an answer: the work is done, and the claim's fence guards it for as
/// long as no other process takes over.
const RECORD_TIMEOUT: Duration = Duration::from_secs(60);

pub(super) async fn run<D: Driver, S: HttpService>(mut job: Job<D, S>) -> Result<Completion> {
    job.learn_retention().await;
    let live = LastResponse::default();
    let (job, kept) = (&job, &live);
    let ran = job
        .state
        .once
        .run_leased(&job.intent, |lease| attempt_once(job, lease, kept))
        .await;
    live.end(ran)
}

async fn attempt_once<D: Driver, S: HttpService>(
    job: &Job<D, S>,
    mut lease: Lease<D>,
    live: &LastResponse,
) -> Result<Done> {
    let policy = &job.state.policy;
    if lease.kind() == ClaimKind::Takeover && policy.stale != Stale::Takeover {
        return Err(abandoned().into());
    }
    if !job.timer.begin() {
        give_back(lease).await;
        return Err(Error::work(ClientGone));
    }
    let info = AttemptInfo {
        number: lease.attempts(),
        fence: lease.fence(),
        kind: lease.kind(),
    };
    let call = job.call.clone();
    let answered = lease
        .hold(call.answer(Some(info), policy.max_response, |_| {}))
        .await?;
    let decision = Decision::of(job, answered);
    // Whether or not the client still waits: what happened is recorded.
    let _ = job.timer.settle();
    match decision.disposition {
        Disposition::Keep => {
            let ack = decision.ack(None)?;
            live.put(decision.response);
            store(lease, ack).await
        }
        Disposition::Refuse | Disposition::Retry => {
            let failure = decision.failure()?;
            live.put(decision.response);
            // It is recorded with one try: make sure that somebody is there to record it.
            reach(&mut lease).await?;
            Err(failure.into())
        }
        Disposition::Forget => {
            live.put(decision.response);
            give_back(lease).await;
            Err(Error::work(Forgotten))
        }
        Disposition::Unknown => {
            live.put(decision.response);
            Err(Error::work(Forgotten))
        }
    }
}

/// The failure of work whose process ended without a result.
fn abandoned() -> Failure {
    Failure::refused(
        "abandoned",
        "the process that did the work ended without a result; whether it happened is unknown",
    )
}

/// The next claim gets it at once; where that cannot be said, when the lease has run out.
async fn give_back<D: Driver>(lease: Lease<D>) {
    if let Err(error) = lease.release().await {
        tracing::warn!(%error, "a lease could not be given back; it runs out by itself");
    }
}

/// Stores the answer of work that is done, and does not let a lost connection lose it.
async fn store<D: Driver>(lease: Lease<D>, ack: Ack) -> Result<Done> {
    let mut timeout = RecordRetry::new();
    loop {
        match lease.record(&ack).await {
            Ok(done) => return Ok(done),
            Err(error) => timeout.after(error).await?,
        }
    }
}

/// Waits until the database can be reached, and renews the lease by the way.
async fn reach<D: Driver>(lease: &mut Lease<D>) -> Result<()> {
    let mut timeout = RecordRetry::new();
    while let Err(error) = lease.heartbeat().await {
        timeout.after(error).await?;
    }
    Ok(())
}

/// Tries again while the connection is what fails. After a commit whose reply was lost the fence
/// rejects the next attempt, and the claim that follows finds the answer.
struct RecordRetry(Schedule);

impl RecordRetry {
    fn new() -> Self {
        Self(
            Retries::default()
                .tries(1_000)
                .within(RECORD_TIMEOUT)
                .schedule(),
        )
    }

    /// Pauses, or gives the error back where another try does not help.
    async fn after(&mut self, error: Error) -> Result<()> {
        let passes = matches!(
            error.class(),
            Class::Retry | Class::RetryAfterDelay | Class::Ambiguous
        );
        match passes && self.0.pause(Duration::ZERO, &error).await? {
            true => Ok(()),
            false => Err(error),
        }
    }
}
