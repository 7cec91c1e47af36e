//! `/healthz`, `/readyz`, `/metrics` and `/counters`, on a listener of their own.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use http::{Method, Request, StatusCode, header};
use pgonce::Error;
use pgonce::driver::Driver;
use pgonce::migrate::Migrator;
use pgonce::unstable::CacheCounts;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::errors;
use super::lifecycle::Current;
use crate::{IdempotencyLayer, Policy, Scope};

/// What an orchestrator asks.
pub(crate) struct Admin<D: Driver> {
    pub(crate) migrator: Migrator<D>,
    pub(crate) database_timeout: Duration,
    pub(crate) current: Arc<Current<D>>,
    pub(crate) connections: TaskTracker,
    pub(crate) stop: CancellationToken,
}

impl<D: Driver> Admin<D> {
    pub(crate) async fn answer(&self, request: Request<Body>) -> Response {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let detail = "health is asked with GET";
            let refused = errors::answer(StatusCode::METHOD_NOT_ALLOWED, "method_missing", detail);
            return ([(header::ALLOW, "GET, HEAD")], refused).into_response();
        }
        match request.uri().path() {
            // Alive says nothing about the database: a restart would not bring it back.
            "/healthz" => said(StatusCode::OK, "alive", "answers"),
            "/readyz" => self.ready().await,
            "/counters" => self.counters(),
            "/metrics" => self.metrics(),
            _ => {
                let detail = "there are only /healthz, /readyz, /metrics and /counters";
                errors::answer(StatusCode::NOT_FOUND, "route_missing", detail)
            }
        }
    }

    async fn ready(&self) -> Response {
        if self.stop.is_cancelled() {
            return said(
                StatusCode::SERVICE_UNAVAILABLE,
                "draining",
                "finishes what is under way and ends",
            );
        }
        match self.check().await {
            Ok(()) => said(
                StatusCode::OK,
                "ready",
                "the database is there and its schema fits",
            ),
            Err(error) => {
                tracing::warn!(%error, "not ready");
                let body = json!({"status": "not_ready", "code": error.code(), "detail": error.to_string()});
                (StatusCode::SERVICE_UNAVAILABLE, axum::Json(body)).into_response()
            }
        }
    }

    /// The counters of each protected operation since the start, by scope and operation. A reload makes
    /// new layers: those of one operation are added up.
    fn counts(&self) -> BTreeMap<(String, String), BTreeMap<&'static str, u64>> {
        let mut counts: BTreeMap<_, BTreeMap<&'static str, u64>> = BTreeMap::new();
        for layer in self.current.layers() {
            let of = counts.entry(names(layer.policy())).or_default();
            for (name, count) in layer.counters().all() {
                *of.entry(name).or_default() += count;
            }
        }
        counts
    }

    fn counters(&self) -> Response {
        let counted = self
            .counts()
            .into_iter()
            .map(|((_, operation), counts)| (operation, json!(counts)));
        axum::Json(Value::Object(counted.collect())).into_response()
    }

    /// The same for Prometheus, and how much is in progress.
    fn metrics(&self) -> Response {
        let mut text = String::from(
            "# HELP pgonce_http_requests_total Requests of protected operations by outcome.\n\
             # TYPE pgonce_http_requests_total counter\n",
        );
        // Writing to a String cannot fail.
        for ((scope, operation), counts) in self.counts() {
            let (scope, operation) = (label(&scope), label(&operation));
            for (outcome, count) in counts {
                let _ = writeln!(
                    text,
                    "pgonce_http_requests_total{{scope=\"{scope}\",operation=\"{operation}\",outcome=\"{outcome}\"}} {count}"
                );
            }
        }
        if let Some(counts) = self.current.once().cache_counts() {
            cached(&mut text, &counts);
        }
        let layers = self.current.layers();
        let work: usize = layers.iter().map(IdempotencyLayer::under_way).sum();
        let gauges = [
            (
                "pgonce_http_work_in_progress",
                "Protected requests whose work is in progress.",
                work,
            ),
            (
                "pgonce_gateway_connections",
                "Open connections of clients.",
                self.connections.len(),
            ),
        ];
        for (name, help, value) in gauges {
            let _ = writeln!(
                text,
                "# HELP {name} {help}\n# TYPE {name} gauge\n{name} {value}"
            );
        }
        let kind = "text/plain; version=0.0.4; charset=utf-8";
        ([(header::CONTENT_TYPE, kind)], text).into_response()
    }

    async fn check(&self) -> Result<(), Error> {
        let checked = tokio::time::timeout(self.database_timeout, self.migrator.check()).await;
        checked.unwrap_or_else(|_| Err(Error::Disconnected("no answer in time".to_owned())))
    }
}

/// What the cache did, for Prometheus.
fn cached(text: &mut String, counts: &CacheCounts) {
    let families = [
        (
            "pgonce_cache_requests_total",
            "Requests by who answered: the cache, another request at the same time, or the database.",
            vec![
                ("hit", counts.hits),
                ("shared", counts.shared),
                ("miss", counts.misses),
            ],
        ),
        (
            "pgonce_cache_values_total",
            "Values that were written, that were ignored because the database changed, and that were not ours.",
            vec![
                ("filled", counts.filled),
                ("outdated", counts.outdated),
                ("refused", counts.refused),
            ],
        ),
        (
            "pgonce_cache_errors_total",
            "Calls of Redis that failed or took too long.",
            vec![("error", counts.errors)],
        ),
    ];
    // Writing to a String cannot fail.
    for (name, help, results) in families {
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} counter");
        for (result, count) in results {
            let _ = writeln!(text, "{name}{{result=\"{result}\"}} {count}");
        }
    }
    let name = "pgonce_cache_breaker_open";
    let help = "Whether Redis is left alone after errors.";
    let open = u8::from(counts.breaker_open);
    let _ = writeln!(
        text,
        "# HELP {name} {help}\n# TYPE {name} gauge\n{name} {open}"
    );
}

fn names(policy: &Policy) -> (String, String) {
    let scope = match &policy.scope {
        Scope::Named(name) => name.clone(),
        Scope::Operation => String::new(),
    };
    (scope, policy.operation.clone().unwrap_or_default())
}

/// A label's value as Prometheus wants it.
fn label(value: &str) -> String {
    let value = value.replace('\\', "\\\\").replace('"', "\\\"");
    value.replace('\n', "\\n")
}

fn said(status: StatusCode, word: &str, detail: &str) -> Response {
    (
        status,
        axum::Json(json!({"status": word, "detail": detail})),
    )
        .into_response()
}
