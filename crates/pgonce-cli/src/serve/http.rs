//! Health, metrics and the console on one listener.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use metrics_exporter_prometheus::PrometheusHandle;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::inbox::Inbox;
use pgonce::migrate::Migrator;
use pgonce::outbox::Outbox;
use pgonce::{Error, Once};
use pgonce_http::gateway::unstable::serve_router;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use super::health::Health;
use crate::exit::{self, CliError, Result};
use crate::prometheus;

/// More wait in the kernel's queue.
const MAX_CONNECTIONS: usize = 256;

/// What orchestrators and Prometheus ask.
pub(super) struct Web {
    once: Once<TokioPostgres>,
    outbox: Outbox<TokioPostgres>,
    inbox: Inbox<TokioPostgres>,
    migrator: Migrator<TokioPostgres>,
    recorder: PrometheusHandle,
    health: Arc<Health>,
    metrics: bool,
    stop: CancellationToken,
    database_timeout: Duration,
}

impl Web {
    pub(super) fn new(
        once: &Once<TokioPostgres>,
        migrator: Migrator<TokioPostgres>,
        recorder: PrometheusHandle,
        health: Arc<Health>,
        metrics: bool,
        stop: CancellationToken,
        database_timeout: Duration,
    ) -> Self {
        Self {
            once: once.clone(),
            outbox: once.outbox(),
            inbox: once.inbox(),
            migrator,
            recorder,
            health,
            metrics,
            stop,
            database_timeout,
        }
    }
}

/// Binds, and serves until the process ends. The address is the real one, also where the port was 0.
pub(super) async fn serve(
    address: SocketAddr,
    web: Arc<Web>,
    console: watch::Receiver<Option<Router>>,
) -> Result<SocketAddr> {
    let cannot = |error: std::io::Error| {
        CliError::new(
            exit::FAILED,
            format!("nothing can be served on {address}: {error}"),
            "Is another program there? See --listen.",
        )
    };
    let listener = TcpListener::bind(address).await.map_err(cannot)?;
    let bound = listener.local_addr().map_err(cannot)?;
    let mut router = Router::new()
        // Alive says nothing about the database: a restart would not bring it back.
        .route(
            "/healthz",
            get(async || said(StatusCode::OK, "alive", "answers")),
        )
        .route("/readyz", get(ready));
    if web.metrics {
        router = router.route("/metrics", get(metrics));
    }
    let router = router
        .with_state(web)
        .fallback(async move |request: Request| {
            let console = console.borrow().clone();
            match console {
                Some(console) => console.oneshot(request).await.into_response(),
                None => said(
                    StatusCode::NOT_FOUND,
                    "not_found",
                    "there is no console here",
                ),
            }
        });
    tokio::spawn(serve_router(
        listener,
        router,
        MAX_CONNECTIONS,
        CancellationToken::new(),
    ));
    Ok(bound)
}

fn said(status: StatusCode, word: &str, detail: &str) -> Response {
    (status, Json(json!({"status": word, "detail": detail}))).into_response()
}

/// Ready, or what is waited for.
async fn ready(State(web): State<Arc<Web>>) -> Response {
    if web.stop.is_cancelled() {
        return said(
            StatusCode::SERVICE_UNAVAILABLE,
            "draining",
            "finishes what is under way and ends",
        );
    }
    let checked = timeout(web.database_timeout, web.migrator.check()).await;
    let checked =
        checked.unwrap_or_else(|_| Err(Error::Disconnected("no answer in time".to_owned())));
    let mut waiting: Vec<Value> = Vec::new();
    if let Err(error) = checked {
        waiting.push(json!({"for": "the database and its schema", "code": error.code(), "detail": error.to_string()}));
    }
    waiting.extend(web.health.waiting());
    match waiting.is_empty() {
        true => Json(json!({"status": "ready"})).into_response(),
        false => (
            StatusCode::SERVICE_UNAVAILABLE,
            Json(json!({"status": "not_ready", "waiting": waiting})),
        )
            .into_response(),
    }
}

async fn metrics(State(web): State<Arc<Web>>) -> Response {
    let deadline = Instant::now() + web.database_timeout;
    let has_answered = prometheus::scrape(&web.outbox, &web.inbox, deadline).await;
    prometheus::figures(has_answered.then_some(&web.once), deadline).await;
    web.recorder.run_upkeep();
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4")];
    (kind, web.recorder.render()).into_response()
}
