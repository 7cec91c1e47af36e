//! What a route promises: plain data, so that it can be written in code or read from a file.

mod build;
mod choices;

use std::borrow::Cow;
use std::time::Duration;

use http::{HeaderName, Method, StatusCode};
use pgonce::scope::{AfterExpiry, Busy, Contract, Stale};

pub use choices::{
    ApiVersion, BoxFuture, Caller, Oversize, Print, Reauthorise, ReplayHeaders, RequestPrint, Scope,
};

use crate::disposition::{Disposition, Outcomes};
use crate::errors::ERRORS_AT;
use crate::phase_timer::FAR;

/// The policy of a route. Every field has a safe default, except the principal, which is a decision
/// of yours. Change fields with the methods of the same name.
///
/// ```
/// use std::time::Duration;
/// use pgonce_http::{Caller, Outcomes, Policy};
///
/// let caller = Caller::from_extension(|user: &UserId| Some(user.0.clone()));
/// let policy = Policy::new("payments.create", caller)
///     .outcomes(Outcomes::Freeze)
///     .retention(Duration::from_secs(86_400));
/// # #[derive(Clone)]
/// # struct UserId(String);
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Policy {
    /// The scope of the intents.
    pub scope: Scope,
    /// Whether the route is protected. Off, a request passes as if there were no layer (in atomic
    /// mode the handler still gets a transaction). Default: on.
    pub enabled: bool,
    /// The header that carries the key. Default: `Idempotency-Key`.
    pub header: HeaderName,
    /// Whether a request without a key is refused; else it runs unprotected. Default: refused.
    pub key_required: bool,
    /// Maximum length of a key, in bytes. Default: 255.
    pub max_key_bytes: usize,
    /// Whether keys that name an attempt (a time, a counter) are refused. Default: no.
    pub lint_keys: bool,
    /// Whether the client's key is stored as it is, for scopes that other entry points share: then
    /// the scope must belong to one operation and there is no principal. Default: no; the stored key
    /// is the client's, then `#` and a digest of principal, operation and key.
    pub plain_keys: bool,
    /// The methods that are protected; others pass untouched. Default: POST and PATCH.
    pub methods: Vec<Method>,
    /// The operation's name, such as `POST /orders/{id}`. Default: the method and axum's matched
    /// path, or the raw path where there is none.
    pub operation: Option<String>,
    /// The API version, which is part of the request's fingerprint. Default: none.
    pub version: ApiVersion,
    /// Whether the query string is part of the request. Default: yes.
    pub with_query: bool,
    /// How the body is compared with an earlier one. Default: by its content type.
    pub fingerprint: RequestPrint,
    /// The principal that keys belong to: the same key of two principals never meets.
    pub principal: Caller,
    /// The tenant. Default: none.
    pub tenant: Caller,
    /// The header with an id that ties records to logs and traces, such as `X-Request-Id`.
    /// Default: none.
    pub correlation: Option<HeaderName>,
    /// A hook that decides whether a stored response is still given out. Default: none.
    pub reauthorise: Option<Reauthorise>,
    /// Which responses are kept. Default: [`Outcomes::Final`] in atomic mode, [`Outcomes::Freeze`] in
    /// leased mode, where a failure does not prove that nothing happened.
    pub outcomes: Option<Outcomes>,
    /// Dispositions of some statuses, before `outcomes`; the last one for a status holds. Default:
    /// none.
    pub statuses: Vec<(StatusCode, Disposition)>,
    /// Maximum size of a request body, in bytes. Default: 2 MiB.
    pub max_body: usize,
    /// Maximum size of a response body that is kept, in bytes. Default: 1 MiB.
    pub max_response: usize,
    /// What happens to a response that is larger, or a stream. Default: refused.
    pub oversize: Oversize,
    /// The headers that are replayed. Default: those that describe the response.
    pub replay_headers: ReplayHeaders,
    /// Maximum time for a client to send the next piece of its body, and a tenth of the maximum time for
    /// all of it. Default: 30 seconds.
    pub body_timeout: Duration,
    /// Maximum time for a reply of the database before the client gets 503; a busy wait comes on
    /// top. Default: 10 seconds.
    pub database_timeout: Duration,
    /// Maximum time of an atomic handler before it is rolled back and the client gets 503: its own
    /// statements may be what a silent database leaves unanswered. In leased mode the service has
    /// its own time limits. Default: 30 seconds.
    pub handler_timeout: Duration,
    /// Whether, in leased mode, the work is done without a claim while the database is unavailable.
    /// Default: no.
    pub fail_open: bool,
    /// The path where [`status_route`](crate::status_route) is mounted, such as `/orders/status`;
    /// required for 202 responses. Default: none.
    pub status_at: Option<String>,
    /// The prefix of `type` in problem documents; the code follows in lower case.
    pub errors_at: Cow<'static, str>,
    /// How long responses are kept, for [`Policy::contract`]. Default: none.
    pub retention: Option<Duration>,
    /// What a duplicate gets while the first request is in progress, for [`Policy::contract`].
    /// Default: 409.
    pub busy: Busy,
    /// Maximum time a duplicate waits with [`Busy::Wait`], for [`Policy::contract`]. Default: 5 seconds.
    pub wait_timeout: Duration,
    /// Length of a lease in leased mode, for [`Policy::contract`]. Default: 30 seconds.
    pub lease: Duration,
    /// What happens in leased mode to work whose process ended without a result. Default: refused,
    /// because it is unknown whether it happened. [`Stale::Takeover`] is for services that can be
    /// called twice. The stricter of this and the scope's contract holds.
    pub stale: Stale,
    /// How long clients may retry, which retention must cover, for [`Policy::contract`]. Default: 0.
    pub client_retry: Duration,
    /// What a key means after its retention, for [`Policy::contract`]. Default: it is free again.
    pub after_expiry: AfterExpiry,
}

impl Policy {
    /// A policy with safe defaults for one named scope such as `orders.create`, and the principal
    /// that keys belong to: see [`Caller`].
    pub fn new(scope: impl Into<String>, principal: Caller) -> Self {
        Self::of(Scope::Named(scope.into()), principal)
    }

    /// As [`Policy::new`], with a scope for each operation, named after it: `POST /orders`.
    pub fn per_operation(principal: Caller) -> Self {
        Self::of(Scope::Operation, principal)
    }

    fn of(scope: Scope, principal: Caller) -> Self {
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
            principal,
            tenant: Caller::None,
            correlation: None,
            reauthorise: None,
            outcomes: None,
            statuses: Vec::new(),
            max_body: 2 * 1024 * 1024,
            max_response: 1024 * 1024,
            oversize: Oversize::Refuse,
            replay_headers: ReplayHeaders::default(),
            body_timeout: Duration::from_secs(30),
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
                .after_expiry(self.after_expiry)
                .max_answer(max_answer(self.max_response)),
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
                "plain_keys is for a named scope that other entry points share; name it".to_owned(),
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
        if let RequestPrint::Only(pointers) | RequestPrint::Except(pointers) = &self.fingerprint {
            let wrong = pointers.iter().find(|pointer| !pointer.starts_with('/'));
            if let Some(wrong) = wrong {
                return Err(format!(
                    "{wrong:?} is no JSON pointer to a member of the body; write it such as \"/customer/id\""
                ));
            }
            if pointers.is_empty() {
                return Err(
                    "the fingerprint names no member of the body; name some, or use Json"
                        .to_owned(),
                );
            }
        }
        if self.methods.is_empty() {
            return Err(
                "no method is protected; remove the layer, or switch it off with enabled(false)"
                    .to_owned(),
            );
        }
        if self.busy == Busy::Accept && self.status_at.is_none() {
            return Err(
                "busy is accept, but status_at is missing: clients would not know where to ask"
                    .to_owned(),
            );
        }
        Ok(())
    }

    /// Maximum time of a claim before the client gets 503.
    pub(crate) fn claim_timeout(&self) -> Duration {
        match self.busy {
            Busy::Wait => self.database_timeout.saturating_add(self.wait_timeout),
            _ => self.database_timeout,
        }
        .min(FAR)
    }
}

/// What a contract must allow an answer to be, so that every body of `max_response` bytes fits: as text of JSON it has at
/// most two for one, encrypted a third more, and its headers come on top.
pub(crate) fn max_answer(max_response: usize) -> u32 {
    u32::try_from(max_response.saturating_mul(3).saturating_add(1 << 16))
        .unwrap_or(u32::MAX)
        .clamp(1 << 20, i32::MAX.unsigned_abs())
}
