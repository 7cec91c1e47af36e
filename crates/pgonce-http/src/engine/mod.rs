//! One request from its head to its answer.
//!
//! What can strike, and what holds then: the client disconnects (everything after the body then goes on
//! as a task of its own, under the same limits); the handler panics (caught: atomic work is rolled back and its key
//! freed, leased work follows its policy); the database is unavailable or silent (a time limit for each
//! phase, and for atomic handlers, which wait for it too; none begins without a claim; a claim whose reply is late is waited for
//! as long as the database works on it, and given back); a duplicate is faster, or a commit's reply
//! is lost (`Once::run` and `Once::run_leased` claim again, and the request is built anew).

mod atomic;
mod call;
mod decision;
mod kept;
mod leased;
mod replay;
mod service;
mod work;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::extract::OriginalUri;
use axum::response::Response;

use http::request::Parts;
use http::{HeaderValue, Request, StatusCode, header};
use pgonce::driver::Driver;
use pgonce::region::Home;
use pgonce::retry::Class;
use pgonce::{Error, Intent};

use crate::body::{self, Unread};
use crate::counters::Event;
use crate::extract::Key;
use crate::layer::{Mode, RouteState};
use crate::phase_timer::{Limits, Phase, PhaseTimer};
use crate::status::StatusToken;
use crate::{Problem, grpc, key, request};

pub(crate) use call::Call;
pub(crate) use replay::{Replay, replayed};
use service::HttpService;
use work::{Claims, Watch, Work};

/// How the work ended.
pub(crate) enum Completion {
    /// It was done now, or failed now: the handler's own answer.
    Done(Response),
    /// It was done without a claim, because the policy fails open.
    Unprotected(Response),
    /// It had ended before.
    Replay(Replay),
}

/// One request's work, ready to be claimed.
pub(crate) struct Job<D: Driver, S> {
    pub(crate) state: Arc<RouteState<D>>,
    pub(crate) intent: Intent,
    /// Whether the client sent a key; else there is nothing to replay.
    pub(crate) keyed: bool,
    pub(crate) call: Call<S>,
    pub(crate) timer: Arc<PhaseTimer>,
    /// In leased mode: whether the database has answered a claim.
    pub(crate) answered: Arc<AtomicBool>,
    /// How long its answer is kept; `None` where that could not be found out.
    retention: Option<Duration>,
}

impl<D: Driver, S> Job<D, S> {
    /// Asks how long the answer will be kept, which is known but for once in two seconds. Trouble with
    /// the database is left to the claim.
    async fn learn_retention(&mut self) {
        if self.keyed {
            self.retention = self.state.once.retention_of(&self.intent).await.ok();
        }
    }

    /// Whether the caller reads `grpc-status` instead of documents.
    fn as_grpc(&self) -> bool {
        grpc::is_grpc(&self.call.head.headers)
    }
}

/// Whether a request is none of the layer's business.
pub(crate) fn passes<D: Driver>(state: &RouteState<D>, request: &Request<Body>) -> bool {
    let policy = &state.policy;
    if !policy.methods.contains(request.method()) {
        return true;
    }
    // An atomic handler needs its transaction in any case.
    let unkeyed = !policy.key_required && !request.headers().contains_key(&policy.header);
    state.mode == Mode::Leased && (!policy.enabled || unkeyed)
}

/// Answers a request. Dropping the future stops the wait, not the work.
pub(crate) async fn serve<D: Driver, S: HttpService>(
    state: Arc<RouteState<D>>,
    service: S,
    request: Request<Body>,
) -> Response {
    let as_grpc = grpc::is_grpc(request.headers());
    let respond = |problem: Problem| match as_grpc {
        true => grpc::problem_response(&problem),
        false => problem.into_response_at(&state.policy.errors_at),
    };
    let job = match prepare(state.clone(), service, request).await {
        Ok(job) => job,
        Err(problem) => {
            let event = match problem.status() {
                StatusCode::SERVICE_UNAVAILABLE => Event::unavailable,
                _ => Event::refused,
            };
            state.counters.count(event);
            let mut response = respond(problem);
            response.extensions_mut().insert(LogFields::of(event));
            return response;
        }
    };
    let head = job.call.head.clone();
    let (intent, timer) = (job.intent.clone(), job.timer.clone());
    let (event, mut response) = match run(job).await {
        Ok(Completion::Done(response)) => (Event::done, response),
        Ok(Completion::Unprotected(response)) => (Event::unprotected, response),
        Ok(Completion::Replay(replay)) => {
            let replay = replayed(&state, &head, replay).await;
            (Event::replayed, replay.unwrap_or_else(respond))
        }
        Err(error) => {
            let (event, refused) = refuse(&state, &head, &error);
            (event, refused.unwrap_or_else(respond))
        }
    };
    state.counters.count(event);
    response.extensions_mut().insert(LogFields {
        tenant: Some(intent.tenant_name().to_owned()).filter(|tenant| !tenant.is_empty()),
        attempt: timer.attempt(),
        correlation: intent.correlation_id().map(str::to_owned),
        ..LogFields::of(event)
    });
    response
}

/// What a log says about a request, beside its response.
#[derive(Debug, Clone)]
pub(crate) struct LogFields {
    /// The counter that counted it.
    pub(crate) outcome: &'static str,
    pub(crate) tenant: Option<String>,
    /// The attempt that called the service; 0: none did.
    pub(crate) attempt: u32,
    pub(crate) correlation: Option<String>,
}

impl LogFields {
    fn of(event: Event) -> Self {
        Self {
            outcome: event.name(),
            tenant: None,
            attempt: 0,
            correlation: None,
        }
    }
}

/// Reads key, caller and body: all that can be refused before the database is asked.
async fn prepare<D: Driver, S: Clone>(
    state: Arc<RouteState<D>>,
    service: S,
    request: Request<Body>,
) -> Result<Job<D, S>, Problem> {
    let policy = &state.policy;
    let (mut head, body) = request.into_parts();
    let mut body = Unread(body);
    let key = match policy.enabled {
        true => key::read(&head.headers, policy)?,
        false => None,
    };
    if key.is_none() && policy.enabled && policy.key_required {
        return Err(key::missing(policy));
    }
    let principal = request::principal(&head, policy)?;
    let tenant = request::tenant(&head, policy)?;
    let (body, reserved) = body::read_request(&head, &mut body, policy, &state.budget).await?;

    let operation = request::operation(&head, policy);
    let scope = request::scope(policy, &operation).into_owned();
    let name = match &key {
        Some(key) if policy.plain_keys => key.to_string(),
        Some(key) => key::stored(key, &operation, principal.as_deref()),
        // No retry can find it; the row is the price of a transaction that ends like the others.
        None => format!("unkeyed#{}", pgonce::key::fresh()),
    };
    let made = request::fingerprint(&head, &body.bytes, &operation, policy)
        .and_then(|print| Intent::with_fingerprint(scope, name, print)?.tenant(tenant));
    let mut intent = made.map_err(|error: Error| match error {
        // Key and scope were checked before: it is the tenant.
        Error::Invalid(problem) => Problem::ours(
            StatusCode::BAD_REQUEST,
            "22023",
            problem.message.into_string(),
        ),
        other => Problem::from(&other),
    })?;
    if let Some(id) = request::correlation(&head, policy) {
        intent = intent.correlation(id);
    }
    let keyed = key.is_some();
    match key {
        Some(key) => {
            if policy.status_at.is_some() {
                head.extensions
                    .insert(StatusToken::new(&key, &operation, intent.fingerprint()));
            }
            head.extensions.insert(Key(key));
        }
        None => intent = intent.known_first(),
    }
    Ok(Job {
        call: Call::new(service, head, body, reserved),
        intent,
        keyed,
        timer: Arc::new(PhaseTimer::new()),
        answered: Arc::default(),
        retention: None,
        state,
    })
}

/// Does the work, and waits for no phase longer than the policy allows.
async fn run<D: Driver, S: HttpService>(job: Job<D, S>) -> pgonce::Result<Completion> {
    let (state, timer) = (job.state.clone(), job.timer.clone());
    let answered = job.answered.clone();
    let policy = &state.policy;
    let unprotected = (state.mode == Mode::Leased && policy.fail_open).then(|| job.call.clone());
    let limits = Limits::new(
        policy.claim_timeout(),
        (state.mode == Mode::Atomic).then_some(policy.handler_timeout),
        policy.database_timeout,
    );
    let mut work = match state.mode {
        Mode::Atomic => Work::new(&state.tasks, atomic::run(job)),
        Mode::Leased => Work::new(&state.tasks, leased::run(job)),
    }
    .watched(Watch {
        timer: timer.clone(),
        limits,
        leased_from: (state.mode == Mode::Leased).then(|| state.clone() as Arc<dyn Claims>),
    });
    let ended = tokio::select! {
        biased;
        ended = &mut work => ended.unwrap_or_else(|_| {
            Err(Error::work("the layer itself panicked; the server's log says more"))
        }),
        overdue = timer.overdue(limits) => {
            if state.mode == Mode::Atomic && overdue.phase != Phase::Settling {
                // Rolled back.
                work.stop();
            } else {
                // It goes on: a lease that may just have been claimed is given back, what happened
                // is recorded. A claim that the database does not work on is given up after a while.
                drop(work);
            }
            let why = "the database did not answer in time".to_owned();
            Err(match overdue.phase {
                _ if overdue.may_have_committed => Error::Uncertain(why),
                Phase::Working => Error::work(TooSlow),
                _ => Error::Disconnected(why),
            })
        }
    };
    match (ended, unprotected) {
        // Once it has answered, somebody may hold the intent, whatever became of an earlier or later claim.
        (Err(error), Some(call)) if is_unavailable(&error) && !answered.load(Ordering::Relaxed) => {
            tracing::warn!(%error, "done without a claim: the database is unavailable and the policy fails open");
            let limit = policy.max_response;
            let answered = Work::new(&state.tasks, call.answer(None, limit, |_| {})).await;
            let answered =
                answered.map_err(|_| Error::work("the layer itself panicked; see the log"))?;
            Ok(Completion::Unprotected(answered.into_response()))
        }
        // The service was called and may have done its work, whatever became of the claim since.
        (Err(error), _) if state.mode == Mode::Leased && timer.began() => {
            Err(unless_recorded(error))
        }
        (ended, _) => ended,
    }
}

/// An atomic handler exceeded its time limit.
#[derive(Debug, thiserror::Error)]
#[error("the handler took longer than handler_timeout; it was rolled back")]
struct TooSlow;

/// Whether the database is unavailable: not reachable, out of connections or shutting down, or a
/// standby that takes no writes.
fn is_unavailable(error: &Error) -> bool {
    let code = error.code();
    matches!(error, Error::Disconnected(_) | Error::Uncertain(_))
        || matches!(code, "25006" | "53300" | "53400")
        || code.starts_with("57P")
}

/// The error of a request whose service was called: only what is recorded about the intent says what
/// happened, every other error leaves it unknown.
fn unless_recorded(error: Error) -> Error {
    match error {
        Error::Refused(_)
        | Error::Failed(_)
        | Error::Gone(_)
        | Error::Uncertain(_)
        | Error::Work(_) => error,
        other => Error::Uncertain(other.to_string()),
    }
}

/// The response to a request whose home is another region: a redirection there, where the rule of the scope allows it.
fn elsewhere<D: Driver>(
    state: &RouteState<D>,
    head: &Parts,
    home: &Home,
) -> Result<Response, Problem> {
    // A router inside another one sees a shorter path than the client sent.
    let original = head.extensions.get::<OriginalUri>();
    let uri = original.map_or(&head.uri, |original| &original.0);
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let location = format!("{}{path}", home.address.trim_end_matches('/'));
    let location = HeaderValue::try_from(location).ok();
    let location = location.filter(|_| home.forward && !home.address.is_empty());
    let (status, detail) = match location {
        Some(_) => (
            StatusCode::TEMPORARY_REDIRECT,
            "its home is another region: send the same request with the same key there",
        ),
        None => (
            StatusCode::MISDIRECTED_REQUEST,
            "its home is another region, and this attempt did nothing",
        ),
    };
    let problem = Problem::ours(status, "P4110", detail).with("home", home.name.clone());
    match location {
        Some(location) if !grpc::is_grpc(&head.headers) => {
            let mut response = problem.into_response_at(&state.policy.errors_at);
            response.headers_mut().insert(header::LOCATION, location);
            Ok(response)
        }
        _ => Err(problem),
    }
}

/// The text of an error for a log. PostgreSQL quotes values in details, and in texts about values (classes 22 and 23); the
/// handler quotes what it likes.
fn without_values(error: &Error) -> String {
    match error {
        Error::Refused(failure) | Error::Failed(failure) => failure.code().to_owned(),
        Error::Database(problem) if ["22", "23"].iter().any(|c| problem.code.starts_with(c)) => {
            let constraint = problem.constraint.as_deref().unwrap_or("no constraint");
            format!("the handler's statement violates {constraint}, or its values do not fit")
        }
        Error::Database(problem) => problem.message.to_string(),
        other => other.to_string(),
    }
}

/// How an error is counted, and the response to it.
fn refuse<D: Driver>(
    state: &RouteState<D>,
    head: &Parts,
    error: &Error,
) -> (Event, Result<Response, Problem>) {
    if matches!(error, Error::Work(error) if error.is::<TooSlow>()) {
        tracing::warn!(%error, "a request was given up");
        let problem = Problem::ours(
            StatusCode::SERVICE_UNAVAILABLE,
            "handler_too_slow",
            "it took too long and was undone; send the same request with the same key again",
        );
        let problem = problem.retry_soon(1);
        return (Event::unavailable, Err(problem));
    }
    if let Some(home) = Home::from_error(error) {
        return (Event::refused, elsewhere(state, head, &home));
    }
    let event = match error {
        Error::Conflict(problem) if &*problem.code == "P4002" => Event::conflicts,
        Error::Busy { .. } => Event::busy,
        Error::Conflict(_) | Error::Gone(_) => Event::refused,
        _ if error.class() == Class::Final => Event::errors,
        _ => Event::unavailable,
    };
    let (code, error_text) = (error.code(), without_values(error));
    match event {
        Event::errors => {
            tracing::error!(code, error = error_text, "a request could not be answered");
        }
        _ => tracing::debug!(code, error = error_text, "a request was rejected"),
    }
    if let Error::Busy {
        retry_after,
        accepted: true,
    } = error
        && let Some(response) = crate::status::accepted(&state.policy, head, *retry_after)
    {
        return (event, Ok(response));
    }
    (event, Err(Problem::from(error)))
}
