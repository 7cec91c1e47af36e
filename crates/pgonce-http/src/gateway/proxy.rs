//! The reverse proxy as a tower service: a request goes on to its upstream, the answer comes back.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HOST, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version};
use http_body::Body as _;
use tower::Service;
use tracing::Instrument as _;

use super::body::{FilterTrailers, StallTimeout, Stalled};
use super::config::{CloseDelimited, HostSent, KeyForm};
use super::errors;
use super::headers::{self, ATTEMPT, FENCE, IDEMPOTENCY_KEY, Trusted};
use super::tunnel::Tunnel;
use super::upstream::{Delivery, Unanswered, Upstream};
use crate::body::{Read, read_up_to};
use crate::{AttemptInfo, Disposition, Key, span};

/// Who sent a request, and whether its connection is encrypted; the server leaves it in the request's
/// extensions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Client {
    pub(crate) address: SocketAddr,
    pub(crate) encrypted: bool,
}

impl Client {
    pub(crate) fn new(address: SocketAddr, encrypted: bool) -> Self {
        Self { address, encrypted }
    }
}

/// Sends requests on to one upstream. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Proxy(Arc<ProxySettings>);

/// How requests of a route travel.
pub(crate) struct ProxySettings {
    pub(crate) upstream: Arc<Upstream>,
    pub(crate) host: HostSent,
    pub(crate) key_form: KeyForm,
    pub(crate) close_delimited: CloseDelimited,
    pub(crate) trust_forwarded: bool,
    /// The headers that no client may hide or imitate.
    pub(crate) trusted: Trusted,
    /// How long a client may send nothing more of its body.
    pub(crate) body_timeout: Duration,
    /// How long nothing may move in a tunnel.
    pub(crate) tunnel_timeout: Duration,
    /// How much of an answer the route keeps.
    pub(crate) max_response: usize,
}

impl Proxy {
    pub(crate) fn new(way: ProxySettings) -> Self {
        Self(Arc::new(way))
    }
}

impl ProxySettings {
    async fn pass(&self, request: Request<Body>) -> Response<Body> {
        let mut request = request.map(|body| match body.is_end_stream() {
            true => body,
            false => {
                let body = StallTimeout::new(body, self.body_timeout, Stalled::Client);
                Body::new(FilterTrailers::new(body, self.trusted.clone()))
            }
        });
        let client = request.extensions().get::<Client>().copied();
        let tunnel = headers::is_websocket(request.headers())
            .then(|| Tunnel::wanted(&mut request))
            .flatten();
        let attempt = request.extensions().get::<AttemptInfo>().copied();
        let key = request.extensions().get::<Key>().cloned();
        let headers = request.headers_mut();
        headers::for_upstream(headers, client, self.trust_forwarded, &self.trusted);
        if self.host == HostSent::Upstream {
            headers.remove(HOST);
        }
        if tunnel.is_some() {
            Tunnel::ask(headers);
        }
        if let Some(key) = key {
            self.add_key(headers, &key.0);
        }
        if let Some(attempt) = attempt {
            headers.insert(ATTEMPT, attempt.number.into());
            headers.insert(FENCE, attempt.fence.into());
        }
        let method = request.method().clone();
        let span = span::of_upstream(&method, self.upstream.host(), request.headers_mut());
        let sent = self.upstream.send(request).instrument(span.clone()).await;
        span::upstream_answered(&span, sent.as_ref().ok().map(Response::status));
        match sent {
            Ok(mut answer) => {
                let ends = self.close_delimited == CloseDelimited::Whole || marks_its_end(&answer);
                headers::for_client(answer.headers_mut());
                if let Some(tunnel) = tunnel {
                    tunnel.open(&mut answer, self.tunnel_timeout);
                }
                match attempt {
                    Some(_) if !ends => no_answer(&Unanswered {
                        delivery: Delivery::Unknown,
                        late: false,
                        why: "the answer has neither a length nor chunks, so it may have broken off; \
                              `close_delimited = \"whole\"` takes such answers for whole"
                            .to_owned(),
                    }),
                    Some(_) => self.whole(answer).await,
                    None => answer,
                }
            }
            Err(unanswered) => no_answer(&unanswered),
        }
    }

    /// An answer that is to be kept, whole: one that breaks off is none, and leaves open whether
    /// it happened. Larger ones and streams follow as they come.
    async fn whole(&self, answer: Response<Body>) -> Response<Body> {
        if is_stream(answer.headers()) {
            return answer;
        }
        let (head, body) = answer.into_parts();
        match read_up_to(self.max_response, body).await {
            Read::Whole(whole) => Response::from_parts(head, whole.into_body()),
            Read::Larger(body) => Response::from_parts(head, body),
            Read::Broken(error) => {
                let late = Stalled::behind(&*error).is_some();
                let why = format!("the answer broke off: {error}");
                no_answer(&Unanswered {
                    delivery: Delivery::Unknown,
                    late,
                    why,
                })
            }
        }
    }

    /// Adds the key in one form, with a claim and without one.
    fn add_key(&self, headers: &mut HeaderMap, key: &str) {
        // A key may be sent with quotes or without; it is always forwarded in one form, so that
        // the upstream sees one key and not two.
        let sent = match self.key_form {
            KeyForm::Bare if key.trim() == key => key.to_owned(),
            _ => format!("\"{}\"", key.replace('\\', "\\\\").replace('"', "\\\"")),
        };
        if let Ok(sent) = HeaderValue::try_from(sent) {
            headers.insert(IDEMPOTENCY_KEY, sent);
        }
    }
}

/// Whether a response that breaks off can be distinguished from one that ends.
fn marks_its_end(answer: &Response<Body>) -> bool {
    let headers = answer.headers();
    answer.body().is_end_stream()
        || is_stream(headers)
        || headers.contains_key(CONTENT_LENGTH)
        || headers.contains_key(TRANSFER_ENCODING)
}

/// Whether a response is an endless stream.
fn is_stream(headers: &HeaderMap) -> bool {
    let kind = headers
        .get(CONTENT_TYPE)
        .map_or(&b""[..], HeaderValue::as_bytes);
    kind.starts_with(b"text/event-stream") || kind.starts_with(b"multipart/x-mixed-replace")
}

/// What a request that wants to leave HTTP behind is answered; a WebSocket is for routes that pass.
pub(crate) fn refuse_protocol(request: &Request<Body>, passes: bool) -> Option<Response<Body>> {
    let wanted = match headers::wanted_upgrade(request.headers()) {
        Some(_) if passes && headers::is_websocket(request.headers()) => return None,
        Some(protocol) => format!("the protocol {protocol:?}"),
        None if request.method() == Method::CONNECT => "a tunnel".to_owned(),
        None => return None,
    };
    let detail = format!("the gateway cannot offer {wanted}; connect to the service itself");
    Some(errors::answer(
        StatusCode::NOT_IMPLEMENTED,
        "protocol_unsupported",
        detail,
    ))
}

/// The response to a request whose target host is missing or ambiguous (RFC 9112, section 3.2): two
/// servers on the way could read two different hosts.
pub(crate) fn refuse_host(request: &Request<Body>) -> Option<Response<Body>> {
    let mut hosts = request.headers().get_all(HOST).iter();
    let well_formed = match (hosts.next(), hosts.next()) {
        (None, _) => request.version() != Version::HTTP_11,
        (Some(host), None) => host.to_str().is_ok_and(is_host),
        (Some(_), Some(_)) => false,
    };
    (!well_formed).then(host_invalid)
}

pub(crate) fn host_invalid() -> Response<Body> {
    let detail = "the request needs exactly one Host header, with a host and perhaps a port";
    errors::answer(StatusCode::BAD_REQUEST, "host_invalid", detail)
}

fn is_host(host: &str) -> bool {
    host.is_empty()
        || host
            .parse::<http::uri::Authority>()
            .is_ok_and(|authority| !authority.as_str().contains('@'))
}

/// The response, and its disposition, where the upstream sent none.
fn no_answer(unanswered: &Unanswered) -> Response<Body> {
    tracing::warn!(delivery = ?unanswered.delivery, error = %unanswered, "the upstream did not answer");
    let status = if unanswered.late {
        StatusCode::GATEWAY_TIMEOUT
    } else {
        StatusCode::BAD_GATEWAY
    };
    let (mut response, disposition) = match unanswered.delivery {
        Delivery::NotSent => {
            let detail = "the service behind the gateway could not be reached: this attempt sent nothing; send the same again";
            (
                errors::temporary_error(status, "upstream_not_reached", detail),
                Disposition::Retry,
            )
        }
        Delivery::Unknown => {
            let detail =
                "the service behind the gateway was asked and did not answer; it may have happened";
            (
                errors::answer(status, "upstream_unknown", detail),
                Disposition::Unknown,
            )
        }
        Delivery::ClientStalled => {
            let detail = "the rest of the body did not arrive in time";
            (
                errors::answer(StatusCode::REQUEST_TIMEOUT, "body_too_slow", detail),
                Disposition::Unknown,
            )
        }
    };
    response.extensions_mut().insert(disposition);
    response
}

impl Service<Request<Body>> for Proxy {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let way = self.0.clone();
        Box::pin(async move { Ok(way.pass(request).await) })
    }
}
