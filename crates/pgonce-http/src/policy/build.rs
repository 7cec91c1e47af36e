//! The methods that change one field each.

use std::borrow::Cow;
use std::time::Duration;

use http::{HeaderName, Method};
use pgonce::scope::{AfterExpiry, Busy, Stale};

use super::{
    ApiVersion, Caller, Oversize, Policy, Reauthorise, ReplayHeaders, RequestPrint, Scope,
};
use crate::fate::Outcomes;

macro_rules! setters {
    ($($(#[doc = $doc:literal])+ $field:ident: $kind:ty;)+) => {
        impl Policy { $(
            $(#[doc = $doc])+
            #[must_use]
            pub fn $field(mut self, $field: $kind) -> Self {
                self.$field = $field;
                self
            }
        )+ }
    };
}

setters! {
    /// The scope of the intents.
    scope: Scope;
    /// Switches protection off, for tests of the handler alone, or on again.
    enabled: bool;
    /// The header that carries the key.
    header: HeaderName;
    /// Whether a request without a key is refused.
    key_required: bool;
    /// The longest key, in bytes; at most 255.
    max_key_bytes: usize;
    /// Refuses keys that look like the name of a try: see [`pgonce::key::lint`].
    lint_keys: bool;
    /// Stores the client's key as it is.
    plain_keys: bool;
    /// The version of the API that gives a request its meaning.
    version: ApiVersion;
    /// Whether the query string is a part of the request.
    with_query: bool;
    /// How the body is compared.
    fingerprint: RequestPrint;
    /// Who asks.
    principal: Caller;
    /// The tenant.
    tenant: Caller;
    /// The largest request body, in bytes.
    max_body: usize;
    /// The largest response body that is kept, in bytes.
    max_response: usize;
    /// What happens to a response that is larger, or a stream.
    oversize: Oversize;
    /// The headers that are replayed.
    replay_headers: ReplayHeaders;
    /// How long a client may take to send its body.
    body_within: Duration;
    /// How long the database may take to answer.
    database_timeout: Duration;
    /// How long a joined handler may take.
    handler_timeout: Duration;
    /// Whether the work is done without a claim while the database is away; each such run is
    /// counted in [`Counters::unprotected`](crate::Counters::unprotected) and logged.
    fail_open: bool;
    /// What a duplicate is told meanwhile.
    busy: Busy;
    /// How long a duplicate waits with [`Busy::Wait`].
    wait_timeout: Duration;
    /// The length of a lease in recorded mode.
    lease: Duration;
    /// What happens when whoever did the work vanished.
    stale: Stale;
    /// How long clients may retry.
    client_retry: Duration;
    /// What a key means after its retention.
    after_expiry: AfterExpiry;
}

impl Policy {
    /// The methods that are protected.
    #[must_use]
    pub fn methods(mut self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.methods = methods.into_iter().collect();
        self
    }

    /// The operation's name, such as `POST /orders/{id}`.
    #[must_use]
    pub fn operation(mut self, name: impl Into<String>) -> Self {
        self.operation = Some(name.into());
        self
    }

    /// The header with an id that ties records to logs and traces.
    #[must_use]
    pub fn correlation(mut self, header: HeaderName) -> Self {
        self.correlation = Some(header);
        self
    }

    /// Asked before a stored answer is given out.
    #[must_use]
    pub fn reauthorise(mut self, hook: Reauthorise) -> Self {
        self.reauthorise = Some(hook);
        self
    }

    /// Which answers are kept.
    #[must_use]
    pub fn outcomes(mut self, outcomes: Outcomes) -> Self {
        self.outcomes = Some(outcomes);
        self
    }

    /// Where [`status_route`](crate::status_route) is mounted.
    #[must_use]
    pub fn status_at(mut self, path: impl Into<String>) -> Self {
        self.status_at = Some(path.into());
        self
    }

    /// What `type` of a problem document starts with.
    #[must_use]
    pub fn errors_at(mut self, base: impl Into<Cow<'static, str>>) -> Self {
        self.errors_at = base.into();
        self
    }

    /// How long answers are kept, once [`IdempotencyLayer::agree`](crate::IdempotencyLayer::agree) has
    /// written it down. What clients are told (`Idempotency-Expires`) is what the contract says.
    #[must_use]
    pub fn retention(mut self, retention: Duration) -> Self {
        self.retention = Some(retention);
        self
    }
}
