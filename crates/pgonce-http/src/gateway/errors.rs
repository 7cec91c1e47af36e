//! The problems that the gateway itself answers with, beside [those of the layer](crate::errors).
//!
//! # route_missing
//! **404.** No route of the gateway matches the path.
//!
//! # method_missing
//! **405 and `Allow`.** Routes match the path, but not with this method.
//!
//! # host_invalid
//! **400.** The request has no `Host` header, more than one, or one that is not a host. Nothing happened.
//!
//! # path_invalid
//! **400.** The path has a segment `.` or `..`, plain or percent-encoded: a service that removes such segments would do
//! something else than what the route of the gateway is about. Nothing happened. Send the path without them.
//!
//! # route_unprotected
//! **400.** The request has an idempotency key, but its route does not protect it: a retry could happen twice. Nothing
//! happened. Send it to a protected route, or without a key.
//!
//! # protocol_unsupported
//! **501.** A tunnel (CONNECT) or another protocol was asked for, or a WebSocket on a route that happens once. Connect
//! to the service itself.
//!
//! # reauthorisation_unavailable
//! **503 and `Retry-After`.** The request happened before, and whether the caller may see its stored response could
//! not be found out. Nothing happened now. Send the same again with the same key.
//!
//! # upstream_not_reached
//! **502, or 504 where time ran out, and `Retry-After`.** There was no connection to the service behind the gateway, so it was
//! sent nothing. Nothing happened: send the same again.
//!
//! # upstream_unknown
//! **502, or 504 where time ran out.** The service behind the gateway was sent the request and did not
//! answer. It may have happened. On a route that happens once: send the same again with the same key, which
//! returns what is known; the route's `stale` policy says whether the service is ever asked again. On any
//! other route: ask before you repeat it.
//!
//! # body_too_slow
//! **408.** The client sent no more of its body in time. The service behind the gateway may have seen a part
//! of it.

use std::borrow::Cow;

use axum::response::Response;
use http::StatusCode;

use crate::Problem;

/// Where these pages are.
pub const ERRORS_AT: &str = "https://docs.rs/pgonce-http/latest/pgonce_http/gateway/errors/#";

/// One of the problems above, as a response.
pub(crate) fn answer(
    status: StatusCode,
    code: &'static str,
    detail: impl Into<Cow<'static, str>>,
) -> Response {
    Problem::ours(status, code, detail).into_response_at(ERRORS_AT)
}

/// As [`answer`], and it is worth asking again soon.
pub(crate) fn temporary_error(
    status: StatusCode,
    code: &'static str,
    detail: &'static str,
) -> Response {
    let problem = Problem::ours(status, code, detail).retry_soon(1);
    problem.into_response_at(ERRORS_AT)
}
