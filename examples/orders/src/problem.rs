//! HTTP's words for what pgonce says: the key's header, and each error as a problem document.

use std::time::Duration;

use axum::extract::rejection::JsonRejection;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use pgonce::retry::Class;
use pgonce::{Error, Intent};
use serde_json::json;

/// Why a request was not fulfilled, answered as `application/problem+json`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    status: StatusCode,
    code: String,
    reason: Option<String>,
    detail: String,
    retry_after: Option<Duration>,
    replayed: bool,
}

impl Problem {
    /// A problem with a stable code for programs and a sentence for people.
    pub fn new(status: StatusCode, code: impl Into<String>, detail: impl Into<String>) -> Self {
        Self {
            status,
            code: code.into(),
            reason: None,
            detail: detail.into(),
            retry_after: None,
            replayed: false,
        }
    }
}

/// The key of a request; the quoted and the raw form of the header are one key.
pub(crate) fn key(headers: &HeaderMap) -> Result<&str, Problem> {
    let Some(header) = headers.get("idempotency-key") else {
        let told = "the header Idempotency-Key is missing; send the same one with every retry";
        return Err(Problem::new(StatusCode::BAD_REQUEST, "P4001", told));
    };
    let key = Intent::key_from_bytes(header.as_bytes())?.trim();
    Ok(key
        .strip_prefix('"')
        .and_then(|k| k.strip_suffix('"'))
        .unwrap_or(key))
}

/// Lets a client see that the answer had been there before this request.
pub(crate) fn mark_replay(headers: &mut HeaderMap, replayed: bool) {
    if replayed {
        headers.insert("idempotent-replayed", HeaderValue::from_static("true"));
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        // What the database says about itself is for our logs, not for clients.
        let (status, detail) = match &error {
            Error::Invalid(problem) => (StatusCode::BAD_REQUEST, told(problem)),
            Error::Conflict(problem) => (StatusCode::UNPROCESSABLE_ENTITY, told(problem)),
            Error::Gone(problem) => (StatusCode::GONE, told(problem)),
            Error::Refused(failure) => (
                StatusCode::UNPROCESSABLE_ENTITY,
                failure.message().to_owned(),
            ),
            Error::Busy { .. } => {
                let told = "another request with this key is still under way";
                (StatusCode::CONFLICT, told.to_owned())
            }
            _ => match error.class() {
                Class::Retry | Class::RetryAfterDelay | Class::ClaimAgain | Class::Ambiguous => {
                    let told = "the database cannot be asked now; send the same request with the same key again";
                    (StatusCode::SERVICE_UNAVAILABLE, told.to_owned())
                }
                _ => {
                    let told =
                        "something is wrong on our side; it is safe to send the same request again";
                    (StatusCode::INTERNAL_SERVER_ERROR, told.to_owned())
                }
            },
        };
        Self {
            reason: match &error {
                Error::Refused(failure) | Error::Failed(failure) => Some(failure.code().to_owned()),
                _ => None,
            },
            replayed: matches!(&error, Error::Refused(failure) if failure.replayed()),
            retry_after: match &error {
                Error::Busy { retry_after, .. } => Some(*retry_after),
                _ if status == StatusCode::SERVICE_UNAVAILABLE => Some(Duration::from_secs(1)),
                _ => None,
            },
            ..Self::new(status, error.code(), detail)
        }
    }
}

fn told(problem: &pgonce::Problem) -> String {
    match &problem.hint {
        Some(hint) => format!("{}. {hint}", problem.message),
        None => problem.message.to_string(),
    }
}

impl From<JsonRejection> for Problem {
    fn from(rejection: JsonRejection) -> Self {
        Self::new(
            StatusCode::BAD_REQUEST,
            "order_unreadable",
            rejection.body_text(),
        )
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut document = json!({
            "title": self.status.canonical_reason(),
            "status": self.status.as_u16(),
            "code": self.code,
            "detail": self.detail,
        });
        if let Some(reason) = self.reason {
            document["reason"] = reason.into();
        }
        let mut response = (self.status, document.to_string()).into_response();
        let headers = response.headers_mut();
        let kind = HeaderValue::from_static("application/problem+json");
        headers.insert(header::CONTENT_TYPE, kind);
        mark_replay(headers, self.replayed);
        if let Some(after) = self.retry_after {
            // Whole seconds, never 0: that would ask for a busy loop.
            let seconds = after.as_millis().div_ceil(1000).clamp(1, 3600) as u32;
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        response
    }
}
