//! Payments through a provider that misbehaves, each charged once or explicitly waiting for an operator.

pub mod bank;
pub mod simulator;
pub mod storm;

use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use pgonce::driver::sqlx::Sqlx;
use pgonce::external::{Reply, Report, Rules, Step};
use pgonce::sqlx::{Migrator, Once};
use pgonce::{Error, Intent, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sqlx::postgres::PgPoolOptions;

use bank::Bank;

/// The kind of command that is made to happen once.
pub const SCOPE: &str = "payments.charge";

/// What a client asks for.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Payment {
    /// In cents.
    pub amount: u64,
    /// The card's number; never stored.
    pub card: String,
}

/// Connects, installs pgonce where it is missing, and says what the provider can do.
pub async fn set_up(url: &str, rules: &Rules) -> Result<Once> {
    let pool = PgPoolOptions::new()
        .max_connections(16)
        .connect(url)
        .await?;
    Migrator::new(Sqlx::new(pool.clone())).up().await?;
    let contract = "select pgonce.define_scope('payments.charge', '30 days', p_lease => '1 second', p_boundary => 'external')";
    sqlx::raw_sql(contract).execute(&pool).await?;
    let once = Once::new(pool);
    once.define_provider(rules).await?;
    Ok(once)
}

/// The service.
pub fn router(once: Once, bank: Bank) -> Router {
    Router::new()
        .route("/payments", post(pay))
        .route("/webhooks", post(webhook))
        .with_state((once, bank))
}

/// Charges once. The answer is the provider's.
pub async fn charge(once: &Once, bank: &Bank, key: &str, payment: &Payment) -> Result<Value> {
    let intent = Intent::new(SCOPE, key, payment)?;
    once.run_leased(&intent, |mut lease| async move {
        let step = Step::new("charge")
            .timeout(Duration::from_millis(250))
            .decides_command();
        let charged = lease.external().call(step, bank, payment).await?;
        // What a webhook confirmed has no body.
        let answer = charged
            .body
            .unwrap_or_else(|| json!({"id": charged.reference}));
        lease.succeed(&answer).await
    })
    .await?
    .into_answer()
}

async fn pay(
    State((once, bank)): State<(Once, Bank)>,
    headers: HeaderMap,
    Json(payment): Json<Payment>,
) -> Response {
    let key = headers
        .get("idempotency-key")
        .and_then(|key| key.to_str().ok());
    let Some(key) = key else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    match charge(&once, &bank, key, &payment).await {
        Ok(answer) => Json(answer).into_response(),
        Err(Error::Refused(failure)) => (
            StatusCode::PAYMENT_REQUIRED,
            Json(json!({"code": failure.code()})),
        )
            .into_response(),
        // It may have happened: the client asks again, and never pays by another key.
        Err(Error::Failed(failure)) => (
            StatusCode::ACCEPTED,
            [("retry-after", "1")],
            Json(json!({"code": failure.code()})),
        )
            .into_response(),
        Err(error) => (
            StatusCode::SERVICE_UNAVAILABLE,
            [("retry-after", "1")],
            Json(json!({"code": error.code()})),
        )
            .into_response(),
    }
}

/// What the provider reports. A real one signs it; verify that first.
#[derive(Debug, Deserialize)]
struct Event {
    event_id: String,
    id: String,
    key: Option<String>,
}

async fn webhook(State((once, bank)): State<(Once, Bank)>, Json(event): Json<Event>) -> StatusCode {
    let reply = match Reply::new(&json!({"id": event.id})) {
        Ok(reply) => reply.reference(event.id),
        Err(_) => return StatusCode::BAD_REQUEST,
    };
    let mut report = Report::confirmed(reply).event_id(event.event_id);
    if let Some(key) = event.key {
        report = report.effect_key(key);
    }
    match once.observe(&bank, report).await {
        Ok(_) => StatusCode::NO_CONTENT,
        // The provider sends it again.
        Err(_) => StatusCode::SERVICE_UNAVAILABLE,
    }
}
