//! Atomic mode: effect and answer commit in one transaction.

use std::sync::{Arc, Mutex, PoisonError};

use axum::response::Response;

use http::StatusCode;
use pgonce::driver::Driver;
use pgonce::{Ack, Attempt, Done, Error, Result};

use super::decision::Decision;
use super::service::HttpService;
use super::{Completion, Job, Replay};
use crate::Problem;
use crate::disposition::Disposition;
use crate::extract::{AttemptInfo, Slot};
use crate::handler_error::Carried;

pub(super) async fn run<D: Driver, S: HttpService>(mut job: Job<D, S>) -> Result<Completion> {
    job.learn_retention().await;
    let live = LastResponse::default();
    let (job, kept) = (&job, &live);
    let ran = job
        .state
        .once
        .run(&job.intent, |attempt| attempt_once(job, attempt, kept))
        .await;
    live.end(ran)
}

async fn attempt_once<D: Driver, S: HttpService>(
    job: &Job<D, S>,
    attempt: Attempt<D>,
    live: &LastResponse,
) -> Result<Done> {
    if !job.timer.begin(attempt.attempts()) {
        return Err(Error::work(ClientGone));
    }
    let info = AttemptInfo {
        number: attempt.attempts(),
        fence: attempt.fence(),
        kind: attempt.kind(),
    };
    let slot = Slot::new(attempt);
    let for_handler = slot.clone();
    let limit = job.state.policy.max_response;
    let call = job.call.clone();
    let answered = call
        .answer(Some(info), limit, |extensions| {
            extensions.insert(for_handler);
        })
        .await;
    let mut decision = Decision::of(job, answered);
    let (touched, reference, failed) = {
        let mut held = slot.lock();
        (held.touched, held.reference.take(), held.error.take())
    };
    if !touched {
        decision.nothing_begun(&job.state);
    }
    if !job.timer.settle() {
        return Err(Error::work(ClientGone));
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
        live.put(Decision::problem(job, &problem, Disposition::Forget).response);
        return Err(Error::work(Forgotten));
    };
    let carried = decision.response.extensions_mut().remove::<Carried>();
    let error = match carried.and_then(|carried| carried.take()).or(failed) {
        Some(Error::Refused(failure) | Error::Failed(failure)) => decision.named(failure)?.into(),
        Some(error) => {
            // Retried if transient; else the response reports it, and nothing is recorded.
            return Err(error);
        }
        None => match decision.disposition {
            Disposition::Keep => {
                let ack = match job.keyed {
                    true => decision.ack(reference)?,
                    false => Ack::status(),
                };
                live.put(decision.response);
                return attempt.succeed(ack).await;
            }
            Disposition::Refuse | Disposition::Retry if job.keyed => decision.failure()?.into(),
            _ => Error::work(Forgotten),
        },
    };
    live.put(decision.response);
    // Dropped first: recording the failure needs the connection.
    drop(attempt);
    Err(error)
}

/// The handler's answer of the last try.
#[derive(Default)]
pub(super) struct LastResponse(Arc<Mutex<Option<Response>>>);

impl LastResponse {
    pub(super) fn put(&self, response: Response) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(response);
    }

    fn take(&self) -> Option<Response> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The answer that fits the end of the run: the handler's own only where this run made it.
    pub(super) fn end(self, ran: Result<Done>) -> Result<Completion> {
        let own = |error: Error| self.take().map(Completion::Done).ok_or(error);
        match ran {
            Ok(done) if done.replayed() => Ok(Completion::Replay(Replay::Done(done.into_ack()))),
            Ok(done) => Ok(self.take().map_or_else(
                || Completion::Replay(Replay::Done(done.into_ack())),
                Completion::Done,
            )),
            Err(Error::Refused(failure)) if failure.replayed() => {
                Ok(Completion::Replay(Replay::Refused(failure)))
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

/// The claim arrived after the client had got 503.
#[derive(Debug, thiserror::Error)]
#[error("the claim arrived too late: the client has already got 503")]
pub(super) struct ClientGone;
