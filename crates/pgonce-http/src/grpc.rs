//! gRPC over HTTP: a call's own status is in `grpc-status`, and its callers read no documents.

use axum::body::Body;
use axum::response::Response;
use http::{HeaderMap, HeaderValue, StatusCode, header};

use crate::Problem;

pub(crate) fn is_grpc(headers: &HeaderMap) -> bool {
    headers
        .get(header::CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

/// The HTTP status that stands for a call's own, from its trailers or, where there is no message,
/// its headers.
pub(crate) fn status_of(headers: &HeaderMap, trailers: Option<&HeaderMap>) -> StatusCode {
    let status = trailers
        .and_then(|trailers| trailers.get("grpc-status"))
        .or_else(|| headers.get("grpc-status"));
    match status.map(HeaderValue::as_bytes) {
        Some(b"0") => StatusCode::OK,
        Some(b"3" | b"11") => StatusCode::BAD_REQUEST,
        Some(b"5") => StatusCode::NOT_FOUND,
        Some(b"6" | b"9") => StatusCode::UNPROCESSABLE_ENTITY,
        Some(b"7") => StatusCode::FORBIDDEN,
        Some(b"8") => StatusCode::TOO_MANY_REQUESTS,
        Some(b"10") => StatusCode::CONFLICT,
        Some(b"12") => StatusCode::METHOD_NOT_ALLOWED,
        Some(b"14") => StatusCode::SERVICE_UNAVAILABLE,
        Some(b"16") => StatusCode::UNAUTHORIZED,
        // Cancelled, unknown, deadline, internal, data loss; or none at all.
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// A problem as a gRPC answer without a message.
pub(crate) fn problem_response(problem: &Problem) -> Response {
    let status = match problem.status().as_u16() {
        400 => 3,
        401 => 16,
        404 => 5,
        409 => 10,
        410 | 422 => 9,
        408 => 4,
        413 => 8,
        503 => 14,
        _ => 13,
    };
    let mut response = Response::new(Body::empty());
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/grpc"),
    );
    headers.insert("grpc-status", HeaderValue::from(status));
    let message = percent(&format!("{} [{}]", problem.detail(), problem.code()));
    if let Ok(message) = HeaderValue::from_str(&message) {
        headers.insert("grpc-message", message);
    }
    response
}

/// As gRPC wants its messages: what is not visible ASCII, and `%`, as %XX.
fn percent(message: &str) -> String {
    use std::fmt::Write as _;
    let mut out = String::with_capacity(message.len());
    for byte in message.bytes() {
        if (0x20..=0x7e).contains(&byte) && byte != b'%' {
            out.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}
