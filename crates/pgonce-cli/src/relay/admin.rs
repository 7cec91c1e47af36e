//! `/healthz`, `/readyz` and `/metrics`.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use axum::{Json, Router};
use metrics_exporter_prometheus::PrometheusHandle;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::inbox::Inbox;
use pgonce::migrate::Migrator;
use pgonce::outbox::Outbox;
use pgonce::{Error, Once};
use pgonce_broker::{ConsumerCounts, Counts};
use serde_json::json;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::config::Database;
use crate::database::{Address, pool};
use crate::exit::{CliError, Result};
use crate::prometheus;
use crate::starting::until_answered;

/// Connections of its own: it answers also while all others are in use, and before they are made.
const CONNECTIONS: usize = 2;

/// What orchestrators and Prometheus ask.
pub(crate) struct Admin {
    pub(crate) outbox: Outbox<TokioPostgres>,
    pub(crate) inbox: Inbox<TokioPostgres>,
    pub(crate) migrator: Migrator<TokioPostgres>,
    pub(crate) recorder: PrometheusHandle,
    program: &'static str,
    /// Why the program has not started yet.
    waits: Mutex<Option<String>>,
    /// Nothing before they have started, as for consumers.
    pub(crate) relays: OnceLock<Vec<Watched>>,
    pub(crate) consumers: OnceLock<Vec<Consuming>>,
    /// Relays that cannot go on, and why.
    pub(crate) failed: Mutex<Vec<String>>,
    pub(crate) stop: CancellationToken,
    pub(crate) database_timeout: Duration,
}

/// A relay, and what it does.
#[derive(Clone)]
pub(crate) struct Watched {
    pub(crate) subscription: String,
    /// Nothing before its sink is there.
    pub(crate) counts: Arc<OnceLock<Arc<Counts>>>,
}

/// A consumer, and what it does.
#[derive(Clone)]
pub(crate) struct Consuming {
    pub(crate) consumer: String,
    /// Nothing before its source is there.
    pub(crate) counts: Arc<OnceLock<Arc<ConsumerCounts>>>,
}

impl Watched {
    pub(crate) fn name(&self) -> &str {
        &self.subscription
    }

    /// Nothing before its sink is there.
    pub(crate) fn counts(&self) -> Option<&Arc<Counts>> {
        self.counts.get()
    }
}

impl Admin {
    /// Of the program of this name, which has not started yet. What it asks the database is cancelled there when its time is over.
    pub(crate) fn new(
        program: &'static str,
        address: Address,
        database: &Database,
        recorder: PrometheusHandle,
        stop: &CancellationToken,
    ) -> Result<Self> {
        let limit = database.timeout.0;
        let driver = TokioPostgres::new(pool(address, program, CONNECTIONS, limit)?);
        let mut asking = Once::builder(driver.clone()).schema(&database.schema);
        if database.behind_pooler {
            asking = asking.behind_pooler();
        }
        let asking = asking.statement_timeout(limit).build()?;
        Ok(Self {
            outbox: asking.outbox(),
            inbox: asking.inbox(),
            migrator: Migrator::new(driver)
                .schema(&database.schema)
                .statement_timeout(limit),
            recorder,
            program,
            waits: Mutex::new(Some("it has not started yet".to_owned())),
            relays: OnceLock::new(),
            consumers: OnceLock::new(),
            failed: Mutex::default(),
            stop: stop.clone(),
            database_timeout: limit,
        })
    }

    pub(crate) fn router(self: Arc<Self>) -> Router {
        Router::new()
            // Alive says nothing about the database: a restart would not bring it back.
            .route(
                "/healthz",
                get(async || said(StatusCode::OK, "alive", "answers")),
            )
            .route("/readyz", get(ready))
            .route("/metrics", get(metrics))
            .with_state(self)
    }

    pub(crate) fn failed(&self, subscription: &str, why: &str) {
        locked(&self.failed).push(format!("{subscription}: {why}"));
    }

    /// Starts what the program does as soon as the database answers; nothing when stopped before.
    pub(crate) async fn start<T, F: Future<Output = Result<T>>>(
        &self,
        stop: &CancellationToken,
        may_pass: fn(&CliError) -> bool,
        attempt: impl Fn() -> F,
    ) -> Result<Option<T>> {
        let shown = |why: Option<&str>| *locked(&self.waits) = why.map(str::to_owned);
        until_answered(self.program, stop, may_pass, attempt, shown).await
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn ready(State(admin): State<Arc<Admin>>) -> Response {
    if admin.stop.is_cancelled() {
        return said(
            StatusCode::SERVICE_UNAVAILABLE,
            "draining",
            "finishes deliveries in progress and ends",
        );
    }
    let failed = locked(&admin.failed).join("; ");
    if !failed.is_empty() {
        return said(StatusCode::SERVICE_UNAVAILABLE, "failed", &failed);
    }
    let waits = locked(&admin.waits).clone();
    if let Some(why) = waits {
        let waiting = json!([{"for": format!("the next try of {}", admin.program), "detail": why}]);
        let body = json!({"status": "not_ready", "waiting": waiting});
        return (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response();
    }
    let checked = timeout(admin.database_timeout, admin.migrator.check()).await;
    let checked =
        checked.unwrap_or_else(|_| Err(Error::Disconnected("no answer in time".to_owned())));
    if let Err(error) = checked {
        let body =
            json!({"status": "not_ready", "code": error.code(), "detail": error.to_string()});
        return (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response();
    }
    let relays = admin.relays.get().into_iter().flatten();
    let relays = relays.map(|relay| match relay.counts.get() {
        Some(counts) => json!({
            "subscription": relay.subscription, "lanes": counts.lanes(), "sent": counts.sent(),
            "lanes_waiting_for_the_sink": counts.waiting(),
            "waiting_for_the_database": counts.database_error(),
        }),
        None => json!({ "subscription": relay.subscription, "waiting_for_the_sink": true }),
    });
    let relays: Vec<_> = relays.collect();
    let detail = "the database is there and its schema fits";
    let consumers = admin.consumers.get().into_iter().flatten();
    let consumers = consumers.map(|of| match of.counts.get() {
        Some(counts) => json!({
            "consumer": of.consumer, "applied": counts.applied(), "retried": counts.retried(), "poisoned": counts.poisoned(),
        }),
        None => json!({ "consumer": of.consumer, "waiting_for_the_source": true }),
    });
    let consumers: Vec<_> = consumers.collect();
    let mut body = json!({"status": "ready", "detail": detail});
    for (name, list) in [("relays", relays), ("consumers", consumers)] {
        if !list.is_empty() {
            body[name] = list.into();
        }
    }
    Json(body).into_response()
}

async fn metrics(State(admin): State<Arc<Admin>>) -> Response {
    let deadline = Instant::now() + admin.database_timeout;
    prometheus::scrape(&admin.outbox, &admin.inbox, deadline).await;
    admin.recorder.run_upkeep();
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4")];
    (kind, admin.recorder.render()).into_response()
}

fn said(status: StatusCode, word: &str, detail: &str) -> Response {
    (status, Json(json!({"status": word, "detail": detail}))).into_response()
}
