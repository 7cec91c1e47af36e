//! Joined mode: effect and answer commit in one transaction.

use std::sync::{Arc, Mutex, PoisonError};

use axum::BoxError;
use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::{Request, StatusCode};
use pgonce::driver::Driver;
use pgonce::{Ack, Attempt, Done, Error, Result};
use tower::Service;

use super::verdict::Verdict;
use super::{Ended, Job, Replay};
use crate::Problem;
use crate::extract::{AttemptInfo, Slot};
use crate::fate::Fate;
use crate::handler_error::Carried;

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
        .run(&job.intent, |attempt| attempt_once(job, attempt, kept))
        .await;
    live.end(ran)
}

async fn attempt_once<D, S, R>(job: &Job<D, S>, attempt: Attempt<D>, live: &Live) -> Result<Done>
where
    D: Driver,
    S: Service<Request<Body>, Response = http::Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    R: http_body::Body<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    if !job.turn.begin() {
        return Err(Error::work(NobodyWaits));
    }
    let info = AttemptInfo {
        number: attempt.attempts(),
        fence: attempt.fence(),
        kind: attempt.kind(),
    };
    let slot = Slot::new(attempt);
    let for_handler = slot.clone();
    let limit = job.edge.policy.max_response;
    let call = job.call.clone();
    let answered = call
        .answer(Some(info), limit, |extensions| {
            extensions.insert(for_handler);
        })
        .await;
    let mut verdict = Verdict::of(job, answered);
    let (touched, reference, failed) = {
        let mut held = slot.lock();
        (held.touched, held.reference.take(), held.error.take())
    };
    if !touched {
        verdict.nothing_begun(&job.edge);
    }
    if !job.turn.settle() {
        return Err(Error::work(NobodyWaits));
    }
    let Some(attempt) = slot.take() else {
        tracing::error!(
            "the handler answered, but its transaction is still held elsewhere: nothing is committed"
        );
        let problem = Problem::ours(
            StatusCode::INTERNAL_SERVER_ERROR,
            "handler_failed",
            "the handler did not finish its transaction; nothing happened",
        );
        live.put(Verdict::problem(job, &problem, Fate::Forget).response);
        return Err(Error::work(Forgotten));
    };
    let carried = verdict.response.extensions_mut().remove::<Carried>();
    let error = match carried.and_then(|carried| carried.take()).or(failed) {
        Some(Error::Refused(failure) | Error::Failed(failure)) => verdict.named(failure)?.into(),
        Some(error) => {
            // Retried where that helps; else told, and nothing is remembered.
            return Err(error);
        }
        None => match verdict.fate {
            Fate::Keep => {
                let ack = match job.keyed {
                    true => verdict.ack(reference)?,
                    false => Ack::status(),
                };
                live.put(verdict.response);
                return attempt.succeed(ack).await;
            }
            Fate::Refuse | Fate::Retry if job.keyed => verdict.failure()?.into(),
            _ => Error::work(Forgotten),
        },
    };
    live.put(verdict.response);
    // Dropped first: whoever records the failure needs the connection.
    drop(attempt);
    Err(error)
}

/// The handler's answer of the last try.
#[derive(Default)]
pub(super) struct Live(Arc<Mutex<Option<Response>>>);

impl Live {
    pub(super) fn put(&self, response: Response) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(response);
    }

    fn take(&self) -> Option<Response> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The answer that fits the end of the run: the handler's own only where this run made it.
    pub(super) fn end(self, ran: Result<Done>) -> Result<Ended> {
        let own = |error: Error| self.take().map(Ended::Live).ok_or(error);
        match ran {
            Ok(done) if done.replayed() => Ok(Ended::Replay(Replay::Done(done.into_ack()))),
            Ok(done) => Ok(self
                .take()
                .map_or_else(|| Ended::Replay(Replay::Done(done.into_ack())), Ended::Live)),
            Err(Error::Refused(failure)) if failure.replayed() => {
                Ok(Ended::Replay(Replay::Refused(failure)))
            }
            Err(error @ (Error::Refused(_) | Error::Failed(_))) => own(error),
            Err(Error::Work(error)) if error.is::<Forgotten>() => own(Error::Work(error)),
            Err(error) => Err(error),
        }
    }
}

/// Nothing of the attempt is to be kept.
#[derive(Debug, thiserror::Error)]
#[error("nothing of this attempt is kept")]
pub(super) struct Forgotten;

/// The claim came when the client had been told to come back.
#[derive(Debug, thiserror::Error)]
#[error("the claim came too late: the client was told to come back")]
pub(super) struct NobodyWaits;
