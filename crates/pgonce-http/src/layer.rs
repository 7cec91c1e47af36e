//! The tower layer and its service.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::BoxError;
use axum::body::Body;
use axum::extract::MatchedPath;
use axum::response::Response;
use bytes::Bytes;
use futures_util::FutureExt as _;
use http::Request;
use pgonce::driver::Driver;
use pgonce::{Error, Once, Result};
use tokio_util::task::TaskTracker;
use tower::{Layer, Service};

use crate::policy::{BoxFuture, Scope};
use crate::{Budget, Counters, Policy, engine, span};

/// How the work and its answer are held together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Atomic,
    Leased,
}

/// What all requests of a route share.
pub(crate) struct RouteState<D: Driver> {
    pub(crate) once: Once<D>,
    pub(crate) policy: Policy,
    pub(crate) mode: Mode,
    pub(crate) budget: Budget,
    pub(crate) counters: Arc<Counters>,
    pub(crate) tasks: TaskTracker,
}

/// Makes the routes below it idempotent. Cheap to clone; one for each policy.
///
/// ```no_run
/// # async fn create(tx: pgonce_http::Tx<pgonce::driver::sqlx::Sqlx>) {}
/// # fn example(pool: sqlx::PgPool) -> pgonce::Result<axum::Router> {
/// use axum::routing::{Router, post};
/// use pgonce::Once;
/// use pgonce_http::{IdempotencyLayer, Caller, Policy};
///
/// let layer = IdempotencyLayer::atomic(Once::sqlx(pool), Policy::new("orders.create", Caller::None))?;
/// let app = Router::new().route("/orders", post(create).layer(layer));
/// # Ok(app)
/// # }
/// ```
pub struct IdempotencyLayer<D: Driver> {
    pub(crate) state: Arc<RouteState<D>>,
}

impl<D: Driver> IdempotencyLayer<D> {
    /// Atomic mode: the handler works in an open transaction ([`Tx`](crate::Tx)), and its response
    /// commits together with what it wrote. Refuses a policy that contradicts itself.
    pub fn atomic(once: Once<D>, policy: Policy) -> Result<Self> {
        Self::new(once, policy, Mode::Atomic)
    }

    /// Leased mode: any service, which may call the outside world. The claim is committed first
    /// and renewed while the service works; its response is stored under the claim's fence. Refuses a
    /// policy that contradicts itself.
    pub fn leased(once: Once<D>, policy: Policy) -> Result<Self> {
        Self::new(once, policy, Mode::Leased)
    }

    fn new(once: Once<D>, policy: Policy, mode: Mode) -> Result<Self> {
        policy.check().map_err(bad_policy)?;
        Ok(Self {
            state: Arc::new(RouteState {
                once,
                policy,
                mode,
                budget: Budget::default(),
                counters: Arc::default(),
                tasks: TaskTracker::new(),
            }),
        })
    }

    /// Bounds requests together with the other layers that have this budget.
    #[must_use]
    pub fn budget(self, budget: Budget) -> Self {
        let state = &*self.state;
        Self {
            state: Arc::new(RouteState {
                once: state.once.clone(),
                policy: state.policy.clone(),
                mode: state.mode,
                budget,
                counters: state.counters.clone(),
                tasks: state.tasks.clone(),
            }),
        }
    }

    /// Writes the policy's contract down in the database, where it holds for every entry point to the
    /// scope. Call it when the service starts. Refuses a policy without a retention or without a
    /// named scope.
    pub async fn agree(&self) -> Result<()> {
        let policy = &self.state.policy;
        match (&policy.scope, policy.contract()) {
            (Scope::Named(scope), Some(contract)) => {
                self.state.once.define_scope(scope, &contract).await
            }
            (Scope::Operation, _) => Err(bad_policy(
                "scopes that are named after operations have no contract of their own here; \
                 define them with `pgonce scope`"
                    .to_owned(),
            )),
            (_, None) => Err(bad_policy(
                "the policy does not say how long answers are kept; choose a retention".to_owned(),
            )),
        }
    }

    /// The policy.
    pub fn policy(&self) -> &Policy {
        &self.state.policy
    }

    /// What the layer did so far.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.state.counters
    }

    /// Number of requests whose work is in progress. Work continues when its client disconnects.
    pub fn under_way(&self) -> usize {
        self.state.tasks.len()
    }

    /// Waits until no work is under way: call it after the listener is closed, before the process
    /// ends.
    pub async fn drained(&self) {
        self.state.tasks.close();
        self.state.tasks.wait().await;
    }
}

fn bad_policy(why: String) -> Error {
    Error::Invalid(pgonce::ErrorDetail {
        code: "22023".into(),
        message: format!("the policy cannot hold: {why}").into(),
        detail: None,
        hint: None,
        constraint: None,
    })
}

impl<D: Driver> Clone for IdempotencyLayer<D> {
    fn clone(&self) -> Self {
        Self {
            state: self.state.clone(),
        }
    }
}

impl<D: Driver> fmt::Debug for IdempotencyLayer<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyLayer")
            .field("mode", &self.state.mode)
            .field("policy", &self.state.policy)
            .finish_non_exhaustive()
    }
}

impl<D: Driver, S> Layer<S> for IdempotencyLayer<D> {
    type Service = Idempotent<S, D>;

    fn layer(&self, inner: S) -> Self::Service {
        Idempotent {
            inner,
            state: self.state.clone(),
        }
    }
}

/// A service that answers each intent once. Made by [`IdempotencyLayer`].
pub struct Idempotent<S, D: Driver> {
    inner: S,
    state: Arc<RouteState<D>>,
}

impl<S: Clone, D: Driver> Clone for Idempotent<S, D> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            state: self.state.clone(),
        }
    }
}

impl<S: fmt::Debug, D: Driver> fmt::Debug for Idempotent<S, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Idempotent")
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}

impl<S, D, B, R> Service<Request<B>> for Idempotent<S, D>
where
    S: Service<Request<Body>, Response = http::Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    D: Driver,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
    R: http_body::Body<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    type Response = Response;
    type Error = S::Error;
    type Future = BoxFuture<Result<Response, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let request = request.map(Body::new);
        // The one that was asked whether it is ready does the work; a copy stays.
        let spare = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, spare);
        if engine::passes(&self.state, &request) {
            let passed = inner.call(request);
            return Box::pin(async move {
                let mut response = passed.await?.map(Body::new);
                crate::disposition::strip_headers(response.headers_mut());
                Ok(response)
            });
        }
        let route = request.extensions().get::<MatchedPath>().cloned();
        let span = span::of_request(&request, route.as_ref().map(MatchedPath::as_str));
        let serving = engine::serve(self.state.clone(), inner, request);
        Box::pin(span::answer(span, serving).map(Ok))
    }
}
