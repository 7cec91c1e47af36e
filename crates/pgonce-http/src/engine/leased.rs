//! Recorded mode: a committed claim, renewed while any service works, and its answer stored under
//! the claim's fence.

use std::time::Duration;

use axum::BoxError;
use axum::body::Body;
use bytes::Bytes;
use http::Request;
use pgonce::driver::Driver;
use pgonce::retry::{Class, Policy as Retries, Schedule};
use pgonce::scope::Stale;
use pgonce::{Ack, ClaimKind, Done, Error, Failure, Lease, Result};
use tower::Service;

use super::atomic::{Forgotten, Live, NobodyWaits};
use super::verdict::Verdict;
use super::{Ended, Job};
use crate::extract::AttemptInfo;
use crate::fate::Fate;

/// How long it is tried to store an answer: the work is done, and the claim's fence guards it for as
/// long as nobody takes over.
const STORE_WITHIN: Duration = Duration::from_secs(60);

pub(super) async fn run<D, S, R>(mut job: Job<D, S>) -> Result<Ended>
where
    D: Driver,
    S: Service<Request<Body>, Response = http::Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    R: http_body::Body<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    job.learn_retention().await;
    let live = Live::default();
    let (job, kept) = (&job, &live);
    let ran = job
        .edge
        .once
        .run_leased(&job.intent, |lease| attempt_once(job, lease, kept))
        .await;
    live.end(ran)
}

async fn attempt_once<D, S, R>(job: &Job<D, S>, mut lease: Lease<D>, live: &Live) -> Result<Done>
where
    D: Driver,
    S: Service<Request<Body>, Response = http::Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    R: http_body::Body<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    let policy = &job.edge.policy;
    if lease.kind() == ClaimKind::Takeover && policy.stale != Stale::Takeover {
        return Err(abandoned().into());
    }
    if !job.turn.begin() {
        give_back(lease).await;
        return Err(Error::work(NobodyWaits));
    }
    let info = AttemptInfo {
        number: lease.attempts(),
        fence: lease.fence(),
        kind: lease.kind(),
    };
    let call = job.call.clone();
    let answered = lease
        .renew_while(call.answer(Some(info), policy.max_response, |_| {}))
        .await?;
    let verdict = Verdict::of(job, answered);
    // Whether or not somebody waits: what happened is recorded.
    let _ = job.turn.settle();
    match verdict.fate {
        Fate::Keep => {
            let ack = verdict.ack(None)?;
            live.put(verdict.response);
            store(lease, ack).await
        }
        Fate::Refuse | Fate::Retry => {
            let failure = verdict.failure()?;
            live.put(verdict.response);
            // It is recorded with one try: make sure that somebody is there to record it.
            reach(&mut lease).await?;
            Err(failure.into())
        }
        Fate::Forget => {
            live.put(verdict.response);
            give_back(lease).await;
            Err(Error::work(Forgotten))
        }
        Fate::Unknown => {
            live.put(verdict.response);
            Err(Error::work(Forgotten))
        }
    }
}

/// What is told where whoever did the work vanished.
fn abandoned() -> Failure {
    Failure::permanent(
        "abandoned",
        "whoever did the work vanished; whether it happened is not known",
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
    let mut patience = Patience::new();
    loop {
        match lease.record(&ack).await {
            Ok(done) => return Ok(done),
            Err(error) => patience.after(error).await?,
        }
    }
}

/// Waits until the database can be reached, and renews the lease by the way.
async fn reach<D: Driver>(lease: &mut Lease<D>) -> Result<()> {
    let mut patience = Patience::new();
    while let Err(error) = lease.heartbeat().await {
        patience.after(error).await?;
    }
    Ok(())
}

/// Tries again while the connection is what fails. After a commit whose reply was lost the fence
/// turns the next try away, and the claim that follows finds the answer.
struct Patience(Schedule);

impl Patience {
    fn new() -> Self {
        Self(
            Retries::default()
                .tries(1_000)
                .within(STORE_WITHIN)
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
