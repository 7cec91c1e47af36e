//! What answers the sender.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, FromRequest as _, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use axum::{Json, Router};
use pgonce::driver::Driver;
use pgonce::inbox::{Inbox, Message, StoreAs, StoreResult};
use pgonce::unstable::set_parent;
use pgonce::{Error, Once};
use serde_json::json;
use tokio::time::timeout;
use tracing::field::Empty;
use tracing::{Instrument as _, Span};

use super::scheme::Scheme;
use crate::bounded::bounded;
use crate::consumer::{Read, check_names, read_by};

/// Headers that are kept with a message, beside those that begin with `x-`, `ce-` or `webhook-`.
const KEPT: [&str; 3] = ["content-type", "traceparent", "tracestate"];

/// Maximum time to store a message: a connection that has said nothing for longer is dead, and must not keep its place in
/// the pool. The sender may send it again, which is known as a copy where it was stored after all.
const STORE_TIMEOUT: Duration = Duration::from_secs(10);

/// Receives signed webhooks and stores them for a consumer. The sender gets 200 only once the message
/// is durable; it is applied afterwards, by a [`Consumer`](crate::Consumer) of the same name, over
/// [`Nothing`](crate::sources::Nothing) say.
///
/// | answer | when |
/// |---|---|
/// | 200 | stored, or stored before |
/// | 401 | the signature is missing or wrong, or the time is outside the window; nothing is stored |
/// | 408 | its body took longer than allowed; nothing is stored |
/// | 413 | longer than allowed; nothing is stored |
/// | 422 | the id came before with another payload (`P4050`); stored for an operator |
/// | 503 | the database is unavailable, or did not reply within 10 seconds; send it again |
///
/// ```no_run
/// # fn example(once: pgonce::Once<pgonce::driver::sqlx::Sqlx>) -> Result<(), Box<dyn std::error::Error>> {
/// use pgonce_broker::webhooks::{Scheme, Webhooks};
///
/// let scheme = Scheme::standard(["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"])?;
/// let router: axum::Router = Webhooks::new(&once, "payments", "provider", scheme).router("/hooks/provider");
/// # let _ = router;
/// # Ok(())
/// # }
/// ```
#[must_use = "it receives nothing before its router is served"]
pub struct Webhooks<D: Driver> {
    inbox: Inbox<D>,
    consumer: String,
    source: String,
    scheme: Scheme,
    max_bytes: usize,
    body_timeout: Duration,
    read: Option<Box<Read>>,
}

impl<D: Driver> Webhooks<D> {
    /// For a consumer; the source is the sender's name, under which its message ids are remembered.
    pub fn new(
        once: &Once<D>,
        consumer: impl Into<String>,
        source: impl Into<String>,
        scheme: Scheme,
    ) -> Self {
        Self {
            inbox: once.inbox(),
            consumer: consumer.into(),
            source: source.into(),
            scheme,
            max_bytes: 1024 * 1024,
            body_timeout: Duration::from_secs(30),
            read: None,
        }
    }

    /// Maximum length of a body. Default: a mebibyte.
    pub fn max_bytes(mut self, bytes: usize) -> Self {
        self.max_bytes = bytes;
        self
    }

    /// Maximum time of a sender for its body. Default: 30 seconds.
    pub fn body_timeout(mut self, time: Duration) -> Self {
        self.body_timeout = time;
        self
    }

    /// Reads the message's key, type or tenant out of its payload. What it refuses, or gives names that do not fit, is
    /// stored as poison, with the reason.
    pub fn read_with(
        mut self,
        read: impl Fn(&mut Message) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        self.read = Some(Box::new(read));
        self
    }

    /// A router that takes POST at this path, to be served or merged into your own.
    pub fn router(self, path: &str) -> Router {
        let limit = DefaultBodyLimit::max(self.max_bytes);
        Router::new()
            .route(path, post(receive::<D>))
            .layer(limit)
            .with_state(Arc::new(self))
    }

    async fn take(&self, headers: &HeaderMap, body: &Bytes) -> Response {
        let id = match self.scheme.verify(headers, body) {
            Ok(id) => id,
            Err(error) => {
                tracing::info!(source = self.source, %error, "a webhook was refused");
                return refuse(StatusCode::UNAUTHORIZED, error.code, &error.reason);
            }
        };
        let mut message = Message::new(id, body);
        for (name, value) in headers {
            let name = name.as_str();
            let kept = KEPT.contains(&name)
                || ["x-", "ce-", "webhook-"]
                    .iter()
                    .any(|p| name.starts_with(p));
            if let (true, Ok(text)) = (kept && !name.contains("signature"), value.to_str()) {
                message.headers.insert(name.to_owned(), text.into());
            }
        }
        let read = match &self.read {
            Some(read) if !message.id.is_empty() => read_by(read, &mut message),
            _ => Ok(()),
        };
        let what = match read.and_then(|()| check_names(&message)) {
            // Signed, so the sender's: kept for an operator, and no use in sending it again.
            Err((code, reason)) => StoreAs::Poison {
                code: code.to_owned(),
                reason,
                keep_bytes: usize::MAX,
            },
            Ok(()) => StoreAs::Received,
        };
        let stored = self
            .inbox
            .store(&self.consumer, &self.source, &message, &what);
        match bounded(STORE_TIMEOUT, stored).await {
            Ok(StoreResult::New | StoreResult::Duplicate) => StatusCode::OK.into_response(),
            Ok(StoreResult::Conflict) => {
                let why = "this id came before with another payload";
                refuse(StatusCode::UNPROCESSABLE_ENTITY, "P4050", why)
            }
            Err(error) => self.sorry(&error),
        }
    }

    fn sorry(&self, error: &Error) -> Response {
        tracing::error!(source = self.source, %error, "a webhook could not be stored");
        let (status, why) = match error {
            Error::Invalid(_) => (
                StatusCode::BAD_REQUEST,
                "the id of the message does not fit",
            ),
            _ => (
                StatusCode::SERVICE_UNAVAILABLE,
                "it could not be stored: send it again",
            ),
        };
        let mut response = refuse(status, error.code(), why);
        if status == StatusCode::SERVICE_UNAVAILABLE {
            let soon = header::HeaderValue::from_static("5");
            response.headers_mut().insert(header::RETRY_AFTER, soon);
        }
        response
    }
}

fn refuse(status: StatusCode, code: &str, why: &str) -> Response {
    (status, Json(json!({"code": code, "message": why}))).into_response()
}

async fn receive<D: Driver>(
    State(webhooks): State<Arc<Webhooks<D>>>,
    request: Request,
) -> Response {
    let headers = request.headers().clone();
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let span = tracing::info_span!(
        "pgonce.webhook",
        otel.name = %format_args!("POST webhook {}", webhooks.source),
        otel.kind = "server",
        http.request.method = "POST",
        http.response.status_code = Empty,
        messaging.consumer.group.name = webhooks.consumer,
        messaging.destination.name = webhooks.source,
        otel.status_code = Empty,
    );
    // A server around it has a span of its own, and has read the headers.
    if Span::current().is_none() {
        set_parent(&span, header("traceparent"), header("tracestate"));
    }
    let response = answer(webhooks, request, headers)
        .instrument(span.clone())
        .await;
    let status = i64::from(response.status().as_u16());
    span.record("http.response.status_code", status);
    if response.status().is_server_error() {
        span.record("otel.status_code", "error");
    }
    response
}

async fn answer<D: Driver>(
    webhooks: Arc<Webhooks<D>>,
    request: Request,
    headers: HeaderMap,
) -> Response {
    let body = match timeout(webhooks.body_timeout, Bytes::from_request(request, &())).await {
        Ok(Ok(body)) => body,
        Ok(Err(refused)) => return refused.into_response(),
        Err(_) => {
            let why = "the body did not come in time";
            return refuse(StatusCode::REQUEST_TIMEOUT, "body_timeout", why);
        }
    };
    // A task of its own: a sender that hangs up cancels nothing half done.
    let taken = async move { webhooks.take(&headers, &body).await };
    let taken = tokio::spawn(taken.in_current_span());
    taken
        .await
        .unwrap_or_else(|_| StatusCode::INTERNAL_SERVER_ERROR.into_response())
}

impl<D: Driver> std::fmt::Debug for Webhooks<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Webhooks")
            .field("consumer", &self.consumer)
            .field("source", &self.source)
            .field("scheme", &self.scheme)
            .finish_non_exhaustive()
    }
}
