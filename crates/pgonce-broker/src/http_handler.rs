//! A handler that is a service of its own, in any language.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http::response::Parts;
use http::{Request, Response, Uri};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use pgonce::driver::Driver;
use pgonce::inbox::{ClaimedMessage, Message, Tx};
use pgonce::queue::Job;
use pgonce::unstable::context_of;
use pgonce::{Error, Failure, Result};
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::Span;

use crate::Handler;
use crate::sinks::Refusal;
use crate::sinks::webhook::{tls, whole};

/// Default of [`HttpHandler::connect_timeout`].
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How much of a response is read: its status says it all, the rest is for the reason that people see.
const RESPONSE_BYTES: usize = 16 * 1024;

/// How long the text of a refusal is read once its head is there.
const BODY_TIMEOUT: Duration = Duration::from_secs(1);

/// How long the response to a job is read, where the body is the result.
const RESULT_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum characters of a response in a reason.
const MAX_REASON: usize = 200;

type HttpClient = Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// Posts each message to a service, at least once and always with the same `Idempotency-Key`.
///
/// | request header | what |
/// |---|---|
/// | `idempotency-key` | derived from consumer, source, tenant and message id: the same at every attempt |
/// | `pgonce-fence` | rises with every attempt: an older one is a worker that was given up |
/// | `pgonce-attempt` | which attempt this is |
/// | `ce-id`, `ce-source`, `ce-type`, `ce-subject`, `ce-tenant` | id, source, type, key and tenant, as CloudEvents writes them |
/// | `content-type`, `traceparent`, `tracestate` | as they came; with the feature `otel` of `pgonce`, the trace context of the consumer's span |
///
/// A response with a status of 2xx means that it is applied, any other that it is tried again, with growing pauses, until the
/// consumer's contract gives it up. The header `Pgonce-Disposition` wins over the status: `keep` (applied), `refuse` (it needs
/// manual action at once), `retry` or `forget` (tried again). A service that cannot be reached is no message's fault: all wait.
///
/// ```no_run
/// # async fn example(once: pgonce::sqlx::Once) -> Result<(), Box<dyn std::error::Error>> {
/// use pgonce_broker::{Consumer, HttpHandler, sources::Nothing};
/// use tokio_util::sync::CancellationToken;
///
/// let handler = HttpHandler::new("billing", "http://127.0.0.1:8080/events")?;
/// Consumer::new(&once, "billing", Nothing, handler).run(CancellationToken::new()).await?;
/// # Ok(())
/// # }
/// ```
pub struct HttpHandler {
    client: HttpClient,
    consumer: String,
    uri: Uri,
    headers: HeaderMap,
    response_timeout: Option<Duration>,
}

impl HttpHandler {
    /// Of this consumer, to this address.
    pub fn new(consumer: impl Into<String>, url: &str) -> Result<Self, Refusal> {
        let wrong = |why: String| Refusal::BadUrl {
            why,
            expected: "http://127.0.0.1:8080/events",
        };
        let uri: Uri = url.parse().map_err(|error| wrong(format!("{error}")))?;
        let scheme = uri.scheme_str().unwrap_or_default();
        if !["http", "https"].contains(&scheme) || uri.host().is_none() {
            return Err(wrong(
                "it is neither http:// nor https:// with a host".to_owned(),
            ));
        }
        Ok(Self {
            client: client(&uri, CONNECT_TIMEOUT)?,
            consumer: consumer.into(),
            uri,
            headers: HeaderMap::new(),
            response_timeout: None,
        })
    }

    /// Maximum time to connect. Keep it below the time of a message, so that a host that answers nothing at all counts as
    /// away, as one that refuses, and no message loses an attempt for it. Default: 5 seconds.
    pub fn connect_timeout(mut self, time: Duration) -> Result<Self, Refusal> {
        self.client = client(&self.uri, time)?;
        Ok(self)
    }

    /// Maximum time until the head of a response is there, which says what became of the request; its body has a limit of its
    /// own. Default: none, and the caller's limit counts for both.
    #[must_use]
    pub fn response_timeout(mut self, time: Duration) -> Self {
        self.response_timeout = Some(time);
        self
    }

    /// One more header of every request, such as credentials.
    pub fn header(mut self, name: &str, value: &str) -> Result<Self, Refusal> {
        let wrong = || Refusal::BadOption {
            option: "headers".to_owned(),
            value: name.to_owned(),
            expected: "a name and a value of a header".to_owned(),
        };
        let name = HeaderName::try_from(name).map_err(|_| wrong())?;
        let mut value = HeaderValue::try_from(value).map_err(|_| wrong())?;
        value.set_sensitive(true);
        self.headers.insert(name, value);
        Ok(self)
    }

    /// Posts a job, for a handler of [`Once::worker`](pgonce::Once::worker): at least once, and always with the same `Idempotency-Key`.
    /// Responses mean what they mean for messages; the body of one that says "done" is the result, where it is JSON of at most 16 KiB that comes within 10 seconds of its head.
    /// [`Error::Disconnected`]: nobody listens; it is no job's fault. Limit its time by [`HttpHandler::response_timeout`]: a limit around this
    /// call would cut the reading of a result, and the job would be posted again.
    ///
    /// | request header | what |
    /// |---|---|
    /// | `idempotency-key` | [`Job::idempotency_key`]: the same at every attempt |
    /// | `pgonce-fence`, `pgonce-attempt` | as for a message |
    /// | `ce-id`, `ce-source`, `ce-type`, `ce-subject`, `ce-tenant` | the job's number, `pgonce/queue`, queue, key and tenant |
    ///
    /// ```no_run
    /// # async fn example(once: pgonce::sqlx::Once, stop: impl Future<Output = ()>) -> Result<(), Box<dyn std::error::Error>> {
    /// use std::sync::Arc;
    /// use pgonce_broker::HttpHandler;
    ///
    /// let service = Arc::new(HttpHandler::new("mail", "http://127.0.0.1:8080/jobs")?);
    /// once.worker(["mail"], move |job| {
    ///     let service = service.clone();
    ///     async move { job.done(&service.run_job(&job).await?) }
    /// })
    /// .run(stop)
    /// .await;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn run_job<D: Driver>(&self, job: &Job<D>) -> Result<Value> {
        let payload: Box<RawValue> = job.payload()?;
        let (traceparent, tracestate) = trace_context().unwrap_or_default();
        let request = self.post(
            Bytes::copy_from_slice(payload.get().as_bytes()),
            &job.idempotency_key(),
            (job.fence(), u64::from(job.attempts())),
            [
                ("ce-id", Some(job.id().to_string())),
                ("ce-source", Some("pgonce/queue".to_owned())),
                ("ce-type", Some(encoded(job.queue()))),
                ("ce-subject", job.key().map(encoded)),
                ("ce-tenant", Some(encoded(job.tenant()))),
                (CONTENT_TYPE.as_str(), Some("application/json".to_owned())),
                ("traceparent", traceparent),
                ("tracestate", tracestate),
            ],
        );
        let (head, body) = self.send(request).await?;
        let (text, is_whole) = read(body, RESULT_TIMEOUT).await;
        let response = Response::from_parts(head, text);
        outcome(&response)?;
        // A number that was cut is a number too.
        let result = is_whole.then(|| serde_json::from_slice(response.body()));
        Ok(result.and_then(|result| result.ok()).unwrap_or_default())
    }

    fn request(&self, message: &Message, claimed: &ClaimedMessage) -> Request<Full<Bytes>> {
        let parts = [
            &self.consumer,
            &claimed.source,
            &message.tenant,
            &message.id,
        ];
        let key = pgonce::key::derived("message", &parts.map(String::as_str));
        let kind = message.kind.as_deref().unwrap_or("message");
        let json = serde_json::from_slice::<serde::de::IgnoredAny>(&message.payload).is_ok();
        let plain = if json {
            "application/json"
        } else {
            "application/octet-stream"
        };
        let said = |name: &str| message.headers.get(name).and_then(|value| value.as_str());
        let said = |name: &str| said(name).map(str::to_owned);
        let came = (said("traceparent"), said("tracestate"));
        let (traceparent, tracestate) = trace_context().unwrap_or(came);
        self.post(
            Bytes::copy_from_slice(&message.payload),
            &key,
            (claimed.fence, u64::from(claimed.attempts)),
            [
                ("ce-id", Some(encoded(&message.id))),
                ("ce-source", Some(encoded(&claimed.source))),
                ("ce-type", Some(encoded(kind))),
                ("ce-subject", message.key.as_deref().map(encoded)),
                ("ce-tenant", Some(encoded(&message.tenant))),
                (
                    CONTENT_TYPE.as_str(),
                    said("content-type").or(Some(plain.to_owned())),
                ),
                ("traceparent", traceparent),
                ("tracestate", tracestate),
            ],
        )
    }

    /// A request; what has no value, or one that is no header's, is left out.
    fn post<const N: usize>(
        &self,
        body: Bytes,
        key: &str,
        (fence, attempt): (i64, u64),
        more: [(&str, Option<String>); N],
    ) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = http::Method::POST;
        *request.uri_mut() = self.uri.clone();
        let headers = request.headers_mut();
        let agent = concat!("pgonce/", env!("CARGO_PKG_VERSION"));
        let first = [
            ("user-agent", Some(agent.to_owned())),
            ("idempotency-key", Some(format!("\"{key}\""))),
            ("pgonce-fence", Some(fence.to_string())),
            ("pgonce-attempt", Some(attempt.to_string())),
            ("ce-specversion", Some("1.0".to_owned())),
        ];
        for (name, value) in first.into_iter().chain(more) {
            let value = value.filter(|value| !value.is_empty());
            let value = value.and_then(|value| HeaderValue::try_from(value).ok());
            if let (Ok(name), Some(value)) = (HeaderName::try_from(name), value) {
                headers.insert(name, value);
            }
        }
        headers.extend(self.headers.clone());
        request
    }

    /// Calls the service, until the head of its response.
    async fn send(&self, request: Request<Full<Bytes>>) -> Result<(Parts, Incoming)> {
        let calling = self.client.request(request);
        let called = match self.response_timeout {
            Some(time) => timeout(time, calling).await.map_err(|_| {
                let why = format!("the service did not answer within {time:?}");
                Error::from(Failure::transient("timeout", why))
            })?,
            None => calling.await,
        };
        let response = called.map_err(|error| match error.is_connect() {
            true => Error::Disconnected(whole(&error)),
            false => Failure::transient("handler_failed", whole(&error)).into(),
        })?;
        Ok(response.into_parts())
    }
}

/// The beginning of a response, read for at most this time; whether that is all of it. Reading to the end lets the connection be
/// used again; a long or slow response costs it.
async fn read(mut body: Incoming, time: Duration) -> (Vec<u8>, bool) {
    let mut text = Vec::new();
    let until = Instant::now() + time;
    let is_whole = loop {
        match timeout_at(until, body.frame()).await {
            Ok(Some(Ok(frame))) => {
                text.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
            }
            Ok(None) => break true,
            Ok(Some(Err(_))) | Err(_) => break false,
        }
        if text.len() > RESPONSE_BYTES {
            break false;
        }
    };
    (text, is_whole)
}

/// Where the span is in its trace that the request is made in.
fn trace_context() -> Option<(Option<String>, Option<String>)> {
    let context = context_of(&Span::current())?;
    let state = Some(context.tracestate).filter(|state| !state.is_empty());
    Some((Some(context.traceparent), state))
}

fn client(uri: &Uri, connect_timeout: Duration) -> Result<HttpClient, Refusal> {
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_connect_timeout(Some(connect_timeout));
    let connector = HttpsConnectorBuilder::new()
        .with_tls_config(tls(uri.scheme_str() == Some("https"))?)
        .https_or_http()
        .enable_http1()
        .wrap_connector(connector);
    Ok(Client::builder(TokioExecutor::new()).build(connector))
}

impl<D: Driver> Handler<D> for HttpHandler {
    const CALLS_OUT: bool = true;

    async fn call_out(&self, message: &Message, claimed: &ClaimedMessage) -> Result<()> {
        let (head, body) = self.send(self.request(message, claimed)).await?;
        let mut response = Response::from_parts(head, Vec::new());
        let mut reading = Box::pin(read(body, BODY_TIMEOUT));
        if outcome(&response).is_ok() {
            // Its head says it all: what is left of it is read beside the next message, and only where it has not come yet.
            if reading.as_mut().now_or_never().is_none() {
                tokio::spawn(reading);
            }
            return Ok(());
        }
        *response.body_mut() = reading.await.0;
        outcome(&response)
    }

    /// The mark alone: the work is done.
    async fn apply(&self, _: Tx<D>, _: Arc<Message>) -> Result<()> {
        Ok(())
    }
}

/// What a response means.
fn outcome(response: &Response<Vec<u8>>) -> Result<()> {
    let status = response.status();
    let text = String::from_utf8_lossy(response.body());
    let text: String = text.trim().chars().take(MAX_REASON).collect();
    let why = match text.is_empty() {
        true => format!("the handler answered {status}"),
        false => format!("the handler answered {status}: {text}"),
    };
    let code = format!("http_{}", status.as_u16());
    let said = response.headers().get("pgonce-disposition");
    let said = said.map(|value| value.as_bytes().trim_ascii().to_ascii_lowercase());
    match said.as_deref() {
        Some(b"keep") => Ok(()),
        Some(b"refuse") => Err(Failure::permanent(code, why).into()),
        None if status.is_success() => Ok(()),
        Some(b"retry" | b"forget") | None => Err(Failure::transient(code, why).into()),
        Some(_) => {
            let why = "Pgonce-Disposition is none of keep, refuse, retry, forget";
            Err(Failure::transient("bad_disposition", why).into())
        }
    }
}

/// As CloudEvents writes an attribute into a header: percent-encoded where it is not plain.
fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'"' | b'%' => write!(out, "%{byte:02X}").unwrap_or_default(),
            0x21..=0x7e => out.push(char::from(byte)),
            _ => write!(out, "%{byte:02X}").unwrap_or_default(),
        }
    }
    out
}

impl std::fmt::Debug for HttpHandler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HttpHandler")
            .field("consumer", &self.consumer)
            .field("host", &self.uri.host())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_or_a_word_decides_what_a_response_means() {
        for (status, word, expected) in [
            (200, "", "applied"),
            (204, "", "applied"),
            (302, "", "http_302 true"),
            (400, "", "http_400 true"),
            (500, "", "http_500 true"),
            (500, "keep", "applied"),
            (422, "Refuse", "http_422 false"),
            (200, "retry", "http_200 true"),
            (200, "forget", "http_200 true"),
            (200, "perhaps", "bad_disposition true"),
        ] {
            let mut response = Response::builder().status(status);
            if !word.is_empty() {
                response = response.header("Pgonce-Disposition", word);
            }
            let said = match outcome(&response.body(b" no ".to_vec()).unwrap()) {
                Ok(()) => "applied".to_owned(),
                Err(Error::Failed(failure) | Error::Refused(failure)) => {
                    format!("{} {}", failure.code(), failure.is_retryable())
                }
                Err(other) => panic!("{other:?}"),
            };
            assert_eq!(said, expected, "{status} {word}");
        }
    }

    #[test]
    fn an_attribute_in_a_header_is_plain_text() {
        assert_eq!(
            encoded("a \"b\" 10% \u{e9}"),
            "a%20%22b%22%2010%25%20%C3%A9"
        );
    }
}
