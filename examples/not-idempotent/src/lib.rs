//! A payments API in memory, with faults to choose from, for `pgonce probe` to find.
//!
//! `POST /payments` and `POST /refunds` take `{"amount": 7}`, an `Idempotency-Key` and an
//! `X-User`; `GET /count` counts what was done. On a negative amount the bank fails.

mod fault;
mod memory;

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::header::{CONTENT_TYPE, DATE, ETAG, LOCATION, RETRY_AFTER, SET_COOKIE};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::time::sleep;

pub use fault::Fault;
use memory::{Claim, Memory, Name, Stored};

/// What the bank takes. Long enough for others to come in between.
const WORK: Duration = Duration::from_millis(30);

/// How long a service that forgets early remembers.
const SHORT_RETENTION: Duration = Duration::from_secs(1);

struct Bank {
    fault: Fault,
    memory: Memory,
}

/// The service, with this fault.
pub fn router(fault: Fault) -> Router {
    let memory = Memory::default();
    Router::new()
        .route("/payments", post(pay))
        .route("/refunds", post(pay))
        .route("/count", get(count))
        .with_state(Arc::new(Bank { fault, memory }))
}

async fn count(State(bank): State<Arc<Bank>>) -> Json<Value> {
    Json(json!({ "count": bank.memory.effects() }))
}

async fn pay(State(bank): State<Arc<Bank>>, uri: Uri, headers: HeaderMap, body: Bytes) -> Response {
    let name = match bank.name(&uri, &headers) {
        Ok(name) => name,
        Err((status, why)) => return bank.problem(status, why),
    };
    if matches!(
        bank.fault,
        Fault::ForgetsOnDisconnect | Fault::StuckOnDisconnect
    ) {
        return bank.handle(name, body).await;
    }
    // In a task of its own, so that a client that leaves does not stop it half-way.
    let handled = tokio::spawn(async move { bank.handle(name, body).await });
    let failed = StatusCode::INTERNAL_SERVER_ERROR;
    handled.await.unwrap_or_else(|_| failed.into_response())
}

impl Bank {
    /// The name of the request; none for a request that needs no key.
    fn name(&self, uri: &Uri, headers: &HeaderMap) -> Result<Option<Name>, (u16, &'static str)> {
        let fault = self.fault;
        let keys: Vec<_> = headers.get_all("idempotency-key").iter().collect();
        let key = match keys[..] {
            [] if fault == Fault::OptionalKey => return Ok(None),
            [] => return Err((400, "the Idempotency-Key is missing")),
            [first, _, ..] if fault == Fault::FirstOfTwoKeys => first,
            [key] => key,
            _ => return Err((400, "there are two Idempotency-Keys")),
        };
        if !key.as_bytes().is_ascii() && fault == Fault::FailsOnOddKeys {
            return Err((500, "decoding error"));
        }
        let Ok(key) = std::str::from_utf8(key.as_bytes()) else {
            return Err((400, "the key is not UTF-8"));
        };
        let unquoted = key.strip_prefix('"').and_then(|k| k.strip_suffix('"'));
        let mut key = match unquoted {
            Some(inner) if fault != Fault::TwoForms => inner.to_owned(),
            _ => key.to_owned(),
        };
        match fault {
            Fault::CutsKeys => key = key.chars().take(255).collect(),
            Fault::IgnoresCase => key = key.to_lowercase(),
            Fault::DedupsEverything => key = "the only one".to_owned(),
            _ => {}
        }
        if (key.is_empty() && fault != Fault::EmptyIsAKey) || key.len() > 255 {
            return Err((400, "a key has 1 to 255 bytes"));
        }
        let user = headers
            .get("x-user")
            .map_or(&b""[..], HeaderValue::as_bytes);
        Ok(Some(Name {
            endpoint: match fault {
                Fault::SharesEndpoints | Fault::DedupsEverything => String::new(),
                _ => uri.path().to_owned(),
            },
            user: match fault {
                Fault::SharesPrincipals | Fault::DedupsEverything => Vec::new(),
                _ => user.to_vec(),
            },
            key,
        }))
    }

    async fn handle(&self, name: Option<Name>, body: Bytes) -> Response {
        let document = serde_json::from_slice::<Value>(&body).ok();
        let amount = document.as_ref().and_then(|d| d["amount"].as_i64());
        let body = match (&document, amount) {
            (Some(_), Some(amount)) if self.fault == Fault::ComparesAmounts => {
                Bytes::from(amount.to_string())
            }
            // Written with its members in order.
            (Some(document), _) if self.fault != Fault::ComparesBytes => {
                document.to_string().into()
            }
            _ => body,
        };
        if self.fault == Fault::ForgetsEarly {
            self.memory.forget_older_than(SHORT_RETENTION);
        }
        let (Some(name), Some(amount)) = (&name, amount) else {
            return match (amount, name) {
                (Some(amount), None) => self.work(amount).await.answer(),
                (_, Some(name)) if self.fault == Fault::BurnsKeys => {
                    self.memory.claim(&name, &body);
                    let stored = Stored::refusal("the amount is missing");
                    self.memory.remember(&name, stored);
                    self.problem(422, "the amount is missing")
                }
                // As a handler that takes the key before it looks at what came.
                (_, Some(name))
                    if self.fault == Fault::StuckAfterException && document.is_some() =>
                {
                    match self.memory.claim(&name, &body) {
                        Claim::Mine => self.problem(500, "TypeError"),
                        _ => self.problem(409, "it is under way"),
                    }
                }
                _ => self.problem(422, "the amount is missing"),
            };
        };
        if self.fault == Fault::NoDedup {
            return self.work(amount).await.answer();
        }
        if self.fault == Fault::CheckThenAct {
            if let Some((known, stored)) = self.memory.recall(name) {
                return match known == body {
                    true => self.replay(&stored),
                    false => self.problem(422, "the key was used for another payment"),
                };
            }
            let stored = self.work(amount).await;
            self.memory.claim(name, &body);
            self.memory.remember(name, stored.clone());
            return stored.answer();
        }
        let lax = matches!(self.fault, Fault::IgnoresPayload | Fault::DedupsEverything);
        match self.memory.claim(name, &body) {
            Claim::Mine => {
                let mut held = self.memory.hold(name);
                if amount < 0 {
                    if self.fault == Fault::StuckAfterException {
                        held.keep();
                    }
                    return self.problem(500, "the bank failed");
                }
                if self.fault == Fault::StuckOnDisconnect {
                    held.keep();
                }
                let stored = self.work(amount).await;
                self.memory.remember(name, stored.clone());
                held.keep();
                stored.answer()
            }
            Claim::Done { stored, same } if same || lax => {
                if self.fault == Fault::ReplaysOnce {
                    self.memory.forget(name);
                }
                self.replay(&stored)
            }
            Claim::Busy { .. } if self.fault == Fault::IgnoresPayloadInFlight => {
                sleep(2 * WORK).await;
                match self.memory.recall(name) {
                    Some((_, stored)) => self.replay(&stored),
                    None => self.problem(409, "it is under way"),
                }
            }
            Claim::Done { .. } | Claim::Busy { same: false } if !lax => {
                self.problem(422, "the key was used for another payment")
            }
            _ if self.fault == Fault::ErrorInFlight => self.problem(500, "duplicate key value"),
            _ => self.problem(409, "it is under way"),
        }
    }

    /// Does it. Half of the time is before the effect, half is after it.
    async fn work(&self, amount: i64) -> Stored {
        sleep(WORK / 2).await;
        let id = match self.fault {
            Fault::DoesNothing => 1,
            _ => self.memory.make_effect(),
        };
        sleep(WORK / 2).await;
        let mut stored = Stored::payment(id, amount);
        if self.fault == Fault::ReplaysAllHeaders {
            // A stopped clock will do: what matters is that a replay has the same date.
            let date = "Thu, 01 Jan 2026 00:00:00 GMT".to_owned();
            stored.headers.push((DATE, date));
        }
        stored
    }

    fn replay(&self, stored: &Stored) -> Response {
        let mut response = stored.answer();
        let headers = response.headers_mut();
        if self.fault != Fault::ReplaysAllHeaders {
            headers.remove(SET_COOKIE);
        }
        if self.fault == Fault::LosesHeaders {
            headers.remove(LOCATION);
        }
        if self.fault != Fault::Unmarked {
            headers.insert("idempotent-replayed", HeaderValue::from_static("true"));
        }
        if self.fault == Fault::LosesBody {
            *response.body_mut() = axum::body::Body::empty();
        }
        response
    }

    fn problem(&self, status: u16, detail: &str) -> Response {
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let document = json!({ "title": status.canonical_reason(), "status": status.as_u16(), "detail": detail });
        let kind = [(CONTENT_TYPE, "application/problem+json")];
        let mut response = match self.fault {
            Fault::PlainErrors => (status, detail.to_owned()).into_response(),
            _ => (status, kind, document.to_string()).into_response(),
        };
        if status == StatusCode::CONFLICT && self.fault != Fault::NoRetryAfter {
            let soon = HeaderValue::from_static("1");
            response.headers_mut().insert(RETRY_AFTER, soon);
        }
        response
    }
}

impl Stored {
    fn payment(id: u64, amount: i64) -> Self {
        Self {
            status: StatusCode::CREATED,
            headers: vec![
                (CONTENT_TYPE, "application/json".to_owned()),
                (LOCATION, format!("/payments/{id}")),
                (ETAG, format!("\"{id}\"")),
                (SET_COOKIE, format!("session={id}")),
            ],
            body: json!({ "id": id, "amount": amount }).to_string(),
        }
    }

    fn refusal(detail: &str) -> Self {
        Self {
            status: StatusCode::UNPROCESSABLE_ENTITY,
            headers: Vec::new(),
            body: detail.to_owned(),
        }
    }

    fn answer(&self) -> Response {
        let mut response = (self.status, self.body.clone()).into_response();
        for (name, value) in &self.headers {
            if let Ok(value) = HeaderValue::from_str(value) {
                response.headers_mut().insert(name, value);
            }
        }
        response
    }
}
