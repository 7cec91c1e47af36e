//! Whether a client may still see a stored response: authentication in front says who asks, and
//! this asks whether the one who asks still may.

use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HOST};
use http::request::Parts;
use http::{HeaderName, HeaderValue, Method, Request, StatusCode, Uri};

use super::errors;
use super::headers::{self, Trusted};
use super::proxy::Client;
use super::upstream::Upstream;

const ORIGINAL_METHOD: HeaderName = HeaderName::from_static("x-original-method");
const ORIGINAL_URI: HeaderName = HeaderName::from_static("x-original-uri");

/// Who decides, and what is believed of the headers that it is asked with.
pub(crate) struct Authority {
    upstream: Upstream,
    at: Uri,
    trust_forwarded: bool,
    trusted: Trusted,
}

impl Authority {
    pub(crate) fn new(
        upstream: Upstream,
        at: Uri,
        trust_forwarded: bool,
        trusted: &Trusted,
    ) -> Self {
        Self {
            upstream,
            at,
            trust_forwarded,
            trusted: trusted.and([ORIGINAL_METHOD, ORIGINAL_URI]),
        }
    }
}

/// Asks the authority with the client's own headers, made fit as for the service itself: what a client may not hide, imitate or
/// say about itself there would decide here who sees the response. Only 2xx lets the replay pass; its refusal is the
/// response, and a silence is 503: nothing is shown on a guess.
pub(crate) async fn ask(authority: Arc<Authority>, head: Parts) -> Result<(), Box<Response>> {
    let client = head.extensions.get::<Client>().copied();
    let mut request = Request::new(Body::empty());
    *request.method_mut() = Method::GET;
    *request.uri_mut() = authority.at.clone();
    *request.headers_mut() = head.headers;
    let headers = request.headers_mut();
    let (trust, trusted) = (authority.trust_forwarded, &authority.trusted);
    headers::for_upstream(headers, client, trust, trusted);
    for name in [HOST, CONTENT_LENGTH, CONTENT_TYPE] {
        headers.remove(name);
    }
    let uri = head.uri.path_and_query().map_or("/", |path| path.as_str());
    for (name, value) in [(ORIGINAL_METHOD, head.method.as_str()), (ORIGINAL_URI, uri)] {
        if let Ok(value) = HeaderValue::try_from(value) {
            headers.insert(name, value);
        }
    }
    let answered = authority.upstream.send(request).await;
    match answered {
        Ok(answer) if answer.status().is_success() => Ok(()),
        Ok(mut answer) if answer.status().is_client_error() => {
            headers::for_client(answer.headers_mut());
            Err(Box::new(answer))
        }
        Ok(answer) => Err(unavailable(&format!("it answered {}", answer.status()))),
        Err(unanswered) => Err(unavailable(&unanswered.to_string())),
    }
}

fn unavailable(why: &str) -> Box<Response> {
    tracing::warn!(why, "a replay could not be authorised");
    let detail =
        "it cannot be found out now whether you may see the stored response; send the same again";
    Box::new(errors::temporary_error(
        StatusCode::SERVICE_UNAVAILABLE,
        "reauthorisation_unavailable",
        detail,
    ))
}
