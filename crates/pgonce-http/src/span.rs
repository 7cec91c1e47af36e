//! Spans of requests. They have methods, routes, statuses and outcomes in them; never paths, queries, headers or bodies.

use std::fmt;

use axum::body::Body;
use axum::response::Response;
use futures_util::FutureExt as _;
use http::{HeaderMap, Method, Request};
use pgonce::unstable::set_parent;
use tracing::field::Empty;
use tracing::{Instrument as _, Span};

use crate::Disposition;
use crate::engine::LogFields;

/// The span of a request to a server, which goes on with the trace of the client. None where the caller is in a span already: then
/// the server around it has one.
pub(crate) fn of_request(request: &Request<Body>, route: Option<&str>) -> Span {
    if !Span::current().is_none() {
        return Span::none();
    }
    let method = known(request.method());
    let span = tracing::info_span!(
        "pgonce.request",
        otel.name = %Name(method, route),
        otel.kind = "server",
        http.request.method = method,
        http.route = route,
        http.response.status_code = Empty,
        pgonce.scope = Empty,
        pgonce.key_digest = Empty,
        pgonce.outcome = Empty,
        otel.status_code = Empty,
    );
    if !span.is_disabled() {
        let header = |name: &str| text(request.headers(), name);
        set_parent(&span, header("traceparent"), header("tracestate"));
    }
    span
}

/// The name of a request's span, written only where somebody reads it.
struct Name<'a>(&'a str, Option<&'a str>);

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(method, route) = self;
        match route {
            Some(route) => write!(f, "{method} {route}"),
            None => f.write_str(method),
        }
    }
}

/// Answers a request inside its span.
pub(crate) fn answer(
    span: Span,
    answering: impl Future<Output = Response>,
) -> impl Future<Output = Response> {
    let inside = answering.instrument(span.clone());
    inside.inspect(move |response| ended(&span, response))
}

fn ended(span: &Span, response: &Response) {
    if span.is_disabled() {
        return;
    }
    if let Some(fields) = response.extensions().get::<LogFields>() {
        let unknown = response.extensions().get() == Some(&Disposition::Unknown);
        let outcome = if unknown { "unknown" } else { fields.outcome };
        span.record("pgonce.outcome", outcome);
    }
    status(span, response.status(), response.status().is_server_error());
}

fn status(span: &Span, status: http::StatusCode, is_error: bool) {
    span.record("http.response.status_code", i64::from(status.as_u16()));
    if is_error {
        span.record("otel.status_code", "error");
    }
}

/// A name of a method that is known; anybody can make one up.
fn known(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        Method::CONNECT => "CONNECT",
        Method::TRACE => "TRACE",
        _ => "_OTHER",
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// The span of a request that goes on to an upstream, and carries the trace there.
#[cfg(feature = "gateway")]
pub(crate) fn of_upstream(method: &Method, host: &str, headers: &mut HeaderMap) -> Span {
    let method = known(method);
    let span = tracing::info_span!(
        "pgonce.upstream",
        otel.name = method,
        otel.kind = "client",
        http.request.method = method,
        server.address = host,
        http.response.status_code = Empty,
        otel.status_code = Empty,
    );
    if let Some(context) = pgonce::unstable::context_of(&span) {
        let sent = [
            ("traceparent", context.traceparent),
            ("tracestate", context.tracestate),
        ];
        for (name, value) in sent {
            headers.remove(name);
            if let Ok(value) = http::HeaderValue::try_from(value)
                && !value.is_empty()
            {
                headers.insert(name, value);
            }
        }
    }
    span
}

/// Says what an upstream answered; no status: nothing.
#[cfg(feature = "gateway")]
pub(crate) fn upstream_answered(span: &Span, answered: Option<http::StatusCode>) {
    match answered {
        Some(code) => status(span, code, code.is_client_error() || code.is_server_error()),
        None => {
            span.record("otel.status_code", "error");
        }
    }
}
