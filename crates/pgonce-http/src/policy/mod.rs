//! What a route promises: plain data, so that it can be written in code or read from a file.

mod build;
mod choices;

use std::borrow::Cow;
use std::time::Duration;

use http::{HeaderName, Method};
use pgonce::scope::{AfterExpiry, Busy, Contract, Stale};

pub use choices::{
    ApiVersion, BoxFuture, Caller, Oversize, Print, Reauthorise, ReplayHeaders, RequestPrint, Scope,
};

use crate::errors::ERRORS_AT;
use crate::fate::Outcomes;

/// The policy of a route. Every field has a default that is safe; change them with the methods
/// of the same name.
///
/// ```
/// use std::time::Duration;
/// use pgonce_http::{Caller, Outcomes, Policy};
///
/// let policy = Policy::new("payments.create")
///     .principal(Caller::from_extension(|user: &UserId| Some(user.0.clone())))
///     .outcomes(Outcomes::Freeze)
///     .retention(Duration::from_secs(86_400));
/// # #[derive(Clone)]
/// # struct UserId(String);
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Policy {
    /// The scope of the intents. [`Policy::new`] names it.
    pub scope: Scope,
    /// Off, a request passes as if there were no layer (in joined mode the handler still gets a
    /// transaction). On.
    pub enabled: bool,
    /// The header that carries the key. `Idempotency-Key`.
    pub header: HeaderName,
    /// Whether a request without a key is refused; else it is done without protection. Refused.
    pub key_required: bool,
    /// The longest key, in bytes. 255.
    pub max_key_bytes: usize,
    /// Whether keys that look like the name of a try (a time, a counter) are refused. No.
    pub lint_keys: bool,
    /// Whether the client's key is stored as it is, for scopes that other doors share: then the
    /// scope must belong to one operation and there is no principal. No: the stored key is the
    /// client's, then `#` and a digest of principal, operation and key.
    pub plain_keys: bool,
    /// The methods that are protected; others pass untouched. POST and PATCH.
    pub methods: Vec<Method>,
    /// The operation's name, such as `POST /orders/{id}`. Otherwise the method and axum's matched
    /// path, or the raw path where there is none.
    pub operation: Option<String>,
    /// The version of the API that gives a request its meaning. None.
    pub version: ApiVersion,
    /// Whether the query string is a part of the request. It is.
    pub with_query: bool,
    /// How the body is compared. By its content type.
    pub fingerprint: RequestPrint,
    /// Who asks, so that two callers' keys never meet. Nobody in particular.
    pub principal: Caller,
    /// The tenant; an empty name stands for none. None.
    pub tenant: Caller,
    /// The header with an id that ties records to logs and traces, such as `X-Request-Id`. None.
    pub correlation: Option<HeaderName>,
    /// Asked before a stored answer is given out. Not asked.
    pub reauthorise: Option<Reauthorise>,
    /// Which answers are kept. Success and final 4xx in joined mode; all (freeze) in recorded mode,
    /// where a failure does not say that nothing happened.
    pub outcomes: Option<Outcomes>,
    /// The largest request body, in bytes. 2 MiB.
    pub max_body: usize,
    /// The largest response body that is kept, in bytes. 1 MiB.
    pub max_response: usize,
    /// What happens to a response that is larger, or a stream. Refused.
    pub oversize: Oversize,
    /// The headers that are replayed. A list of those that describe the answer.
    pub replay_headers: ReplayHeaders,
    /// How long a client may take to send its body. 30 seconds.
    pub body_within: Duration,
    /// How long the database may take to answer before the client is told 503; a busy wait comes
    /// on top. 10 seconds.
    pub database_timeout: Duration,
    /// How long a joined handler may take before it is rolled back and the client told 503: its own
    /// statements may be what a silent database leaves unanswered. In recorded mode the service has
    /// its own time limits. 30 seconds.
    pub handler_timeout: Duration,
    /// Whether, in recorded mode, the work is done without a claim while the database is away. No.
    pub fail_open: bool,
    /// Where [`status_route`](crate::status_route) is mounted, such as `/orders/status`; needed to
    /// answer 202 where the contract says so. None.
    pub status_at: Option<String>,
    /// What `type` of a problem document starts with; the code follows in small letters.
    pub errors_at: Cow<'static, str>,
    /// How long answers are kept, once [`Policy::contract`] is agreed on.
    pub retention: Option<Duration>,
    /// What a duplicate is told meanwhile; for [`Policy::contract`]. 409.
    pub busy: Busy,
    /// How long a duplicate waits with [`Busy::Wait`]; for [`Policy::contract`]. 5 seconds.
    pub wait_timeout: Duration,
    /// The length of a lease in recorded mode; for [`Policy::contract`]. 30 seconds.
    pub lease: Duration,
    /// What happens in recorded mode when whoever did the work vanished. Refused for good: nobody
    /// knows whether it happened. [`Stale::Takeover`] is for services that can be asked twice. The
    /// stricter of this and the scope's contract holds.
    pub stale: Stale,
    /// How long clients may retry, which retention must cover; for [`Policy::contract`]. 0.
    pub client_retry: Duration,
    /// What a key means after its retention; for [`Policy::contract`]. It is free again.
    pub after_expiry: AfterExpiry,
}

impl Policy {
    /// The safe defaults, for one named scope such as `orders.create`.
    pub fn new(scope: impl Into<String>) -> Self {
        Self::of(Scope::Named(scope.into()))
    }

    /// The safe defaults, with a scope for each operation, named after it: `POST /orders`.
    pub fn per_operation() -> Self {
        Self::of(Scope::Operation)
    }

    fn of(scope: Scope) -> Self {
        Self {
            scope,
            enabled: true,
            header: HeaderName::from_static("idempotency-key"),
            key_required: true,
            max_key_bytes: pgonce::MAX_NAME_BYTES,
            lint_keys: false,
            plain_keys: false,
            methods: vec![Method::POST, Method::PATCH],
            operation: None,
            version: ApiVersion::None,
            with_query: true,
            fingerprint: RequestPrint::ByContentType,
            principal: Caller::None,
            tenant: Caller::None,
            correlation: None,
            reauthorise: None,
            outcomes: None,
            max_body: 2 * 1024 * 1024,
            max_response: 1024 * 1024,
            oversize: Oversize::Refuse,
            replay_headers: ReplayHeaders::default(),
            body_within: Duration::from_secs(30),
            database_timeout: Duration::from_secs(10),
            handler_timeout: Duration::from_secs(30),
            fail_open: false,
            status_at: None,
            errors_at: Cow::Borrowed(ERRORS_AT),
            retention: None,
            busy: Busy::Reject,
            wait_timeout: Duration::from_secs(5),
            lease: Duration::from_secs(30),
            stale: Stale::Refuse,
            client_retry: Duration::ZERO,
            after_expiry: AfterExpiry::Rerun,
        }
    }

    /// The contract that the policy asks for, to be written down once with
    /// [`IdempotencyLayer::agree`](crate::IdempotencyLayer::agree); `None` where no retention was chosen. The
    /// contract in the database is what holds.
    pub fn contract(&self) -> Option<Contract> {
        Some(
            Contract::keep(self.retention?)
                .busy(self.busy)
                .wait_timeout(self.wait_timeout)
                .lease(self.lease)
                .stale(self.stale)
                .client_retry(self.client_retry)
                .after_expiry(self.after_expiry),
        )
    }

    /// What is wrong with the policy in itself, in words; `Ok` where nothing is.
    pub fn check(&self) -> Result<(), String> {
        if self.plain_keys && !matches!(self.principal, Caller::None) {
            return Err(
                "plain_keys and a principal exclude each other: two callers' keys would meet; \
                 drop plain_keys, or make the principal the tenant"
                    .to_owned(),
            );
        }
        if self.plain_keys && self.scope == Scope::Operation {
            return Err(
                "plain_keys is for a named scope that other doors share; name it".to_owned(),
            );
        }
        if self.max_key_bytes == 0 || self.max_key_bytes > pgonce::MAX_NAME_BYTES {
            let most = pgonce::MAX_NAME_BYTES;
            return Err(format!(
                "max_key_bytes is {}; choose 1 to {most}",
                self.max_key_bytes
            ));
        }
        if u32::try_from(self.max_body).is_err() || u32::try_from(self.max_response).is_err() {
            return Err(
                "max_body and max_response must be below 4 GiB: bodies are held in memory"
                    .to_owned(),
            );
        }
        if matches!(&self.scope, Scope::Named(name) if name.is_empty() || name.len() > pgonce::MAX_NAME_BYTES)
        {
            return Err("the scope's name has 1 to 255 bytes".to_owned());
        }
        if self.methods.is_empty() {
            return Err("no method is protected; leave the layer away, or switch it off with enabled(false)".to_owned());
        }
        if self.busy == Busy::Accept && self.status_at.is_none() {
            return Err(
                "busy is accept, but status_at is missing: clients would not know where to ask"
                    .to_owned(),
            );
        }
        Ok(())
    }

    /// How long the claim may take before the client is told to come back.
    pub(crate) fn claim_timeout(&self) -> Duration {
        match self.busy {
            Busy::Wait => self.database_timeout + self.wait_timeout,
            _ => self.database_timeout,
        }
    }
}
