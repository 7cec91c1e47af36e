//! The methods that change one field each.

use std::borrow::Cow;
use std::time::Duration;

use http::{HeaderName, Method, StatusCode};
use pgonce::scope::{AfterExpiry, Busy, Stale};

use super::{
    ApiVersion, Caller, Oversize, Policy, Reauthorise, ReplayHeaders, RequestPrint, Scope,
};
use crate::disposition::{Disposition, Outcomes};

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
    /// Sets the scope of the intents.
    scope: Scope;
    /// Switches protection off, for tests of the handler alone, or on again.
    enabled: bool;
    /// Sets the header that carries the key.
    header: HeaderName;
    /// Sets whether a request without a key is refused.
    key_required: bool;
    /// Sets the maximum length of a key, in bytes; at most 255.
    max_key_bytes: usize;
    /// Refuses keys that name an attempt: see [`pgonce::key::lint`].
    lint_keys: bool;
    /// Stores the client's key as it is.
    plain_keys: bool;
    /// Sets where the API version is found.
    version: ApiVersion;
    /// Sets whether the query string is part of the request.
    with_query: bool;
    /// Sets how the body is compared.
    fingerprint: RequestPrint;
    /// Sets the tenant.
    tenant: Caller;
    /// Sets the maximum size of a request body, in bytes.
    max_body: usize;
    /// Sets the maximum size of a response body that is kept, in bytes.
    max_response: usize;
    /// Sets what happens to a response that is larger, or a stream.
    oversize: Oversize;
    /// Sets the headers that are replayed.
    replay_headers: ReplayHeaders;
    /// Sets the maximum time for a client to send the next piece of its body; all of it may take ten
    /// times as long.
    body_timeout: Duration;
    /// Sets the maximum time for a reply of the database.
    database_timeout: Duration;
    /// Sets the maximum time of an atomic handler.
    handler_timeout: Duration;
    /// Sets whether work is done without a claim while the database is unavailable; each such run is
    /// counted in [`Counters::unprotected`](crate::Counters::unprotected) and logged.
    fail_open: bool;
    /// Sets what a duplicate gets while the first request is in progress.
    busy: Busy;
    /// Sets the maximum time a duplicate waits with [`Busy::Wait`].
    wait_timeout: Duration;
    /// Sets the length of a lease in leased mode.
    lease: Duration;
    /// Sets what happens to work whose process ended without a result.
    stale: Stale;
    /// Sets how long clients may retry.
    client_retry: Duration;
    /// Sets what a key means after its retention.
    after_expiry: AfterExpiry;
}

impl Policy {
    /// Sets the methods that are protected.
    #[must_use]
    pub fn methods(mut self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.methods = methods.into_iter().collect();
        self
    }

    /// Sets the operation's name, such as `POST /orders/{id}`.
    #[must_use]
    pub fn operation(mut self, name: impl Into<String>) -> Self {
        self.operation = Some(name.into());
        self
    }

    /// Sets the header with an id that ties records to logs and traces.
    #[must_use]
    pub fn correlation(mut self, header: HeaderName) -> Self {
        self.correlation = Some(header);
        self
    }

    /// Sets a hook that is called before a stored response is given out.
    #[must_use]
    pub fn reauthorise(mut self, hook: Reauthorise) -> Self {
        self.reauthorise = Some(hook);
        self
    }

    /// Sets which responses are kept.
    #[must_use]
    pub fn outcomes(mut self, outcomes: Outcomes) -> Self {
        self.outcomes = Some(outcomes);
        self
    }

    /// Sets the disposition of these statuses, whatever `outcomes` says:
    /// `.on_status([StatusCode::FORBIDDEN], Disposition::Refuse)`.
    #[must_use]
    pub fn on_status(
        mut self,
        statuses: impl IntoIterator<Item = StatusCode>,
        disposition: Disposition,
    ) -> Self {
        let statuses = statuses.into_iter().map(|status| (status, disposition));
        self.statuses.extend(statuses);
        self
    }

    /// Sets the path where [`status_route`](crate::status_route) is mounted.
    #[must_use]
    pub fn status_at(mut self, path: impl Into<String>) -> Self {
        self.status_at = Some(path.into());
        self
    }

    /// Sets the prefix of `type` in problem documents.
    #[must_use]
    pub fn errors_at(mut self, base: impl Into<Cow<'static, str>>) -> Self {
        self.errors_at = base.into();
        self
    }

    /// Sets how long responses are kept, once [`IdempotencyLayer::agree`](crate::IdempotencyLayer::agree)
    /// has written it to the database. `Idempotency-Expires` is what the contract there says.
    #[must_use]
    pub fn retention(mut self, retention: Duration) -> Self {
        self.retention = Some(retention);
        self
    }
}
