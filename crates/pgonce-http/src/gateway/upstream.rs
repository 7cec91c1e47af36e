//! One upstream: its connections, its time limits, and what it means when it does not answer.

use std::fmt;
use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Request, Response, Uri, Version};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::time::{Instant, sleep_until};
use tower::Service;

use super::body::{ProgressBody, StallTimeout, Stalled};
use super::config;
use super::tls;

/// How many connections without work are kept for the next requests.
const IDLE_CONNECTIONS: usize = 512;

/// A service behind the gateway.
pub(crate) struct Upstream {
    client: Client<ConnectTimeout, ProgressBody>,
    scheme: Scheme,
    authority: Authority,
    /// What every path begins with; empty for most.
    prefix: String,
    response_timeout: Duration,
    idle_timeout: Duration,
}

/// Why there is no answer, and what may have happened.
#[derive(Debug)]
pub(crate) struct Unanswered {
    pub(crate) delivery: Delivery,
    /// Whether time ran out, rather than something having broken.
    pub(crate) late: bool,
    pub(crate) why: String,
}

/// What may have happened at an upstream that gave no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// Nothing: there was no connection to send anything on.
    NotSent,
    /// Anything: something was sent, and no response was received.
    Unknown,
    /// The client did not send the whole of its request.
    ClientStalled,
}

impl fmt::Display for Unanswered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl Upstream {
    pub(crate) fn new(table: &config::Upstream, ca_file: Option<&Path>) -> Result<Self, String> {
        let uri = &table.url.get_ref().0;
        let (Some(scheme), Some(authority)) = (uri.scheme(), uri.authority()) else {
            return Err("the address has no scheme or no host".to_owned());
        };
        let connector = ConnectTimeout {
            inner: tls::connector(ca_file)?,
            limit: table.connect_timeout.get_ref().0,
        };
        let keep_alive = table.keep_alive.0;
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(keep_alive)
            .pool_max_idle_per_host(if keep_alive.is_zero() {
                0
            } else {
                IDLE_CONNECTIONS
            })
            .build(connector);
        Ok(Self {
            client,
            scheme: scheme.clone(),
            authority: authority.clone(),
            prefix: uri.path().trim_end_matches('/').to_owned(),
            response_timeout: table.response_timeout.0,
            idle_timeout: table.idle_timeout.0,
        })
    }

    /// The name of its host.
    pub(crate) fn host(&self) -> &str {
        self.authority.host()
    }

    /// A service at an address of its own, with this limit for each step.
    pub(crate) fn at(address: &config::Address, limit: Duration) -> Result<Self, String> {
        let length = config::values::Length(limit);
        let mut made = Self::new(
            &config::Upstream {
                url: toml::Spanned::new(0..0, address.clone()),
                ca_file: None,
                connect_timeout: toml::Spanned::new(0..0, length),
                response_timeout: length,
                idle_timeout: length,
                keep_alive: length,
                host: config::HostSent::Upstream,
                key_form: config::KeyForm::Bare,
                close_delimited: config::CloseDelimited::Whole,
            },
            None,
        )?;
        // Its path is the whole path of each request.
        made.prefix.clear();
        Ok(made)
    }

    /// Sends a request on and waits for the head of the answer; its body follows as it comes.
    pub(crate) async fn send(&self, request: Request<Body>) -> Result<Response<Body>, Unanswered> {
        let (mut parts, body) = request.into_parts();
        parts.uri = self.address_of(&parts.uri);
        parts.version = Version::HTTP_11;
        let (body, moved) = ProgressBody::new(body);
        let mut answer = self.client.request(Request::from_parts(parts, body));
        let sleep = sleep_until(Instant::now() + self.response_timeout);
        let mut sleep = std::pin::pin!(sleep);
        loop {
            tokio::select! {
                biased;
                answer = &mut answer => {
                    let answer = answer.map_err(|error| self.unanswered(&error))?;
                    let patient = |body| StallTimeout::new(Body::new(body), self.idle_timeout, Stalled::Upstream);
                    return Ok(answer.map(|body| Body::new(patient(body))));
                }
                () = &mut sleep => {
                    let until = moved.last() + self.response_timeout;
                    if until <= Instant::now() {
                        return Err(self.late());
                    }
                    sleep.as_mut().reset(until);
                }
            }
        }
    }

    /// Where a request goes. The path is passed on as it was written.
    fn address_of(&self, asked: &Uri) -> Uri {
        let path = asked
            .path_and_query()
            .cloned()
            .unwrap_or(PathAndQuery::from_static("/"));
        let path = if self.prefix.is_empty() {
            path
        } else {
            PathAndQuery::try_from(format!("{}{path}", self.prefix)).unwrap_or(path)
        };
        let mut parts = http::uri::Parts::default();
        parts.scheme = Some(self.scheme.clone());
        parts.authority = Some(self.authority.clone());
        parts.path_and_query = Some(path);
        Uri::from_parts(parts).expect("scheme, authority and path are all there")
    }

    fn unanswered(&self, error: &hyper_util::client::legacy::Error) -> Unanswered {
        let timed_out = find(error, |error: &io::Error| {
            error.kind() == io::ErrorKind::TimedOut
        });
        let (delivery, late) = match Stalled::behind(error) {
            Some(Stalled::Client) => (Delivery::ClientStalled, true),
            // Only a connection that was never made is sure to have carried nothing: a request
            // on a connection that broke may have been read before it did.
            _ if error.is_connect() => (Delivery::NotSent, timed_out),
            _ => (Delivery::Unknown, timed_out),
        };
        Unanswered {
            delivery,
            late,
            why: with_causes(error),
        }
    }

    fn late(&self) -> Unanswered {
        let why = format!(
            "no answer within {}",
            humantime::format_duration(self.response_timeout)
        );
        Unanswered {
            delivery: Delivery::Unknown,
            late: true,
            why,
        }
    }
}

/// Whether one of the causes of an error is like this.
fn find<E: std::error::Error + 'static>(
    error: &(dyn std::error::Error + 'static),
    like: impl Fn(&E) -> bool,
) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if error.downcast_ref().is_some_and(&like) {
            return true;
        }
        cause = error.source();
    }
    false
}

fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.ends_with(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

/// Opens connections, TLS and all, within a time limit.
#[derive(Debug, Clone)]
struct ConnectTimeout {
    inner: HttpsConnector<HttpConnector>,
    limit: Duration,
}

type Stream = <HttpsConnector<HttpConnector> as Service<Uri>>::Response;
type BoxError = Box<dyn std::error::Error + Send + Sync>;

impl Service<Uri> for ConnectTimeout {
    type Response = Stream;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Stream, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, address: Uri) -> Self::Future {
        let (opening, limit) = (self.inner.call(address), self.limit);
        Box::pin(async move {
            tokio::time::timeout(limit, opening)
                .await
                .unwrap_or_else(|_| {
                    let why = format!("no connection within {}", humantime::format_duration(limit));
                    Err(io::Error::new(io::ErrorKind::TimedOut, why).into())
                })
        })
    }
}
