//! `/healthz`, `/readyz` and `/counters`, on a listener of their own.

use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use http::{Method, Request, StatusCode, header};
use pgonce::Error;
use pgonce::driver::Driver;
use pgonce::migrate::Migrator;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::errors;
use crate::IdempotencyLayer;

/// What an orchestrator asks.
pub(crate) struct Admin<D: Driver> {
    pub(crate) migrator: Migrator<D>,
    pub(crate) database_timeout: Duration,
    pub(crate) layers: Vec<IdempotencyLayer<D>>,
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
            _ => {
                let detail = "there are only /healthz, /readyz and /counters";
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

    /// What each operation that happens once did since the start.
    fn counters(&self) -> Response {
        let counted = self.layers.iter().map(|layer| {
            let counters = layer
                .counters()
                .all()
                .into_iter()
                .map(|(name, count)| (name.to_owned(), count.into()));
            let operation = layer.policy().operation.clone().unwrap_or_default();
            (operation, Value::Object(counters.collect()))
        });
        axum::Json(Value::Object(counted.collect())).into_response()
    }

    async fn check(&self) -> Result<(), Error> {
        let checked = tokio::time::timeout(self.database_timeout, self.migrator.check()).await;
        checked.unwrap_or_else(|_| Err(Error::Disconnected("no answer in time".to_owned())))
    }
}

fn said(status: StatusCode, word: &str, detail: &str) -> Response {
    (
        status,
        axum::Json(json!({"status": word, "detail": detail})),
    )
        .into_response()
}
