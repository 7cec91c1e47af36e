//! gRPC over HTTP: a call's own status is in `grpc-status`, and its callers read no documents.

use axum::body::Body;
use axum::response::Response;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::{HeaderMap, HeaderValue, StatusCode, header};

use crate::Problem;
use crate::body::Whole;

/// Where a call says its own status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// In its trailers.
    Plain,
    /// gRPC-Web: in the last frame of its body.
    Web,
    /// The same in base64.
    WebText,
}

impl Kind {
    pub(crate) fn of(headers: &HeaderMap) -> Option<Self> {
        let kind = headers.get(header::CONTENT_TYPE)?.to_str().ok()?;
        let kind = kind.split([';', '+']).next().unwrap_or_default().trim();
        Some(match kind.to_ascii_lowercase().as_str() {
            "application/grpc" => Self::Plain,
            "application/grpc-web" => Self::Web,
            "application/grpc-web-text" => Self::WebText,
            _ => return None,
        })
    }

    /// The HTTP status that stands for a call's own. `None`: it was not seen, and the caller may read a success there.
    pub(crate) fn status(self, headers: &HeaderMap, body: Option<&Whole>) -> Option<StatusCode> {
        let in_body = body.and_then(|body| match self {
            Self::Plain => {
                let status = body.trailers.as_ref()?.get("grpc-status")?;
                Some(status.as_bytes().to_vec())
            }
            Self::Web => status_in(&body.bytes),
            Self::WebText => status_in(&from_base64(&body.bytes)?),
        });
        // A call without a message has it in its headers.
        let in_head = || Some(headers.get("grpc-status")?.as_bytes().to_vec());
        match in_body.or_else(in_head) {
            Some(status) => Some(as_http(&status)),
            // None at all: to its caller the call has failed.
            None if self == Self::Plain && body.is_some() => Some(as_http(b"")),
            None => None,
        }
    }
}

pub(crate) fn is_grpc(headers: &HeaderMap) -> bool {
    Kind::of(headers).is_some()
}

fn as_http(status: &[u8]) -> StatusCode {
    match status {
        b"0" => StatusCode::OK,
        b"3" | b"11" => StatusCode::BAD_REQUEST,
        b"5" => StatusCode::NOT_FOUND,
        b"6" | b"9" => StatusCode::UNPROCESSABLE_ENTITY,
        b"7" => StatusCode::FORBIDDEN,
        b"8" => StatusCode::TOO_MANY_REQUESTS,
        b"10" => StatusCode::CONFLICT,
        b"12" => StatusCode::METHOD_NOT_ALLOWED,
        b"14" => StatusCode::SERVICE_UNAVAILABLE,
        b"16" => StatusCode::UNAUTHORIZED,
        // Cancelled, unknown, deadline, internal, data loss; or none at all.
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// `grpc-status` in the frame of trailers that ends a body of gRPC-Web. A frame is a byte of flags, a length and as many bytes.
fn status_in(mut body: &[u8]) -> Option<Vec<u8>> {
    const TRAILERS: u8 = 0x80;
    loop {
        let ([flags, length @ ..], rest) = body.split_first_chunk::<5>()?;
        let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
        let (frame, rest) = rest.split_at_checked(length)?;
        body = rest;
        match *flags {
            TRAILERS => {
                let mut lines = frame.split(|byte| *byte == b'\n');
                return lines.find_map(|line| {
                    let (name, value) = line.split_at_checked("grpc-status:".len())?;
                    let is_status = name.eq_ignore_ascii_case(b"grpc-status:");
                    is_status.then(|| value.trim_ascii().to_vec())
                });
            }
            // Compressed ones are not read.
            flags if flags & TRAILERS != 0 => return None,
            _ => {}
        }
    }
}

/// Each piece that a service sent may be padded, so that padding is no end.
fn from_base64(text: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    for four in text.chunks(4) {
        let mut three = [0; 3];
        let length = BASE64_STANDARD.decode_slice(four, &mut three).ok()?;
        bytes.extend_from_slice(&three[..length]);
    }
    Some(bytes)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(kind: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static(kind))])
    }

    fn frame(flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap();
        [&[flags][..], &length.to_be_bytes(), payload].concat()
    }

    fn read(kind: &'static str, body: Vec<u8>) -> Option<u16> {
        let body = Whole {
            bytes: body.into(),
            trailers: None,
        };
        let kind = headers(kind);
        let status = Kind::of(&kind).unwrap().status(&kind, Some(&body));
        status.map(|status| status.as_u16())
    }

    #[test]
    fn a_call_is_known_by_its_content_type() {
        for (kind, expected) in [
            ("application/grpc", Some(Kind::Plain)),
            ("application/grpc+proto", Some(Kind::Plain)),
            ("Application/gRPC; charset=x", Some(Kind::Plain)),
            ("application/grpc-web", Some(Kind::Web)),
            ("application/grpc-web+proto", Some(Kind::Web)),
            ("application/grpc-web-text+proto", Some(Kind::WebText)),
            ("application/grpcish", None),
            ("application/json", None),
        ] {
            assert_eq!(Kind::of(&headers(kind)), expected, "{kind}");
        }
    }

    #[test]
    fn the_status_of_a_web_call_is_in_the_last_frame_of_its_body() {
        let message = frame(0, b"a message");
        for (trailers, status) in [
            ("grpc-status: 0\r\ngrpc-message:\r\n", Some(200)),
            ("grpc-message:x\r\nGRPC-Status:5\r\n", Some(404)),
            ("grpc-message:x\r\n", None),
        ] {
            let body = [message.clone(), frame(0x80, trailers.as_bytes())].concat();
            assert_eq!(read("application/grpc-web+proto", body.clone()), status);
            // Each frame padded by itself, and both as one.
            let apart =
                [&message, &body[message.len()..]].map(|frame| BASE64_STANDARD.encode(frame));
            for text in [apart.concat(), BASE64_STANDARD.encode(&body)] {
                assert_eq!(read("application/grpc-web-text", text.into_bytes()), status);
            }
        }
    }

    #[test]
    fn a_status_that_cannot_be_read_is_none() {
        let compressed = frame(0x81, b"grpc-status:0");
        let cut = frame(0x80, b"grpc-status:0")[..8].to_vec();
        for body in [
            Vec::new(),
            compressed,
            cut,
            b"\x1f\x8bgzip".to_vec(),
            frame(0, b"a message"),
        ] {
            assert_eq!(read("application/grpc-web", body), None);
        }
        assert_eq!(
            read("application/grpc-web-text", b"no base64".to_vec()),
            None
        );
        let kind = headers("application/grpc");
        assert_eq!(
            Kind::Plain.status(&kind, None),
            None,
            "its trailers are yet to come"
        );
        assert_eq!(
            read("application/grpc", b"cut".to_vec()),
            Some(500),
            "its caller sees no status"
        );
    }
}
