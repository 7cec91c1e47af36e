//! A line for each request, with the key's digest and never the key.

use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use http::{HeaderMap, HeaderName, Method, Request};

use super::router::Entry;
use crate::Disposition;
use crate::engine::LogFields;

/// What is known about a request before it is answered.
pub(crate) struct Line<'a> {
    entry: Option<&'a Entry>,
    method: Method,
    key: Option<String>,
}

impl<'a> Line<'a> {
    pub(crate) fn begin(
        entry: Option<&'a Entry>,
        request: &Request<Body>,
        span: &tracing::Span,
    ) -> Self {
        let once = entry.and_then(|entry| entry.once.as_ref());
        let key = once.and_then(|once| key_digest(request.headers(), &once.key_header));
        if let Some(once) = once {
            span.record("pgonce.scope", once.scope.as_str());
            span.record("pgonce.key_digest", key.as_deref());
        }
        Self {
            entry,
            method: request.method().clone(),
            key,
        }
    }

    pub(crate) fn end(self, answer: &Response, took: Duration) {
        let once = self.entry.and_then(|entry| entry.once.as_ref());
        let fields = answer.extensions().get::<LogFields>();
        let unknown = answer.extensions().get() == Some(&Disposition::Unknown);
        let outcome = match (self.entry, fields) {
            (None, _) => "refused",
            (Some(_), Some(_)) if unknown => "unknown",
            (Some(_), Some(fields)) => fields.outcome,
            (Some(_), None) => "passed",
        };
        tracing::info!(
            method = %self.method,
            route = self.entry.map(|entry| tracing::field::display(&entry.pattern)),
            scope = once.map(|once| once.scope.as_str()),
            key = self.key,
            status = answer.status().as_u16(),
            outcome,
            tenant = fields.and_then(|fields| fields.tenant.as_deref()),
            attempts = fields.map(|fields| fields.attempt),
            correlation = fields.and_then(|fields| fields.correlation.as_deref()),
            milliseconds = took.as_secs_f64() * 1000.0,
            "request"
        );
    }
}

/// The first bytes of the key's SHA-256 in hexadecimal, the same for both ways to write a key.
fn key_digest(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    let key = headers.get(name)?.to_str().ok()?.trim();
    let quoted = key.strip_prefix('"').and_then(|key| key.strip_suffix('"'));
    Some(pgonce::unstable::digest(quoted.unwrap_or(key)))
}
