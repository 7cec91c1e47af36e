//! Traces to an OpenTelemetry collector, over OTLP. Off unless the environment names an endpoint; the variables are those of
//! OpenTelemetry's specification.
//!
//! Nothing waits for the collector: spans wait in a bounded queue, and what does not fit, or is not taken, is dropped and counted.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry::{Context, KeyValue};
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{SpanExporter, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::resource::{EnvResourceDetector, TelemetryResourceDetector};
use opentelemetry_sdk::trace::{
    BatchSpanProcessor, SdkTracer, SdkTracerProvider, Span, SpanData, SpanProcessor,
};
use tokio::runtime::Handle;
use tokio::time::timeout;

use crate::tls;

/// Maximum time for the spans that are left when the program ends.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum time of a request, where `OTEL_EXPORTER_OTLP_TIMEOUT` says nothing.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum length of a collector's answer.
const MAX_ANSWER: usize = 64 * 1024;
/// Maximum number of spans that wait, where `OTEL_BSP_MAX_QUEUE_SIZE` says nothing.
const MAX_QUEUE: usize = 2048;

const WRONG_SETTINGS: &str = "OTEL_EXPORTER_OTLP_ENDPOINT must be an address such as http://127.0.0.1:4318, and \
     OTEL_EXPORTER_OTLP_COMPRESSION gzip or unset";

static PROVIDER: OnceLock<SdkTracerProvider> = OnceLock::new();

/// The first of these variables that says something.
fn variable(names: &[&str]) -> Option<String> {
    let mut values = names.iter().filter_map(|name| std::env::var(name).ok());
    values.find(|value| !value.trim().is_empty())
}

/// Starts exporting where the environment asks for it. What is wrong with the environment is for the log: the work goes on.
pub(crate) fn start() -> Result<Option<SdkTracer>, String> {
    let Some(endpoint) = endpoint()? else {
        return Ok(None);
    };
    let queue = Arc::new(Queue {
        max: number("OTEL_BSP_MAX_QUEUE_SIZE").unwrap_or(MAX_QUEUE),
        ..Queue::default()
    });
    let exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(Post::new(endpoint.starts_with("https:"))?)
        .build()
        // Its own text has the address in it, perhaps with a password.
        .map_err(|_| WRONG_SETTINGS.to_owned())?;
    let exporter = Exporter {
        exporter,
        queue: queue.clone(),
    };
    let provider = SdkTracerProvider::builder()
        .with_resource(resource())
        .with_span_processor(Processor {
            batches: BatchSpanProcessor::builder(exporter).build(),
            queue,
        })
        .build();
    let provider = PROVIDER.get_or_init(|| provider);
    Ok(Some(provider.tracer("pgonce")))
}

/// Sends what is left, or gives it up.
pub(crate) async fn flush() {
    if let Some(provider) = PROVIDER.get() {
        // What could not be sent is counted, and the program ends all the same.
        let _ = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(FLUSH_TIMEOUT))
            .await;
    }
}

/// Where spans go, if anywhere.
fn endpoint() -> Result<Option<String>, String> {
    let endpoint = variable(&[
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
        "OTEL_EXPORTER_OTLP_ENDPOINT",
    ]);
    let disabled = variable(&["OTEL_SDK_DISABLED"]).is_some_and(|v| v.eq_ignore_ascii_case("true"));
    let exporter = variable(&["OTEL_TRACES_EXPORTER"]);
    let protocol = variable(&[
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
        "OTEL_EXPORTER_OTLP_PROTOCOL",
    ]);
    if endpoint.is_none() || disabled || exporter.as_deref() == Some("none") {
        return Ok(None);
    }
    if let Some(other) = exporter.filter(|exporter| exporter != "otlp") {
        return Err(format!(
            "OTEL_TRACES_EXPORTER is {other:?}; it can be otlp or none"
        ));
    }
    if let Some(other) = protocol.filter(|protocol| protocol != "http/protobuf") {
        return Err(format!(
            "OTEL_EXPORTER_OTLP_PROTOCOL is {other:?}; it can be http/protobuf, whose port is 4318"
        ));
    }
    Ok(endpoint)
}

fn number<N: std::str::FromStr>(name: &str) -> Option<N> {
    variable(&[name])?.trim().parse().ok()
}

fn resource() -> Resource {
    let resource = Resource::builder_empty()
        .with_service_name("pgonce")
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .with_detectors(&[
            Box::new(TelemetryResourceDetector),
            Box::new(EnvResourceDetector::new()),
        ]);
    match variable(&["OTEL_SERVICE_NAME"]) {
        Some(name) => resource.with_service_name(name).build(),
        None => resource.build(),
    }
}

/// Spans on their way to the collector.
#[derive(Debug, Default)]
struct Queue {
    max: usize,
    waiting: AtomicUsize,
    /// Spans are being dropped, and that was logged.
    dropping: AtomicBool,
}

impl Queue {
    fn enter(&self) -> bool {
        if self.waiting.fetch_add(1, Ordering::Relaxed) < self.max {
            return true;
        }
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        false
    }

    fn dropped(&self, spans: usize, why: &str) {
        metrics::counter!("pgonce_trace_spans_dropped_total").increment(spans as u64);
        if !self.dropping.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                why,
                "spans are dropped until the collector takes them again; the work goes on"
            );
        }
    }
}

/// The SDK's batches, with a queue that counts what it drops.
#[derive(Debug)]
struct Processor {
    batches: BatchSpanProcessor,
    queue: Arc<Queue>,
}

impl SpanProcessor for Processor {
    fn on_start(&self, span: &mut Span, context: &Context) {
        self.batches.on_start(span, context);
    }

    fn on_end(&self, span: SpanData) {
        match self.queue.enter() {
            true => self.batches.on_end(span),
            false => self.queue.dropped(1, "the queue is full"),
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.batches.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.batches.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.batches.set_resource(resource);
    }
}

#[derive(Debug)]
struct Exporter {
    exporter: SpanExporter,
    queue: Arc<Queue>,
}

impl opentelemetry_sdk::trace::SpanExporter for Exporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        let waiting = self.queue.waiting.fetch_sub(spans, Ordering::Relaxed) - spans;
        let exported = self.exporter.export(batch).await;
        match &exported {
            Ok(()) => {
                // Not while more come than it takes: that would be said again and again.
                if waiting <= self.queue.max / 2
                    && self.queue.dropping.swap(false, Ordering::Relaxed)
                {
                    tracing::info!("the collector takes spans again");
                }
            }
            Err(error) => self.queue.dropped(spans, &error.to_string()),
        }
        exported
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

/// Posts by the program's own runtime and certificates: the SDK has a thread without either.
#[derive(Debug)]
struct Post {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    runtime: Handle,
    limit: Duration,
}

impl Post {
    fn new(encrypted: bool) -> Result<Self, String> {
        let authorities = variable(&[
            "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE",
            "OTEL_EXPORTER_OTLP_CERTIFICATE",
        ]);
        let settings = tls::Settings {
            mode: Some(tls::Mode::VerifyFull),
            root: authorities.or_else(|| Some("system".to_owned())),
            ..tls::Settings::default()
        };
        let roots = match encrypted {
            true => tls::roots(&settings).map_err(|error| error.words().0.to_owned())?,
            false => None,
        };
        let provider = rustls::crypto::ring::default_provider();
        let config = rustls::ClientConfig::builder_with_provider(provider.into())
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots.unwrap_or_else(rustls::RootCertStore::empty))
            .with_no_client_auth();
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(config)
            .https_or_http()
            .enable_http1()
            .build();
        let millis = number("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT")
            .or_else(|| number("OTEL_EXPORTER_OTLP_TIMEOUT"));
        Ok(Self {
            client: Client::builder(TokioExecutor::new()).build(connector),
            runtime: Handle::current(),
            limit: millis.map_or(REQUEST_TIMEOUT, Duration::from_millis),
        })
    }
}

#[async_trait]
impl HttpClient for Post {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (client, limit) = (self.client.clone(), self.limit);
        let sending = async move {
            let answer = client.request(request.map(Full::new)).await?;
            let (head, body) = answer.into_parts();
            let body = Limited::new(body, MAX_ANSWER).collect().await?.to_bytes();
            Ok::<_, HttpError>(Response::from_parts(head, body))
        };
        // A timer can be made only on the runtime.
        let sending = async move { timeout(limit, sending).await };
        self.runtime.spawn(sending).await??
    }
}
