//! A collector: takes spans over OTLP, as any other does, and shows them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value};
use opentelemetry_proto::tonic::trace::v1 as proto;
use pgonce_testkit::wait_until;
use prost::Message as _;
use tokio::net::TcpListener;

use crate::fixture::TIMEOUT;

/// A span as it was received.
#[derive(Debug, Clone)]
pub(crate) struct Span {
    pub(crate) service: String,
    pub(crate) name: String,
    pub(crate) trace: String,
    pub(crate) id: String,
    pub(crate) parent: String,
    pub(crate) kind: proto::span::SpanKind,
    pub(crate) events: usize,
    pub(crate) is_error: bool,
    attributes: BTreeMap<String, String>,
}

impl Span {
    /// An attribute; empty where there is none.
    pub(crate) fn get(&self, name: &str) -> &str {
        self.attributes.get(name).map_or("", String::as_str)
    }

    pub(crate) fn outcome(&self) -> &str {
        self.get("pgonce.outcome")
    }
}

#[derive(Default)]
struct Received {
    bodies: Vec<Bytes>,
    headers: Vec<HeaderMap>,
}

#[derive(Clone)]
pub(crate) struct Collector {
    pub(crate) url: String,
    received: Arc<Mutex<Received>>,
}

impl Collector {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let collector = Self {
            url: format!("http://{}", listener.local_addr().unwrap()),
            received: Arc::default(),
        };
        let router = Router::new()
            .route("/v1/traces", post(Self::take))
            .with_state(collector.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        collector
    }

    async fn take(State(collector): State<Self>, headers: HeaderMap, body: Bytes) -> StatusCode {
        let mut received = collector.received.lock().unwrap();
        received.bodies.push(body);
        received.headers.push(headers);
        StatusCode::OK
    }

    /// The variables that lead a program here, at once.
    pub(crate) fn variables(&self, service: &str) -> Vec<(String, String)> {
        [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", self.url.as_str()),
            (
                "OTEL_EXPORTER_OTLP_HEADERS",
                "authorization=Bearer%20of-the-collector",
            ),
            ("OTEL_SERVICE_NAME", service),
            (
                "OTEL_RESOURCE_ATTRIBUTES",
                "deployment.environment.name=test",
            ),
            ("OTEL_BSP_SCHEDULE_DELAY", "20"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec()
    }

    /// Everything that was sent, byte by byte, with its headers.
    pub(crate) fn everything(&self) -> String {
        let received = self.received.lock().unwrap();
        let bodies = received.bodies.iter();
        let mut all: String = bodies
            .map(|body| String::from_utf8_lossy(body).into_owned())
            .collect();
        all.push_str(&format!("{:?}", received.headers));
        all
    }

    pub(crate) fn requests(&self) -> usize {
        self.received.lock().unwrap().bodies.len()
    }

    /// Whether every request had what the variables say.
    pub(crate) fn assert_authorised(&self) {
        for headers in &self.received.lock().unwrap().headers {
            assert_eq!(headers["authorization"], "Bearer of-the-collector");
            assert_eq!(headers["content-type"], "application/x-protobuf");
        }
    }

    pub(crate) fn spans(&self) -> Vec<Span> {
        let received = self.received.lock().unwrap();
        let mut spans = Vec::new();
        for body in &received.bodies {
            let request = ExportTraceServiceRequest::decode(body.clone()).unwrap();
            for resource in request.resource_spans {
                let of = attributes(&resource.resource.unwrap().attributes);
                assert_eq!(of["deployment.environment.name"], "test");
                assert!(of.contains_key("service.version"));
                let all = resource.scope_spans.into_iter().flat_map(|of| of.spans);
                spans.extend(all.map(|span| read(&of["service.name"], &span)));
            }
        }
        spans
    }

    /// The spans, once these are there.
    pub(crate) async fn wait_for(&self, what: &str, there: impl Fn(&[Span]) -> bool) -> Vec<Span> {
        let come = async || there(&self.spans());
        wait_until(what, TIMEOUT, come)
            .await
            .unwrap_or_else(|error| panic!("{error}: {:#?}", self.spans()));
        self.spans()
    }
}

fn read(service: &str, span: &proto::Span) -> Span {
    let hex = |bytes: &[u8]| -> String { bytes.iter().map(|b| format!("{b:02x}")).collect() };
    Span {
        service: service.to_owned(),
        name: span.name.clone(),
        trace: hex(&span.trace_id),
        id: hex(&span.span_id),
        parent: hex(&span.parent_span_id),
        kind: span.kind(),
        events: span.events.len(),
        is_error: span
            .status
            .as_ref()
            .is_some_and(|status| status.code() == proto::status::StatusCode::Error),
        attributes: attributes(&span.attributes),
    }
}

fn attributes(pairs: &[KeyValue]) -> BTreeMap<String, String> {
    let text = |pair: &KeyValue| match pair.value.as_ref().and_then(|v| v.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::BoolValue(value)) => value.to_string(),
        Some(Value::IntValue(value)) => value.to_string(),
        other => format!("{other:?}"),
    };
    pairs
        .iter()
        .map(|pair| (pair.key.clone(), text(pair)))
        .collect()
}
