//! One request from the router to its line in the log.

use std::time::Instant;

use axum::body::Body;
use axum::response::Response;
use http::{HeaderName, HeaderValue, Method, Request, StatusCode, header};
use tower::ServiceExt as _;

use super::config::{KeyedOnPass, Responses};
use super::errors;
use super::log::Line;
use super::proxy::{refuse_host, refuse_protocol};
use super::router::{Entry, Router};
use crate::disposition::strip_headers;
use crate::headers::REPLAYED;
use crate::problem::OwnResponse;
use crate::span;

/// Headers of responses that are not the service's: the gateway's own errors, and replays.
#[derive(Debug, Default)]
pub(crate) struct OwnHeaders {
    headers: Vec<(HeaderName, HeaderValue)>,
    origins: Vec<HeaderValue>,
    credentials: bool,
}

impl OwnHeaders {
    pub(crate) fn new(responses: &Responses) -> Self {
        let pairs = responses.headers.iter();
        Self {
            headers: pairs
                .map(|(name, value)| (name.0.clone(), value.0.clone()))
                .collect(),
            origins: responses
                .cors_origins
                .iter()
                .map(|origin| origin.0.clone())
                .collect(),
            credentials: responses.cors_credentials,
        }
    }

    fn add(&self, answer: &mut Response, origin: Option<HeaderValue>) {
        let replayed = answer.headers().contains_key(REPLAYED);
        if !replayed && answer.extensions().get::<OwnResponse>().is_none() {
            return;
        }
        let headers = answer.headers_mut();
        for (name, value) in &self.headers {
            headers.entry(name).or_insert_with(|| value.clone());
        }
        // A replay has the origin of the first request, which may be another one.
        if let Some(origin) = origin.filter(|origin| self.origins.contains(origin)) {
            headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
            headers.append(header::VARY, HeaderValue::from_static("origin"));
            if self.credentials {
                let yes = HeaderValue::from_static("true");
                headers.insert(header::ACCESS_CONTROL_ALLOW_CREDENTIALS, yes);
            }
        }
    }
}

/// The routes, and whether each request is logged.
pub(crate) struct Dispatcher {
    pub(crate) router: Router,
    pub(crate) log: bool,
    pub(crate) keyed_on_pass: KeyedOnPass,
    /// The headers that carry keys on the protected routes.
    pub(crate) key_headers: Vec<HeaderName>,
    pub(crate) own: OwnHeaders,
}

impl Dispatcher {
    pub(crate) async fn answer(&self, request: Request<Body>) -> Response {
        let start = Instant::now();
        let origin = request.headers().get(header::ORIGIN).cloned();
        let found = match refuse_host(&request) {
            Some(refused) => Err(Box::new(refused)),
            None => self.router.find(request.method(), request.uri().path()),
        };
        let passes = found.as_ref().is_ok_and(|entry| entry.once.is_none());
        let found = match refuse_protocol(&request, passes) {
            Some(refused) => Err(Box::new(refused)),
            None => found,
        };
        let found = found.and_then(|entry| self.check_key(entry, &request));
        let entry = found.as_ref().ok().copied();
        let span = span::of_request(&request, entry.map(|entry| entry.pattern.written()));
        let line = (self.log || !span.is_disabled()).then(|| Line::begin(entry, &request, &span));
        let answering = async {
            match found {
                Ok(entry) => {
                    let Ok(answer) = entry.service.clone().oneshot(request).await;
                    answer
                }
                Err(refused) => *refused,
            }
        };
        let mut answer = span::answer(span, answering).await;
        strip_headers(answer.headers_mut());
        self.own.add(&mut answer, origin);
        if let Some(line) = line.filter(|_| self.log) {
            line.end(&answer, start.elapsed());
        }
        answer
    }

    /// A client that sends a key expects protection: where the route has none, it is warned about or
    /// refused.
    fn check_key<'a>(
        &self,
        entry: &'a Entry,
        request: &Request<Body>,
    ) -> Result<&'a Entry, Box<Response>> {
        let safe = matches!(
            *request.method(),
            Method::GET | Method::HEAD | Method::OPTIONS
        );
        let keyed = || (self.key_headers.iter()).any(|name| request.headers().contains_key(name));
        if self.keyed_on_pass == KeyedOnPass::Pass || entry.once.is_some() || safe || !keyed() {
            return Ok(entry);
        }
        tracing::warn!(
            method = %request.method(),
            route = %entry.pattern,
            "a request has an idempotency key, but its route does not protect it"
        );
        if self.keyed_on_pass == KeyedOnPass::Warn {
            return Ok(entry);
        }
        let detail = "the request has an idempotency key, but its route does not protect it";
        Err(Box::new(errors::answer(
            StatusCode::BAD_REQUEST,
            "route_unprotected",
            detail,
        )))
    }
}
