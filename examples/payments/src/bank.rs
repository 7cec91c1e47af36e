//! The provider, as the service calls it.

use std::error::Error;

use pgonce::Failure;
use pgonce::external::{CallError, Effect, Found, Provider, Reply, Storage};
use reqwest::{Client, StatusCode};
use serde_json::Value;

/// A provider at an address.
#[derive(Debug, Clone)]
pub struct Bank {
    /// Where its charges are.
    pub url: String,
    /// Connections to it.
    pub http: Client,
}

fn declined() -> Failure {
    Failure::permanent("declined", "the card was declined")
}

fn charge(body: &Value) -> Result<Reply, pgonce::Error> {
    let id = body["id"].as_str().unwrap_or_default();
    Ok(Reply::new(body)?.reference(id))
}

impl Provider for Bank {
    fn name(&self) -> &str {
        "bank"
    }

    async fn call(&self, effect: &Effect, request: &Value) -> Result<Reply, CallError> {
        let post = self
            .http
            .post(&self.url)
            .header("idempotency-key", &effect.key);
        let response = match post.json(request).send().await {
            // No connection was made: it cannot have acted.
            Err(error) if error.is_connect() => return Err(CallError::NotSent(error.to_string())),
            response => response?,
        };
        match response.status() {
            StatusCode::OK => Ok(charge(&response.json().await?)?),
            StatusCode::PAYMENT_REQUIRED => Err(CallError::Rejected(declined())),
            StatusCode::TOO_MANY_REQUESTS => Err(CallError::NotSent("too many requests".into())),
            status => Err(CallError::unknown(status.to_string())),
        }
    }

    async fn look_up(&self, effect: &Effect) -> Result<Found, Box<dyn Error + Send + Sync>> {
        let get = self.http.get(format!("{}/{}", self.url, effect.key));
        let response = get.send().await?;
        match response.status() {
            StatusCode::OK => Ok(Found::Confirmed(charge(&response.json().await?)?)),
            StatusCode::PAYMENT_REQUIRED => Ok(Found::Failed(declined())),
            // Not found is not "will not happen": it may be on its way.
            _ => Ok(Found::Unknown),
        }
    }

    fn store_request(&self) -> Storage {
        Storage::redacted(["card"])
    }
}
