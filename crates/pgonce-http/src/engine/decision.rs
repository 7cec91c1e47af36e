//! What becomes of an answer.

use std::time::Duration;

use axum::response::Response;
use http::{StatusCode, response};
use pgonce::driver::Driver;
use pgonce::{Ack, Failure};

use super::Job;
use super::call::{Answered, Crash};
use super::kept::KeptResponse;
use crate::body::Whole;
use crate::counters::Event;
use crate::disposition::{self, Disposition, Outcomes};
use crate::headers::{EXPIRES, REPLAYED};
use crate::layer::{Mode, RouteState};
use crate::policy::Oversize;
use crate::stored::{Stored, keep_of};
use crate::{Problem, grpc};

/// An answer that was judged: what the client gets, what is kept, and what becomes of the attempt.
pub(crate) struct Decision {
    pub(crate) disposition: Disposition,
    pub(crate) response: Response,
    stored: Stored,
    /// For a time of its own.
    keep: Option<Duration>,
    /// Whether it says that the request was wrong.
    refusal: bool,
}

impl Decision {
    pub(crate) fn of<D: Driver, S>(job: &Job<D, S>, answered: Answered) -> Self {
        let state = &*job.state;
        match answered {
            Answered::Whole(mut head, body) => {
                disposition::take_headers(&mut head);
                match (state.mode, disposition_of(state, &head, Some(&body))) {
                    // What is undone is never answered with what may be a success.
                    (Mode::Atomic, None) => {
                        Self::problem(job, &status_not_seen(), Disposition::Forget)
                    }
                    (_, disposition) => {
                        let disposition = disposition.unwrap_or(Disposition::Unknown);
                        Self::new(job, head, Some(body), None, disposition)
                    }
                }
            }
            Answered::Unkept(mut head, body) => {
                disposition::take_headers(&mut head);
                state.counters.count(Event::unkept);
                let seen = disposition_of(state, &head, None);
                let disposition = seen.unwrap_or(Disposition::Unknown);
                let passes =
                    state.policy.oversize == Oversize::PassUnkept || head.status.is_informational();
                let problem = match (passes, state.mode, seen) {
                    (true, Mode::Atomic, None) => status_not_seen(),
                    (true, ..) => return Self::new(job, head, None, Some(body), disposition),
                    (false, mode, _) => too_large(mode, disposition),
                };
                drop(body);
                let disposition = match state.mode {
                    Mode::Atomic => Disposition::Forget,
                    // Where it happened, the problem is the answer that is kept.
                    Mode::Leased => disposition,
                };
                Self::problem(job, &problem, disposition)
            }
            Answered::Crashed(crash) => {
                if let Crash::Panic(_) = crash {
                    state.counters.count(Event::panics);
                }
                tracing::error!(%crash, "the handler did not answer");
                let problem = crashed(&crash);
                let (mut head, ()) = Response::new(()).into_parts();
                head.status = problem.status();
                let disposition = match (state.mode, &crash, outcomes(state)) {
                    (Mode::Atomic, ..) => Disposition::Forget,
                    // It may have said that it is done before it broke off.
                    (_, Crash::Error(_), Outcomes::Final | Outcomes::Finish) => {
                        Disposition::Unknown
                    }
                    (_, _, outcomes) => outcomes.disposition(&head, state.mode),
                };
                Self::problem(job, &problem, disposition)
            }
        }
    }

    /// Our own words instead of the handler's.
    pub(crate) fn problem<D: Driver, S>(
        job: &Job<D, S>,
        problem: &Problem,
        disposition: Disposition,
    ) -> Self {
        let base = &job.state.policy.errors_at;
        let (response, document) = match job.as_grpc() {
            true => (grpc::problem_response(problem), String::new()),
            false => (
                problem.clone().into_response_at(base),
                problem.document(base),
            ),
        };
        let body = Whole {
            bytes: document.into(),
            trailers: None,
        };
        Self::new(job, response.into_parts().0, Some(body), None, disposition)
    }

    /// The handler never asked for its connection: what it refused, it refused before any effect,
    /// and the client may correct the request and send it again with the same key.
    pub(crate) fn nothing_begun<D: Driver>(&mut self, state: &RouteState<D>) {
        let by_rule = !matches!(outcomes(state), Outcomes::Custom(_))
            && self.response.extensions().get::<Disposition>().is_none()
            && (state.policy.statuses.iter()).all(|(of, _)| *of != self.response.status());
        if by_rule
            && self.refusal
            && matches!(self.disposition, Disposition::Refuse | Disposition::Retry)
        {
            self.disposition = Disposition::Forget;
            self.response.headers_mut().remove(EXPIRES);
        }
    }

    fn new<D: Driver, S>(
        job: &Job<D, S>,
        mut head: response::Parts,
        body: Option<Whole>,
        unkept: Option<axum::body::Body>,
        disposition: Disposition,
    ) -> Self {
        let keep = keep_of(&head);
        let stored = Stored::of(
            &head,
            body.as_ref(),
            &job.state.policy,
            keep.or(job.retention),
        );
        // Only what comes from our own store says so.
        head.headers.remove(REPLAYED);
        if matches!(disposition, Disposition::Keep | Disposition::Refuse) {
            stored.announce(&mut head.headers);
        }
        let refusal = meant(&head, body.as_ref()).is_some_and(|status| status.is_client_error());
        if let Some(body) = &body {
            body.announce_trailers(&mut head.headers);
        }
        let body = unkept.unwrap_or_else(|| body.unwrap_or_default().into_body());
        Self {
            disposition,
            response: Response::from_parts(head, body),
            stored,
            keep,
            refusal,
        }
    }

    /// The acknowledgement of work that is done.
    pub(crate) fn ack(&self, reference: Option<(String, String)>) -> pgonce::Result<Ack> {
        let ack = Ack::value(&self.stored)?;
        let ack = match reference {
            Some((kind, id)) => ack.and_reference(kind, id),
            None => ack,
        };
        Ok(match self.keep {
            Some(time) => ack.keep_for(time),
            None => ack,
        })
    }

    /// What the client gets, and what is recorded of it.
    pub(super) fn split(self) -> (Response, KeptResponse) {
        let (stored, keep) = (self.stored, self.keep);
        (self.response, KeptResponse { stored, keep })
    }

    /// The failure to be recorded, permanent or transient.
    pub(crate) fn failure(&self) -> pgonce::Result<Failure> {
        let code = format!("http_{}", self.stored.status);
        let failure = match self.disposition {
            Disposition::Retry => {
                return Ok(Failure::transient(
                    code,
                    "the handler failed; a retry may succeed",
                ));
            }
            _ if self.stored.status >= 500 => Failure::permanent(code, "the handler failed"),
            _ => Failure::permanent(code, "the handler refused"),
        };
        let failure = match self.keep {
            Some(time) => failure.keep_for(time),
            None => failure,
        };
        failure.with_answer(&self.stored)
    }

    /// A failure that the handler named itself, with its answer.
    pub(crate) fn named(&self, failure: Failure) -> pgonce::Result<Failure> {
        match failure.answer() {
            None if !failure.is_retryable() => failure.with_answer(&self.stored),
            _ => Ok(failure),
        }
    }
}

fn outcomes<D: Driver>(state: &RouteState<D>) -> &Outcomes {
    state.policy.outcomes.as_ref().unwrap_or(match state.mode {
        Mode::Atomic => &Outcomes::Final,
        Mode::Leased => &Outcomes::Freeze,
    })
}

/// As the handler says, else by the policy's statuses, else by its outcomes; `None` where its status was not seen.
fn disposition_of<D: Driver>(
    state: &RouteState<D>,
    head: &response::Parts,
    body: Option<&Whole>,
) -> Option<Disposition> {
    if let Some(disposition) = head.extensions.get::<Disposition>() {
        return Some(*disposition);
    }
    let status = meant(head, body)?;
    let statuses = &state.policy.statuses;
    if let Some((_, disposition)) = statuses.iter().rev().find(|(of, _)| *of == status) {
        return Some(*disposition);
    }
    if status == head.status {
        return Some(outcomes(state).disposition(head, state.mode));
    }
    let mut head = head.clone();
    head.status = status;
    Some(outcomes(state).disposition(&head, state.mode))
}

/// The status that is meant: gRPC says its own elsewhere, where it may not have been seen.
fn meant(head: &response::Parts, body: Option<&Whole>) -> Option<StatusCode> {
    match grpc::Kind::of(&head.headers).filter(|_| head.status == StatusCode::OK) {
        Some(kind) => kind.status(&head.headers, body),
        None => Some(head.status),
    }
}

/// Of atomic work.
fn status_not_seen() -> Problem {
    Problem::ours(
        StatusCode::INTERNAL_SERVER_ERROR,
        "handler_failed",
        "nothing happened: the gRPC status of the answer is at an end that is too far away or cannot be read",
    )
}

pub(crate) fn crashed(crash: &Crash) -> Problem {
    Problem::ours(
        StatusCode::INTERNAL_SERVER_ERROR,
        "handler_failed",
        match crash {
            Crash::Panic(_) => "the handler ended unexpectedly; the server's log says more",
            Crash::Error(_) => "the handler broke off; the server's log says more",
        },
    )
}

fn too_large(mode: Mode, disposition: Disposition) -> Problem {
    Problem::ours(
        StatusCode::INTERNAL_SERVER_ERROR,
        "response_too_large",
        match (mode, disposition) {
            (Mode::Atomic, _) => {
                "nothing happened: the answer is too large to be kept, and this route passes no such answers on"
            }
            (Mode::Leased, Disposition::Keep) => {
                "it happened, but its answer is too large to be kept, and this route passes no such answers on"
            }
            (Mode::Leased, _) => {
                "it may have happened: the answer is too large to be kept, and this route passes no such answers on"
            }
        },
    )
}
