//! A provider that misbehaves as providers do.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};

/// What the provider can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind {
    /// A second request with the same key is the first one.
    pub keys: bool,
    /// It can be asked by key.
    pub look_up: bool,
}

/// What became of a key.
#[derive(Debug, Clone, Default)]
pub struct Entry {
    /// The provider's ids of the charges that were made.
    pub charges: Vec<String>,
    /// How often it was declined.
    pub declined: u32,
}

/// The provider, with its own book.
#[derive(Debug, Clone)]
pub struct Simulator {
    kind: Kind,
    book: Arc<Mutex<HashMap<String, Entry>>>,
    webhooks: String,
    http: reqwest::Client,
}

impl Simulator {
    /// A provider that reports to this address.
    pub fn new(kind: Kind, webhooks: String) -> Self {
        Self {
            kind,
            book: Arc::default(),
            webhooks,
            http: reqwest::Client::new(),
        }
    }

    /// Its HTTP API.
    pub fn router(&self) -> Router {
        Router::new()
            .route("/charges", post(charge))
            .route("/charges/{key}", get(find))
            .with_state(self.clone())
    }

    /// Its book: what became of each key.
    pub fn book(&self) -> HashMap<String, Entry> {
        self.locked().clone()
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, HashMap<String, Entry>> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Charges, or repeats what it did before where it honours keys. Returns the id; `None`: declined.
    fn charge(&self, key: &str) -> Option<String> {
        let mut book = self.locked();
        let entry = book.entry(key.to_owned()).or_default();
        if self.kind.keys && entry.declined > 0 {
            return None;
        }
        if let (true, Some(id)) = (self.kind.keys, entry.charges.first()) {
            return Some(id.clone());
        }
        // As a card without funds would, whatever else goes wrong.
        if key.ends_with(['3', '7']) {
            entry.declined += 1;
            return None;
        }
        let id = format!("ch_{}", uuid::Uuid::new_v4().simple());
        entry.charges.push(id.clone());
        Some(id)
    }

    /// Reports a charge, some twice, some by the key, some by the reference alone.
    async fn report(&self, key: &str, id: &str) {
        let event = format!("evt_{id}");
        let mut body = json!({"event_id": event, "id": id});
        if rand::random_bool(0.5) {
            body["key"] = json!(key);
        }
        for _ in 0..rand::random_range(1..3) {
            // A webhook that is lost is lost.
            let _ = self.http.post(&self.webhooks).json(&body).send().await;
        }
    }
}

const LONG: Duration = Duration::from_millis(600);

async fn charge(
    State(provider): State<Simulator>,
    headers: HeaderMap,
    Json(_request): Json<Value>,
) -> Response {
    let key = headers
        .get("idempotency-key")
        .and_then(|key| key.to_str().ok());
    let Some(key) = key.map(str::to_owned) else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    // A task of its own: a client that hangs up changes nothing.
    let work = tokio::spawn(async move {
        let fate = rand::random_range(0..100);
        match fate {
            0..8 => return StatusCode::TOO_MANY_REQUESTS.into_response(),
            8..16 => {
                // Lost: nobody ever answers.
                tokio::time::sleep(LONG).await;
                return StatusCode::GATEWAY_TIMEOUT.into_response();
            }
            // Acts long after the client has given up.
            16..24 => tokio::time::sleep(LONG).await,
            _ => {}
        }
        let Some(id) = provider.charge(&key) else {
            return StatusCode::PAYMENT_REQUIRED.into_response();
        };
        match fate {
            24..36 => tokio::time::sleep(LONG).await,
            36..46 => return StatusCode::INTERNAL_SERVER_ERROR.into_response(),
            // The report comes first.
            46..62 => provider.report(&key, &id).await,
            62..85 => {
                let (provider, key, id) = (provider.clone(), key.clone(), id.clone());
                tokio::spawn(async move { provider.report(&key, &id).await });
            }
            _ => {}
        }
        Json(json!({"id": id})).into_response()
    });
    match work.await {
        Ok(response) => response,
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

async fn find(State(provider): State<Simulator>, Path(key): Path<String>) -> Response {
    if !provider.kind.look_up || rand::random_bool(0.1) {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    }
    match provider.locked().get(&key) {
        Some(entry) if !entry.charges.is_empty() => {
            Json(json!({"id": entry.charges[0]})).into_response()
        }
        Some(entry) if entry.declined > 0 => StatusCode::PAYMENT_REQUIRED.into_response(),
        _ => StatusCode::NOT_FOUND.into_response(),
    }
}
