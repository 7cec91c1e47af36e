//! One request from its head to its answer.
//!
//! What can strike, and what holds then: the client goes away (everything after the body then goes on
//! as a task of its own); the handler panics (caught: joined work is rolled back and its key
//! freed, recorded work goes by its policy); the database is away or silent (a time limit for each
//! of its turns, and for joined handlers, which wait for it too; none begins without a claim); a twin is faster, or a commit's reply
//! is lost (`Once::run` and `Once::run_leased` claim again, and the request is built anew).

mod atomic;
mod call;
mod leased;
mod replay;
mod verdict;
mod work;

use std::sync::Arc;
use std::time::Duration;

use axum::BoxError;
use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::request::Parts;
use http::{Request, StatusCode};
use pgonce::driver::Driver;
use pgonce::retry::Class;
use pgonce::{Error, Intent};
use tower::Service;

use crate::body::{self, Unread};
use crate::counters::Event;
use crate::extract::Key;
use crate::layer::{Edge, Mode};
use crate::status::Ticket;
use crate::turn::{Limits, Phase, Turn};
use crate::{Problem, grpc, key, request};

pub(crate) use call::Call;
pub(crate) use replay::{Replay, replayed};
use work::Work;

/// What came of the work.
pub(crate) enum Ended {
    /// It was done now, or failed now: the handler's own answer.
    Live(Response),
    /// It had ended before.
    Replay(Replay),
}

/// One request's work, ready to be claimed.
pub(crate) struct Job<D: Driver, S> {
    pub(crate) edge: Arc<Edge<D>>,
    pub(crate) intent: Intent,
    /// Whether the client named the wish; else there is nothing to replay for.
    pub(crate) keyed: bool,
    pub(crate) call: Call<S>,
    pub(crate) turn: Arc<Turn>,
    /// How long its answer is kept; `None` where that could not be found out.
    retention: Option<Duration>,
}

impl<D: Driver, S> Job<D, S> {
    /// Asks how long the answer will be kept, which is known but for once in two seconds. Trouble with
    /// the database is left to the claim.
    async fn learn_retention(&mut self) {
        if self.keyed {
            self.retention = self.edge.once.retention_of(&self.intent).await.ok();
        }
    }

    /// Whether the caller reads `grpc-status` instead of documents.
    fn as_grpc(&self) -> bool {
        grpc::is_grpc(&self.call.head.headers)
    }
}

/// Whether a request is none of the layer's business.
pub(crate) fn passes<D: Driver>(edge: &Edge<D>, request: &Request<Body>) -> bool {
    let policy = &edge.policy;
    if !policy.methods.contains(request.method()) {
        return true;
    }
    // A joined handler needs its transaction in any case.
    let unkeyed = !policy.key_required && !request.headers().contains_key(&policy.header);
    edge.mode == Mode::Leased && (!policy.enabled || unkeyed)
}

/// Answers a request. Whoever drops the future stops waiting, not the work.
pub(crate) async fn serve<D, S, R>(
    edge: Arc<Edge<D>>,
    service: S,
    request: Request<Body>,
) -> Response
where
    D: Driver,
    S: Service<Request<Body>, Response = http::Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    R: http_body::Body<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    let as_grpc = grpc::is_grpc(request.headers());
    let told = |problem: Problem| match as_grpc {
        true => grpc::told(&problem),
        false => problem.into_response_at(&edge.policy.errors_at),
    };
    let job = match prepare(edge.clone(), service, request).await {
        Ok(job) => job,
        Err(problem) => {
            edge.counters.count(match problem.status() {
                StatusCode::SERVICE_UNAVAILABLE => Event::unavailable,
                _ => Event::refused,
            });
            return told(problem);
        }
    };
    let head = job.call.head.clone();
    match run(job).await {
        Ok(Ended::Live(response)) => {
            edge.counters.count(Event::done);
            response
        }
        Ok(Ended::Replay(replay)) => {
            edge.counters.count(Event::replayed);
            replayed(&edge, &head, replay).await.unwrap_or_else(told)
        }
        Err(error) => refuse(&edge, &head, &error).unwrap_or_else(told),
    }
}

/// Reads key, caller and body: all that can be refused before the database is asked.
async fn prepare<D: Driver, S: Clone>(
    edge: Arc<Edge<D>>,
    service: S,
    request: Request<Body>,
) -> Result<Job<D, S>, Problem> {
    let policy = &edge.policy;
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
    let (body, reserved) = body::read_request(&head, &mut body, policy, &edge.budget).await?;

    let operation = request::operation(&head, policy);
    let scope = request::scope(policy, &operation).into_owned();
    let name = match &key {
        Some(key) if policy.plain_keys => key.to_string(),
        Some(key) => key::stored(key, &operation, principal.as_deref()),
        // Nobody will ask for it again; a row is the price of a transaction that ends as others do.
        None => format!("unkeyed#{}", pgonce::key::fresh()),
    };
    let made = async {
        let print = request::fingerprint(&head, &body.bytes, &operation, policy).await?;
        let intent = Intent::with_fingerprint(scope, name, print)?.tenant(tenant)?;
        Ok(match request::correlation(&head, policy) {
            Some(id) => intent.correlation(id),
            None => intent,
        })
    };
    let mut intent = made.await.map_err(|error: Error| match error {
        // Key and scope were checked before: it is the tenant.
        Error::Invalid(problem) => Problem::ours(
            StatusCode::BAD_REQUEST,
            "22023",
            problem.message.into_string(),
        ),
        other => Problem::from(&other),
    })?;
    let keyed = key.is_some();
    match key {
        Some(key) => {
            if policy.status_at.is_some() {
                head.extensions
                    .insert(Ticket::new(&key, &operation, intent.fingerprint()));
            }
            head.extensions.insert(Key(key));
        }
        None => intent = intent.known_first(),
    }
    Ok(Job {
        call: Call::new(service, head, body, reserved),
        intent,
        keyed,
        turn: Arc::new(Turn::new()),
        retention: None,
        edge,
    })
}

/// Does the work, and waits for no turn of the database longer than the policy allows.
async fn run<D, S, R>(job: Job<D, S>) -> pgonce::Result<Ended>
where
    D: Driver,
    S: Service<Request<Body>, Response = http::Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    R: http_body::Body<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    let (edge, turn) = (job.edge.clone(), job.turn.clone());
    let policy = &edge.policy;
    let unprotected = (edge.mode == Mode::Leased && policy.fail_open).then(|| job.call.clone());
    let limits = Limits {
        claim: policy.claim_timeout(),
        work: (edge.mode == Mode::Atomic).then_some(policy.handler_timeout),
        settle: policy.database_timeout,
    };
    let mut work = match edge.mode {
        Mode::Atomic => Work::new(&edge.tasks, atomic::run(job)),
        Mode::Leased => Work::new(&edge.tasks, leased::run(job)),
    };
    let ended = tokio::select! {
        biased;
        ended = &mut work => ended.unwrap_or_else(|_| {
            Err(Error::work("the layer itself panicked; the server's log says more"))
        }),
        overdue = turn.overdue(limits) => {
            if edge.mode == Mode::Atomic && overdue.phase != Phase::Settling {
                // Rolled back.
                work.stop();
            } else {
                // It goes on: a lease that may just have been claimed is given back, what happened
                // is recorded.
                drop(work);
            }
            let why = "the database did not answer in time".to_owned();
            Err(match overdue.phase {
                _ if overdue.in_doubt => Error::Uncertain(why),
                Phase::Working => Error::work(TooSlow),
                _ => Error::Disconnected(why),
            })
        }
    };
    match (ended, unprotected) {
        (Err(error), Some(call)) if is_away(&error) && !call.was_called() => {
            edge.counters.count(Event::unprotected);
            tracing::warn!(%error, "done without a claim: the database is away and the policy fails open");
            let limit = policy.max_response;
            let answered = Work::new(&edge.tasks, call.answer(None, limit, |_| {})).await;
            let answered =
                answered.map_err(|_| Error::work("the layer itself panicked; see the log"))?;
            Ok(Ended::Live(answered.into_response()))
        }
        (ended, _) => ended,
    }
}

/// A joined handler that took longer than it may.
#[derive(Debug, thiserror::Error)]
#[error("the handler took longer than handler_timeout; it was rolled back")]
struct TooSlow;

/// Whether the database could not be asked.
fn is_away(error: &Error) -> bool {
    matches!(error, Error::Disconnected(_) | Error::Uncertain(_))
}

/// What a client is told about an error.
fn refuse<D: Driver>(edge: &Edge<D>, head: &Parts, error: &Error) -> Result<Response, Problem> {
    if matches!(error, Error::Work(error) if error.is::<TooSlow>()) {
        edge.counters.count(Event::unavailable);
        tracing::warn!(%error, "a request was given up");
        return Err(Problem::ours(
            StatusCode::SERVICE_UNAVAILABLE,
            "handler_too_slow",
            "it took too long and was undone; send the same request with the same key again",
        )
        .retry_after(Duration::from_secs(1)));
    }
    let event = match error {
        Error::Conflict(_) => Event::conflicts,
        Error::Busy { .. } => Event::busy,
        Error::Gone(_) => Event::refused,
        _ if error.class() == Class::Final => Event::errors,
        _ => Event::unavailable,
    };
    edge.counters.count(event);
    match event {
        Event::errors => tracing::error!(%error, "a request could not be answered"),
        _ => tracing::debug!(%error, "a request was turned away"),
    }
    if let Error::Busy {
        retry_after,
        accepted: true,
    } = error
        && let Some(response) = crate::status::accepted(&edge.policy, head, *retry_after)
    {
        return Ok(response);
    }
    Err(Problem::from(error))
}
