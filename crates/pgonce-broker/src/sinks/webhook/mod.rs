//! HTTP endpoints, with the signatures of [Standard Webhooks](https://www.standardwebhooks.com).

mod answer;
mod guard;
mod signature;

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::{Request, Uri};
use http_body_util::{BodyExt as _, Full};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use pgonce::outbox::Message;
use tokio::time::{Instant, timeout, timeout_at};
use url::Url;

use self::answer::{Answer, StatusPolicy};
use self::guard::Guard;
use self::signature::Keys;
use super::{Refusal, SOURCE, TIMEOUT};
use crate::{Delivery, Sink};

const SINK: &str = "webhook";

/// How much of an answer is read: its status says it all, the rest is for the reason that people see.
const ANSWER_BYTES: usize = 16 * 1024;

/// Maximum time to wait for the call that finds out whether an endpoint answers.
const PROBE: Duration = Duration::from_secs(1);

/// How to call an endpoint.
#[derive(Clone)]
#[non_exhaustive]
pub struct WebhookConfig {
    /// Where to.
    pub url: String,
    /// `whsec_…` signs with HMAC-SHA256 (`v1`), `whsk_…` with ed25519 (`v1a`). Every event is signed
    /// with all of them: give the new one and the old one while receivers change over.
    pub secrets: Vec<String>,
    /// Addresses and networks that may be called although they are not public: `10.1.0.0/16`.
    pub allow: Vec<String>,
    /// Whether `http://` will do.
    pub allow_http: bool,
    /// CloudEvents' `source`: who speaks, as a URI.
    pub source: String,
    /// Maximum time of the whole call.
    pub timeout: Duration,
    /// Statuses after which an event is tried again, with growing pauses, besides those that are by default.
    pub retry_status: Vec<u16>,
    /// Statuses that make an event a dead letter at once, besides those that do by default.
    pub dead_status: Vec<u16>,
}

impl WebhookConfig {
    /// To this endpoint; at least one secret has to be added.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            secrets: Vec::new(),
            allow: Vec::new(),
            allow_http: false,
            source: SOURCE.to_owned(),
            timeout: TIMEOUT,
            retry_status: Vec::new(),
            dead_status: Vec::new(),
        }
    }
}

impl std::fmt::Debug for WebhookConfig {
    /// Neither secrets nor the path and query, which often hold one.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WebhookConfig")
            .field("secrets", &self.secrets.len())
            .field("allow", &self.allow)
            .finish_non_exhaustive()
    }
}

/// Posts each event as a CloudEvent in JSON, signed.
///
/// `webhook-id` is the message id, so receivers deduplicate by it. The endpoint's answer decides: see
/// the table in the guide. Addresses that are not public are refused, after the name was resolved and
/// before anything is sent; redirects are not followed.
pub struct Webhook {
    client: Client<HttpsConnector<HttpConnector<Guard>>, Full<Bytes>>,
    uri: Uri,
    keys: Keys,
    source: String,
    timeout: Duration,
    policy: StatusPolicy,
    state: Mutex<State>,
    /// Held by the one call that finds out whether an endpoint answers.
    probe: tokio::sync::Mutex<()>,
}

/// What is known of the endpoint.
#[derive(Debug)]
enum State {
    /// It was not called yet, or asked to be left alone until now.
    Unknown,
    Open,
    /// It asked to be left alone.
    Quiet {
        until: Instant,
        reason: String,
    },
    /// It said that it is no more.
    Gone {
        reason: String,
    },
}

impl Webhook {
    /// Checks everything that can be checked without calling the endpoint.
    pub async fn new(config: WebhookConfig) -> Result<Self, Refusal> {
        let wrong = |why: String| Refusal::BadUrl {
            why,
            expected: "https://host/path",
        };
        let url = Url::parse(&config.url).map_err(|error| wrong(error.to_string()))?;
        match url.scheme() {
            "https" => {}
            "http" if config.allow_http => {}
            "http" => {
                return Err(refused(
                    "events would travel unencrypted: use https, or say allow_http = true"
                        .to_owned(),
                ));
            }
            other => return Err(wrong(format!("{other:?} is not https"))),
        }
        let guard = Guard::allowing(&config.allow)?;
        let host = url.host_str().unwrap_or_default().to_owned();
        let port = url.port_or_known_default().unwrap_or(443);
        guard.check(&host, port).await?;
        let uri: Uri = (url.as_str().parse()).map_err(|error| wrong(format!("{error}")))?;
        let mut connector = HttpConnector::new_with_resolver(guard);
        connector.enforce_http(false);
        connector.set_connect_timeout(Some(config.timeout));
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls(url.scheme() == "https")?)
            .https_or_http()
            .enable_http1()
            .wrap_connector(connector);
        Ok(Self {
            client: Client::builder(TokioExecutor::new()).build(connector),
            uri,
            keys: Keys::read(&config.secrets)?,
            source: config.source,
            timeout: config.timeout,
            policy: StatusPolicy {
                retry: config.retry_status,
                refuse: config.dead_status,
            },
            state: Mutex::new(State::Unknown),
            probe: tokio::sync::Mutex::default(),
        })
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn post(&self, message: &Message) -> Result<Answer, String> {
        let until = Instant::now() + self.timeout;
        let body = message.cloud_event(&self.source);
        let id = message.id.to_string();
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let time = now.unwrap_or_default().as_secs();
        let request = Request::post(self.uri.clone())
            .header("content-type", "application/cloudevents+json")
            .header("user-agent", concat!("pgonce/", env!("CARGO_PKG_VERSION")))
            .header("webhook-id", &id)
            .header("webhook-timestamp", time)
            .header("webhook-signature", self.keys.sign(&id, time, &body))
            .body(Full::from(body))
            .map_err(|error| error.to_string())?;
        let late = |_| "the endpoint took too long to answer".to_owned();
        let response = timeout_at(until, self.client.request(request));
        let response = response
            .await
            .map_err(late)?
            .map_err(|error| whole(&error))?;
        let (head, mut body) = response.into_parts();
        let mut text = Vec::new();
        // Reading to the end lets the connection be used again; a long or slow answer costs it.
        while let Ok(Some(Ok(frame))) = timeout_at(until, body.frame()).await {
            text.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
            if text.len() > ANSWER_BYTES {
                break;
            }
        }
        Ok(Answer::read(
            &self.policy,
            head.status,
            &head.headers,
            &text,
        ))
    }
}

impl Sink for Webhook {
    async fn send(&self, message: &Message) -> Delivery {
        let mut probe = None;
        if !matches!(*self.state(), State::Open) {
            // One call is enough to find out; but no longer than a moment: it may be the event that is slow.
            probe = timeout(PROBE, self.probe.lock()).await.ok();
        }
        match &*self.state() {
            State::Gone { reason } => {
                let reason = reason.clone();
                return Delivery::Gone { reason };
            }
            State::Quiet { until, reason } if Instant::now() < *until => {
                let reason = reason.clone();
                return Delivery::Unavailable { reason };
            }
            _ => {}
        }
        let answer = match self.post(message).await {
            Ok(answer) => answer,
            Err(reason) => return Delivery::Unavailable { reason },
        };
        if !matches!(answer, Answer::Down { .. } | Answer::Gone { .. }) {
            let mut state = self.state();
            if !matches!(*state, State::Quiet { until, .. } if Instant::now() < until) {
                *state = State::Open;
            }
        }
        let delivery = match answer {
            Answer::Taken => Delivery::Acknowledged,
            Answer::Failed { reason } => Delivery::Retry {
                reason,
                after: Duration::ZERO,
            },
            Answer::Refused { reason } => Delivery::Poison { reason },
            Answer::Down { reason, after } => {
                let until = Instant::now() + after;
                if !after.is_zero() {
                    let reason = reason.clone();
                    *self.state() = State::Quiet { until, reason };
                }
                Delivery::Unavailable { reason }
            }
            Answer::Gone { reason } => {
                *self.state() = State::Gone {
                    reason: reason.clone(),
                };
                Delivery::Gone { reason }
            }
        };
        drop(probe); // others see what it found out
        delivery
    }
}

/// An error with its causes.
pub(crate) fn whole(error: &dyn std::error::Error) -> String {
    let mut text = "the endpoint cannot be called".to_owned();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}

fn refused(why: String) -> Refusal {
    Refusal::Refused { sink: SINK, why }
}

/// The system's certificates, with ring; none where they are not needed.
pub(crate) fn tls(needed: bool) -> Result<rustls::ClientConfig, Refusal> {
    let mut roots = rustls::RootCertStore::empty();
    if needed {
        let found = rustls_native_certs::load_native_certs();
        roots.add_parsable_certificates(found.certs);
    }
    if needed && roots.is_empty() {
        return Err(refused(
            "this system has no certificates of authorities: install the package ca-certificates"
                .to_owned(),
        ));
    }
    let provider = rustls::crypto::ring::default_provider();
    let config = rustls::ClientConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .map_err(|error| refused(error.to_string()))?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

impl std::fmt::Debug for Webhook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Webhook")
            .field("host", &self.uri.host())
            .field("state", &*self.state())
            .finish_non_exhaustive()
    }
}
